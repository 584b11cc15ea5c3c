# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back over a Record. kernels/runtime/tokenizer.c is the same program in C."""

from __future__ import annotations

import bisect
import codecs
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from nanobuild.tokenizers.record import MARK, Added, AddedToken, Attr, Flag, Kind, Record
from nanobuild.tokenizers.section import read_section, write_section
from nanobuild.tokenizers.split import split
from nanobuild.tokenizers.unicode import CLASS, SPACE, WORD, nfc, to_bytes, to_text

_CACHE_LIMIT = 1 << 17


class _Trie:
    """Leftmost longest match over a sorted list of added tokens."""

    def __init__(self, tokens: tuple[AddedToken, ...]) -> None:
        self.texts = [to_text(token.text) for token in tokens]
        self.tokens = dict(zip(self.texts, tokens, strict=True))
        self.texts.sort()
        self.first: dict[str, list[int]] = {}
        for text in self.texts:
            lengths = self.first.setdefault(text[0], [])
            if len(text) not in lengths:
                bisect.insort(lengths, len(text))

    def at(self, text: str, at: int) -> AddedToken | None:
        """The longest token that starts at `at`."""
        lengths = self.first.get(text[at])
        if lengths:
            for length in reversed(lengths):
                token = self.tokens.get(text[at : at + length])
                if token is not None and at + length <= len(text):
                    return token
        return None


class Tokenizer:
    """A checked Record with what encoding needs around it."""

    def __init__(
        self, record: Record, chat_template: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        self.record = record
        self.chat_template = chat_template
        self.names = dict(names or {})  # bos_token, eos_token ... for chat templates
        self.stop_ids = record.stops
        self.bos_id: int | None = record.bos if record.bos >= 0 else None
        self.size = len(record.pieces)
        self._early, self._late = _Trie(record.added), _Trie(record.added_late)
        self._literal = to_text(record.literal)
        self._mark = MARK if record.flags & Flag.SPACES else " "
        self._lookup = {p: i for i, p in enumerate(record.pieces) if record.attrs[i] & Attr.LOOKUP}
        self._pairs = {(a, b): (rank, new) for rank, (a, b, new) in enumerate(record.merges)}
        self._cache: dict[str, list[int]] = {}

    # ---------------------------------------------------------------- encode

    def encode(
        self, text: str | bytes, *, bos: bool = True, parse_special: bool = False, follows: bool = False
    ) -> list[int]:
        """Ids of a text. `bos`: with the BOS in front if the vocabulary says so (never twice). `parse_special`: markers
        in the text become their tokens. `follows`: the text comes after other tokens, so that no BOS and no leading
        dummy space is added. Bytes that are no UTF-8 are taken one by one."""
        text = to_text(text) if isinstance(text, bytes) else to_text(to_bytes(text))
        ids: list[int] = []
        at = 0
        for start, stop, token in self._cut(text, self._early, parse_special):
            if start > at:
                self._stretch(text[at:start], ids, first=at == 0, follows=follows and at == 0, special=parse_special)
            ids.append(token.id)
            at = stop
        if at < len(text):
            self._stretch(text[at:], ids, first=at == 0, follows=follows and at == 0, special=parse_special)
        record = self.record
        if bos and not follows and record.flags & Flag.ADD_BOS and record.bos >= 0 and ids[:1] != [record.bos]:
            ids.insert(0, record.bos)
        return ids

    def markers(self, text: str) -> list[tuple[int, int, AddedToken]]:
        """Start, end and token of each special marker in a text."""
        return [found for found in self._cut(text, self._early, True) if found[2].flags & Added.SPECIAL]

    def _cut(self, text: str, trie: _Trie, special: bool) -> Iterator[tuple[int, int, AddedToken]]:
        at = done = 0
        while at < len(text):
            token = trie.at(text, at) if trie.texts else None
            if token is None:
                if not trie.texts:
                    return
                at += 1
                continue
            start, at = at, at + len(to_text(token.text))
            stop = at
            if token.flags & Added.SPECIAL and not special:
                continue
            if token.flags & Added.SINGLE_WORD and (
                (start > 0 and CLASS[text[start - 1]] & WORD) or (stop < len(text) and CLASS[text[stop]] & WORD)
            ):
                continue
            while token.flags & Added.LSTRIP and start > done and CLASS[text[start - 1]] & SPACE:
                start -= 1
            while token.flags & Added.RSTRIP and stop < len(text) and CLASS[text[stop]] & SPACE:
                stop += 1
            yield max(start, done), stop, token
            done = stop

    def _stretch(self, text: str, ids: list[int], *, first: bool, follows: bool, special: bool) -> None:
        """Text between two early added tokens."""
        text = self.normalize(text, prefix=not follows)
        if self.record.kind == Kind.SCORES:
            for piece in split(text, self.record.stages, self._literal):
                ids.extend(self._cached(piece, self._scores))
            return
        at = 0
        for start, stop, token in self._cut(text, self._late, special):
            if start > at:
                self._part(text[at:start], ids, prefix=not follows or at > 0, first=first and at == 0)
            ids.append(token.id)
            at = stop
        if at < len(text):
            self._part(text[at:], ids, prefix=not follows or at > 0, first=first and at == 0)

    def normalize(self, text: str, *, prefix: bool = True) -> str:
        """What the flags say before late added tokens are looked for."""
        flags = self.record.flags
        if flags & Flag.NFC:
            text = nfc(text)
        if flags & Flag.TRIM:
            text = " ".join(word for word in text.split(" ") if word)
        if flags & Flag.SPACES:
            text = text.replace(" ", MARK)
        if flags & Flag.PREFIX and prefix and text:
            text = self._mark + text
        if flags & Flag.TRIM:
            text = text.rstrip(self._mark)
        return text

    def _part(self, text: str, ids: list[int], *, prefix: bool, first: bool) -> None:
        flags = self.record.flags
        wanted = flags & Flag.LATE_PREFIX or (flags & Flag.LATE_PREFIX_FIRST and first)
        if wanted and prefix and not text.startswith(self._mark):
            text = self._mark + text
        for piece in split(text, self.record.stages, self._literal):
            ids.extend(self._cached(piece, self._bytes if self.record.kind == Kind.BYTES else self._chars))

    def _cached(self, piece: str, encode: Callable[[str], list[int]]) -> list[int]:
        known = self._cache.get(piece)
        if known is None:
            known = encode(piece)
            if len(piece) < 64 and len(self._cache) < _CACHE_LIMIT:
                self._cache[piece] = known
        return known

    def _bytes(self, piece: str) -> list[int]:
        data = to_bytes(piece)
        record = self.record
        if record.flags & Flag.WHOLE and (whole := self._lookup.get(data)) is not None:
            return [whole]
        return self._merge(self._unknown(record.byte_ids[b] for b in data))

    def _unknown(self, symbols: Iterable[int]) -> list[int]:
        """Symbols without a token (-1) become the unknown token, or nothing if there is none."""
        out: list[int] = []
        unk, was = self.record.unk, False
        for symbol in symbols:
            missing = symbol < 0
            if not missing:
                out.append(symbol)
            elif unk >= 0 and not (was and self.record.flags & Flag.FUSE_UNK):
                out.append(unk)
            was = missing
        return out

    def _chars(self, piece: str) -> list[int]:
        record = self.record
        if record.flags & Flag.WHOLE and (whole := self._lookup.get(to_bytes(piece))) is not None:
            return [whole]
        symbols: list[int] = []
        for char in piece:
            data = to_bytes(char)
            known = self._lookup.get(data, -1)
            if known < 0 and record.flags & Flag.BYTE_FALLBACK:
                symbols.extend(record.byte_ids[b] for b in data)
            else:
                symbols.append(known)
        return self._merge(self._unknown(symbols))

    def _merge(self, ids: list[int]) -> list[int]:
        """Merges neighbours in rank order, leftmost first."""

        def find(left: int, right: int) -> tuple[int, int] | None:
            return self._pairs.get((ids[left], ids[right]))

        def join(left: int, right: int, new: int) -> None:
            ids[left] = new

        return [ids[i] for i in _merge_all(len(ids), find, join)]

    def _scores(self, text: str) -> list[int]:
        ids: list[int] = []
        record, lookup = self.record, self._lookup
        symbols: list[bytes] = []
        known: list[int] = []
        frozen: list[bool] = []
        at = 0
        while at < len(text):
            token = self._late.at(text, at) if self._late.texts else None
            symbols.append(token.text if token else to_bytes(text[at]))
            known.append(token.id if token else lookup.get(symbols[-1], -1))
            frozen.append(token is not None)
            at += len(to_text(token.text)) if token else 1

        def find(left: int, right: int) -> tuple[int, int] | None:
            if frozen[left] or frozen[right]:
                return None
            new = lookup.get(symbols[left] + symbols[right])
            return None if new is None else (record.ranks[new], new)

        def join(left: int, right: int, new: int) -> None:
            symbols[left] += symbols[right]
            known[left] = new

        was = False
        for i in _merge_all(len(symbols), find, join):
            missing = known[i] < 0
            if missing and record.flags & Flag.BYTE_FALLBACK:
                ids.extend(record.byte_ids[b] for b in symbols[i])
            elif not missing:
                ids.append(known[i])
            elif not was and record.unk >= 0:
                ids.append(record.unk)
            was = missing
        return ids

    # ---------------------------------------------------------------- decode

    def piece(self, token: int, first: bool = False, *, show_special: bool = False) -> bytes:
        """Bytes of one token; nothing for ids out of range and, by default, special tokens. `first`: nothing has been
        decoded before it, so that a dummy leading space is dropped."""
        record = self.record
        if not 0 <= token < self.size or (record.special(token) and not show_special):
            return b""
        data = record.pieces[token]
        if record.flags & Flag.SPACES and not record.attrs[token] & Attr.BYTE:
            data = data.replace(MARK.encode(), b" ")
        if first and record.flags & Flag.DROP_PREFIX and data[:1] == b" ":
            data = data[1:]
        return data

    def decode_bytes(self, ids: Iterable[int], *, show_special: bool = False) -> bytes:
        """Bytes of a whole sequence."""
        out = bytearray()
        first = True
        for token in ids:
            hidden = not 0 <= token < self.size or (self.record.special(token) and not show_special)
            out += self.piece(token, first, show_special=show_special)
            first = first and hidden
        return bytes(out)

    def decode(self, ids: Iterable[int], *, show_special: bool = False) -> str:
        """Text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, show_special=show_special).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int], *, show_special: bool = False) -> Iterator[str]:
        """Text token by token: an unfinished character waits for the rest of its bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        first = True
        for token in ids:
            hidden = not 0 <= token < self.size or (self.record.special(token) and not show_special)
            yield decoder.decode(self.piece(token, first, show_special=show_special))
            first = first and hidden
        yield decoder.decode(b"", True)

    # --------------------------------------------------------------- section

    def to_bytes(self) -> bytes:
        """Section TOKN."""
        return write_section(self.record)

    @staticmethod
    def from_bytes(data: bytes) -> Tokenizer:
        """The tokenizer of a section TOKN. Raises InputError E_TOK_SECTION."""
        return Tokenizer(read_section(data))


def _merge_all(
    count: int, find: Callable[[int, int], tuple[int, int] | None], join: Callable[[int, int, int], None]
) -> list[int]:
    """Positions that are left after merging; `find` gives rank and result of a pair, `join` does it."""
    after = [*range(1, count), -1]
    before = [*range(-1, count - 1)]
    version = [0] * count
    heap: list[tuple[int, int, int, int]] = []

    def offer(left: int) -> None:
        right = after[left]
        pair = find(left, right) if right >= 0 else None
        if pair is not None:
            heapq.heappush(heap, (pair[0], left, version[left], pair[1]))

    for i in range(count - 1):
        offer(i)
    alive = [True] * count
    while heap:
        _, left, seen, new = heapq.heappop(heap)
        if not alive[left] or version[left] != seen:
            continue
        right = after[left]
        join(left, right, new)
        alive[right] = False
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        version[left] += 1
        offer(left)
        if before[left] >= 0:
            version[before[left]] += 1
            offer(before[left])
    return [i for i in range(count) if alive[i]]
