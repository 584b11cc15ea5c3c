# SPDX-License-Identifier: Apache-2.0
"""`nano-build bench`: prefill, decode and the first token of a bundle, or of a well-known shape with random weights."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanobuild import measures, pipeline, resources, synthetic
from nanobuild.bench import Ours
from nanobuild.bundle import is_bundle
from nanobuild.compile import build_binary
from nanobuild.conditions import Machine
from nanobuild.detect import detect
from nanobuild.errors import NanoBuildError, UsageError
from nanobuild.formats import Format
from nanobuild.measures import Contender, Task
from nanobuild.platforms import default_platform, load_platform
from nanobuild.ui import Ui

_START_PROMPT = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The command line."""

    model: str | None
    shape: str | None
    recipe: str
    threads: tuple[int, ...]
    prefill: int
    decode: int
    depth: int
    kv: str
    reps: int
    isa: str | None
    start: bool
    peer: bool
    gguf: Path | None
    offline: bool


def main(ui: Ui, want: Wanted) -> None:
    """Prints a line per workload and engine, with the limits measured in the same process."""
    if (want.model is None) == (want.shape is None):
        raise UsageError("E_USAGE", "bench", "give a model or --shape, and not both")
    if want.kv not in ("f16", "i8"):
        raise UsageError("E_USAGE", "bench", f"--kv is {want.kv}, allowed are f16 and i8")
    ours, name = _synthetic(ui, want) if want.shape is not None else _bundle(ui, want)
    peers, absent = _peers(ui, want) if want.peer else ([], [])
    for line in absent:
        ui.note(line)
    contenders: list[Contender] = [dataclasses.replace(ours, reps=1 if peers else want.reps), *peers]
    machine = Machine()

    def state(task: Task) -> Mapping[str, Any]:
        return machine.facts(task.cpus) | {"threads": task.threads}

    def failed(contender: Contender, error: NanoBuildError) -> None:
        absent.append(f"{contender.engine}, {contender.config}: left out: {error}")
        ui.note(absent[-1])

    taken = measures.take(
        contenders,
        _tasks(want, machine),
        want.reps if peers else 1,
        machine=state,
        failed=failed,
        progress=lambda done, total: ui.progress("timing", done, total),
    )
    rows = measures.to_rows(taken, name)
    if want.start and not any(row.workload.what == "first token, cold" for row in rows):
        absent.append("first token, cold: not measured, the kernel keeps pages of the model file in memory")
        ui.note(absent[-1])
    sizes = {"binary_bytes": ours.binary.stat().st_size, "model_bytes": ours.model.stat().st_size}
    found = {"machine": dict(detect()), **sizes, "rows": [row.to_json() for row in rows], "absent": absent}
    ui.result(found, lambda: _show(ui, rows, sizes))


def _show(ui: Ui, rows: list[measures.Row], sizes: Mapping[str, int]) -> None:
    m = rows[0].machine
    program, model = sizes["binary_bytes"] / 1024, sizes["model_bytes"] / 1e6
    state = [m["cpu"], f"Linux {m['kernel']}", f"load {m['load'][0]}" if m["load"] else ""]
    state += [f"{m['clock_mhz']} MHz" if m["clock_mhz"] else "", m["governor"] or ""]
    state += [f"{m['temperature_c']:.0f} C" if m["temperature_c"] else ""]
    ui.out(f"{rows[0].model}: model file {model:.0f} MB, program {program:.0f} KiB")
    ui.out(", ".join(part for part in state if part))
    ui.table(measures.COLUMNS, measures.table(rows))


def _tasks(want: Wanted, machine: Machine) -> list[Task]:
    tasks = []
    for count in want.threads:
        cpus = machine.cpus(count)
        speed = Task(kind="speed", threads=count, cpus=cpus, prefill=want.prefill, decode=want.decode, depth=want.depth)
        tasks.append(speed)
        if want.start:
            first = dataclasses.replace(speed, kind="warm", prefill=_START_PROMPT, decode=1, depth=0)
            tasks += [first, dataclasses.replace(first, kind="cold")]
    return tasks


def _bundle(ui: Ui, want: Wanted) -> tuple[Ours, str]:
    bundle = pipeline.prepare(
        str(want.model), want.recipe, default_platform(), offline=want.offline, progress=ui.progress
    )
    recipe = bundle.manifest["model"]["recipe"]
    ours = Ours(binary=bundle.binary, model=bundle.model, weights=recipe, reps=want.reps, isa=want.isa, kv=want.kv)
    return ours, str(want.model)


def _synthetic(ui: Ui, want: Wanted) -> tuple[Ours, str]:
    shape = synthetic.shape_of(str(want.shape))
    folder = resources.cache_dir("shapes")
    file = folder / f"{shape.name}.q4g32.{synthetic.shape_key(shape)}.nano"
    if not file.exists():
        fmt = Format(bits=4, group=32)
        synthetic.write_synthetic(file, synthetic.shape_spec(shape), fmt=fmt, head=fmt, progress=ui.progress)
    binary = folder / "run"
    build_binary(load_platform(default_platform()), binary, progress=ui.progress)
    ours = Ours(binary=binary, model=file, weights="q4g32", reps=want.reps, isa=want.isa, kv=want.kv)
    return ours, f"{shape.name}, random weights"


def _peers(ui: Ui, want: Wanted) -> tuple[list[Contender], list[str]]:
    """The engines that are here, with files for them; files are made only for engines that are here."""
    from nanobuild import peers

    probe = peers.find({"Q4_0": Path("any.gguf")})
    if not probe.contenders:
        return [], probe.absent
    files = _shape_files(ui, want) if want.shape is not None else _model_files(ui, want)
    if not files:
        return [], [*probe.absent, "no GGUF of this model for the peers: name one with --gguf"]
    found = peers.find(files)
    return found.contenders, found.absent


def _shape_files(ui: Ui, want: Wanted) -> dict[str, Path]:
    from nanobuild import peers, synthetic_gguf

    shape, files = synthetic.shape_of(str(want.shape)), {}
    for kind in peers.kinds():
        if not synthetic_gguf.can_hold(shape, kind):
            continue
        file = resources.cache_dir("shapes") / f"synthetic.{shape.name}.{kind}.{synthetic.shape_key(shape)}.gguf"
        if not file.exists():
            synthetic_gguf.write_gguf(file, shape, kind, progress=ui.progress)
        files[kind] = file
    return files


def _model_files(ui: Ui, want: Wanted) -> dict[str, Path]:
    """The source as it is, or what llama-quantize makes of it."""
    from nanobuild.peers import llama

    source = want.gguf
    if source is None and not is_bundle(Path(str(want.model))):
        source = pipeline.resolve_model(str(want.model), offline=want.offline, progress=ui.progress)
    if source is None or source.suffix != ".gguf":
        return {}
    program = llama.find_bench()
    quantize = llama.beside(program, "llama-quantize") if program else None
    if program is None or quantize is None:
        return {f"{source.name} as it is": source}
    state = f"{source.resolve()} {source.stat().st_size} {source.stat().st_mtime_ns}"
    key, files = hashlib.sha256(state.encode()).hexdigest()[:8], {}
    for kind, made in (("Q4_0", "Q4_0"), *((("Q4_K", "Q4_K_M"),) if llama.has_repack(program) else ())):
        file = resources.cache_dir("peers") / f"{source.stem}.{made}.{key}.gguf"
        if not file.exists():
            ui.progress(f"making a {made} file for llama.cpp")
            part = file.with_name(f".{file.name}.part")
            llama.quantize(quantize, source, part, made)
            part.replace(file)
        files[kind] = file
    return files
