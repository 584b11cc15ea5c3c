# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as the rest of nano-build sees it: a feature record and canonical tensors, read row by row.

Whatever the files call their tensors and however they store them, what comes out is float32 with the rows of q and k
in rotate-half order and norms ready to multiply by. Every tensor of the source is used, skipped with a reason, or an
error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from nanobuild import families
from nanobuild.errors import InputError, quoted
from nanobuild.families.base import GGUF_CODES, HF_CODES, Keys, Origin, Reading
from nanobuild.gguf_file import GgufFile
from nanobuild.jsonstrict import Json, load_object
from nanobuild.rawfile import FloatArray, RawFile, RawTensor, WeightSource
from nanobuild.safetensors_file import INDEX_NAME, SafetensorsFiles
from nanobuild.spec import ModelSpec

MAX_CONFIG = 4 << 20
_COMPARE_ROWS = 1024
_HASH_BYTES = 1 << 20
_GGUF_STOP_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """A canonical tensor; dtype and nbytes are those of the source."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSource:
    """Where a tokenizer can be read from: the checkpoint's folder, or GGUF metadata (keys start with tokenizer.)."""

    folder: Path | None
    gguf: Mapping[str, object] | None


class Checkpoint:
    """An open checkpoint. A context manager; reads are by position, so one object may be read from several threads."""

    def __init__(
        self,
        *,
        path: Path,
        weights: WeightSource,
        reading: Reading,
        tokenizer_source: TokenizerSource,
        eos_ids: tuple[int, ...],
        bos_id: int | None,
    ) -> None:
        """Checks that the source holds exactly the tensors of the record. Raises InputError E_CKPT_*."""
        self.path = path
        self.spec: ModelSpec = reading.spec
        self.warnings: list[str] = list(reading.warnings)
        self.tokenizer_source = tokenizer_source
        self.eos_ids = eos_ids
        self.bos_id = bos_id
        self._weights = weights
        self._origins = reading.origins
        self.tensors: dict[str, TensorInfo] = dict(self._needed())
        self.skipped: list[tuple[str, str]] = list(self._left_over(reading.skipped))

    def _needed(self) -> Iterator[tuple[str, TensorInfo]]:
        shapes, have = self.spec.tensor_shapes(), self._weights.tensors
        missing = [self._origins[name].name for name in shapes if self._origins[name].name not in have]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError("E_CKPT_MISSING_TENSOR", self.path, f"tensor {quoted(missing[0])}{more} is not there")
        for name, shape in shapes.items():
            raw = have[self._origins[name].name]
            if raw.shape != shape:
                text = f"tensor {quoted(raw.name)} has the shape {list(raw.shape)[:8]}, needed is {list(shape)}"
                raise InputError("E_CKPT_SHAPE", self.path, text)
            self._weights.check_type(raw.name)
            yield name, TensorInfo(name=name, shape=shape, dtype=raw.dtype, nbytes=raw.nbytes)

    def _left_over(self, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        used = {origin.name for origin in self._origins.values()}
        for raw in self._weights.tensors.values():
            if raw.name in used:
                continue
            reason = known.get(raw.name) or _skip_reason(raw)
            if reason is None:
                text = f"tensor {quoted(raw.name)} is not known in this architecture"
                raise InputError("E_CKPT_UNKNOWN_TENSOR", self.path, text)
            yield raw.name, reason

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows [start, stop) of a canonical matrix (rows, cols), or elements of a vector, as C-contiguous float32.

        NaN and infinities come out as they are. Raises KeyError and IndexError on a wrong name or range, InputError
        when the file has changed under us.
        """
        info, origin = self.tensors[name], self._origins[name]
        stop = info.shape[0] if stop is None else stop
        if not 0 <= start <= stop <= info.shape[0]:
            raise IndexError(f"{name}: rows {start} to {stop} of {info.shape[0]}")
        if origin.change == "interleaved":
            return self._read_interleaved(origin, start, stop)
        values = self._weights.read_rows(origin.name, start, stop)
        if origin.change == "plus_one":
            values += np.float32(1)
        return values

    def _read_interleaved(self, origin: Origin, start: int, stop: int) -> FloatArray:
        """Rows stored (head, pair, half) in the order (head, half, pair); whole heads are read."""
        width = origin.head_dim
        first, last = start // width, -(-stop // width)
        stored = self._weights.read_rows(origin.name, first * width, last * width)
        columns = stored.shape[1]
        ordered = stored.reshape(last - first, width // 2, 2, columns).swapaxes(1, 2).reshape(-1, columns)
        return np.ascontiguousarray(ordered[start - first * width : stop - first * width])

    @property
    def files(self) -> list[Path]:
        """The weight files, in a fixed order."""
        return self._weights.files

    def source_hash(self, progress: Progress | None = None) -> str:
        """SHA-256 in hex over the weight files one after the other; for a single file, the file's own."""
        digest = hashlib.sha256()
        files = [RawFile(path) for path in self._weights.files]
        try:
            done, total = 0, sum(file.size for file in files)
            buffer = np.empty(_HASH_BYTES, np.uint8)
            for file in files:
                for at in range(0, file.size, _HASH_BYTES):
                    part = buffer[: min(_HASH_BYTES, file.size - at)]
                    file.read_into(at, part)
                    digest.update(part.data)
                    done += len(part)
                    if progress is not None:
                        progress(done, total)
        finally:
            for file in files:
                file.close()
        return digest.hexdigest()

    def close(self) -> None:
        """Closes the weight files."""
        self._weights.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _skip_reason(raw: RawTensor) -> str | None:
    """Why a tensor that no family asks for may be left alone, or None."""
    if 0 in raw.shape:
        return "it has no elements"
    if raw.name.endswith(".rotary_emb.inv_freq"):
        return "rotation frequencies come from the configuration"
    return None


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder with safetensors and config.json, a .safetensors file in such a folder, or a .gguf file.

    Raises InputError: E_CKPT_* (files, tensors), E_ST_* and E_GGUF_* (containers), E_CFG_* (configuration).
    """
    if not os.path.exists(path):  # never raises, unlike Path.exists
        raise InputError("E_CKPT_NOT_FOUND", path, "no such file or folder")
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".safetensors":
        return _open_hf(path.parent, path, path)
    if path.suffix == ".gguf" or _starts_with_gguf(path):
        return _open_gguf(path)
    raise InputError("E_CKPT_KIND", path, "neither a folder, nor a .safetensors file, nor a GGUF file")


def _starts_with_gguf(path: Path) -> bool:
    file = RawFile(path)
    try:
        return file.size >= 4 and file.pread(0, 4) == b"GGUF"
    finally:
        file.close()


def _open_folder(folder: Path) -> Checkpoint:
    single, index = folder / "model.safetensors", folder / INDEX_NAME
    for weights in (single, index):
        if os.path.exists(weights):
            return _open_hf(folder, weights, folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1 and not os.path.exists(folder / "config.json"):
        return _open_gguf(ggufs[0])
    hint = "only safetensors and GGUF are read; pickled weights can run code and are refused"
    text = f"has no model.safetensors, no {INDEX_NAME} and no single .gguf file"
    raise InputError("E_CKPT_NO_WEIGHTS", folder, text, hint=hint)


def _open_hf(folder: Path, weights_path: Path, shown: Path) -> Checkpoint:
    config_path = folder / "config.json"
    config = load_object(config_path, MAX_CONFIG, missing="E_CFG_MISSING", bad="E_CFG_JSON")
    weights = SafetensorsFiles(weights_path)
    try:
        reading = _merge_equal_head(families.read_hf(config_path, config, weights), weights)
        eos_ids, bos_id = _hf_stops(folder, config, reading.spec.vocab)
        return Checkpoint(
            path=shown,
            weights=weights,
            reading=reading,
            tokenizer_source=TokenizerSource(folder=folder, gguf=None),
            eos_ids=eos_ids,
            bos_id=bos_id,
        )
    except BaseException:
        weights.close()
        raise


def _merge_equal_head(reading: Reading, weights: WeightSource) -> Reading:
    """Ties a head that config.json calls tied and that is the embedding's equal, value by value."""
    if reading.spec.tied or not reading.warnings:
        return reading
    embed, head = (weights.tensors.get(reading.origins[name].name) for name in ("embed", "head"))
    if embed is None or head is None or embed.shape != head.shape or len(embed.shape) != 2:
        return reading
    if not any(text.startswith("tie_word_embeddings is true") for text in reading.warnings):
        return reading
    for row in range(0, embed.shape[0], _COMPARE_ROWS):
        stop = min(row + _COMPARE_ROWS, embed.shape[0])
        if not np.array_equal(weights.read_rows(embed.name, row, stop), weights.read_rows(head.name, row, stop)):
            return reading
    return dataclasses.replace(
        reading,
        spec=dataclasses.replace(reading.spec, tied=True),
        origins={name: origin for name, origin in reading.origins.items() if name != "head"},
        skipped=reading.skipped | {head.name: "equal to the embedding"},
        warnings=[text for text in reading.warnings if not text.startswith("tie_word_embeddings is true")],
    )


def _hf_stops(folder: Path, config: dict[str, Json], vocab: int) -> tuple[tuple[int, ...], int | None]:
    """Stop ids from both files, and the start id from the first that has one."""
    sources = [Keys(folder / "config.json", config, HF_CODES)]
    inner = sources[0].part("text_config")
    sources += [inner] if inner is not None else []
    generation = folder / "generation_config.json"
    if os.path.exists(generation):
        data = load_object(generation, MAX_CONFIG, missing="E_CFG_MISSING", bad="E_CFG_JSON")
        sources.append(Keys(generation, data, HF_CODES))
    eos = [token for keys in sources for token in keys.ids("eos_token_id", vocab)]
    bos = [token for keys in sources for token in keys.ids("bos_token_id", vocab)]
    return tuple(dict.fromkeys(eos)), bos[0] if bos else None


class _Tokenizer(Mapping[str, object]):
    """The tokenizer's part of GGUF metadata; arrays are decoded when they are asked for."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self._keys = [key for key in metadata if key.startswith("tokenizer.")]

    def __getitem__(self, key: str) -> object:
        if not key.startswith("tokenizer."):
            raise KeyError(key)
        return self._metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    try:
        keys = Keys(path, file.metadata, GGUF_CODES)
        keys.refuse_unless({"split.count": (0, 1)})
        reading = families.read_gguf(path, file.metadata, file)
        stops = Keys(path, file.metadata, GGUF_CODES, prefix="tokenizer.ggml.")
        eos = [token for key in _GGUF_STOP_KEYS for token in stops.ids(key, reading.spec.vocab)]
        bos = stops.ids("bos_token_id", reading.spec.vocab)
        return Checkpoint(
            path=path,
            weights=file,
            reading=reading,
            tokenizer_source=TokenizerSource(folder=None, gguf=_Tokenizer(file.metadata)),
            eos_ids=tuple(dict.fromkeys(eos)),
            bos_id=bos[0] if bos else None,
        )
    except BaseException:
        file.close()
        raise
