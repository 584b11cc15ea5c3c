# SPDX-License-Identifier: Apache-2.0
"""Chat templates as fixed parts: found by rendering conversations of known texts, kept only if every further
conversation comes out exactly the same. Markers come from the template alone, never from what people write."""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Mapping, Sequence

from nanobuild.errors import InputError, quoted
from nanobuild.tokenizers import Tokenizer
from nanobuild.tokenizers.record import Added, Flag
from nanobuild.tokenizers.template import RefusedError, render

VERSION = 1
MAX_TEXT = 4096  # bytes of all parts together; NB_CHAT_TEXT in chat.h
TRIM_USER, TRIM_SYSTEM, HAS_SYSTEM = 1, 2, 4
OPEN, OPEN_SYSTEM, AFTER_SYSTEM, AFTER_USER, NEXT = range(5)
_MARKER = 0x80000000


class _InexactError(Exception):
    """Why the template has no fixed parts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """The texts between what people and the model say."""

    texts: tuple[str, str, str, str, str]  # OPEN ... NEXT
    flags: int

    def expected(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation that these parts make."""
        out, rest = [], list(messages)
        if rest[0]["role"] == "system":
            system = rest.pop(0)["content"]
            out += [
                self.texts[OPEN_SYSTEM],
                system.strip() if self.flags & TRIM_SYSTEM else system,
                self.texts[AFTER_SYSTEM],
            ]
        else:
            out.append(self.texts[OPEN])
        for number, message in enumerate(rest):
            content = message["content"]
            if message["role"] == "user":
                out += [self.texts[NEXT]] if number else []
                out += [content.strip() if self.flags & TRIM_USER else content, self.texts[AFTER_USER]]
            else:
                out.append(content)
        return "".join(out)


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], tok: Tokenizer, *, add_generation_prompt: bool = True
) -> str:
    """The text of a conversation as the template writes it. Raises InputError E_TPL_SYNTAX, E_TPL_UNSAFE or
    E_TPL_REFUSED (the template says that it cannot)."""
    try:
        return render(template, messages, tok.names, prompt=add_generation_prompt)
    except RefusedError as error:
        raise InputError("E_TPL_REFUSED", "chat template", f"says {quoted(error)}") from None


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _between(text: str, *marks: str) -> list[str]:
    """What lies before, between and after the marks, each of which must occur once and in order."""
    out = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            raise _InexactError("it drops or changes a message's text")
        out.append(before)
    out.append(text)
    if any(mark in part for mark in marks for part in out):
        raise _InexactError("it repeats a message's text")
    return out


def find_parts(template: str, tok: Tokenizer) -> Parts:
    """The parts of a template. Raises _InexactError, RefusedError or InputError."""

    def text(*messages: dict[str, str]) -> str:
        return render(template, messages, tok.names, prompt=True)

    start, after = _between(text(_user("Qu1xZ")), "Qu1xZ")
    first, middle, following, end = _between(
        text(_user("Qu1xZ"), _assistant("Wa1kY"), _user("Qu2xZ")), "Qu1xZ", "Wa1kY", "Qu2xZ"
    )
    if (first, middle, end) != (start, after, after):
        raise _InexactError("an earlier turn looks different from the last one")
    flags, system = 0, ["", ""]
    try:
        *system, end = _between(text(_system("Ks1vJ"), _user("Qu1xZ")), "Ks1vJ", "Qu1xZ")
        flags |= HAS_SYSTEM if end == after else 0
    except (_InexactError, RefusedError):
        system = ["", ""]
    system = system if flags & HAS_SYSTEM else ["", ""]
    texts = (start, system[0], system[1], after, following)
    padded = " \n Qu1xZ\n  "
    for message, flag in ((_user, TRIM_USER), (_system, TRIM_SYSTEM)):
        if message is _system and not flags & HAS_SYSTEM:
            continue
        talk = [message(padded), _user("Qu2xZ")] if message is _system else [message(padded)]
        if text(*talk) != Parts(texts, flags).expected(talk):
            flags |= flag
    return Parts(texts, flags)


def _verify(template: str, tok: Tokenizer, parts: Parts) -> None:
    """Renders conversations of every shape and compares. Raises _InexactError."""
    markers = [token.text.decode("utf-8", "replace") for token in tok.record.added if token.flags & Added.SPECIAL]
    written = [marker for marker in markers if any(marker in text for text in parts.texts)]
    said = [
        "Hello there!",
        "one\n\ntwo\n",
        "  padded\t",
        "日本 \U0001f469\u200d\U0001f467 é",
        "{{ 7 * 7 }} {% if x %}{# c #}",
    ]
    said += [
        "a\\n 'b' \"c\" & <b> \\u0041",
        "".join(written) + " system user assistant",
        "w " * 300,
        "1",
        "[INST] <<SYS>>",
    ]
    turns = itertools.cycle(said)
    for length in (1, 2, 3, 4) * 5:
        talk = []
        for number in range(length):
            talk += [_assistant(f"Answer {number}, fine.")] if number else []
            talk.append(_user(next(turns)))
        systems = [_system(next(turns))] if parts.flags & HAS_SYSTEM else []
        for whole in (talk, [*systems, *talk]):
            if render(template, whole, tok.names, prompt=True) != parts.expected(whole):
                raise _InexactError(f"a conversation of {len(whole)} messages does not come out of fixed parts")


def _items(text: str, tok: Tokenizer) -> list[tuple[int, bytes]]:
    """A part as markers (id, empty) and plain text (-1, bytes)."""
    out: list[tuple[int, bytes]] = []
    at = 0
    for start, stop, token in tok.markers(text):
        if token.flags & (Added.LSTRIP | Added.RSTRIP | Added.SINGLE_WORD):
            raise _InexactError(f"marker {quoted(token.text.decode())} takes in the spaces around it")
        out += [(-1, text[at:start].encode())] if start > at else []
        out.append((token.id, b""))
        at = stop
    return [*out, (-1, text[at:].encode())] if at < len(text) else out


def compile_chat(template: str | None, tok: Tokenizer) -> tuple[bytes, str]:
    """Section CHAT, or b"" and the reason why there is none. Never raises for what a template does."""
    if template is None:
        return b"", "the model has no chat template"
    try:
        parts = find_parts(template, tok)
        _verify(template, tok, parts)
        items = [_items(text, tok) for text in parts.texts]
        ends = [token for token, _ in items[NEXT][:1]]
        if not ends or ends[0] not in tok.stop_ids:
            raise _InexactError("the assistant's turn does not end with a stop token")
        if sum(len(data) for part in items for _, data in part) > MAX_TEXT:
            raise _InexactError(f"its own text is longer than {MAX_TEXT} bytes")
    except _InexactError as error:
        return b"", f"the chat template cannot be compiled: {error}"
    except RefusedError as error:
        return b"", f"the chat template cannot be compiled: it says {quoted(error)}"
    except InputError as error:
        return b"", f"{error.code}: {error}"
    return _write(items, parts.flags), ""


def _write(items: list[list[tuple[int, bytes]]], flags: int) -> bytes:
    rows, text, counts = b"", b"", []
    for part in items:
        counts.append(len(part))
        for token, data in part:
            rows += struct.pack("<2I", _MARKER | token if token >= 0 else len(data), 0 if token >= 0 else len(text))
            text += data
    head = struct.pack("<4I", VERSION, flags, sum(counts), len(text))
    return head + struct.pack("<5I", *counts) + rows + text + bytes(-len(text) % 4)


def read_chat(section: bytes) -> tuple[list[list[tuple[int, bytes]]], int]:
    """Items of each part, and the flags, of a section that compile_chat wrote."""
    _, flags, count, length = struct.unpack_from("<4I", section)
    counts = struct.unpack_from("<5I", section, 16)
    text = section[36 + 8 * count : 36 + 8 * count + length]
    rows = iter(struct.iter_unpack("<2I", section[36 : 36 + 8 * count]))
    parts = []
    for number in counts:
        part = []
        for size, at in itertools.islice(rows, number):
            part.append((size & ~_MARKER, b"") if size & _MARKER else (-1, text[at : at + size]))
        parts.append(part)
    return parts, flags


def turn_ids(section: bytes, tok: Tokenizer, turn: int, system: str | None, user: str) -> list[int]:
    """Ids of one user turn, as nb_chat_turn in chat.c gives them. Raises InputError E_CHAT_SYSTEM."""
    parts, flags = read_chat(section)
    user = user.strip() if flags & TRIM_USER else user
    if turn > 0:
        items = [*parts[NEXT], (-1, user.encode())]
    elif system is None:
        items = [*parts[OPEN], (-1, user.encode())]
    elif flags & HAS_SYSTEM:
        said = system.strip() if flags & TRIM_SYSTEM else system
        items = [*parts[OPEN_SYSTEM], (-1, said.encode()), *parts[AFTER_SYSTEM], (-1, user.encode())]
    else:
        raise InputError("E_CHAT_SYSTEM", "chat", "the model's template takes no system text")
    ids: list[int] = []
    text = b""
    for token, data in [*items, *parts[AFTER_USER], (-2, b"")]:
        if token == -1:
            text += data
            continue
        if text:
            # only the very first text may get the space that some vocabularies put at the start of a text
            late = bool(tok.record.flags & Flag.LATE_PREFIX_FIRST) and (turn > 0 or bool(ids))
            ids += tok.encode(text, bos=False, follows=late)
            text = b""
        if token >= 0:
            ids.append(token)
    return ids
