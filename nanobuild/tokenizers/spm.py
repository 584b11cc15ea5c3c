# SPDX-License-Identifier: Apache-2.0
"""tokenizer.model: a SentencePiece protobuf of type BPE, read at the wire level with every length checked."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path

from nanobuild.errors import InputError, quoted
from nanobuild.jsonstrict import load_object
from nanobuild.rawfile import read_small
from nanobuild.tokenizers.config import Settings
from nanobuild.tokenizers.record import MAX_TOKENS, Flag, Record
from nanobuild.tokenizers.scores import PIECE_NORMAL, Piece, record_of_pieces

_LIMIT = 64 << 20
_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}


class _Wire:
    """Fields of one message: (number, value) where a value is an int (varint, fixed) or bytes."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def _bad(self, text: str) -> InputError:
        return InputError("E_SPM_WIRE", self.path, f"{text} at byte {self.at} of a message of {len(self.data)}")

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if self.at >= len(self.data):
                raise self._bad("the file ends inside a number")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= 1 << 64:
                    break
                return value
        raise self._bad("a number longer than 64 bits")

    def _take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise self._bad(f"a field of {length} bytes, {len(self.data) - self.at} are left,")
        self.at += length
        return self.data[self.at - length : self.at]

    def fields(self) -> Iterator[tuple[int, int | bytes]]:
        while self.at < len(self.data):
            key = self._varint()
            number, wire = key >> 3, key & 7
            if number == 0 or wire not in (0, 1, 2, 5):
                raise self._bad(f"field {number} of wire type {wire}")
            if wire == 0:
                yield number, self._varint()
            elif wire == 2:
                yield number, self._take(self._varint())
            else:
                yield number, int.from_bytes(self._take(8 if wire == 1 else 4), "little")


@dataclasses.dataclass(slots=True)
class _Spec:
    """Trainer and normalizer settings with protobuf's defaults."""

    model_type: int = 1
    byte_fallback: bool = False
    suffix: bool = False
    bos: int = 1
    charsmap: bool = False
    dummy_prefix: bool = True
    trim: bool = True
    escape: bool = True


def _piece(data: bytes, path: Path) -> Piece:
    text, score, kind = b"", 0.0, PIECE_NORMAL
    for number, value in _Wire(data, path).fields():
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, int):
            score = struct.unpack("<f", (value & 0xFFFFFFFF).to_bytes(4, "little"))[0]
        elif number == 3 and isinstance(value, int):
            kind = value
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("E_SPM_PIECE", path, f"piece {quoted(text)} is no UTF-8") from None
    return Piece(text, score, kind)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _settings(spec: _Spec, which: int, data: bytes, path: Path) -> None:
    for number, value in _Wire(data, path).fields():
        if which == 2 and isinstance(value, int):
            if number == 3:
                spec.model_type = value
            elif number == 24:
                spec.suffix = bool(value)
            elif number == 35:
                spec.byte_fallback = bool(value)
            elif number == 41:
                spec.bos = _signed(value)
        elif which in (3, 5) and number == 2 and value:
            spec.charsmap = True
        elif which == 3 and isinstance(value, int):
            if number == 3:
                spec.dummy_prefix = bool(value)
            elif number == 4:
                spec.trim = bool(value)
            elif number == 5:
                spec.escape = bool(value)


def read_tokenizer_model(path: Path, settings: Settings) -> Record:
    """The record of a tokenizer.model. Raises InputError E_SPM_* or E_TOK_*."""
    data = read_small(path, _LIMIT, missing="E_TOK_MISSING", too_big="E_TOK_LIMIT")
    spec = _Spec()
    pieces: list[Piece] = []
    for number, value in _Wire(data, path).fields():
        if not isinstance(value, bytes):
            continue
        if number == 1:
            if len(pieces) == MAX_TOKENS:
                raise InputError("E_TOK_LIMIT", path, f"more than {MAX_TOKENS} pieces")
            pieces.append(_piece(value, path))
        elif number in (2, 3, 5):
            _settings(spec, number, value, path)
    if not pieces:
        raise InputError("E_SPM_EMPTY", path, "holds no pieces")
    if spec.model_type != 2:
        name = _TYPES.get(spec.model_type, str(spec.model_type))
        raise InputError("E_TOK_UNSUPPORTED", path, f"model type {quoted(name)}, supported is 'BPE'")
    for wrong, what in (
        (spec.charsmap, "a character map"),
        (spec.suffix, "spaces as suffixes"),
        (not spec.escape, "plain spaces"),
    ):
        if wrong:
            raise InputError("E_TOK_UNSUPPORTED", path, f"{what} in the normalizer")
    _refuse_more(path.parent / "added_tokens.json", pieces)
    flags = Flag.SPACES
    if spec.dummy_prefix and settings.add_prefix is not False:
        flags |= Flag.PREFIX | Flag.DROP_PREFIX
    flags |= Flag.TRIM if spec.trim else Flag(0)
    bos = spec.bos if 0 <= spec.bos < len(pieces) else -1
    flags |= Flag.ADD_BOS if bos >= 0 and settings.add_bos is not False else Flag(0)
    record = record_of_pieces(pieces, flags, bos=bos, subject=path, code="E_SPM_PIECE")
    if not spec.byte_fallback:
        record = dataclasses.replace(record, flags=record.flags & ~Flag.BYTE_FALLBACK)
    elif not record.flags & Flag.BYTE_FALLBACK:
        raise InputError("E_SPM_PIECE", path, "byte fallback without byte pieces")
    return record


def _refuse_more(path: Path, pieces: list[Piece]) -> None:
    """Tokens that transformers adds on top of the model would be lost without a word."""
    if path.exists():
        known = {piece.text.decode() for piece in pieces}
        more = [
            text for text in load_object(path, 4 << 20, missing="E_TOK_MISSING", bad="E_TOK_JSON") if text not in known
        ]
        if more:
            raise InputError(
                "E_TOK_UNSUPPORTED", path, f"adds {quoted(more[0])} to tokenizer.model; use a tokenizer.json"
            )
