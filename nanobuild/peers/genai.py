# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI, which reads GGUF files of Llama and Qwen models: timed by a small program in its interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from nanobuild.measures import Contender
from nanobuild.peers.child import ChildPeer

PYTHON = "NANOBUILD_OPENVINO_PYTHON"
LACKING = f"OpenVINO GenAI is not here: pip install openvino-genai, or name a Python that has it in {PYTHON}"


def contenders(files: Mapping[str, Path]) -> tuple[list[Contender], str]:
    """The package on the first file (4-bit blocks), or the line that says how to get it."""
    named = os.environ.get(PYTHON)
    python = Path(named).absolute() if named else None
    if python is None and importlib.util.find_spec("openvino_genai"):
        python = Path(sys.executable)
    if python is None:
        return [], LACKING
    return [
        ChildPeer(engine="OpenVINO GenAI", script="genai_child.py", python=python, gguf=path, config=kind)
        for kind, path in list(files.items())[:1]
    ], ""
