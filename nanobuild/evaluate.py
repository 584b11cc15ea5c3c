# SPDX-License-Identifier: Apache-2.0
"""How far the quantized model is from the float one: teacher-forced on real text, over the whole vocabulary.

Both models see the same windows of the same tokens; each position is compared, never a sampled text. What comes out is
a receipt: plain numbers with the hashes of what was measured.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError
from nanobuild.floatmodel import F32, WeightSource, float_logits
from nanobuild.progress import Progress, silent

F64 = npt.NDArray[np.float64]
LogitsFunction = Callable[[Sequence[int]], F32]  # token ids of one window -> logits (tokens, vocab)

DEFAULT_TEXT = Path(__file__).resolve().parent / "data" / "eval.txt"
DEFAULT_WINDOWS = 8
DEFAULT_WINDOW_TOKENS = 512
_ROWS = 32  # positions whose distributions are held at once in float64


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, bos: bool = True) -> list[int]: ...


class Runner(Protocol):
    """What is needed of nanobuild.LLM, opened with all_logits."""

    vocab: int

    def reset(self) -> None: ...

    def eval(self, ids: Sequence[int]) -> array.array[float]: ...


def logits_of(runner: Runner) -> LogitsFunction:
    """The C runtime as a function from a window's ids to its logits."""

    def logits(ids: Sequence[int]) -> F32:
        runner.reset()
        return np.frombuffer(runner.eval(ids), dtype=np.float32).reshape(len(ids), runner.vocab)

    return logits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """One row per predicted token: natural logarithms, nats."""

    kl: F64  # KL(float || ours) of the whole distribution
    same_top: npt.NDArray[np.bool_]  # do both rank the same token first?
    nll_float: F64  # -ln p of the token that follows, float model
    nll_ours: F64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WindowReport:
    """Means over one window."""

    tokens: int  # predicted ones
    kl: float
    top1: float
    ln_ppl_float: float
    ln_ppl_ours: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvalReport:
    """Means over all predicted tokens, in nats; standard errors treat the tokens as independent."""

    text_sha256: str
    window_tokens: int  # length of a window, its beginning-of-sequence token included
    tokens: int  # predicted tokens in all
    kl: float  # mean KL(float || ours)
    kl_se: float
    kl_p99: float  # 99th percentile over the tokens
    top1: float  # share of positions with the same first choice, 0 to 1
    ln_ppl_float: float
    ln_ppl_ours: float
    delta_ln_ppl: float  # ours minus float; exp() of it is the ratio of the perplexities
    delta_se: float  # of the paired difference, token by token
    windows: tuple[WindowReport, ...]

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain values."""
        return {"schema": 1, **dataclasses.asdict(self)}


def make_windows(encoder: Encoder, text: str, count: int, length: int) -> list[list[int]]:
    """Up to `count` windows of `length` tokens, cut from the text one after the other, each with the model's own
    beginning-of-sequence token in front (if it has one). A short text gives one short window.

    Raises InputError E_EVAL_TEXT when not even one token can be predicted.
    """
    front = encoder.encode("", bos=True)
    ids = encoder.encode(text, bos=False)
    room = length - len(front)
    if count < 1 or room < 1 or len(front) + min(room, len(ids)) < 2:
        raise InputError("E_EVAL_TEXT", "", f"{len(ids)} tokens of text in windows of {length}: nothing to predict")
    whole = len(ids) // room
    return [front + ids[i * room : (i + 1) * room] for i in range(min(count, max(whole, 1)))]


def score_window(ids: Sequence[int], float_: F32, ours: F32) -> Scores:
    """Compares logits (tokens, vocab) of both models on one window; the last position predicts nothing and is left out.

    Raises InputError E_EVAL_SHAPE for logits of another shape and E_EVAL_NAN for logits that are no numbers.
    """
    if float_.shape != ours.shape or len(ids) != len(float_):
        raise InputError(
            "E_EVAL_SHAPE", "", f"logits {ours.shape} for {len(ids)} tokens, the float model's {float_.shape}"
        )
    n = len(ids) - 1
    kl, same, nll_f, nll_o = np.empty(n), np.empty(n, dtype=np.bool_), np.empty(n), np.empty(n)
    following = np.asarray(ids[1:], dtype=np.int64)
    for start in range(0, n, _ROWS):
        rows = slice(start, min(start + _ROWS, n))
        p, q = _log_softmax(float_[rows]), _log_softmax(ours[rows])
        own = np.arange(len(p)), following[rows]
        kl[rows] = np.sum(np.exp(p) * (p - q), axis=1)
        same[rows] = p.argmax(axis=1) == q.argmax(axis=1)
        nll_f[rows], nll_o[rows] = -p[own], -q[own]
    if not (np.isfinite(kl).all() and np.isfinite(nll_o).all()):
        raise InputError("E_EVAL_NAN", "", "logits that are not finite numbers")
    return Scores(kl=kl, same_top=same, nll_float=nll_f, nll_ours=nll_o)


def evaluate(
    source: WeightSource,
    ours: LogitsFunction,
    encoder: Encoder,
    text: str,
    *,
    windows: int = DEFAULT_WINDOWS,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
    progress: Progress = silent,
) -> EvalReport:
    """Runs both models over the text and compares them; `ours` is called once per window, in order.

    Raises InputError E_EVAL_TEXT, E_EVAL_IDS, E_EVAL_SHAPE or E_EVAL_NAN.
    """
    cut = make_windows(encoder, text, windows, min(window_tokens, source.spec.max_positions))
    scores = []
    for i, (ids, wanted) in enumerate(zip(cut, float_logits(source, cut, progress=progress), strict=True)):
        progress("comparing", i, len(cut))
        scores.append(score_window(ids, wanted, ours(ids)))
    progress("comparing", len(cut), len(cut))
    return report(scores, text_sha256=hashlib.sha256(text.encode()).hexdigest(), window_tokens=len(cut[0]))


def report(scores: Sequence[Scores], *, text_sha256: str, window_tokens: int) -> EvalReport:
    """Means and standard errors over all windows."""
    kl, nll_f, nll_o = (_joined(getattr(s, f) for s in scores) for f in ("kl", "nll_float", "nll_ours"))
    delta = nll_o - nll_f
    return EvalReport(
        text_sha256=text_sha256,
        window_tokens=window_tokens,
        tokens=len(kl),
        kl=float(kl.mean()),
        kl_se=_standard_error(kl),
        kl_p99=float(np.quantile(kl, 0.99)),
        top1=float(np.mean(np.concatenate([s.same_top for s in scores]))),
        ln_ppl_float=float(nll_f.mean()),
        ln_ppl_ours=float(nll_o.mean()),
        delta_ln_ppl=float(delta.mean()),
        delta_se=_standard_error(delta),
        windows=tuple(
            WindowReport(
                tokens=len(s.kl),
                kl=float(s.kl.mean()),
                top1=float(s.same_top.mean()),
                ln_ppl_float=float(s.nll_float.mean()),
                ln_ppl_ours=float(s.nll_ours.mean()),
            )
            for s in scores
        ),
    )


def _log_softmax(logits: F32) -> F64:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _standard_error(values: F64) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _joined(parts: Iterable[F64]) -> F64:
    return np.concatenate(list(parts))
