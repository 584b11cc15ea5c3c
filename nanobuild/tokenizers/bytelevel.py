# SPDX-License-Identifier: Apache-2.0
"""The 256 printable characters in which byte-level vocabularies write bytes, and merges read as ids."""

from __future__ import annotations

from nanobuild.errors import InputError, quoted

_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_REST = [b for b in range(256) if b not in set(_PLAIN)]
CHAR_OF_BYTE = {b: chr(b) for b in _PLAIN} | {b: chr(256 + i) for i, b in enumerate(_REST)}
BYTE_OF_CHAR = {char: b for b, char in CHAR_OF_BYTE.items()}


def raw(piece: str) -> bytes | None:
    """The bytes that a vocabulary entry stands for; None if it holds a character outside the alphabet."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in piece])
    except KeyError:
        return None


def byte_ids(vocab: dict[str, int]) -> list[int]:
    """Id of each single byte, -1 where the vocabulary has none."""
    return [vocab.get(CHAR_OF_BYTE[b], -1) for b in range(256)]


def read_merges(merges: list[tuple[str, str]], vocab: dict[str, int], subject: object) -> list[tuple[int, int, int]]:
    """Merges as ids. Raises InputError E_TOK_MERGE if a part or the result is no token or a pair occurs twice."""
    out: list[tuple[int, int, int]] = []
    for number, (left, right) in enumerate(merges):
        ids = (vocab.get(left, -1), vocab.get(right, -1), vocab.get(left + right, -1))
        if min(ids) < 0:
            missing = (left, right, left + right)[ids.index(-1)]
            raise InputError(
                "E_TOK_MERGE", subject, f"merge {number} needs {quoted(missing)}, which is not in the vocabulary"
            )
        out.append(ids)
    if len({(a, b) for a, b, _ in out}) != len(out):
        raise InputError("E_TOK_MERGE", subject, "a merge is given twice")
    return out


def split_merge(line: object, number: int, subject: object) -> tuple[str, str]:
    """A merge as its two parts, from "a b" or ["a", "b"]. Raises InputError E_TOK_MERGE."""
    parts = line.split(" ") if isinstance(line, str) else line
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
        raise InputError("E_TOK_MERGE", subject, f"merge {number} is {quoted(line)}, expected two tokens")
    return parts[0], parts[1]
