# SPDX-License-Identifier: Apache-2.0
"""SentencePiece-BPE: pieces with scores, as tokenizer.model files and GGUF "llama" vocabularies hold them."""

from __future__ import annotations

import dataclasses
import math
import re

from nanobuild.errors import InputError, quoted
from nanobuild.tokenizers.record import Added, AddedToken, Attr, Flag, Kind, Record, added_sorted

PIECE_NORMAL, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE = 1, 2, 3, 4, 5, 6
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One entry: text, score (higher merges first) and type."""

    text: bytes
    score: float
    kind: int


def record_of_pieces(
    pieces: list[Piece], flags: Flag, *, bos: int, unk: int = -1, subject: object, code: str
) -> Record:
    """The record. `unk`: the unknown token where no piece has that type; `code`: the error code for a bad piece.
    Raises InputError."""
    texts: dict[bytes, int] = {}
    raw, attrs, added, late = [], bytearray(), [], []
    byte_ids = [-1] * 256
    unknown = [i for i, p in enumerate(pieces) if p.kind == PIECE_UNKNOWN]
    for i, piece in enumerate(pieces):
        if texts.setdefault(piece.text, i) != i:
            text = (
                f"piece {quoted(piece.text.decode('utf-8', 'replace'))} is given twice, as {texts[piece.text]} and {i}"
            )
            raise InputError(code, subject, text)
        if math.isnan(piece.score):
            raise InputError(code, subject, f"the score of piece {i} is not a number")
        if not PIECE_NORMAL <= piece.kind <= PIECE_BYTE:
            raise InputError(
                code, subject, f"piece {i} has type {piece.kind}, allowed are {PIECE_NORMAL} to {PIECE_BYTE}"
            )
        data, attr = piece.text, 0
        if piece.kind == PIECE_BYTE:
            match = _BYTE.fullmatch(piece.text)
            if not match:
                raise InputError(code, subject, f"byte piece {i} is {quoted(piece.text)}, expected <0x00> to <0xFF>")
            data, attr = bytes([int(match[1], 16)]), int(Attr.BYTE)
            byte_ids[data[0]] = i
        elif piece.kind in (PIECE_NORMAL, PIECE_USER):
            attr = int(Attr.LOOKUP)
        else:
            attr = int(Attr.SPECIAL)
        if piece.kind == PIECE_CONTROL and piece.text:
            added.append(AddedToken(piece.text, i, Added.SPECIAL))
        if piece.kind == PIECE_USER and piece.text:
            late.append(AddedToken(piece.text, i, Added(0)))
        raw.append(data)
        attrs.append(attr)
    if unk >= 0 and not unknown:
        unknown = [unk]
    if len(unknown) != 1:
        raise InputError(code, subject, f"{len(unknown)} unknown tokens, expected one")
    missing = byte_ids.count(-1)
    if missing not in (0, 256):
        raise InputError(code, subject, f"byte pieces for {256 - missing} of 256 bytes")
    if flags & Flag.TRIM and any(b" " in token.text for token in late):
        raise InputError(
            "E_TOK_UNSUPPORTED", subject, "a user-defined piece with spaces while extra spaces are removed"
        )
    _refuse_unused(pieces, texts, subject)
    order = {score: rank for rank, score in enumerate(sorted({p.score for p in pieces}, reverse=True))}
    record = Record(
        kind=Kind.SCORES,
        flags=flags | (Flag(0) if missing else Flag.BYTE_FALLBACK) | Flag.FUSE_UNK,
        pieces=raw,
        attrs=bytes(attrs),
        ranks=[order[p.score] for p in pieces],
        byte_ids=byte_ids,
        bos=bos,
        unk=unknown[0],
        added=added_sorted(added, subject),
        added_late=added_sorted(late, subject),
    )
    record.check(subject)
    return record


def _refuse_unused(pieces: list[Piece], texts: dict[bytes, int], subject: object) -> None:
    """An unused piece that merging could reach would have to be taken apart again, which is not done here."""
    for i, piece in enumerate(pieces):
        if piece.kind != PIECE_UNUSED:
            continue
        text = piece.text.decode("utf-8", "replace")
        for cut in range(1, len(text)):
            halves = (text[:cut].encode(), text[cut:].encode())
            if all(h in texts and pieces[texts[h]].kind in (PIECE_NORMAL, PIECE_USER) for h in halves):
                raise InputError("E_TOK_UNSUPPORTED", subject, f"piece {i} is unused but can be reached by merging")
