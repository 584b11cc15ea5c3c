# SPDX-License-Identifier: Apache-2.0
"""The C harness tests/checkops: every kernel equals the scalar one bit for bit, under sanitizers and on other CPUs too.

AVX-512 kernels run anywhere: a test build compiles their source against SIMDe's portable intrinsics.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from nanobuild.isa import Compiler, load_isa
from nanobuild.toolchains import zig

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
CHECKOPS = ROOT / "tests/checkops"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
CFLAGS = ("-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", "-I.", "-I../tests/checkops")

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 kernels")

Flags = Callable[[str], Sequence[str]]  # of a level
Env = dict[str, str] | None


def run(argv: Sequence[str | Path], env: Env = None) -> str:
    done = subprocess.run(argv, cwd=KERNELS, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{argv[0]} exits with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def build(out: Path, compiler: Sequence[str], flags: Flags, levels: Iterable[str], env: Env = None) -> Path:
    """checkops with the kernels of `levels` (scalar always), linked statically where no sanitizer is asked for."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = ("scalar", *levels)
    defines = [f"-DNB_BUILD_{level.upper()}=1" for level in wanted]
    sources = [*KERNELS.glob("hal/*.c"), *KERNELS.glob("ops/*/*.c"), *CHECKOPS.glob("*.c")]
    jobs = []
    for source in sources:
        level = source.stem.partition("__")[2] or "scalar"
        if level in wanted:
            target = out / f"{source.stem}.o"
            jobs.append((target, [*compiler, *CFLAGS, *defines, *flags(level), "-c", str(source), "-o", str(target)]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: run(job[1], env), jobs))
    program = out / "checkops"
    run([*compiler, *flags("scalar"), *(str(target) for target, _ in jobs), "-o", str(program), "-lm"], env)
    return program


def of_isa(compiler: Compiler, *more: str) -> Flags:
    return lambda level: (*load_isa().flags("x86_64", level, compiler), *more)


def host_level(program: Path) -> str:
    """The level that this CPU has of those built in: what checkops prints on its first line."""
    match = re.match(r"checkops: isa (\w+),", run([program, "--list"]))
    assert match
    return match[1]


@pytest.fixture(scope="module")
def gcc() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("no gcc")
    return found


@pytest.fixture(scope="module")
def native(gcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = of_isa("gcc", "-O2", *WARNINGS, "-static")
    return build(tmp_path_factory.mktemp("gcc"), [gcc], flags, ("avx2", "avx512vnni"))


@pytest.fixture(scope="module")
def by_zig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = zig.program()
    if program is None:
        pytest.skip("no zig")
    target = zig.target_flags(load_isa().arch("x86_64"), shared=False)
    flags = of_isa("zig", *zig.link_flags(shared=False), *WARNINGS, *target)
    out = tmp_path_factory.mktemp("zig")
    return build(out, [str(program), "cc"], flags, ("avx2", "avx512vnni"), zig.environment())


def test_gcc_native(native: Path) -> None:
    level = host_level(native)
    assert "all kernels equal" in run([native, "--expect", level])
    assert "all kernels equal" in run([native, "--expect", level, "--seed", "2", "--rounds", "2"])


def test_zig_native(by_zig: Path) -> None:
    assert "all kernels equal" in run([by_zig, "--expect", host_level(by_zig)])


@pytest.mark.qemu
@pytest.mark.parametrize(("cpu", "level"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_other_cpus(native: Path, cpu: str, level: str) -> None:
    if QEMU is None:
        pytest.skip("no qemu-x86_64")
    argv = [QEMU, "-cpu", cpu, native, "--expect", level, "--rounds", "1"]
    assert "all kernels equal" in run(argv)


def test_sanitizers(gcc: str, tmp_path: Path) -> None:
    more = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = build(tmp_path, [gcc], of_isa("gcc", *more), ("avx2",))
    assert "all kernels equal" in run([program, "--rounds", "2"])


def test_avx512_in_portable_c(gcc: str, tmp_path: Path) -> None:
    """The AVX-512 source with every intrinsic done in plain C: on this CPU, whatever it is."""
    if not SIMDE.exists():
        pytest.skip("no SIMDe headers (Debian package libsimde-dev)")

    def flags(level: str) -> Sequence[str]:
        portable = ("-isystem", str(CHECKOPS / "simde"), "-D__AVX512VNNI__=1", "-Wno-psabi")
        return ("-O1", *(portable if level == "avx512vnni" else ()))

    program = build(tmp_path, [gcc], flags, ("avx512vnni",))
    assert "all kernels equal" in run([program, "--isa", "avx512vnni", "--expect", "avx512vnni", "--rounds", "2"])


def test_avx512_dot_products_take_broadcast_operands(by_zig: Path) -> None:
    """What the speed of the AVX-512 products rests on: vpdpbusd, activations broadcast from memory."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump")
    for op in ("gemv", "gemm"):
        text = run([objdump, "-d", "--no-show-raw-insn", by_zig.parent / f"{op}_f32_q8b32__avx512vnni.o"])
        products = [line for line in text.splitlines() if "vpdpbusd" in line and "%zmm" in line]
        broadcast = [line for line in products if "{1to16}" in line]
        assert len(broadcast) >= 0.7 * len(products) > 0, f"{op}: only {len(broadcast)} of {len(products)}"
        assert "vfmadd" not in text


def test_an_unknown_level_is_refused(native: Path) -> None:
    done = subprocess.run([native, "--isa", "scalar,neon"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    done = subprocess.run([native, "--isa", "scalar", "--expect", "avx2"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
