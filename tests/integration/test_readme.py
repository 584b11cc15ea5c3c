# SPDX-License-Identifier: Apache-2.0
"""Every command in the README exists with the options it is shown with; the cheap ones are run as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHEAP = {"detect", "targets", "recipes", "models"}


def shell_lines() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


def words_of(start: str) -> list[list[str]]:
    return [shlex.split(line, comments=True)[1:] for line in shell_lines() if line.startswith(start)]


def output(*words: str | Path) -> str:
    done = subprocess.run(words, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def nano_build(*words: str) -> str:
    return output(sys.executable, "-m", "nanobuild", *words)


def test_there_are_commands_to_check() -> None:
    assert {"fetch", "quantize", "build", "run"} <= {words[0] for words in words_of("nano-build ")}


@pytest.mark.parametrize("words", words_of("nano-build "), ids=" ".join)
def test_command_and_options_exist(words: list[str]) -> None:
    text = nano_build(words[0], "--help")
    for option in (word for word in words[1:] if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{words[0]} has no {option}"
    if words[0] in CHEAP:
        assert nano_build(*words).strip()


def test_the_table_of_commands_is_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Commands") : text.index("## Limits")]
    listed = set(re.findall(r"`(?:nano-build )?([a-z]+)[ A-Z`-]", table))
    offered = set(re.findall(r"^  ([a-z]+) ", nano_build("--help").split("Commands:")[1], re.MULTILINE))
    assert offered <= listed, f"not in the README: {offered - listed}"


def test_scripts_say_how_they_are_used() -> None:
    for words in words_of("scripts/nano-build.sh"):
        text = output(ROOT / "scripts" / "nano-build.sh", "--help")
        assert all(word in text for word in words if word.startswith("-"))


@pytest.mark.parametrize(("words", "code"), [(["--nonsense"], 2), (["--prompt"], 2)])
def test_the_script_refuses_wrong_use(words: list[str], code: int) -> None:
    script = ROOT / "scripts" / "nano-build.sh"
    done = subprocess.run([script, *words], check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.startswith("nano-build: error[E_USAGE]: ")
    assert done.stdout == ""


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    """No usable Python: one line, exit code 6. A Python that cannot make environments: the line that mends it."""
    script = ROOT / "scripts" / "nano-build.sh"
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "cat", "sh"):
        (tools / name).symlink_to(
            Path("/usr/bin") / name if (Path("/usr/bin") / name).exists() else Path("/bin") / name
        )
    env = {"PATH": str(tools), "NANOBUILD_VENV": str(tmp_path / "venv")}
    done = subprocess.run([script], check=False, capture_output=True, text=True, env=env)
    assert (done.returncode, "E_PYTHON" in done.stderr) == (6, True), done.stderr
    crippled = tools / "python3"
    crippled.write_text(f'#!/bin/sh\n[ "$2" = venv ] && exit 1\nexec {sys.executable} "$@"\n')
    crippled.chmod(0o755)
    done = subprocess.run([script], check=False, capture_output=True, text=True, env=env)
    assert (done.returncode, "python3-venv" in done.stderr) == (6, True), done.stderr
