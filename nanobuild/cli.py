# SPDX-License-Identifier: Apache-2.0
"""The command line: parses, calls one function of another module, prints what it returns; nothing else.

`@command(name)` registers a function, adds -q -v --json --debug to its options and hands it the Ui.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobuild import entry
from nanobuild.errors import UsageError
from nanobuild.ui import Ui

app = typer.Typer(
    name="nano-build",
    help="Language models on edge boards: detect, quantize, build a static binary, run.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; also each command that is run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_GLOBALS = {"quiet": Quiet, "verbose": Verbose, "json": Json, "debug": Debug}


def command(name: str) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Registers `function(ui, ...)` as a command; what it returns (None: 0) is the exit code.

    The options that all commands share are accepted before and after the command's name.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        # not get_type_hints(): before Python 3.11 it hides what is annotated behind Optional where the default is None
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        @functools.wraps(function)
        def wrapper(
            typer_context: typer.Context, quiet: bool, verbose: int, json: bool, debug: bool, **values: Any
        ) -> None:
            first: dict[str, Any] = typer_context.obj
            ui = entry.configure(
                quiet=quiet or first["quiet"],
                verbose=verbose + first["verbose"],
                json=json or first["json"],
                debug=debug or first["debug"],
            )
            try:
                code = function(ui, **values)
            except BaseException as error:  # not left to Typer, which would end some of them in its own way
                raise entry.Carried(error) from None
            raise typer.Exit(code or 0)

        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(key, keyword, default=0 if key == "verbose" else False, annotation=hint)
            for key, hint in _GLOBALS.items()
        ]
        context = inspect.Parameter("typer_context", keyword, annotation=typer.Context)
        own = [p.replace(kind=keyword) for p in own]
        wrapper.__signature__ = inspect.Signature([context, *own, *shared])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {"typer_context": typer.Context, **{p.name: p.annotation for p in own}, **_GLOBALS}
        del wrapper.__wrapped__  # or signatures would be read from the inner function
        app.command(name)(wrapper)
        return wrapper

    return register


@app.callback(invoke_without_command=True)
def _start(
    ctx: typer.Context,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    json: Json = False,
    debug: Debug = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    ctx.obj = {"quiet": quiet, "verbose": verbose, "json": json, "debug": debug}
    if version:
        from nanobuild import __version__

        ui = entry.configure(quiet=quiet, verbose=verbose, json=json, debug=debug)
        ui.result({"version": __version__}, lambda: ui.out(f"nano-build {__version__}"))
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        raise UsageError("E_USAGE", "", "a command is missing", hint="nano-build --help")


@command("detect")
def detect(
    ui: Ui,
    sysroot: Annotated[Path | None, typer.Option(help="Read /proc, /sys and /etc below this folder.")] = None,
) -> None:
    """What this machine is, which platform and levels fit it, and what limits it has."""
    from nanobuild import detect as work

    work.main(ui, sysroot)


@command("doctor")
def doctor(ui: Ui) -> int:
    """What is missing on this machine, with the one-line fix."""
    from nanobuild import doctor as work

    return work.main(ui)


@command("targets")
def targets(
    ui: Ui,
    name: Annotated[str | None, typer.Argument(help="A platform's name or YAML file; none: list all.")] = None,
) -> None:
    """The boards and generic CPUs that can be built for."""
    from nanobuild import platforms as work

    work.main(ui, name)


Recipe = Annotated[str, typer.Option("--recipe", "-r", help="A recipe's name or YAML file; see nano-build recipes.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use only what is already in the cache.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an output that exists.")]


@command("quantize")
def quantize(
    ui: Ui,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Checkpoint folder, .safetensors, .gguf, or a model's name.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The quantized checkpoint (.safetensors).")] = None,
    recipe: Recipe = "q4",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with exact sizes; write nothing.")] = False,
    force: Force = False,
    offline: Offline = False,
) -> None:
    """Checkpoint to quantized checkpoint: the plan first, then tensor by tensor."""
    from nanobuild.commands import quantize as work

    work.main(ui, source, out, recipe, dry_run=dry_run, force=force, offline=offline)


@command("build")
def build(
    ui: Ui,
    source: Annotated[Path, typer.Argument(metavar="QUANTIZED", help="What nano-build quantize wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle's folder.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="A platform; repeatable; none: this machine's generic one."),
    ] = None,
    toolchain: Annotated[str | None, typer.Option(help="zig, clang or gcc, instead of the platform's choice.")] = None,
    force: Force = False,
) -> None:
    """Compile the kernels, pack the model, check the result: a folder that runs on the board."""
    from nanobuild.commands import build as work

    work.main(ui, source, out, target or [], toolchain=toolchain, force=force)


@command("run")
def run_model(
    ui: Ui,
    model: Annotated[str, typer.Argument(help="A bundle, a checkpoint, or a model's name.")] = "smollm2-135m",
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The text to go on from.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Read the prompt from a file; - is stdin.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", min=1)] = None,
    ctx: Annotated[int | None, typer.Option("--ctx", "-c", min=1, help="Positions in the cache.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1)] = None,
    temp: Annotated[float | None, typer.Option(help="Temperature; 0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    min_p: Annotated[float | None, typer.Option()] = None,
    repeat_penalty: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option("--seed", "-s", min=0)] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")] = None,
    chat: Annotated[bool, typer.Option(help="The prompt is a user's turn.")] = False,
    system: Annotated[str | None, typer.Option(help="System text for --chat and -i.")] = None,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Read turns from the terminal.")] = False,
    kv: Annotated[str | None, typer.Option(help="Key/value cache: f16 or i8.")] = None,
    mmap_mode: Annotated[str | None, typer.Option(help="auto, populate, lazy or read.")] = None,
    isa: Annotated[str | None, typer.Option(help="Force a level of the instruction set.")] = None,
    ids: Annotated[bool, typer.Option(help="Print token ids instead of text.")] = False,
    recipe: Recipe = "q4",
    target: Annotated[str | None, typer.Option(help="The platform to build for; none: this machine's.")] = None,
    runner: Annotated[str, typer.Option(help="binary, or python for the bundle's run.py.")] = "binary",
    offline: Offline = False,
) -> int:
    """Run a model; anything but a bundle is quantized and built first. Text on stdout, all else on stderr."""
    from nanobuild.commands import run as work

    options = {
        "prompt": prompt, "file": file, "max-tokens": max_tokens, "ctx": ctx, "threads": threads, "temp": temp,
        "top-k": top_k, "top-p": top_p, "min-p": min_p, "repeat-penalty": repeat_penalty, "seed": seed, "stop": stop,
        "chat": chat, "system": system, "interactive": interactive, "kv": kv, "mmap-mode": mmap_mode, "isa": isa,
        "ids": ids,
    }  # fmt: skip
    return work.main(ui, model, recipe, target, options, runner=runner, offline=offline)


@command("show")
def show(
    ui: Ui,
    path: Annotated[Path, typer.Argument(help="A checkpoint, quantized checkpoint, model.nano or bundle.")],
    verify: Annotated[bool, typer.Option("--verify", help="Check every checksum of a model file.")] = False,
) -> None:
    """What is in a file: the model's features, every tensor, every byte."""
    from nanobuild.commands import show as work

    work.main(ui, path, verify=verify)


@command("recipes")
def recipes(
    ui: Ui,
    name: Annotated[str | None, typer.Argument(help="A recipe to check and show; without it, all are listed.")] = None,
) -> None:
    """The quantization recipes."""
    from nanobuild.commands import recipes as work

    work.main(ui, name)


@command("models")
def models(ui: Ui) -> None:
    """The model families that are supported and the models that can be fetched."""
    from nanobuild.commands import models as work

    work.main(ui)


@command("fetch")
def fetch(
    ui: Ui,
    name: Annotated[str, typer.Argument(help="A model's name; see nano-build models.")],
    offline: Offline = False,
) -> None:
    """Fetch a model into the cache, verified; prints its path."""
    from nanobuild.commands import models as work

    work.fetch(ui, name, offline=offline)


@command("eval")
def evaluate(
    ui: Ui,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The float model: a checkpoint or a model's name.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Bundle or quantized checkpoint to compare.")
    ] = None,
    recipe: Recipe = "q4",
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to score; a bundled one by default.")] = None,
    windows: Annotated[int, typer.Option(min=1, max=10_000)] = 8,
    window_tokens: Annotated[int, typer.Option(min=2, max=4096)] = 512,
    kv: Annotated[str, typer.Option(help="Type of the key/value cache: f16 or i8.")] = "f16",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the receipt (JSON) here.")] = None,
    offline: Offline = False,
) -> None:
    """Compare a quantized model with its float original on real text: KL, top-1 agreement, perplexity."""
    from nanobuild.commands import evaluate as work

    work.main(
        ui, source, model, recipe, text, windows=windows, window_tokens=window_tokens, kv=kv, out=out, offline=offline
    )


@command("bench")
def bench(
    ui: Ui,
    model: Annotated[str | None, typer.Argument(help="A bundle, checkpoint or model name; or give --shape.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="A well-known shape with random weights, such as llama3-8b.")
    ] = None,
    recipe: Recipe = "q4",
    threads: Annotated[list[int] | None, typer.Option("--threads", help="Thread counts to time; repeatable.")] = None,
    prefill: Annotated[int, typer.Option(min=1, max=4096, help="Prompt tokens.")] = 512,
    decode: Annotated[int, typer.Option(min=1, max=4096, help="Tokens to generate.")] = 64,
    depth: Annotated[int, typer.Option(min=0, max=1 << 20, help="Generate once more after this many positions.")] = 0,
    kv: Annotated[str, typer.Option(help="Our key/value cache: f16 or i8.")] = "f16",
    reps: Annotated[int, typer.Option(min=1, max=100, help="Samples of each figure; with --peer, rounds.")] = 5,
    isa: Annotated[str | None, typer.Option(help="Force a level of the instruction set.")] = None,
    start: Annotated[bool, typer.Option(help="Also whole processes to their first token, warm and cold.")] = True,
    peer: Annotated[bool, typer.Option("--peer", help="Also llama.cpp and OpenVINO GenAI, in turn with ours.")] = False,
    gguf: Annotated[Path | None, typer.Option(help="The same model for the peers, where it is not known.")] = None,
    offline: Offline = False,
) -> None:
    """Measured prefill and decode speed beside the machine's measured limits, and beside other engines."""
    from nanobuild.commands import bench as work

    what = work.Wanted(
        model=model, shape=shape, recipe=recipe, threads=tuple(threads or (1, 2)), prefill=prefill, decode=decode,
        depth=depth, kv=kv, reps=reps, isa=isa, start=start, peer=peer, gguf=gguf, offline=offline,
    )  # fmt: skip
    work.main(ui, what)


def run(args: list[str]) -> int:
    """Parses `args`, runs the command, returns its exit code; exceptions pass through."""
    code = typer.main.get_command(app).main(args, prog_name="nano-build", standalone_mode=False)
    return int(code) if isinstance(code, int) else 0
