# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 text models: q/k norms, norms before and after each block, local layers with a window and their own rope."""

from __future__ import annotations

import numpy as np

from nanobuild.families import rope
from nanobuild.families.base import (
    HARMLESS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MAX_WIDTH,
    NEUTRAL_GGUF,
    NEUTRAL_HF,
    Keys,
    Reading,
    change_origins,
    first_present,
    head_counts,
    name_map,
    rows,
    warn_tying,
)
from nanobuild.rawfile import WeightSource
from nanobuild.spec import Layer, ModelSpec, Rope

_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o": "self_attn.o_proj.weight",
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "o": "attn_output.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
}
# Where the text model's tensors start: alone, or inside a checkpoint that can also see (two spellings).
_HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_HEADS_OF = {"model.": ("lm_head.weight",), "language_model.model.": ("language_model.lm_head.weight",),
             "model.language_model.": ("lm_head.weight",)}  # fmt: skip
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_LOCAL_THETA = 10000.0
_PATTERN = 6  # every sixth layer sees everything
_KINDS = {"sliding_attention": True, "full_attention": False}
_LARGEST = 62  # layers of the one size whose query scale is hidden / heads instead of the head's width


def _hf_ropes(keys: Keys, head_dim: int) -> tuple[Rope, Rope]:
    """The global and the local rope, from the old keys or from a dictionary per layer type."""
    local_theta = keys.number("rope_local_base_freq", 1.0, 1e15, _LOCAL_THETA)
    theta = keys.number("rope_theta", 1.0, 1e15, 1e6)
    both = keys.part("rope_parameters")
    if both is not None and any(both.get(kind) is not None for kind in _KINDS):
        if keys.get("rope_scaling") is not None:
            raise keys.fail(keys.codes.inconsistent, "rope_scaling", "and rope_parameters are both given")
        parts = [both.part(kind) for kind in ("full_attention", "sliding_attention")]
        both.refuse_unread()
        full, sliding = (
            rope.to_rope(rope.plain(head_dim, t)) if part is None else rope.from_hf_part(part, head_dim, t)
            for part, t in zip(parts, (theta, local_theta), strict=True)
        )
        return full, sliding
    return rope.from_hf(keys, head_dim, theta), rope.to_rope(rope.plain(head_dim, local_theta))


def _layers(local: list[bool], window: int, ropes: tuple[Rope, Rope]) -> tuple[tuple[Rope, ...], tuple[Layer, ...]]:
    shared, places = rope.share(ropes)
    return shared, tuple(Layer(rope=places[is_local], window=window if is_local else 0) for is_local in local)


def _hf_local(keys: Keys, layers: int) -> tuple[list[bool], list[str]]:
    """Which layers have a window, and a warning when two keys disagree about it."""
    key = "sliding_window_pattern" if keys.get("sliding_window_pattern") is not None else "_sliding_window_pattern"
    pattern = keys.integer(key, 1, MAX_LAYERS, _PATTERN)
    by_pattern = [(i + 1) % pattern != 0 for i in range(layers)]
    types = keys.get("layer_types")
    if types is None:
        return by_pattern, []
    if not isinstance(types, list) or len(types) != layers or not all(isinstance(kind, str) for kind in types):
        raise keys.fail(keys.codes.inconsistent, "layer_types", f"is not a list of {layers} strings")
    for kind in types:
        if kind not in _KINDS:
            raise keys.unsupported("layer_types", kind, ", ".join(_KINDS))
    local = [_KINDS[kind] for kind in types]
    odd = local != by_pattern and keys.get(key) is not None
    return local, [f"layer_types and {key} disagree; layer_types is used"] if odd else []


def read_hf(keys: Keys, outer: Keys, weights: WeightSource) -> Reading:
    """The record and name map from config.json: `keys` the text model's part, `outer` the whole. Raises InputError.

    The defaults are part of the format: published files leave most keys out when they have the usual value.
    """
    keys.refuse_unless(NEUTRAL_HF | {"use_sliding_window": (True,), "hidden_act": ("gelu_pytorch_tanh",)})
    hidden, layers = keys.integer("hidden_size", 1, MAX_WIDTH), keys.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads, kv_heads = head_counts(keys, "num_attention_heads", "num_key_value_heads", (8, 4))
    head_dim = rope.check_head_dim(keys, keys.integer("head_dim", 1, MAX_WIDTH, 256), "head_dim")
    act = keys.text("hidden_activation", "gelu_pytorch_tanh")
    if act != "gelu_pytorch_tanh":
        raise keys.unsupported("hidden_activation", act, "gelu_pytorch_tanh")
    local, warnings = _hf_local(keys, layers)
    window = keys.integer("sliding_window", 1, MAX_POSITIONS, 4096)
    ropes, layer_list = _layers(local, window, _hf_ropes(keys, head_dim))
    prefix = next((p for p in _HF_PREFIXES if p + "embed_tokens.weight" in weights.tensors), _HF_PREFIXES[0])
    head = first_present(weights, _HEADS_OF[prefix])
    scalar = keys.number("query_pre_attn_scalar", 1e-3, 1e6, 256)
    spec = ModelSpec(
        family="gemma3",
        hidden=hidden,
        ffn=keys.integer("intermediate_size", 1, MAX_WIDTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.integer("vocab_size", 1, MAX_VOCAB, 262208),
        max_positions=keys.integer("max_position_embeddings", 1, MAX_POSITIONS, 131072),
        norm_eps=keys.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        activation="gelu_tanh",
        attn_scale=float(np.float32(scalar**-0.5)),
        embed_scale=float(np.sqrt(np.float32(hidden))),
        qk_norm=True,
        post_norms=True,
        tied=head is None,
        ropes=ropes,
        layers=layer_list,
    )
    top = {"embed": prefix + "embed_tokens.weight", "final_norm": prefix + "norm.weight", "head": head or ""}
    origins = name_map(spec, top, _HF_LAYER, prefix + "layers.{}.")
    for source in dict.fromkeys((keys, outer)):
        warnings += warn_tying(source.get("tie_word_embeddings"), head is None, "tie_word_embeddings")
    return Reading(
        spec=spec,
        origins=change_origins(origins, "plus_one", lambda name: name.endswith("_norm")),
        skipped={name: "the vision part" for name in weights.tensors if name.startswith(_VISION)},
        warnings=warnings + keys.warn_unread(HARMLESS),
    )


def _gguf_local(keys: Keys, layers: int) -> list[bool]:
    """Which layers have a window: every one but each sixth, or as the file says by number or by layer."""
    key = "attention.sliding_window_pattern"
    value = keys.get(key)
    if isinstance(value, np.ndarray):
        if value.dtype != np.bool_ or value.shape != (layers,):
            raise keys.fail(keys.codes.type, key, f"is not a list of {layers} booleans")
        return [bool(item) for item in value]
    pattern = keys.integer(key, 1, MAX_LAYERS, _PATTERN)
    return [(i + 1) % pattern != 0 for i in range(layers)]


def read_gguf(keys: Keys, weights: WeightSource) -> Reading:
    """The record and name map from GGUF metadata of the architecture gemma3, whose norms have the 1 already."""
    keys.refuse_unless(NEUTRAL_GGUF)
    hidden, layers = keys.integer("embedding_length", 1, MAX_WIDTH), keys.integer("block_count", 1, MAX_LAYERS)
    heads, kv_heads = head_counts(keys, "attention.head_count", "attention.head_count_kv")
    key = "attention.key_length"
    head_dim = rope.check_head_dim(keys, keys.integer(key, 1, MAX_WIDTH, 256), key)
    if keys.integer("attention.value_length", 1, MAX_WIDTH, head_dim) != head_dim:
        raise keys.unsupported("attention.value_length", keys.get("attention.value_length"), str(head_dim))
    theta = keys.number("rope.freq_base", 1.0, 1e15)
    local_theta = keys.number("rope.freq_base_swa", 1.0, 1e15, _LOCAL_THETA)
    pair = (rope.from_gguf(keys, weights, head_dim, theta), rope.to_rope(rope.plain(head_dim, local_theta)))
    window = keys.integer("attention.sliding_window", 1, MAX_POSITIONS)
    ropes, layer_list = _layers(_gguf_local(keys, layers), window, pair)
    scalar = hidden / heads if layers == _LARGEST else head_dim
    spec = ModelSpec(
        family="gemma3",
        hidden=hidden,
        ffn=keys.integer("feed_forward_length", 1, MAX_WIDTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.integer("vocab_size", 1, MAX_VOCAB, rows(weights, "token_embd.weight") or None),
        max_positions=keys.integer("context_length", 1, MAX_POSITIONS, 131072),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        activation="gelu_tanh",
        attn_scale=float(np.float32(scalar**-0.5)),
        embed_scale=float(np.sqrt(np.float32(hidden))),
        qk_norm=True,
        post_norms=True,
        tied="output.weight" not in weights.tensors,
        ropes=ropes,
        layers=layer_list,
    )
    used = "used for the rotation frequencies"
    return Reading(
        spec=spec,
        origins=name_map(spec, _GGUF_TOP, _GGUF_LAYER, "blk.{}."),
        skipped={"rope_freqs.weight": used} if "rope_freqs.weight" in weights.tensors else {},
        warnings=keys.warn_unread(frozenset()),
    )
