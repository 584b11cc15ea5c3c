# SPDX-License-Identifier: Apache-2.0
"""The outermost frame: error lines, exit codes, --json, global options on both sides, signals and closed pipes."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanobuild import __version__, cli, entry
from nanobuild.errors import BusyError, InputError, IntegrityError, ToolError, UsageError
from nanobuild.ui import Ui

ROOT = Path(__file__).resolve().parents[2]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own."""
    full = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    argv = [sys.executable, "-m", "nanobuild", *args]
    return subprocess.run(argv, capture_output=True, text=True, env=full, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ui]:
    """A Ui of our own in place of the process's, and the signal handlers put back."""
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ui = Ui()
    monkeypatch.setattr(entry, "active", ui)
    yield ui
    for number, handler in old.items():
        signal.signal(number, handler)


def test_version_and_help() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nano-build {__version__}\n", "")
    assert json.loads(run("--json", "--version").stdout) == {"schema": 1, "version": __version__}
    done = run("--help")
    assert done.returncode == 0
    for name in ("detect", "doctor", "targets"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    ("args", "text", "hint"),
    [
        ([], "a command is missing", "nano-build --help"),
        (["nonsense"], "No such command 'nonsense'", "nano-build --help"),
        (["targets", "--nonsense"], "--nonsense", "nano-build targets --help"),
        (["targets", "a", "b"], "Got unexpected extra argument", "nano-build targets --help"),
        (["detect", "--sysroot"], "requires an argument", "nano-build --help"),
    ],
)
def test_usage_errors(args: list[str], text: str, hint: str) -> None:
    done = run(*args)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 2)
    assert lines[0].startswith("nano-build: error[E_USAGE]: ")
    assert text in lines[0]
    assert lines[1] == f"nano-build: hint: {hint}"


def test_usage_errors_in_json() -> None:
    done = run("targets", "--json", "--nonsense")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["exit_code"]) == ("E_USAGE", 2)
    assert done.stderr.startswith("nano-build: error[E_USAGE]: ")


def test_global_options_on_both_sides() -> None:
    before, after = run("--json", "targets", "rpi5"), run("targets", "rpi5", "--json")
    assert before.stdout == after.stdout
    assert json.loads(after.stdout)["targets"][0]["name"] == "rpi5"
    assert json.loads(after.stdout)["schema"] == 1
    assert run("-q", "-v", "targets", "-v", "--debug").returncode == 0


def test_targets() -> None:
    done = run("targets")
    assert done.stdout.splitlines()[0].split() == ["target", "arch", "levels", "builds", "what"]
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("rpi5"))
    assert row[:6] == ["rpi5", "arm64", "scalar,", "neon,", "dotprod", "yes"]
    answer = json.loads(run("targets", "--json").stdout)
    assert {target["name"] for target in answer["targets"]} >= {"rpi4", "generic-arm64"}
    assert "extends" not in run("targets", "rk3588").stdout
    done = run("targets", "rpi44")
    assert (done.returncode, done.stderr) == (
        2,
        "nano-build: error[E_TARGET]: unknown platform 'rpi44'\nnano-build: hint: did you mean 'rpi4'?\n",
    )


def test_a_bad_board_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("version: 1\nname: b\narch: x86_64\ncores: -1\n")
    done = run("targets", str(path))
    assert done.returncode == 3
    assert done.stderr == (
        f"nano-build: error[E_BOARD_VALUE]: {path}:4: cores: found -1, allowed: an integer from 1 to 1024\n"
    )


def raising(error: BaseException) -> Any:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("E_X", "f", "t"), 3, "error[E_X]: f: t"),
        (UsageError("E_X", "", "t"), 2, "error[E_X]: t"),
        (IntegrityError("E_X", "f", "t"), 4, "error[E_X]: f: t"),
        (ToolError("E_X", "f", "t"), 6, "error[E_X]: f: t"),
        (BusyError("E_X", "f", "t"), 7, "error[E_X]: f: t"),
        (entry.Carried(InputError("E_X", "f", "t")), 3, "error[E_X]: f: t"),
        (KeyboardInterrupt(), 130, "error[E_INTERRUPTED]: interrupted"),
        (entry.Terminated(), 143, "error[E_TERMINATED]: told to end"),
        (MemoryError(), 5, "error[E_MEMORY]: out of memory"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/f"),
            5,
            "error[E_DISK_FULL]: /x/f: No space left on device",
        ),
        (OSError(errno.EDQUOT, "Quota"), 5, "error[E_DISK_FULL]: Quota"),
        (OSError(errno.EMFILE, "Too many"), 5, "error[E_FILES]: Too many"),
        (FileNotFoundError(errno.ENOENT, "No such file", "g"), 3, "error[E_IO_MISSING]: g: No such file"),
        (PermissionError(errno.EACCES, "Permission denied", "g"), 3, "error[E_IO_DENIED]: g: Permission denied"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "g"), 3, "error[E_IO_TYPE]: g: Is a directory"),
        (OSError(errno.EIO, "Input/output error", "g"), 5, "error[E_IO]: g: Input/output error"),
        (ZeroDivisionError("a\nb\x1b"), 70, "error[E_INTERNAL]: ZeroDivisionError: 'a\\x0ab\\x1b'"),
    ],
)
def test_every_exception_has_a_code(
    fresh: Ui, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert entry.guard(raising(error)) == code
    seen = capsys.readouterr()
    assert seen.err.splitlines()[0] == f"nano-build: {line}"
    assert "Traceback" not in seen.err
    assert seen.out == ""


def test_debug_shows_where(fresh: Ui, capsys: pytest.CaptureFixture[str]) -> None:
    fresh.debug = True
    assert entry.guard(raising(ZeroDivisionError("x"))) == 70
    seen = capsys.readouterr().err
    assert "Traceback" in seen
    assert "\nnano-build: error[E_INTERNAL]: " in seen


def test_json_error_object(fresh: Ui, capsys: pytest.CaptureFixture[str]) -> None:
    fresh.json = True
    assert entry.guard(raising(InputError("E_X", "f", "found 1", hint="h"))) == 3
    expected = {"code": "E_X", "subject": "f", "text": "found 1", "hint": "h", "exit_code": 3}
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "error": expected}


def test_error_lines_are_short_ascii_and_one_line(fresh: Ui, capsys: pytest.CaptureFixture[str]) -> None:
    fresh.error(InputError("E_X", "f\n\x1b", "ü\n" + "x" * 10_000, hint="y\n" + "z" * 10_000))
    seen = capsys.readouterr().err
    assert len(seen.encode()) <= 4096
    assert seen.isascii()
    assert len(seen.splitlines()) == 2
    assert "\x1b" not in seen
    assert "\\xfc" in seen


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    for verbosity, expected in ((-1, ["warning"]), (0, ["note", "warning"]), (1, ["note", "detail", "warning"])):
        ui = Ui(verbosity=verbosity)
        ui.note("note")
        ui.detail("detail")
        ui.warn("warning")
        assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == expected


@pytest.mark.parametrize(("verbosity", "said"), [(0, "linking\n"), (1, "packing\nlinking\n")])
def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str], verbosity: int, said: str) -> None:
    ui = Ui(verbosity=verbosity)
    for done in range(5):
        ui.progress("packing", done, 5)
    ui.progress("linking")
    ui.close()
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", said)
    Ui(verbosity=-1).progress("packing", 1, 2)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_bars_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    ui = Ui()
    ui.progress("packing", 1, 2)
    ui.progress("packing", 2, 2)
    ui.table(("name", "bytes"), [("[red]a[/red]\x1b[31m", 5)], right=(1,))
    ui.close()
    assert "packing" in err.getvalue()
    assert "[red]a[/red]\\x1b[31m" in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()


def test_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    Ui().table(("name", "bytes"), [("a", 5), ("bcdef", 1234)], right=(1,))
    assert capsys.readouterr().out == "name   bytes\na          5\nbcdef   1234\n"
    Ui().table(("", ""), [])
    Ui(json=True).table(("a",), [("b",)])
    assert capsys.readouterr().out == ""


def test_result_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    ui = Ui(json=True)
    ui.out("not seen")
    ui.result({"a": "\u00e4"}, lambda: pytest.fail("shown"))
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "a": "\u00e4"}


def test_commands_get_options_arguments_and_codes(fresh: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))

    @cli.command("probe")
    def probe(ui: Ui, ctx: int, flag: bool = False) -> int:
        """A command with a parameter called ctx."""
        seen.append((ui.verbosity, ui.json, ctx, flag))
        return 6

    assert cli.run(["-v", "probe", "7", "--flag", "-v", "--json"]) == 6
    assert seen == [(2, True, 7, True)]

    @cli.command("broken")
    def broken(ui: Ui) -> None:
        raise BrokenPipeError(errno.EPIPE, "x")

    with pytest.raises(entry.Carried):
        cli.run(["broken"])


def test_a_closed_pipe_is_quiet() -> None:
    argv = f"{sys.executable} -m nanobuild targets --json | true; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_signals_end_the_run_with_their_codes(number: signal.Signals, code: int) -> None:
    program = (
        "import os, sys, time\n"
        "from nanobuild import entry\n"
        "def body():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(30)\n"
        "sys.exit(entry.guard(body))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert len(err.splitlines()) == 1
    assert err.startswith("nano-build: error[E_")


def test_nohup_is_respected() -> None:
    program = (
        "import os, signal, sys\n"
        "from nanobuild import entry\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "sys.exit(entry.guard(lambda: os.kill(os.getpid(), signal.SIGHUP) or 0))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 0
