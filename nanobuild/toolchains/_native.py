# SPDX-License-Identifier: Apache-2.0
"""What gcc and clang share: programs of the system that are asked what they build for; static glibc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nanobuild import proc
from nanobuild.archs import parse_arch
from nanobuild.isa import Compiler
from nanobuild.toolchains import Found


def find(name: Compiler, arch: str, stems: tuple[str, ...], cc: str | None, option: str = "") -> Iterator[Found]:
    """Programs called like one of `stems`, also with a version behind, or `cc` alone, that compile and link for `arch`.

    `option` makes a program that builds for another machine build for this one, if there is such an option.
    """
    for path in [proc.which(cc)] if cc else [path for stem in stems for path in _named(stem)]:
        for argv in ((str(path),), (str(path), option)):
            found = _ask(name, arch, argv) if path and argv[-1] else None
            if found:
                yield found
                break


def _ask(name: Compiler, arch: str, argv: tuple[str, ...]) -> Found | None:
    """What the compiler says about itself; None when it is for another machine or lacks the C library of this one."""
    env = proc.clean_env()

    def said(option: str) -> str:
        result = proc.run([*argv, option], env=env, timeout=60, check=False)
        return (result.stdout.decode("utf-8", "replace").splitlines() or [""])[0].strip()

    machine = said("-dumpmachine")
    if parse_arch(machine.split("-")[0]) != arch or said("-print-file-name=libc.a") == "libc.a":
        return None
    digits = re.match(r"\d+", said("-dumpversion"))
    version = f"{said('--version')} ({machine})"
    return Found(name=name, argv=argv, version=version, major=int(digits[0]) if digits else 0, env=env)


def _named(stem: str) -> Iterator[Path]:
    """The program `stem` on PATH, then stem-15, stem-14 and so on as far as they are there."""
    plain = proc.which(stem)
    if plain:
        yield plain
    pattern, numbers = re.compile(re.escape(stem) + r"-(\d{1,3})"), set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.isdir(folder):
            numbers |= {int(match[1]) for name in os.listdir(folder) if (match := pattern.fullmatch(name))}
    for number in sorted(numbers, reverse=True):
        path = proc.which(f"{stem}-{number}")
        if path:
            yield path


def link_flags(*, shared: bool) -> tuple[str, ...]:
    """A static program at a fixed address, or a shared library."""
    return ("-O3", "-shared", "-fPIC") if shared else ("-O3", "-static", "-no-pie")
