# SPDX-License-Identifier: Apache-2.0
"""scripts/nano-build.sh with the real default model: the README example as printed, and a second run that rests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from models import model_file

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "The capital of France is"

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A virtual environment as the script leaves it, which in truth is the one that runs the tests."""
    model_file("smollm2-135m")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with (ROOT / "pyproject.toml").open("rb") as file:
        cksum = subprocess.run(["cksum"], stdin=file, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    (tmp_path / "venv" / ".nano-build-stamp").write_text(f"{cksum} {ROOT}\n")
    return {**os.environ, "NANOBUILD_VENV": str(tmp_path / "venv"), "PYTHONPATH": str(ROOT)}


def printed_in_readme() -> str:
    """The block that follows the words "It prints" in the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"prints[^\n]*:\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found, "the README shows no output"
    return found[1]


def test_the_whole_way_twice(environment: dict[str, str], tmp_path: Path) -> None:
    command = [
        ROOT / "scripts" / "nano-build.sh",
        "--prompt",
        PROMPT,
        "-n",
        "24",
        "--out",
        tmp_path / "out",
        "--offline",
    ]
    first = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert first.stdout == printed_in_readme()
    files = [tmp_path / "out" / "smollm2-135m.safetensors", *(tmp_path / "out" / "smollm2-135m").iterdir()]
    assert {"run", "run.py", "model.nano", "manifest.json"} <= {f.name for f in files}
    before = [f.stat().st_mtime_ns for f in files]
    second = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert [f.stat().st_mtime_ns for f in files] == before
    assert "installing" not in first.stderr
    # the program needs nothing of ours: an empty environment and another folder do
    program = tmp_path / "out" / "smollm2-135m" / "run"
    alone = subprocess.run(
        [program, "--prompt", PROMPT, "-n", "24"], check=True, cwd="/", env={}, stdout=subprocess.PIPE
    )
    assert alone.stdout.decode() == first.stdout


def test_errors_keep_their_exit_codes(environment: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    script = ROOT / "scripts" / "nano-build.sh"
    for model, code in ((broken, 3), ("no-such-model", 2)):
        done = subprocess.run(
            [script, "--model", model, "--out", tmp_path / "out"],
            check=False,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        assert "nano-build: error[E_" in done.stderr
        assert done.stdout == ""
