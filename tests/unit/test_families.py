# SPDX-License-Identifier: Apache-2.0
"""Configurations into feature records: every key that changes the numbers is honoured, refused or reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from nanobuild import families
from nanobuild.errors import InputError
from nanobuild.families import rope
from nanobuild.families.base import Reading
from nanobuild.rawfile import FloatArray, RawTensor


class Weights:
    """Tensors by name and shape only."""

    files: list[Path] = []  # noqa: RUF012

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], factors: FloatArray | None = None) -> None:
        self.tensors = {
            name: RawTensor(name=name, dtype="F32", shape=shape, offset=0, nbytes=4 * math.prod(shape))
            for name, shape in shapes.items()
        }
        self._factors = factors

    def check_type(self, name: str) -> None:
        """All are fine."""

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        assert name == "rope_freqs.weight"
        assert self._factors is not None
        return self._factors[start:stop]

    def close(self) -> None:
        """Nothing to close."""


def hf(model: tiny.Model, **over: Any) -> Reading:
    config = {key: value for key, value in (model.config | over).items() if value is not ...}
    return families.read_hf("config.json", config, Weights({n: t.shape for n, t in model.tensors.items()}))


def gguf(model: tiny.Model, factors: FloatArray | None = None, **over: Any) -> Reading:
    shapes = {tiny.gguf_name(n, model.gemma): t.shape for n, t in model.tensors.items()}
    if factors is not None:
        shapes["rope_freqs.weight"] = factors.shape
    arch = "gemma3." if model.gemma else "llama."
    meta = tiny.gguf_metadata(model) | {
        (key if "." in key and key.split(".")[0] in ("general", "split") else arch + key): value
        for key, value in over.items()
    }
    read = {k: np.array(v) if isinstance(v, list) else v for k, v in meta.items() if v is not ...}
    return families.read_gguf("m.gguf", read, Weights(shapes, factors))


def refusal(read: Any, model: tiny.Model, **over: Any) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        read(model, **over)
    return caught.value.code, str(caught.value)


# ---------------------------------------------------------------- what is read


def test_llama_record() -> None:
    spec = hf(tiny.llama()).spec
    assert (spec.hidden, spec.ffn, spec.heads, spec.kv_heads, spec.head_dim) == (64, 96, 4, 2, 32)
    assert (spec.activation, spec.qk_norm, spec.post_norms, spec.tied) == ("silu", False, False, False)
    assert spec.attn_scale == np.float32(32**-0.5)
    assert spec.embed_scale == 1.0
    assert spec.norm_eps == 1e-5
    assert [(layer.rope, layer.window) for layer in spec.layers] == [(0, 0), (0, 0)]


def test_llama_defaults() -> None:
    bare = hf(tiny.llama(head_dim=16), num_key_value_heads=..., rope_theta=..., rms_norm_eps=..., hidden_act=...,
              head_dim=..., max_position_embeddings=..., model_type=...)  # fmt: skip
    spec = bare.spec
    assert (spec.kv_heads, spec.head_dim, spec.norm_eps, spec.max_positions) == (4, 16, 1e-6, 2048)
    assert spec.ropes == (rope.to_rope(rope.plain(16, 10000.0)),)


def test_gemma_record() -> None:
    spec = hf(tiny.gemma3()).spec
    assert [(layer.rope, layer.window) for layer in spec.layers] == [(1, 8), (1, 8), (0, 0)]
    assert spec.ropes == (rope.to_rope(rope.plain(32, 1e6)), rope.to_rope(rope.plain(32, 1e4)))
    assert (spec.activation, spec.qk_norm, spec.post_norms, spec.tied) == ("gelu_tanh", True, True, True)
    assert spec.embed_scale == 8.0
    assert spec.attn_scale == np.float32(32**-0.5)


def test_gemma_defaults_are_those_of_the_published_files() -> None:
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "query_pre_attn_scalar",
             "sliding_window", "sliding_window_pattern", "rope_theta", "rope_local_base_freq", "rms_norm_eps",
             "max_position_embeddings", "hidden_activation")  # fmt: skip
    spec = hf(tiny.gemma3(num_hidden_layers=7), **dict.fromkeys(names, ...)).spec
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab, spec.max_positions) == (8, 4, 256, 262208, 131072)
    assert [layer.window for layer in spec.layers] == [4096] * 5 + [0, 4096]
    assert spec.attn_scale == 0.0625


def test_gemma_scale_does_not_follow_the_head() -> None:
    assert hf(tiny.gemma3(), query_pre_attn_scalar=168).spec.attn_scale == np.float32(168**-0.5)


def test_gemma_layer_types_win_over_the_pattern() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    reading = hf(tiny.gemma3(), layer_types=kinds)
    assert [layer.window for layer in reading.spec.layers] == [0, 8, 0]
    assert reading.warnings == ["layer_types and sliding_window_pattern disagree; layer_types is used"]


def test_nested_text_config() -> None:
    model = tiny.gemma3()
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": model.config}
    for prefix in ("language_model.model.", "model.language_model."):
        shapes = {n.replace("model.", prefix, 1): t.shape for n, t in model.tensors.items()}
        shapes["vision_tower.patch.weight"] = (3, 3)
        reading = families.read_hf("config.json", outer, Weights(shapes))
        assert reading.spec == hf(model).spec
        assert reading.origins["layers.1.q"].name == prefix + "layers.1.self_attn.q_proj.weight"
        assert reading.skipped == {"vision_tower.patch.weight": "the vision part"}
    with pytest.raises(InputError) as caught:
        families.read_hf("config.json", outer | {"text_config": None}, Weights({}))
    assert caught.value.code == "E_CFG_MISSING"


@pytest.mark.parametrize("make", [tiny.llama, tiny.gemma3])
def test_gguf_says_the_same_as_config_json(make: Any) -> None:
    model = make()
    one, other = hf(model).spec.to_json(), gguf(model).spec.to_json()
    assert one.pop("norm_eps") == pytest.approx(other.pop("norm_eps"), rel=1e-7)
    assert one == other


def test_gguf_gemma_default_pattern_and_swa_theta() -> None:
    model = tiny.gemma3(num_hidden_layers=7, sliding_window_pattern=6)
    spec = gguf(model, **{"rope.freq_base_swa": 500.0}).spec
    assert [layer.window for layer in spec.layers] == [8] * 5 + [0, 8]
    assert spec.ropes[1] == rope.to_rope(rope.plain(32, 500.0))
    assert gguf(model, **{"attention.sliding_window_pattern": 2}).spec.layers[1].window == 0


def test_gguf_largest_gemma_scales_by_the_width() -> None:
    model = tiny.gemma3(num_hidden_layers=62)
    assert gguf(model).spec.attn_scale == np.float32((64 / 4) ** -0.5)


# ---------------------------------------------------------------- rotation frequencies


def test_plain_frequencies() -> None:
    got = rope.plain(64, 10000.0)
    want = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    assert got.dtype == np.float32
    assert np.allclose(got, want, rtol=1.2e-7)


def reference_llama3(freq: float, factor: float, low: float, high: float, original: int) -> float:
    """The rule in words: by position in the original context's number of turns."""
    turns = original * freq / (2 * math.pi)
    if turns < low:
        return freq / factor
    if turns > high:
        return freq
    part = (turns - low) / (high - low)
    return (1 - part) * freq / factor + part * freq


@pytest.mark.parametrize(("factor", "theta"), [(8.0, 500000.0), (32.0, 500000.0), (4.0, 10000.0)])
def test_llama3_scaling(factor: float, theta: float) -> None:
    got = rope.llama3(rope.plain(128, theta), factor=factor, low=1.0, high=4.0, original=8192)
    want = [reference_llama3(theta ** (-i / 128), factor, 1.0, 4.0, 8192) for i in range(0, 128, 2)]
    assert np.allclose(got, want, rtol=2e-6)
    assert got[0] == 1.0
    assert got[-1] < want[-1] * 1.01


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_and_both_places(spelling: str, key: str) -> None:
    scaling = {k: v for k, v in tiny.LLAMA3_SCALING.items() if k != "rope_type"} | {spelling: "llama3"}
    ours = hf(tiny.llama(), **{key: scaling}).spec.ropes
    assert ours == hf(tiny.llama(llama3=True)).spec.ropes
    assert ours != hf(tiny.llama()).spec.ropes


def test_theta_inside_rope_parameters_wins() -> None:
    spec = hf(tiny.llama(), rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 500.0}).spec
    assert spec.ropes == (rope.to_rope(rope.plain(32, 500.0)),)


def test_linear_scaling() -> None:
    spec = hf(tiny.llama(), rope_scaling={"type": "linear", "factor": 4.0}).spec
    assert np.array_equal(spec.ropes[0].inv_freq, rope.plain(32, 10000.0) / np.float32(4))
    gemma = hf(tiny.gemma3(), rope_scaling={"rope_type": "linear", "factor": 8.0}).spec
    assert np.array_equal(gemma.ropes[0].inv_freq, rope.plain(32, 1e6) / np.float32(8))
    assert np.array_equal(gemma.ropes[1].inv_freq, rope.plain(32, 1e4))


def test_rope_parameters_per_layer_type() -> None:
    parts = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    spec = hf(tiny.gemma3(), rope_parameters=parts, rope_theta=..., rope_local_base_freq=...).spec
    assert np.array_equal(spec.ropes[0].inv_freq, rope.plain(32, 1e6) / np.float32(8))
    assert np.array_equal(spec.ropes[1].inv_freq, rope.plain(32, 5000.0))


def test_gguf_scaling() -> None:
    plain = rope.plain(32, 10000.0)
    over = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert np.array_equal(gguf(tiny.llama(), **over).spec.ropes[0].inv_freq, plain / np.float32(4))
    assert np.array_equal(gguf(tiny.llama(), **over | {"rope.scaling.type": "none"}).spec.ropes[0].inv_freq, plain)
    model = tiny.llama(llama3=True)
    factors = tiny.llama3_factors(model.config)
    assert np.allclose(gguf(model, factors).spec.ropes[0].inv_freq, hf(model).spec.ropes[0].inv_freq, rtol=1e-6)
    assert refusal(gguf, model, factors=factors[:3])[0] == "E_CKPT_SHAPE"
    assert refusal(gguf, model, factors=factors * 0)[0] == "E_GGUF_VALUE"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"num_attention_heads": ...}, "E_CFG_MISSING"),
        ({"vocab_size": None}, "E_CFG_MISSING"),
        ({"hidden_size": "64"}, "E_CFG_TYPE"),
        ({"num_attention_heads": 4.0}, "E_CFG_TYPE"),
        ({"num_attention_heads": True}, "E_CFG_TYPE"),
        ({"rms_norm_eps": "1e-5"}, "E_CFG_TYPE"),
        ({"hidden_act": 3}, "E_CFG_TYPE"),
        ({"rope_scaling": "llama3"}, "E_CFG_TYPE"),
        ({"architectures": "LlamaForCausalLM"}, "E_CFG_TYPE"),
        ({"num_hidden_layers": -2}, "E_CFG_RANGE"),
        ({"num_hidden_layers": 10**9}, "E_CFG_RANGE"),
        ({"num_attention_heads": 0}, "E_CFG_RANGE"),
        ({"rms_norm_eps": 0}, "E_CFG_RANGE"),
        ({"head_dim": 31}, "E_CFG_RANGE"),
        ({"rope_theta": 0.5}, "E_CFG_RANGE"),
        ({"num_key_value_heads": 3}, "E_CFG_INCONSISTENT"),
        ({"head_dim": None, "num_attention_heads": 6}, "E_CFG_INCONSISTENT"),
        ({"model_type": "mistral"}, "E_CFG_INCONSISTENT"),
        ({"rope_scaling": {"rope_type": "linear", "type": "default", "factor": 2.0}}, "E_CFG_INCONSISTENT"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {}}, "E_CFG_INCONSISTENT"),
        ({"rope_scaling": tiny.LLAMA3_SCALING | {"low_freq_factor": 4.0}}, "E_CFG_INCONSISTENT"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "E_CFG_MISSING"),
        ({"architectures": ["MambaLlamaForCausalLM"], "model_type": "mamballama"}, "E_CFG_UNSUPPORTED"),
        ({"architectures": ..., "model_type": "qwen2"}, "E_CFG_UNSUPPORTED"),
        ({"hidden_act": "snake"}, "E_CFG_UNSUPPORTED"),
        ({"hidden_act": "gelu"}, "E_CFG_UNSUPPORTED"),
        ({"attention_bias": True}, "E_CFG_UNSUPPORTED"),
        ({"mlp_bias": True}, "E_CFG_UNSUPPORTED"),
        ({"attn_logit_softcapping": 50.0}, "E_CFG_UNSUPPORTED"),
        ({"final_logit_softcapping": 30.0}, "E_CFG_UNSUPPORTED"),
        ({"partial_rotary_factor": 0.5}, "E_CFG_UNSUPPORTED"),
        ({"rotary_pct": 0.25}, "E_CFG_UNSUPPORTED"),
        ({"rotary_dim": 16}, "E_CFG_UNSUPPORTED"),
        ({"rope_interleaved": True}, "E_CFG_UNSUPPORTED"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "E_CFG_UNSUPPORTED"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "E_CFG_UNSUPPORTED"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "E_CFG_UNSUPPORTED"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, "E_CFG_UNSUPPORTED"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "E_CFG_UNSUPPORTED"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "E_CFG_UNSUPPORTED"),
        ({"sliding_window": 4096}, "E_CFG_UNSUPPORTED"),
        ({"use_sliding_window": True}, "E_CFG_UNSUPPORTED"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "E_CFG_UNSUPPORTED"),
        ({"no_rope_layers": [1, 0]}, "E_CFG_UNSUPPORTED"),
        ({"quantization_config": {"quant_method": "gptq"}}, "E_CFG_UNSUPPORTED"),
        ({"query_pre_attn_scalar": 64}, "E_CFG_UNSUPPORTED"),
        ({"linear_num_key_heads": 2}, "E_CFG_UNSUPPORTED"),
        ({"num_experts": 8}, "E_CFG_UNSUPPORTED"),
        ({"text_config": {"hidden_size": 64}}, "E_CFG_UNSUPPORTED"),
    ],
)
def test_llama_refusals(over: dict[str, Any], code: str) -> None:
    assert refusal(hf, tiny.llama(), **over)[0] == code


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"hidden_activation": "silu"}, "E_CFG_UNSUPPORTED"),
        ({"hidden_act": "gelu"}, "E_CFG_UNSUPPORTED"),
        ({"final_logit_softcapping": 30.0}, "E_CFG_UNSUPPORTED"),
        ({"attention_bias": True}, "E_CFG_UNSUPPORTED"),
        ({"use_bidirectional_attention": True}, "E_CFG_UNSUPPORTED"),
        ({"layer_types": ["full_attention"] * 2}, "E_CFG_INCONSISTENT"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "E_CFG_UNSUPPORTED"),
        ({"sliding_window": 0}, "E_CFG_RANGE"),
        ({"sliding_window_pattern": 0}, "E_CFG_RANGE"),
        ({"query_pre_attn_scalar": 0}, "E_CFG_RANGE"),
        ({"rope_parameters": {"full_attention": {}, "chunked_attention": {}}}, "E_CFG_UNSUPPORTED"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "E_CFG_UNSUPPORTED"),
    ],
)
def test_gemma_refusals(over: dict[str, Any], code: str) -> None:
    assert refusal(hf, tiny.gemma3(), **over)[0] == code


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"general.architecture": ...}, "E_GGUF_KEY"),
        ({"general.architecture": 7}, "E_GGUF_TYPE"),
        ({"general.architecture": "mamba"}, "E_CFG_UNSUPPORTED"),
        ({"block_count": ...}, "E_GGUF_KEY"),
        ({"block_count": 100_000}, "E_GGUF_VALUE"),
        ({"block_count": "2"}, "E_GGUF_TYPE"),
        ({"attention.head_count": 0}, "E_GGUF_VALUE"),
        ({"attention.head_count": np.array([4, 4])}, "E_GGUF_TYPE"),
        ({"attention.head_count_kv": 3}, "E_GGUF_VALUE"),
        ({"attention.layer_norm_rms_epsilon": math.nan}, "E_GGUF_VALUE"),
        ({"attention.layer_norm_rms_epsilon": ...}, "E_GGUF_KEY"),
        ({"attention.value_length": 64}, "E_CFG_UNSUPPORTED"),
        ({"rope.dimension_count": 16}, "E_CFG_UNSUPPORTED"),
        ({"rope.scaling.type": "yarn"}, "E_CFG_UNSUPPORTED"),
        ({"expert_count": 8}, "E_CFG_UNSUPPORTED"),
        ({"attention.causal": False}, "E_CFG_UNSUPPORTED"),
        ({"final_logit_softcapping": 30.0}, "E_CFG_UNSUPPORTED"),
        ({"attention.sliding_window": 512}, "E_CFG_UNSUPPORTED"),
        ({"logit_scale": np.array([1.0, 2.0])}, "E_CFG_UNSUPPORTED"),
    ],
)
def test_gguf_refusals(over: dict[str, Any], code: str) -> None:
    assert refusal(gguf, tiny.llama(), **over)[0] == code


def test_gguf_gemma_refusals() -> None:
    pattern = "attention.sliding_window_pattern"
    assert refusal(gguf, tiny.gemma3(), **{pattern: np.array([True])})[0] == "E_GGUF_TYPE"
    assert refusal(gguf, tiny.gemma3(), **{"rope.freq_base": ...})[0] == "E_GGUF_KEY"


def test_an_unknown_architecture_names_the_nearest() -> None:
    _, text = refusal(hf, tiny.llama(), architectures=["Gemma4ForCausalLM"], model_type=...)
    assert text.endswith("'Gemma4ForCausalLM' is not supported; the nearest that is: Gemma3ForCausalLM")
    assert "'llama4' is not supported; the nearest that is: llama" in refusal(
        gguf, tiny.llama(), **{"general.architecture": "llama4"}
    )[1]  # fmt: skip


# ---------------------------------------------------------------- what is reported


def test_unknown_keys_that_look_numerical() -> None:
    over = {"attn_temperature": 2.0, "my_note": "x", "norm_offset": 0.1, "rope\nfoo": 1, "attention_dropout": 0.0}
    warnings = hf(tiny.llama(), **over).warnings
    ending = ": not known here and ignored"
    assert warnings == [key + ending for key in ("attn_temperature", "norm_offset", "rope\\x0afoo")]
    assert gguf(tiny.llama(), **{"attention.window_sink": 4}).warnings == ["llama.attention.window_sink" + ending]
    assert hf(tiny.llama()).warnings == hf(tiny.gemma3()).warnings == []


def test_the_tensor_list_decides_about_tying() -> None:
    untied = hf(tiny.llama(), tie_word_embeddings=True)
    assert not untied.spec.tied
    assert untied.warnings == ["tie_word_embeddings is true, but there is a head tensor, so it is used"]
    tied = hf(tiny.llama(tied=True), tie_word_embeddings=False)
    assert tied.spec.tied
    assert tied.warnings == ["tie_word_embeddings is false, but there is no head tensor, so the embedding is used"]


def test_supported_lists_every_family() -> None:
    assert [family.name for family in families.supported()] == ["llama", "gemma3"]
    assert all(family.members and family.hf and family.gguf for family in families.supported())
