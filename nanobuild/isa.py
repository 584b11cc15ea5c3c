# SPDX-License-Identifier: Apache-2.0
"""Architectures under all their names, and the instruction set levels of platforms/isa.yaml.

Adding a level is adding a row there; adding an architecture is a row there and a name here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Literal

import msgspec

from nanobuild import resources, schema
from nanobuild.archs import SYNONYMS, parse_arch
from nanobuild.errors import ToolError

__all__ = ["SYNONYMS", "Arch", "Isa", "Level", "load_isa", "parse_arch"]

Compiler = Literal["zig", "clang", "gcc"]


class Flags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Compiler options, a column per compiler."""

    zig: list[str] = []
    clang: list[str] = []
    gcc: list[str] = []

    def of(self, compiler: Compiler) -> tuple[str, ...]:
        """One column."""
        return tuple({"zig": self.zig, "clang": self.clang, "gcc": self.gcc}[compiler])


class Minimum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The oldest major version of a compiler; 0: any. zig is pinned and has none."""

    clang: int = 0
    gcc: int = 0


class Arch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What this version can compile for: the compilers' names for it and the flags that any CPU of the kind can run."""

    zig_static: str
    zig_shared: str
    clang: str  # --target
    gcc: str  # what stands before -gcc in the program's name
    package: str  # Debian's cross compiler with its C library
    emulator: str  # QEMU's program
    base: Flags


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of the instruction set; without `arch` it is there on all."""

    implies: list[str]
    needs: list[str]
    arch: str | None = None
    flags: Flags | None = None
    minimum: Minimum = Minimum()


class Isa(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """platforms/isa.yaml; levels stand lowest first."""

    version: Literal[1]
    arches: dict[str, Arch]
    levels: dict[str, Level]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, level in self.levels.items():
            unknown = set(level.implies) - seen
            if unknown:
                raise ValueError(f"level {name} implies {sorted(unknown)[0]}, which does not stand above it")
            if level.arch is not None and level.flags is None:
                raise ValueError(f"level {name} has no flags")
            seen.add(name)

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """`names` and all they imply, lowest first. Unknown names raise ValueError."""
        wanted: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in self.levels:
                raise ValueError(f"found {name!r}, allowed: {', '.join(self.levels)}")
            if name not in wanted:
                wanted.add(name)
                queue += self.levels[name].implies
        return tuple(name for name in self.levels if name in wanted)

    def arch(self, name: str) -> Arch:
        """The row of an architecture. Raises ToolError E_TARGET when there are no kernels for it."""
        if name not in self.arches:
            raise ToolError("E_TARGET", name, f"this version builds for {', '.join(self.arches)} only")
        return self.arches[name]

    def flags(self, arch: str, level: str, compiler: Compiler) -> tuple[str, ...]:
        """The -m flags of a kernel file of that level."""
        row = self.levels[level]
        return (row.flags or self.arch(arch).base).of(compiler)

    def too_old(self, levels: Iterable[str], compiler: Compiler, major: int) -> str:
        """Why a compiler of that major version cannot build these levels, in words; "" when it can."""
        for name in levels:
            row = self.levels[name].minimum
            least = {"zig": 0, "clang": row.clang, "gcc": row.gcc}[compiler]
            if major < least:
                return f"{name} needs {compiler} {least} or newer, this is {major}"
        return ""


@functools.cache
def load_isa() -> Isa:
    """platforms/isa.yaml."""
    return schema.load(resources.platforms_dir() / "isa.yaml", Isa, "BOARD")
