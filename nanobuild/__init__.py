# SPDX-License-Identifier: Apache-2.0
"""nano-build: language models on edge boards, the same answer on every CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanobuild.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from nanobuild.llm import LLM

        return LLM
    raise AttributeError(name)
