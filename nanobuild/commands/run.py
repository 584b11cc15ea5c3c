# SPDX-License-Identifier: Apache-2.0
"""`nano-build run`: a bundle as it is, anything else after the whole way through the cache; then the program itself."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from nanobuild import emulator, pipeline, proc
from nanobuild.archs import parse_arch
from nanobuild.bundle import RUNNER, Bundle
from nanobuild.errors import BY_EXIT_CODE, UsageError, quoted
from nanobuild.ui import Ui

# the report line, last on stderr; `python` leaves some of it out
_REPORT = re.compile(
    r"# nb (?P<tokens>\d+) tok  (?P<tok_s>[\d.]+) tok/s .*?isa (?P<isa>\w+)(?:  logits (?P<logits>\w+))?"
)
_ERROR = re.compile(r"^[\w.-]+: error\[(?P<code>E_\w+)\]: (?P<text>.*)$", re.MULTILINE)


def main(
    ui: Ui, model: str, recipe: str, target: str | None, options: Mapping[str, object], *, runner: str, offline: bool
) -> int:
    """Runs the bundle's program with `options` (None and False are left out) and returns its exit code.

    A bundle for another architecture runs under QEMU; its run.py cannot.
    """
    if runner not in ("binary", "python"):
        raise UsageError("E_USAGE", "--runner", f"found {quoted(runner)}, allowed binary or python")
    if ui.json and options.get("interactive"):
        raise UsageError("E_USAGE", "--json", "an interactive run has no single result")
    bundle = pipeline.prepare(model, recipe, target, offline=offline, progress=ui.progress)
    ui.close()
    words = [*_program(ui, bundle, python=runner == "python"), *arguments(options)]
    if ui.json:
        return _as_json(ui, words, bundle.path, from_stdin=options.get("file") == "-")
    return proc.passthrough([*words, *(["-q"] if ui.verbosity < 0 else [])])


def _program(ui: Ui, bundle: Bundle, *, python: bool) -> list[str]:
    """What runs the bundle on this machine: itself, Python, or the emulator that it needs here."""
    target, program = bundle.manifest["target"], str(bundle.binary)
    foreign = parse_arch(os.uname().machine) != target["arch"]
    if python and foreign:
        text = f"a library for {target['arch']} cannot be loaded here"
        raise UsageError("E_USAGE", "--runner", text, hint="leave out --runner: the program can be emulated")
    if python:
        return [sys.executable, str(bundle.path / RUNNER)]
    if not foreign:
        return [program]
    prefix = emulator.require(target["arch"], target.get("emulator_cpu"))
    cpu = f" as {prefix[-1]}" if len(prefix) > 1 else ""
    ui.note(f"emulated: QEMU stands in for {target['arch']}{cpu}; the text is right, the speed means nothing")
    return [*prefix, program]


def arguments(options: Mapping[str, object]) -> list[str]:
    """Options as the bundle's program spells them: --name value, a flag for True, one pair for each item of a list."""
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            for item in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(item)]
    return words


def _as_json(ui: Ui, words: list[str], bundle: Path, *, from_stdin: bool) -> int:
    """One object with the whole text and the figures of the report line; a failing program's error is raised anew."""
    prompt = sys.stdin.buffer.read() if from_stdin else b""
    result = proc.run(words, stdin=prompt, check=False, timeout=24 * 3600.0)
    said = result.stderr.decode("utf-8", "replace")
    if result.returncode:
        error = _ERROR.search(said)
        if error is None or result.returncode not in BY_EXIT_CODE:
            raise proc.failed(result)
        raise BY_EXIT_CODE[result.returncode](error["code"], "", error["text"])
    report = _REPORT.search(said)
    text = result.stdout.decode("utf-8", "replace")
    answer = {"bundle": str(bundle), "text": text, "report": report.groupdict() if report else None}
    ui.result(answer, lambda: None)
    return 0
