# SPDX-License-Identifier: Apache-2.0
"""Reading /proc, /sys and /etc, of this machine or of a copy below another folder, where links cannot lead out of it.

Plain strings and os.path: these modules have to be imported in a few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

MAX_BYTES = 1 << 20


class Files:
    """A file tree. What is missing, unreadable or too strange reads as empty: a description has gaps, not failures."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self.host = self.root == "/"

    def path(self, name: str) -> str | None:
        """The real path of an absolute name inside the tree; None for one that leaves it."""
        if self.host:
            return name
        real = os.path.realpath(os.path.join(self.root, name.lstrip("/")))
        return real if real.startswith(self.root + os.sep) else None

    def data(self, name: str) -> bytes:
        """A regular file's first MiB."""
        real = self.path(name)
        if real is None or not os.path.isfile(real):
            return b""
        try:
            with open(real, "rb") as file:
                return file.read(MAX_BYTES)
        except OSError:
            return b""

    def text(self, name: str) -> str:
        """A file as text, without the white space and NULs around it."""
        return self.data(name).decode("utf-8", "replace").strip("\0 \t\r\n")

    def number(self, name: str) -> int | None:
        """A file that holds one integer."""
        text = self.text(name)
        return int(text) if text.lstrip("-").isdigit() and len(text) < 20 else None

    def exists(self, name: str) -> bool:
        """Whether there is something of that name."""
        real = self.path(name)
        return real is not None and os.path.exists(real)

    def executable(self, name: str) -> bool:
        """Whether there is a program of that name."""
        real = self.path(name)
        return real is not None and os.path.isfile(real) and os.access(real, os.X_OK)

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted."""
        real = self.path(folder)
        try:
            return sorted(os.listdir(real)) if real is not None else []
        except OSError:
            return []

    def fields(self, name: str) -> Iterator[tuple[str, str]]:
        """The `key: value` lines of a file, in order; keys repeat in /proc/cpuinfo."""
        for line in self.text(name).splitlines():
            key, colon, value = line.partition(":")
            if colon:
                yield key.strip(), value.strip()


def cpu_list(text: str) -> list[int]:
    """The numbers of a list like 0-3,8 as the kernel writes it; nonsense gives none."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            start, stop = int(first), int(last or first)
            if start <= stop < 1 << 16:
                numbers.update(range(start, stop + 1))
    return sorted(numbers)


def cpu_text(numbers: list[int]) -> str:
    """The shortest such list: 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
