# SPDX-License-Identifier: Apache-2.0
"""GGUF version 2 and 3: a strict header reader that checks every count, length and offset before it believes it.

Arrays in the metadata are only measured when the file is opened and decoded when asked for, so a vocabulary of a
quarter of a million tokens costs a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError, quoted
from nanobuild.gguf_blocks import BLOCK_TYPES, OTHER_TYPES, BlockType, dequantize
from nanobuild.rawfile import FloatArray, RawFile, RawTensor

MetaValue = bool | int | float | str | list[str] | npt.NDArray[np.generic]

MAX_HEADER = 128 << 20
MAX_STRING = 16 << 20
MAX_ARRAY = 4 << 20
MAX_ITEMS = 65536  # keys, and tensors
MAX_DIMS = 4
_CHUNK_VALUES = 1 << 18  # decoded at a time: fits the cache and bounds the scratch memory

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8",
            12: "<f8"}  # fmt: skip
_U64 = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """An array that is still in the file."""

    kind: int
    count: int
    begin: int
    end: int


class _Header:
    """A cursor over the start of the file; the bytes arrive as they are needed."""

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._bytes = bytearray()
        self.pos = 0

    def fail(self, code: str, text: str) -> InputError:
        return InputError(code, self._file.path, text)

    def _reach(self, end: int) -> None:
        """Makes the header's bytes up to `end` available."""
        if end <= len(self._bytes):
            return
        if end > self._file.size:
            raise self.fail("E_GGUF_TRUNCATED", f"header needs {end} bytes, the file has {self._file.size}")
        if end > MAX_HEADER:
            raise self.fail("E_GGUF_LIMIT", f"header is longer than the {MAX_HEADER} bytes allowed")
        have = len(self._bytes)
        upto = min(max(end, 2 * have, 1 << 20), self._file.size, MAX_HEADER)
        self._bytes += self._file.pread(have, upto - have)

    def take(self, count: int) -> bytes:
        self._reach(self.pos + count)
        self.pos += count
        return bytes(self._bytes[self.pos - count : self.pos])

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self, what: str) -> str:
        length = self.u64()
        if length > MAX_STRING:
            raise self.fail("E_GGUF_STRING", f"{what} of {length} bytes, at most {MAX_STRING} are allowed")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("E_GGUF_STRING", f"{what} is not valid UTF-8") from None

    def skip_strings(self, count: int, what: str) -> None:
        """Moves past `count` strings; the loop that a large vocabulary spends its time in."""
        pos, have, data, unpack = self.pos, len(self._bytes), self._bytes, _U64.unpack_from
        for _ in range(count):
            if pos + 8 > have:
                self._reach(pos + 8)
                have = len(data)
            length = unpack(data, pos)[0]
            if length > MAX_STRING:
                raise self.fail("E_GGUF_STRING", f"{what} holds a string of {length} bytes, allowed {MAX_STRING}")
            pos += 8 + length
        self._reach(pos)
        self.pos = pos

    def value(self, key: str) -> MetaValue | _Span:
        what, kind = f"value of {quoted(key)}", self.u32()
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _SCALARS:
            raise self.fail("E_GGUF_TYPE", f"{what} has the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        number: int | float = np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()
        if kind != _BOOL:
            return number
        if number > 1:
            raise self.fail("E_GGUF_VALUE", f"{what} is a boolean of {number}")
        return bool(number)

    def _array(self, what: str) -> _Span:
        kind, count, left = self.u32(), self.u64(), self._file.size - self.pos
        if kind != _STRING and kind not in _SCALARS:
            raise self.fail("E_GGUF_TYPE", f"{what} is an array of type {kind}, which is not supported")
        if count > MAX_ARRAY:
            raise self.fail("E_GGUF_COUNT", f"{what} has {count} elements, at most {MAX_ARRAY} are allowed")
        least = count * (8 if kind == _STRING else np.dtype(_SCALARS[kind]).itemsize)
        if least > left:
            raise self.fail("E_GGUF_TRUNCATED", f"{what} needs {least} bytes, {left} are left in the file")
        begin = self.pos
        if kind == _STRING:
            self.skip_strings(count, what)
        else:
            self._reach(begin + least)
            self.pos += least
        return _Span(kind, count, begin, self.pos)


class Metadata(Mapping[str, MetaValue]):
    """The key-value pairs; looking up an array reads it from the file."""

    def __init__(self, file: RawFile, values: dict[str, MetaValue | _Span]) -> None:
        self._file = file
        self._values = values

    def __getitem__(self, key: str) -> MetaValue:
        value = self._values[key]
        return self._decode(key, value) if isinstance(value, _Span) else value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _decode(self, key: str, span: _Span) -> list[str] | npt.NDArray[np.generic]:
        data = self._file.pread(span.begin, span.end - span.begin)
        if span.kind == _BOOL:
            return np.frombuffer(data, np.uint8).astype(np.bool_)
        if span.kind != _STRING:
            return np.frombuffer(data, _SCALARS[span.kind]).copy()
        out, pos, unpack = [], 0, _U64.unpack_from
        try:
            for _ in range(span.count):
                begin = pos + 8
                pos = begin + unpack(data, pos)[0]
                out.append(data[begin:pos].decode())
        except (UnicodeDecodeError, struct.error):
            raise InputError("E_GGUF_STRING", self._file.path, f"a string in {quoted(key)} is not valid") from None
        return out


class GgufFile:
    """An open GGUF file: `metadata`, `tensors` and rows of weights as float32."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the header. Raises InputError E_GGUF_*."""
        self._file = RawFile(path)
        try:
            self._open(_Header(self._file))
        except BaseException:
            self._file.close()
            raise

    def _open(self, header: _Header) -> None:
        size, path = self._file.size, self._file.path
        if size < 24:
            raise InputError("E_GGUF_SHORT", path, f"{size} bytes, a GGUF file has at least 24")
        if header.take(4) != b"GGUF":
            raise InputError("E_GGUF_MAGIC", path, "does not start with the letters GGUF")
        version = header.u32()
        if version not in (2, 3):
            swapped = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
            raise InputError("E_GGUF_VERSION", path, f"GGUF version {version}{swapped}, supported are 2 and 3")
        tensors, keys = header.u64(), header.u64()
        for what, count, least in (("tensors", tensors, 24), ("keys", keys, 13)):
            if count > MAX_ITEMS or count * least > size:
                allowed = min(MAX_ITEMS, size // least)
                raise InputError("E_GGUF_COUNT", path, f"{count} {what}, at most {allowed} are possible")
        self.metadata = self._read_metadata(header, keys)
        self.alignment = self._read_alignment()
        self._tensors, self._kinds = self._read_tensors(header, tensors)

    def _read_metadata(self, header: _Header, count: int) -> Metadata:
        values: dict[str, MetaValue | _Span] = {}
        for index in range(count):
            key = header.string(f"key {index}")
            if not key:
                raise header.fail("E_GGUF_KEY", f"key {index} is empty")
            if key in values:
                raise header.fail("E_GGUF_DUP", f"key {quoted(key)} is given twice")
            values[key] = header.value(key)
        return Metadata(self._file, values)

    def _read_alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if type(value) is not int:
            raise InputError("E_GGUF_TYPE", self._file.path, "general.alignment is not an integer")
        if not 8 <= value <= 4096 or value & (value - 1):
            text = f"general.alignment is {value}, allowed are the powers of two from 8 to 4096"
            raise InputError("E_GGUF_ALIGN", self._file.path, text)
        return value

    def _read_tensors(self, header: _Header, count: int) -> tuple[dict[str, RawTensor], dict[str, int]]:
        rough: list[tuple[str, tuple[int, ...], int, int]] = []
        kinds: dict[str, int] = {}
        for index in range(count):
            name = header.string(f"name of tensor {index}")
            if not name:
                raise header.fail("E_GGUF_KEY", f"tensor {index} has no name")
            if name in kinds:
                raise header.fail("E_GGUF_DUP", f"tensor {quoted(name)} is there twice")
            rank = header.u32()
            if not 1 <= rank <= MAX_DIMS:
                text = f"tensor {quoted(name)} has {rank} dimensions, allowed are 1 to {MAX_DIMS}"
                raise header.fail("E_GGUF_SHAPE", text)
            dims = tuple(header.u64() for _ in range(rank))
            kinds[name] = header.u32()
            rough.append((name, dims, kinds[name], header.u64()))
        start = -(-header.pos // self.alignment) * self.alignment
        tensors = {t[0]: self._tensor(start, *t) for t in rough}
        self._check_overlap(tensors)
        return tensors, kinds

    def _tensor(self, start: int, name: str, dims: tuple[int, ...], kind: int, offset: int) -> RawTensor:
        path, what = self._file.path, f"tensor {quoted(name)}"
        block = BLOCK_TYPES.get(kind)
        if block is None:
            known = OTHER_TYPES.get(kind, "unknown")
            names = ", ".join(b.name for b in BLOCK_TYPES.values())
            raise InputError("E_GGUF_TYPE", path, f"{what} has type {kind} ({known}), supported are {names}")
        values = 1
        for dim in dims:
            values *= dim
        if min(dims) < 1 or values > 1 << 48:
            raise InputError("E_GGUF_SHAPE", path, f"{what} has the dimensions {list(dims)}")
        if dims[0] % block.values:
            text = f"{what}: rows of {dims[0]} values are not whole {block.name} blocks of {block.values}"
            raise InputError("E_GGUF_SHAPE", path, text)
        nbytes, left = values // block.values * block.nbytes, self._file.size - start
        if offset % self.alignment:
            text = f"{what} starts at {offset}, which is not a multiple of {self.alignment}"
            raise InputError("E_GGUF_OFFSET", path, text)
        if offset >= max(left, 1):
            text = f"{what} starts at {offset}, the data section has {max(left, 0)} bytes"
            raise InputError("E_GGUF_OFFSET", path, text)
        if nbytes > left - offset:
            text = f"{what} needs {nbytes} bytes from {offset}, the data section has {left}"
            raise InputError("E_GGUF_TRUNCATED", path, text)
        return RawTensor(name=name, dtype=block.name, shape=dims[::-1], offset=start + offset, nbytes=nbytes)

    def _check_overlap(self, tensors: dict[str, RawTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda t: t.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                text = f"tensors {quoted(before.name)} and {quoted(after.name)} overlap"
                raise InputError("E_GGUF_OFFSET", self._file.path, text)

    @property
    def tensors(self) -> Mapping[str, RawTensor]:
        """Every tensor by its name; shapes are row-major."""
        return self._tensors

    @property
    def files(self) -> list[Path]:
        """The one file."""
        return [self._file.path]

    def check_type(self, name: str) -> None:
        """Every type that this reader opens can be read."""

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) of tensor `name` as float32 (rows, ...) or, for a vector, its elements."""
        tensor, block = self._tensors[name], BLOCK_TYPES[self._kinds[name]]
        if len(tensor.shape) == 1:  # a block may reach over both ends, so all of it is read
            return self._decode(block, tensor.offset, tensor.shape[0])[start:stop].copy()
        per_row = math.prod(tensor.shape[1:])
        offset = tensor.offset + start * per_row // block.values * block.nbytes
        return self._decode(block, offset, (stop - start) * per_row).reshape(stop - start, *tensor.shape[1:])

    def _decode(self, block: BlockType, offset: int, count: int) -> FloatArray:
        """`count` values in whole blocks from `offset`, a chunk at a time."""
        out = np.empty(count, np.float32)
        for at in range(0, count, _CHUNK_VALUES):
            part = out[at : at + _CHUNK_VALUES]
            raw = np.empty(len(part) // block.values * block.nbytes, np.uint8)
            self._file.read_into(offset + at // block.values * block.nbytes, raw)
            part[:] = dequantize(block, raw)
        return out

    def close(self) -> None:
        """Closes the file; arrays and rows can no longer be read."""
        self._file.close()
