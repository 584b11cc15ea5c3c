# SPDX-License-Identifier: Apache-2.0
"""Writers of single safetensors and GGUF files, right ones and, by leaving the defaults, wrong ones."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Entry = tuple[str, str, list[int], bytes]  # name, dtype, shape, data


def encode(values: Array, dtype: str) -> bytes:
    """Bytes of `values` in a float type; bfloat16 by cutting the lower half off."""
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def st_entries(tensors: Mapping[str, Array], dtype: str = "BF16") -> list[Entry]:
    return [(name, dtype, list(values.shape), encode(values, dtype)) for name, values in tensors.items()]


def st_header(entries: Iterable[Entry]) -> tuple[dict[str, Any], bytes]:
    """Header and data of a file that holds the entries one behind the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, dtype, shape, part in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return header, bytes(data)


def st_raw(header: Mapping[str, Any] | str | bytes, data: bytes, length: int | None = None) -> bytes:
    """A file with any header, also one that is no JSON or has another length than it says."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def st_bytes(entries: Iterable[Entry]) -> bytes:
    return st_raw(*st_header(entries))


GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30}


@dataclasses.dataclass(slots=True)
class GgufTensor:
    """A tensor as the file will describe it; dims are fastest first."""

    name: str
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None  # None: behind the tensor before
    rank: int | None = None


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: object) -> bytes:
    """Type and bytes of a value: str, bool, int (u32), float (f32), and lists of str, int (i32), float, bool."""
    if isinstance(value, list):
        inner = [gguf_value(item) for item in value]
        kind = inner[0][:4] if inner else struct.pack("<I", 8)
        if value and type(value[0]) is int:
            kind = struct.pack("<I", 5)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + b"".join(item[4:] for item in inner)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    raise TypeError(value)


def gguf_bytes(
    metadata: Mapping[str, object] | list[tuple[str, bytes]],
    tensors: Iterable[GgufTensor],
    *,
    version: int = 3,
    align: int = 32,
    counts: tuple[int | None, int | None] = (None, None),
) -> bytes:
    """A GGUF file; pairs of key and encoded value instead of a dict allow duplicates, `counts` a wrong header."""
    pairs = [(k, gguf_value(v)) for k, v in metadata.items()] if isinstance(metadata, Mapping) else metadata
    listed = list(tensors)
    n_tensors, n_keys = counts
    out = bytearray(b"GGUF" + struct.pack("<I", version))
    out += struct.pack("<Q", len(listed) if n_tensors is None else n_tensors)
    out += struct.pack("<Q", len(pairs) if n_keys is None else n_keys)
    for key, raw in pairs:
        out += gguf_string(key) + raw
    data = bytearray()
    for t in listed:
        out += gguf_string(t.name) + struct.pack("<I", len(t.dims) if t.rank is None else t.rank)
        out += b"".join(struct.pack("<Q", dim) for dim in t.dims)
        out += struct.pack("<IQ", t.kind, len(data) if t.offset is None else t.offset)
        data += t.data + bytes(-len(t.data) % align)
    return bytes(out + bytes(-len(out) % align) + data)
