# SPDX-License-Identifier: Apache-2.0
"""What every family needs: typed access to a configuration, refusals by name, and the tensor name map."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from nanobuild.errors import InputError, quoted
from nanobuild.rawfile import WeightSource
from nanobuild.spec import ModelSpec

Change = Literal["none", "plus_one", "interleaved"]

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_VOCAB = 4 << 20
MAX_POSITIONS = 1 << 26


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Codes:
    """Error codes of one kind of configuration."""

    missing: str
    type: str
    value: str
    inconsistent: str
    unsupported: str


HF_CODES = Codes(
    missing="E_CFG_MISSING",
    type="E_CFG_TYPE",
    value="E_CFG_RANGE",
    inconsistent="E_CFG_INCONSISTENT",
    unsupported="E_CFG_UNSUPPORTED",
)
GGUF_CODES = Codes(
    missing="E_GGUF_KEY",
    type="E_GGUF_TYPE",
    value="E_GGUF_VALUE",
    inconsistent="E_GGUF_VALUE",
    unsupported="E_CFG_UNSUPPORTED",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a canonical tensor comes from, and what has to be done to its values."""

    name: str  # in the file
    change: Change = "none"
    head_dim: int = 0  # of an interleaved matrix


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a family made of a checkpoint."""

    spec: ModelSpec
    origins: dict[str, Origin]  # one per key of spec.tensor_shapes()
    skipped: dict[str, str]  # file tensor -> reason
    warnings: list[str]


class Keys:
    """A configuration whose keys are read with a type and a range, and remembered as read."""

    def __init__(self, subject: object, values: Mapping[str, object], codes: Codes, *, prefix: str = "") -> None:
        self.subject = subject
        self.codes = codes
        self.seen: set[str] = set()
        self._values = values
        self._prefix = prefix

    def fail(self, code: str, key: str, text: str) -> InputError:
        return InputError(code, self.subject, f"{self._prefix}{key} {text}")

    def unsupported(self, key: str, found: object, allowed: str) -> InputError:
        return self.fail(self.codes.unsupported, key, f"is {quoted(found)}, supported is {allowed}")

    def get(self, key: str) -> object:
        """The value, or None when it is absent or null."""
        self.seen.add(key)
        return self._values.get(self._prefix + key)

    def _required(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail(self.codes.missing, key, "is missing")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in [low, high]; without a default the key has to be there."""
        value = self._required(key, default)
        if type(value) is not int:
            raise self.fail(self.codes.type, key, f"is {quoted(value)}, not an integer")
        if not low <= value <= high:
            raise self.fail(self.codes.value, key, f"is {value}, allowed is {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]; without a default the key has to be there."""
        value = self._required(key, default)
        if type(value) not in (int, float) or not isinstance(value, (int, float)):
            raise self.fail(self.codes.type, key, f"is {quoted(value)}, not a number")
        if not low <= value <= high:
            raise self.fail(self.codes.value, key, f"is {value}, allowed is {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key has to be there."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.fail(self.codes.type, key, f"is {quoted(value)}, not a string")
        return value

    def ids(self, key: str, vocab: int) -> list[int]:
        """Token ids given as an integer, a list or null."""
        value = self.get(key)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        out: list[int] = []
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if type(item) is not int:
                raise self.fail(self.codes.type, key, f"holds {quoted(item)}, not a token id")
            if not 0 <= item < vocab:
                raise self.fail(self.codes.value, key, f"holds {item}, the vocabulary has {vocab} rows")
            out.append(item)
        return out

    def part(self, key: str) -> Keys | None:
        """The object at `key` as keys of its own, or None. Raises when it is something else."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(self.codes.type, key, "is not an object")
        inner = Keys(self.subject, {f"{key}.{k}": v for k, v in value.items()}, self.codes, prefix=f"{key}.")
        return inner

    def refuse_unless(self, neutral: Mapping[str, tuple[object, ...]]) -> None:
        """Refuses each key of `neutral` that is there with a value that would change the numbers."""
        for key, allowed in neutral.items():
            value = self.get(key)
            if value is not None and not any(type(value) is type(item) and value == item for item in allowed):
                shown = ", ".join(str(item) for item in allowed) or "no such key"
                raise self.unsupported(key, value, shown)

    def unread(self) -> list[str]:
        """Keys under the prefix that nobody asked for."""
        keys = (key[len(self._prefix) :] for key in self._values if key.startswith(self._prefix))
        return sorted(key for key in keys if key not in self.seen)

    def warn_unread(self, harmless: frozenset[str]) -> list[str]:
        """A warning for each unread key whose name suggests that it changes the numbers."""
        odd = [key for key in self.unread() if key not in harmless and _NUMERIC.search(key)]
        return [f"{self._prefix}{key}: not known here and ignored" for key in map(_plain, odd)]

    def refuse_unread(self) -> None:
        """Refuses an object in which every key matters when one of them is unknown."""
        for key in self.unread():
            raise self.fail(self.codes.unsupported, _plain(key), "is not known here")


_NUMERIC = re.compile(
    r"(^|[_.])(rope|rotary|attn|attention|norm|scal|cap|softcap|window|sliding|expert|router|moe|linear|conv|multiplier"
    r"|logit|bias|clip|ssm|layer_types)"
)


def _plain(key: str) -> str:
    return quoted(key)[1:-1]


# Keys of config.json that change nothing here; everything else is read, refused or, if it looks numerical, reported.
HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_sliding_window_pattern",
        "attention_dropout",
        "attn_implementation",
        "max_window_layers",
        "pretraining_tp",
        "rope_interleaved",
    }
)

# Keys that would change the numbers in a way no family here knows, with the values that change nothing.
NEUTRAL_HF: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "partial_rotary_factor": (1.0, 1),
    "rotary_pct": (1.0, 1),
    "rotary_dim": (),
    "rope_interleaved": (False,),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (),
    "use_bidirectional_attention": (False,),
    "quantization_config": (),
    "full_attention_interval": (),
    "linear_conv_kernel_dim": (),
    "linear_key_head_dim": (),
    "linear_value_head_dim": (),
    "linear_num_key_heads": (),
    "linear_num_value_heads": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "embedding_multiplier": (1.0, 1),
    "residual_multiplier": (1.0, 1),
    "attention_multiplier": (),
    "logits_scaling": (1.0, 1),
    "logit_scale": (1.0, 1),
}

NEUTRAL_GGUF: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "use_parallel_residual": (False,),
}


def name_map(spec: ModelSpec, top: Mapping[str, str], layer: Mapping[str, str], layer_prefix: str) -> dict[str, Origin]:
    """Origins for every tensor that the spec needs. `layer_prefix` holds one {}: the layer's number."""
    out: dict[str, Origin] = {}
    for name in spec.tensor_shapes():
        if name.startswith("layers."):
            _, index, part = name.split(".")
            out[name] = Origin(name=layer_prefix.format(index) + layer[part])
        else:
            out[name] = Origin(name=top[name])
    return out


def change_origins(origins: Mapping[str, Origin], change: Change, which: Callable[[str], bool]) -> dict[str, Origin]:
    """The same origins with `change` on those canonical names that `which` picks."""
    return {
        name: dataclasses.replace(origin, change=change) if which(name) else origin for name, origin in origins.items()
    }


def warn_tying(declared: object, tied: bool, key: str) -> list[str]:
    """The tensor list decides whether the head is the embedding; a flag that says otherwise is reported."""
    if not isinstance(declared, bool) or declared == tied:
        return []
    found = "there is no head tensor, so the embedding is used" if tied else "there is a head tensor, so it is used"
    return [f"{key} is {str(declared).lower()}, but {found}"]


def rows(weights: WeightSource, name: str) -> int:
    """Rows of a tensor, or 0 when it is not there."""
    tensor = weights.tensors.get(name)
    return tensor.shape[0] if tensor and tensor.shape else 0


def first_present(weights: WeightSource, names: Iterable[str]) -> str | None:
    """The first of `names` that is a tensor of the checkpoint."""
    return next((name for name in names if name in weights.tensors), None)


def head_counts(
    keys: Keys, key: str, kv_key: str, usual: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int]:
    """(query heads, kv heads); kv heads default to the query heads. Raises InputError where they do not divide them.

    `usual`: what a family means by a missing key.
    """
    heads = keys.integer(key, 1, MAX_HEADS, usual[0])
    kv_heads = keys.integer(kv_key, 1, MAX_HEADS, heads if usual[1] is None else usual[1])
    if heads % kv_heads:
        raise keys.fail(keys.codes.inconsistent, kv_key, f"is {kv_heads}, which does not divide the {heads} heads")
    return heads, kv_heads
