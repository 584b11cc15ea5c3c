# SPDX-License-Identifier: Apache-2.0
"""Programs for other CPUs on this machine: QEMU's user emulation, where it is installed. It shows right or wrong, and
never speed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nanobuild import detect, isa, proc
from nanobuild.errors import ToolError

PACKAGE = "qemu-user-static"


def host_runs(arch: str, floor: Sequence[str]) -> bool:
    """Whether this machine itself can run a program of that architecture which takes those levels for granted."""
    return isa.parse_arch(os.uname().machine) == arch and set(floor) <= set(detect.host_levels())


def find(arch: str, cpu: str | None) -> tuple[str, ...] | None:
    """What goes before a program's name to emulate it on that CPU (None: QEMU's own choice); None without QEMU."""
    program = program_of(arch)
    return None if program is None else (str(program), *(("-cpu", cpu) if cpu else ()))


def program_of(arch: str) -> Path | None:
    """QEMU for programs of an architecture, statically linked or not."""
    name = isa.load_isa().arch(arch).emulator
    return proc.which(name) or proc.which(f"{name}-static")


def require(arch: str, cpu: str | None) -> tuple[str, ...]:
    """As find(). Raises ToolError E_TOOL_MISSING."""
    prefix = find(arch, cpu)
    if prefix is None:
        name = isa.load_isa().arch(arch).emulator
        raise ToolError("E_TOOL_MISSING", name, f"a program for {arch} cannot run here", hint=how_to_get())
    return prefix


def how_to_get() -> str:
    """The line that mends it."""
    return f"apt-get install {PACKAGE}"
