# SPDX-License-Identifier: Apache-2.0
"""The program with address and undefined-behaviour checks does what the one that ships does, and nothing it may not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import nano
import pytest
import sanitized

PROMPT = "the end of it, and then"
LEVELS = ",".join(sanitized.LEVELS)
SAMPLED = ("--temp", 1.2, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01, "--repeat-penalty", 1.2, "-s", 9)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime = [f"runtime/{path.name}" for path in sorted((sanitized.KERNELS / "runtime").glob("*.c"))]
    return sanitized.program(tmp_path_factory.mktemp("sanitized") / "run", runtime)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano.text_model(tmp_path_factory.mktemp("model"))


def run(program: Path, *arguments: object, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NB_")}
    words = [str(program), *map(str, arguments)]
    done = subprocess.run(words, input=stdin, capture_output=True, env=clean, timeout=120, check=False)
    assert b"Sanitizer" not in done.stderr, done.stderr.decode()
    assert b"runtime error" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", PROMPT, "-n", 24, "-t", 1),
        ("-p", PROMPT, "-n", 24, "-t", 1, "--isa", "scalar"),
        ("-p", PROMPT, "-n", 24, "-t", 1, "--isa", "scalar,sse41", "--kv", "i8"),
        ("-p", PROMPT, "-n", 24, "-t", 3, "--isa", LEVELS, "--kv", "i8", "--chunk", 3),
        ("-p", PROMPT * 12, "-n", 40, "-t", 2, "--mmap-mode", "read", *SAMPLED),
        ("-p", PROMPT * 12, "-n", 9, "-t", 2, "--chunk", 1, "--mmap-mode", "populate"),
        ("-p", PROMPT, "-n", 60, "-t", 2, "--stop", "e", "--stop", "the end", *SAMPLED),
        ("--chat", "-p", "in the end", "--system", "of it", "-n", 9),
    ],
    ids=range(8),
)
def test_says_the_same(program: Path, model: Path, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    have = run(program, "-m", model, *arguments, "--logits", tmp_path / "have")
    want = nano.run("-m", model, *arguments, "--logits", tmp_path / "want")
    assert have[:2] == (0, want.stdout)
    assert (tmp_path / "have").read_bytes() == (tmp_path / "want").read_bytes()


def test_a_conversation(program: Path, model: Path) -> None:
    talk = b"in the end\nand to\n\xff\xfe odd\n"
    want = nano.run("-m", model, "-i", "--system", "of it", "-n", 6, stdin=talk)
    assert run(program, "-m", model, "-i", "--system", "of it", "-n", 6, stdin=talk)[:2] == (0, want.stdout)


@pytest.mark.parametrize(
    "flags", [("--show",), ("--show", "--json"), ("--verify",), ("--help",), ("--version",)], ids=str
)
def test_actions(program: Path, model: Path, flags: tuple[str, ...]) -> None:
    want = nano.run("-m", model, *flags)
    assert run(program, "-m", model, *flags)[:2] == (want.returncode, want.stdout)


@pytest.mark.parametrize(
    "flags",
    [
        ("--bench", "--bench-prefill", 40, "--bench-decode", 4, "--bench-depth", 60, "--reps", 1, "-t", 2),
        ("--bench", "--bench-prefill", 5, "--bench-decode", 2, "--reps", 1, "-t", 1, "--isa", "scalar,sse41"),
        ("--bench-start", "--bench-prefill", 5, "--bench-decode", 3, "-t", 2),
        ("--bandwidth", "--reps", 1, "-t", 2),
    ],
    ids=["bench", "bench-sse41", "start", "bandwidth"],
)
def test_timing_loops(program: Path, model: Path, flags: tuple[object, ...]) -> None:
    code, out, err = run(program, "-m", model, *flags)
    assert code == 0, err
    assert json.loads(out)


@pytest.mark.parametrize("size", [0, 100, 4096, 60_000])
def test_cut_files(program: Path, model: Path, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "model.nano"
    cut.write_bytes(model.read_bytes()[:size])
    want = nano.run("-m", cut, "-p", PROMPT)
    assert run(program, "-m", cut, "-p", PROMPT)[0] == want.returncode != 0


@pytest.mark.parametrize(
    "arguments", [("-p",), ("--nonsense",), ("-p", "x", "-c", 100_000), ("-p", "the " * 300)], ids=range(4)
)
def test_refusals(program: Path, model: Path, arguments: tuple[object, ...]) -> None:
    want = nano.run("-m", model, *arguments)
    assert run(program, "-m", model, *arguments) == (want.returncode, b"", want.stderr)
