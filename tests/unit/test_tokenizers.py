# SPDX-License-Identifier: Apache-2.0
"""Tokenizer files: what is read, what is refused and with which code, where texts stop."""

from __future__ import annotations

import json
import math
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spm_model
import tokenizers

from nanobuild.errors import InputError
from nanobuild.tokenizers import Tokenizer, load_tokenizer
from nanobuild.tokenizers.bytelevel import CHAR_OF_BYTE
from nanobuild.tokenizers.record import Flag, Stage
from nanobuild.tokenizers.split import split
from nanobuild.tokenizers.unicode import _tables, nfc

SPECIALS = ["<|bos|>", "<|eos|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t")]


def tiny() -> dict[str, Any]:
    """A byte-level tokenizer.json with a few merges."""
    vocab = {char: i for i, char in enumerate(CHAR_OF_BYTE.values())}
    for a, b in MERGES:
        vocab[a + b] = len(vocab)
    added = [
        {"id": len(vocab) + i, "content": text, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
        for i, text in enumerate(SPECIALS)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in MERGES]},
    }


def load(
    folder: Path, data: object = None, *, vocab: int = 270, eos: tuple[int, ...] = (), **config: object
) -> Tokenizer:
    if data is not None:
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        (folder / "tokenizer.json").write_bytes(text)
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(types.SimpleNamespace(folder=folder, gguf=None), vocab=vocab, eos_ids=eos, bos_id=None)


def test_tiny_is_read(tmp_path: Path) -> None:
    tok = load(tmp_path, tiny(), bos_token="<|bos|>", eos_token={"content": "<|eos|>"})
    assert tok.encode("hello the") == [259, 260, 256]
    assert tok.decode(tok.encode("hello é \U0001f600")) == "hello é \U0001f600"
    assert (tok.bos_id, tok.stop_ids, tok.size) == (261, (262,), 264)
    assert tok.piece(260) == b" t"
    assert tok.piece(259, first=True) == b"hello"


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Sets one value inside; "model.vocab.x" style."""

    def apply(data: dict[str, Any]) -> None:
        *way, last = path.split("/")
        inner: Any = data
        for key in way:
            inner = inner[int(key) if isinstance(inner, list) else key]
        if isinstance(inner, list):
            inner[int(last)] = value
        else:
            inner[last] = value

    return apply


SPLIT = {"type": "Split", "pattern": {"Regex": "[aeiou]+"}, "behavior": "Isolated", "invert": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|eos|>"}}]}
HOSTILE = [
    ("model/vocab/and", 257, "E_TOK_VOCAB"),
    ("model/vocab/and", -1, "E_TOK_ID"),
    ("model/vocab/and", 2.5, "E_TOK_ID"),
    ("model/vocab/and", True, "E_TOK_ID"),
    ("model/vocab/and", 10**12, "E_TOK_ID"),
    ("model/vocab/and", 100_000, "E_TOK_ID"),
    ("model/vocab", ["a"], "E_TOK_VOCAB"),
    ("model/vocab", {}, "E_TOK_LIMIT"),
    ("model/merges", {"a": "b"}, "E_TOK_MERGE"),
    ("model/merges/3", "in", "E_TOK_MERGE"),
    ("model/merges/3", "a b c", "E_TOK_MERGE"),
    ("model/merges/3", ["a"], "E_TOK_MERGE"),
    ("model/merges/3", "h e", "E_TOK_MERGE"),
    ("model/merges/3", "zzz yyy", "E_TOK_MERGE"),
    ("model/merges/3", "a b", "E_TOK_MERGE"),
    ("added_tokens/2/id", 100_000, "E_TOK_ID"),
    ("added_tokens/2/id", 3, "E_TOK_VOCAB"),
    ("added_tokens/2/id", 262, "E_TOK_VOCAB"),
    ("added_tokens/2/content", "<|bos|>", "E_TOK_VOCAB"),
    ("added_tokens", {}, "E_TOK_JSON"),
    ("pre_tokenizer", {"type": "QuantumSplit"}, "E_TOK_UNSUPPORTED"),
    ("pre_tokenizer", SPLIT, "E_TOK_UNSUPPORTED"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]}, "E_TOK_UNSUPPORTED"),
    ("normalizer", {"type": "NFKC"}, "E_TOK_UNSUPPORTED"),
    ("normalizer", {"type": "Lowercase"}, "E_TOK_UNSUPPORTED"),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": " "}, "content": "x"}, "E_TOK_UNSUPPORTED"),
    ("decoder", {"type": "WordPiece"}, "E_TOK_UNSUPPORTED"),
    ("post_processor", TEMPLATE, "E_TOK_UNSUPPORTED"),
    ("post_processor", {"type": "BertProcessing"}, "E_TOK_UNSUPPORTED"),
    ("model/type", "Unigram", "E_TOK_UNSUPPORTED"),
    ("model/dropout", 0.1, "E_TOK_UNSUPPORTED"),
    ("model/end_of_word_suffix", "</w>", "E_TOK_UNSUPPORTED"),
    ("model/unk_token", "<none>", "E_TOK_VOCAB"),
    ("model", None, "E_TOK_JSON"),
]


@pytest.mark.parametrize(("path", "value", "code"), HOSTILE, ids=lambda x: str(x)[:30])
def test_hostile_json(tmp_path: Path, path: str, value: object, code: str) -> None:
    data = tiny()
    change(path, value)(data)
    with pytest.raises(InputError) as caught:
        load(tmp_path, data)
    assert caught.value.code == code


def test_not_there_or_not_json(tmp_path: Path) -> None:
    for data, code in (
        (None, "E_TOK_MISSING"),
        (b"version https://git-lfs.github.com/spec/v1\n", "E_TOK_JSON"),
        (b"", "E_TOK_JSON"),
        (b"[]", "E_TOK_JSON"),
        (b'{"model": {"vocab": {"a": 0, "a": 1}}}', "E_TOK_JSON"),
        (b"[" * 100_000, "E_TOK_JSON"),
    ):
        with pytest.raises(InputError) as caught:
            load(tmp_path, data)
        assert caught.value.code == code


def test_piece_and_embedding_limits(tmp_path: Path) -> None:
    data = tiny()
    data["model"]["vocab"]["x" * 1025] = 264
    with pytest.raises(InputError) as caught:
        load(tmp_path, data)
    assert caught.value.code == "E_TOK_LIMIT"
    with pytest.raises(InputError) as caught:
        load(tmp_path, tiny(), vocab=263)
    assert caught.value.code == "E_TOK_ID"
    with pytest.raises(InputError) as caught:
        load(tmp_path, tiny(), eos=(270,))
    assert caught.value.code == "E_TOK_ID"


def test_stops_come_from_every_source(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    assert load(tmp_path, tiny(), eos=(5, 7)).stop_ids == (5, 7)
    assert load(tmp_path, tiny(), eos=(5,), eos_token="<|eos|>").stop_ids == (5, 262)
    tok = load(tmp_path, tiny(), eos=(5,), eos_token="<|eos|>", chat_template=template)
    assert tok.stop_ids == (5, 262, 263)
    assert tok.chat_template == template
    (tmp_path / "chat_template.jinja").write_text("{{ 1 }}")
    assert load(tmp_path, eos=(5,)).chat_template == "{{ 1 }}"


def test_an_end_token_is_special_even_if_the_file_forgets(tmp_path: Path) -> None:
    data = tiny()
    change("added_tokens/1/special", False)(data)
    tok = load(tmp_path, data, eos_token="<|eos|>")
    assert 262 not in tok.encode("a<|eos|>")
    assert tok.encode("a<|eos|>", parse_special=True)[-1] == 262
    assert tok.piece(262) == b""


def test_eos_in_the_middle_changes_nothing_around_it(tmp_path: Path) -> None:
    tok = load(tmp_path, tiny(), eos_token="<|eos|>")
    ids = [*tok.encode("hello"), 262, *tok.encode(" the")]
    assert tok.decode(ids) == "hello the"
    assert tok.decode(ids, show_special=True) == "hello<|eos|> the"
    assert tok.decode([300, -1, 262]) == ""


def test_emoji_over_many_tokens_streams(tmp_path: Path) -> None:
    tok = load(tmp_path, tiny())
    text = "a\U0001f469\u200d\U0001f467é"
    shown = list(tok.stream(tok.encode(text)))
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)
    assert "".join(tok.stream(tok.encode(text)[:3])) == "a\ufffd"


# ------------------------------------------------------------- sentencepiece

WORDS = ["\u2581", "t", "h", "e", "a", "n", "\u2581t", "he", "\u2581the", "an"]


def pieces() -> list[tuple[bytes, float, int]]:
    out = [(b"<unk>", 0.0, 2), (b"<s>", 0.0, 3), (b"</s>", 0.0, 3)]
    out += [(b"<0x%02X>" % b, 0.0, 6) for b in range(256)]
    return out + [(word.encode(), -float(i), 1) for i, word in enumerate(WORDS)]


def replaced(at: int, *piece: Any) -> bytes:
    out = pieces()
    out[at] = piece  # type: ignore[call-overload]
    return spm_model.model(out)


def test_tokenizer_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(spm_model.model(pieces()))
    tok = load(tmp_path, vocab=272, eos=(2,))
    assert tok.encode("the an") == [1, 267, 259, 268]
    assert tok.decode(tok.encode("the é")) == "the é"
    assert tok.record.flags & Flag.DROP_PREFIX


BAD_MODELS = [
    (b"", "E_SPM_EMPTY"),
    (spm_model.model(pieces())[:1001], "E_SPM_WIRE"),
    (b"".join(spm_model.piece(*p) for p in pieces()) + b"\x12" + b"\xff" * 20 + b"\x01", "E_SPM_WIRE"),
    (spm_model.model(pieces()) + b"\x0a" + spm_model.varint(2**31) + b"zz", "E_SPM_WIRE"),
    (spm_model.model(pieces()) + b"\x0b", "E_SPM_WIRE"),
    (b"\x00\x00", "E_SPM_WIRE"),
    (replaced(-1, "\u2581the".encode(), -50.0, 1), "E_SPM_PIECE"),
    (replaced(-1, b"x", math.nan, 1), "E_SPM_PIECE"),
    (replaced(-1, b"\xff", 0.0, 1), "E_SPM_PIECE"),
    (replaced(-1, b"x", 0.0, 9), "E_SPM_PIECE"),
    (replaced(7, b"<0xZZ>", 0.0, 6), "E_SPM_PIECE"),
    (replaced(7, b"seven", 0.0, 1), "E_SPM_PIECE"),
    (replaced(0, b"<unk>", 0.0, 3), "E_SPM_PIECE"),
    (replaced(-1, b"x" * 1025, 0.0, 1), "E_TOK_LIMIT"),
    (spm_model.model(pieces(), model_type=1), "E_TOK_UNSUPPORTED"),
    (spm_model.model(pieces(), charsmap=b"abc"), "E_TOK_UNSUPPORTED"),
]


@pytest.mark.parametrize(("data", "code"), BAD_MODELS, ids=range(len(BAD_MODELS)))
def test_hostile_model(tmp_path: Path, data: bytes, code: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(InputError) as caught:
        load(tmp_path, vocab=272)
    assert caught.value.code == code


# ---------------------------------------------------------------------- GGUF


def gguf(**over: object) -> dict[str, object]:
    vocab = [*CHAR_OF_BYTE.values(), *(a + b for a, b in MERGES), *SPECIALS]
    meta: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": vocab,
        "token_type": [1] * 261 + [3] * 3,
        "merges": [f"{a} {b}" for a, b in MERGES],
        "bos_token_id": 261,
        "eos_token_id": 262,
    }
    return {"tokenizer.ggml." + key: value for key, value in (meta | over).items() if value is not None}


def from_gguf(**over: object) -> Tokenizer:
    return load_tokenizer(types.SimpleNamespace(folder=None, gguf=gguf(**over)), vocab=264, eos_ids=(), bos_id=None)


def test_gguf_is_read() -> None:
    tok = from_gguf(eot_token_id=263)
    assert tok.encode("hello the") == [259, 260, 256]
    assert tok.stop_ids == (262, 263)
    assert tok.record.stages == ((Stage.DIGITS, 1), (Stage.GPT2, 0))
    assert from_gguf(pre="llama-bpe").encode("hello")[0] == 261
    assert from_gguf(pre="llama-bpe", add_bos_token=False).encode("hello") == [259]
    assert from_gguf(pre=None).record.stages == ((Stage.GPT2, 0),)


GGUF_BAD = [
    ({"model": None}, "E_TOK_MISSING"),
    ({"model": "bert"}, "E_TOK_UNSUPPORTED"),
    ({"pre": "made-up"}, "E_TOK_UNSUPPORTED"),
    ({"tokens": None}, "E_TOK_MISSING"),
    ({"tokens": [1, 2]}, "E_TOK_VOCAB"),
    ({"token_type": [1]}, "E_TOK_VOCAB"),
    ({"merges": None}, "E_TOK_MISSING"),
    ({"merges": ["zz yy"]}, "E_TOK_MERGE"),
    ({"eos_token_id": 264}, "E_TOK_ID"),
    ({"bos_token_id": -1}, "E_TOK_ID"),
    ({"tokens": ["a"] * 264}, "E_TOK_VOCAB"),
    ({"model": "llama"}, "E_TOK_MISSING"),
    ({"model": "llama", "scores": [0.0] * 264}, "E_TOK_VOCAB"),
]


@pytest.mark.parametrize(("over", "code"), GGUF_BAD, ids=range(len(GGUF_BAD)))
def test_hostile_gguf(over: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        from_gguf(**over)
    assert caught.value.code == code


# ------------------------------------------------------------------- Unicode


def test_composition_equals_the_library() -> None:
    normalizer = tokenizers.normalizers.NFC()
    tables = _tables()
    codes = {*tables["decomposed"], *tables["parts"], *tables["compose"], *(x >> 8 for x in tables["combining"])}
    codes |= set(range(0xAC00, 0xD7B0, 41)) | set(range(0x1100, 0x1200)) | set(range(0, 0x110000, 997))
    chars = [chr(c) for c in sorted(codes) if not 0xD800 <= c < 0xE000]
    rng = random.Random(3)
    for i in range(0, len(chars), 16):
        text = "".join(char + rng.choice(chars) + "\u0301" + rng.choice(chars) for char in chars[i : i + 16])
        assert nfc(text) == normalizer.normalize_str(text), text
    assert nfc("q" + "\u0301\u0323" * 300) == normalizer.normalize_str("q" + "\u0301\u0323" * 300)
    assert nfc("\udcffe\u0301") == "\udcffé"


def test_parts_make_the_whole() -> None:
    text = " it's  12345 a\u2581\u2581b\r\n\n x\u0301'LL \t!"
    for stage in ((Stage.GPT2, 0), (Stage.WORDS, 3 | 32), (Stage.DIGITS, 1), (Stage.DIGITS, 0), (Stage.SPACED, 0)):
        assert "".join(split(text, (stage,), "")) == text
    assert split("a--b-", ((Stage.LITERAL, 1),), "-") == ["a-", "-", "b-"]
    assert split("a--b-", ((Stage.LITERAL, 2),), "-") == ["a", "-", "-b", "-"]
    assert split("a--b", ((Stage.LITERAL, 0),), "-") == ["a", "-", "-", "b"]


@pytest.mark.slow
def test_tables_are_fresh() -> None:
    import gen_unicode

    header = (gen_unicode.ROOT / "kernels" / "runtime" / "unicode_tables.h").read_text()
    if gen_unicode.NOTE not in header:
        pytest.skip("the tables come from another version of tokenizers")
    tables = gen_unicode.build()
    assert header == gen_unicode.header(tables)
    assert (gen_unicode.ROOT / "nanobuild" / "tokenizers" / "unidata.py").read_text() == gen_unicode.module(tables)
