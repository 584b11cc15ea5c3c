# SPDX-License-Identifier: Apache-2.0
"""The avx512vnni level on machines without it: its sources in portable C (SIMDe) against the scalar kernels, bit for
bit, and what the compiler makes of the inner loop.

SIMDe shows that the arithmetic is right, not that the instructions run; on a CPU that has them `checkops` does both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanobuild.isa import load_isa
from nanobuild.toolchains import zig

ROOT = Path(__file__).resolve().parents[2]
KERNELS, CHECKOPS = ROOT / "kernels", ROOT / "tests" / "checkops"
LEVEL = "avx512vnni"
COMMON = ["-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-I."]

# What nb_cpu_isa() says in the portable build: these kernels run on any CPU, and no others do.
ONLY_THIS_LEVEL = '#include "hal/hal.h"\nuint32_t nb_cpu_isa(void) { return NB_ISA_AVX512VNNI; }\n'


def run(command: list[str], **environment: str) -> str:
    """A command's output, run in kernels/; a failure shows it."""
    env = environment or None
    done = subprocess.run(command, cwd=KERNELS, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.skipif(not Path("/usr/include/simde/x86/avx512.h").exists(), reason="no SIMDe headers (libsimde-dev)")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_portable_build_equals_scalar(tmp_path: Path) -> None:
    """All slots, every case of checkops."""
    (tmp_path / "isa.c").write_text(ONLY_THIS_LEVEL, encoding="utf-8")
    sources = sorted(KERNELS.glob(f"ops/x86_64/*__{LEVEL}.c"))
    assert len(sources) >= 12

    def compile_one(source: Path, flags: list[str]) -> str:
        out = tmp_path / f"{source.stem}.o"
        run(["gcc", *flags, *COMMON, "-c", str(source), "-o", str(out)])
        return str(out)

    shim = ["-Og", "-Wno-psabi", "-D__AVX512VNNI__=1", "-isystem", str(CHECKOPS / "simde")]
    plain = ["-O1", "-DNB_BUILD_AVX512VNNI=1", f"-I{CHECKOPS}"]
    others = [*CHECKOPS.glob("*.c"), KERNELS / "hal/hal.c", tmp_path / "isa.c", *KERNELS.glob("ops/scalar/*.c")]
    work = [*((source, shim) for source in sources), *((source, plain) for source in others)]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda item: compile_one(*item), work))
    program = tmp_path / "checkops"
    run(["gcc", *objects, "-lm", "-o", str(program)])
    report = run([str(program), "--expect", LEVEL])
    assert "all kernels equal the scalar ones" in report
    assert re.search(rf"^ok   matmul +isa {LEVEL} ", report, re.MULTILINE)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("kernel", ["gemm", "gemv"])
def test_inner_loops_are_vpdpbusd(kernel: str, tmp_path: Path) -> None:
    """Activations are broadcast by the instruction itself, and nothing fuses multiply and add."""
    compiler = zig.program()
    if compiler is None:
        pytest.skip("no zig")
    out = tmp_path / "kernel.o"
    target = ["-target", load_isa().arch("x86_64").zig_static, *load_isa().flags("x86_64", LEVEL, "zig")]
    source = f"ops/x86_64/{kernel}_f32_q8b32__{LEVEL}.c"
    command = [str(compiler), "cc", *target, "-O3", "-Werror", *COMMON, "-c", source, "-o", str(out)]
    run(command, **zig.environment())
    code = run(["objdump", "-d", "--no-show-raw-insn", str(out)])
    dots = re.findall(r"vpdpbusd.*", code)
    broadcast = [line for line in dots if "{1to16}" in line]
    assert len(broadcast) >= 20
    if kernel == "gemm":  # 3 formats, tiles of 16 and of 8 tokens; only the sums of activations have another form
        assert len(broadcast) >= 8 * (16 + 8) * 3 * 0.95
        assert len(dots) - len(broadcast) <= 8
    assert not re.search(r"vfn?m(add|sub)", code)
