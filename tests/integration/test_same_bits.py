# SPDX-License-Identifier: Apache-2.0
"""The promise itself: one model file gives the same ids and the same logits, bit for bit, on every CPU there is.

Other CPUs are QEMU's. Emulated vectors are slow: seeded tiny models go everywhere, the real ones a few tokens far.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nano
import numpy as np
import pytest
from models import model_file

from nanobuild import pipeline
from nanobuild.compile import build_binary
from nanobuild.platforms import load_platform

pytestmark = pytest.mark.qemu

VECTORS = "rv64,v=true,vlen={},elen=64,vext_spec=v1.0"
# (architecture, CPU that QEMU plays, the level it must use)
CPUS = [
    ("x86_64", "kvm64", "scalar"),
    ("x86_64", "Nehalem", "sse41"),
    ("x86_64", "Haswell", "avx2"),
    ("arm64", "cortex-a53", "neon"),
    ("arm64", "cortex-a72", "neon"),
    ("arm64", "cortex-a76", "dotprod"),
    ("arm64", "max", "i8mm"),
    ("riscv64", "sifive-u54", "scalar"),
    *(("riscv64", VECTORS.format(vlen), "rvv") for vlen in (128, 256, 512, 1024)),
]
QEMU = {"x86_64": "qemu-x86_64", "arm64": "qemu-aarch64", "riscv64": "qemu-riscv64"}
PROMPT = "The capital of France is"


@functools.cache
def program(arch: str) -> Path:
    """The program for any CPU of an architecture."""
    out = Path(tempfile.mkdtemp(prefix=f"nb-{arch}-")) / "run"
    build_binary(load_platform(f"generic-{arch}"), out)
    return out


def emulated(arch: str, cpu: str) -> list[str]:
    emulator = shutil.which(QEMU[arch] + "-static") or shutil.which(QEMU[arch])
    if emulator is None:
        pytest.skip(f"no {QEMU[arch]} (Debian package qemu-user-static)")
    return [emulator, "-cpu", cpu, str(program(arch))]


def answer(argv: Sequence[str], model: Path, dump: Path, *options: object) -> tuple[list[int], np.ndarray, str]:
    """Ids, the last logits, and the level that the report line names."""
    words = [*argv, "-m", str(model), "--prompt", PROMPT, "--ids", "--logits", str(dump), *map(str, options)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NB_")}
    done = subprocess.run(words, capture_output=True, env=clean, timeout=600, check=False)
    said = done.stderr.decode()
    assert done.returncode == 0, f"{words}: {done.returncode}\n{said}"
    level = re.search(r"^# nb .* isa (\w+)", said, re.MULTILINE)
    assert level, said
    return [int(word) for word in done.stdout.split()], np.fromfile(dump, "<u4"), level[1]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano.text_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("arch", "cpu", "level"), CPUS)
def test_tiny_model(tiny_model: Path, tmp_path: Path, arch: str, cpu: str, level: str) -> None:
    length = 6 if level == "rvv" else 24
    ways = [("--kv", "f16"), ("--kv", "i8", "--chunk", 3, "--threads", 2)]
    for way in ways:
        want = answer([str(nano.program())], tiny_model, tmp_path / "want", "-n", length, *way, "--isa", "scalar")
        have = answer(emulated(arch, cpu), tiny_model, tmp_path / "have", "-n", length, *way)
        assert have[2] == level
        assert have[0] == want[0]
        assert (have[1] == want[1]).all()


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m"])
@pytest.mark.parametrize(
    ("arch", "cpu", "tokens"),
    [
        ("x86_64", "Nehalem", 4),
        ("arm64", "cortex-a72", 4),
        ("arm64", "cortex-a76", 4),
        ("riscv64", "sifive-u54", 2),
        ("riscv64", VECTORS.format(256), 2),
    ],
)
def test_real_model(tmp_path: Path, name: str, arch: str, cpu: str, tokens: int) -> None:
    model = pipeline.prepare(str(model_file(name)), "q4", "generic-x86_64").model
    options = ("-n", tokens, "-c", 64)
    want = answer([str(nano.program())], model, tmp_path / "want", *options)
    have = answer(emulated(arch, cpu), model, tmp_path / "have", *options)
    assert have[0] == want[0]
    assert (have[1] == want[1]).all()
