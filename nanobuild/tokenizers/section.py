# SPDX-License-Identifier: Apache-2.0
"""Section TOKN of model.nano: a Record as tables that are used in place (kernels/FORMAT.md has it byte by byte)."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError
from nanobuild.tokenizers.record import Added, AddedToken, Attr, Flag, Kind, Record, Stage

VERSION = 1
_HEAD = struct.Struct("<4I2i4I8B")  # version kind flags tokens bos unk longest probe_text probe_merge 0 stages
_TABLES = (
    ("stops", "<i4"),
    ("offsets", "<u4"),
    ("text", "u1"),
    ("attrs", "u1"),
    ("text_hash", "<u4"),
    ("ranks", "<u4"),
    ("merges", "<u4"),
    ("merge_hash", "<u4"),
    ("byte_ids", "<i4"),
    ("early", "<u4"),
    ("late", "<u4"),
    ("added_text", "u1"),
    ("literal", "u1"),
)
_SIZE = _HEAD.size + 8 * len(_TABLES)
_EMPTY = 0xFFFFFFFF
_MAX_PROBE = 1024
Array = npt.NDArray[np.generic]


def pair_hash(left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hash of a pair of ids, wrapping at 32 bits (nb_pair_hash in tokenizer.c)."""
    h: npt.NDArray[np.uint32] = left * np.uint32(0x9E3779B1) + right * np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(15)
    h *= np.uint32(0x2C1B3C6D)
    return h ^ (h >> np.uint32(13))


def _hash_table(hashes: list[int], values: list[int]) -> tuple[Array, int]:
    """Open addressing, two thirds full, slot = hash * size >> 32; returns the table and the longest probe."""
    size = max(1, len(hashes) * 3 // 2 + 1)
    table = [_EMPTY] * size
    longest = 0
    for h, value in zip(hashes, values, strict=True):
        at = start = h * size >> 32
        while table[at] != _EMPTY:
            at = at + 1 if at + 1 < size else 0
        table[at] = value
        longest = max(longest, (at - start) % size + 1)
    return np.array(table, "<u4"), longest


def _added(tokens: tuple[AddedToken, ...], text: bytearray) -> Array:
    rows = []
    for token in tokens:
        rows.append((len(text), len(token.text), token.id, int(token.flags)))
        text += token.text
    return np.array(rows, "<u4").reshape(-1)


def write_section(record: Record) -> bytes:
    """The section's bytes."""
    found = [i for i, attr in enumerate(record.attrs) if attr & Attr.LOOKUP]
    text_hash, probe_text = _hash_table([zlib.crc32(record.pieces[i]) for i in found], found)
    merges = np.array(record.merges, np.uint32).reshape(-1, 3)
    merge_hashes = pair_hash(merges[:, 0].copy(), merges[:, 1].copy()).tolist()
    merge_hash, probe_merge = _hash_table(merge_hashes, list(range(len(merges))))
    if max(probe_text, probe_merge) > _MAX_PROBE:
        raise InputError(
            "E_TOK_LIMIT", "tokenizer", f"the vocabulary's hash table needs {max(probe_text, probe_merge)} probes"
        )
    lengths = np.array([len(p) for p in record.pieces], np.int64)
    added_text = bytearray()
    tables: dict[str, Array] = {
        "stops": np.array(record.stops, "<i4"),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype("<u4"),
        "text": np.frombuffer(b"".join(record.pieces), "u1"),
        "attrs": np.frombuffer(record.attrs, "u1"),
        "text_hash": text_hash,
        "ranks": np.array(record.ranks, "<u4"),
        "merges": merges.reshape(-1),
        "merge_hash": merge_hash,
        "byte_ids": np.array(record.byte_ids, "<i4"),
        "early": _added(record.added, added_text),
        "late": _added(record.added_late, added_text),
    }
    tables["added_text"] = np.frombuffer(bytes(added_text), "u1")
    tables["literal"] = np.frombuffer(record.literal, "u1")
    longest = max((len(record.pieces[i]) for i in found), default=0)
    stages = [x for stage in record.stages for x in stage]
    stages += [0] * (8 - len(stages))
    ids = (len(record.pieces), record.bos, record.unk)
    head = _HEAD.pack(VERSION, record.kind, record.flags, *ids, longest, probe_text, probe_merge, 0, *stages)
    body, at = [], _SIZE
    directory = b""
    for name, dtype in _TABLES:
        data = tables[name].astype(dtype).tobytes()
        directory += struct.pack("<2I", at, len(data) // np.dtype(dtype).itemsize)
        padded = data + bytes(-len(data) % 4)
        body.append(padded)
        at += len(padded)
    return head + directory + b"".join(body)


def _bad(text: str) -> InputError:
    return InputError("E_TOK_SECTION", "tokenizer section", text)


def read_section(data: bytes) -> Record:
    """The record of a section. Raises InputError E_TOK_SECTION if it breaks a rule."""
    if len(data) < _SIZE:
        raise _bad(f"{len(data)} bytes, at least {_SIZE} are needed")
    version, kind, flags, tokens, bos, unk, _, _, _, _, *stage_bytes = _HEAD.unpack_from(data)
    if version != VERSION:
        raise _bad(f"version {version}, this program reads {VERSION}")
    table: dict[str, Array] = {}
    for i, (name, dtype) in enumerate(_TABLES):
        at, count = struct.unpack_from("<2I", data, _HEAD.size + 8 * i)
        if at + count * np.dtype(dtype).itemsize > len(data):
            raise _bad(f"table {name} ends past the section")
        table[name] = np.frombuffer(data, dtype, count, at)
    offsets = table["offsets"].tolist()
    text = table["text"].tobytes()
    if len(offsets) != tokens + 1 or offsets != sorted(offsets) or offsets[0] != 0 or offsets[-1] != len(text):
        raise _bad("text offsets are out of order")
    if len(table["attrs"]) != tokens or len(table["byte_ids"]) != 256 or len(table["merges"]) % 3:
        raise _bad("tables disagree on their length")
    merges = table["merges"].reshape(-1, 3)
    ids = np.concatenate([merges.reshape(-1).astype(np.int64), table["byte_ids"].astype(np.int64), [bos, unk]])
    if int(ids.min()) < -1 or int(ids.max()) >= tokens:
        raise _bad("an id is out of range")
    try:
        stages = tuple((Stage(stage_bytes[i]), stage_bytes[i + 1]) for i in range(0, 8, 2) if stage_bytes[i])
        record = Record(
            kind=Kind(kind),
            flags=Flag(flags),
            stages=stages,
            literal=table["literal"].tobytes(),
            pieces=[text[a:b] for a, b in itertools.pairwise(offsets)],
            attrs=table["attrs"].tobytes(),
            ranks=table["ranks"].tolist(),
            merges=[(a, b, c) for a, b, c in merges.tolist()],
            byte_ids=table["byte_ids"].tolist(),
            bos=bos,
            unk=unk,
            stops=tuple(table["stops"].tolist()),
            added=_read_added(table["early"], table["added_text"], tokens),
            added_late=_read_added(table["late"], table["added_text"], tokens),
        )
    except ValueError as error:
        raise _bad(str(error)) from None
    if record.kind == Kind.SCORES and len(record.ranks) != tokens:
        raise _bad("tables disagree on their length")
    record.check("tokenizer section")
    return record


def _read_added(rows: Array, text: Array, tokens: int) -> tuple[AddedToken, ...]:
    out = []
    if len(rows) % 4:
        raise _bad("tables disagree on their length")
    for at, length, token, flags in rows.reshape(-1, 4).tolist():
        if token >= tokens or at + length > len(text):
            raise _bad("an added token is out of range")
        out.append(AddedToken(text[at : at + length].tobytes(), token, Added(flags)))
    return tuple(out)
