# SPDX-License-Identifier: Apache-2.0
"""Chooses the tokenizer file, joins what the other files say about BOS, stops and the chat template, and checks the
result against the model's vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from nanobuild.errors import InputError, quoted
from nanobuild.tokenizers.config import read_settings
from nanobuild.tokenizers.gguf import read_gguf
from nanobuild.tokenizers.hf import read_tokenizer_json
from nanobuild.tokenizers.record import Added, AddedToken, Attr, Flag, Kind, Record
from nanobuild.tokenizers.spm import read_tokenizer_model
from nanobuild.tokenizers.tokenizer import Tokenizer

# markers with which chat templates end a turn; generation stops there even if no configuration says so
TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<turn|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "</s>")


class TokenizerFiles(Protocol):
    """Where a tokenizer can be read from: a checkpoint's folder or GGUF metadata (keys start with tokenizer.)."""

    @property
    def folder(self) -> Path | None: ...

    @property
    def gguf(self) -> Mapping[str, object] | None: ...


def load_tokenizer(source: TokenizerFiles, *, vocab: int, eos_ids: Iterable[int], bos_id: int | None) -> Tokenizer:
    """The tokenizer of a checkpoint. `vocab`: rows of the embedding, which every id must fit; `eos_ids`, `bos_id`: what
    the model's own configuration says. Raises InputError E_TOK_* or E_SPM_*."""
    names: dict[str, str] = {}
    if source.gguf is not None:
        subject: object = "tokenizer.ggml"
        record, ends, names = read_gguf(source.gguf)
        template = source.gguf.get("tokenizer.chat_template")
        template = template if isinstance(template, str) else None
    elif source.folder is not None:
        record, ends, template, names, subject = _from_folder(source.folder)
    else:
        raise InputError("E_TOK_MISSING", "checkpoint", "holds no tokenizer")
    if len(record.pieces) > vocab:
        high = len(record.pieces) - 1
        text = f"token {quoted(record.pieces[high].decode('utf-8', 'replace'))} has id {high}"
        raise InputError("E_TOK_ID", subject, f"{text}, the embedding has {vocab} rows")
    for number in [*eos_ids, *ends]:
        if not 0 <= number < vocab:
            raise InputError("E_TOK_ID", subject, f"end-of-text id {number}, the embedding has {vocab} rows")
    stops = {*eos_ids, *ends}
    for name in TURN_ENDS:
        token = _special_named(record, name.encode())
        if token is not None and template and name in template:
            stops.add(token)
    bos = record.bos
    if bos < 0 and bos_id is not None and 0 <= bos_id < len(record.pieces):
        bos = bos_id
    flags = record.flags if bos >= 0 else record.flags & ~Flag.ADD_BOS
    record = dataclasses.replace(record, bos=bos, flags=flags, stops=tuple(sorted(stops)))
    record = _hide(record, {*stops, bos}).spaced()
    record.check(subject)
    if bos >= 0:
        names.setdefault("bos_token", record.pieces[bos].decode("utf-8", "replace"))
    return Tokenizer(record, template, names)


def _special_named(record: Record, text: bytes) -> int | None:
    tokens = (*record.added, *record.added_late)
    return next((token.id for token in tokens if token.text == text), None)


def _hide(record: Record, ids: set[int]) -> Record:
    """What starts or stops a text is a marker, whatever the file calls it: hidden, and never read out of user text."""
    attrs = bytearray(record.attrs)
    for token in ids:
        if 0 <= token < len(attrs):
            attrs[token] |= Attr.SPECIAL

    def marked(tokens: tuple[AddedToken, ...]) -> tuple[AddedToken, ...]:
        return tuple(dataclasses.replace(t, flags=t.flags | Added.SPECIAL) if t.id in ids else t for t in tokens)

    late = record.added_late if record.kind == Kind.SCORES else marked(record.added_late)
    return dataclasses.replace(record, attrs=bytes(attrs), added=marked(record.added), added_late=late)


def _from_folder(folder: Path) -> tuple[Record, set[int], str | None, dict[str, str], Path]:
    settings = read_settings(folder)
    path = folder / "tokenizer.json"
    if path.exists():
        record = read_tokenizer_json(path, settings)
    elif (folder / "tokenizer.model").exists():
        path = folder / "tokenizer.model"
        record = read_tokenizer_model(path, settings)
    else:
        raise InputError("E_TOK_MISSING", folder, "neither tokenizer.json nor tokenizer.model is there")
    ends = set()
    if settings.eos is not None:
        token = _special_named(record, settings.eos.encode())
        if token is None:
            token = next((i for i, piece in enumerate(record.pieces) if piece == settings.eos.encode()), None)
        if token is not None:
            ends.add(token)
    if record.bos < 0 and settings.bos is not None:
        named = _special_named(record, settings.bos.encode())
        record = dataclasses.replace(record, bos=-1 if named is None else named)
    return record, ends, settings.chat_template, dict(settings.names), path
