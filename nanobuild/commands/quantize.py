# SPDX-License-Identifier: Apache-2.0
"""`nano-build quantize`: the plan, then (without --dry-run) the quantized checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nanobuild import pipeline
from nanobuild.checkpoint import Checkpoint, open_checkpoint
from nanobuild.errors import UsageError
from nanobuild.publish import check_output
from nanobuild.quantize import Plan, write_quantized
from nanobuild.ui import Ui


def main(ui: Ui, source: str, out: Path | None, recipe: str, *, dry_run: bool, force: bool, offline: bool) -> None:
    """Prints the plan with exact sizes; writes the file unless dry_run."""
    if out is None and not dry_run:
        raise UsageError("E_USAGE", "quantize", "-o OUT is missing", hint="or give --dry-run to see the plan only")
    path = pipeline.resolve_model(source, offline=offline, progress=ui.progress)
    with open_checkpoint(path) as checkpoint:
        if out is not None:
            check_output(out, force=force, inputs=(path, *checkpoint.files))
        _ledger(ui, checkpoint)
        plan = pipeline.plan_quantized(checkpoint, recipe, progress=ui.progress)
        if plan.notes["chat"] != "compiled":
            ui.note(f"the bundle will have no chat mode: {plan.notes['chat']}")
        answer = plan.to_json() | {
            "skipped": [list(row) for row in checkpoint.skipped],
            "warnings": checkpoint.warnings,
        }
        if dry_run or out is None:
            ui.result(answer, lambda: _show(ui, plan))
            return
        if not ui.json:
            _show(ui, plan)
        digest = write_quantized(checkpoint, plan, out, progress=ui.progress)
    written = out.stat().st_size
    if written != plan.file_bytes:
        raise AssertionError(f"{written} bytes written, {plan.file_bytes} planned")
    ui.result(answer | {"output": str(out), "sha256": digest}, lambda: ui.out(f"{out}  {written} bytes"))


def _ledger(ui: Ui, checkpoint: Checkpoint) -> None:
    for warning in checkpoint.warnings:
        ui.warn(warning)
    if checkpoint.skipped:
        reasons = Counter(reason for _, reason in checkpoint.skipped)
        ui.note("; ".join(f"{count} tensors skipped: {reason}" for reason, count in sorted(reasons.items())))


def _show(ui: Ui, plan: Plan) -> None:
    rows: dict[tuple[str, str], list[float]] = {}
    for t in plan.tensors:
        kind = t.name.rsplit(".", 1)[-1]
        row = rows.setdefault((kind, t.format.name if t.format else "f32"), [0, 0, 0, float("inf"), 0.0])
        row[0] += 1
        row[1] += t.portable_bytes
        row[2] += t.packed_bytes
        row[3], row[4] = min(row[3], t.std), max(row[4], t.std)
    table = [
        (kind, fmt, int(n), f"{low:.4f}-{high:.4f}", f"{size / 1e6:.2f}", f"{packed / 1e6:.2f}")
        for (kind, fmt), (n, size, packed, low, high) in rows.items()
    ]
    ui.table(("tensors", "format", "count", "std", "MB here", "MB packed"), table, right=(2, 4, 5))
    ratio = plan.weight_bytes / (2 * plan.parameters)
    bits = 8 * plan.weight_bytes / plan.parameters
    ui.out(
        f"recipe {plan.recipe.name}: {plan.parameters} weights in {plan.weight_bytes} bytes, "
        f"{bits:.3f} bits a weight, {100 * ratio:.2f} % of float16; file {plan.file_bytes} bytes"
    )
