# SPDX-License-Identifier: Apache-2.0
"""The proof on real programs: broken on purpose it names the function, and what we build, libc included, holds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nanobuild import compile as building
from nanobuild import isa, isaproof
from nanobuild.errors import ToolError
from nanobuild.platforms import load_platform
from nanobuild.proc import which

# One instruction above the base for each architecture, behind a check that a compiler cannot see through.
WIDE = {
    "x86_64": ("avx2", "vpaddd", '__asm__ volatile("vpaddd %%ymm1, %%ymm2, %%ymm3" ::: "xmm3");'),
    "arm64": (
        "dotprod",
        "sdot",
        '__asm__ volatile(".arch_extension dotprod\\n\\tsdot v0.4s, v1.16b, v2.16b" ::: "v0");',
    ),
    "riscv64": (
        "rvv",
        "vsetvli",
        '__asm__ volatile(".option push\\n\\t.option arch, +v\\n\\tvsetvli t0, zero, e8, m1, ta, ma\\n\\t.option pop" '
        '::: "t0");',
    ),
}
MAIN = """
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void NAME(void) { BODY }

static void *work(void *p) {
    *(double *)p = sin(*(double *)p) + pow(*(double *)p, 1.5);
    return p;
}

int main(int argc, char **argv) {
    char text[64];
    double x = argc > 1 ? strtod(argv[1], 0) : 2;
    pthread_t t;
    if (argc > 5) NAME();
    if (pthread_create(&t, 0, work, &x) || pthread_join(t, 0)) return 1;
    snprintf(text, sizeof text, "%.3f", x);
    return puts(memcpy(malloc(64), text, sizeof text)) < 0;
}
"""


def program(folder: Path, arch: str, name: str) -> building.Plan:
    (folder / "runtime").mkdir(parents=True, exist_ok=True)
    (folder / "runtime" / "main.c").write_text(MAIN.replace("NAME", name).replace("BODY", WIDE[arch][2]))
    return building.make_plan(load_platform(f"generic-{arch}"), shared=False, toolchain="zig", folder=folder)


@pytest.mark.parametrize("arch", WIDE)
def test_a_function_outside_its_level_breaks_the_build(tmp_path: Path, arch: str) -> None:
    level, instruction, _ = WIDE[arch]
    with pytest.raises(ToolError, match=rf"function 'sneaky' holds {instruction}.* but may only use") as error:
        building.execute(program(tmp_path / "src", arch, "sneaky"), tmp_path / "run")
    assert error.value.code == "E_ISA"
    assert not (tmp_path / "run").exists()
    report = building.execute(program(tmp_path / "src", arch, f"sneaky__{level}"), tmp_path / "run")
    assert report.isa["violations"] == 0
    functions = report.isa["functions"]
    assert isinstance(functions, dict)
    assert functions[level] == 1
    assert functions["base"] > 50, "the C library is looked at too"


@pytest.mark.parametrize("arch", WIDE)
def test_our_program_holds_each_level_and_nothing_outside(tmp_path: Path, arch: str) -> None:
    platform = load_platform(f"generic-{arch}")
    report = building.execute(building.make_plan(platform, shared=False), tmp_path / "run")
    functions, features = report.isa["functions"], report.isa["features"]
    assert isinstance(functions, dict)
    assert isinstance(features, dict)
    assert set(platform.levels) <= set(functions), "every level has kernels under its name"
    needs = {need for level in platform.levels for need in isa.load_isa().levels[level].needs}
    wide = {"avx2", "avx_vnni", "avx512_vnni", "asimddp", "i8mm", "v"} & needs
    assert wide <= set(features), "and they use what the level is for"
    assert report.isa["violations"] == 0


def test_an_object_file_can_be_examined(tmp_path: Path) -> None:
    plan = program(tmp_path / "src", "x86_64", "sneaky")
    step = plan.steps[0]
    subprocess.run(
        [*step.argv, step.source, "-o", tmp_path / "main.o"], cwd=plan.folder, env=plan.compiler.env, check=True
    )
    proof = isaproof.examine(tmp_path / "main.o", arch="x86_64", floor=("scalar",))
    assert {(v.function, v.needs) for v in proof.violations} == {("sneaky", ("avx2",))}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_static_glibc_passes_by_its_listed_exceptions(tmp_path: Path, compiler: str) -> None:
    """glibc chooses among AVX2 and AVX-512 variants by itself; everything else in it is baseline."""
    if which(compiler) is None:
        pytest.skip(f"no {compiler}")
    plan = program(tmp_path / "src", "x86_64", "sneaky__avx2")
    source = shutil.copy(plan.folder / "runtime" / "main.c", tmp_path)
    subprocess.run([compiler, "-O2", "-static", "-pthread", source, "-lm", "-o", tmp_path / "run"], check=True)
    proof = isaproof.examine(tmp_path / "run", arch="x86_64", floor=("scalar",))
    isaproof.require(proof, tmp_path / "run")
    assert any("avx512f" in use.features for use in proof.functions), "or this glibc has no variants to speak of"
