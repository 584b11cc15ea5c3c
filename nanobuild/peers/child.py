# SPDX-License-Identifier: Apache-2.0
"""A Python package as a peer: timed by a small program of ours in the interpreter that has it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from nanobuild import conditions, proc
from nanobuild.errors import ToolError
from nanobuild.measures import Sample, Task, Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChildPeer:
    """One engine on one file. Loading is not counted; speeds only, whole processes would time Python."""

    engine: str  # its name; the version is among the facts
    script: str  # the program, beside this module
    python: Path
    gguf: Path
    config: str  # the weights

    def run(self, task: Task) -> list[Sample]:
        """One process. Raises ToolError."""
        if task.kind != "speed":
            return []
        numbers = (task.threads, task.prefill, task.decode, task.depth)
        with conditions.pinned(task.cpus):
            argv: list[str | Path] = [self.python, "-I", Path(__file__).with_name(self.script), self.gguf]
            result = proc.run([*argv, *map(str, numbers)], env=proc.clean_env(), timeout=7200.0)
        return parse_child(result.stdout, self.python, task)


def parse_child(stdout: bytes, program: Path, task: Task) -> list[Sample]:
    """What a child of ours in a peer's interpreter prints. Raises ToolError E_PEER."""
    try:
        said = json.loads(stdout.splitlines()[-1])
        facts = {key: said[key] for key in ("version", "load_s") if key in said}
        speeds = [("prefill", task.prefill, 0, task.prefill / said["flat"]["first_s"])]
        speeds += [("decode", task.decode, 0, 1 / said["flat"]["step_s"])]
        if task.depth:
            speeds += [("decode", task.decode, task.depth, 1 / said["deep"]["step_s"])]
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise ToolError("E_PEER", program, f"its timing cannot be read: {error!r}") from error
    out = []
    for what, tokens, depth, speed in speeds:
        workload = Workload(
            what="prefill" if what == "prefill" else "decode", tokens=tokens, depth=depth, threads=task.threads
        )
        out.append(Sample(workload=workload, value=speed, facts=facts))
    return out
