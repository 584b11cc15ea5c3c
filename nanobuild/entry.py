# SPDX-License-Identifier: Apache-2.0
"""The outermost frame of the program: whatever happens inside becomes one error line and one of the agreed exit codes.

It knows neither Typer nor any command, so that `detect` can start without them.
"""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable
from types import FrameType

from nanobuild.errors import InputError, NanoBuildError, ResourceError, UsageError, quoted
from nanobuild.ui import Ui

active = Ui()  # the running command's Ui: configure() fills it in, guard() reports through it

_NO_SPACE = {errno.ENOSPC: "E_DISK_FULL", errno.EDQUOT: "E_DISK_FULL", errno.EFBIG: "E_FILE_LIMIT"}
_LIMITS = {errno.EMFILE: "E_FILES", errno.ENFILE: "E_FILES", errno.ENOMEM: "E_MEMORY", errno.EAGAIN: "E_PROCESSES"}
_DENIED = {errno.EROFS: "E_IO_DENIED", errno.EACCES: "E_IO_DENIED", errno.EPERM: "E_IO_DENIED"}
_ABSENT = {errno.ENOENT: "E_IO_MISSING", errno.ENOTDIR: "E_IO_MISSING"}
_TYPE = {errno.EISDIR: "E_IO_TYPE", errno.ELOOP: "E_IO_TYPE"}


class Terminated(BaseException):
    """SIGTERM, as an exception, so that everything is cleaned up on the way out."""


class Carried(BaseException):
    """An exception on its way through a command-line library that would swallow it."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause = cause


class InternalError(NanoBuildError):
    """A bug: something that no rule expected."""

    exit_code = 70


class InterruptedRunError(NanoBuildError):
    """Ctrl-C."""

    exit_code = 130


class EndedRunError(NanoBuildError):
    """SIGTERM or SIGHUP."""

    exit_code = 143


def configure(*, quiet: bool, verbose: int, json: bool, debug: bool) -> Ui:
    """Sets how the running command talks; from -v on, command lines are echoed."""
    active.verbosity = -1 if quiet else verbose
    active.json, active.debug = json, debug
    if active.verbosity > 0:
        from nanobuild import proc

        proc.set_echo(active.detail)
    return active


def guard(body: Callable[[], int]) -> int:
    """Runs `body` and returns the exit code; prints the error line for everything it raises."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked for it
            signal.signal(number, _terminate)
    try:
        code = body()
        sys.stdout.flush()
        return code
    except BaseException as raised:
        error = raised.cause if isinstance(raised, Carried) else raised
        return _report(error)
    finally:
        active.close()


def named(error: BaseException) -> NanoBuildError | None:
    """The NanoBuildError for any exception; None for those that end the program without a word."""
    if isinstance(error, NanoBuildError):
        return error
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, KeyboardInterrupt):
        return InterruptedRunError("E_INTERRUPTED", "", "interrupted")
    if isinstance(error, Terminated):
        return EndedRunError("E_TERMINATED", "", "told to end")
    if isinstance(error, MemoryError):
        return ResourceError("E_MEMORY", "", "out of memory", hint="free memory or raise the limit of the container")
    if isinstance(error, OSError):
        return _os_error(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the command-line library's own
        return UsageError("E_USAGE", "", str(error.format_message()).replace("\n", " "), hint=_usage_hint(error))
    return InternalError(
        "E_INTERNAL", "", f"{type(error).__name__}: {quoted(error, 200)}", hint="this is a bug; --debug shows where"
    )


def _report(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    known = named(error)
    if active.debug and not isinstance(error, KeyboardInterrupt | Terminated | BrokenPipeError):
        import traceback

        traceback.print_exception(error)
    if known is None:
        _discard_stdout()
        return 0
    try:
        active.error(known)
    except BrokenPipeError:
        _discard_stdout()
    return known.exit_code


def _os_error(error: OSError) -> NanoBuildError:
    number = error.errno or 0
    subject = str(error.filename) if error.filename is not None else ""
    text = error.strerror or str(error) or type(error).__name__
    if number in _NO_SPACE:
        return ResourceError(_NO_SPACE[number], subject, text)
    if number in _LIMITS:
        return ResourceError(_LIMITS[number], subject, text)
    code = (_DENIED | _ABSENT | _TYPE).get(number)
    return InputError(code, subject, text) if code else ResourceError("E_IO", subject, text)


def _usage_hint(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "nano-build"
    return f"{path} --help"


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _discard_stdout() -> None:
    """Points stdout at /dev/null, so that the interpreter's last flush does not complain about the closed pipe."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null, stream.fileno())
    os.close(null)
