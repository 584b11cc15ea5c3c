# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json: BPE over bytes or characters, read into a Record. What it asks for and we do not do is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nanobuild.errors import InputError, quoted
from nanobuild.jsonstrict import Json, load_object
from nanobuild.tokenizers.bytelevel import byte_ids, raw, read_merges, split_merge
from nanobuild.tokenizers.config import Settings
from nanobuild.tokenizers.patterns import Pipeline, steps
from nanobuild.tokenizers.record import MARK, MAX_TOKENS, Added, AddedToken, Attr, Flag, Kind, Record, added_sorted
from nanobuild.tokenizers.tokenizer import Tokenizer

_LIMIT = 64 << 20
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NOT_DONE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
_FLAGS = (("lstrip", Added.LSTRIP), ("rstrip", Added.RSTRIP), ("single_word", Added.SINGLE_WORD))


def read_tokenizer_json(path: Path, settings: Settings) -> Record:
    """The record of a tokenizer.json. Raises InputError E_TOK_*."""
    top = load_object(path, _LIMIT, missing="E_TOK_MISSING", bad="E_TOK_JSON")
    model = top.get("model")
    if not isinstance(model, dict):
        raise InputError("E_TOK_JSON", path, "has no model")
    if model.get("type", "BPE") != "BPE":
        raise InputError("E_TOK_UNSUPPORTED", path, f"model type {quoted(model['type'])}, supported is 'BPE'")
    for key in _NOT_DONE:
        if model.get(key):
            raise InputError("E_TOK_UNSUPPORTED", path, f"{key} = {quoted(model[key])}")
    pipeline = Pipeline(path)
    pipeline.normalizer(top.get("normalizer"))
    pipeline.pre_tokenizer(top.get("pre_tokenizer"))
    vocab = _vocab(model.get("vocab"), path)
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise InputError("E_TOK_MERGE", path, "merges is no list")
    read = read_merges([split_merge(line, n, path) for n, line in enumerate(merges)], vocab, path)
    added = _added(top.get("added_tokens"), vocab, settings, path)
    kind = Kind.BYTES if pipeline.byte_level else Kind.CHARS
    flags = pipeline.flags | _decoder(top.get("decoder"), kind, path)
    ids = byte_ids(vocab) if kind == Kind.BYTES else _fallback(vocab, model, path)
    if kind == Kind.CHARS and min(ids) >= 0:
        flags |= Flag.BYTE_FALLBACK
    bos = _leading(top.get("post_processor"), vocab, added, path)
    flags |= Flag.ADD_BOS if bos >= 0 else Flag(0)
    flags |= Flag.WHOLE if model.get("ignore_merges") is True else Flag(0)
    flags |= Flag.FUSE_UNK if model.get("fuse_unk") is True else Flag(0)
    unk = model.get("unk_token")
    if unk is not None and unk not in vocab:
        raise InputError("E_TOK_VOCAB", path, f"unk_token {quoted(unk)} is not in the vocabulary")
    pieces, attrs = _pieces(vocab, added, kind, set(ids) if kind == Kind.CHARS else set())
    record = Record(
        kind=kind,
        flags=flags,
        stages=tuple(pipeline.stages),
        literal=pipeline.literal.encode(),
        pieces=pieces,
        attrs=attrs,
        merges=read,
        byte_ids=ids,
        bos=bos,
        unk=vocab[unk] if isinstance(unk, str) else -1,
        added=added_sorted([token for token, late in added if not late], path),
    )
    record.check(path)
    return _with_late(record, [token for token, late in added if late], path)


def _vocab(value: Json, path: Path) -> dict[str, int]:
    if not isinstance(value, dict):
        raise InputError("E_TOK_VOCAB", path, "vocab is no object")
    if not value or len(value) > MAX_TOKENS:
        raise InputError("E_TOK_LIMIT", path, f"{len(value)} tokens, 1 to {MAX_TOKENS} are allowed")
    out: dict[str, int] = {}
    owner: dict[int, str] = {}
    for text, number in value.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
            raise InputError("E_TOK_ID", path, f"token {quoted(text)} has id {quoted(number)}")
        if owner.setdefault(number, text) is not text:
            raise InputError("E_TOK_VOCAB", path, f"{quoted(owner[number])} and {quoted(text)} share id {number}")
        out[text] = number
    return out


def _added(value: Json, vocab: dict[str, int], settings: Settings, path: Path) -> list[tuple[AddedToken, bool]]:
    """Added tokens and whether each is looked for in the normalized text."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError("E_TOK_JSON", path, "added_tokens is no list")
    owner = {number: text for text, number in vocab.items()}
    out = []
    for item in value:
        text, number = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not isinstance(item, dict) or not isinstance(text, str):
            raise InputError("E_TOK_JSON", path, f"added token {quoted(item)}, expected an object with content and id")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
            raise InputError("E_TOK_ID", path, f"added token {quoted(text)} has id {quoted(number)}")
        if vocab.get(text, number) != number or owner.setdefault(number, text) != text:
            text = f"added token {quoted(text)} has id {number}, which is taken by {quoted(owner[number])}"
            raise InputError("E_TOK_VOCAB", path, text if owner[number] != text else "an added token has two ids")
        special = item.get("special") is True or text in settings.special
        flags = Added.SPECIAL if special else Added(0)
        for key, bit in _FLAGS:
            flags |= bit if item.get(key) is True else Added(0)
        if text:
            out.append((AddedToken(text.encode(), number, flags), item.get("normalized") is True))
    return out


def _with_late(record: Record, late: list[AddedToken], path: Path) -> Record:
    """The record with tokens that are looked for after normalization, their texts normalized as well."""
    if not late:
        return record
    tok = Tokenizer(record)
    spaced = record.flags & Flag.SPACES and record.flags & (Flag.LATE_PREFIX | Flag.LATE_PREFIX_FIRST)
    if spaced and any(b" " in token.text or MARK.encode() in token.text for token in late):
        raise InputError("E_TOK_UNSUPPORTED", path, "an added token that holds a space, together with Metaspace")
    done = [dataclasses.replace(t, text=tok.normalize(t.text.decode()).encode()) for t in late]
    record = dataclasses.replace(record, added_late=added_sorted(done, path))
    record.check(path)
    return record


def _fallback(vocab: dict[str, int], model: dict[str, Json], path: Path) -> list[int]:
    """Ids of the byte tokens; all -1 if they are not used."""
    if model.get("byte_fallback") is not True:
        return [-1] * 256
    ids = [vocab.get(f"<0x{b:02X}>", -1) for b in range(256)]
    missing = ids.count(-1)
    if missing not in (0, 256):
        raise InputError("E_TOK_UNSUPPORTED", path, f"byte tokens for {256 - missing} of 256 bytes")
    return ids


def _pieces(
    vocab: dict[str, int], added: list[tuple[AddedToken, bool]], kind: Kind, bytes_of: set[int]
) -> tuple[list[bytes], bytes]:
    size = 1 + max([*vocab.values(), *(token.id for token, _ in added)])
    pieces = [b""] * size
    attrs = bytearray([Attr.HOLE | Attr.SPECIAL]) * size
    for text, number in vocab.items():
        data = raw(text) if kind == Kind.BYTES else text.encode()
        attrs[number] = 0 if data is None else Attr.LOOKUP
        pieces[number] = text.encode() if data is None else data
        match = _BYTE.fullmatch(text) if number in bytes_of else None
        if match:
            pieces[number], attrs[number] = bytes([int(match[1], 16)]), Attr.BYTE
    for token, _ in added:
        pieces[token.id] = token.text
        lookup = attrs[token.id] & Attr.LOOKUP if kind == Kind.CHARS else 0
        attrs[token.id] = Attr.SPECIAL if token.flags & Added.SPECIAL else lookup
    return pieces, bytes(attrs)


def _decoder(value: Json, kind: Kind, path: Path) -> Flag:
    """Whether decoding drops a space at the start; unknown decoders are refused."""
    flags = Flag(0)
    for item in steps(value, "decoders", "decoder", path):
        name = item.get("type")
        if name == "Strip" and (item.get("content"), item.get("start"), item.get("stop")) == (" ", 1, 0):
            flags |= Flag.DROP_PREFIX
        elif name == "Metaspace":
            scheme = item.get("prepend_scheme", "never" if item.get("add_prefix_space") is False else "always")
            flags |= Flag(0) if scheme == "never" else Flag.DROP_PREFIX
        elif name == "Replace" and (item.get("pattern"), item.get("content")) != ({"String": MARK}, " "):
            raise InputError("E_TOK_UNSUPPORTED", path, f"decoder {quoted(item)}")
        elif name not in ("ByteLevel", "ByteFallback", "Fuse", "Replace") or (name == "ByteLevel") != (
            kind == Kind.BYTES
        ):
            raise InputError("E_TOK_UNSUPPORTED", path, f"decoder {quoted(name)}")
    return flags


def _leading(value: Json, vocab: dict[str, int], added: list[tuple[AddedToken, bool]], path: Path) -> int:
    """Id that the post-processor puts in front of a single text, -1 if none."""
    bos = -1
    for item in steps(value, "processors", "post-processor", path):
        kind, single = item.get("type"), item.get("single")
        if kind == "ByteLevel":
            continue
        if kind != "TemplateProcessing" or not isinstance(single, list) or bos >= 0:
            raise InputError("E_TOK_UNSUPPORTED", path, f"post-processor {quoted(kind)}")
        parts = [p for p in single if isinstance(p, dict)]
        specials = [p["SpecialToken"] for p in parts if isinstance(p.get("SpecialToken"), dict)]
        if len(parts) != len(specials) + 1 or "Sequence" not in parts[-1] or len(specials) > 1:
            raise InputError("E_TOK_UNSUPPORTED", path, "post-processor that adds more than one token in front")
        for special in specials:
            text = special.get("id") if isinstance(special, dict) else None
            ids = {token.text.decode(): token.id for token, _ in added} | vocab
            if not isinstance(text, str) or text not in ids:
                raise InputError("E_TOK_VOCAB", path, f"the post-processor's {quoted(text)} is no token")
            bos = ids[text]
    return bos
