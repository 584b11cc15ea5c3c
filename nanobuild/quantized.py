# SPDX-License-Identifier: Apache-2.0
"""Reads what quantize writes: the portable, board-independent checkpoint from which every bundle is built."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np

from nanobuild import packing
from nanobuild.errors import InputError, NanoBuildError, quoted
from nanobuild.formats import F32, Format, Quantized, parse_format
from nanobuild.jsonstrict import JsonError, parse
from nanobuild.quantize import KIND
from nanobuild.safetensors_file import SafetensorsFiles
from nanobuild.spec import ModelSpec

_HINT = "make it again with nano-build quantize"


class QuantizedCheckpoint:
    """An open quantized checkpoint. Shapes, dtypes and sizes of all tensors are checked on opening."""

    def __init__(self, path: Path) -> None:
        """Raises InputError E_ST_* for a damaged container, E_QUANTIZED for one that isn't ours or lies."""
        self.path = path
        if path.is_dir() or path.suffix == ".gguf":
            raise self._fail("this is not a quantized checkpoint")
        self._file = SafetensorsFiles(path)
        try:
            self._open()
        except NanoBuildError:
            self._file.close()
            raise
        except (KeyError, TypeError, ValueError, JsonError) as error:
            self._file.close()
            raise self._fail(f"its metadata cannot be read: {quoted(error)}") from error

    def _open(self) -> None:
        text = self._file.metadata.get("nano-build")
        metadata = parse(text.encode()) if text is not None else None
        if not isinstance(metadata, dict) or metadata.get("kind") != KIND:
            raise self._fail("this is not a quantized checkpoint")
        if metadata.get("version") != 1:
            raise self._fail(f"version {quoted(metadata.get('version'))}, this tool reads 1")
        self.metadata: dict[str, Any] = cast("dict[str, Any]", metadata)
        self.spec = ModelSpec.from_json(self.metadata["spec"])
        self.formats: dict[str, tuple[Format, int]] = {}
        for name, (fmt, row_exp) in self.metadata["formats"].items():
            if not isinstance(row_exp, int) or not -126 <= row_exp <= 127:
                raise self._fail(f"{quoted(name)}: row exponent {quoted(row_exp)}, -126 to 127 allowed")
            self.formats[name] = (parse_format(fmt), row_exp)
        expected: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.shapes = self.spec.tensor_shapes()
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                expected[name] = ("F32", shape)
                continue
            fmt, _ = self.formats[name]
            width = fmt.code_bytes(shape[1])
            expected[f"{name}.codes"] = ("U8" if fmt.bits == 4 else "I8", (shape[0], width))
            expected[f"{name}.scales"] = ("U8", (shape[0], fmt.groups(shape[1])))
            expected[f"{name}.row_scales"] = ("F16", shape[:1])
        for name, (dtype, shape) in expected.items():
            tensor = self._file.tensors.get(name)
            if tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
                found = "missing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
                raise self._fail(f"tensor {quoted(name)}: found {found}, expected {dtype} {shape}")

    def _fail(self, text: str) -> InputError:
        return InputError("E_QUANTIZED", self.path, text, hint=_HINT)

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether a path is a quantized checkpoint, judged by its header alone."""
        if not path.is_file() or path.suffix != ".safetensors":
            return False
        try:
            file = SafetensorsFiles(path)
        except NanoBuildError:
            return False
        try:
            return KIND in file.metadata.get("nano-build", "")
        finally:
            file.close()

    def __enter__(self) -> QuantizedCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def vector(self, name: str) -> F32:
        """A float32 vector (n,)."""
        return self._file.read_rows(name, 0, self._file.tensors[name].shape[0])

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> Quantized:
        """Rows [start, stop) of a matrix."""
        rows, cols = self.shapes[name]
        stop = rows if stop is None else stop
        fmt, row_exp = self.formats[name]
        codes = self._file.read_bytes(f"{name}.codes", start, stop)
        scales = self._file.read_bytes(f"{name}.row_scales", start, stop).reshape(-1).view("<f2").astype(np.float16)
        return Quantized(
            format=fmt,
            codes=packing.from_nibbles(codes, cols) if fmt.bits == 4 else codes,
            scales=self._file.read_bytes(f"{name}.scales", start, stop),
            row_scales=scales,
            row_exp=row_exp,
        )

    def tensor_bytes(self, name: str) -> int:
        """Bytes of one tensor of the model in this file."""
        if name not in self.formats:
            return self._file.tensors[name].nbytes
        return sum(self._file.tensors[f"{name}.{part}"].nbytes for part in ("codes", "scales", "row_scales"))

    def _blob(self, name: str) -> bytes:
        tensor = self._file.tensors.get(name)
        if tensor is None or tensor.dtype != "U8" or len(tensor.shape) != 1:
            raise self._fail(f"tensor {quoted(name)} is missing or not bytes")
        return self._file.read_bytes(name, 0, math.prod(tensor.shape)).tobytes()

    @property
    def tokenizer(self) -> bytes:
        """Section TOKN, ready for the model file."""
        return self._blob("tokenizer")

    @property
    def chat(self) -> bytes:
        """Section CHAT; empty when there is no chat mode."""
        return self._blob("chat")
