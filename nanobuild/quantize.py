# SPDX-License-Identifier: Apache-2.0
"""Checkpoint to quantized checkpoint: look at every tensor once, print an exact plan, then stream tensor by tensor.

The result is a plain safetensors file that any board's bundle can be built from. Peak memory is a chunk of rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from nanobuild import __version__, formats, packing
from nanobuild.errors import InputError
from nanobuild.formats import F32, Format, Quantized
from nanobuild.progress import Progress, silent
from nanobuild.publish import published_file
from nanobuild.recipes import Choice, Recipe, format_of
from nanobuild.spec import ModelSpec

KIND = "nano-build quantized checkpoint"
_CHUNK = 1 << 19  # weights worked on at a time: small enough for the last-level cache


class Source(Protocol):
    """What quantize needs of a checkpoint."""

    @property
    def path(self) -> Path: ...
    @property
    def spec(self) -> ModelSpec: ...
    def read(self, name: str, start: int = 0, stop: int | None = None) -> F32: ...
    def source_hash(self) -> str: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One tensor of the plan: its shape, its format (None: float32), what was seen in its weights."""

    name: str
    shape: tuple[int, ...]
    format: Format | None
    row_exp: int
    std: float
    max_abs: float

    @property
    def portable_bytes(self) -> int:
        """Bytes of its data in the quantized checkpoint."""
        if self.format is None:
            return 4 * math.prod(self.shape)
        return self.format.portable_bytes(*self.shape)

    @property
    def packed_bytes(self) -> int:
        """Bytes of its data in model.nano."""
        if self.format is None:
            return 4 * math.prod(self.shape)
        return packing.matrix_bytes(self.format, *self.shape)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "format": self.format.name if self.format else "f32",
            "row_exp": self.row_exp,
            "std": self.std,
            "max_abs": self.max_abs,
            "bytes": self.portable_bytes,
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What quantizing will write, to the byte."""

    spec: ModelSpec
    recipe: Recipe
    tensors: tuple[Planned, ...]
    header: bytes  # of the safetensors file, its length field included
    blobs: Mapping[str, bytes]
    notes: Mapping[str, Any]  # what the caller put into the metadata

    @property
    def file_bytes(self) -> int:
        """Exact size of the quantized checkpoint."""
        return len(self.header) + sum(t.portable_bytes for t in self.tensors) + sum(map(len, self.blobs.values()))

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied head counted once."""
        return sum(math.prod(t.shape) for t in self.tensors)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, norms included, without tokenizer and header."""
        return sum(t.portable_bytes for t in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """The plan as a plain dict: sizes in bytes, one row per tensor."""
        return {
            "recipe": self.recipe.name,
            "parameters": self.parameters,
            "file_bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "bits_per_weight": 8 * self.weight_bytes / self.parameters,
            "ratio_to_float16": self.weight_bytes / (2 * self.parameters),
            "tensors": [t.to_json() for t in self.tensors],
        }


def make_plan(
    source: Source,
    recipe: Recipe,
    *,
    tokenizer: bytes,
    chat: bytes,
    notes: Mapping[str, Any],
    progress: Progress = silent,
) -> Plan:
    """Reads every tensor once (largest magnitude, standard deviation, finiteness) and fixes all formats.

    `notes` goes into the file's metadata. Raises InputError E_CKPT_NONFINITE, E_RECIPE_MATCH.
    """
    shapes = source.spec.tensor_shapes()
    choices = recipe.choices(name for name, shape in shapes.items() if len(shape) == 2)
    total, done = sum(math.prod(shape) for shape in shapes.values()), 0
    tensors = []
    for name, shape in shapes.items():
        tensors.append(_look(source, name, shape, choices.get(name), recipe))
        done += math.prod(shape)
        progress("looking at the weights", done, total)
    metadata = {
        "kind": KIND,
        "version": 1,
        "tool": __version__,
        "recipe": recipe.name,
        "recipe_sha256": recipe.identity(),
        "source": source.path.name,
        "source_sha256": source.source_hash(),
        "spec": source.spec.to_json(),
        "formats": {t.name: [t.format.name, t.row_exp] for t in tensors if t.format},
        **notes,
    }
    blobs = {"tokenizer": tokenizer, "chat": chat}
    header = _header(tensors, blobs, metadata)
    return Plan(spec=source.spec, recipe=recipe, tensors=tuple(tensors), header=header, blobs=blobs, notes=notes)


def _look(source: Source, name: str, shape: tuple[int, ...], choice: Choice | None, recipe: Recipe) -> Planned:
    count, total, squares, largest, bad = 0, 0.0, 0.0, 0.0, 0
    for _, chunk in _chunks(source, name, shape):
        finite = np.isfinite(chunk)
        if not finite.all():
            bad += int(chunk.size - finite.sum())
            continue
        count += chunk.size
        total += float(chunk.sum(dtype=np.float64))
        squares += float(np.square(chunk, dtype=np.float64).sum())
        largest = max(largest, float(np.abs(chunk).max(initial=0.0)))
    if bad:
        raise InputError("E_CKPT_NONFINITE", source.path, f"{name}: {bad} weights are NaN or infinite, none allowed")
    mean = total / max(count, 1)
    std = math.sqrt(max(squares / max(count, 1) - mean * mean, 0.0))
    fmt = format_of(choice, recipe, std) if choice else None
    row_exp = formats.row_exponent_for(fmt, largest) if fmt else 0
    return Planned(name=name, shape=shape, format=fmt, row_exp=row_exp, std=std, max_abs=largest)


def _chunks(source: Source, name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, F32]]:
    """(first row, rows) in runs of a multiple of 16 rows; a vector comes as one row-less piece."""
    if len(shape) == 1:
        yield 0, source.read(name)
        return
    step = max(16, _CHUNK // shape[1] // 16 * 16)
    for start in range(0, shape[0], step):
        yield start, source.read(name, start, min(start + step, shape[0]))


def _parts(t: Planned) -> list[tuple[str, str, list[int]]]:
    """(tensor name in the file, dtype, shape) of one planned tensor, in file order."""
    if t.format is None:
        return [(t.name, "F32", list(t.shape))]
    rows, cols = t.shape
    codes = ("U8", t.format.code_bytes(cols)) if t.format.bits == 4 else ("I8", cols)
    return [
        (f"{t.name}.codes", codes[0], [rows, codes[1]]),
        (f"{t.name}.scales", "U8", [rows, t.format.groups(cols)]),
        (f"{t.name}.row_scales", "F16", [rows]),
    ]


def _quantized(source: Source, t: Planned, fmt: Format) -> Iterator[tuple[int, Quantized]]:
    """(first row, quantized rows) in order. numpy lets go of the interpreter, so chunks are worked on side by side."""
    workers = len(os.sched_getaffinity(0))
    waiting: deque[tuple[int, Future[Quantized]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for first, chunk in _chunks(source, t.name, t.shape):
                waiting.append((first, pool.submit(formats.quantize, chunk, fmt, t.row_exp)))
                if len(waiting) > workers:
                    yield _oldest(waiting)
            while waiting:
                yield _oldest(waiting)
        finally:
            pool.shutdown(cancel_futures=True)


def _oldest(waiting: deque[tuple[int, Future[Quantized]]]) -> tuple[int, Quantized]:
    first, job = waiting.popleft()
    return first, job.result()


_SIZES = {"F32": 4, "U8": 1, "I8": 1, "F16": 2}


def _header(tensors: list[Planned], blobs: Mapping[str, bytes], metadata: Mapping[str, Any]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"nano-build": json.dumps(metadata, sort_keys=True)}}
    at = 0
    parts = [part for t in tensors for part in _parts(t)] + [(name, "U8", [len(b)]) for name, b in blobs.items()]
    for name, dtype, shape in parts:
        end = at + math.prod(shape) * _SIZES[dtype]
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_quantized(source: Source, plan: Plan, out: Path, *, progress: Progress = silent) -> str:
    """Quantizes by plan and writes `out`, published by rename; returns its SHA-256 (hex). Raises ResourceError."""
    total, done = plan.parameters, 0
    with published_file(out) as file:
        file.write(plan.header)
        at = len(plan.header)
        for t in plan.tensors:
            if t.format is None:
                file.seek(at)
                file.write(source.read(t.name).astype("<f4").tobytes())
            else:
                _write_matrix(file, at, source, t)
            at += t.portable_bytes
            done += math.prod(t.shape)
            progress("quantizing", done, total)
        file.seek(at)
        for blob in plan.blobs.values():
            file.write(blob)
        file.flush()
        file.seek(0)
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def _write_matrix(file: BinaryIO, at: int, source: Source, t: Planned) -> None:
    assert t.format is not None
    rows, cols = t.shape
    code_bytes, groups = t.format.code_bytes(cols), t.format.groups(cols)
    starts = (at, at + rows * code_bytes, at + rows * (code_bytes + groups))
    for first, q in _quantized(source, t, t.format):
        codes = packing.nibbles(q.codes) if t.format.bits == 4 else q.codes
        pieces = (codes, q.scales, q.row_scales.astype("<f2"))
        for start, width, piece in zip(starts, (code_bytes, groups, 2), pieces, strict=True):
            file.seek(start + first * width)
            file.write(piece.tobytes())
