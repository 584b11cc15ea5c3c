# SPDX-License-Identifier: Apache-2.0
"""Turns of several engines, rows of one workload each, and ratios of one round each; outputs of peers as recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobuild import bench, measures
from nanobuild.errors import NanoBuildError, ToolError
from nanobuild.measures import Sample, Task, Workload
from nanobuild.peers import child, llama

RECORDED = Path(__file__).parents[1] / "data/peers"
SPEED = Task(kind="speed", threads=1, cpus=(0,), prefill=32, decode=4, depth=16)


@dataclasses.dataclass
class Fake:
    """An engine that writes down when it is asked, and is `speed` times as fast as the first."""

    engine: str
    log: list[tuple[str, str, int]]
    speed: float = 1.0
    fails_at: int = -1
    config: str = "plain"
    asked: int = 0

    def run(self, task: Task) -> list[Sample]:
        self.log.append((self.engine, task.kind, task.threads))
        self.asked += 1
        if self.asked == self.fails_at:
            raise ToolError("E_TOOL_FAILED", self.engine, "fell over")
        if task.kind != "speed":
            work = Workload(what="first token, warm", tokens=5, depth=0, threads=task.threads)
            return [Sample(workload=work, value=1 / self.speed, memory={"peak": 2048})]
        out = []
        for what, tokens, depth in (("prefill", 32, 0), ("decode", 4, 0), ("decode", 4, 16)):
            work = Workload(what=what, tokens=tokens, depth=depth, threads=task.threads)  # type: ignore[arg-type]
            value = self.speed * (100 + self.asked) * (0.8 if depth else 1)
            out.append(Sample(workload=work, value=value, rate=value / 10, limit=20.0, rate_unit="GB/s"))
        return out


def take(contenders: list[Fake], tasks: list[Task], rounds: int) -> tuple[list[measures.Taken], list[str]]:
    told: list[str] = []

    def machine(task: Task) -> Mapping[str, Any]:
        return {"cpu": "a model", "threads": task.threads}

    def failed(contender: measures.Contender, error: NanoBuildError) -> None:
        told.append(f"{contender.engine}: {error}")

    taken = measures.take(contenders, tasks, rounds, machine=machine, failed=failed, progress=lambda done, total: None)
    return taken, told


def tasks() -> list[Task]:
    one = [SPEED, dataclasses.replace(SPEED, kind="warm")]
    return [*one, *(dataclasses.replace(t, threads=2, cpus=(0, 1)) for t in one)]


def test_every_round_asks_everybody_for_each_task_before_the_next() -> None:
    log: list[tuple[str, str, int]] = []
    take([Fake("ours", log), Fake("a", log), Fake("b", log)], tasks(), 2)
    turns = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert [turn[0][1:] for turn in turns] == [("speed", 1), ("warm", 1), ("speed", 2), ("warm", 2)] * 2
    assert all(len({entry[1:] for entry in turn}) == 1 for turn in turns)
    assert [[name for name, _, _ in turn] for turn in turns[:4]] == [["ours", "a", "b"]] * 4
    assert [[name for name, _, _ in turn] for turn in turns[4:]] == [["a", "b", "ours"]] * 4


def test_rows_hold_one_workload_and_ratios_one_round() -> None:
    log: list[tuple[str, str, int]] = []
    taken, _ = take([Fake("ours", log), Fake("slow", log, speed=0.5), Fake("fast", log, speed=2.0)], tasks(), 3)
    rows = measures.to_rows(taken, "m")
    keys = [(row.workload, row.engine) for row in rows]
    assert len(keys) == len(set(keys)) == 3 * 4 * 2
    assert all(len(row.values.values) == 3 for row in rows)
    for row in rows:
        mine = [t for t in taken if (t.sample.workload, t.contender.engine) == (row.workload, row.engine)]
        assert row.values.values == tuple(t.sample.value for t in mine)
        assert row.machine["threads"] == row.workload.threads
        expected = {"ours": None, "slow": 2.0, "fast": 0.5}[row.engine]
        assert (row.ratio is None) == (expected is None)
        if row.ratio and expected:
            assert row.ratio.values == pytest.approx((expected,) * 3)
    lines = measures.table(rows)
    assert sum(line[-1] == "0.50x (0.50-0.50)" for line in lines) == 8  # what we lose is printed too
    assert all("loss 20 %" in line[5] for line in lines if line[0] == "decode 4 at depth 16")
    assert [line[2] for line in lines[:3]] == ["ours, plain", "slow, plain", "fast, plain"]


def test_a_peer_that_fails_is_left_out_and_ours_is_not() -> None:
    log: list[tuple[str, str, int]] = []
    taken, told = take([Fake("ours", log), Fake("bad", log, fails_at=3)], tasks(), 2)
    assert told == ["bad: bad: fell over"]
    assert sum(t.contender.engine == "ours" for t in taken) == 2 * 8
    assert [name for name, _, _ in log].count("bad") == 3
    row = next(r for r in measures.to_rows(taken, "m") if r.engine == "bad" and r.workload.what == "prefill")
    assert row.ratio is not None
    assert len(row.ratio.values) == 1
    with pytest.raises(ToolError):
        take([Fake("ours", [], fails_at=2), Fake("a", [])], tasks(), 2)


def test_a_row_in_json_stands_for_itself() -> None:
    taken, _ = take([Fake("ours", []), Fake("a", [], speed=0.5)], tasks(), 2)
    row = next(r for r in measures.to_rows(taken, "m") if r.engine == "a").to_json()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["workload"] == {"what": "prefill", "tokens": 32, "depth": 0, "threads": 1}
    assert {"engine", "config", "model", "unit", "median", "min", "max", "samples", "machine", "facts"} < set(row)
    assert row["ours_over_this"]["median"] == pytest.approx(2)
    assert row["of_limit"]["samples"] == pytest.approx([v / 200 for v in row["samples"]])


def test_llama_bench_as_recorded() -> None:
    prompt, single = llama.parse_bench((RECORDED / "llama_bench.json").read_bytes(), Path("llama-bench"))
    assert prompt.workload == Workload(what="prefill", tokens=32, depth=0, threads=2)
    assert single.workload == Workload(what="decode", tokens=4, depth=0, threads=2)
    assert prompt.value > single.value > 1
    assert prompt.facts["repack"] is True
    (deep,) = llama.parse_bench((RECORDED / "llama_bench_depth.json").read_bytes(), Path("llama-bench"))
    assert deep.workload == Workload(what="decode", tokens=4, depth=16, threads=1)


@pytest.mark.parametrize("text", [b"", b"[]x", b'[{"n_prompt": 1}]', b'{"a": 1}', b'[{"n_prompt": 8, "n_gen": 8}]'])
def test_what_is_no_timing_is_an_error(text: bytes) -> None:
    with pytest.raises(ToolError) as caught:
        llama.parse_bench(text, Path("llama-bench"))
    assert caught.value.code == "E_PEER"
    with pytest.raises(ToolError):
        child.parse_child(text, Path("python"), SPEED)


def test_genai_as_recorded() -> None:
    samples = child.parse_child((RECORDED / "genai_child.json").read_bytes(), Path("python"), SPEED)
    said = json.loads((RECORDED / "genai_child.json").read_bytes())
    assert [(s.workload.what, s.workload.depth) for s in samples] == [("prefill", 0), ("decode", 0), ("decode", 16)]
    assert samples[0].value == pytest.approx(32 / said["flat"]["first_s"])
    assert samples[2].value == pytest.approx(1 / said["deep"]["step_s"])
    assert samples[0].facts["version"].startswith("2026")


def test_our_program_as_recorded() -> None:
    said = json.loads((RECORDED / "ours.json").read_bytes())
    samples = bench.speed_samples(said)
    assert [s.workload.depth for s in samples] == [0, 0, 0, 0, 64, 64]
    prompt, single, deep = samples[0], samples[2], samples[4]
    assert prompt.rate == pytest.approx(32 / said["prefill"]["seconds"][0] * said["prefill"]["macs"] * 2e-9)
    assert single.limit == said["decode"]["read_gb_s"][0]
    assert single.rate == pytest.approx(4 / said["decode"]["seconds"][0] * said["decode"]["bytes"] * 1e-9)
    assert said["deep"]["bytes"] > said["decode"]["bytes"] > said["token_bytes"]
    assert deep.facts["kv"] == "f16"
    assert deep.facts["process_memory_kib"]["peak"] > 0
