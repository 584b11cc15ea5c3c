# SPDX-License-Identifier: Apache-2.0
"""Logits to the next token in numpy: the twin of kernels/runtime/sampler.c, whose header states the rule step by step.

Same logits, settings and seed give the same ids, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from nanobuild.formats import F32
from nanobuild.reference import exp

_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Settings; the defaults are greedy."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    seed: int = 0


class Sampler:
    """One sequence's generator (SplitMix64)."""

    def __init__(self, settings: Sampling, tokens: int) -> None:
        """tokens: ids from here on are never chosen."""
        self.settings = settings
        self.tokens = tokens
        self.state = settings.seed & _MASK

    def draw(self) -> int:
        """64 random bits."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
        return z ^ z >> 31

    def sample(self, logits: F32, history: Sequence[int]) -> int:
        """logits: (vocab,); history: the tokens so far, the newest last."""
        s = self.settings
        v = logits[: self.tokens].astype(np.float32)
        v[np.isnan(v)] = -np.inf
        self._penalize(v, history)
        if s.temperature == 0:
            return int(np.argmax(v))
        with np.errstate(over="ignore"):
            v = np.minimum(v / np.float32(s.temperature), np.finfo(np.float32).max)
        if v.max() == -np.inf:
            return 0
        order = np.lexsort((np.arange(v.size), -v))
        if s.top_k:
            order = order[: s.top_k]
        p = exp(v[order] - v[order[0]])
        weight = np.floor(p * np.float32(2.0**31)).astype(np.int64)
        keep = (v[order] - v[order[0]] > np.float32(-22)) & (p >= np.float32(s.min_p)) & (weight > 0)
        order, running = order[keep], np.cumsum(weight[keep])
        total = int(running[-1])
        if s.top_p < 1:
            enough = int(float(total) * float(np.float32(s.top_p)))
            stop = int(np.searchsorted(running, enough)) + 1
            order, running = order[:stop], running[:stop]
        target = self.draw() * int(running[-1]) >> 64
        return int(order[np.searchsorted(running, target, side="right")])

    def _penalize(self, v: F32, history: Sequence[int]) -> None:
        s = self.settings
        if s.repeat_penalty == 1 or s.repeat_window == 0:
            return
        for i in set(history[-s.repeat_window :]):
            if 0 <= i < self.tokens:
                penalty = np.float32(s.repeat_penalty)
                v[i] = v[i] / penalty if v[i] > 0 else v[i] * penalty
