# SPDX-License-Identifier: Apache-2.0
"""The comparison's numbers against sums done by hand, and what it refuses."""

from __future__ import annotations

import array
import json
import math

import numpy as np
import pytest

from nanobuild import evaluate
from nanobuild.errors import InputError
from nanobuild.floatmodel import F32, float_logits
from nanobuild.spec import Layer, ModelSpec, Rope

SPEC = ModelSpec(
    family="test",
    hidden=16,
    ffn=24,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=256,
    max_positions=64,
    norm_eps=1e-5,
    activation="silu",
    attn_scale=8**-0.5,
    embed_scale=1.0,
    qk_norm=False,
    post_norms=False,
    tied=True,
    ropes=(Rope(inv_freq=(1.0, 0.5, 0.25, 0.125)),),
    layers=(Layer(rope=0, window=0), Layer(rope=0, window=5)),
)


class RandomSource:
    """Random weights of a seed for SPEC; `noise` disturbs them."""

    def __init__(self, noise: float = 0.0) -> None:
        self.spec = SPEC
        self.noise = noise

    def read(self, name: str, start: int = 0, stop: int | None = None) -> F32:
        rng = np.random.default_rng(list(name.encode()))
        shape = SPEC.tensor_shapes()[name]
        base = np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.3, shape)
        return (base + rng.normal(0, 1, shape) * self.noise)[start:stop].astype(np.float32)


class Bytes:
    """A tokenizer whose tokens are bytes, with 1 as beginning of sequence."""

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        return [1] * bos + list(text.encode())


def engine(noise: float):
    source = RandomSource(noise)
    return lambda ids: next(float_logits(source, [ids]))


TEXT = "It rained in the night, and the board on the sill counted every drop. " * 4


def test_scores_by_hand() -> None:
    # two positions of three words; the third row predicts nothing and must not matter
    p = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [1.0, 1.0, 1.0]], dtype=np.float32)) + 3
    q = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8], [9.0, 1.0, 1.0]], dtype=np.float32)) - 5
    s = evaluate.score_window([0, 1, 2], p, q)
    kl = [0.5 * math.log(2) + 0.25 * math.log(0.5), 0.4 * math.log(2) + 0.6 * math.log(0.75)]
    assert s.kl == pytest.approx(kl, abs=1e-6)
    assert s.same_top.tolist() == [False, True]
    assert s.nll_float == pytest.approx([-math.log(0.25), -math.log(0.6)], abs=1e-6)
    assert s.nll_ours == pytest.approx([-math.log(0.5), -math.log(0.8)], abs=1e-6)
    r = evaluate.report([s, s], text_sha256="", window_tokens=3)
    assert r.tokens == 4
    assert r.kl == pytest.approx(sum(kl) / 2, abs=1e-6)
    assert r.top1 == 0.5
    delta = np.tile([math.log(0.25) - math.log(0.5), math.log(0.6) - math.log(0.8)], 2)
    assert r.delta_ln_ppl == pytest.approx(delta.mean(), abs=1e-6)
    assert r.delta_se == pytest.approx(delta.std(ddof=1) / 2, abs=1e-6)
    assert json.loads(json.dumps(r.to_json()))["windows"][1]["top1"] == 0.5


def test_the_same_model_has_no_distance_and_noise_has_some() -> None:
    same, near, far = (
        evaluate.evaluate(RandomSource(), engine(noise), Bytes(), TEXT, windows=3, window_tokens=40)
        for noise in (0.0, 0.01, 0.1)
    )
    assert (same.kl, same.top1, same.delta_ln_ppl, same.delta_se) == (pytest.approx(0, abs=1e-12), 1.0, 0.0, 0.0)
    assert same.tokens == 3 * 39
    assert 1e-6 < near.kl < far.kl
    assert far.top1 < 1.0
    assert near.windows[0].ln_ppl_float == same.windows[0].ln_ppl_float


def test_a_runner_starts_each_window_anew() -> None:
    class Counting:
        vocab = 3
        position = 0

        def reset(self) -> None:
            self.position = 0

        def eval(self, ids: list[int]) -> array.array[float]:
            self.position += len(ids)
            return array.array("f", range(self.position * self.vocab))

    logits = evaluate.logits_of(Counting())
    for ids in ([1, 2], [7]):
        assert logits(ids).tolist() == np.arange(len(ids) * 3).reshape(-1, 3).tolist()


def test_windows_are_cut_one_after_the_other() -> None:
    cut = evaluate.make_windows(Bytes(), "abcdefgh", 9, 4)
    assert cut == [[1, *b"abc"], [1, *b"def"]]
    assert evaluate.make_windows(Bytes(), "ab", 9, 40) == [[1, *b"ab"]]


@pytest.mark.parametrize(("text", "count", "length"), [("", 3, 40), ("abc", 0, 40), ("abc", 1, 1)])
def test_nothing_to_predict_is_refused(text: str, count: int, length: int) -> None:
    with pytest.raises(InputError) as failure:
        evaluate.make_windows(Bytes(), text, count, length)
    assert failure.value.code == "E_EVAL_TEXT"


def test_bad_logits_are_refused() -> None:
    good = np.zeros((3, 4), dtype=np.float32)
    with pytest.raises(InputError) as shape:
        evaluate.score_window([0, 1, 2], good, good[:2])
    assert shape.value.code == "E_EVAL_SHAPE"
    bad = good.copy()
    bad[1, 2] = np.nan
    with pytest.raises(InputError) as nan:
        evaluate.score_window([0, 1, 2], good, bad)
    assert nan.value.code == "E_EVAL_NAN"


def test_the_float_model_refuses_bad_ids() -> None:
    for window in ([], [SPEC.vocab], [-1], [0] * (SPEC.max_positions + 1)):
        with pytest.raises(InputError):
            list(float_logits(RandomSource(), [window]))


def test_the_default_text_is_there_and_long_enough() -> None:
    text = evaluate.DEFAULT_TEXT.read_text(encoding="utf-8")
    assert text.isascii()
    assert len(text) > 18_000
