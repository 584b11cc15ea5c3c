# SPDX-License-Identifier: Apache-2.0
"""All that people see. Results go to stdout, everything else to stderr; with --json stdout holds exactly one object.

Rich is imported only to draw a table or a progress bar on a terminal; pipes get plain lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from nanobuild.errors import NanoBuildError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

SCHEMA = 1
MAX_ERROR_BYTES = 4096
_CONTROL = {i: f"\\x{i:02x}" for i in [*range(9), *range(11, 32), *range(127, 160)]}


class Ui:
    """One command's view of the terminal: how much to say (verbosity -1, 0, 1, ...) and in which form."""

    def __init__(self, *, verbosity: int = 0, json: bool = False, debug: bool = False) -> None:
        self.verbosity, self.json, self.debug = verbosity, json, debug
        self._bars: Bars | None = None
        self._tasks: dict[str, Any] = {}
        self._phase, self._last = "", 0.0

    # results: stdout

    def result(self, data: Mapping[str, object], show: Callable[[], None]) -> None:
        """The command's answer: with --json one object {"schema": 1, **data}, otherwise what `show` prints."""
        self.close()
        if self.json:
            _write(sys.stdout, json.dumps({"schema": SCHEMA, **data}, allow_nan=False) + "\n")
        else:
            show()

    def out(self, text: str) -> None:
        """A line of the answer; nothing with --json."""
        if not self.json:
            _write(sys.stdout, clean(text) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
        """Part of the answer, in columns; those numbered in `right` are aligned to the right."""
        if self.json:
            return
        head = [columns] if any(columns) else []
        cells = [[clean(str(cell)).replace("\n", " ") for cell in row] for row in rows]
        if sys.stdout.isatty():
            _rich_table(columns, cells, right)
        else:
            _plain_table([*head, *cells], right)

    # everything else: stderr

    def note(self, text: str) -> None:
        """A line about what is going on; silent with -q."""
        if self.verbosity >= 0:
            self._stderr(text)

    def detail(self, text: str) -> None:
        """A line for -v."""
        if self.verbosity > 0:
            self._stderr(text)

    def warn(self, text: str) -> None:
        """A line that -q does not silence."""
        self._stderr(f"nano-build: warning: {text}")

    def error(self, error: NanoBuildError) -> None:
        """The error line and at most one hint line, at most 4 KiB; with --json also an object on stdout."""
        self.close()
        subject = f"{error.subject}: " if error.subject else ""
        line = f"nano-build: error[{error.code}]: {subject}{error.text}".replace("\n", " ")
        hint = f"nano-build: hint: {error.hint}".replace("\n", " ")[:1000] if error.hint else ""
        room = MAX_ERROR_BYTES - len(hint) - 8
        _write(sys.stderr, _ascii(line)[:room] + "\n" + (_ascii(hint) + "\n" if hint else ""))
        if self.json:
            told = {
                "code": error.code,
                "subject": error.subject,
                "text": error.text[:MAX_ERROR_BYTES],
                "hint": error.hint,
            }
            data = {"schema": SCHEMA, "error": {**told, "exit_code": error.exit_code}}
            _write(sys.stdout, json.dumps(data) + "\n")

    def progress(self, phase: str, done: int = 0, total: int = 0, /) -> None:
        """A nanobuild.progress.Progress: a bar on a terminal. Elsewhere a phase that counts is one line with -v, so
        that an error stays the first line of a pipe; a phase without a count is an announcement, always said."""
        if self.verbosity < 0:
            return
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and total > 0:
            self._bar(phase, done, total)
        elif phase != self._phase and (total == 0 or self.verbosity > 0):
            self._phase = phase
            self._stderr(phase)

    def close(self) -> None:
        """Ends a progress bar, if there is one."""
        if self._bars is not None:
            self._bars.stop()
            self._bars, self._tasks = None, {}

    def _bar(self, phase: str, done: int, total: int) -> None:
        if phase in self._tasks and done < total and time.monotonic() - self._last < 0.05:
            return
        self._last = time.monotonic()
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            name, percent = TextColumn("{task.description}", markup=False), TextColumn("{task.percentage:>3.0f}%")
            parts = (name, BarColumn(), percent, TimeRemainingColumn())
            self._bars = Progress(*parts, console=Console(stderr=True), transient=True)
            self._bars.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(clean(phase), total=total)
        self._bars.update(self._tasks[phase], completed=done, total=total)

    def _stderr(self, text: str) -> None:
        self.close()
        _write(sys.stderr, clean(text) + "\n")


def clean(text: str) -> str:
    """`text` without control characters other than newline and tab: nothing printed may drive the terminal."""
    return text.translate(_CONTROL)


def _ascii(text: str) -> str:
    return clean(text).encode("ascii", "backslashreplace").decode("ascii")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(_ascii(text))
    stream.flush()


def _plain_table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        _write(sys.stdout, "  ".join(padded).rstrip() + "\n")


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(table)
