# SPDX-License-Identifier: Apache-2.0
"""The system's clang: the alternative where zig cannot run, and a second opinion on what zig builds."""

from __future__ import annotations

from collections.abc import Iterator

from nanobuild.isa import Arch
from nanobuild.toolchains import Found, _native


def find(name: str, arch: Arch, cc: str | None) -> Iterator[Found]:
    """clang on PATH (or the program `cc`); for another machine with --target and Debian's cross C library."""
    return _native.find("clang", name, ("clang",), cc, f"--target={arch.clang}")


def target_flags(arch: Arch, *, shared: bool) -> tuple[str, ...]:
    """None: the program builds for one system. Programs are linked at a fixed address."""
    del arch
    return () if shared else ("-fno-pie",)


def link_flags(*, shared: bool) -> tuple[str, ...]:
    """Static glibc, or a shared library."""
    return _native.link_flags(shared=shared)


def first_use(found: Found, arch: Arch, *, shared: bool) -> str:
    """Nothing is slow the first time."""
    del found, arch, shared
    return ""


def linked(found: Found, arch: Arch, *, shared: bool) -> None:
    """Nothing to remember."""
    del found, arch, shared
