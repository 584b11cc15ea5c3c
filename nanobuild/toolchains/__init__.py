# SPDX-License-Identifier: Apache-2.0
"""Compilers. Each is a module with the five functions of Toolchain; adding one is a module, a row in _MODULES and a
flags column in platforms/isa.yaml."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from nanobuild.errors import ToolError, UsageError, quoted
from nanobuild.isa import Arch, Compiler, load_isa

_MODULES: tuple[Compiler, ...] = ("zig", "clang", "gcc")
PINNED = "0.17.1"  # of the ziglang package, as in pyproject.toml


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A compiler on this machine: how it is called, which one it is, and the whole environment it gets."""

    name: Compiler
    argv: tuple[str, ...]
    version: str  # one line, with the machine it builds for; part of every cache key
    major: int
    env: Mapping[str, str]


class Toolchain(Protocol):
    """What compile.py needs to know about a compiler."""

    def find(self, name: str, arch: Arch, cc: str | None) -> Iterable[Found]:
        """Those of this machine that build for the architecture `name`, best first (`cc`: a particular program)."""

    def target_flags(self, arch: Arch, *, shared: bool) -> tuple[str, ...]:
        """Options for every compile and link: which system the code is for."""

    def link_flags(self, *, shared: bool) -> tuple[str, ...]:
        """Options of the link alone."""

    def first_use(self, found: Found, arch: Arch, *, shared: bool) -> str:
        """What is slow about the very first link for this target, in words; "" when nothing is."""

    def linked(self, found: Found, arch: Arch, *, shared: bool) -> None:
        """Told after a link for this target went well."""


def named(name: str) -> Compiler:
    """A compiler by name. Raises UsageError E_TOOLCHAIN."""
    if name not in _MODULES:
        raise UsageError("E_TOOLCHAIN", "", f"found {quoted(name)}, allowed: {', '.join(_MODULES)}")
    return name


def load(name: Compiler) -> Toolchain:
    """A compiler's module by name."""
    return cast(Toolchain, importlib.import_module(f"nanobuild.toolchains.{named(name)}"))


def choose(
    arch: str, levels: Sequence[str], prefer: Sequence[Compiler], *, cc: str | None = None
) -> tuple[Toolchain, Found]:
    """The first compiler of `prefer` that is here and knows the levels. Raises ToolError E_TOOL_OLD, E_TOOL_MISSING."""
    table, too_old = load_isa(), ""
    row = table.arch(arch)
    for name in prefer:
        toolchain = load(name)
        for found in toolchain.find(arch, row, cc if cc and name in cc else None):
            problem = table.too_old(levels, name, found.major)
            if not problem:
                return toolchain, found
            too_old = too_old or f"{found.version}: {problem}"
    if too_old:
        raise ToolError("E_TOOL_OLD", arch, too_old, hint="zig builds all levels: leave out --toolchain")
    hint = f"python -m pip install ziglang=={PINNED}"
    if "zig" not in prefer:
        hint = f"apt-get install {'clang ' if 'clang' in prefer else ''}{row.package}"
    raise ToolError("E_TOOL_MISSING", ", ".join(prefer), f"no compiler for {arch} was found", hint=hint)
