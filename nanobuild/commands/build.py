# SPDX-License-Identifier: Apache-2.0
"""`nano-build build`: one bundle a target."""

from __future__ import annotations

from pathlib import Path

from nanobuild import pipeline, toolchains
from nanobuild.bundle import Bundle
from nanobuild.errors import UsageError
from nanobuild.platforms import default_platform, load_platform
from nanobuild.ui import Ui


def main(ui: Ui, source: Path, out: Path, targets: list[str], *, toolchain: str | None, force: bool) -> None:
    """Builds for every target (none: this machine); with several, each gets a folder of its name below `out`."""
    platforms = [load_platform(name) for name in dict.fromkeys(targets or [default_platform()])]
    compiler = toolchains.named(toolchain) if toolchain else None
    if len(platforms) > 1:
        if out.exists() and not out.is_dir():
            raise UsageError("E_OUT_EXISTS", out, "exists and is not a folder")
        out.mkdir(exist_ok=True)
    bundles: list[Bundle] = []
    for platform in platforms:
        folder = out / platform.name if len(platforms) > 1 else out
        packed = bundles[0].model if bundles else None
        made = pipeline.build(
            source, folder, platform, packed=packed, toolchain=compiler, force=force, progress=ui.progress
        )
        bundles.append(made)
    answer = {"bundles": [{"path": str(b.path), "manifest": b.manifest} for b in bundles]}
    ui.result(answer, lambda: _show(ui, bundles))


def _show(ui: Ui, bundles: list[Bundle]) -> None:
    for bundle in bundles:
        sizes = {name: row["bytes"] for name, row in bundle.manifest["files"].items()}
        target, checked = bundle.manifest["target"], bundle.manifest["checked"]
        floor = f", needs {target['floor']}" if target["floor"] != "scalar" else ""
        ui.out(f"{bundle.path}  {target['platform']} ({', '.join(target['levels'])}{floor})")
        ui.out(f"checked on {checked['on']}: {_what(checked['tokens'])}" if checked else "not checked")
        ui.table(("file", "bytes"), list(sizes.items()), right=(1,))


def _what(tokens: int) -> str:
    return f"checksums, {tokens} token{'s' if tokens > 1 else ''} and the logits" if tokens else "checksums"
