# SPDX-License-Identifier: Apache-2.0
"""Times OpenVINO GenAI on a GGUF file, as a program in an interpreter that has it: MODEL THREADS PREFILL DECODE DEPTH.

Imports nothing of ours. The first call packs weights, so only later ones count. Prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(argv: list[str]) -> int:
    """Loads once, times a prompt, single tokens after almost none, and single tokens after `depth` of them."""
    path, threads, prefill, decode, depth = argv[0], *map(int, argv[1:])
    numpy, openvino = importlib.import_module("numpy"), importlib.import_module("openvino")
    genai = importlib.import_module("openvino_genai")
    start = time.perf_counter()
    pipe = genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY")
    loaded = time.perf_counter() - start

    def once(tokens: int, new: int, seed: int) -> dict[str, float]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        # another prompt every time, so that no cached prefix is used again
        ids = numpy.random.default_rng(seed).integers(0, 200, size=(1, tokens)).astype(numpy.int64)
        given = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        metrics: Any = pipe.generate(given, config).perf_metrics
        return {"first_s": metrics.get_ttft().mean / 1e3, "step_s": metrics.get_tpot().mean / 1e3}

    once(min(prefill, 64), 2, 0)
    once(prefill, 2, 1)
    prompt, single = once(prefill, 2, 2), once(1, decode + 1, 3)
    flat = {"first_s": prompt["first_s"], "step_s": single["step_s"]}
    said: dict[str, Any] = {"version": openvino.__version__, "load_s": loaded, "flat": flat}
    if depth:
        said["deep"] = once(depth, decode + 1, 4)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
