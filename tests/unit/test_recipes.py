# SPDX-License-Identifier: Apache-2.0
"""Recipes: the ones we ship, the std rule, and what is refused with which code."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobuild.errors import InputError, NanoBuildError
from nanobuild.recipes import load_recipe, recipe_paths

INVALID = sorted((Path(__file__).parents[1] / "data" / "recipes").glob("invalid_*.yaml"))
MATRICES = ["embed", *(f"layers.{i}.{r}" for i in range(5) for r in ("q", "k", "v", "o", "gate", "up", "down"))]


@pytest.mark.parametrize("name", recipe_paths())
def test_shipped_recipes_load_under_their_own_name(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.file.summary
    assert set(recipe.choices(MATRICES)) == set(MATRICES)


def test_the_default_keeps_embedding_and_head_at_eight_bits() -> None:
    choices = load_recipe("q4").choices([*MATRICES, "head"])
    assert {(choices[n].bits, choices[n].group) for n in ("embed", "head")} == {(8, 32)}
    assert (choices["layers.2.down"].bits, choices["layers.2.down"].group) == (4, None)


def test_first_and_last_count_layers_from_the_ends() -> None:
    choices = load_recipe("q4").choices(MATRICES)
    eight = {name for name, choice in choices.items() if choice.bits == 8}
    inner = {f"layers.{i}.v" for i in (2, 3)}
    outer = {name for name in MATRICES if name.startswith(("layers.0.", "layers.1.", "layers.4."))}
    assert eight == {"embed"} | inner | outer


def test_groups_never_grow_with_std() -> None:
    recipe = load_recipe("q4")
    groups = [recipe.group_for_std(std / 1000, 4) for std in range(0, 500)]
    assert groups == sorted(groups, reverse=True)
    assert recipe.group_for_std(0.023, 4) == 64
    assert recipe.group_for_std(0.087, 4) == 16
    assert {recipe.group_for_std(std / 1000, 8) for std in range(0, 500)} == {32, 64, 128}


def test_first_matching_rule_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "version: 1\nname: mine\nquantize:\n  bits: 4\n  group: 64\n  overrides:\n"
        "    - {match: layers.0.*, bits: 8, group: 32}\n    - {match: '*.down', group: 16}\n"
    )
    choices = load_recipe(str(path)).choices(MATRICES)
    assert (choices["layers.0.down"].bits, choices["layers.0.down"].group) == (8, 32)
    assert (choices["layers.1.down"].bits, choices["layers.1.down"].group) == (4, 16)
    assert (choices["layers.1.up"].bits, choices["layers.1.up"].group) == (4, 64)


def test_rules_may_use_the_names_of_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "version: 1\nname: mine\nquantize:\n  bits: 4\n  overrides:\n"
        "    - {match: lm_head.weight, bits: 8}\n    - {match: 'model.layers.1.mlp.*', group: 16}\n"
    )
    choices = load_recipe(str(path)).choices([*MATRICES, "head"])
    assert choices["head"].bits == 8
    assert {n for n, c in choices.items() if c.group == 16} == {f"layers.1.{r}" for r in ("gate", "up", "down")}


def test_a_rule_without_effect_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\nname: mine\nquantize:\n  bits: 4\n  overrides: [{match: lm_haed, bits: 8}]\n")
    with pytest.raises(InputError) as caught:
        load_recipe(str(path)).choices(MATRICES)
    assert caught.value.code == "E_RECIPE_MATCH"


def test_identity_ignores_layout_and_comments(tmp_path: Path) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("version: 1\nname: x\nquantize: {bits: 4, group: 32}\n")
    b.write_text("# note\nname: x\nversion: 1\nquantize:\n  group: 32\n  bits: 4\n")
    assert load_recipe(str(a)).identity() == load_recipe(str(b)).identity()
    b.write_text("name: x\nversion: 1\nquantize: {group: 64, bits: 4}\n")
    assert load_recipe(str(a)).identity() != load_recipe(str(b)).identity()


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_invalid_recipes(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# expect: ").split(maxsplit=1)
    with pytest.raises(NanoBuildError) as caught:
        load_recipe(str(path))
    assert caught.value.code == expected[0]
    assert expected[1] in str(caught.value)


def test_there_are_invalid_recipes() -> None:
    assert len(INVALID) >= 8
