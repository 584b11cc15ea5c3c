# SPDX-License-Identifier: Apache-2.0
"""Recipes: which format each matrix gets. A recipe is a YAML file in recipes/; rules match canonical tensor names.

The std rule ("auto" groups) is the free, uncalibrated form of dynamic group quantization: wide weights get small
groups. Its thresholds stand in the recipe and never in code.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from nanobuild import resources, schema
from nanobuild.errors import InputError, UsageError, quoted
from nanobuild.formats import GROUPS, Format

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class StdStep(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Tensors whose standard deviation is below `below` (absent: all others) get this group."""

    group: int
    below: float | None = None


class Override(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A rule for the tensors whose canonical names match; the first rule that matches wins.

    With `first` or `last` it holds in so many layers at the model's beginning or end only.
    """

    match: str | list[str]
    first: int = 0
    last: int = 0
    bits: int | None = None
    group: int | Literal["auto"] | None = None


class Rules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bits and group for all matrices, and the exceptions."""

    bits: int
    group: int | Literal["auto"] = 32
    groups_by_std: list[StdStep] = []
    overrides: list[Override] = []


class RecipeFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A recipe as it stands in YAML."""

    version: int
    name: str
    quantize: Rules
    summary: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a recipe says of one matrix: group None means that the std rule decides."""

    bits: int
    group: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A checked recipe."""

    path: Path
    file: RecipeFile

    @property
    def name(self) -> str:
        return self.file.name

    def identity(self) -> str:
        """SHA-256 of what the recipe says, whatever its layout and comments."""
        rules = msgspec.to_builtins(self.file.quantize)
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    def choices(self, matrices: Iterable[str]) -> dict[str, Choice]:
        """Bits and group of each matrix. Raises InputError E_RECIPE_MATCH for a rule that matches nothing."""
        names, rules = list(matrices), self.file.quantize
        layers = 1 + max((_layer(name) for name in names), default=-1)
        out = {}
        for name in names:
            bits, group = rules.bits, rules.group
            for rule in rules.overrides:
                if _matches(rule, name, layers):
                    bits = rule.bits if rule.bits is not None else bits
                    group = rule.group if rule.group is not None else group
                    break
            out[name] = Choice(bits=bits, group=None if group == "auto" else int(group))
        for i, rule in enumerate(rules.overrides):
            if not any(_matches(rule, name, layers) for name in names):
                text = f"overrides[{i}]: {quoted(', '.join(_patterns(rule)))} matches no matrix of this model"
                raise InputError("E_RECIPE_MATCH", self.path, text, hint="names look like embed, head, layers.0.q")
        return out

    def group_for_std(self, std: float, bits: int) -> int:
        """The std rule: the first step whose bound lies above `std`; at 8 bits never below 32."""
        for step in self.file.quantize.groups_by_std:
            if step.below is None or std < step.below:
                return max(step.group, 32) if bits == 8 else step.group
        raise AssertionError("the last step has no bound")  # checked on loading


def _patterns(rule: Override) -> list[str]:
    return [rule.match] if isinstance(rule.match, str) else rule.match


def _layer(name: str) -> int:
    """The layer of a tensor; -1 for embedding and head."""
    return int(name.split(".")[1]) if name.startswith("layers.") else -1


def _matches(rule: Override, name: str, layers: int) -> bool:
    if (rule.first or rule.last) and not (0 <= _layer(name) < rule.first or _layer(name) >= layers - rule.last):
        return False
    names = (name, checkpoint_name(name))
    return any(fnmatch.fnmatchcase(n, pattern) for pattern in _patterns(rule) for n in names)


def checkpoint_name(name: str) -> str:
    """What Llama-like checkpoints call a matrix: people know `lm_head.weight` before they know `head`."""
    if name in ("embed", "head"):
        return {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}[name]
    _, layer, role = name.split(".")
    block = "self_attn" if role in ("q", "k", "v", "o") else "mlp"
    return f"model.layers.{layer}.{block}.{role}_proj.weight"


def load_recipe(name: str) -> Recipe:
    """A recipe by name (recipes/NAME.yaml) or by path. Raises InputError E_YAML_* or E_RECIPE_*, UsageError."""
    known = recipe_paths()
    path = known.get(name)
    if path is None:
        path = Path(name)
        if not path.is_file():
            raise UsageError("E_RECIPE_NAME", quoted(name), f"no such recipe or file; known: {', '.join(known)}")
    file = schema.load(path, RecipeFile, kind="RECIPE")
    _check(path, file)
    return Recipe(path=path, file=file)


def recipe_paths() -> Mapping[str, Path]:
    """Recipes that come with the tool, by name."""
    return {p.stem: p for p in sorted(resources.recipes_dir().glob("*.yaml"))}


def _check(path: Path, file: RecipeFile) -> None:
    def refuse(key: str, found: object, allowed: str) -> InputError:
        return InputError("E_RECIPE_VALUE", path, f"{key}: found {quoted(found)}, allowed {allowed}")

    if file.version != 1:
        raise refuse("version", file.version, "1")
    if not _NAME.fullmatch(file.name):
        raise refuse("name", file.name, "a-z, 0-9, '.', '_', '-'")
    rules = file.quantize
    for key, bits, group in [
        ("quantize", rules.bits, rules.group),
        *((f"quantize.overrides[{i}]", r.bits, r.group) for i, r in enumerate(rules.overrides)),
    ]:
        if bits is not None and bits not in (4, 8):
            raise refuse(f"{key}.bits", bits, "4 or 8")
        if isinstance(group, int) and group not in GROUPS:
            raise refuse(f"{key}.group", group, "auto, 16, 32, 64 or 128")
        if group == "auto" and not rules.groups_by_std:
            raise refuse(f"{key}.group", group, "a number, as there are no groups_by_std")
        both = (bits or rules.bits, group if group is not None else rules.group)
        if both == (8, 16):
            raise refuse(f"{key}.group", 16, "32, 64 or 128 at 8 bits")
    for i, rule in enumerate(rules.overrides):
        if rule.first < 0 or rule.last < 0:
            raise refuse(f"quantize.overrides[{i}]", min(rule.first, rule.last), "no negative number of layers")
    _check_steps(rules.groups_by_std, refuse)


def _check_steps(steps: list[StdStep], refuse: object) -> None:
    assert callable(refuse)
    last_bound, last_group = 0.0, max(GROUPS) + 1
    for i, step in enumerate(steps):
        key = f"quantize.groups_by_std[{i}]"
        bound = math.inf if step.below is None else step.below
        if step.group not in GROUPS or step.group >= last_group:
            raise refuse(f"{key}.group", step.group, "16, 32, 64 or 128, smaller than the one before")
        if not bound > last_bound or (step.below is None) != (i == len(steps) - 1):
            raise refuse(f"{key}.below", step.below, "rising bounds, and none in the last step")
        last_bound, last_group = bound, step.group


def format_of(choice: Choice, recipe: Recipe, std: float) -> Format:
    """The format of one matrix once its standard deviation is known."""
    group = choice.group if choice.group is not None else recipe.group_for_std(std, choice.bits)
    return Format(bits=choice.bits, group=group)
