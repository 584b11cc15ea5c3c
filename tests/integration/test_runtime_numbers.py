# SPDX-License-Identifier: Apache-2.0
"""The C forward pass equals reference.py bit for bit, however the work is cut; the sampler equals its twin."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

import nano
import numpy as np
import pytest

from nanobuild.modelfile import ModelFile
from nanobuild.reference import Reference
from nanobuild.runner import LLM, Settings
from nanobuild.sampler import Sampler, Sampling

CONFIGS = {
    "llama": {"layers": 2},
    "all-features": {
        "qk_norm": True, "post_norms": True, "tied": False, "activation": "gelu_tanh", "window": 37, "ropes": 2,
    },
    "odd-sizes": {"kv_heads": 1, "heads": 5, "head_dim": 20, "hidden": 72, "ffn": 100, "rot": 12, "window": 259},
    "no-sharing": {"kv_heads": 4, "heads": 4, "head_dim": 64, "hidden": 128, "ffn": 500, "vocab": 64, "layers": 2},
}  # fmt: skip
CUTS = ((1, 512), (2, 512), (3, 7), (1, 1), (2, 16), (3, 1))  # threads, chunk


@pytest.mark.parametrize(
    ("name", "kv"),
    [("llama", "f16"), ("llama", "i8"), ("all-features", "f16"), ("odd-sizes", "i8"), ("no-sharing", "i8")],
)
def test_logits_equal_the_reference(tmp_path: Path, name: str, kv: str) -> None:
    path = tmp_path / "model.nano"
    spec = nano.random_model(path, **CONFIGS[name])
    ids = nano.ids_for(spec, 262)  # more than one range of positions, and no whole number of tiles
    file = ModelFile(path)
    want = Reference(spec=file.spec, weights=file.weights(), kv=kv).forward(ids)
    for threads, chunk in CUTS:
        for isa in ("scalar", None) if threads == 1 else (None,):
            with LLM(
                path, threads=threads, chunk=chunk, kv=kv, isa=isa, all_logits=True, library=nano.library()
            ) as llm:
                got = np.array(llm.eval(ids), np.float32).reshape(want.shape)
                assert nano.same_bits(got, want), (threads, chunk, isa, np.argwhere(got != want)[:3])
                llm.reset()
                llm.feed(ids[:100])
                llm.feed(ids[100:])
                assert nano.same_bits(llm.logits(), want[-1])


def test_more_threads_than_processors(tmp_path: Path) -> None:
    spec = nano.random_model(tmp_path / "model.nano")
    ids = nano.ids_for(spec, 40)
    logits = []
    for threads in (1, 12):
        with LLM(tmp_path, threads=threads, library=nano.library()) as llm:
            start = time.monotonic()
            for i in ids:
                llm.feed([i])
            logits.append(llm.logits())
            assert time.monotonic() - start < 20
    assert logits[0] == logits[1]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("sampler")
    nano.random_model(folder / "model.nano", vocab=997, layers=1)
    with LLM(folder, library=nano.library(), context=64) as opened:
        opened.feed([1])
        yield opened


SETTINGS = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m, "repeat_penalty": r, "repeat_window": w}
    for t, k, p, m, r, w in [
        (0.0, 0, 1.0, 0.0, 1.0, 64),
        (0.0, 0, 1.0, 0.0, 1.3, 64),
        (1.0, 0, 1.0, 0.0, 1.0, 64),
        (0.7, 40, 0.95, 0.0, 1.0, 64),
        (2.0, 5, 0.5, 0.0, 1.1, 3),
        (0.01, 0, 0.9, 0.0, 1.0, 64),
        (1.5, 0, 1.0, 0.2, 0.7, 0),
        (1.0, 997, 0.3, 0.01, 1.5, 20),
        (1.0, 5000, 0.999, 0.0, 1.0, 64),
        (1.0, 1, 0.1, 1.0, 1.0, 64),
    ]
]


def _logits(rng: np.random.Generator, vocab: int) -> Iterator[np.ndarray]:
    for scale in (0.0, 1.0, 8.0, 100.0):
        yield (rng.standard_normal(vocab) * scale).astype(np.float32)
    yield rng.integers(-3, 3, vocab).astype(np.float32)  # ties everywhere
    odd = rng.standard_normal(vocab).astype(np.float32)
    odd[::7], odd[1::50], odd[3] = np.nan, -np.inf, np.inf
    yield odd
    yield np.full(vocab, np.nan, np.float32)
    yield np.full(vocab, np.finfo(np.float32).max, np.float32)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sampler_equals_its_twin(llm: LLM, settings: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    choose = llm._lib.nb_choose
    choose.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    for seed in (0, 1, 2**64 - 1):
        llm.begin(Settings(**settings, seed=seed))
        twin = Sampler(Sampling(**settings, seed=seed), llm.vocab)
        for logits in _logits(rng, llm.vocab):
            for length in (0, 1, 30):
                history = rng.integers(0, llm.vocab, length).astype(np.int32)
                got = choose(llm._engine, logits.ctypes.data, history.ctypes.data, length)
                with np.errstate(all="ignore"):
                    assert got == twin.sample(logits, [int(i) for i in history])


def test_sampling_follows_the_probabilities(llm: LLM) -> None:
    logits = np.full(llm.vocab, -50, np.float32)
    logits[[3, 10, 500]] = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    twin = Sampler(Sampling(temperature=1.0), llm.vocab)
    counts = np.bincount([twin.sample(logits, []) for _ in range(4000)], minlength=llm.vocab)
    assert np.abs(counts[[3, 10, 500]] / 4000 - [0.6, 0.3, 0.1]).max() < 0.03


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1}, {"temperature": 2.5}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.5},
        {"min_p": -0.1}, {"repeat_penalty": 0}, {"repeat_window": 100_000}, {"stop": [""]}, {"stop": ["x" * 65]},
        {"stop": ["a"] * 5},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range(llm: LLM, settings: dict[str, float]) -> None:
    from nanobuild.runner import RunError

    with pytest.raises(RunError) as caught:
        llm.begin(Settings(**settings))
    assert caught.value.exit_code == 2
    assert caught.value.code in ("E_SAMPLING", "E_STOP")
