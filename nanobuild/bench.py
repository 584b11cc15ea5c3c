# SPDX-License-Identifier: Apache-2.0
"""Timing our own program: it times itself between measurements of the machine's limits, whole runs are timed from
outside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanobuild import __version__, conditions, proc, whole
from nanobuild.errors import ToolError
from nanobuild.measures import Sample, Task, What, Workload

_FIRST: dict[str, What] = {"warm": "first token, warm", "cold": "first token, cold"}
START_CONTEXT = 512  # positions of a whole process's run, for us and for the peers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ours:
    """The program of a bundle and its model file."""

    binary: Path
    model: Path
    weights: str  # recipe or format
    reps: int  # samples a turn
    isa: str | None = None
    kv: str = "f16"

    @property
    def engine(self) -> str:
        """Name and version."""
        return f"nano-build {__version__}"

    @property
    def config(self) -> str:
        """Weights and options."""
        return ", ".join([self.weights, *([self.isa] if self.isa else []), *(["kv i8"] if self.kv == "i8" else [])])

    def run(self, task: Task) -> list[Sample]:
        """Samples of one turn. Raises ToolError E_BENCH if the program fails or prints something else."""
        return self._speed(task) if task.kind == "speed" else self._start(task)

    def _argv(self, task: Task, action: str, context: int) -> list[str | Path]:
        argv: list[str | Path] = [self.binary, "-m", self.model, action, "--threads", str(task.threads)]
        argv += ["--ctx", str(context), "--kv", self.kv, "--bench-prefill", str(task.prefill)]
        argv += ["--bench-decode", str(task.decode)]
        return argv + (["--isa", self.isa] if self.isa is not None else [])

    def _speed(self, task: Task) -> list[Sample]:
        context = max(task.prefill, task.depth + task.decode)
        argv = self._argv(task, "--bench", context)
        argv += ["--bench-depth", str(task.depth), "--reps", str(self.reps)]
        with conditions.pinned(task.cpus):
            result = proc.run(argv, env=proc.clean_env(), timeout=7200.0)
        try:
            return speed_samples(json.loads(result.stdout))
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise ToolError("E_BENCH", self.binary, f"the program's timing cannot be read: {error}") from error

    def _start(self, task: Task) -> list[Sample]:
        out = []
        for _ in range(self.reps):
            if not make_ready(self.model, task):
                break
            argv = self._argv(task, "--bench-start", START_CONTEXT)
            done = whole.run(argv, cpus=task.cpus)
            try:
                said = json.loads(done.stdout)
                facts = {"level": said["isa"], "context": said["context"], "kv": self.kv, "ready_s": said["ready_s"]}
                memory = {name.removesuffix("_kib"): int(kib) for name, kib in said["memory"].items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ToolError("E_BENCH", self.binary, f"the program's timing cannot be read: {error}") from error
            out.append(start_sample(task, done.seconds, memory, facts))
        return out


def speed_samples(said: Mapping[str, Any]) -> list[Sample]:
    """What `run --bench` printed, as samples: prompts against the int8 peak, single tokens against reading speed."""
    kept = ("isa", "context", "chunk", "kv", "read_ahead", "read_once", "clock_ghz")
    facts = {("level" if key == "isa" else key): said[key] for key in kept}
    memory = {name.removesuffix("_kib"): int(kib) for name, kib in said["memory"].items()}
    threads, out = said["threads"], []
    part = said.get("prefill")
    if part:
        workload = Workload(what="prefill", tokens=part["tokens"], depth=0, threads=threads)
        for seconds, peak in zip(part["seconds"], part["peak_gop_s"], strict=True):
            speed = part["tokens"] / seconds
            gops = speed * part["macs"] * 2e-9
            out.append(Sample(workload=workload, value=speed, rate=gops, limit=peak, rate_unit="Gop/s", facts=facts))
    for name in ("decode", "deep"):
        part = said.get(name)
        if not part:
            continue
        workload = Workload(what="decode", tokens=part["tokens"], depth=part["depth"], threads=threads)
        for seconds, read in zip(part["seconds"], part["read_gb_s"], strict=True):
            speed = part["tokens"] / seconds
            rate = speed * part["bytes"] * 1e-9
            out.append(Sample(workload=workload, value=speed, rate=rate, limit=read, rate_unit="GB/s", facts=facts))
    return [dataclasses.replace(s, facts={**s.facts, "process_memory_kib": memory}) for s in out]


def make_ready(model: Path, task: Task) -> bool:
    """Brings the file into the page cache, or out of it; False if the kernel keeps some of it: then nothing is cold."""
    if task.kind == "cold":
        return conditions.drop_pages(model) == 0
    if conditions.cached_pages(model) * conditions.PAGE_BYTES < model.stat().st_size:
        conditions.read_through(model)
    return True


def start_sample(task: Task, seconds: float, memory: Mapping[str, int], facts: Mapping[str, Any]) -> Sample:
    """A whole process from start to exit, with one token generated."""
    what = _FIRST[task.kind]
    workload = Workload(what=what, tokens=task.prefill, depth=0, threads=task.threads)
    return Sample(workload=workload, value=seconds, memory=memory, facts=facts)
