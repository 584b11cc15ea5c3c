# SPDX-License-Identifier: Apache-2.0
"""Safetensors, one file or shards with an index: a strict header reader and rows of weights as float32.

The byte ranges must tile the data exactly: no holes, no overlap, nothing behind the last tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError, quoted
from nanobuild.jsonstrict import Json, JsonError, load_object, parse
from nanobuild.rawfile import FloatArray, RawFile, RawTensor

MAX_HEADER = 16 << 20
MAX_TENSORS = 65536
MAX_RANK = 8
MAX_INDEX = 16 << 20
INDEX_NAME = "model.safetensors.index.json"
_CHUNK_VALUES = 1 << 18

# Bits per element of every type the format knows; only those in _READABLE become floats.
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
         "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
         "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # fmt: skip
_READABLE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class _Shard:
    """One open file and its tensors."""

    def __init__(self, path: Path, missing: str) -> None:
        self.file = RawFile(path, missing=missing)
        try:
            self.tensors = self._read_header()
        except BaseException:
            self.file.close()
            raise

    def _fail(self, code: str, text: str) -> InputError:
        return InputError(code, self.file.path, text)

    def _read_header(self) -> dict[str, RawTensor]:
        size = self.file.size
        if size < 8:
            raise self._fail("E_ST_SHORT", f"{size} bytes, a safetensors file has at least 8")
        length = int.from_bytes(self.file.pread(0, 8), "little")
        if length > min(MAX_HEADER, size - 8):
            text = f"header of {length} bytes, {size - 8} are in the file and {MAX_HEADER} are allowed"
            raise self._fail("E_ST_HEADER_LEN", text)
        data = self.file.pread(8, length)
        if not data.startswith(b"{"):
            raise self._fail("E_ST_HEADER_JSON", "the header is not a JSON object")
        try:
            header = parse(data)
        except JsonError as error:
            code = {"utf8": "E_ST_HEADER_UTF8", "duplicate": "E_ST_DUP_KEY"}.get(error.kind, "E_ST_HEADER_JSON")
            raise self._fail(code, f"header: {error}") from None
        if not isinstance(header, dict):  # cannot be after the first byte, but the type checker cannot know
            raise self._fail("E_ST_HEADER_JSON", "the header is not a JSON object")
        self.metadata = self._check_metadata(header.pop("__metadata__", None))
        if len(header) > MAX_TENSORS:
            raise self._fail("E_ST_LIMIT", f"{len(header)} tensors, at most {MAX_TENSORS} are allowed")
        tensors = {name: self._tensor(name, entry, 8 + length) for name, entry in header.items()}
        self._check_tiling(tensors, 8 + length)
        return tensors

    def _check_metadata(self, metadata: Json) -> dict[str, str]:
        if metadata is None:
            return {}
        if not isinstance(metadata, dict):
            raise self._fail("E_ST_METADATA", "__metadata__ is not a map of strings")
        out = {key: value for key, value in metadata.items() if isinstance(value, str)}
        if len(out) != len(metadata):
            raise self._fail("E_ST_METADATA", "__metadata__ is not a map of strings")
        return out

    def _tensor(self, name: str, entry: Json, start: int) -> RawTensor:
        what = f"tensor {quoted(name)}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._fail("E_ST_ENTRY", f"{what} needs exactly dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise self._fail("E_ST_DTYPE", f"{what} has the unknown dtype {quoted(dtype)}")
        if not isinstance(shape, list) or len(shape) > MAX_RANK:
            raise self._fail("E_ST_SHAPE", f"{what}: the shape is not a list of at most {MAX_RANK} numbers")
        dims = [dim for dim in shape if type(dim) is int and dim >= 0]
        if len(dims) != len(shape):
            raise self._fail("E_ST_SHAPE", f"{what} has the shape {quoted(shape)}")
        bits = _BITS[dtype]
        for dim in dims:
            bits *= dim
        if bits > 1 << 63 or max(dims, default=0) > 1 << 48:
            raise self._fail("E_ST_OVERFLOW", f"{what} has the shape {quoted(shape)}, too large for any file")
        pair = [x for x in offsets if type(x) is int and x >= 0] if isinstance(offsets, list) else []
        if not isinstance(offsets, list) or len(offsets) != 2 or len(pair) != 2 or pair[0] > pair[1]:
            raise self._fail("E_ST_OFFSETS", f"{what} has the data_offsets {quoted(offsets)}")
        if bits % 8 or bits // 8 != pair[1] - pair[0]:
            text = f"{what}: {dtype} {dims} has {bits} bits, its byte range has {pair[1] - pair[0]} bytes"
            raise self._fail("E_ST_OFFSETS", text)
        return RawTensor(name=name, dtype=dtype, shape=tuple(dims), offset=start + pair[0], nbytes=bits // 8)

    def _check_tiling(self, tensors: dict[str, RawTensor], start: int) -> None:
        at = start
        for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
            if tensor.offset != at:
                kind = "overlaps another" if tensor.offset < at else "leaves a hole before it"
                raise self._fail("E_ST_OFFSETS", f"tensor {quoted(tensor.name)} {kind} (byte {tensor.offset})")
            at += tensor.nbytes
        if at > self.file.size:
            raise self._fail("E_ST_TRUNCATED", f"the tensors end at byte {at}, the file has {self.file.size}")
        if at < self.file.size:
            raise self._fail("E_ST_TRAILING", f"{self.file.size - at} bytes behind the last tensor")


class SafetensorsFiles:
    """Open safetensors files that together hold one checkpoint."""

    def __init__(self, path: Path) -> None:
        """`path`: a .safetensors file, or an index (any .json). Raises InputError E_ST_*, E_CKPT_INDEX, E_CKPT_PATH."""
        self._shards: list[_Shard] = []
        self._home: dict[str, _Shard] = {}
        try:
            if path.suffix == ".json":
                self._open_index(path)
            else:
                self._add(path, "E_CKPT_NOT_FOUND")
        except BaseException:
            self.close()
            raise
        self._tensors = {name: shard.tensors[name] for name, shard in self._home.items()}

    def _add(self, path: Path, missing: str) -> _Shard:
        shard = _Shard(path, missing)
        self._shards.append(shard)
        for name in shard.tensors:
            if name in self._home:
                raise InputError("E_CKPT_INDEX", path, f"tensor {quoted(name)} is in two shards")
            self._home[name] = shard
        return shard

    def _open_index(self, path: Path) -> None:
        weight_map = load_object(path, MAX_INDEX, missing="E_CKPT_INDEX", bad="E_CKPT_INDEX").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError("E_CKPT_INDEX", path, "weight_map is not a map of tensor names to files")
        wanted: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str):
                raise InputError("E_CKPT_INDEX", path, f"the shard of {quoted(name)} is not a file name")
            if not _is_plain(shard):
                raise InputError("E_CKPT_PATH", path, f"shard {quoted(shard)} is not a plain .safetensors file name")
            wanted.setdefault(shard, set()).add(name)
        for shard, names in sorted(wanted.items()):
            have = set(self._add(path.parent / shard, "E_CKPT_INDEX").tensors)
            if have != names:
                odd = min(have ^ names)
                where = "not in the index" if odd in have else "not in that shard"
                raise InputError("E_CKPT_INDEX", path, f"tensor {quoted(odd)} of {quoted(shard)} is {where}")

    @property
    def tensors(self) -> Mapping[str, RawTensor]:
        """Every tensor by its name."""
        return self._tensors

    @property
    def files(self) -> list[Path]:
        """The weight files in the order of their names."""
        return [shard.file.path for shard in self._shards]

    @property
    def metadata(self) -> dict[str, str]:
        """The files' free text, later files over earlier ones."""
        return {key: value for shard in self._shards for key, value in shard.metadata.items()}

    def read_bytes(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows [start, stop) of the first dimension as they are in the file: (rows, bytes of a row)."""
        tensor, file = self._tensors[name], self._home[name].file
        width = tensor.nbytes // max(tensor.shape[0], 1)
        out = np.empty((stop - start, width), np.uint8)
        file.read_into(tensor.offset + start * width, out.reshape(-1))
        return out

    def check_type(self, name: str) -> None:
        """Raises InputError E_ST_DTYPE when the tensor's dtype cannot be turned into floats."""
        tensor = self._tensors[name]
        if tensor.dtype not in _READABLE:
            text = f"tensor {quoted(name)} has dtype {tensor.dtype}, supported are {', '.join(_READABLE)}"
            raise InputError("E_ST_DTYPE", self._home[name].file.path, text)

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) of the first dimension as float32; float64 is rounded."""
        self.check_type(name)
        tensor, file = self._tensors[name], self._home[name].file
        dtype = np.dtype(_READABLE[tensor.dtype])
        inner = 1
        for dim in tensor.shape[1:]:
            inner *= dim
        out = np.empty((stop - start) * inner, np.float32)
        offset = tensor.offset + start * inner * dtype.itemsize
        if tensor.dtype == "F32":
            file.read_into(offset, out.view(np.uint8))
        else:
            for at in range(0, len(out), _CHUNK_VALUES):
                part = out[at : at + _CHUNK_VALUES]
                raw = np.empty(len(part) * dtype.itemsize, np.uint8)
                file.read_into(offset + at * dtype.itemsize, raw)
                _widen(raw, dtype, part)
        return out.reshape(stop - start, *tensor.shape[1:])

    def close(self) -> None:
        """Closes every file."""
        for shard in self._shards:
            shard.file.close()


def _widen(raw: npt.NDArray[np.uint8], dtype: np.dtype[np.generic], out: FloatArray) -> None:
    values = raw.view(dtype)
    if dtype.kind == "u":  # bfloat16: the upper half of a float32
        np.left_shift(values, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
        return
    with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinity, which the user of the values finds
        out[:] = values


def _is_plain(name: str) -> bool:
    """A file name that cannot leave its folder."""
    return name.endswith(".safetensors") and len(name) <= 255 and not any(c in name for c in "/\\\0")
