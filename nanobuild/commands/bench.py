# SPDX-License-Identifier: Apache-2.0
"""`nano-build bench`: prefill and decode of a bundle, or of a well-known shape with random weights."""

from __future__ import annotations

from pathlib import Path

from nanobuild import bench as work
from nanobuild import pipeline, resources, synthetic
from nanobuild.compile import build_binary
from nanobuild.detect import detect
from nanobuild.errors import UsageError
from nanobuild.formats import Format
from nanobuild.platforms import load_platform
from nanobuild.ui import Ui


def main(
    ui: Ui,
    model: str | None,
    shape: str | None,
    recipe: str,
    threads: list[int],
    *,
    prefill: int,
    decode: int,
    reps: int,
    isa: str | None,
    offline: bool,
) -> None:
    """Prints one pair of lines per thread count, with the limits measured in the same process."""
    if (model is None) == (shape is None):
        raise UsageError("E_USAGE", "bench", "give a model or --shape, and not both")
    if shape is not None:
        binary, file, name = *_synthetic(ui, shape), f"{shape}, random weights, q4g32"
    else:
        bundle = pipeline.prepare(str(model), recipe, "generic-x86_64", offline=offline, progress=ui.progress)
        binary, file, name = bundle.binary, bundle.model, f"{model}, {bundle.manifest['model']['recipe']}"
    rows = []
    for i, count in enumerate(threads):
        ui.progress("timing", i, len(threads))
        rows.append(work.measure(binary, file, name, threads=count, prefill=prefill, decode=decode, reps=reps, isa=isa))
    ui.progress("timing", len(threads), len(threads))
    ui.result(
        {"machine": dict(detect()), "rows": [r.to_json() for r in rows]},
        lambda: ui.table(work.COLUMNS, work.table(rows)),
    )


def _synthetic(ui: Ui, shape: str) -> tuple[Path, Path]:
    spec = synthetic.shape_spec(shape)
    folder = resources.cache_dir("shapes")
    file = folder / f"{shape}.q4g32.nano"
    if not file.exists():
        fmt = Format(bits=4, group=32)
        synthetic.write_synthetic(file, spec, fmt=fmt, head=fmt, progress=ui.progress)
    binary = folder / "run"
    build_binary(load_platform("generic-x86_64"), binary, progress=ui.progress)
    return binary, file
