# SPDX-License-Identifier: Apache-2.0
"""What gcc and clang share: the system's compiler, for the architecture it says it is for; static glibc."""

from __future__ import annotations

from nanobuild import proc
from nanobuild.archs import parse_arch
from nanobuild.isa import Compiler
from nanobuild.toolchains import Found


def find(name: Compiler, arch: str, cc: str | None) -> Found | None:
    """The program `cc` or `name` on PATH, if it compiles for `arch`."""
    path = proc.which(cc or name)
    if path is None:
        return None
    env = proc.clean_env()
    machine = proc.run([path, "-dumpmachine"], env=env, timeout=60).stdout.decode("ascii", "replace").strip()
    if parse_arch(machine.split("-")[0]) != arch:
        return None
    first = proc.run([path, "--version"], env=env, timeout=60).stdout.decode("utf-8", "replace").splitlines()[0]
    return Found(name=name, argv=(str(path),), version=f"{first} ({machine})", env=env)


def link_flags(*, shared: bool) -> tuple[str, ...]:
    """A static program at a fixed address, or a shared library."""
    return ("-O3", "-shared", "-fPIC") if shared else ("-O3", "-static", "-no-pie")
