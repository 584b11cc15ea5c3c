# SPDX-License-Identifier: Apache-2.0
"""Compilers. Each is a module with the five functions of Toolchain; adding one is a module, a row in _MODULES and a
flags column in platforms/isa.yaml."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from nanobuild.errors import ToolError, UsageError, quoted
from nanobuild.isa import Arch, Compiler

_MODULES: tuple[Compiler, ...] = ("zig", "clang", "gcc")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A compiler on this machine: how it is called, which one it is, and the whole environment it gets."""

    name: Compiler
    argv: tuple[str, ...]
    version: str  # one line; part of every cache key
    env: Mapping[str, str]


class Toolchain(Protocol):
    """What compile.py needs to know about a compiler."""

    def find(self, arch: str, cc: str | None) -> Found | None:
        """The compiler for `arch` on this machine (`cc`: a particular program), or None."""

    def target_flags(self, arch: Arch, *, shared: bool) -> tuple[str, ...]:
        """Options for every compile and link: which system the code is for."""

    def link_flags(self, *, shared: bool) -> tuple[str, ...]:
        """Options of the link alone."""

    def first_use(self, found: Found, arch: Arch, *, shared: bool) -> str:
        """What is slow about the very first link for this target, in words; "" when nothing is."""

    def linked(self, found: Found, arch: Arch, *, shared: bool) -> None:
        """Told after a link for this target went well."""


def load(name: str) -> Toolchain:
    """A compiler's module by name. Raises UsageError E_TOOLCHAIN."""
    if name not in _MODULES:
        raise UsageError("E_TOOLCHAIN", "", f"found {quoted(name)}, allowed: {', '.join(_MODULES)}")
    return cast(Toolchain, importlib.import_module(f"nanobuild.toolchains.{name}"))


def choose(arch: str, prefer: Sequence[Compiler], *, cc: str | None = None) -> tuple[Toolchain, Found]:
    """The first compiler of `prefer` that is here. Raises ToolError E_TOOL_MISSING."""
    for name in prefer:
        toolchain = load(name)
        found = toolchain.find(arch, cc if cc and name in cc else None)
        if found is not None:
            return toolchain, found
    hint = "python -m pip install ziglang==0.17.1" if "zig" in prefer else "install it, or choose zig"
    raise ToolError("E_TOOL_MISSING", ", ".join(prefer), f"no compiler for {arch} was found", hint=hint)
