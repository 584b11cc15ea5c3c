# SPDX-License-Identifier: Apache-2.0
"""nanobuild.LLM: the bundle's runner with the package around it (the library is built when the bundle has none)."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import NoReturn

from nanobuild import runner
from nanobuild.errors import BY_EXIT_CODE, NanoBuildError
from nanobuild.resources import cache_dir

LIBRARY = "libnano.so"


def find_library(model: Path) -> Path:
    """The library beside a model file, if it is for this machine, else one built for it and kept in the cache."""
    beside = model.resolve().parent / LIBRARY
    return beside if beside.is_file() and not _foreign(beside) else host_library()


def host_library() -> Path:
    """The library for this machine, with all levels of its architecture, in the cache."""
    from nanobuild.compile import build_library

    out = cache_dir("library") / LIBRARY
    build_library(out)
    return out


def _foreign(library: Path) -> bool:
    """Whether an ELF file is for another machine than this Python."""
    with library.open("rb") as file, Path(sys.executable).open("rb") as python:
        ours, own = file.read(20), python.read(20)
    return ours[:4] == own[:4] and ours[18:] != own[18:]


class LLM(runner.LLM):
    """A model to generate with: LLM("bundle").generate("The capital of France is").

    Raises NanoBuildError subclasses with the runtime's codes; see runner.LLM for the methods.
    """

    def _load_library(self, path: Path) -> ctypes.CDLL:
        return super()._load_library(path if path.is_file() and not _foreign(path) else find_library(self.model))

    def _fail(self, code: str, exit_code: int, subject: str, text: str) -> NoReturn:
        raise BY_EXIT_CODE.get(exit_code, NanoBuildError)(code, subject, text)
