# SPDX-License-Identifier: Apache-2.0
"""A bundle: the folder that runs on the board. Program, model, Python runner, library, manifest; nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanobuild import __version__, packing, resources, verify
from nanobuild.compile import BuildReport, build_binary, build_library
from nanobuild.errors import InputError
from nanobuild.isa import Compiler
from nanobuild.modelfile import ModelFile, Tensor, weights_bytes, write_model
from nanobuild.platforms import Platform
from nanobuild.progress import Progress, silent
from nanobuild.publish import published_folder
from nanobuild.quantized import QuantizedCheckpoint
from nanobuild.spec import ModelSpec

MANIFEST = "manifest.json"
BINARY = "run"
MODEL = "model.nano"
LIBRARY = "libnano.so"
RUNNER = "run.py"
_CHUNK_PANELS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """A finished bundle and its manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def binary(self) -> Path:
        """The static program."""
        return self.path / BINARY

    @property
    def model(self) -> Path:
        """The model file."""
        return self.path / MODEL


def open_bundle(path: Path) -> Bundle:
    """A bundle folder. Raises InputError E_BUNDLE if it isn't one."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if not isinstance(manifest, dict) or manifest.get("kind") != "nano-build bundle":
            raise ValueError("not ours")
    except (OSError, ValueError) as error:
        hint = "make one with nano-build build"
        raise InputError("E_BUNDLE", path, f"not a bundle: no readable {MANIFEST}", hint=hint) from error
    for name in (BINARY, MODEL):
        if not (path / name).is_file():
            raise InputError("E_BUNDLE", path, f"{name} is missing")
    return Bundle(path=path, manifest=manifest)


def is_bundle(path: Path) -> bool:
    """Whether a path looks like a bundle folder."""
    return (path / MANIFEST).is_file()


def kv_bytes_per_token(spec: ModelSpec, kind: str) -> int:
    """Bytes of keys and values for one position: two bytes a channel, or one and a float scale per head."""
    heads = 2 * len(spec.layers) * spec.kv_heads
    return heads * (2 * spec.head_dim if kind == "f16" else spec.head_dim + 4)


def write_bundle(
    source: QuantizedCheckpoint,
    platform: Platform,
    out: Path,
    *,
    packed: Path | None = None,
    toolchain: Compiler | None = None,
    progress: Progress = silent,
) -> Bundle:
    """Compiles for one platform, packs the model, tries the program on it; published as a whole by rename.

    `packed`: the model.nano of another bundle of the same checkpoint, for it is the same on all platforms.
    """
    with published_folder(out) as folder:
        report = build_binary(platform, folder / BINARY, progress=progress, toolchain=toolchain)
        build_library(folder / LIBRARY, platform, progress=progress, toolchain=toolchain)
        if packed is None:
            pack_model(source, folder / MODEL, progress=progress)
        else:
            shutil.copyfile(packed, folder / MODEL)
        shutil.copyfile(resources.package_dir() / "runner.py", folder / RUNNER)
        (folder / RUNNER).chmod(0o755)
        text = len(source.tokenizer) > 0
        checked = verify.check(folder / BINARY, folder / MODEL, platform, text=text, progress=progress)
        manifest = _manifest(source, platform, folder, report, checked)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return open_bundle(out)


def pack_model(source: QuantizedCheckpoint, out: Path, *, progress: Progress = silent) -> str:
    """model.nano from a quantized checkpoint, a run of panels at a time; returns the model's identity."""
    tensors = [_tensor(source, name) for name in source.shapes]
    total, done = weights_bytes(tensors), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress("packing", done, total)

    keep = ("tool", "recipe", "recipe_sha256", "source", "source_sha256")
    meta = {key: source.metadata[key] for key in keep} | {"family": source.spec.family}
    return write_model(
        out, source.spec, tensors, tokenizer=source.tokenizer, chat=source.chat, meta=meta, progress=advance
    )


def _tensor(source: QuantizedCheckpoint, name: str) -> Tensor:
    fmt, row_exp = source.formats.get(name, (None, 0))
    shape = source.shapes[name]
    rows, cols = (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])

    def pieces() -> Iterator[bytes]:
        if fmt is None:
            yield source.vector(name).astype("<f4").tobytes()
            return
        step = _CHUNK_PANELS * packing.PANEL if cols < 1024 else 64 * packing.PANEL
        for start in range(0, rows, step):
            yield packing.pack(source.matrix(name, start, min(start + step, rows))).tobytes()

    return Tensor(name=name, format=fmt, rows=rows, cols=cols, row_exp=row_exp, pieces=pieces)


def _manifest(
    source: QuantizedCheckpoint,
    platform: Platform,
    folder: Path,
    binary: BuildReport,
    checked: verify.Checked | None,
) -> dict[str, Any]:
    model = ModelFile(folder / MODEL)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(folder.iterdir())}
    spec = source.spec
    return {
        "kind": "nano-build bundle",
        "schema": 1,
        "tool": __version__,
        "target": {
            "platform": platform.name,
            "arch": platform.arch,
            "levels": list(binary.levels),
            "floor": platform.floor[-1],
            "emulator_cpu": platform.emulator_cpu,
        },
        "compiler": binary.compiler,
        "isa": binary.isa,
        "checked": checked.to_json() if checked else False,
        "model": {
            "identity": model.digest.hex(),
            "family": spec.family,
            "source": source.metadata["source"],
            "source_sha256": source.metadata["source_sha256"],
            "recipe": source.metadata["recipe"],
            "recipe_sha256": source.metadata["recipe_sha256"],
            "sections": model.section_sizes(),
        },
        "memory": {
            "mapped_bytes": (folder / MODEL).stat().st_size,
            "kv_bytes_per_token": {kind: kv_bytes_per_token(spec, kind) for kind in ("f16", "i8")},
        },
        "files": files,
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
