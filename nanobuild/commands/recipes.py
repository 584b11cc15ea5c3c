# SPDX-License-Identifier: Apache-2.0
"""`nano-build recipes`: the recipes that come with the tool, or one of them checked and shown."""

from __future__ import annotations

import msgspec

from nanobuild.recipes import load_recipe, recipe_paths
from nanobuild.ui import Ui


def main(ui: Ui, name: str | None) -> None:
    """A table of all recipes, or one recipe's rules."""
    if name is None:
        files = [load_recipe(n).file for n in recipe_paths()]
        answer = {"recipes": [{"name": f.name, "summary": f.summary, "bits": f.quantize.bits} for f in files]}
        rows = [(f.name, f.quantize.bits, f.quantize.group, f.summary) for f in files]
        ui.result(answer, lambda: ui.table(("recipe", "bits", "group", "what"), rows))
        return
    recipe = load_recipe(name)
    rules = msgspec.to_builtins(recipe.file)
    ui.result({"recipe": rules, "path": str(recipe.path)}, lambda: ui.out(recipe.path.read_text().rstrip()))
