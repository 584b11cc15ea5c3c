# SPDX-License-Identifier: Apache-2.0
"""Every failure a user can meet, with its exit code.

One line on stderr: ``nano-build: error[E_CODE]: FILE: what, found, allowed`` and at most one hint.
Exit codes: 2 usage, 3 input refused, 4 integrity, 5 resource, 6 tool or platform, 7 busy.
"""

from __future__ import annotations


def quoted(text: object, limit: int = 60) -> str:
    """Untrusted text made safe to print: ASCII-escaped, quoted, at most `limit` characters."""
    raw = str(text)
    cut = raw[:limit] + ("..." if len(raw) > limit else "")
    return "'" + cut.encode("ascii", "backslashreplace").decode().translate(_CONTROL) + "'"


_CONTROL = {i: f"\\x{i:02x}" for i in [*range(32), 127]}


class NanoBuildError(Exception):
    """A failure with a stable code, a file (or other subject), a text and at most one hint."""

    exit_code = 3

    def __init__(self, code: str, subject: object, text: str, *, hint: str = "") -> None:
        super().__init__(f"{subject}: {text}" if str(subject) else text)
        self.code = code
        self.subject = str(subject)
        self.text = text
        self.hint = hint


class UsageError(NanoBuildError):
    """The command line is wrong."""

    exit_code = 2


class InputError(NanoBuildError):
    """A checkpoint, recipe, platform file, model file or prompt is refused."""

    exit_code = 3


class IntegrityError(NanoBuildError):
    """A checksum or a size does not match."""

    exit_code = 4


class ResourceError(NanoBuildError):
    """Disk, memory or a limit."""

    exit_code = 5


class ToolError(NanoBuildError):
    """A compiler, emulator, package or CPU feature is missing or fails."""

    exit_code = 6


class BusyError(NanoBuildError):
    """Another run holds the output."""

    exit_code = 7


BY_EXIT_CODE: dict[int, type[NanoBuildError]] = {
    kind.exit_code: kind for kind in (UsageError, InputError, IntegrityError, ResourceError, ToolError, BusyError)
}
