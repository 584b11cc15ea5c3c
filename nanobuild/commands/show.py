# SPDX-License-Identifier: Apache-2.0
"""`nano-build show`: what is in a checkpoint, a quantized checkpoint, a model file or a bundle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from nanobuild.bundle import MODEL, is_bundle, open_bundle
from nanobuild.checkpoint import open_checkpoint
from nanobuild.modelfile import MAGIC, ModelFile
from nanobuild.quantized import QuantizedCheckpoint
from nanobuild.spec import ModelSpec
from nanobuild.ui import Ui

Row = tuple[str, str, str, int]


def main(ui: Ui, path: Path, *, verify: bool) -> None:
    """Prints the feature record and one row per tensor; verify also checks a model file's checksums."""
    kind, spec, rows, extra = _read(path, verify)
    answer = {
        "kind": kind,
        "spec": spec.to_json(),
        "tensors": [{"name": n, "shape": s, "format": f, "bytes": b} for n, s, f, b in rows],
        **extra,
    }
    ui.result(answer, lambda: _show(ui, kind, spec, rows, extra))


def _read(path: Path, verify: bool) -> tuple[str, ModelSpec, list[Row], dict[str, Any]]:
    if is_bundle(path):
        bundle = open_bundle(path)
        _, spec, rows, extra = _model(path / MODEL, verify)
        return "bundle", spec, rows, extra | {"manifest": bundle.manifest}
    if path.is_file() and path.open("rb").read(len(MAGIC)) == MAGIC:
        return _model(path, verify)
    if QuantizedCheckpoint.recognises(path):
        with QuantizedCheckpoint(path) as source:
            rows = [
                (n, _shape(s), source.formats[n][0].name if n in source.formats else "f32", source.tensor_bytes(n))
                for n, s in source.spec.tensor_shapes().items()
            ]
            return "quantized checkpoint", source.spec, rows, {"metadata": _plain(source.metadata)}
    with open_checkpoint(path) as checkpoint:
        infos = checkpoint.tensors.values()
        rows = [(t.name, _shape(t.shape), t.dtype, t.nbytes) for t in infos]
        extra = {"skipped": [list(r) for r in checkpoint.skipped], "warnings": checkpoint.warnings}
        return "checkpoint", checkpoint.spec, rows, extra


def _model(path: Path, verify: bool) -> tuple[str, ModelSpec, list[Row], dict[str, Any]]:
    model = ModelFile(path)
    if verify:
        model.verify()
    rows = [
        (r.name, f"{r.rows}x{r.cols}", r.format.name + "p16x4" if r.format else "f32", r.size)
        for r in model.records.values()
    ]
    extra = {"identity": model.digest.hex(), "sections": model.section_sizes(), "meta": model.meta, "verified": verify}
    return "model file", model.spec, rows, extra


def _plain(metadata: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metadata.items() if k not in ("spec", "formats")}


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _show(ui: Ui, kind: str, spec: ModelSpec, rows: list[Row], extra: dict[str, Any]) -> None:
    ui.out(f"{kind}, family {spec.family}: {len(spec.layers)} layers, hidden {spec.hidden}, ffn {spec.ffn}")
    ui.out(
        f"heads {spec.heads} of {spec.head_dim} over {spec.kv_heads} kv heads, vocabulary {spec.vocab}, "
        f"{spec.activation}, context up to {spec.max_positions}" + (", tied head" if spec.tied else "")
    )
    for key in ("identity", "metadata", "meta", "sections"):
        if key in extra:
            ui.out(f"{key}: {extra[key]}")
    ui.table(("tensor", "shape", "format", "bytes"), rows, right=(3,))
    weights = sum(math.prod(map(int, shape.split("x"))) for _, shape, _, _ in rows)
    size = sum(b for _, _, _, b in rows)
    ui.out(f"{len(rows)} tensors, {weights} weights, {size} bytes, {8 * size / weights:.3f} bits a weight")
