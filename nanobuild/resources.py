# SPDX-License-Identifier: Apache-2.0
"""Where our own files are: C sources, board profiles and recipes (in a checkout or inside the wheel), and the cache."""

from __future__ import annotations

import os
from pathlib import Path

from nanobuild.errors import ResourceError, ToolError

_PACKAGE = Path(__file__).resolve().parent
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of nano-build; safe to delete.\n"


def package_dir() -> Path:
    """The folder of our Python modules."""
    return _PACKAGE


def kernels_dir() -> Path:
    """The folder of C sources: include paths start here."""
    return _data_dir("kernels")


def platforms_dir() -> Path:
    """The folder of board profiles and isa.yaml."""
    return _data_dir("platforms")


def recipes_dir() -> Path:
    """The folder of quantization recipes."""
    return _data_dir("recipes")


def cache_dir(*parts: str) -> Path:
    """$NANOBUILD_CACHE or the user's cache folder, with `parts` below it, created and tagged as a cache.

    Raises ResourceError E_CACHE_UNWRITABLE.
    """
    named = os.environ.get("NANOBUILD_CACHE")
    if named:
        root = Path(named).absolute()
    else:
        from platformdirs import user_cache_path

        root = user_cache_path("nano-build", appauthor=False)
    folder = root.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tag = root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="ascii")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable")
    except OSError as err:
        hint = "set NANOBUILD_CACHE to a writable folder"
        raise ResourceError("E_CACHE_UNWRITABLE", folder, err.strerror or "cannot be created", hint=hint) from err
    return folder


def _data_dir(name: str) -> Path:
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise ToolError("E_INSTALL", name, "the folder is missing from this installation", hint="install nano-build again")
