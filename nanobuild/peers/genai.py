# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI, which reads GGUF files of Llama and Qwen models: timed by a small program in its interpreter."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from nanobuild import conditions, proc
from nanobuild.measures import Contender, Sample, Task
from nanobuild.peers.llama import parse_child

PYTHON = "NANOBUILD_OPENVINO_PYTHON"
LACKING = f"OpenVINO GenAI is not here: pip install openvino-genai, or name a Python that has it in {PYTHON}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GenAi:
    """The package on one file; its second call is what counts, because the first one packs."""

    python: Path
    gguf: Path
    weights: str

    @property
    def engine(self) -> str:
        """Its name; the version is among the facts."""
        return "OpenVINO GenAI"

    @property
    def config(self) -> str:
        """Weights."""
        return self.weights

    def run(self, task: Task) -> list[Sample]:
        """One process, loading included but not counted. Raises ToolError."""
        if task.kind != "speed":
            return []
        child = Path(__file__).with_name("genai_child.py")
        numbers = (task.threads, task.prefill, task.decode, task.depth)
        with conditions.pinned(task.cpus):
            argv: list[str | Path] = [self.python, "-I", child, self.gguf, *map(str, numbers)]
            result = proc.run(argv, env=proc.clean_env(), timeout=7200.0)
        return parse_child(result.stdout, self.python, task)


def contenders(files: Mapping[str, Path]) -> tuple[list[Contender], str]:
    """The package on the first file (4-bit blocks), or the line that says how to get it."""
    named = os.environ.get(PYTHON)
    python = Path(named).absolute() if named else None
    if python is None and importlib.util.find_spec("openvino_genai"):
        python = Path(sys.executable)
    if python is None:
        return [], LACKING
    return [GenAi(python=python, gguf=path, weights=kind) for kind, path in list(files.items())[:1]], ""
