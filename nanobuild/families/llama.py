# SPDX-License-Identifier: Apache-2.0
"""Llama and everything built like it: RMSNorm, rotate-half attention with grouped heads, a gated SiLU feed-forward."""

from __future__ import annotations

import dataclasses

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
    head_counts,
    name_map,
    rows,
    warn_tying,
)
from nanobuild.rawfile import WeightSource
from nanobuild.spec import Activation, Layer, ModelSpec

_HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "query_pre_attn_scalar": (),
    "rope_local_base_freq": (),
    "sliding_window_pattern": (),
    "use_sliding_window": (False,),
}


def _head_dim(keys: Keys, key: str, hidden: int, heads: int) -> int:
    if keys.get(key) is not None:
        return rope.check_head_dim(keys, keys.integer(key, 1, MAX_WIDTH), key)
    if hidden % heads:
        raise keys.fail(keys.codes.inconsistent, key, f"is missing and the {heads} heads do not divide {hidden}")
    return rope.check_head_dim(keys, hidden // heads, key)


def _refuse_windows(keys: Keys, layers: int) -> None:
    if keys.get("sliding_window") is not None and keys.get("use_sliding_window") is not False:
        raise keys.unsupported("sliding_window", keys.get("sliding_window"), "null")
    types = keys.get("layer_types")
    if types is not None and types != ["full_attention"] * layers:
        raise keys.unsupported("layer_types", types, "full_attention in every layer")


def read_hf(keys: Keys, outer: Keys, weights: WeightSource) -> Reading:
    """The record and name map from config.json; `outer` is the same as `keys` here. Raises InputError."""
    keys.refuse_unless(NEUTRAL_HF | _NEUTRAL)
    hidden, layers = keys.integer("hidden_size", 1, MAX_WIDTH), keys.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads, kv_heads = head_counts(keys, "num_attention_heads", "num_key_value_heads")
    head_dim = _head_dim(keys, "head_dim", hidden, heads)
    _refuse_windows(keys, layers)
    act = keys.text("hidden_act", "silu")
    if act not in _ACTIVATIONS:
        raise keys.unsupported("hidden_act", act, ", ".join(_ACTIVATIONS))
    tied = "lm_head.weight" not in weights.tensors
    spec = ModelSpec(
        family="llama",
        hidden=hidden,
        ffn=keys.integer("intermediate_size", 1, MAX_WIDTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.integer("vocab_size", 1, MAX_VOCAB),
        max_positions=keys.integer("max_position_embeddings", 1, MAX_POSITIONS, 2048),
        norm_eps=keys.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        activation=_ACTIVATIONS[act],
        attn_scale=float(np.float32(head_dim**-0.5)),
        embed_scale=1.0,
        qk_norm=False,
        post_norms=False,
        tied=tied,
        ropes=(rope.from_hf(keys, head_dim, 10000.0),),
        layers=(Layer(rope=0, window=0),) * layers,
    )
    warnings = warn_tying(keys.get("tie_word_embeddings"), tied, "tie_word_embeddings")
    return Reading(
        spec=spec,
        origins=name_map(spec, _HF_TOP, _HF_LAYER, "model.layers.{}."),
        skipped={},
        warnings=warnings + keys.warn_unread(HARMLESS),
    )


def read_gguf(keys: Keys, weights: WeightSource) -> Reading:
    """The record and name map from GGUF metadata of the architecture llama. Raises InputError.

    GGUF stores the rows of q and k of this architecture with the two halves of a head interleaved; they are put back.
    """
    keys.refuse_unless(NEUTRAL_GGUF | {"attention.sliding_window": ()})
    hidden, layers = keys.integer("embedding_length", 1, MAX_WIDTH), keys.integer("block_count", 1, MAX_LAYERS)
    heads, kv_heads = head_counts(keys, "attention.head_count", "attention.head_count_kv")
    head_dim = _head_dim(keys, "attention.key_length", hidden, heads)
    if keys.integer("attention.value_length", 1, MAX_WIDTH, head_dim) != head_dim:
        raise keys.unsupported("attention.value_length", keys.get("attention.value_length"), str(head_dim))
    tied = "output.weight" not in weights.tensors
    spec = ModelSpec(
        family="llama",
        hidden=hidden,
        ffn=keys.integer("feed_forward_length", 1, MAX_WIDTH),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.integer("vocab_size", 1, MAX_VOCAB, rows(weights, "token_embd.weight") or None),
        max_positions=keys.integer("context_length", 1, MAX_POSITIONS, 2048),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        activation="silu",
        attn_scale=float(np.float32(head_dim**-0.5)),
        embed_scale=1.0,
        qk_norm=False,
        post_norms=False,
        tied=tied,
        ropes=(rope.from_gguf(keys, weights, head_dim, keys.number("rope.freq_base", 1.0, 1e15, 10000.0)),),
        layers=(Layer(rope=0, window=0),) * layers,
    )
    origins = name_map(spec, _GGUF_TOP, _GGUF_LAYER, "blk.{}.")
    origins = change_origins(origins, "interleaved", lambda name: name.endswith((".q", ".k")))
    origins = {name: dataclasses.replace(origin, head_dim=head_dim) for name, origin in origins.items()}
    used = "used for the rotation frequencies"
    skipped = {"rope_freqs.weight": used} if "rope_freqs.weight" in weights.tensors else {}
    return Reading(spec=spec, origins=origins, skipped=skipped, warnings=keys.warn_unread(frozenset()))
