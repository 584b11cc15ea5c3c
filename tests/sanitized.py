# SPDX-License-Identifier: Apache-2.0
"""Programs with address and undefined-behaviour checks, by gcc, for this machine; what they share is compiled once.

Nothing is optimised: unrolled kernels full of checks would take minutes to compile.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from nanobuild.isa import load_isa

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
LEVELS = ("scalar", "sse41", "avx2")
CHECKS = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread")
CFLAGS = ("-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", "-I.", "-I../tests/checkops")
PLACES = ("hal/cpu_x86_64.c", "hal/hal.c", "ops/scalar/*.c", "ops/x86_64/*.c")


@functools.cache
def _compiler() -> str:
    found = shutil.which("gcc")
    if found is None or os.uname().machine != "x86_64":
        pytest.skip("no gcc for x86-64")
    return found


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="nb-sanitized-"))


def _call(argv: Iterable[str | Path]) -> None:
    done = subprocess.run([_compiler(), *argv], cwd=KERNELS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def _object(source: str) -> Path:
    out = _folder() / f"{source.replace('/', '_')}.o"
    defines = [f"-DNB_BUILD_{level.upper()}=1" for level in LEVELS]
    flags = load_isa().flags("x86_64", _level(source), "gcc")
    _call([*CFLAGS, *CHECKS, *defines, *flags, "-c", source, "-o", out])
    return out


def _level(source: str) -> str:
    return Path(source).stem.partition("__")[2] or "scalar"


def program(out: Path, sources: Iterable[str]) -> Path:
    """A program of the kernels up to AVX2 and `sources`, which are relative to kernels/."""
    found = [str(path.relative_to(KERNELS)) for place in PLACES for path in sorted(KERNELS.glob(place))]
    wanted = [source for source in found if _level(source) in LEVELS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(_object, [*wanted, *sources]))
    _call([*CHECKS, *objects, "-o", out, "-lm"])
    return out
