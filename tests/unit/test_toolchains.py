# SPDX-License-Identifier: Apache-2.0
"""Choice of compilers and the compile plan, with programs that only pretend to be compilers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild import compile as building
from nanobuild import isaproof, toolchains
from nanobuild.errors import ToolError, UsageError
from nanobuild.platforms import Platform, load_platform
from nanobuild.toolchains import zig

FAKE = """#!/bin/sh
machine={machine}
case "$1" in --target=*) machine=${{1#--target=}}; shift;; esac
if [ "$1" = -dumpmachine ]; then echo $machine; exit; fi
if [ "$1" = -dumpversion ]; then echo {major}.2.0; exit; fi
if [ "$1" = -print-file-name=libc.a ]; then
    case " {libraries} " in *" $machine "*) echo /lib/$machine/libc.a;; *) echo libc.a;; esac
    exit
fi
if [ "$1" = --version ]; then echo "fake {name} {major}.2.0"; exit; fi
if [ "$1" = version ]; then echo 0.17.1; exit; fi
echo x >> {log}
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
[ "$1" = -o ] || true
echo made > "${{out:-$1}}"
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with the shell's own tools and our fakes, an empty cache, no ziglang package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("sh", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NANOBUILD_ZIG", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    zig.version.cache_clear()
    monkeypatch.setattr(isaproof, "examine", lambda binary, arch, floor: (binary.read_text(), arch, floor))
    monkeypatch.setattr(isaproof, "require", lambda proof, where: None)
    monkeypatch.setattr(isaproof, "summary", lambda proof: {"floor": list(proof[2])})
    return folder


X86, ARM = ("scalar", "sse41", "avx2", "avxvnni", "avx512vnni"), ("scalar", "neon", "dotprod", "i8mm")


def fake(
    folder: Path, name: str, machine: str = "x86_64-linux-gnu", *, major: int = 12, libraries: str | None = None
) -> Path:
    """A compiler for `machine` that finds the C libraries of the machines in `libraries` (None: its own)."""
    path = folder / name
    words = {"machine": machine, "name": name, "major": major, "log": folder / "log"}
    path.write_text(FAKE.format(libraries=machine if libraries is None else libraries, **words))
    path.chmod(0o755)
    return path


def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    for name in (
        "hal/hal.c",
        "hal/cpu_x86_64.c",
        "hal/cpu_arm64.c",
        "hal/kernels.def",
        "runtime/main.c",
        "runtime/model.c",
        "runtime/model.h",
        "ops/scalar/add__scalar.c",
        "ops/x86_64/add__avx2.c",
        "ops/x86_64/add__avx512vnni.c",
        "ops/arm64/add__neon.c",
        "ops/arm64/add__dotprod.c",
        "hal/cpu_riscv64.c",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"/* {name} */\n")
    return folder


def plan(tmp_path: Path, *, shared: bool = False, platform: Platform | None = None) -> building.Plan:
    return building.make_plan(platform or load_platform("generic-x86_64"), shared=shared, folder=tmp_path / "kernels")


def test_order_of_choice(alone: Path) -> None:
    with pytest.raises(ToolError) as caught:
        toolchains.choose("x86_64", X86, ["zig", "clang", "gcc"])
    assert caught.value.code == "E_TOOL_MISSING"
    assert caught.value.hint == "python -m pip install ziglang==0.17.1"
    fake(alone, "gcc")
    assert toolchains.choose("x86_64", X86, ["zig", "clang", "gcc"])[1].name == "gcc"
    fake(alone, "clang")
    found = toolchains.choose("x86_64", X86, ["zig", "clang", "gcc"])[1]
    assert (found.name, found.version) == ("clang", "fake clang 12.2.0 (x86_64-linux-gnu)")
    fake(alone, "zig")
    found = toolchains.choose("x86_64", X86, ["zig", "clang", "gcc"])[1]
    assert (found.argv, found.version) == ((str(alone / "zig"), "cc"), "zig 0.17.1")
    assert toolchains.choose("x86_64", X86, ["gcc"])[1].name == "gcc"
    with pytest.raises(UsageError, match="allowed: zig, clang, gcc"):
        toolchains.named("tcc")


def test_nanobuild_zig(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(alone, "zig")
    other = fake(tmp_path, "my zig")
    monkeypatch.setenv("NANOBUILD_ZIG", str(other))
    assert zig.program() == other
    monkeypatch.setenv("NANOBUILD_ZIG", str(tmp_path / "none"))
    with pytest.raises(ToolError, match="NANOBUILD_ZIG"):
        zig.program()


def test_a_compiler_for_another_machine_is_not_taken(alone: Path) -> None:
    fake(alone, "gcc", "aarch64-linux-gnu")
    with pytest.raises(ToolError):
        toolchains.choose("x86_64", X86, ["gcc"])
    fake(alone, "special-gcc")
    assert toolchains.choose("x86_64", X86, ["gcc"], cc="special-gcc")[1].argv[0].endswith("/special-gcc")


def test_cross_compilers(alone: Path) -> None:
    with pytest.raises(ToolError) as caught:
        toolchains.choose("arm64", ARM, ["gcc"])
    assert (caught.value.code, caught.value.exit_code) == ("E_TOOL_MISSING", 6)
    assert caught.value.hint == "apt-get install gcc-aarch64-linux-gnu"
    fake(alone, "gcc")
    fake(alone, "aarch64-linux-gnu-gcc", "aarch64-linux-gnu")
    assert toolchains.choose("arm64", ARM, ["gcc"])[1].argv == (str(alone / "aarch64-linux-gnu-gcc"),)
    assert toolchains.choose("x86_64", X86, ["gcc"])[1].argv == (str(alone / "gcc"),)
    fake(alone, "clang", "x86_64-pc-linux-gnu")
    with pytest.raises(ToolError) as caught:
        toolchains.choose("arm64", ARM, ["clang"])
    assert caught.value.hint == "apt-get install clang gcc-aarch64-linux-gnu", "clang alone has no C library"
    fake(alone, "clang", "x86_64-pc-linux-gnu", libraries="x86_64-pc-linux-gnu aarch64-linux-gnu")
    found = toolchains.choose("arm64", ARM, ["clang"])[1]
    assert found.argv == (str(alone / "clang"), "--target=aarch64-linux-gnu")
    assert found.version.endswith("(aarch64-linux-gnu)")
    assert toolchains.choose("x86_64", X86, ["clang"])[1].argv == (str(alone / "clang"),)


def test_a_newer_version_beside_an_old_one(alone: Path) -> None:
    fake(alone, "riscv64-linux-gnu-gcc", "riscv64-linux-gnu")
    with pytest.raises(ToolError) as caught:
        toolchains.choose("riscv64", ("scalar", "rvv"), ["gcc"])
    assert caught.value.code == "E_TOOL_OLD"
    assert "rvv needs gcc 14 or newer, this is 12" in caught.value.text
    assert toolchains.choose("riscv64", ("scalar",), ["gcc"])[1].major == 12
    fake(alone, "riscv64-linux-gnu-gcc-14", "riscv64-linux-gnu", major=14)
    fake(alone, "riscv64-linux-gnu-gcc-9", "riscv64-linux-gnu", major=9)
    found = toolchains.choose("riscv64", ("scalar", "rvv"), ["gcc"])[1]
    assert (Path(found.argv[0]).name, found.major) == ("riscv64-linux-gnu-gcc-14", 14)
    fake(alone, "zig")
    assert toolchains.choose("riscv64", ("scalar", "rvv"), ["gcc", "zig"])[1].name == "gcc"


def test_the_environment_does_not_reach_compilers(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")
    names += ("GCC_EXEC_PREFIX", "DEPENDENCIES_OUTPUT", "SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS", "LD_PRELOAD")
    for name in (*names, "ZIG_LIB_DIR", "ZIG_LOCAL_CACHE_DIR", "LANG"):
        monkeypatch.setenv(name, "poison")
    for name in ("zig", "clang", "gcc"):
        fake(alone, name)
        env = toolchains.choose("x86_64", X86, [toolchains.named(name)])[1].env
        assert "poison" not in env.values()
        assert set(env) <= {"PATH", "HOME", "TMPDIR", "TZ", "LC_ALL", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"}


def test_zig_gets_only_our_environment(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "leak")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "leak")
    env = zig.environment()
    assert env["ZIG_GLOBAL_CACHE_DIR"] == env["ZIG_LOCAL_CACHE_DIR"] == str(tmp_path / "cache/zig")
    assert "leak" not in env.values()


def test_the_plan(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    sources(tmp_path)
    made = plan(tmp_path)
    steps = {step.source: step.argv for step in made.steps}
    assert list(steps) == [
        "hal/cpu_x86_64.c",
        "hal/hal.c",
        "runtime/main.c",
        "runtime/model.c",
        "ops/scalar/add__scalar.c",
        "ops/x86_64/add__avx2.c",
        "ops/x86_64/add__avx512vnni.c",
    ]
    for source, argv in steps.items():
        assert argv[:4] == (str(alone / "zig"), "cc", "-target", "x86_64-linux-musl")
        assert {"-O3", "-std=gnu17", "-ffp-contract=off", "-fno-math-errno"} <= set(argv)
        assert not {"-ffast-math", "-march=native", "-fPIC"} & set(argv)
        cpus = [word for word in argv if word.startswith("-mcpu=")]
        expected = {"avx2": "-mcpu=x86_64+avx2+f16c", "avx512vnni": cpus[0]}.get(
            source.split("__")[-1][:-2], "-mcpu=x86_64"
        )
        assert cpus == [expected]
        assert ("-DNB_BUILD_AVX2=1" in argv) == source.startswith("hal/")
    assert "-mcpu=x86_64" in made.link
    assert {"-static", "-O3", "-g0"} <= set(made.link)
    assert " -s " in made.lines()[-1]
    assert made.lines()[-1].endswith("ops_x86_64_add__avx512vnni.o -lm -o run")
    assert made.link_line(["a.o"], "x", symbols=True)[-4:] == ["a.o", "-lm", "-o", "x"]
    assert "-s" not in made.link_line([], "x", symbols=True)


def test_the_library_has_no_main_and_old_glibc(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    sources(tmp_path)
    made = plan(tmp_path, shared=True)
    assert "runtime/main.c" not in {step.source for step in made.steps}
    assert all({"-fPIC", "-fvisibility=hidden", "x86_64-linux-gnu.2.28"} <= set(step.argv) for step in made.steps)
    assert {"-shared", "x86_64-linux-gnu.2.28"} <= set(made.link)


def test_levels_and_flags_of_the_platform(alone: Path, tmp_path: Path) -> None:
    fake(alone, "gcc")
    sources(tmp_path)
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\nname: p\narch: x86_64\nlevels: [scalar]\ntoolchain:\n  prefer: [gcc]\n  cflags: [-O2]\n"
    )
    made = plan(tmp_path, platform=load_platform(path))
    assert made.compiler.name == "gcc"
    assert [step.source for step in made.steps if step.source.startswith("ops/")] == ["ops/scalar/add__scalar.c"]
    assert all("-O2" in step.argv and "-DNB_BUILD_AVX2=1" not in step.argv for step in made.steps)


def test_a_lean_plan_for_another_architecture(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    sources(tmp_path)
    made = plan(tmp_path, platform=load_platform("rpi5"))
    steps = {step.source: step.argv for step in made.steps}
    assert list(steps) == [
        "hal/cpu_arm64.c",
        "hal/hal.c",
        "runtime/main.c",
        "runtime/model.c",
        "ops/scalar/add__scalar.c",
        "ops/arm64/add__dotprod.c",
        "ops/arm64/add__neon.c",
    ]
    assert made.floor == ("scalar", "neon", "dotprod")
    for source, argv in steps.items():
        assert argv[2:4] == ("-target", "aarch64-linux-musl")
        assert ("-DNB_FLOOR=(NB_ISA_NEON|NB_ISA_DOTPROD)" in argv) == source.startswith("hal/")
        cpus = [word for word in argv if word.startswith("-mcpu=")]
        assert cpus == ["-mcpu=generic+dotprod" if "dotprod" in source else "-mcpu=generic"]
    fat = plan(tmp_path, platform=load_platform("generic-arm64"))
    assert fat.link == made.link, "another flag would cost another build of the C library"
    assert not [word for step in fat.steps for word in step.argv if "NB_FLOOR" in word]
    assert {step.key for step in fat.steps if step.source.startswith("runtime/")} <= {step.key for step in made.steps}
    library = plan(tmp_path, platform=load_platform("rpi5"), shared=True)
    assert all("aarch64-linux-gnu.2.28" in step.argv for step in library.steps)
    assert "-DNB_FLOOR=(NB_ISA_NEON|NB_ISA_DOTPROD)" in library.steps[0].argv


def test_flags_of_cross_compilers(alone: Path, tmp_path: Path) -> None:
    fake(alone, "clang", "x86_64-pc-linux-gnu", libraries="riscv64-linux-gnu", major=19)
    sources(tmp_path)
    made = building.make_plan(
        load_platform("generic-riscv64"), shared=False, toolchain="clang", folder=tmp_path / "kernels"
    )
    assert made.steps[0].argv[:2] == (str(alone / "clang"), "--target=riscv64-linux-gnu")
    assert "-march=rv64gc" in made.steps[0].argv
    assert {"-static", "-no-pie", "-march=rv64gc"} <= set(made.link)


def test_what_is_found_in_the_program_is_kept_with_it(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(alone, "zig")
    sources(tmp_path)
    made = plan(tmp_path, platform=load_platform("rpi5"))
    assert building.execute(made, tmp_path / "run").isa == {"floor": ["scalar", "neon", "dotprod"]}

    def refuse(proof: object, where: Path) -> None:
        raise ToolError("E_ISA", where, "a bad instruction")

    monkeypatch.setattr(isaproof, "require", refuse)
    assert building.execute(made, tmp_path / "run").isa, "examined once"
    (tmp_path / "kernels/runtime/main.c").write_text("/* new */\n")
    (tmp_path / "run").unlink()
    for _ in range(2):  # what was refused is not in the cache
        with pytest.raises(ToolError, match="a bad instruction"):
            building.execute(plan(tmp_path, platform=load_platform("rpi5")), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_keys_follow_everything_that_goes_in(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    folder = sources(tmp_path)
    first = plan(tmp_path)

    def changed() -> set[str]:
        return {a.source for a, b in zip(first.steps, plan(tmp_path).steps, strict=True) if a.key != b.key}

    assert changed() == set()
    assert plan(tmp_path).key == first.key
    (folder / "runtime/model.c").write_text('#include "runtime/model.h"\n')
    assert changed() == {"runtime/model.c"}
    assert plan(tmp_path).key != first.key
    (folder / "runtime/model.h").write_text('#include "inner.h"\n')
    (folder / "runtime/inner.h").write_text("/* first */\n")
    first = plan(tmp_path)
    (folder / "runtime/inner.h").write_text("/* second */\n")
    assert changed() == {"runtime/model.c"}, "what includes a header follows it, and nothing else"
    other = tmp_path / "elsewhere"
    other.mkdir()
    moved = other / "kernels"
    os.rename(folder, moved)
    here = building.make_plan(load_platform("generic-x86_64"), shared=False, folder=moved)
    os.rename(moved, folder)
    assert here.key == plan(tmp_path).key, "the key must not hold the folder's name"


def test_what_is_in_the_cache_is_not_done_again(alone: Path, tmp_path: Path) -> None:
    fake(alone, "gcc")
    folder = sources(tmp_path)
    (tmp_path / "p.yaml").write_text("version: 1\nname: p\nextends: generic-x86_64\ntoolchain:\n  prefer: [gcc]\n")
    platform = load_platform(tmp_path / "p.yaml")
    said: list[tuple[str, int, int]] = []

    def progress(phase: str, done: int = 0, total: int = 0, /) -> None:
        said.append((phase, done, total))

    report = building.execute(plan(tmp_path, platform=platform), tmp_path / "run", progress)
    assert (report.compiled, report.cached) == (7, 0)
    assert (tmp_path / "run").read_text() == "made\n"
    assert os.access(tmp_path / "run", os.X_OK)
    assert said[0] == ("compiling for x86_64 with fake gcc 12.2.0 (x86_64-linux-gnu)", 1, 7)
    assert (alone / "log").read_text().count("x") == 9, "a program and the same with its symbols"
    report = building.execute(plan(tmp_path, platform=platform), tmp_path / "run2")
    assert (report.compiled, report.cached) == (0, 7)
    assert (alone / "log").read_text().count("x") == 9
    (folder / "runtime/main.c").write_text("/* new */\n")
    report = building.execute(plan(tmp_path, platform=platform), tmp_path / "run3")
    assert (report.compiled, report.cached) == (1, 6)
    assert (alone / "log").read_text().count("x") == 12


def test_the_first_link_is_announced_once(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    folder = sources(tmp_path)
    said: list[str] = []

    def progress(phase: str, _done: int = 0, _total: int = 0, /) -> None:
        said.append(phase)

    building.execute(plan(tmp_path), tmp_path / "run", progress)
    assert "building the C library for x86_64-linux-musl, once: about half a minute" in said
    said.clear()
    (folder / "runtime/main.c").write_text("/* new */\n")
    building.execute(plan(tmp_path), tmp_path / "run", progress)
    words = ["compiling for x86_64 with zig 0.17.1", "linking for x86_64", "checking the instructions for x86_64"]
    assert said == words


def test_a_failed_compile_leaves_nothing(alone: Path, tmp_path: Path) -> None:
    tool = fake(alone, "gcc")
    tool.write_text(tool.read_text().replace("echo x >>", "echo 'a.c:1: error: no' >&2; exit 1; echo x >>"))
    sources(tmp_path)
    with pytest.raises(ToolError, match="error: no"):
        building.execute(plan(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "cache/objects").rglob("*.o"))
