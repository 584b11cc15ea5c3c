# SPDX-License-Identifier: Apache-2.0
"""Node trees to msgspec Structs: every refusal names file, line and key, what was found and what is allowed."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from nanobuild.errors import InputError, quoted

if TYPE_CHECKING:
    from nanobuild.schema import Kind, Node

T = TypeVar("T")


def convert(node: Node, target: type[T], kind: Kind) -> T:
    """`node` as a `target`: a Struct (unknown and missing keys are refused), list, tuple, dict, Literal or scalar.

    Raises InputError E_<kind>_KEY or E_<kind>_VALUE. A ValueError from a Struct's __post_init__ becomes E_<kind>_VALUE.
    """
    return cast(T, _Converter(kind).value(node, target, ""))


def allowed(target: Any) -> str:
    """What a scalar type allows, in words: the second half of an error line."""
    origin, args = get_origin(target), get_args(target)
    if origin is Literal:
        return ", ".join(str(choice) for choice in args)
    if origin is Annotated:
        meta = next((m for m in args[1:] if isinstance(m, msgspec.Meta)), msgspec.Meta())
        if meta.description:
            return meta.description
        low, high = meta.ge if meta.ge is not None else meta.gt, meta.le if meta.le is not None else meta.lt
        span = f" from {low} to {high}" if None not in (low, high) else f" of {low} or more" if low is not None else ""
        pattern = f" that matches {meta.pattern}" if meta.pattern else ""
        return allowed(args[0]) + span + pattern
    if origin in (Union, types.UnionType):
        return " or ".join(allowed(member) for member in args)
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(target, "a list" if _is_list(target) else "a mapping")


class _Converter:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def wrong(self, node: Node, path: str, target: Any) -> InputError:
        return self.refuse(node, path, f"found {_shown(node)}, allowed: {allowed(target)}")

    def refuse(self, node: Node, path: str, text: str, what: str = "VALUE", hint: str = "") -> InputError:
        text = f"{quoted(path)[1:-1]}: {text}" if path else text
        return InputError(f"E_{self.kind}_{what}", f"{node.file}:{node.line}", text, hint=hint)

    def value(self, node: Node, target: Any, path: str) -> object:
        origin, args = get_origin(target), get_args(target)
        if origin in (Union, types.UnionType):
            return self.union(node, target, path)
        if origin is Annotated and _is_container(args[0]):
            made = self.value(node, args[0], path)
            try:
                msgspec.convert(made, target)
            except msgspec.ValidationError:
                raise self.wrong(node, path, target) from None
            return made
        if isinstance(target, type) and issubclass(target, msgspec.Struct):
            return self.struct(node, target, path)
        if _is_list(target):
            if not isinstance(node.value, tuple):
                raise self.wrong(node, path, target)
            items = [self.value(item, args[0], f"{path}[{i}]") for i, item in enumerate(node.value)]
            return tuple(items) if origin is tuple else items
        if origin is dict:
            entries = self.mapping(node, target, path)
            return {key: self.value(item, args[1], _join(path, key)) for key, item in entries.items()}
        return self.scalar(node, target, path)

    def union(self, node: Node, target: Any, path: str) -> object:
        members = [member for member in get_args(target) if member is not type(None)]
        if node.value is None and len(members) < len(get_args(target)):
            return None
        shaped: list[Any] = []
        for member in members:
            base = get_args(member)[0] if get_origin(member) is Annotated else member
            if isinstance(node.value, tuple):
                fits = _is_list(base)
            elif isinstance(node.value, Mapping):
                fits = _is_container(base) and not _is_list(base)
            else:
                fits = not _is_container(base)
            if fits:
                shaped.append(member)
        if not shaped:
            raise self.wrong(node, path, target)
        if len(shaped) == 1:
            return self.value(node, shaped[0], path)
        return self.scalar(node, Union[tuple(shaped)], path)  # noqa: UP007  made of a computed tuple

    def mapping(self, node: Node, target: Any, path: str) -> Mapping[str, Node]:
        if not isinstance(node.value, Mapping):
            raise self.wrong(node, path, target)
        return node.value

    def struct(self, node: Node, target: type[msgspec.Struct], path: str) -> msgspec.Struct:
        entries = self.mapping(node, target, path)
        fields = {field.encode_name: field for field in msgspec.structs.fields(target)}
        for key, item in entries.items():
            if key not in fields:
                text = f"unknown key {quoted(key)} found, allowed: {', '.join(fields)}"
                raise self.refuse(item, path, text, "KEY", did_you_mean(key, list(fields)))
        missing = [name for name, field in fields.items() if field.required and name not in entries]
        if missing:
            raise self.refuse(node, path, f"key {missing[0]!r} is missing", "KEY")
        made = {fields[k].name: self.value(item, fields[k].type, _join(path, k)) for k, item in entries.items()}
        try:
            return target(**made)
        except ValueError as err:
            raise self.refuse(node, path, str(err)) from None

    def scalar(self, node: Node, target: Any, path: str) -> object:
        if isinstance(node.value, tuple | Mapping):
            raise self.wrong(node, path, target)
        try:
            return cast(object, msgspec.convert(node.value, target))
        except msgspec.ValidationError:
            raise self.wrong(node, path, target) from None


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_list(target: Any) -> bool:
    return get_origin(target) in (list, tuple)


def _is_container(target: Any) -> bool:
    if _is_list(target) or get_origin(target) is dict:
        return True
    return isinstance(target, type) and issubclass(target, msgspec.Struct)


def _shown(node: Node) -> str:
    if isinstance(node.value, tuple):
        return f"a list of {len(node.value)}"
    if isinstance(node.value, Mapping):
        return "a mapping"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return quoted(node.value) if isinstance(node.value, str) else str(node.value)


def did_you_mean(key: str, names: list[str]) -> str:
    """A hint with the nearest of `names`, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(key[:64], names, n=1)
    return f"did you mean {close[0]!r}?" if close else ""
