# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: strict UTF-8, no duplicate keys, no NaN or Infinity, bounded depth and integers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Literal

from nanobuild.errors import InputError, quoted
from nanobuild.rawfile import read_small

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Kind = Literal["syntax", "utf8", "duplicate", "depth", "number"]

MAX_DEPTH = 64
MAX_DIGITS = 40
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """Why a text was refused: `kind` for the caller's choice of code, the message for people."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def parse(data: bytes) -> Json:
    """The value that `data` holds. Raises JsonError, never anything else."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError("utf8", f"invalid UTF-8 at byte {error.start}") from None
    try:
        value: Json = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise JsonError("syntax", f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise JsonError("depth", f"nested deeper than the {MAX_DEPTH} levels allowed") from None
    _check_depth(value)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonError("utf8", "half of a surrogate pair in a string") from None
    return value


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonError("duplicate", f"key {quoted(again)} is given twice")
    return out


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonError("number", f"an integer of {len(digits)} digits, at most {MAX_DIGITS} are allowed")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JsonError("number", f"number {quoted(digits)} is too large")
    return value


def _constant(word: str) -> float:
    raise JsonError("number", f"{word} is not a JSON number")


def _check_depth(value: Json) -> None:
    """Level by level, so that no input can exhaust the stack here."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError("depth", f"nested deeper than the {MAX_DEPTH} levels allowed")
        below: list[dict[str, Json] | list[Json]] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            below += [item for item in values if isinstance(item, (dict, list))]
        level = below


def load_object(path: Path, limit: int, *, missing: str, bad: str) -> dict[str, Json]:
    """The JSON object in a file of at most `limit` bytes. Raises InputError with the codes given, or E_CKPT_READ."""
    data = read_small(path, limit, missing=missing, too_big=bad)
    try:
        value = parse(data)
    except JsonError as error:
        raise InputError(bad, path, str(error)) from None
    if not isinstance(value, dict):
        raise InputError(bad, path, "holds no JSON object")
    return value
