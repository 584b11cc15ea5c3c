# SPDX-License-Identifier: Apache-2.0
"""The C harness tests/checkops: every kernel equals the scalar one bit for bit, also under sanitizers, on other CPUs.

zig builds one harness per architecture, from the kernel objects that ship; QEMU plays the CPUs. AVX-512 and AVX-VNNI,
which it lacks, run in another way: a test build compiles their source against SIMDe's portable intrinsics.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import sanitized

from nanobuild.compile import Step, execute, make_plan
from nanobuild.isa import Compiler, load_isa
from nanobuild.platforms import load_platform
from nanobuild.toolchains import zig

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
CHECKOPS = ROOT / "tests/checkops"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
CFLAGS = ("-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", "-I.", "-I../tests/checkops")
HERE = {"x86_64": "x86_64", "aarch64": "arm64", "riscv64": "riscv64"}.get(os.uname().machine, "")
X86 = ("sse41", "avx2", "avxvnni", "avx512vnni")

VECTORS = "rv64,v=true,vlen={},elen=64,vext_spec=v1.0"
# (architecture, CPU that QEMU plays, level it must engage)
CPUS = [
    ("x86_64", "kvm64", "scalar"),  # SSE3 at most
    ("x86_64", "Nehalem", "sse41"),
    ("x86_64", "Haswell", "avx2"),
    ("arm64", "cortex-a53", "neon"),
    ("arm64", "cortex-a72", "neon"),
    ("arm64", "cortex-a76", "dotprod"),
    ("arm64", "max", "i8mm"),
    ("riscv64", "sifive-u54", "scalar"),
    *(("riscv64", VECTORS.format(vlen), "rvv") for vlen in (128, 256, 512, 1024)),
]

Flags = Callable[[str], Sequence[str]]  # of a level
Env = Mapping[str, str] | None


def run(argv: Sequence[str | Path], env: Env = None, code: int = 0) -> str:
    """What a program prints; it must exit with `code`."""
    done = subprocess.run(argv, cwd=KERNELS, env=env, capture_output=True, text=True, check=False, timeout=300)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == code, f"{argv[0]} exits with {done.returncode}\n{said}"
    return done.stdout


def emulator(arch: str, cpu: str) -> list[str]:
    name = load_isa().arch(arch).emulator
    found = shutil.which(f"{name}-static") or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} (Debian package qemu-user-static)")
    return [found, "-cpu", cpu]


def sources(arch: str) -> list[str]:
    """All that belongs into the harness, relative to kernels/."""
    own = [f"../tests/checkops/{path.name}" for path in sorted(CHECKOPS.glob("*.c"))]
    places = (f"hal/cpu_{arch}.c", "hal/hal.c", "runtime/roof.c", "ops/scalar/*.c", f"ops/{arch}/*.c")
    return [str(path.relative_to(KERNELS)) for place in places for path in sorted(KERNELS.glob(place))] + own


def level_of(source: str) -> str:
    return Path(source).stem.partition("__")[2] or "scalar"


def build(
    out: Path,
    arch: str,
    compiler: Sequence[str],
    flags: Flags,
    levels: Iterable[str],
    *,
    link: Sequence[str] | None = None,
    env: Env = None,
) -> Path:
    """checkops with the kernels of `levels` (scalar always), compiled apart; link: what to link with if not flags."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = ("scalar", *levels)
    defines = [f"-DNB_BUILD_{level.upper()}=1" for level in wanted]
    jobs = []
    for source in sources(arch):
        if level_of(source) in wanted:
            target = str(out / f"{Path(source).stem}.o")
            argv = [*compiler, *CFLAGS, *defines, *flags(level_of(source)), "-c", source, "-o", target]
            jobs.append((target, argv))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: run(job[1], env), jobs))
    program = out / "checkops"
    how = flags("scalar") if link is None else link
    run([*compiler, *how, *(target for target, _ in jobs), "-o", str(program), "-lm"], env)
    return program


def of_isa(arch: str, compiler: Compiler, *more: str) -> Flags:
    return lambda level: (*load_isa().flags(arch, level, compiler), *more)


def build_like_nano_build(arch: str, out: Path) -> Path:
    """checkops linked from the objects of the program for any CPU of `arch`: same flags, same cache."""
    plan = make_plan(load_platform(f"generic-{arch}"), shared=False, toolchain="zig")
    steps = {step.source: step for step in plan.steps}
    found = (*KERNELS.rglob("*.h"), *KERNELS.rglob("*.def"), *CHECKOPS.glob("*.h"))
    headers = [path.read_bytes() for path in sorted(found)]
    argv = (*steps["hal/hal.c"].argv, "-I../tests/checkops", "-D_GNU_SOURCE", *WARNINGS)
    for source in sources(arch):
        if source not in steps:
            parts = [repr(argv).encode(), (KERNELS / source).read_bytes(), *headers]
            key = hashlib.sha256(b"\0".join(parts)).hexdigest()
            steps[source] = Step(source=source, argv=argv, key=key)
    chosen = tuple(steps[source] for source in sources(arch))
    key = hashlib.sha256(repr([step.key for step in chosen]).encode()).hexdigest()
    execute(dataclasses.replace(plan, steps=chosen, key=key), out)
    return out


def host_levels(program: Path) -> list[str]:
    """The levels above scalar that this CPU has, lowest first: the one that checkops names, and all it implies."""
    match = re.match(r"checkops: isa (\w+),", run([program, "--list"]))
    assert match
    return [level for level in load_isa().closure([match[1]]) if level != "scalar"]


def rows_of(level: str) -> set[str]:
    """The kernels of a level, from the list."""
    text = "".join(path.read_text() for path in (KERNELS / "hal").glob("kernels*.def"))
    return set(re.findall(rf"^NB_KERNEL\(\w+, (\w+__{level}), ", text, re.MULTILINE))


@pytest.fixture(scope="module")
def gcc() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("no gcc")
    return found


@pytest.fixture(scope="module")
def by_zig(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The harness of an architecture, built at the first question."""
    if zig.program() is None:
        pytest.skip("no zig")
    made: dict[str, Path] = {}

    def harness(arch: str) -> Path:
        if arch not in made:
            made[arch] = build_like_nano_build(arch, tmp_path_factory.mktemp(arch) / "checkops")
        return made[arch]

    return harness


@pytest.fixture(scope="module")
def native(gcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    levels = [name for name, level in load_isa().levels.items() if level.arch == HERE]
    return build(tmp_path_factory.mktemp("gcc"), HERE, [gcc], of_isa(HERE, "gcc", "-O2", *WARNINGS, "-static"), levels)


x86_only = pytest.mark.skipif(HERE != "x86_64", reason="needs an x86-64 machine and its compiler")


@x86_only
def test_gcc_native(native: Path) -> None:
    levels = host_levels(native)
    assert "all kernels equal" in run([native, "--expect", levels[-1], "--rounds", "4"])
    for i, level in enumerate(levels):  # what a lesser CPU would run
        some = ",".join(["scalar", *levels[: i + 1]])
        said = run([native, "--isa", some, "--expect", level, "--seed", "2", "--rounds", "1"])
        assert "all kernels equal" in said


def test_zig_native(by_zig: Callable[[str], Path]) -> None:
    program = by_zig(HERE)
    levels = host_levels(program)
    expected = ("--expect", levels[-1]) if levels else ()
    assert "all kernels equal" in run([program, *expected, "--rounds", "4"])


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("seed", "arch", "cpu", "level"),
    [(seed, *row) for seed, row in enumerate(CPUS)],
    ids=[cpu.replace(",v=true,vlen=", "-v").partition(",")[0] for _, cpu, _ in CPUS],
)
def test_other_cpus(by_zig: Callable[[str], Path], seed: int, arch: str, cpu: str, level: str) -> None:
    options = ("--expect", level, "--rounds", "1", "--seed", str(seed))
    said = run([*emulator(arch, cpu), by_zig(arch), *options])
    assert "all kernels equal" in said
    assert rows_of(level) <= set(said.split())


@pytest.mark.qemu
def test_a_harness_without_vectors_fails(by_zig: Callable[[str], Path]) -> None:
    said = run([*emulator("riscv64", "rv64"), by_zig("riscv64"), "--expect", "rvv", "--rounds", "1"], code=1)
    assert "FAIL: this is not a complete rvv" in said


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("arch", "cpu", "level"),
    [("x86_64", "Nehalem", "avx2"), ("arm64", "cortex-a72", "dotprod"), ("riscv64", "rv64", "rvv")],
)
def test_an_illegal_instruction_is_blamed_on_its_kernel(
    by_zig: Callable[[str], Path], arch: str, cpu: str, level: str
) -> None:
    """--isa does not ask the CPU."""
    said = run([*emulator(arch, cpu), by_zig(arch), "--isa", level, "--op", "matmul", "--rounds", "1"], code=1)
    assert re.search(rf"^FAIL nb_gem[vm]_\w+__{level}: q\d\w+ rows .*: illegal instruction$", said, re.MULTILINE), said


@pytest.mark.slow
def test_sanitizers(tmp_path: Path) -> None:
    """Address and undefined-behaviour checks, with the kernels of test_runtime_sanitized.py."""
    own = [source for source in sources("x86_64") if not source.startswith(("hal/", "ops/"))]
    program = sanitized.program(tmp_path / "checkops", own)
    assert "all kernels equal" in run([program, "--rounds", "2"])


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("arch", "cpu"), [("arm64", "max"), ("riscv64", VECTORS.format(128))], ids=["arm64", "riscv64"]
)
def test_undefined_behaviour_elsewhere(tmp_path: Path, arch: str, cpu: str) -> None:
    """UBSan in code that is not optimised: unrolled kernels full of checks would take minutes to compile."""
    program = zig.program()
    if program is None:
        pytest.skip("no zig")
    words = emulator(arch, cpu)
    row = load_isa().arch(arch)
    target = ("-target", row.zig_static, "-fsanitize=undefined", "-fno-sanitize-recover=all")
    levels = [name for name, level in load_isa().levels.items() if level.arch == arch]
    flags = of_isa(arch, "zig", *target, "-O0", "-g1", *WARNINGS)
    link = (*target, *row.base.zig, *zig.link_flags(shared=False))
    harness = build(tmp_path, arch, [str(program), "cc"], flags, levels, link=link, env=zig.environment())
    assert "all kernels equal" in run([*words, harness, "--whole", "--rounds", "1"])


@x86_only
@pytest.mark.parametrize(("level", "macros"), [("avx512vnni", ("AVX512VNNI",)), ("avxvnni", ("AVXVNNI", "AVX2"))])
def test_in_portable_c(gcc: str, tmp_path: Path, level: str, macros: tuple[str, ...]) -> None:
    """A level's source with every intrinsic done in plain C: on this CPU, whatever it is."""
    if not SIMDE.exists():
        pytest.skip("no SIMDe headers (Debian package libsimde-dev)")

    def flags(of: str) -> Sequence[str]:
        portable = ("-isystem", str(CHECKOPS / "simde"), *(f"-D__{macro}__=1" for macro in macros), "-Wno-psabi")
        return ("-O1", *(portable if of == level else ()))

    program = build(tmp_path, HERE, [gcc], flags, [level])
    said = run([program, "--isa", level, "--rounds", "2"])
    assert "all kernels equal" in said
    assert rows_of(level) <= set(said.split())


def disassembly(by_zig: Callable[[str], Path], tmp_path: Path, name: str) -> list[tuple[str, str]]:
    """(bytes, text) of each instruction of a kernel file, compiled as it ships."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump")
    by_zig("x86_64")
    plan = make_plan(load_platform("generic-x86_64"), shared=False, toolchain="zig")
    step = next(step for step in plan.steps if step.source == f"ops/x86_64/{name}.c")
    out = tmp_path / f"{name}.o"
    run([*step.argv, step.source, "-o", out], plan.compiler.env)
    text = run([objdump, "-d", "--wide", out])
    return re.findall(r"^ +[0-9a-f]+:\t([0-9a-f ]+?) *\t(.*)$", text, re.MULTILINE)


@x86_only
@pytest.mark.parametrize("op", ["gemv", "gemm"])
def test_avx512_dot_products_take_broadcast_operands(by_zig: Callable[[str], Path], tmp_path: Path, op: str) -> None:
    """What the speed of the AVX-512 products rests on: vpdpbusd, activations broadcast from memory."""
    lines = [text for _, text in disassembly(by_zig, tmp_path, f"{op}_f32_q8b32__avx512vnni")]
    products = [text for text in lines if "vpdpbusd" in text and "%zmm" in text]
    broadcast = [text for text in products if "{1to16}" in text]
    assert len(broadcast) >= 0.7 * len(products) > 0, f"only {len(broadcast)} of {len(products)}"
    assert not [text for text in lines if "vfmadd" in text]


@x86_only
@pytest.mark.parametrize("name", ["gemv_f32_q8b32", "gemm_f32_q8b32", "attend_f32_f32_i8"])
def test_avxvnni_has_dot_products_and_nothing_of_avx512(
    by_zig: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    lines = disassembly(by_zig, tmp_path, f"{name}__avxvnni")
    products = [code for code, text in lines if "vpdpbusd" in text]
    assert len(products) > 10
    assert {code[:2] for code in products} == {"c4"}  # three-byte VEX
    assert not [text for code, text in lines if code.startswith("62")]  # EVEX


@x86_only
def test_an_unknown_level_is_refused(native: Path) -> None:
    run([native, "--isa", "scalar,neon"], code=2)
    run([native, "--isa", "scalar", "--expect", "avx2"], code=1)


@x86_only
def test_bench_says_how_far_the_limit_is(native: Path) -> None:
    said = run([native, "--bench", "--op", "matmul"])
    assert len(re.findall(r"^limit +read 128 MiB.* GB/s$", said, re.MULTILINE)) > 1
    assert re.search(r"^limit +int8 steps in registers, \w+ .* Gop/s$", said, re.MULTILINE)
    assert len(re.findall(r"^nb_gemv_.* GB/s .* \d+ % of reading$", said, re.MULTILINE)) == 3
    assert len(re.findall(r"^nb_gemm_.* Gop/s  +\d+ % of int8 steps$", said, re.MULTILINE)) == 3
