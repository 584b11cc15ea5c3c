# SPDX-License-Identifier: Apache-2.0
"""Which CPU feature each machine instruction needs, an architecture a module; `elf` finds the code in a file.

A module has BASE, the features of every CPU of its architecture, and two functions: `decode` and `text`.
Features go by their names in /proc/cpuinfo; x86's base goes by "x86-64", "fpu", "mmx", "sse" and "sse2".
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

UNKNOWN = ("unknown",)  # what decodes as nothing we know needs this, which no CPU has

Instruction = tuple[int, tuple[str, ...]]  # offset in the code, features; no features: padding


class Decoder(Protocol):
    """What the module of an architecture offers."""

    BASE: frozenset[str]

    def decode(self, code: bytes, cuts: Sequence[int]) -> list[list[Instruction]]:
        """The instructions of each piece `cuts[i]:cuts[i + 1]` of `code`; each piece starts with an instruction."""

    def text(self, code: bytes, offset: int, address: int) -> str:
        """The instruction at an offset, for people; `address` is where the code begins."""


def decoder(arch: str) -> Decoder:
    """The module of x86_64, arm64 or riscv64."""
    module: Decoder = importlib.import_module(f"nanobuild.isaclasses.{arch}")
    return module
