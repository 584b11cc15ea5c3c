# SPDX-License-Identifier: Apache-2.0
"""The one door to other programs: no shell, a stated environment, a time limit, and a named error for each failure.

A child runs in a process group of its own, so that a time-out or Ctrl-C ends everything it started and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobuild.errors import ToolError, quoted

_KEPT = ("PATH", "HOME", "TMPDIR", "TZ")  # all a compiler or emulator may see of the caller's environment
_echo: Callable[[str], None] | None = None
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a finished program left behind; `returncode` is -N for death by signal N."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes
    seconds: float


def set_echo(callback: Callable[[str], None] | None) -> None:
    """Every command line is handed to `callback`, quoted for a shell, before it runs (None: to nobody)."""
    global _echo  # noqa: PLW0603  one switch for the process, set by -v
    _echo = callback


def which(program: str) -> Path | None:
    """The program's full path on PATH, or None."""
    found = shutil.which(program)
    return Path(found) if found else None


def clean_env(**extra: str) -> dict[str, str]:
    """The environment for tools: PATH, HOME, TMPDIR, TZ, the C locale and `extra`; CFLAGS and the like do not leak."""
    return {**{key: os.environ[key] for key in _KEPT if key in os.environ}, "LC_ALL": "C", **extra}


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 900.0,
    stdin: bytes = b"",
    check: bool = True,
) -> Result:
    """Runs a program to its end and captures what it prints.

    `env` None means clean_env(). Raises ToolError E_TOOL_MISSING (cannot be started), E_TOOL_TIMEOUT, and, when
    `check`, E_TOOL_FAILED with the first telling line of its stderr.
    """
    words = tuple(str(word) for word in argv)
    _say(words)
    start = time.monotonic()
    process = _spawn(words, env, cwd, piped=True)
    _running.add(process)
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_group(process)
        raise ToolError("E_TOOL_TIMEOUT", Path(words[0]).name, f"no answer within {timeout:g} s") from None
    except BaseException:
        _end_group(process)
        raise
    finally:
        _running.discard(process)
    result = Result(
        argv=words, returncode=process.returncode, stdout=stdout, stderr=stderr, seconds=time.monotonic() - start
    )
    if check and result.returncode != 0:
        if _echo is not None:
            _echo(stderr.decode("utf-8", "replace").rstrip())
        raise failed(result)
    return result


def passthrough(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Runs a program with our own stdin, stdout and stderr, and returns its exit code (128 + N for a signal).

    Ctrl-C reaches the program through the terminal; we wait for it to finish in its own way. SIGTERM is passed on.
    """
    words = tuple(str(word) for word in argv)
    _say(words)
    process = _spawn(words, env, cwd, piped=False)
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return code if code >= 0 else 128 - code


def end_all() -> None:
    """Ends every program that run() is waiting for, in whatever thread; those calls then fail."""
    for process in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def failed(result: Result) -> ToolError:
    """The error for a program that ended badly: its status and the first line of stderr that names an error."""
    lines = [line.strip() for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines[-1:]
    status = f"exit status {result.returncode}" if result.returncode >= 0 else f"ended by signal {-result.returncode}"
    text = f"{status}: {quoted(telling[0], 300)}" if telling else status
    return ToolError("E_TOOL_FAILED", Path(result.argv[0]).name, text, hint="run again with -v to see all it printed")


def _say(words: Sequence[str]) -> None:
    if _echo is not None:
        _echo("+ " + shlex.join(words))


def _spawn(
    words: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, *, piped: bool
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE if piped else None
    try:
        return subprocess.Popen(
            list(words),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(clean_env() if env is None else env),
            cwd=cwd,
            start_new_session=piped,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as err:
        raise ToolError("E_TOOL_MISSING", words[0], err.strerror or "cannot be started") from err
    except OSError as err:
        raise ToolError("E_TOOL_FAILED", words[0], f"cannot be started: {err.strerror}") from err


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the group that the child leads; it was started in a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
