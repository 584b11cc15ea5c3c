# SPDX-License-Identifier: Apache-2.0
"""Figures and what they belong to: tasks, samples of several engines taken in turn, rows that never mix workloads."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from nanobuild.errors import NanoBuildError

Kind = Literal["speed", "warm", "cold"]
What = Literal["prefill", "decode", "first token, warm", "first token, cold"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Repeated measurements of one figure, in its unit."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def show(self, digits: int = 1) -> str:
        """min / median / max."""
        low, high = min(self.values), max(self.values)
        return f"{low:.{digits}f} / {self.median:.{digits}f} / {high:.{digits}f}"

    def to_json(self) -> dict[str, Any]:
        """The values with their median and range."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "samples": list(self.values)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is asked of every engine in one turn: prompt and single tokens timed, or a whole process's first token."""

    kind: Kind
    threads: int
    cpus: tuple[int, ...]
    prefill: int
    decode: int
    depth: int = 0  # positions in the cache before a second run of single tokens; 0: no such run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What a figure is about. Only figures of equal workloads may stand in one row or be divided."""

    what: What
    tokens: int
    depth: int
    threads: int

    @property
    def unit(self) -> str:
        """Tokens per second, or seconds."""
        return "tok/s" if self.what in ("prefill", "decode") else "s"

    def show(self) -> str:
        """For a table."""
        if self.what == "decode":
            return f"decode {self.tokens}" + (f" at depth {self.depth}" if self.depth else "")
        return f"prefill {self.tokens}" if self.what == "prefill" else f"{self.what}, {self.tokens} in"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measurement; rate and limit are those of the same moment, in the unit `rate_unit`."""

    workload: Workload
    value: float
    rate: float | None = None
    limit: float | None = None
    rate_unit: str = ""
    memory: Mapping[str, int] | None = None  # KiB: peak, and anon and file where they are known
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # level, context, ...


class Contender(Protocol):
    """An engine in one configuration."""

    @property
    def engine(self) -> str:
        """Name and version."""

    @property
    def config(self) -> str:
        """Weights and options."""

    def run(self, task: Task) -> list[Sample]:
        """Measures once or, if it is alone, several times. A kind of task that it does not know gives no samples.
        Raises ToolError."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One figure of one engine in one configuration, with all that it was measured under."""

    engine: str
    config: str
    model: str
    workload: Workload
    values: Samples
    rate: Samples | None
    limit: Samples | None
    rate_unit: str
    share: Samples | None  # of the limit, sample by sample
    ratio: Samples | None  # how many times as fast as this engine ours is, round by round
    memory: Mapping[str, int] | None
    facts: Mapping[str, Any]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A plain dict that stands for itself."""
        parts = {"rate": self.rate, "limit": self.limit, "of_limit": self.share, "ours_over_this": self.ratio}
        return {
            "engine": self.engine,
            "config": self.config,
            "model": self.model,
            "workload": dataclasses.asdict(self.workload),
            "unit": self.workload.unit,
            **self.values.to_json(),
            "rate_unit": self.rate_unit or None,
            **{name: samples.to_json() if samples else None for name, samples in parts.items()},
            "memory_kib": dict(self.memory) if self.memory else None,
            "facts": dict(self.facts),
            "machine": dict(self.machine),
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A sample with who took it, in which round, and the machine at that moment."""

    contender: Contender
    round: int
    sample: Sample
    machine: Mapping[str, Any]


def take(
    contenders: Sequence[Contender],
    tasks: Sequence[Task],
    rounds: int,
    *,
    machine: Callable[[Task], Mapping[str, Any]],
    failed: Callable[[Contender, NanoBuildError], None],
    progress: Callable[[int, int], None],
) -> list[Taken]:
    """Every round gives each task to each contender, and the next round starts with another one.

    The first contender is ours: its errors are raised. A peer that fails is told to `failed` once and left out of the
    rest, with its whole samples kept.
    """
    out: list[Taken] = []
    gone: set[int] = set()
    for number in range(rounds):
        turn = number % len(contenders)
        order = [*range(turn, len(contenders)), *range(turn)]
        for at, task in enumerate(tasks):
            progress(number * len(tasks) + at, rounds * len(tasks))
            for index in order:
                if index in gone:
                    continue
                contender = contenders[index]
                try:
                    samples = contender.run(task)
                except NanoBuildError as error:
                    if index == 0:
                        raise
                    gone.add(index)
                    failed(contender, error)
                    continue
                state = machine(task)
                out += [Taken(contender=contender, round=number, sample=s, machine=state) for s in samples]
    progress(rounds * len(tasks), rounds * len(tasks))
    return out


def to_rows(taken: Sequence[Taken], model: str) -> list[Row]:
    """One row per workload and contender: by workload in the order of the first round, ours first."""
    workloads = list(dict.fromkeys(t.sample.workload for t in taken))
    ours = taken[0].contender if taken else None
    rows = []
    for workload in workloads:
        here = [t for t in taken if t.sample.workload == workload]
        names = list(dict.fromkeys((t.contender.engine, t.contender.config) for t in here))
        names.sort(key=lambda n: ours is None or n != (ours.engine, ours.config))
        for engine, config in names:
            own = [t for t in here if (t.contender.engine, t.contender.config) == (engine, config)]
            reference = [t for t in here if t.contender is ours] if own[0].contender is not ours else []
            rows.append(_row(engine, config, model, own, _ratio(reference, own)))
    return rows


def _row(engine: str, config: str, model: str, own: Sequence[Taken], ratio: Samples | None) -> Row:
    samples = [t.sample for t in own]

    def all_of(values: Sequence[float | None]) -> Samples | None:
        known = [v for v in values if v is not None]
        return Samples(values=tuple(known)) if known and len(known) == len(values) else None

    shares = [s.rate / s.limit if s.rate is not None and s.limit else None for s in samples]
    peaks = [s.memory for s in samples if s.memory]
    return Row(
        engine=engine,
        config=config,
        model=model,
        workload=samples[0].workload,
        values=Samples(values=tuple(s.value for s in samples)),
        rate=all_of([s.rate for s in samples]),
        limit=all_of([s.limit for s in samples]),
        rate_unit=samples[0].rate_unit,
        share=all_of(shares),
        ratio=ratio,
        memory=max(peaks, key=lambda m: m.get("peak", 0)) if peaks else None,
        facts=samples[-1].facts,
        machine=own[-1].machine,
    )


def _ratio(ours: Sequence[Taken], theirs: Sequence[Taken]) -> Samples | None:
    """Only rounds in which both were measured count; above 1 ours is the faster one, whatever the unit."""
    mine = {t.round: t.sample for t in ours}
    pairs = [(mine[t.round].value, t.sample.value) for t in theirs if t.round in mine]
    if not pairs:
        return None
    seconds = theirs[0].sample.workload.unit == "s"
    return Samples(values=tuple(b / a if seconds else a / b for a, b in pairs))


COLUMNS = ("what", "threads", "engine", "min / median / max", "", "rate", "limit here", "of limit", "ours is")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line a row; the last column says how many times as fast ours is, also where it is not."""
    deep_losses = losses(rows)
    out: list[tuple[str, ...]] = []
    for r in rows:
        digits = 3 if r.workload.unit == "s" else 1
        unit = f" {r.rate_unit}"
        rate = f"{r.rate.median:.1f}{unit}" if r.rate else ""
        if r.memory:
            rate = _memory(r.memory)
        elif id(r) in deep_losses:
            rate = f"{rate} loss {100 * deep_losses[id(r)]:.0f} %".lstrip()
        limit = f"{r.limit.median:.1f}{unit}" if r.limit else ""
        share = f"{100 * r.share.median:.0f} %" if r.share else ""
        ratio = f"{r.ratio.median:.2f}x ({min(r.ratio.values):.2f}-{max(r.ratio.values):.2f})" if r.ratio else ""
        what, threads, engine = r.workload.show(), str(r.workload.threads), f"{r.engine}, {r.config}"
        out.append((what, threads, engine, r.values.show(digits), r.workload.unit, rate, limit, share, ratio))
    return out


def losses(rows: Sequence[Row]) -> dict[int, float]:
    """By id() of each row of decoding at a depth: the part that it lost against depth 0, all else being equal."""
    out = {}
    for row in rows:
        if row.workload.what != "decode" or not row.workload.depth:
            continue
        flat = dataclasses.replace(row.workload, depth=0)
        at_zero = [r for r in rows if (r.engine, r.config, r.workload) == (row.engine, row.config, flat)]
        if at_zero:
            out[id(row)] = 1 - row.values.median / at_zero[0].values.median
    return out


def _memory(memory: Mapping[str, int]) -> str:
    parts = [f"{name} {memory[name] >> 10}" for name in ("file", "anon") if name in memory]
    return f"peak {memory.get('peak', 0) >> 10} MiB" + (f" ({', '.join(parts)})" if parts else "")
