# SPDX-License-Identifier: Apache-2.0
"""Other engines on the same machine in the same minutes: found where they are, each in its best configuration.

Nothing here is needed to run a model, and an engine that is absent is one line, never an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from nanobuild.measures import Contender
from nanobuild.peers import genai, llama


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Engines that can run, and a line for each that cannot."""

    contenders: list[Contender]
    absent: list[str]


def kinds() -> tuple[str, ...]:
    """The GGUF types that the engines found here can use, best first."""
    program = llama.find_bench()
    return ("Q4_0", "Q4_K") if program and llama.has_repack(program) else ("Q4_0",)


def find(files: Mapping[str, Path]) -> Found:
    """Every engine with its configurations, on GGUF files by type (`Q4_0`, `Q4_K`, or what a given file is called)."""
    contenders: list[Contender] = []
    absent: list[str] = []
    for module in (llama, genai):
        found, text = module.contenders(files)
        contenders += found
        absent += [text] if text else []
    return Found(contenders=contenders, absent=absent)
