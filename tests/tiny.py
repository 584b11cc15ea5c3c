# SPDX-License-Identifier: Apache-2.0
"""Seeded tiny checkpoints, written from nothing: Llama and Gemma 3, as safetensors folders and as GGUF files.

`llama()` and `gemma3()` give a Model (configuration and Hugging Face tensors); `write_hf` and `write_gguf` put it on
disk. numpy only.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tinyfiles import GGUF_TYPES, Array, GgufTensor, encode, gguf_bytes, st_bytes, st_entries

BOS, EOS, USER, END = "<|bos|>", "<|eos|>", "<|user|>", "<|end|>"
SPECIALS = (BOS, EOS, USER, END)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)
_WORDS = ("the", "and", "ing", "ion", "er", "on", "in", "at", "re", "is", "it", "or", "an", "en", "ed", "to", "of")
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


# ---------------------------------------------------------------- tokenizer


def byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each of the 256 bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def merges() -> list[tuple[str, str]]:
    """Left to right merges that build each word of a short list, with and without a space before it."""
    space, out = byte_letters()[32], {}
    for word in [*(space + w for w in ("the", "a", "and", "of", "to", "in")), *_WORDS]:
        for end in range(1, len(word)):
            out[(word[:end], word[end])] = None
    return list(out)


def vocabulary() -> list[str]:
    """Tokens by id: 256 bytes, the merged pieces, the four specials."""
    return [*byte_letters(), *dict.fromkeys(a + b for a, b in merges()), *SPECIALS]


def token_id(token: str) -> int:
    return vocabulary().index(token)


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE tokenizer.json with the GPT-2 split."""
    tokens = vocabulary()
    plain = tokens[: -len(SPECIALS)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(plain) + i, "content": s, **flags} for i, s in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(plain)},
            "merges": [f"{a} {b}" for a, b in merges()],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE, **names}


# ---------------------------------------------------------------- models


@dataclasses.dataclass(slots=True)
class Model:
    """A configuration in the words of config.json, and tensors by their Hugging Face names."""

    config: dict[str, Any]
    tensors: dict[str, Array]

    @property
    def gemma(self) -> bool:
        return bool(self.config["model_type"] == "gemma3_text")


def _common(over: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # not hidden / heads
        "max_position_embeddings": 256,
        "vocab_size": len(vocabulary()) + 3,  # rows that no token uses, as in many published models
        "bos_token_id": token_id(BOS),
        "eos_token_id": token_id(EOS),
        "torch_dtype": "bfloat16",
    }
    return config | over


def _fill(config: Mapping[str, Any], norms: tuple[str, ...], head_norms: bool, centre: float, seed: int) -> Model:
    rng = np.random.default_rng(seed)
    hidden, ffn, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width

    def matrix(rows: int, cols: int) -> Array:
        return (rng.standard_normal((rows, cols)) / math.sqrt(cols)).astype(np.float32)

    def norm(size: int) -> Array:
        return (centre + 0.1 * rng.standard_normal(size)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        sizes = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
        tensors |= {f"{layer}self_attn.{x}_proj.weight": matrix(*size) for x, size in sizes.items()}
        sizes = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
        tensors |= {f"{layer}mlp.{x}_proj.weight": matrix(*size) for x, size in sizes.items()}
        tensors |= {f"{layer}{name}.weight": norm(hidden) for name in norms}
        if head_norms:
            tensors |= {f"{layer}self_attn.{x}_norm.weight": norm(width) for x in ("q", "k")}
    tensors["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return Model(dict(config), tensors)


def llama(*, tied: bool = False, llama3: bool = False, seed: int = 1, **over: Any) -> Model:
    """A Llama of 2 layers with 4 heads on 2 KV heads; `over` changes keys of the configuration."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": LLAMA3_SCALING if llama3 else None,
        "attention_bias": False,
        "tie_word_embeddings": tied,
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    return _fill(_common(config | over), norms, False, 1.0, seed)


def gemma3(*, tied: bool = True, seed: int = 2, **over: Any) -> Model:
    """A Gemma 3 text model: 3 layers, of which the third is global, windows of 8 in the others."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": tied,
    }
    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    return _fill(_common(config | over), norms, True, 0.0, seed)


# ---------------------------------------------------------------- safetensors


def write_hf(folder: Path, model: Model, *, dtype: str = "BF16", shards: int = 1, tokenizer: bool = True) -> Path:
    """Writes config.json, the weights in one file or in shards with an index, and a tokenizer; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model.config)
    if tokenizer:
        write_json(folder / "tokenizer.json", tokenizer_json())
        write_json(folder / "tokenizer_config.json", tokenizer_config())
    entries = st_entries(model.tensors, dtype)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(st_bytes(entries))
        return folder
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = entries[i::shards]
        (folder / name).write_bytes(st_bytes(part))
        weight_map |= {entry[0]: name for entry in part}
    total = sum(len(entry[3]) for entry in entries)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


# ---------------------------------------------------------------- GGUF


def gguf_metadata(model: Model) -> dict[str, object]:
    """The keys that llama.cpp's converter would write for the model, tokenizer included."""
    c, arch = model.config, "gemma3" if model.gemma else "llama"
    tokens = vocabulary()
    meta: dict[str, object] = {
        "general.architecture": arch,
        "general.name": "tiny",
        f"{arch}.context_length": c["max_position_embeddings"],
        f"{arch}.embedding_length": c["hidden_size"],
        f"{arch}.block_count": c["num_hidden_layers"],
        f"{arch}.feed_forward_length": c["intermediate_size"],
        f"{arch}.attention.head_count": c["num_attention_heads"],
        f"{arch}.attention.head_count_kv": c["num_key_value_heads"],
        f"{arch}.attention.key_length": c["head_dim"],
        f"{arch}.attention.value_length": c["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        f"{arch}.rope.freq_base": float(c["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(SPECIALS)) + [3] * len(SPECIALS),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges()],
        "tokenizer.ggml.bos_token_id": c["bos_token_id"],
        "tokenizer.ggml.eos_token_id": c["eos_token_id"],
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if model.gemma:
        meta["gemma3.attention.sliding_window"] = c["sliding_window"]
        if c["sliding_window_pattern"] != 6:
            n = range(c["num_hidden_layers"])
            meta["gemma3.attention.sliding_window_pattern"] = [bool((i + 1) % c["sliding_window_pattern"]) for i in n]
    else:
        meta["llama.vocab_size"] = c["vocab_size"]
        meta["llama.rope.dimension_count"] = c["head_dim"]
    return meta


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, gemma: bool) -> str:
    for ours, theirs in _GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("post_attention_layernorm", "post_attention_norm" if gemma else "ffn_norm")


def interleave(matrix: Array, head_dim: int) -> Array:
    """Rows (head, half, pair) in the order (head, pair, half) in which GGUF stores q and k of a Llama."""
    heads = matrix.reshape(-1, 2, head_dim // 2, matrix.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(matrix.shape))


def llama3_factors(config: Mapping[str, Any]) -> Array:
    """What the converter puts into rope_freqs.weight: by how much each frequency is divided."""
    s, width = config["rope_scaling"], config["head_dim"]
    out = []
    for i in range(0, width, 2):
        wave = 2 * math.pi * config["rope_theta"] ** (i / width)
        ramp = (s["original_max_position_embeddings"] / wave - s["low_freq_factor"]) / (
            s["high_freq_factor"] - s["low_freq_factor"]
        )
        ramp = min(max(ramp, 0.0), 1.0)
        out.append(1 / ((1 - ramp) / s["factor"] + ramp))
    return np.array(out, np.float32)


def gguf_tensors(
    model: Model, kind: str = "F32", encoder: Callable[[Array], bytes] | None = None, type_id: int | None = None
) -> list[GgufTensor]:
    """The model's tensors as llama.cpp's converter stores them; matrices as `kind` or by `encoder` and `type_id`."""
    out = []
    for name, original in model.tensors.items():
        values = original + np.float32(1) if model.gemma and original.ndim == 1 else original
        if not model.gemma and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleave(original, model.config["head_dim"])
        number, data = GGUF_TYPES["F32"], encode(values, "F32")
        if values.ndim == 2:
            number = GGUF_TYPES[kind] if type_id is None else type_id
            data = encode(values, kind) if encoder is None else encoder(values)
        out.append(GgufTensor(gguf_name(name, model.gemma), list(values.shape[::-1]), number, data))
    if model.config.get("rope_scaling") and not model.gemma:
        factors = llama3_factors(model.config)
        out.append(GgufTensor("rope_freqs.weight", [len(factors)], GGUF_TYPES["F32"], encode(factors, "F32")))
    return out


def write_gguf(path: Path, model: Model, kind: str = "F32") -> Path:
    """Writes the model as a GGUF file with its matrices as F32, F16 or BF16; returns the path."""
    path.write_bytes(gguf_bytes(gguf_metadata(model), gguf_tensors(model, kind)))
    return path
