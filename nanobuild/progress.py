# SPDX-License-Identifier: Apache-2.0
"""How long work tells the caller where it is, without knowing what a terminal is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with a phase, the units done so far and the units in all (0: unknown, the text alone is shown)."""

    def __call__(self, phase: str, done: int = 0, total: int = 0, /) -> None: ...


def silent(_phase: str, _done: int = 0, _total: int = 0, /) -> None:
    """A Progress that says nothing."""
