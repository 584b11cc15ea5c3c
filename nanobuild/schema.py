# SPDX-License-Identifier: Apache-2.0
"""Strict YAML: a small, exact subset of the language, and errors that name the line, the key, what was found and what
is allowed.

Files are read as parser events, never as objects: aliases, anchors, tags, merge keys, repeated keys, further documents
and words that some readers take for booleans are refused. A tree of Nodes is then converted to msgspec Structs.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from nanobuild.errors import InputError, quoted

Kind = Literal["RECIPE", "BOARD"]
Scalar = str | int | float | bool | None
T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_DIGITS = 18

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DIGITS = re.compile(r"[-+]?[0-9_]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")
_NULLS = frozenset({"", "~", "null"})
_BOOLS = {"true": True, "false": False}
_BOOL_LIKE = frozenset({"yes", "no", "on", "off", "true", "false", "null"})
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of a file: a mapping, a list or a scalar, and where it stands."""

    value: Mapping[str, Node] | tuple[Node, ...] | Scalar
    file: str
    line: int


def load(path: Path, target: type[T], kind: Kind) -> T:
    """A file as `target` (a msgspec Struct). Raises InputError E_YAML_*, E_<KIND>_MISSING, _KEY or _VALUE."""
    from nanobuild.convert import convert

    return convert(read(path, kind), target, kind)


def read(path: Path, kind: Kind) -> Node:
    """A file's Node tree; `load` without the conversion."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"E_{kind}_MISSING", path, "not a regular file")
        if info.st_size > MAX_BYTES:
            raise InputError("E_YAML_LIMIT", path, f"{info.st_size} bytes found, at most {MAX_BYTES} allowed")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"E_{kind}_MISSING", path, "no such file") from None
    except (OSError, ValueError) as err:
        raise InputError(f"E_{kind}_MISSING", path, f"cannot be read: {getattr(err, 'strerror', None) or err}") from err
    return parse(data, str(path), kind)


def parse(data: bytes, name: str, kind: Kind) -> Node:
    """The Node tree of one document. Raises InputError E_YAML_SYNTAX, _TAG, _ALIAS, _DUP, _LIMIT or E_<KIND>_VALUE."""
    if len(data) > MAX_BYTES:
        raise InputError("E_YAML_LIMIT", name, f"{len(data)} bytes found, at most {MAX_BYTES} allowed")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise InputError("E_YAML_SYNTAX", name, f"byte {err.start} is not UTF-8") from None
    nul = text.find("\0")
    if nul >= 0:
        line = text.count("\n", 0, nul) + 1
        raise InputError("E_YAML_SYNTAX", f"{name}:{line}", "a NUL byte found, printable text allowed")
    composer = _Composer(name, kind)
    try:
        return composer.document(yaml.parse(text, Loader=_Loader))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InputError("E_YAML_SYNTAX", where, quoted(err.problem or err.context or "syntax error", 120)) from None
    except yaml.YAMLError as err:
        raise InputError("E_YAML_SYNTAX", name, quoted(str(err).splitlines()[0], 120)) from None


class _Composer:
    """Builds Nodes from events; depth is checked before going down, so the stack cannot run out."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind

    def error(self, code: str, event: Any, text: str, hint: str = "") -> InputError:
        return InputError(code, f"{self.name}:{event.start_mark.line + 1}", text, hint=hint)

    def document(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if event.version or event.tags:
                    raise self.error("E_YAML_TAG", event, "a %YAML or %TAG directive found, none allowed")
                if root is not None:
                    raise self.error("E_YAML_SYNTAX", event, "a second document found, one allowed")
                root = self.node(next(events), events, 1)
        if root is None:
            raise InputError("E_YAML_SYNTAX", self.name, "the file is empty")
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self.error("E_YAML_ALIAS", event, f"anchor or alias {quoted(event.anchor)} found, none allowed")
        if event.tag is not None:
            raise self.error("E_YAML_TAG", event, f"tag {quoted(event.tag)} found, none allowed")
        if depth > MAX_DEPTH:
            raise self.error("E_YAML_LIMIT", event, f"nesting deeper than {MAX_DEPTH}")
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event), self.name, line)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                items.append(self.node(event, events, depth + 1))
            return Node(tuple(items), self.name, line)
        entries: dict[str, Node] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.key(event)
            if key in entries:
                raise self.error("E_YAML_DUP", event, f"{quoted(key)} given twice")
            entries[key] = self.node(next(events), events, depth + 1)
        return Node(entries, self.name, line)

    def key(self, event: Any) -> str:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self.error("E_YAML_ALIAS", event, f"anchor or alias {quoted(event.anchor)} found, none allowed")
        if event.tag is not None:
            raise self.error("E_YAML_TAG", event, f"tag {quoted(event.tag)} found, none allowed")
        if not isinstance(event, yaml.ScalarEvent):
            raise self.error("E_YAML_SYNTAX", event, "a key that is a list or a mapping found, text allowed")
        key = str(event.value)
        if key == "<<":
            raise self.error("E_YAML_ALIAS", event, "a merge key '<<' found, none allowed")
        if len(key) > 256:
            raise self.error("E_YAML_LIMIT", event, f"a key of {len(key)} characters found, at most 256 allowed")
        return key

    def scalar(self, event: Any) -> Scalar:
        text = str(event.value)
        if event.style in ("'", '"', "|", ">"):
            return text
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if text.lower() in _BOOL_LIKE:
            found = f"{text} found, which some readers take for a boolean"
            raise self.error(f"E_{self.kind}_VALUE", event, found, f"write true, false or '{text}'")
        if _DIGITS.fullmatch(text):
            if len(text) > MAX_DIGITS:
                found = f"an integer of {len(text)} digits found, at most {MAX_DIGITS} allowed"
                raise self.error("E_YAML_LIMIT", event, found)
            if not _INT.fullmatch(text):
                hint = "write the number without leading zeros, or quote it"
                raise self.error(f"E_{self.kind}_VALUE", event, f"{quoted(text)} found", hint)
            return int(text)
        if _FLOAT.fullmatch(text):
            return self.number(event, text)
        return text

    def number(self, event: Any, text: str) -> float:
        value = float(text) if len(text) <= 64 else float("inf")
        if value in (float("inf"), float("-inf")):
            raise self.error("E_YAML_LIMIT", event, f"{quoted(text)} found, a finite number allowed")
        return value
