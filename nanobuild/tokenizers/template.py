# SPDX-License-Identifier: Apache-2.0
"""Rendering a checkpoint's Jinja chat template, which is a stranger's program: immutable sandbox, no clock, and limits
on time, output and the size of what it builds."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanobuild.errors import InputError, quoted

if TYPE_CHECKING:
    from _typeshed import TraceFunction

MAX_TEMPLATE = 128 << 10
MAX_OUTPUT = 1 << 20
MAX_NUMBER = 1 << 16
MAX_SECONDS = 2.0
_WIDTH = re.compile(r"\d{5}|\*")


class RefusedError(TemplateError):
    """The template itself says that it cannot render this conversation (raise_exception)."""


class _Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it is just its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def weight(value: object, limit: int) -> int:
    """Roughly how many characters a value stands for; counting stops above `limit`."""
    total, waiting = 0, [value]
    while waiting and total <= limit:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            total += len(item)
            waiting += item[:limit]
        total += 1
    return total


def _check(text: str, values: Sequence[object]) -> None:
    """What a call, filter or operator may build out of its operands has to stay small. `text`: a format or template."""
    size = weight(values, MAX_OUTPUT)
    numbers = [abs(x) for x in values if isinstance(x, (int, float)) and not isinstance(x, bool)]
    fields = text.count("%") + text.count("{") + 1
    if size > MAX_OUTPUT or any(n > MAX_NUMBER for n in numbers) or _WIDTH.search(text):
        raise SecurityError("a value that is too large")
    if size * max([1, *numbers]) > MAX_OUTPUT * 4 or size * fields > MAX_OUTPUT * 4:
        raise SecurityError("a result that is too large")


def _check_replace(text: str, arguments: Sequence[object]) -> None:
    if len(arguments) >= 2 and (text.count(str(arguments[0])) + 1) * len(str(arguments[1])) > MAX_OUTPUT:
        raise SecurityError("a replacement that grows too large")


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """The ~ operator, with a check."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def joined(self, parts: tuple[object, ...]) -> str:
        """What ~ gives."""
        _check("", parts)
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        _check(left if operator == "%" and isinstance(left, str) else "", (left, right))
        if operator == "**" and isinstance(right, (int, float)) and abs(right) > 64:
            raise SecurityError("a power that is too large")
        result: object = super().call_binop(context, operator, left, right)
        return result

    def call(self, *args: object, **kwargs: object) -> object:
        """Called as call(context, function, ...)."""
        owner, name = getattr(args[1], "__self__", None), getattr(args[1], "__name__", "")
        text = owner if isinstance(owner, str) else ""
        _check(text if name in ("format", "format_map") else "", [text, *args[2:], *kwargs.values()])
        if name == "replace":
            _check_replace(text, args[2:])
        result: object = super().call(*args, **kwargs)  # type: ignore[arg-type]
        return result


def _limited(function: Callable[..., object], name: str) -> Callable[..., object]:
    """A filter that checks its arguments first."""

    def checked(*args: object, **kwargs: object) -> object:
        texts = [x for x in args if isinstance(x, str)]
        _check(texts[0] if name == "format" and texts else "", [*args, *kwargs.values()])
        if name == "replace" and len(texts) >= 3:
            _check_replace(texts[0], texts[1:3])
        return function(*args, **kwargs)

    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(function, mark):
            setattr(checked, mark, getattr(function, mark))
    return checked


def _raise(message: object) -> NoReturn:
    raise RefusedError(str(message))


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **kwargs: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kwargs)  # type: ignore[arg-type]


def _environment() -> _Environment:
    env = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    env.filters = {name: _limited(function, name) for name, function in env.filters.items()}
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals.pop("lipsum")
    return env


def _watched(pieces: Iterator[str], limit: float) -> str:
    """Joins the output. Every line of the template's own code looks at the clock and at what its variables hold."""
    deadline = time.monotonic() + limit

    def watch(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != "<template>":
            return None
        if time.monotonic() > deadline:
            raise SecurityError("it does not end")
        if any(isinstance(v, (str, list, tuple)) and len(v) > MAX_OUTPUT for v in frame.f_locals.values()):
            raise SecurityError("a variable that is too large")
        return watch

    out, size, before = [], 0, sys.gettrace()
    sys.settrace(watch)
    try:
        for piece in pieces:
            size += len(piece)
            if size > MAX_OUTPUT:
                raise SecurityError("its output does not end")
            out.append(piece)
    finally:
        sys.settrace(before)
    return "".join(out)


def render(template: str, messages: Sequence[Mapping[str, object]], names: Mapping[str, str], *, prompt: bool) -> str:
    """The text of a conversation. `names`: bos_token and so on; `prompt`: end where the assistant speaks.

    There is no clock: a template that has a fixed date for that case uses it. Raises InputError E_TPL_SYNTAX (does not
    parse, or fails on this conversation) or E_TPL_UNSAFE, and RefusedError where the template itself says no.
    """
    if len(template) > MAX_TEMPLATE:
        raise InputError(
            "E_TPL_UNSAFE", "chat template", f"{len(template)} characters, at most {MAX_TEMPLATE} are allowed"
        )
    try:
        compiled = _environment().from_string(template)
        pieces = compiled.generate(
            messages=list(messages), add_generation_prompt=prompt, tools=None, documents=None, **names
        )
        return _watched(pieces, MAX_SECONDS)
    except RefusedError:
        raise
    except TemplateSyntaxError as error:
        raise InputError("E_TPL_SYNTAX", "chat template", f"line {error.lineno}: {quoted(error.message)}") from None
    except (SecurityError, MemoryError, RecursionError) as error:
        raise InputError("E_TPL_UNSAFE", "chat template", f"refused: {quoted(error)}") from None
    except Exception as error:
        # whatever a stranger's program runs into is its own fault, never a traceback of ours
        text = f"fails: {type(error).__name__}: {quoted(error)}"
        raise InputError("E_TPL_SYNTAX", "chat template", text) from None
