# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 and Gemma 3, the real ones: one answer from every level, thread count, runner and the reference; quality."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import model_file

from nanobuild import pipeline
from nanobuild.bundle import Bundle
from nanobuild.checkpoint import open_checkpoint
from nanobuild.detect import detect
from nanobuild.evaluate import DEFAULT_TEXT, EvalReport, evaluate, logits_of
from nanobuild.llm import LLM
from nanobuild.modelfile import ModelFile
from nanobuild.reference import Reference

pytestmark = [pytest.mark.model, pytest.mark.slow]
PROMPT = "The capital of France is"
WAYS = [(level, 2) for level in ("scalar", "sse41", "avx2", "avxvnni", "avx512vnni")] + [("avx2", n) for n in (1, 3, 7)]


def bundle_of(name: str, recipe: str) -> Bundle:
    return pipeline.prepare(str(model_file(name)), recipe, "generic-x86_64")


def said(*words: object) -> bytes:
    return subprocess.run([str(w) for w in words], check=True, capture_output=True).stdout


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_one_answer_everywhere(name: str, tmp_path: Path) -> None:
    bundle, dump = bundle_of(name, "q4"), tmp_path / "logits"
    common = ("--prompt", PROMPT, "-n", 8, "--ids")
    ids = [int(word) for word in said(bundle.binary, *common).split()]
    with LLM(bundle.path, all_logits=True, context=64) as llm:
        prompt = llm.encode(PROMPT)
        sequence = prompt + ids[:-1]
        logits = np.frombuffer(llm.eval(sequence), np.float32).reshape(len(sequence), -1)
    assert logits[len(prompt) - 1 :].argmax(axis=1).tolist() == ids
    file = ModelFile(bundle.model)
    assert (Reference(file.spec, file.weights()).forward(sequence) == logits).all()
    allowed = detect()["suggest"]["levels"]
    for level, threads in WAYS:
        if level not in allowed:
            continue
        out = said(bundle.binary, *common, "--threads", threads, "--isa", level, "--logits", dump)
        assert [int(word) for word in out.split()] == ids, (level, threads)
        assert (np.fromfile(dump, "<f4") == logits[-1]).all(), (level, threads)
    for extra in (("--chunk", 1), ("--chunk", 3), ("--mmap-mode", "read"), ("--mmap-mode", "populate")):
        assert [int(word) for word in said(bundle.binary, *common, *extra).split()] == ids, extra
    alone = said(sys.executable, "-I", "-S", bundle.path / "run.py", *common)
    assert [int(word) for word in alone.split()] == ids


def test_long_prompts_equal_token_by_token() -> None:
    bundle = bundle_of("smollm2-135m", "q4")
    text = DEFAULT_TEXT.read_text(encoding="utf-8")
    for kv in ("f16", "i8"):
        results = []
        for chunk, threads in ((512, 2), (512, 1), (100, 2), (1, 2)):
            with LLM(bundle.path, context=384, chunk=chunk, threads=threads, kv=kv) as llm:
                ids = llm.encode(text)[:300]
                llm.feed(ids[:290])
                llm.feed(ids[290:])
                results.append(np.frombuffer(llm.logits(), np.float32))
        assert all((r == results[0]).all() for r in results), kv


def score(recipe: str) -> EvalReport:
    bundle = bundle_of("smollm2-135m", recipe)
    text = DEFAULT_TEXT.read_text(encoding="utf-8")
    with open_checkpoint(model_file("smollm2-135m")) as source, LLM(bundle.path, all_logits=True, context=512) as llm:
        tokenizer = pipeline.tokenizer_of(source)
        return evaluate(source, logits_of(llm), tokenizer, text, windows=4, window_tokens=512)


def test_eight_bits_are_close_to_the_float_model() -> None:
    r = score("q8")
    assert r.kl <= 0.008
    assert r.top1 >= 0.95


def test_the_default_four_bits_keep_their_promise() -> None:
    r = score("q4")
    assert r.top1 >= 0.80
    assert np.exp(r.delta_ln_ppl) <= 1.10


def test_the_program_is_static_and_small_and_the_model_stays_clean() -> None:
    bundle = bundle_of("smollm2-135m", "q4")
    headers = said("readelf", "-lW", bundle.binary).decode()
    assert "INTERP" not in headers
    assert "DYNAMIC" not in headers
    assert bundle.binary.stat().st_size < 1_000_000
    with LLM(bundle.path, context=64) as llm:
        llm.feed(llm.encode(PROMPT))
        maps = Path("/proc/self/smaps").read_text().split(str(bundle.model.resolve()))[1:]
    assert maps
    dirty = [int(part.split("Private_Dirty:")[1].split()[0]) for part in maps]
    assert sum(dirty) == 0
