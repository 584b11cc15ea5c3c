# SPDX-License-Identifier: Apache-2.0
"""The wheel holds all that a checkout has: C sources, platforms, recipes and data, found without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("nanobuild", "kernels", "platforms", "recipes")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package installed from its wheel into an empty folder, far from the checkout."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", work, source], check=True)
    (wheel,) = work.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", work / "site", wheel], check=True)
    return work / "site"


def python(installed: Path, *words: str) -> str:
    """Runs Python where only the installed copy of nanobuild can be found first."""
    env = {**os.environ, "PYTHONPATH": str(installed)}
    words = (sys.executable, *words)
    return subprocess.run(words, check=True, cwd=installed.parent, env=env, stdout=subprocess.PIPE, text=True).stdout


def files(folder: Path) -> set[str]:
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)) for p in found}


def test_the_wheel_holds_what_the_checkout_holds(installed: Path) -> None:
    own = {name for name in files(ROOT / "nanobuild") if not name.endswith((".so", ".o"))}
    assert own <= files(installed / "nanobuild")
    for name in ("kernels", "platforms", "recipes"):
        assert files(installed / "nanobuild" / f"_{name}") == files(ROOT / name)
    assert any(p.name == "LICENSE" for p in installed.rglob("*.dist-info/licenses/*"))


def test_an_installed_copy_uses_its_own_files(installed: Path) -> None:
    code = "from nanobuild import resources as r; print(r.kernels_dir(), r.platforms_dir(), r.recipes_dir(), sep='\\n')"
    folders = python(installed, "-c", code).split()
    assert folders == [str(installed / "nanobuild" / f"_{name}") for name in ("kernels", "platforms", "recipes")]
    assert (Path(folders[0]) / "hal" / "hal.h").is_file()
    assert "x86_64" in python(installed, "-m", "nanobuild", "targets")
