# SPDX-License-Identifier: Apache-2.0
"""Character classes and canonical composition, from the same tables as the C runtime.

Python's own tables change with its version, and two runs of a build must not differ by that. Bytes that are no UTF-8
appear in strings as lone surrogates (error handler "surrogateescape"): they belong to no class and never compose.
"""

from __future__ import annotations

import bisect
import functools
import struct
import zlib
from base64 import b85decode

from nanobuild.tokenizers import unidata

LETTER, NUMBER, MARK, SPACE, DIGIT, WORD = 1, 2, 4, 8, 16, 32


def to_text(data: bytes) -> str:
    """Bytes as a string that gives the same bytes back."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The bytes of a string; lone surrogates that stand for no byte are written as three bytes each."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


@functools.cache
def _tables() -> dict[str, list[int]]:
    raw = zlib.decompress(b85decode(unidata.DATA))
    flat: list[int] = []
    value = 0
    for delta in struct.unpack(f"<{len(raw) // 4}I", raw):
        value = (value + delta) & 0xFFFFFFFF
        flat.append(value)
    out: dict[str, list[int]] = {}
    at = 0
    for name in unidata.NAMES:
        out[name] = flat[at + 1 : at + 1 + flat[at]]
        at += 1 + flat[at]
    return out


def _run(name: str, char: str) -> int:
    table = _tables()[name]
    return table[bisect.bisect_right(table, ord(char) << 8 | 255) - 1] & 255


class _Classes(dict[str, int]):
    def __missing__(self, char: str) -> int:
        value = self[char] = _run("classes", char)
        return value


class _Combining(dict[str, int]):
    def __missing__(self, char: str) -> int:
        value = self[char] = _run("combining", char)
        return value


CLASS = _Classes()  # character -> class bits
_COMBINING = _Combining()


@functools.cache
def _decompositions() -> dict[str, str]:
    tables = _tables()
    text = "".join(map(chr, tables["parts"]))
    starts = tables["starts"]
    return {chr(c): text[starts[i] : starts[i + 1]] for i, c in enumerate(tables["decomposed"])}


@functools.cache
def _compositions() -> dict[tuple[str, str], str]:
    flat = [chr(c) for c in _tables()["compose"]]
    return dict(zip(zip(flat[::3], flat[1::3], strict=True), flat[2::3], strict=True))


def _decompose(char: str) -> str:
    code = ord(char) - 0xAC00
    if 0 <= code < 11172:
        head = chr(0x1100 + code // 588) + chr(0x1161 + code % 588 // 28)
        return head + chr(0x11A7 + code % 28) if code % 28 else head
    return _decompositions().get(char, char)


def _compose(a: str, b: str) -> str | None:
    first, second = ord(a), ord(b)
    if 0x1100 <= first < 0x1113 and 0x1161 <= second < 0x1176:
        return chr(0xAC00 + ((first - 0x1100) * 21 + second - 0x1161) * 28)
    if 0xAC00 <= first < 0xD7A4 and (first - 0xAC00) % 28 == 0 and 0x11A7 < second < 0x11C3:
        return chr(first + second - 0x11A7)
    return _compositions().get((a, b))


def nfc(text: str) -> str:
    """Canonical composition."""
    if not text or max(text) < "\u0300":
        return text
    chars = list("".join(map(_decompose, text)))
    start = 0
    while start < len(chars):
        stop = start
        while stop < len(chars) and _COMBINING[chars[stop]]:
            stop += 1
        if stop - start > 1:
            chars[start:stop] = sorted(chars[start:stop], key=_COMBINING.__getitem__)
        start = stop + 1
    out: list[str] = []
    starter, last = -1, 0
    for char in chars:
        combining = _COMBINING[char]
        if starter >= 0 and (len(out) == starter + 1 or last < combining):
            both = _compose(out[starter], char)
            if both is not None:
                out[starter] = both
                continue
        if combining == 0:
            starter = len(out)
        last = combining
        out.append(char)
    return "".join(out)
