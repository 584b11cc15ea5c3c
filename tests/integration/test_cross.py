# SPDX-License-Identifier: Apache-2.0
"""Bundles for all kinds of boards from one machine: each builds, is checked under its QEMU CPU, prints the same text.

A program below its floor says so and ends; the same inputs give the same bytes.

The cache of the user is used, so that each C library is built once for all test runs.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

from nanobuild import LLM, emulator, isa, pipeline, runner, verify
from nanobuild import compile as building
from nanobuild.bundle import Bundle, open_bundle
from nanobuild.errors import IntegrityError, ToolError
from nanobuild.platforms import Platform, load_platform

ROOT = Path(__file__).resolve().parents[2]
BOARDS = (
    "generic-x86_64", "generic-arm64", "generic-riscv64",
    "rpi4", "rpi5", "rk3588", "visionfive2", "bananapi-f3", "d1",
)  # fmt: skip
PROMPT = "to the end of it"
QEMU = {arch: emulator.program_of(arch) for arch in isa.load_isa().arches}

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.skipif(not all(QEMU.values()), reason="no QEMU for one of the architectures"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="from x86_64 to the others"),
]


@functools.cache
def quantized(folder: Path) -> Path:
    source = tiny.write_hf(folder / "hf", tiny.llama())
    pipeline.quantize(source, folder / "tiny.safetensors", "q4")
    return folder / "tiny.safetensors"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cross")


@pytest.fixture(scope="session")
def bundles(place: Path) -> dict[str, Bundle]:
    """One for every board, two at a time."""
    source = quantized(place)

    def build(name: str) -> Bundle:
        return pipeline.build(source, place / name, load_platform(name))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(BOARDS, pool.map(build, BOARDS), strict=True))


def emulated(bundle: Bundle, cpu: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = QEMU[bundle.manifest["target"]["arch"]]
    return subprocess.run(
        [str(program), "-cpu", cpu, str(bundle.binary), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def nb(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nanobuild", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        timeout=300,
    )


@functools.cache
def text_here(bundle: Path) -> str:
    done = subprocess.run([bundle / "run", "-p", PROMPT, "-n", "12", "-q"], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.parametrize("name", BOARDS)
def test_each_board(bundles: dict[str, Bundle], name: str) -> None:
    bundle, platform = bundles[name], load_platform(name)
    target, checked = bundle.manifest["target"], bundle.manifest["checked"]
    assert target["arch"] == platform.arch
    assert (target["levels"], target["floor"]) == (list(platform.levels), platform.floor[-1])
    assert checked["tokens"] == 4
    cpu = platform.emulator_cpu
    expected = (
        "this machine" if platform.arch == "x86_64" else f"{isa.load_isa().arch(platform.arch).emulator} -cpu {cpu}"
    )
    assert checked["on"] == expected
    assert bundle.manifest["isa"]["violations"] == 0
    assert bundle.binary.stat().st_size < 600_000
    assert machine(bundle.binary) == machine(bundle.path / "libnano.so") == MACHINES[platform.arch]
    assert bundle.model.read_bytes() == bundles["generic-x86_64"].model.read_bytes(), "one model for all"
    done = emulated(bundle, str(cpu), "-p", PROMPT, "-n", "12")
    assert (done.returncode, done.stdout) == (0, text_here(bundles["generic-x86_64"].path)), done.stderr


MACHINES = {"x86_64": 62, "arm64": 183, "riscv64": 243}


def machine(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(20)[18:], "little")


@pytest.mark.parametrize(
    ("name", "cpu", "level"),
    [
        ("generic-x86_64", "kvm64", "scalar"),
        ("generic-x86_64", "Nehalem", "sse41"),
        ("generic-arm64", "cortex-a53", "neon"),
        ("generic-arm64", "cortex-a76", "dotprod"),
        ("generic-riscv64", "sifive-u54", "scalar"),
    ],
)
def test_a_fat_program_takes_what_the_cpu_has(bundles: dict[str, Bundle], name: str, cpu: str, level: str) -> None:
    done = emulated(bundles[name], cpu, "-p", PROMPT, "-n", "12")
    assert (done.returncode, done.stdout) == (0, text_here(bundles["generic-x86_64"].path)), done.stderr
    assert f"  isa {level}  " in done.stderr


def test_python_reads_a_foreign_bundle_with_the_library_of_this_machine(bundles: dict[str, Bundle]) -> None:
    with LLM(bundles["rpi5"].path) as llm:
        assert llm.generate(PROMPT, max_tokens=12) + "\n" == text_here(bundles["generic-x86_64"].path)


@pytest.mark.parametrize(
    ("name", "cpu", "needs", "has"),
    [
        ("rpi5", "cortex-a72", "dotprod", "neon"),
        ("rk3588", "cortex-a53", "dotprod", "neon"),
        ("bananapi-f3", "rv64", "rvv", "scalar"),
    ],
)
def test_below_the_floor(bundles: dict[str, Bundle], name: str, cpu: str, needs: str, has: str) -> None:
    for words in (("-p", PROMPT), ("--kernels",), ("--verify",), ()):
        done = emulated(bundles[name], cpu, *words)
        assert (done.returncode, done.stdout) == (6, "")
        assert done.stderr == (
            f"nano-build: error[E_CPU]: run: this build needs {needs}, this CPU has {has}\n"
            "nano-build: hint: nano-build detect, on this machine, names the platform to build for\n"
        )


def lean_x86(folder: Path, floor: str) -> Platform:
    path = folder / f"lean-{floor}.yaml"
    path.write_text(f"version: 1\nname: lean-{floor}\narch: x86_64\nlevels: [{floor}]\nfloor: {floor}\n")
    return load_platform(path)


def test_below_the_floor_on_x86_64(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    platform = lean_x86(tmp_path, "avx2")
    building.build_binary(platform, tmp_path / "run")
    shutil.copy(bundles["rpi4"].model, tmp_path / "model.nano")
    bundle = Bundle(path=tmp_path, manifest={"target": {"arch": "x86_64"}})
    for cpu, has in (("Nehalem", "sse41"), ("kvm64", "scalar")):
        done = emulated(bundle, cpu, "-p", PROMPT)
        assert done.returncode == 6
        assert f"this build needs avx2, this CPU has {has}\n" in done.stderr
    done = emulated(bundle, "Haswell", "-p", PROMPT, "-n", "12")
    assert (done.returncode, done.stdout) == (0, text_here(bundles["generic-x86_64"].path))


def test_the_library_says_so_too(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    """The lowest level that this machine lacks; with all of them there is nothing to see."""
    levels = [name for name, level in isa.load_isa().levels.items() if level.arch == "x86_64"]
    lacking = [name for name in levels if not emulator.host_runs("x86_64", (name,))]
    if not lacking:
        pytest.skip("this machine has every level")
    platform = lean_x86(tmp_path, lacking[0])
    building.build_library(tmp_path / "libnano.so", platform)
    with pytest.raises(runner.RunError, match=f"this build needs {lacking[0]}, this CPU has ") as caught:
        runner.LLM(bundles["rpi4"].model, library=tmp_path / "libnano.so")
    assert (caught.value.code, caught.value.exit_code) == ("E_CPU", 6)


def symbols(platform: Platform, out: Path) -> set[str]:
    """Names in a program linked with them."""
    made = building.make_plan(platform, shared=False)
    building.execute(made, out)
    linked = building.link_with_symbols(made, out.with_suffix(".full"))
    found = subprocess.run(["nm", linked], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in found.splitlines()}


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
def test_a_lean_program_has_no_kernel_below_its_floor(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    fat, lean = (
        symbols(load_platform("generic-x86_64"), tmp_path / "fat"),
        symbols(lean_x86(tmp_path, "avx2"), tmp_path / "lean"),
    )
    assert {name for name in fat if name.startswith("nb_gemv_") and name.endswith("__scalar")}
    products = {name for name in lean if name.startswith(("nb_gemv_", "nb_gemm_"))}
    assert not [name for name in products if name.endswith(("__scalar", "__sse41"))]
    assert {name for name in lean if name.startswith("nb_gemv_") and name.endswith("__avx2")}
    sizes = {name: bundles[name].binary.stat().st_size for name in BOARDS}
    assert sizes["rpi4"] < sizes["generic-arm64"]
    assert sizes["rpi5"] < sizes["generic-arm64"]
    assert sizes["bananapi-f3"] < sizes["generic-riscv64"]
    assert sizes["d1"] < sizes["bananapi-f3"]


def test_the_same_bytes_with_a_fresh_object_cache_and_another_environment(
    place: Path, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Another folder of objects, another working folder, and variables that compilers read: the same program."""
    objects = tmp_path / "cache"
    objects.mkdir()
    home = Path(building.resources.cache_dir())
    (objects / "zig").symlink_to(home / "zig")
    poison = dict.fromkeys(
        ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "ZIG_LIB_DIR"), "/nowhere -O0"
    )
    done = nb(
        "build", quantized(place), "-o", tmp_path / "b", "-t", "d1", "--json",
        env={**poison, "NANOBUILD_CACHE": str(objects), "SOURCE_DATE_EPOCH": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, theirs = (open_bundle(path).manifest["files"] for path in (tmp_path / "b", bundles["d1"].path))
    assert {name: row["sha256"] for name, row in ours.items()} == {name: row["sha256"] for name, row in theirs.items()}
    assert len(list((objects / "objects").rglob("*.o"))) > 50, "nothing came from another cache"


def test_run_emulates(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    done = nb("run", bundles["rpi5"].path, "-p", PROMPT, "-n", "12")
    assert (done.returncode, done.stdout) == (0, text_here(bundles["generic-x86_64"].path))
    assert done.stderr.startswith("emulated: QEMU stands in for arm64 as cortex-a76; ")
    answer = json.loads(nb("run", bundles["d1"].path, "-p", PROMPT, "-n", "12", "--json").stdout)
    assert (answer["text"], answer["report"]["isa"]) == (done.stdout, "scalar")
    done = nb("run", bundles["rpi5"].path, "-p", PROMPT, "--runner", "python")
    assert done.returncode == 2
    assert "a library for arm64 cannot be loaded here" in done.stderr
    done = nb("run", bundles["rpi5"].path, "-p", PROMPT, env={"PATH": str(tmp_path)})
    assert done.returncode == 6
    assert "error[E_TOOL_MISSING]: qemu-aarch64: " in done.stderr
    assert "hint: apt-get install qemu-user-static" in done.stderr


def test_without_qemu_it_is_not_checked(
    place: Path, bundles: dict[str, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundles
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    bundle = pipeline.build(
        quantized(place), tmp_path / "b", load_platform("rpi5"), progress=lambda phase, *_: said.append(phase)
    )
    assert bundle.manifest["checked"] is False
    assert said[-1] == "not checked: nothing here runs a program for arm64; apt-get install qemu-user-static"


def test_a_program_that_computes_something_else_is_refused(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """A program that stands in for a wrong kernel: it swaps two tokens, then it only rounds a logit otherwise."""
    platform = dataclasses.replace(load_platform("generic-x86_64"), name="other")
    real, model = bundles["generic-x86_64"].binary, bundles["generic-x86_64"].model
    program = tmp_path / "run"

    def check(script: str) -> Any:
        program.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
        program.chmod(0o755)
        return verify.check(program, model, platform, text=True)

    assert check(f'exec {real} "$@"') == verify.Checked(on="this machine", tokens=4)
    with pytest.raises(IntegrityError, match="it generates the tokens") as caught:
        check(f'{real} "$@" | sed "s/^[0-9]*/7/"')
    assert caught.value.code == "E_SELF_CHECK"
    flip = "printf x | dd of=$2 conv=notrunc 2>/dev/null"
    flip = f'{real} "$@" || exit\nwhile [ "$1" ]; do [ "$1" = --logits ] && {flip}; shift; done'
    with pytest.raises(IntegrityError, match="its logits are not those of the scalar kernels"):
        check(flip)
    with pytest.raises(IntegrityError, match="ended by signal 4"):
        check("kill -ILL $$")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "name"),
    [
        ("clang", "generic-arm64"),
        ("gcc", "rpi5"),
        ("clang", "bananapi-f3"),
        ("gcc", "visionfive2"),
        ("gcc", "bananapi-f3"),
    ],
)
def test_other_compilers(bundles: dict[str, Bundle], tmp_path: Path, compiler: isa.Compiler, name: str) -> None:
    platform = load_platform(name)
    try:
        building.build_binary(platform, tmp_path / "run", toolchain=compiler)
    except ToolError as error:
        code, text = error.code, error.text
    else:
        code = text = ""
    if code == "E_TOOL_MISSING":
        pytest.skip(text)
    if code:
        assert (code, compiler, name) == ("E_TOOL_OLD", "gcc", "bananapi-f3")
        return
    shutil.copy(bundles[name].model, tmp_path / "model.nano")
    bundle = Bundle(path=tmp_path, manifest=bundles[name].manifest)
    done = emulated(bundle, str(platform.emulator_cpu), "-p", PROMPT, "-n", "12")
    assert (done.returncode, done.stdout) == (0, text_here(bundles["generic-x86_64"].path)), done.stderr


def test_build_says_what_it_did(place: Path, bundles: dict[str, Bundle], tmp_path: Path) -> None:
    assert bundles
    done = nb("build", quantized(place), "-o", tmp_path / "b", "-t", "rpi5", "-t", "d1")
    assert done.returncode == 0, done.stderr
    assert "rpi5 (scalar, neon, dotprod, needs dotprod)\n" in done.stdout
    assert "checked on qemu-aarch64 -cpu cortex-a76: checksums, 4 tokens and the logits\n" in done.stdout
    assert (tmp_path / "b/d1/run").is_file()
    done = nb("build", quantized(place), "-o", tmp_path / "c", "--toolchain", "tcc")
    assert (done.returncode, "allowed: zig, clang, gcc" in done.stderr) == (2, True)
