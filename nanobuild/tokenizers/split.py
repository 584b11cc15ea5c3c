# SPDX-License-Identifier: Apache-2.0
"""The splitting stages, by hand: no regular-expression engine, so that Python and C can be the same program.

Each stage maps a text to the ends of its parts. kernels/runtime/split.c is the twin of this file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from nanobuild.tokenizers.record import MARK as SPACE_MARK
from nanobuild.tokenizers.record import Stage
from nanobuild.tokenizers.unicode import CLASS, DIGIT, LETTER, MARK, NUMBER, SPACE

_TWO = ("re", "ve", "ll")


def _run(text: str, at: int, bits: int, wanted: bool) -> int:
    """End of the run of characters that have (or do not have) one of the class bits."""
    size = len(text)
    while at < size and bool(CLASS[text[at]] & bits) == wanted:
        at += 1
    return at


def _spaces(text: str, at: int) -> int:
    """End of the part that starts with the whitespace at `at`: the last blank goes to the next word."""
    end = _run(text, at, SPACE, True)
    return end if end == len(text) or end - at == 1 else end - 1


def _contraction(text: str, at: int, fold: bool, long_s: bool) -> int:
    """Length of the English contraction at the apostrophe, 0 if there is none."""
    tail = text[at + 1 : at + 3]
    if fold and tail.isascii():
        tail = tail.lower()
    if tail[:1] and (tail[0] in "stmd" or (fold and tail[0] in "STMD") or (long_s and tail[0] == "\u017f")):
        return 2
    return 3 if tail in _TWO else 0


def _gpt2(text: str, at: int) -> int:
    char = text[at]
    if char == "'" and (length := _contraction(text, at, False, False)):
        return at + length
    body = at + 1 if char == " " and at + 1 < len(text) else at
    kind = CLASS[text[body]]
    if kind & LETTER:
        return _run(text, body, LETTER, True)
    if kind & NUMBER:
        return _run(text, body, NUMBER, True)
    if not kind & SPACE:
        return _run(text, body, LETTER | NUMBER | SPACE, False)
    return _spaces(text, at)


def _words(text: str, at: int, arg: int) -> int:
    digits, letter = arg & 15, LETTER | MARK if arg & 16 else LETTER
    char, size = text[at], len(text)
    kind = CLASS[char]
    if char == "'" and (length := _contraction(text, at, True, bool(arg & 32))):
        return at + length
    if kind & letter:
        return _run(text, at, letter, True)
    if char not in "\r\n" and not kind & (LETTER | NUMBER) and at + 1 < size and CLASS[text[at + 1]] & letter:
        return _run(text, at + 1, letter, True)
    if kind & NUMBER:
        end = _run(text, at, NUMBER, True)
        return min(end, at + digits) if digits else end
    body = at + 1 if char == " " and at + 1 < size else at
    if not CLASS[text[body]] & (SPACE | letter | NUMBER):
        end = _run(text, body, SPACE | letter | NUMBER, False)
        while end < size and text[end] in "\r\n":
            end += 1
        return end
    end = _run(text, at, SPACE, True)
    for newline in range(end - 1, at - 1, -1):
        if text[newline] in "\r\n":
            return newline + 1
    return _spaces(text, at)


def _spaced(text: str, at: int, joins: str) -> int:
    size = len(text)
    while at < size:
        while at < size and text[at] == SPACE_MARK:
            at += 1
        found = text.find(SPACE_MARK, at)
        at = size if found < 0 else found
        if text[at - 1] not in joins:
            break
    return at


def _digits(text: str, at: int, arg: int) -> int:
    if CLASS[text[at]] & DIGIT:
        return at + 1 if arg else _run(text, at, DIGIT, True)
    return _run(text, at, DIGIT, False)


def _literal(text: str, literal: str, arg: int) -> list[str]:
    out: list[str] = []
    at = 0
    glue = False  # the part before may still take a literal at its end
    while at < len(text):
        found = text.find(literal, at)
        stop = len(text) if found < 0 else found
        if stop > at:
            out.append(text[at:stop])
            glue = True
        if found < 0:
            break
        if arg == 1 and glue:
            out[-1] += literal
        else:
            out.append(literal)
        glue = False
        at = stop + len(literal)
    if arg != 2:
        return out
    joined: list[str] = []
    for part in out:
        if joined and joined[-1] == literal and part != literal:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _cut(text: str, step: Callable[[str, int], int]) -> list[str]:
    out, at = [], 0
    while at < len(text):
        end = step(text, at)
        out.append(text[at:end])
        at = end
    return out


def split(text: str, stages: tuple[tuple[Stage, int], ...], literal: str) -> list[str]:
    """The parts of `text`, in order; together they are the text."""
    parts = [text] if text else []
    for stage, arg in stages:
        if stage == Stage.LITERAL:
            parts = [new for part in parts for new in _literal(part, literal, arg)]
        elif stage == Stage.GPT2:
            parts = [new for part in parts for new in _cut(part, _gpt2)]
        elif stage == Stage.SPACED:
            parts = [new for part in parts for new in _cut(part, functools.partial(_spaced, joins=literal))]
        else:
            step = functools.partial(_digits if stage == Stage.DIGITS else _words, arg=arg)
            parts = [new for part in parts for new in _cut(part, step)]
    return parts
