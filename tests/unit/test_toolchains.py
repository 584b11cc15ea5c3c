# SPDX-License-Identifier: Apache-2.0
"""Choice of compilers and the compile plan, with programs that only pretend to be compilers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild import compile as building
from nanobuild import toolchains
from nanobuild.errors import ToolError, UsageError
from nanobuild.platforms import Platform, load_platform
from nanobuild.toolchains import zig

FAKE = """#!/bin/sh
if [ "$1" = -dumpmachine ]; then echo {machine}; exit; fi
if [ "$1" = --version ]; then echo "fake {name} 1.0"; exit; fi
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
    return folder


def fake(folder: Path, name: str, machine: str = "x86_64-linux-gnu") -> Path:
    path = folder / name
    path.write_text(FAKE.format(machine=machine, name=name, log=folder / "log"))
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
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"/* {name} */\n")
    return folder


def plan(tmp_path: Path, *, shared: bool = False, platform: Platform | None = None) -> building.Plan:
    return building.make_plan(platform or load_platform("generic-x86_64"), shared=shared, folder=tmp_path / "kernels")


def test_order_of_choice(alone: Path) -> None:
    with pytest.raises(ToolError) as caught:
        toolchains.choose("x86_64", ["zig", "clang", "gcc"])
    assert caught.value.code == "E_TOOL_MISSING"
    assert caught.value.hint == "python -m pip install ziglang==0.17.1"
    fake(alone, "gcc")
    assert toolchains.choose("x86_64", ["zig", "clang", "gcc"])[1].name == "gcc"
    fake(alone, "clang")
    found = toolchains.choose("x86_64", ["zig", "clang", "gcc"])[1]
    assert (found.name, found.version) == ("clang", "fake clang 1.0 (x86_64-linux-gnu)")
    fake(alone, "zig")
    found = toolchains.choose("x86_64", ["zig", "clang", "gcc"])[1]
    assert (found.argv, found.version) == ((str(alone / "zig"), "cc"), "zig 0.17.1")
    assert toolchains.choose("x86_64", ["gcc"])[1].name == "gcc"
    with pytest.raises(UsageError, match="allowed: zig, clang, gcc"):
        toolchains.load("tcc")


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
        toolchains.choose("x86_64", ["gcc"])
    fake(alone, "x86_64-linux-gnu-gcc-12")
    assert toolchains.choose("x86_64", ["gcc"], cc="x86_64-linux-gnu-gcc-12")[1].argv[0].endswith("-gcc-12")


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
    assert {"-static", "-s", "-O3", "-g0"} <= set(made.link)
    assert made.lines()[-1].endswith("ops_x86_64_add__avx512vnni.o -lm -o run")


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


def test_other_architectures_are_refused(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    sources(tmp_path)
    with pytest.raises(ToolError) as caught:
        building.build_binary(load_platform("rpi5"), tmp_path / "run")
    assert (caught.value.code, caught.value.text) == ("E_TARGET", "this version builds for x86_64 only")


def test_keys_follow_everything_that_goes_in(alone: Path, tmp_path: Path) -> None:
    fake(alone, "zig")
    folder = sources(tmp_path)
    first = plan(tmp_path)

    def changed() -> set[str]:
        return {a.source for a, b in zip(first.steps, plan(tmp_path).steps, strict=True) if a.key != b.key}

    assert changed() == set()
    assert plan(tmp_path).key == first.key
    (folder / "runtime/model.c").write_text("/* new */\n")
    assert changed() == {"runtime/model.c"}
    assert plan(tmp_path).key != first.key
    (folder / "runtime/model.h").write_text("/* new */\n")
    assert changed() == {step.source for step in first.steps}
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
    assert said[0] == ("compiling for x86_64 with fake gcc 1.0 (x86_64-linux-gnu)", 1, 7)
    assert (alone / "log").read_text().count("x") == 8
    report = building.execute(plan(tmp_path, platform=platform), tmp_path / "run2")
    assert (report.compiled, report.cached) == (0, 7)
    assert (alone / "log").read_text().count("x") == 8
    (folder / "runtime/main.c").write_text("/* new */\n")
    report = building.execute(plan(tmp_path, platform=platform), tmp_path / "run3")
    assert (report.compiled, report.cached) == (1, 6)
    assert (alone / "log").read_text().count("x") == 10


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
    assert said == ["compiling for x86_64 with zig 0.17.1", "linking for x86_64"]


def test_a_failed_compile_leaves_nothing(alone: Path, tmp_path: Path) -> None:
    tool = fake(alone, "gcc")
    tool.write_text(tool.read_text().replace("echo x >>", "echo 'a.c:1: error: no' >&2; exit 1; echo x >>"))
    sources(tmp_path)
    with pytest.raises(ToolError, match="error: no"):
        building.execute(plan(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "cache/objects").rglob("*.o"))
