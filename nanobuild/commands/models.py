# SPDX-License-Identifier: Apache-2.0
"""`nano-build models` and `nano-build fetch`: families that are supported, models that can be had by name."""

from __future__ import annotations

from nanobuild.families import supported
from nanobuild.fetch import cached_path, fetch_model, known_models
from nanobuild.ui import Ui


def main(ui: Ui) -> None:
    """Two tables: families with the names under which checkpoints announce them, and fetchable models."""
    families, fetchable = supported(), known_models()
    answer = {
        "families": [
            {"name": f.name, "title": f.title, "members": f.members, "config": sorted(f.hf), "gguf": f.gguf}
            for f in families
        ],
        "models": [
            {"name": name, "bytes": m.size, "licence": m.licence, "cached": cached_path(name).exists()}
            for name, m in fetchable.items()
        ],
    }

    def show() -> None:
        named = [(f.title, ", ".join(f.members), ", ".join(f.hf), ", ".join(f.gguf)) for f in families]
        ui.table(("family", "such as", "config.json", "GGUF"), named)
        rows = [
            (name, m.size, m.licence, "yes" if cached_path(name).exists() else "no") for name, m in fetchable.items()
        ]
        ui.table(("model", "bytes", "licence", "in the cache"), rows, right=(1,))

    ui.result(answer, show)


def fetch(ui: Ui, name: str, *, offline: bool) -> None:
    """Fetches one model and prints its path."""
    path = fetch_model(name, offline=offline, progress=ui.progress)
    model = known_models()[name]
    ui.note(f"{name}: {model.size} bytes, licence {model.licence}")
    ui.result({"name": name, "path": str(path), "licence": model.licence}, lambda: ui.out(str(path)))
