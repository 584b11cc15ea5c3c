# SPDX-License-Identifier: Apache-2.0
"""quantize streams: its peak memory does not grow with the tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[1] / "unit"


def test_memory_stays_near_one_chunk(tmp_path: Path) -> None:
    # 96 MB of float32 weights in one matrix, read in pieces: the peak must stay far below the whole
    code = """
import resource, sys, dataclasses
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_quantize import Memory, SPEC
from nanobuild import quantize as work
from nanobuild.recipes import load_recipe

class Big(Memory):
    def read(self, name, start=0, stop=None):
        shape = self.spec.tensor_shapes()[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        rows = (shape[0] if stop is None else stop) - start
        return np.random.default_rng(start).standard_normal((rows, shape[1])).astype(np.float32)

spec = dataclasses.replace(SPEC, vocab=int(sys.argv[3]), hidden=1024)
source = Big({}, spec=spec)
plan = work.make_plan(source, load_recipe("q4g32"), tokenizer=b"t", chat=b"", notes={})
work.write_quantized(source, plan, Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for vocab in (4096, 24576):
        run = [sys.executable, "-c", code, str(tmp_path / f"{vocab}.safetensors"), str(UNIT), str(vocab)]
        peaks.append(int(subprocess.run(run, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] - peaks[0] < 16_000  # KiB, for 80 MB more weights
