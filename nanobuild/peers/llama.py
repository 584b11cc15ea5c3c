# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: its own llama-bench for speeds and llama-completion for whole processes, or the llama-cpp-python package.

Best configurations: defaults (weights repacked at load) for single tokens; for prompts also K-quants without repacking,
which take other kernels; for a short run no repacking and no warm-up.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanobuild import conditions, proc, whole
from nanobuild.bench import START_CONTEXT, make_ready, start_sample
from nanobuild.errors import ToolError
from nanobuild.measures import Contender, Sample, Task, Workload
from nanobuild.peers.child import ChildPeer

BENCH = "NANOBUILD_LLAMA_BENCH"
PYTHON = "NANOBUILD_LLAMA_PYTHON"
LACKING = (
    f"llama.cpp is not here: put llama-bench (and llama-completion, llama-quantize) on PATH, or name it in {BENCH}, "
    "or pip install llama-cpp-python"
)
_PACKAGE = "llama-cpp-python"
PROMPT = "abcdefghijklmnop"  # as many letters as tokens are wanted, for the synthetic vocabulary
TEXT = "The quick brown fox jumps"  # five tokens in real vocabularies


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LlamaBench:
    """llama-bench on one file with some options; single tokens are left out for configurations made for prompts."""

    program: Path
    gguf: Path
    weights: str
    version: str
    options: tuple[str, ...] = ()
    prompts_only: bool = False

    @property
    def engine(self) -> str:
        """Name and version."""
        return f"llama.cpp {self.version}"

    @property
    def config(self) -> str:
        """Weights and options."""
        return " ".join([self.weights, *self.options])

    def run(self, task: Task) -> list[Sample]:
        """One repetition after llama-bench's own warm-up. Raises ToolError."""
        if task.kind != "speed":
            return []
        out = self._bench(task, task.prefill, 0 if self.prompts_only else task.decode, 0)
        if task.depth and not self.prompts_only:
            out += self._bench(task, 0, task.decode, task.depth)
        return out

    def _bench(self, task: Task, prompt: int, single: int, depth: int) -> list[Sample]:
        argv: list[str | Path] = [self.program, "-m", self.gguf, "-t", str(task.threads), "-r", "1", "-o", "json"]
        argv += ["-p", str(prompt), "-n", str(single), *(["-d", str(depth)] if depth else []), *self.options]
        with conditions.pinned(task.cpus):
            result = proc.run(argv, env=proc.clean_env(), timeout=7200.0)
        return parse_bench(result.stdout, self.program)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCompletion:
    """A whole llama-completion process with one token generated, as fast and small as its options make it."""

    program: Path
    gguf: Path
    weights: str
    version: str
    synthetic: bool  # the vocabulary is ours
    options: tuple[str, ...] = ("--no-repack", "--no-warmup")

    @property
    def engine(self) -> str:
        """Name and version."""
        return f"llama.cpp {self.version}"

    @property
    def config(self) -> str:
        """Weights and options."""
        return " ".join([self.weights, *self.options])

    def run(self, task: Task) -> list[Sample]:
        """One process. Raises ToolError."""
        if task.kind == "speed" or not make_ready(self.gguf, task):
            return []
        prompt = PROMPT[: task.prefill] if self.synthetic else TEXT
        argv: list[str | Path] = [self.program, "-m", self.gguf, "-t", str(task.threads), "-c", str(START_CONTEXT)]
        argv += ["-n", "1", "-p", prompt, "--temp", "0", "--ignore-eos", "-no-cnv", *self.options]
        done = whole.run(argv, cpus=task.cpus)
        return [start_sample(task, done.seconds, {"peak": done.peak_kib}, {"context": START_CONTEXT})]


def contenders(files: Mapping[str, Path]) -> tuple[list[Contender], str]:
    """What of llama.cpp can run on these files, or the line that says how to get it."""
    program = find_bench()
    if program is None:
        python = _package()
        plain = [(kind, path) for kind, path in files.items() if kind != "Q4_K"]
        found: list[Contender] = [
            ChildPeer(engine=_PACKAGE, script="llama_child.py", python=python, gguf=path, config=kind)
            for kind, path in plain
            if python
        ]
        return found, "" if found else LACKING
    version = _version(program)
    out: list[Contender] = []
    for kind, path in files.items():
        if kind != "Q4_K":
            out.append(LlamaBench(program=program, gguf=path, weights=kind, version=version))
            completion = beside(program, "llama-completion")
            if completion:
                synthetic = path.name.startswith("synthetic.")
                out.append(
                    LlamaCompletion(program=completion, gguf=path, weights=kind, version=version, synthetic=synthetic)
                )
        elif has_repack(program):
            options = ("--repack", "0")
            out.append(
                LlamaBench(
                    program=program, gguf=path, weights=kind, version=version, options=options, prompts_only=True
                )
            )
    return out, ""


def find_bench() -> Path | None:
    """llama-bench: named by the environment, or on PATH."""
    named = os.environ.get(BENCH)
    return Path(named).absolute() if named else proc.which("llama-bench")


def beside(program: Path, name: str) -> Path | None:
    """Another program of the same build: in the same folder, or on PATH."""
    near = program.parent / name
    return near if os.access(near, os.X_OK) else proc.which(name)


@functools.cache
def has_repack(program: Path) -> bool:
    """Whether this llama-bench can leave weights as they are in the file."""
    return b"--repack" in proc.run([program, "--help"], env=proc.clean_env(), check=False).stdout


def quantize(program: Path, source: Path, out: Path, kind: str) -> None:
    """Makes a GGUF of another type with llama-quantize. Raises ToolError."""
    threads = str(len(os.sched_getaffinity(0)))
    proc.run([program, "--allow-requantize", source, out, kind, threads], env=proc.clean_env(), timeout=3600.0)


def parse_bench(stdout: bytes, program: Path) -> list[Sample]:
    """llama-bench's JSON. Raises ToolError E_PEER."""
    try:
        return [_test(test) for test in json.loads(stdout)]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ToolError("E_PEER", program, f"its timing cannot be read: {error!r}") from error


def _test(test: Mapping[str, Any]) -> Sample:
    prompt, single = int(test["n_prompt"]), int(test["n_gen"])
    if bool(prompt) == bool(single):
        raise ValueError("a test of prompts and single tokens together")
    workload = Workload(
        what="prefill" if prompt else "decode",
        tokens=prompt or single,
        depth=int(test.get("n_depth", 0)),
        threads=int(test["n_threads"]),
    )
    kept = ("build_commit", "model_type", "model_size", "type_k", "type_v", "flash_attn", "repack")
    facts = {key: test[key] for key in kept if key in test}
    return Sample(workload=workload, value=float(test["samples_ts"][0]), facts=facts)


def _version(program: Path) -> str:
    """The build, as llama-bench says it; a word if it doesn't."""
    text = proc.run([program, "--version"], env=proc.clean_env(), check=False)
    for line in (text.stdout + text.stderr).decode("utf-8", "replace").splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").split("(")[0].strip()
    return "of unknown version"


def _package() -> Path | None:
    named = os.environ.get(PYTHON)
    if named:
        return Path(named).absolute()
    return Path(sys.executable) if importlib.util.find_spec("llama_cpp") else None
