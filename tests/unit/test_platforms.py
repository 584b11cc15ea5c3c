# SPDX-License-Identifier: Apache-2.0
"""Board profiles: what ships, `extends`, and a folder of bad examples, one defect each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild import isa, plainyaml, platforms, resources, schema
from nanobuild.archs import SYNONYMS, parse_arch
from nanobuild.errors import NanoBuildError, ToolError, UsageError

BAD = sorted((Path(__file__).parents[1] / "data/platforms").glob("invalid_*.yaml"))
SHIPPED = sorted(resources.platforms_dir().glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_profiles(path: Path) -> None:
    code, _, text = path.read_text().splitlines()[0].removeprefix("# expect: ").partition(" ")
    with pytest.raises(NanoBuildError) as caught:
        platforms.load_platform(path)
    error = caught.value
    assert error.code == code
    assert text in f"{error.text} {error.hint}"
    assert error.subject.startswith(str(path))
    assert error.exit_code == 3


def test_there_are_bad_profiles() -> None:
    assert len(BAD) > 20


@pytest.mark.parametrize("name", platforms.list_platforms())
def test_shipped_profiles(name: str) -> None:
    platform = platforms.load_platform(name)
    assert platform.name == name
    assert platform.title
    assert platform.levels[0] == "scalar"
    assert platform.arch in SYNONYMS
    assert set(platform.floor) <= set(platform.levels)
    assert platform.emulator_cpu
    if name.startswith("generic-"):
        own = [key for key, level in isa.load_isa().levels.items() if level.arch in (None, platform.arch)]
        assert (list(platform.levels), platform.floor) == (own, ("scalar",)), "a fat program: everything, and no floor"
    else:
        assert platform.soc
        assert platform.source
        assert platform.cores
        assert platform.threads
        assert platform.files[1].stem == f"generic-{platform.arch}"


def test_list_begins_with_the_generic_ones() -> None:
    names = platforms.list_platforms()
    assert names[:3] == ["generic-arm64", "generic-riscv64", "generic-x86_64"]
    assert {"rpi4", "rpi5", "rk3588", "visionfive2", "d1", "bananapi-f3", "i5-1135g7"} <= set(names)
    assert "isa" not in names


def plain(node: schema.Node) -> object:
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    return {k: plain(v) for k, v in node.value.items()} if isinstance(node.value, dict) else node.value


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_quick_reader_agrees_with_the_strict_one(path: Path) -> None:
    assert plainyaml.parse(path.read_text()) == plain(schema.read(path, "BOARD"))


@pytest.mark.parametrize(
    "text", ["a", "a:\n    b: 1\n", "  a: 1", "a: &x 1", "a: {b: 1}", "a: [1]", "- a", "a:\n\tb: 1"]
)
def test_the_quick_reader_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        plainyaml.parse(text)


def test_extends_merges(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "version: 1\nname: base\nextends: generic-x86_64\ntitle: Base\nmatch:\n  cpu: [Base]\ncores: 8\n"
        "cache:\n  l1d: 32K\n  l2: 1M\ntoolchain:\n  cflags: [-O2]\n"
    )
    (tmp_path / "board.yaml").write_text(
        "version: 1\nname: board\nextends: base\ncores: 2\ncache:\n  l2: 2M\nram_mb: 64\n"
    )
    board = platforms.load_platform(tmp_path / "board.yaml")
    assert (board.name, board.title, board.arch, board.cores) == ("board", "", "x86_64", 2)
    assert board.cache == {"l1d": 32 << 10, "l2": 2 << 20}
    assert board.levels == ("scalar", "sse41", "avx2", "avxvnni", "avx512vnni")
    assert board.toolchains == ("zig", "clang", "gcc")
    assert board.cflags == ("-O2",)
    assert board.ram_bytes == 64 << 20
    assert [path.stem for path in board.files] == ["board", "base", "generic-x86_64"]


def test_an_error_in_the_parent_names_the_parent(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("version: 1\nname: base\narch: x86_64\ncores: 0\n")
    (tmp_path / "board.yaml").write_text("version: 1\nname: board\nextends: base\n")
    with pytest.raises(NanoBuildError) as caught:
        platforms.load_platform(tmp_path / "board.yaml")
    assert caught.value.subject == f"{tmp_path / 'base.yaml'}:4"


def test_a_circle_of_two_and_a_long_chain(tmp_path: Path) -> None:
    for name, parent in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nname: {name}\nextends: {parent}\n")
    with pytest.raises(NanoBuildError, match="a circle: 'a > b > a'"):
        platforms.load_platform(tmp_path / "a.yaml")
    for i in range(10):
        (tmp_path / f"c{i}.yaml").write_text(f"version: 1\nname: c{i}\nextends: c{i + 1}\n")
    with pytest.raises(NanoBuildError, match="more than 8 files"):
        platforms.load_platform(tmp_path / "c0.yaml")


def test_levels_bring_what_they_imply(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\nname: p\narch: amd64\nlevels: [avx512vnni]\nfloor: avx2\n")
    platform = platforms.load_platform(path)
    assert platform.arch == "x86_64"
    assert platform.levels == ("scalar", "sse41", "avx2", "avx512vnni")
    assert platform.floor == ("scalar", "sse41", "avx2")


def test_unknown_names_and_native() -> None:
    with pytest.raises(UsageError) as caught:
        platforms.load_platform("rpi6")
    assert caught.value.code == "E_TARGET"
    assert "rpi" in caught.value.hint
    native = platforms.load_platform("native")
    assert native.name in platforms.list_platforms()


def test_what_can_be_built_for() -> None:
    assert all(platforms.load_platform(name).buildable for name in platforms.list_platforms())
    with pytest.raises(ToolError, match="this version builds for x86_64, arm64, riscv64 only") as caught:
        isa.load_isa().arch("sparc")
    assert caught.value.code == "E_TARGET"
    assert caught.value.exit_code == 6


def test_the_default_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname()
    for machine, expected in (
        ("aarch64", "generic-arm64"),
        ("riscv64", "generic-riscv64"),
        ("amd64", "generic-x86_64"),
    ):
        monkeypatch.setattr(os, "uname", lambda machine=machine: type(names)(("Linux", "n", "r", "v", machine)))
        assert platforms.default_platform() == expected
    monkeypatch.setattr(os, "uname", lambda: type(names)(("Linux", "n", "r", "v", "sparc64")))
    with pytest.raises(ToolError, match="this version builds for"):
        platforms.default_platform()


# what a level's flags have to name, beside its own needs: names of compilers differ from those of /proc/cpuinfo, and
# some features bring others along
FLAG_WORDS = {
    "sse41": {"sse4.1"},
    "avx2": {"avx2", "f16c"},
    "avxvnni": {"avx2", "f16c", "avxvnni"},
    "avx512vnni": {"avx2", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512vnni"},
    "neon": set(),
    "dotprod": {"dotprod"},
    "i8mm": {"dotprod", "i8mm"},
    "rvv": {"v"},
}


def test_isa_rows() -> None:
    table = isa.load_isa()
    assert set(table.levels) == {"scalar", *FLAG_WORDS}
    for name, words in FLAG_WORDS.items():
        level = table.levels[name]
        assert level.arch
        assert level.needs
        for compiler in ("zig", "clang", "gcc"):
            base, flags = table.arch(level.arch).base.of(compiler), table.flags(level.arch, name, compiler)
            assert all(flag.startswith("-m") for flag in flags)
            joined = " ".join(flags).replace(" -m", "+").replace("sse4_1", "sse4.1").replace("rv64gcv", "rv64gc+v")
            assert set(joined.split("+")[1:]) == words, (name, compiler)
            assert joined.split("+")[0] in (*base, "-march=armv8.2-a"), (name, compiler)


def test_no_flag_is_for_the_machine_that_builds() -> None:
    for path in SHIPPED:
        assert "native" not in path.read_text(), path.name
    root = Path(isa.__file__).parents[1]
    word = "march=" + "native"
    for folder in ("nanobuild", "kernels", "scripts", ".ci"):
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".c", ".h", ".sh", ".def", ".yaml", ""):
                assert word not in path.read_text(errors="replace"), path


@pytest.mark.parametrize(("compiler", "major", "old"), [("gcc", 13, True), ("gcc", 14, False), ("zig", 0, False)])
def test_minimum_versions(compiler: isa.Compiler, major: int, old: bool) -> None:
    said = isa.load_isa().too_old(("scalar", "rvv"), compiler, major)
    assert said == ("rvv needs gcc 14 or newer, this is 13" if old else "")


@pytest.mark.parametrize(
    ("name", "arch"),
    [("AMD64", "x86_64"), ("x86-64", "x86_64"), ("aarch64", "arm64"), ("rv64", "riscv64"), ("sparc", None)],
)
def test_arch_synonyms(name: str, arch: str | None) -> None:
    assert parse_arch(name) == arch


def test_parse_size() -> None:
    assert [platforms.parse_size(text) for text in ("32K", "2M", "1G")] == [32768, 2 << 20, 1 << 30]
