# SPDX-License-Identifier: Apache-2.0
"""nanobuild.LLM: the bundle's runner with the package around it (the library is built when the bundle has none)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NoReturn

from nanobuild import runner
from nanobuild.errors import BY_EXIT_CODE, NanoBuildError
from nanobuild.resources import cache_dir

LIBRARY = "libnano.so"


def find_library(model: Path) -> Path:
    """The library beside a model file, else one built for this machine and kept in the cache."""
    beside = model.resolve().parent / LIBRARY
    if beside.is_file():
        return beside
    from nanobuild.compile import build_library

    out = cache_dir("library") / LIBRARY
    build_library(out)
    return out


class LLM(runner.LLM):
    """A model to generate with: LLM("bundle").generate("The capital of France is").

    Raises NanoBuildError subclasses with the runtime's codes; see runner.LLM for the methods.
    """

    def _load_library(self, path: Path) -> ctypes.CDLL:
        return super()._load_library(path if path.is_file() else find_library(self.model))

    def _fail(self, code: str, exit_code: int, subject: str, text: str) -> NoReturn:
        raise BY_EXIT_CODE.get(exit_code, NanoBuildError)(code, subject, text)
