# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of every kind beside the library that defines what each has to give: `tokenizers` or `sentencepiece`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path

import sentencepiece
import spm_model
import tokenizers
from tokenizer_texts import training_lines
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from nanobuild.gguf_file import GgufFile
from nanobuild.tokenizers import Tokenizer, load_tokenizer

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<s>", "</s>")
MARK = "\u2581"


@dataclasses.dataclass(frozen=True)
class Case:
    """A tokenizer of ours and the library's answers to the same question."""

    ours: Tokenizer
    encode: Callable[[str, bool], list[int]]  # text, whether markers are parsed
    decode: Callable[[list[int]], str]


def load(folder: Path | None = None, gguf: Mapping[str, object] | None = None, vocab: int = 300_000) -> Tokenizer:
    return load_tokenizer(types.SimpleNamespace(folder=folder, gguf=gguf), vocab=vocab, eos_ids=(), bos_id=None)


def of_library(tok: tokenizers.Tokenizer, folder: Path) -> Case:
    """Saved as tokenizer.json and read back by us."""
    tok.save(str(folder / "tokenizer.json"))

    def encode(text: str, special: bool) -> list[int]:
        tok.encode_special_tokens = not special
        return list(tok.encode(text).ids)

    return Case(load(folder), encode, lambda ids: str(tok.decode(ids, skip_special_tokens=True)))


def _train(pre: pre_tokenizers.PreTokenizer, size: int, **model: bool) -> tokenizers.Tokenizer:
    tok = tokenizers.Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator(training_lines(1), trainer)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("    ", normalized=True)])
    tok.add_tokens(
        [AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("find", single_word=True, normalized=True)]
    )
    return tok


def _pattern(pattern: str, folder: Path, *, nfc: bool = False, whole: bool = False, bos: bool = False) -> Case:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    pre = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok = _train(pre, 1500, ignore_merges=whole)
    if nfc:
        tok.normalizer = normalizers.NFC()
    if bos:
        start = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
        tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), start])
    return of_library(tok, folder)


def qwen2(folder: Path) -> Case:
    return _pattern(QWEN2, folder, nfc=True)


def qwen35(folder: Path) -> Case:
    return _pattern(QWEN35, folder, nfc=True)


def llama3(folder: Path) -> Case:
    return _pattern(LLAMA3, folder, whole=True, bos=True)


def gpt2(folder: Path) -> Case:
    return of_library(_train(pre_tokenizers.ByteLevel(add_prefix_space=True), 1200), folder)


def digits(folder: Path) -> Case:
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return of_library(_train(pre_tokenizers.Sequence(parts), 1200), folder)


def literal(folder: Path) -> Case:
    parts = [pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.Digits(individual_digits=False)]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return of_library(_train(pre_tokenizers.Sequence([*parts, last]), 1200), folder)


# ------------------------------------------------------------- sentencepiece


@functools.cache
def _trained(prefix: bool) -> bytes:
    """A SentencePiece model of type BPE with byte fallback."""
    import io

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in training_lines(2) for line in text.split("\n") if line),
        model_writer=out,
        model_type="bpe",
        vocab_size=1400,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=not prefix,
        user_defined_symbols=["<mask>", "\n", "\n\n", "\t", *(["    "] if prefix else [])],
        control_symbols=["<|im_end|>"],
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return out.getvalue()


def of_model(data: bytes, folder: Path) -> Case:
    """Written as tokenizer.model and read back by us."""
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    return Case(load(folder), lambda text, _: list(oracle.encode(text)), lambda ids: str(oracle.decode(ids)))


def spm_prefix(folder: Path) -> Case:
    return of_model(_trained(True), folder)


def spm_trim(folder: Path) -> Case:
    return of_model(_trained(False), folder)


# -------------------------------------------- the same pieces as tokenizer.json


def _converted() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of the trained model, as converters write them."""
    oracle = sentencepiece.SentencePieceProcessor(model_proto=_trained(True))
    pieces = [oracle.id_to_piece(i) for i in range(oracle.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, i in vocab.items():
        found = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += [(-oracle.get_score(i), vocab[a], vocab[b], a, b) for a, b in found]
    return vocab, [(a, b) for *_, a, b in sorted(merges)]


def _characters(folder: Path, **parts: object) -> Case:
    vocab, merges = _converted()
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tok, name, part)
    specials = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    tok.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tok.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "\t", "<mask>")])
    return of_library(tok, folder)


def _decoder(strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def llama2_json(folder: Path) -> Case:
    normal = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return _characters(folder, normalizer=normal, decoder=_decoder(True))


def gemma_json(folder: Path) -> Case:
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    start = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    normal = normalizers.Replace(" ", MARK)
    return _characters(folder, normalizer=normal, pre_tokenizer=split, post_processor=start, decoder=_decoder(False))


def metaspace_json(folder: Path) -> Case:
    pre = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    return _characters(folder, pre_tokenizer=pre, decoder=_decoder(True))


def metaspace_split_json(folder: Path) -> Case:
    pre = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(MARK, "always", True)])
    return _characters(folder, pre_tokenizer=pre, decoder=decoder)


SYNTHETIC = (
    qwen2, qwen35, llama3, gpt2, digits, literal, spm_prefix, spm_trim, llama2_json, gemma_json, metaspace_json,
    metaspace_split_json,
)  # fmt: skip

# --------------------------------------------------------------- real models


def metadata(path: Path) -> dict[str, object]:
    found = GgufFile(path).metadata
    return {key: found[key] for key in found if key.startswith("tokenizer.")}


def _strings(meta: Mapping[str, object], key: str) -> list[str]:
    return list(meta["tokenizer.ggml." + key])  # type: ignore[call-overload]


def smollm2(path: Path) -> Case:
    """SmolLM2's vocabulary in the library, with the pre-tokenizers of its tokenizer.json."""
    meta = metadata(path)
    tokens = _strings(meta, "tokens")
    merges = [tuple(line.split(" ")) for line in _strings(meta, "merges")]
    tok = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.decoder = decoders.ByteLevel()
    kinds = [int(kind) for kind in meta["tokenizer.ggml.token_type"]]  # type: ignore[attr-defined]
    special = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == 3
    ]
    tok.add_special_tokens(special)

    def encode(text: str, parse: bool) -> list[int]:
        tok.encode_special_tokens = not parse
        return list(tok.encode(text).ids)

    return Case(load(gguf=meta), encode, lambda ids: str(tok.decode(ids)))


def gemma3(path: Path) -> Case:
    """Gemma 3's pieces, scores and types as a SentencePiece model."""
    meta = metadata(path)
    kinds = [int(kind) for kind in meta["tokenizer.ggml.token_type"]]  # type: ignore[attr-defined]
    scores = [float(score) for score in meta["tokenizer.ggml.scores"]]  # type: ignore[attr-defined]
    unk = int(str(meta["tokenizer.ggml.unknown_token_id"]))
    kinds[unk] = 2
    pieces = [(t.encode(), s, k) for t, s, k in zip(_strings(meta, "tokens"), scores, kinds, strict=True)]
    data = spm_model.model(pieces, unk=unk, bos=2, eos=1, dummy_prefix=False)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=data)
    return Case(load(gguf=meta), lambda text, _: list(oracle.encode(text)), lambda ids: str(oracle.decode(ids)))


def folder_case(folder: Path) -> Case:
    """A checkpoint folder with a tokenizer.json."""
    tok = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(text: str, parse: bool) -> list[int]:
        tok.encode_special_tokens = not parse
        return list(tok.encode(text).ids)

    return Case(load(folder), encode, lambda ids: str(tok.decode(ids)))


def chunked(ids: list[int], size: int) -> list[list[int]]:
    it = iter(ids)
    return list(iter(lambda: list(itertools.islice(it, size)), []))


def write_config(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
