# SPDX-License-Identifier: Apache-2.0
"""The flat record of a tokenizer: what every reader produces, the encoder works on and section TOKN stores.

No brands here: a tokenizer is a kind, some flags, up to four splitting stages and tables.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools

from nanobuild.errors import InputError, quoted

MARK = "\u2581"  # what SentencePiece writes for a space
MAX_TOKENS = 4 << 20
MAX_MERGES = 1 << 20
MAX_PIECE = 1024
MAX_STAGES = 4
MAX_LITERAL = 16


class Kind(enum.IntEnum):
    """What the pieces are made of and what decides which pair merges first."""

    BYTES = 0  # symbols are bytes, a list of merges in order
    CHARS = 1  # symbols are characters, a list of merges in order, bytes as a fallback
    SCORES = 2  # symbols are characters, any pair whose text is a piece merges, best score first (SentencePiece)


class Flag(enum.IntFlag):
    """Bits of the record; the comment says where in the order of things they act."""

    ADD_BOS = 1
    WHOLE = 2  # a split part that is a piece is taken whole, without merging
    NFC = 4  # first: canonical composition
    TRIM = 8  # second: no spaces at the ends, one space between words
    SPACES = 16  # third: a space becomes MARK (and back in decoding)
    PREFIX = 32  # fourth: a space in front of every stretch of text between special tokens
    LATE_PREFIX = 64  # after added tokens were cut out, unless the text starts with a space
    LATE_PREFIX_FIRST = 128  # the same, but only at the very start
    BYTE_FALLBACK = 256  # an unknown character becomes its byte tokens
    FUSE_UNK = 512  # neighbouring unknown characters become one unknown token
    DROP_PREFIX = 1024  # decoding drops one space at the start


class Attr(enum.IntFlag):
    """Bits per token."""

    SPECIAL = 1  # hidden by default; in text only when the caller parses markers
    BYTE = 2  # stands for one byte
    LOOKUP = 4  # found by its text (characters, whole pieces, scored pairs)
    HOLE = 8  # an id without a token


class Stage(enum.IntEnum):
    """Ways to cut text into parts that never merge with each other."""

    NONE = 0
    DIGITS = 1  # arg 1: each digit alone, 0: runs of digits
    GPT2 = 2  # the pattern of GPT-2
    WORDS = 3  # the pattern of Llama 3 and Qwen; arg: bits 0-3 digits in a row (0: any), 16 letters or marks, 32 long s
    LITERAL = 4  # at a fixed string; arg 0: it stands alone, 1: it ends a part, 2: it starts one
    SPACED = 5  # before each MARK that follows another character, but none of the literal's


class Added(enum.IntFlag):
    """Bits per added token."""

    SPECIAL = 1
    LSTRIP = 2  # swallows whitespace to its left
    RSTRIP = 4
    SINGLE_WORD = 8  # only if no word character touches it


@dataclasses.dataclass(frozen=True, slots=True)
class AddedToken:
    """A piece that is cut out of the text before anything else."""

    text: bytes
    id: int
    flags: Added


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Everything that encoding and decoding need; checked by check()."""

    kind: Kind
    flags: Flag
    stages: tuple[tuple[Stage, int], ...] = ()
    literal: bytes = b""
    pieces: list[bytes]  # text of each id (MARK for spaces if SPACES); a byte token holds its one byte
    attrs: bytes  # Attr of each id
    ranks: list[int] = dataclasses.field(default_factory=list)  # SCORES: 0 is the best score; equal scores share a rank
    merges: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)  # left, right, result, in rank order
    byte_ids: list[int] = dataclasses.field(default_factory=lambda: [-1] * 256)
    bos: int = -1
    unk: int = -1
    stops: tuple[int, ...] = ()
    added: tuple[AddedToken, ...] = ()  # looked for in the raw text; sorted by text
    added_late: tuple[AddedToken, ...] = ()  # looked for in the normalized text; with SCORES: pieces never merged

    def check(self, subject: object) -> None:
        """Raises InputError if a rule of section TOKN does not hold."""
        tokens = len(self.pieces)
        if not 0 < tokens <= MAX_TOKENS:
            raise InputError("E_TOK_LIMIT", subject, f"{tokens} tokens, 1 to {MAX_TOKENS} are allowed")
        if len(self.merges) > MAX_MERGES:
            raise InputError("E_TOK_LIMIT", subject, f"{len(self.merges)} merges, at most {MAX_MERGES} are allowed")
        if self.flags & Flag.NFC and self.flags & (Flag.TRIM | Flag.SPACES | Flag.PREFIX):
            raise InputError("E_TOK_UNSUPPORTED", subject, "NFC together with a change of spaces")
        for i, piece in enumerate(self.pieces):
            if len(piece) > MAX_PIECE:
                text = f"token {i} has {len(piece)} bytes, at most {MAX_PIECE} are allowed"
                raise InputError("E_TOK_LIMIT", subject, text)
        if len(self.stages) > MAX_STAGES or len(self.literal) > MAX_LITERAL:
            raise InputError("E_TOK_UNSUPPORTED", subject, "more splitting stages than there is room for")
        for token in (*self.added, *self.added_late):
            if not token.text:
                raise InputError("E_TOK_VOCAB", subject, f"added token {token.id} is empty")
            if len(token.text) > MAX_PIECE:
                raise InputError("E_TOK_LIMIT", subject, f"added token {quoted(token.text.decode())} is too long")

    def spaced(self) -> Record:
        """The same record with a cut before every word if no piece can reach over it: much less to merge at a time."""
        if self.kind == Kind.BYTES or not self.flags & Flag.SPACES or self.stages:
            return self
        found = {p.decode("utf-8", "replace") for p, a in zip(self.pieces, self.attrs, strict=True) if a & Attr.LOOKUP}
        texts = [*found, *(token.text.decode("utf-8", "replace") for token in self.added_late)]
        over = {a for text in texts if MARK in text for a, b in itertools.pairwise(text) if b == MARK and a != MARK}
        if MARK not in found or len(over) > MAX_LITERAL or not all(char.isascii() for char in over):
            return self
        literal = "".join(sorted(over)).encode()
        return dataclasses.replace(self, stages=((Stage.SPACED, 0),), literal=literal)

    def special(self, token: int) -> bool:
        """Whether this id is hidden by default."""
        return bool(self.attrs[token] & Attr.SPECIAL)


def added_sorted(tokens: list[AddedToken], subject: object) -> tuple[AddedToken, ...]:
    """Sorted by text as the section wants it. Raises InputError E_TOK_VOCAB if one text has two ids."""
    out = sorted(tokens, key=lambda token: token.text)
    for a, b in itertools.pairwise(out):
        if a.text == b.text:
            text = f"added token {quoted(a.text.decode('utf-8', 'replace'))} is given twice, as {a.id} and {b.id}"
            raise InputError("E_TOK_VOCAB", subject, text)
    return tuple(out)
