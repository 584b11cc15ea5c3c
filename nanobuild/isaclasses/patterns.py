# SPDX-License-Identifier: Apache-2.0
"""Tables of bit patterns, and all words of a program matched against one at once.

A row of data/instructions_*.txt is `feature name bits...`: highest bit first, 0, 1 or '.' for any, blanks for the eye;
what is left out at the end is any. The first fitting row counts; feature '!' marks what the manual leaves unallocated.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from nanobuild import resources
from nanobuild.isaclasses import UNKNOWN


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row: words with `word & mask == value` are the instruction `name`."""

    mask: int
    value: int
    needs: tuple[str, ...]
    name: str


@functools.cache
def load(name: str, width: int) -> tuple[Row, ...]:
    """The rows of a file in data/, for words of `width` bits."""
    return parse((resources.package_dir() / "data" / name).read_text(encoding="ascii"), width)


def parse(text: str, width: int) -> tuple[Row, ...]:
    """The rows of a table, in its order; '#' starts a comment. Raises ValueError for a row that is none."""
    rows = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        feature, name, bits = words[0], "".join(words[1:2]), "".join(words[2:])
        if len(bits) > width or not bits or set(bits) - set("01."):
            raise ValueError(f"bad row: {line}")
        bits = bits.ljust(width, ".")
        mask = int(bits.replace("0", "1").replace(".", "0"), 2)
        needs = UNKNOWN if feature == "!" else (feature,)
        rows.append(Row(mask=mask, value=int(bits.replace(".", "0"), 2), needs=needs, name=name))
    return tuple(rows)


def match(rows: tuple[Row, ...], words: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """The index of the first row that fits each word; -1: none does."""
    kinds, back = np.unique(words, return_inverse=True)
    found = np.full(kinds.size, -1, np.intp)
    todo = np.arange(kinds.size)
    for number, row in enumerate(rows):
        left = kinds[todo]
        fits = (left & np.uint32(row.mask)) == np.uint32(row.value)
        found[todo[fits]] = number
        todo = todo[~fits]
    return found[back.reshape(-1)]


def needs(rows: tuple[Row, ...], words: npt.NDArray[np.uint32]) -> list[tuple[str, ...]]:
    """The features of each word; UNKNOWN where no row fits."""
    all_needs = [row.needs for row in rows] + [UNKNOWN]
    return [all_needs[number] for number in match(rows, words).tolist()]


def text(rows: tuple[Row, ...], word: int) -> str:
    """The name of a word's row, and the word."""
    row = next((row for row in rows if word & row.mask == row.value), None)
    return f"the word {word:#x}" if row is None or row.needs == UNKNOWN else f"{row.name} ({word:#x})"
