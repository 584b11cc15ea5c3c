# SPDX-License-Identifier: Apache-2.0
"""The small part of YAML that our own data files use, read in a millisecond for `detect`.

Mappings by indentation, scalars, and lists written as JSON. Every file that ships must mean the same here and in
schema.py, which is the real reader: a test compares them.
"""

from __future__ import annotations

import json
from typing import Union

Plain = Union[str, int, list[str], dict[str, "Plain"]]  # noqa: UP007  recursive


def parse(text: str) -> dict[str, Plain]:
    """The mapping in `text`. Raises ValueError for anything outside of the subset."""
    root: dict[str, Plain] = {}
    stack: list[tuple[int, dict[str, Plain]]] = [(0, root)]
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split(" #")[0].rstrip()
        body = line.lstrip(" ")
        if not body or body.startswith("#"):
            continue
        indent = len(line) - len(body)
        key, colon, value = body.partition(":")
        while stack and stack[-1][0] > indent:
            stack.pop()
        if not colon or not stack or stack[-1][0] != indent or key.strip() != key or "\t" in line:
            raise ValueError(f"line {number}")
        value = value.strip()
        if value:
            stack[-1][1][key] = _scalar(value)
        else:
            child: dict[str, Plain] = {}
            stack[-1][1][key] = child
            stack.append((indent + 2, child))
    return root


def texts(value: Plain | None) -> list[str]:
    """A list's items; nothing for anything else."""
    return value if isinstance(value, list) else []


def mapping(value: Plain | None) -> dict[str, Plain]:
    """A mapping's entries; nothing for anything else."""
    return value if isinstance(value, dict) else {}


def _scalar(text: str) -> Plain:
    if text[0] in '["':
        value = json.loads(text)
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            return value
        raise ValueError(text)
    if text[0] in "{}'&*!|>%@`":
        raise ValueError(text)
    return int(text) if text.isdigit() else text
