# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of GGUF files: "gpt2" (byte-level BPE, the split pattern by name) and "llama" (SentencePiece scores)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsFloat, SupportsInt, cast

from nanobuild.errors import InputError, quoted
from nanobuild.tokenizers.bytelevel import byte_ids, raw, read_merges, split_merge
from nanobuild.tokenizers.record import Added, AddedToken, Attr, Flag, Kind, Record, Stage, added_sorted
from nanobuild.tokenizers.scores import (
    PIECE_CONTROL,
    PIECE_NORMAL,
    PIECE_UNKNOWN,
    PIECE_UNUSED,
    PIECE_USER,
    Piece,
    record_of_pieces,
)

_GPT2 = ((Stage.GPT2, 0),)
_SMOLLM = ((Stage.DIGITS, 1), (Stage.GPT2, 0))
_QWEN2 = ((Stage.WORDS, 1 | 32),)
# tokenizer.ggml.pre -> stages, flags, whether a BOS goes in front when the file does not say
PATTERNS: dict[str, tuple[tuple[tuple[Stage, int], ...], Flag, bool]] = {
    "default": (_GPT2, Flag(0), False),
    "gpt-2": (_GPT2, Flag(0), False),
    "gpt2": (_GPT2, Flag(0), False),
    "smollm": (_SMOLLM, Flag(0), False),
    "starcoder": (_SMOLLM, Flag(0), False),
    "refact": (_SMOLLM, Flag(0), False),
    "llama-bpe": (((Stage.WORDS, 3 | 32),), Flag.WHOLE, True),
    "llama3": (((Stage.WORDS, 3 | 32),), Flag.WHOLE, True),
    "llama-v3": (((Stage.WORDS, 3 | 32),), Flag.WHOLE, True),
    "qwen2": (_QWEN2, Flag.NFC, False),
    "deepseek-r1-qwen": (_QWEN2, Flag.NFC, False),
    "qwen35": (((Stage.WORDS, 1 | 16 | 32),), Flag.NFC, False),
}
_KEY = "tokenizer.ggml."


def _texts(meta: Mapping[str, object], key: str, *, needed: bool) -> list[str]:
    value = meta.get(_KEY + key)
    if value is None and not needed:
        return []
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InputError("E_TOK_MISSING", _KEY + key, "the file has no such list of texts")
    out = []
    for item in value:
        text = item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item
        if not isinstance(text, str):
            raise InputError("E_TOK_VOCAB", _KEY + key, f"holds {quoted(text)}, expected text")
        out.append(text)
    return out


def _numbers(meta: Mapping[str, object], key: str, count: int) -> list[float] | None:
    value = meta.get(_KEY + key)
    if value is None:
        return None
    numbers = [float(x) for x in cast(Iterable[SupportsFloat], value)] if isinstance(value, Iterable) else []
    if len(numbers) != count:
        raise InputError("E_TOK_VOCAB", _KEY + key, f"{len(numbers)} entries, expected {count}")
    return numbers


def _token_id(meta: Mapping[str, object], key: str, count: int) -> int:
    value = meta.get(f"{_KEY}{key}_token_id")
    if value is None:
        return -1
    number = int(cast(SupportsInt, value)) if hasattr(value, "__int__") else -1
    if not 0 <= number < count:
        raise InputError("E_TOK_ID", f"{_KEY}{key}_token_id", f"{quoted(value)}, the vocabulary has {count} tokens")
    return number


def _flag(meta: Mapping[str, object], key: str, default: bool) -> bool:
    value = meta.get(_KEY + key)
    return default if value is None else bool(value)


def read_gguf(meta: Mapping[str, object]) -> tuple[Record, set[int], dict[str, str]]:
    """The record of the metadata's vocabulary, the ids that end a text, and the texts that templates call bos_token and
    so on. Raises InputError E_TOK_*."""
    model = meta.get(_KEY + "model")
    if model is None:
        raise InputError("E_TOK_MISSING", _KEY + "model", "the file has no vocabulary")
    tokens = _texts(meta, "tokens", needed=True)
    named = {key: _token_id(meta, key, len(tokens)) for key in ("bos", "eos", "unknown", "padding")}
    short = {"unknown": "unk", "padding": "pad"}
    names = {f"{short.get(key, key)}_token": tokens[i] for key, i in named.items() if i >= 0}
    ends = {_token_id(meta, key, len(tokens)) for key in ("eos", "eot", "eom")} - {-1}
    if model == "gpt2":
        return _gpt2(meta, tokens), ends, names
    if model == "llama":
        return _llama(meta, tokens), ends, names
    raise InputError(
        "E_TOK_UNSUPPORTED", _KEY + "model", f"vocabulary type {quoted(model)}, known are 'gpt2' and 'llama'"
    )


def _gpt2(meta: Mapping[str, object], tokens: list[str]) -> Record:
    pre = meta.get(_KEY + "pre", "gpt-2")
    known = PATTERNS.get(pre) if isinstance(pre, str) else None
    if known is None:
        raise InputError("E_TOK_UNSUPPORTED", _KEY + "pre", f"split pattern {quoted(pre)} is not known")
    stages, flags, add_bos = known
    types = [int(t) for t in _numbers(meta, "token_type", len(tokens)) or [PIECE_NORMAL] * len(tokens)]
    vocab: dict[str, int] = {}
    pieces, attrs, added = [], bytearray(), []
    for i, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if vocab.setdefault(text, i) != i:
            raise InputError("E_TOK_VOCAB", _KEY + "tokens", f"{quoted(text)} is token {vocab[text]} and token {i}")
        data = raw(text) if kind == PIECE_NORMAL else None
        pieces.append(text.encode("utf-8", "surrogateescape") if data is None else data)
        hidden = kind in (PIECE_UNKNOWN, PIECE_CONTROL, PIECE_UNUSED)
        attrs.append((Attr.SPECIAL if hidden else 0) | (Attr.LOOKUP if data is not None else 0))
        if kind in (PIECE_CONTROL, PIECE_USER):
            added.append(AddedToken(pieces[i], i, Added.SPECIAL if kind == PIECE_CONTROL else Added(0)))
    merges = [split_merge(line, n, _KEY + "merges") for n, line in enumerate(_texts(meta, "merges", needed=True))]
    if _flag(meta, "add_space_prefix", False):
        flags |= Flag.LATE_PREFIX
    if _flag(meta, "add_bos_token", add_bos):
        flags |= Flag.ADD_BOS
    return Record(
        kind=Kind.BYTES,
        flags=flags,
        stages=stages,
        pieces=pieces,
        attrs=bytes(attrs),
        merges=read_merges(merges, vocab, _KEY + "merges"),
        byte_ids=byte_ids(vocab),
        bos=_token_id(meta, "bos", len(tokens)),
        added=added_sorted(added, _KEY + "tokens"),
    )


def _llama(meta: Mapping[str, object], tokens: list[str]) -> Record:
    if meta.get(_KEY + "precompiled_charsmap") is not None:
        raise InputError("E_TOK_UNSUPPORTED", _KEY + "precompiled_charsmap", "a character map is not supported")
    types = _numbers(meta, "token_type", len(tokens))
    scores = _numbers(meta, "scores", len(tokens))
    if types is None or scores is None:
        raise InputError("E_TOK_MISSING", _KEY + "scores", "a 'llama' vocabulary needs scores and token types")
    pieces = [
        Piece(t.encode("utf-8", "surrogateescape"), s, int(k)) for t, s, k in zip(tokens, scores, types, strict=True)
    ]
    flags = Flag.SPACES
    if _flag(meta, "add_space_prefix", True):
        flags |= Flag.PREFIX | Flag.DROP_PREFIX
    if _flag(meta, "remove_extra_whitespaces", False):
        flags |= Flag.TRIM
    if _flag(meta, "add_bos_token", True):
        flags |= Flag.ADD_BOS
    return record_of_pieces(
        pieces,
        flags,
        bos=_token_id(meta, "bos", len(tokens)),
        unk=_token_id(meta, "unknown", len(tokens)),
        subject=_KEY + "tokens",
        code="E_TOK_VOCAB",
    )
