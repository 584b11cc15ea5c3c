# SPDX-License-Identifier: Apache-2.0
"""The door to other programs: environment, failures, time limits, and nothing left running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from nanobuild import proc, resources
from nanobuild.errors import ResourceError, ToolError


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_output_and_input(tmp_path: Path) -> None:
    result = proc.run([script(tmp_path, "cat; echo err >&2")], stdin=b"in")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"in", b"err\n")
    assert result.argv == (str(tmp_path / "tool"),)


def test_words_are_words(tmp_path: Path) -> None:
    result = proc.run([script(tmp_path, 'for w in "$@"; do echo "<$w>"; done'), "a b", "$(touch x)", ";", ""])
    assert result.stdout == b"<a b>\n<$(touch x)>\n<;>\n<>\n"
    assert sorted(os.listdir(tmp_path)) == ["tool"]


def test_the_environment_does_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "LDFLAGS", "CPATH", "LD_PRELOAD", "C_INCLUDE_PATH", "ZIG_LIB_DIR", "LANG"):
        monkeypatch.setenv(name, "leak")
    env = proc.clean_env(EXTRA="1")
    assert "leak" not in env.values()
    assert set(env) <= {"PATH", "HOME", "TMPDIR", "TZ", "LC_ALL", "EXTRA"}
    assert env["LC_ALL"] == "C"
    assert b"leak" not in proc.run(["env"]).stdout
    assert proc.run(["env"], env={"PATH": os.environ["PATH"], "ONLY": "1"}).stdout.count(b"ONLY=1") == 1


def test_failures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        proc.run([tmp_path / "none"])
    assert (caught.value.code, caught.value.exit_code) == ("E_TOOL_MISSING", 6)
    with pytest.raises(ToolError) as caught:
        proc.run([script(tmp_path, "echo fine >&2; echo 'x.c:3: error: bad \033[31m' >&2; echo more >&2; exit 3")])
    assert caught.value.code == "E_TOOL_FAILED"
    assert caught.value.subject == "tool"
    assert caught.value.text == "exit status 3: 'x.c:3: error: bad \\x1b[31m'"
    with pytest.raises(ToolError, match="ended by signal 9"):
        proc.run([script(tmp_path, "kill -9 $$")])
    assert proc.run([script(tmp_path, "exit 3")], check=False).returncode == 3


def test_a_time_limit_ends_the_whole_group(tmp_path: Path) -> None:
    tool = script(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    start = time.monotonic()
    with pytest.raises(ToolError) as caught:
        proc.run([tool], timeout=0.5)
    assert caught.value.code == "E_TOOL_TIMEOUT"
    assert time.monotonic() - start < 20
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat").read_text().split()[2] if Path(f"/proc/{child}").exists() else "gone"
        if state in ("Z", "gone"):
            return
        time.sleep(0.05)
    pytest.fail(f"{child} still runs: {state}")


def test_echo_is_quoted_for_a_shell(tmp_path: Path) -> None:
    lines: list[str] = []
    proc.set_echo(lines.append)
    try:
        proc.run([script(tmp_path, "exit 0"), "a b", "c'd"])
    finally:
        proc.set_echo(None)
    assert lines == [f"+ {tmp_path}/tool 'a b' 'c'\"'\"'d'"]


def test_passthrough_codes(tmp_path: Path) -> None:
    assert proc.passthrough([script(tmp_path, "exit 5")]) == 5
    assert proc.passthrough([script(tmp_path, "kill -15 $$")]) == 143
    assert proc.passthrough([sys.executable, "-c", "import os; os._exit('CFLAGS' in os.environ)"]) == 0


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "c"))
    assert resources.cache_dir("x", "y") == tmp_path / "c/x/y"
    assert (tmp_path / "c/x/y").is_dir()
    assert (tmp_path / "c/CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "file/sub"))
    with pytest.raises(ResourceError) as caught:
        resources.cache_dir()
    assert (caught.value.code, caught.value.exit_code) == ("E_CACHE_UNWRITABLE", 5)
    monkeypatch.delenv("NANOBUILD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert resources.cache_dir() == tmp_path / "xdg/nano-build"


def test_our_own_folders() -> None:
    assert (resources.kernels_dir() / "hal/hal.h").is_file()
    assert (resources.platforms_dir() / "isa.yaml").is_file()
    assert resources.recipes_dir().is_dir()
