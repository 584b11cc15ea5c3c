# SPDX-License-Identifier: Apache-2.0
"""`nano-build build`: one bundle a target."""

from __future__ import annotations

from pathlib import Path

from nanobuild import pipeline
from nanobuild.bundle import Bundle
from nanobuild.errors import UsageError
from nanobuild.platforms import load_platform
from nanobuild.ui import Ui


def main(ui: Ui, source: Path, out: Path, targets: list[str], *, force: bool) -> None:
    """Builds for every target; with several, each gets a folder of its name below `out`."""
    platforms = [load_platform(name) for name in dict.fromkeys(targets)]
    if len(platforms) > 1:
        if out.exists() and not out.is_dir():
            raise UsageError("E_OUT_EXISTS", out, "exists and is not a folder")
        out.mkdir(exist_ok=True)
    bundles = []
    for platform in platforms:
        folder = out / platform.name if len(platforms) > 1 else out
        bundles.append(pipeline.build(source, folder, platform, force=force, progress=ui.progress))
    answer = {"bundles": [{"path": str(b.path), "manifest": b.manifest} for b in bundles]}
    ui.result(answer, lambda: _show(ui, bundles))


def _show(ui: Ui, bundles: list[Bundle]) -> None:
    for bundle in bundles:
        sizes = {name: row["bytes"] for name, row in bundle.manifest["files"].items()}
        levels = ", ".join(bundle.manifest["target"]["levels"])
        ui.out(f"{bundle.path}  {bundle.manifest['target']['platform']} ({levels})")
        ui.table(("file", "bytes"), list(sizes.items()), right=(1,))
