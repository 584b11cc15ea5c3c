# SPDX-License-Identifier: Apache-2.0
"""model.nano: write it from packed tensors, read it back for the reference, `show` and `verify` (kernels/FORMAT.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

from nanobuild import packing
from nanobuild.errors import InputError, IntegrityError
from nanobuild.formats import F32, U8, Format, Quantized
from nanobuild.publish import published_file
from nanobuild.spec import Layer, ModelSpec, Rope

MAGIC = b"\x89nano\r\n\x1a"
VERSION = 1
PAGE = 65536
ROLES = (
    *("embed", "head", "final_norm", "attn_norm", "q", "k", "v", "o", "gate", "up", "down"),
    *("ffn_norm", "q_norm", "k_norm", "attn_post_norm", "ffn_post_norm"),
)
_ACTIVATIONS = ("silu", "gelu_tanh")
_GLOBAL = 0xFFFFFFFF
_HEADER = struct.Struct("<8sIIQII32s")
_SECTION = struct.Struct("<4sIQQII")
_TENSOR = struct.Struct("<IIIIIiIIQQ16s")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One row of the tensor table."""

    name: str
    format: Format | None  # None: float32 vector
    rows: int
    cols: int
    row_exp: int
    offset: int  # in WGTS
    size: int
    crc: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A tensor to be written: its packed bytes come in pieces when asked."""

    name: str
    format: Format | None
    rows: int
    cols: int
    row_exp: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    @property
    def size(self) -> int:
        """Bytes in WGTS."""
        if self.format is None:
            return 4 * self.cols
        return packing.matrix_bytes(self.format, self.rows, self.cols)


def weights_bytes(tensors: list[Tensor]) -> int:
    """Size of section WGTS: tensors in order, each at a multiple of 64."""
    return sum(packing.align(t.size, 64) for t in tensors[:-1]) + tensors[-1].size


def write_model(
    path: Path,
    spec: ModelSpec,
    tensors: list[Tensor],
    *,
    tokenizer: bytes,
    chat: bytes,
    meta: Mapping[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> str:
    """Streams a model file to `path`, published by rename; returns its identity (SHA-256, hex).

    progress(bytes) is called as weights are written. Raises ResourceError when writing fails.
    """
    with published_file(path) as file:
        digest = hashlib.sha256()
        file.seek(PAGE)
        writer = _WeightWriter(file.write, digest.update)
        records = []
        for tensor in tensors:
            records.append(writer.add(tensor))
            progress(records[-1].size)
        writer.finish()
        sections = [(b"WGTS", PAGE, writer.at, 0)]
        bodies = [
            (b"SPEC", _spec_bytes(spec)),
            (b"TENS", _table_bytes(records)),
            (b"CSUM", struct.pack("<II", PAGE, len(writer.sums)) + np.array(writer.sums, "<u4").tobytes()),
            (b"TOKN", tokenizer),
            (b"CHAT", chat),
            (b"META", json.dumps(meta, sort_keys=True).encode()),
        ]
        end = PAGE + writer.at
        for kind, body in bodies:
            end = packing.align(end, PAGE)
            file.seek(end)
            file.write(body)
            digest.update(body)
            sections.append((kind, end, len(body), crc32c.crc32c(body)))
            end += len(body)
        file.truncate(end)
        file.seek(0)
        file.write(_header_bytes(end, sections, digest.digest()))
        return digest.hexdigest()


class _WeightWriter:
    """Section WGTS as a stream: padding, the tensors' checksums and those of 64 KiB blocks."""

    def __init__(self, *sinks: Callable[[bytes], Any]) -> None:
        self.sinks = sinks
        self.at = 0
        self.sums: list[int] = []
        self._block = crc32c.crc32c(struct.pack("<I", 0))

    def _put(self, data: bytes) -> None:
        for sink in self.sinks:
            sink(data)
        view = memoryview(data)
        while view:
            take = min(PAGE - self.at % PAGE, len(view))
            self._block = crc32c.crc32c(view[:take], self._block)
            self.at += take
            view = view[take:]
            if self.at % PAGE == 0:
                self._close_block()

    def _close_block(self) -> None:
        self.sums.append(self._block)
        self._block = crc32c.crc32c(struct.pack("<I", len(self.sums)))

    def add(self, tensor: Tensor) -> Record:
        if self.at % 64:
            self._put(bytes(64 - self.at % 64))
        offset, crc = self.at, 0
        for piece in tensor.pieces():
            data = bytes(piece)
            crc = crc32c.crc32c(data, crc)
            self._put(data)
        if self.at - offset != tensor.size:
            raise AssertionError(f"{tensor.name}: {self.at - offset} bytes written, {tensor.size} planned")
        return Record(
            name=tensor.name,
            format=tensor.format,
            rows=tensor.rows,
            cols=tensor.cols,
            row_exp=tensor.row_exp,
            offset=offset,
            size=tensor.size,
            crc=crc,
        )

    def finish(self) -> None:
        if self.at % PAGE:
            self._close_block()


def _header_bytes(size: int, sections: list[tuple[bytes, int, int, int]], digest: bytes) -> bytes:
    table = b"".join(_SECTION.pack(kind, 1, offset, length, crc, 0) for kind, offset, length, crc in sections)
    blank = _HEADER.pack(MAGIC, VERSION, 0, size, len(sections), 0, digest) + table
    return _HEADER.pack(MAGIC, VERSION, 0, size, len(sections), crc32c.crc32c(blank), digest) + table


def _spec_bytes(spec: ModelSpec) -> bytes:
    out = struct.pack(
        "<11I3f2I",
        *(spec.hidden, spec.ffn, spec.heads, spec.kv_heads, spec.head_dim, spec.vocab, spec.max_positions),
        *(len(spec.layers), len(spec.ropes), _ACTIVATIONS.index(spec.activation)),
        spec.qk_norm | spec.post_norms << 1 | spec.tied << 2,
        *(spec.norm_eps, spec.attn_scale, spec.embed_scale, 0, 0),
    )
    out += b"".join(struct.pack("<II", layer.rope, layer.window) for layer in spec.layers)
    for rope in spec.ropes:
        out += struct.pack("<I", len(rope.inv_freq)) + np.array(rope.inv_freq, "<f4").tobytes()
    return out


def _table_bytes(records: list[Record]) -> bytes:
    out = struct.pack("<IIII", len(records), _TENSOR.size, 0, 0)
    for r in records:
        layer, role = _role(r.name)
        fmt = r.format
        out += _TENSOR.pack(
            *(role, layer, packing.format_id(fmt) if fmt else 0, r.rows, r.cols, r.row_exp),
            *(fmt.group if fmt else 0, r.crc, r.offset, r.size),
            packing.table_bytes(fmt).tobytes() if fmt else bytes(16),
        )
    return out


def _role(name: str) -> tuple[int, int]:
    if name.startswith("layers."):
        _, layer, role = name.split(".")
        return int(layer), ROLES.index(role)
    return _GLOBAL, ROLES.index(name)


class ModelFile:
    """A model file opened for reading; everything is checked on opening, checksums of weights only by verify()."""

    def __init__(self, path: Path) -> None:
        """Raises IntegrityError E_MODEL_TRUNCATED or E_MODEL_CHECKSUM, InputError E_MODEL_*."""
        self.path = path
        try:
            self.data: U8 = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            if path.is_file() and path.stat().st_size == 0:
                raise IntegrityError("E_MODEL_TRUNCATED", path, "0 bytes, at least 64 expected") from error
            raise InputError("E_MODEL_OPEN", path, f"cannot open: {error}") from error
        self._sections = self._read_header()
        self.spec = self._read_spec(self.section("SPEC"))
        self.records = self._read_table(self.section("TENS"))
        self.meta: dict[str, Any] = json.loads(self.section("META") or b"{}")

    def _fail(self, text: str) -> InputError:
        return InputError("E_MODEL_VALUE", self.path, text)

    def _read_header(self) -> dict[str, tuple[int, int, int]]:
        size = len(self.data)
        if size < _HEADER.size:
            raise IntegrityError("E_MODEL_TRUNCATED", self.path, f"{size} bytes, at least {_HEADER.size} expected")
        head = bytes(self.data[: _HEADER.size])
        magic, version, required, declared, count, crc, self.digest = _HEADER.unpack(head)
        if magic != MAGIC:
            raise InputError("E_MODEL_MAGIC", self.path, "this is not a model.nano file")
        if version != VERSION or required:
            raise InputError("E_MODEL_VERSION", self.path, f"version {version}, features {required:#x}; 1 and 0 known")
        if declared != size:
            raise IntegrityError("E_MODEL_TRUNCATED", self.path, f"{size} bytes, {declared} expected")
        end = _HEADER.size + count * _SECTION.size
        if count > 16 or end > size:
            raise self._fail(f"{count} sections, at most 16 allowed")
        raw = bytearray(self.data[:end])
        raw[28:32] = bytes(4)
        if crc32c.crc32c(bytes(raw)) != crc:
            raise IntegrityError("E_MODEL_CHECKSUM", self.path, "the header's checksum does not match")
        sections = {}
        for i in range(count):
            kind, _, offset, length, section_crc, _ = _SECTION.unpack_from(raw, _HEADER.size + i * _SECTION.size)
            if offset % PAGE or offset > size or length > size - offset:
                raise self._fail(f"section {i} lies outside the file")
            sections[kind.decode("ascii", "replace")] = (offset, length, section_crc)
        for kind, (offset, length, section_crc) in sections.items():
            if kind != "WGTS" and crc32c.crc32c(self.data[offset : offset + length].tobytes()) != section_crc:
                raise IntegrityError("E_MODEL_CHECKSUM", self.path, f"section {kind}: checksum does not match")
        return sections

    def section(self, kind: str) -> bytes:
        """The bytes of a small section; raises InputError if the file has none."""
        if kind not in self._sections:
            raise self._fail(f"section {kind} is missing")
        offset, length, _ = self._sections[kind]
        return self.data[offset : offset + length].tobytes()

    def section_sizes(self) -> dict[str, int]:
        """Bytes of each section."""
        return {kind: length for kind, (_, length, _) in self._sections.items()}

    def _read_spec(self, raw: bytes) -> ModelSpec:
        try:
            v = struct.unpack_from("<11I3f2I", raw)
            layers = [struct.unpack_from("<II", raw, 64 + 8 * i) for i in range(min(v[7], len(raw) // 8))]
            at, ropes = 64 + 8 * len(layers), []
            for _ in range(min(v[8], len(raw))):
                (n,) = struct.unpack_from("<I", raw, at)
                ropes.append(Rope(inv_freq=tuple(float(f) for f in np.frombuffer(raw, "<f4", n, at + 4))))
                at += 4 + 4 * n
            return ModelSpec(
                family=self._family(),
                **dict(
                    zip(("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "max_positions"), v, strict=False)
                ),
                norm_eps=v[11],
                activation="gelu_tanh" if v[9] else "silu",
                attn_scale=v[12],
                embed_scale=v[13],
                qk_norm=bool(v[10] & 1),
                post_norms=bool(v[10] & 2),
                tied=bool(v[10] & 4),
                ropes=tuple(ropes),
                layers=tuple(Layer(rope=r, window=w) for r, w in layers),
            )
        except (struct.error, ValueError) as error:
            raise self._fail("the feature record is cut") from error

    def _family(self) -> str:
        return str(json.loads(self.section("META") or b"{}").get("family", ""))

    def _read_table(self, raw: bytes) -> dict[str, Record]:
        count, entry, _, _ = struct.unpack_from("<IIII", raw)
        if entry != _TENSOR.size or 16 + count * entry != len(raw):
            raise self._fail("the tensor table has the wrong size")
        weights, records = self._sections["WGTS"][1], {}
        for i in range(count):
            v = _TENSOR.unpack_from(raw, 16 + i * entry)
            if v[0] >= len(ROLES) or v[2] > 3 or v[8] > weights or v[9] > weights - v[8]:
                raise self._fail(f"tensor {i} lies outside the weights or has an unknown role or format")
            name = ROLES[v[0]] if v[1] == _GLOBAL else f"layers.{v[1]}.{ROLES[v[0]]}"
            fmt = Format(bits=8 if v[2] == 3 else 4, group=v[6]) if v[2] else None
            if v[9] != (packing.matrix_bytes(fmt, v[3], v[4]) if fmt else 4 * v[4]):
                raise self._fail(f"{name}: {v[9]} bytes do not fit its shape")
            records[name] = Record(
                name=name, format=fmt, rows=v[3], cols=v[4], row_exp=v[5], offset=v[8], size=v[9], crc=v[7]
            )
        return records

    def raw(self, name: str) -> U8:
        """The packed bytes of a tensor, a view of the mapping."""
        r = self.records[name]
        start = self._sections["WGTS"][0] + r.offset
        return self.data[start : start + r.size]

    def load(self, name: str) -> Quantized | F32:
        """A tensor as the reference wants it: Quantized (rows, cols) or float32 (cols,)."""
        r = self.records[name]
        if r.format is None:
            return self.raw(name).view("<f4").astype(np.float32)
        return packing.unpack(self.raw(name), r.format, r.rows, r.cols, r.row_exp)

    def weights(self) -> dict[str, Quantized | F32]:
        """Every tensor, for reference.Reference."""
        return {name: self.load(name) for name in self.records}

    def verify(self) -> None:
        """Checks every tensor's checksum and every block's; raises IntegrityError naming the tensor or the block."""
        for name, r in self.records.items():
            if crc32c.crc32c(self.raw(name).tobytes()) != r.crc:
                raise IntegrityError("E_MODEL_CHECKSUM", self.path, f"tensor {name}: checksum does not match")
        sums = self.section("CSUM")
        start, length, _ = self._sections["WGTS"]
        for i in range(-(-length // PAGE)):
            block = self.data[start + i * PAGE : start + min((i + 1) * PAGE, length)].tobytes()
            (expected,) = struct.unpack_from("<I", sums, 8 + 4 * i)
            if crc32c.crc32c(block, crc32c.crc32c(struct.pack("<I", i))) != expected:
                raise IntegrityError("E_MODEL_CHECKSUM", self.path, f"64 KiB block {i} of the weights does not match")
