# SPDX-License-Identifier: Apache-2.0
"""Model families as data: which names a checkpoint may go by, and the functions that turn it into a feature record."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping

from nanobuild.errors import InputError, quoted
from nanobuild.families import gemma3, llama
from nanobuild.families.base import GGUF_CODES, HF_CODES, Keys, Reading
from nanobuild.rawfile import WeightSource


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family: its names in config.json and GGUF, well-known members, and its two readers."""

    name: str
    title: str
    members: tuple[str, ...]
    hf: Mapping[str, str]  # architecture -> model_type
    gguf: tuple[str, ...]  # general.architecture
    read_hf: Callable[[Keys, Keys, WeightSource], Reading]
    read_gguf: Callable[[Keys, WeightSource], Reading]


FAMILIES = (
    Family(
        name="llama",
        title="Llama and models built like it",
        members=("Llama 3.0-3.3", "SmolLM2", "TinyLlama"),
        hf={"LlamaForCausalLM": "llama"},
        gguf=("llama",),
        read_hf=llama.read_hf,
        read_gguf=llama.read_gguf,
    ),
    Family(
        name="gemma3",
        title="Gemma 3, text",
        members=("Gemma 3 270M, 1B", "the text part of Gemma 3 4B, 12B, 27B"),
        hf={"Gemma3ForCausalLM": "gemma3_text", "Gemma3ForConditionalGeneration": "gemma3"},
        gguf=("gemma3",),
        read_hf=gemma3.read_hf,
        read_gguf=gemma3.read_gguf,
    ),
)


def supported() -> list[Family]:
    """Every family that can be built, for people to look at."""
    return list(FAMILIES)


def _unknown(subject: object, what: str, found: str, known: list[str]) -> InputError:
    nearest = difflib.get_close_matches(found, known, n=1, cutoff=0.0)[0]
    text = f"{what} {quoted(found)} is not supported; the nearest that is: {nearest}"
    return InputError("E_CFG_UNSUPPORTED", subject, text, hint="`nano-build models` lists what can be built")


def read_hf(subject: object, config: Mapping[str, object], weights: WeightSource) -> Reading:
    """The reading of a checkpoint with a config.json. Raises InputError E_CFG_*."""
    outer = Keys(subject, config, HF_CODES)
    architecture, family = _hf_family(outer)
    inner = outer
    if family.hf[architecture] == "gemma3":
        part = outer.part("text_config")
        if part is None:
            raise outer.fail("E_CFG_MISSING", "text_config", "is missing")
        part.refuse_unless({"model_type": ("gemma3_text",)})
        outer.refuse_unless({"quantization_config": ()})
        inner = part
    elif outer.get("text_config") is not None:
        raise outer.fail("E_CFG_UNSUPPORTED", "text_config", f"is not part of {architecture}")
    return family.read_hf(inner, outer, weights)


def _hf_family(keys: Keys) -> tuple[str, Family]:
    known = {name: (family, kind) for family in FAMILIES for name, kind in family.hf.items()}
    by_type = {kind: name for name, (_, kind) in known.items()}
    names, kind = keys.get("architectures"), keys.get("model_type")
    if names is None and kind is None:
        raise keys.fail("E_CFG_MISSING", "architectures", "and model_type are missing")
    if kind is not None and not isinstance(kind, str):
        raise keys.fail("E_CFG_TYPE", "model_type", "is not a string")
    if names is None:
        if kind not in by_type:
            raise _unknown(keys.subject, "model_type", str(kind), list(by_type))
        names = [by_type[kind]]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise keys.fail("E_CFG_TYPE", "architectures", "is not a list of names")
    if names[0] not in known:
        raise _unknown(keys.subject, "architecture", names[0], list(known))
    family, wanted = known[names[0]]
    if kind is not None and kind != wanted:
        raise keys.fail("E_CFG_INCONSISTENT", "model_type", f"is {quoted(kind)}, {names[0]} goes with {wanted}")
    return names[0], family


def read_gguf(subject: object, metadata: Mapping[str, object], weights: WeightSource) -> Reading:
    """The reading of a GGUF file. Raises InputError E_GGUF_* and E_CFG_UNSUPPORTED."""
    name = Keys(subject, metadata, GGUF_CODES).text("general.architecture")
    known = {arch: family for family in FAMILIES for arch in family.gguf}
    if name not in known:
        raise _unknown(subject, "architecture", name, list(known))
    return known[name].read_gguf(Keys(subject, metadata, GGUF_CODES, prefix=name + "."), weights)
