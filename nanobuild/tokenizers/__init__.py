# SPDX-License-Identifier: Apache-2.0
"""Tokenizer files (tokenizer.json, tokenizer.model, GGUF metadata) to one Record and the Tokenizer that works on it."""

from __future__ import annotations

from nanobuild.tokenizers.load import TokenizerFiles, load_tokenizer
from nanobuild.tokenizers.tokenizer import Tokenizer

__all__ = ["Tokenizer", "TokenizerFiles", "load_tokenizer"]
