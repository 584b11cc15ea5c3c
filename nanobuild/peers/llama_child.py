# SPDX-License-Identifier: Apache-2.0
"""Times the llama-cpp-python package, as a program in an interpreter that has it: MODEL THREADS PREFILL DECODE DEPTH.

Imports nothing of ours. Prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(argv: list[str]) -> int:
    """Loads once, times a prompt, single tokens after an empty cache, and single tokens after `depth` tokens."""
    path, threads, prefill, decode, depth = argv[0], *map(int, argv[1:])
    package = importlib.import_module("llama_cpp")
    context = max(prefill, decode + depth) + 8
    start = time.perf_counter()
    model: Any = package.Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)
    loaded = time.perf_counter() - start

    def seconds(tokens: list[int], together: bool) -> float:
        begin = time.perf_counter()
        for piece in [tokens] if together else [[token] for token in tokens]:
            model.eval(piece)
        return time.perf_counter() - begin

    ids = [(i * 40503 >> 3) % 200 for i in range(context)]
    seconds(ids[: min(prefill, 32)], True)  # warm-up
    model.reset()
    first = seconds(ids[:prefill], True)
    model.reset()
    step = seconds(ids[:decode], False) / decode
    version = package.__version__
    said: dict[str, Any] = {"version": version, "load_s": loaded, "flat": {"first_s": first, "step_s": step}}
    if depth:
        model.reset()
        seconds(ids[:depth], True)
        said["deep"] = {"step_s": seconds(ids[:decode], False) / decode}
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
