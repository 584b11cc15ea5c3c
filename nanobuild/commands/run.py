# SPDX-License-Identifier: Apache-2.0
"""`nano-build run`: a bundle as it is, anything else after the whole way through the cache; then the program itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from nanobuild import pipeline, proc
from nanobuild.bundle import RUNNER
from nanobuild.errors import UsageError, quoted
from nanobuild.ui import Ui


def main(
    ui: Ui, model: str, recipe: str, target: str, options: Mapping[str, object], *, runner: str, offline: bool
) -> int:
    """Runs the bundle's program with `options` (None and False are left out) and returns its exit code."""
    if runner not in ("binary", "python"):
        raise UsageError("E_USAGE", "--runner", f"found {quoted(runner)}, allowed binary or python")
    bundle = pipeline.prepare(model, recipe, target, offline=offline, progress=ui.progress)
    ui.close()
    program = [str(bundle.binary)] if runner == "binary" else [sys.executable, str(bundle.path / RUNNER)]
    return proc.passthrough([*program, *arguments(options), *(["-q"] if ui.verbosity < 0 else [])])


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
