# SPDX-License-Identifier: Apache-2.0
"""Finding other engines, what they are asked, and the small programs that run in their interpreters, on stand-ins."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanobuild import peers
from nanobuild.measures import Task
from nanobuild.peers import genai, genai_child, llama, llama_child

WARM = Task(kind="warm", threads=1, cpus=(), prefill=5, decode=1)
SPEED = Task(kind="speed", threads=1, cpus=(), prefill=32, decode=4, depth=16)
BENCH = """#!/bin/sh
case "$1" in
  --help) echo "  --repack <0|1>" ;;
  --version) echo "version: 9.9 (build 1)" >&2 ;;
  *) echo "$@" >> "$0.log"
     p=32 n=4 d=0
     while [ $# -gt 0 ]; do case "$1" in -p) p=$2 ;; -n) n=$2 ;; -d) d=$2 ;; -t) t=$2 ;; esac; shift; done
     sep="["
     for pair in "$p 0" "0 $n"; do
       set -- $pair
       [ "$1$2" = 00 ] && continue
       printf '%s{"n_prompt":%s,"n_gen":%s,"n_depth":%s,"n_threads":%s,"samples_ts":[7.5]}' "$sep" "$1" "$2" "$d" "$t"
       sep=","
     done
     echo "]" ;;
esac
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any peer."""
    for name in (llama.BENCH, llama.PYTHON, genai.PYTHON):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.fixture
def bench_program(nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = program(tmp_path / "llama-bench", BENCH)
    program(tmp_path / "llama-completion", '#!/bin/sh\necho "$@" > "$0.log"\n')
    monkeypatch.setenv(llama.BENCH, str(path))
    return path


@pytest.mark.usefixtures("nothing")
def test_absent_peers_are_a_line_each() -> None:
    found = peers.find({"Q4_0": Path("m.gguf")})
    assert found.contenders == []
    assert len(found.absent) == 2
    assert all("pip install" in line for line in found.absent)
    assert peers.kinds() == ("Q4_0",)


def test_llama_in_its_best_configurations(bench_program: Path, tmp_path: Path) -> None:
    assert peers.kinds() == ("Q4_0", "Q4_K")
    model = tmp_path / "synthetic.m.gguf"
    model.write_bytes(b"x" * 5000)
    found = peers.find({"Q4_0": model, "Q4_K": model})
    assert [(c.engine, c.config) for c in found.contenders] == [
        ("llama.cpp 9.9", "Q4_0"),
        ("llama.cpp 9.9", "Q4_0 --no-repack --no-warmup"),
        ("llama.cpp 9.9", "Q4_K --repack 0"),
    ]
    assert len(found.absent) == 1
    both, whole, prompts = found.contenders
    assert [(s.workload.what, s.workload.depth) for s in both.run(SPEED)] == [
        ("prefill", 0),
        ("decode", 0),
        ("decode", 16),
    ]
    assert [s.workload.what for s in prompts.run(SPEED)] == ["prefill"]
    asked = Path(f"{bench_program}.log").read_text().splitlines()
    assert [line.split("json ")[1] for line in asked] == ["-p 32 -n 4", "-p 0 -n 4 -d 16", "-p 32 -n 0 --repack 0"]
    (first,) = whole.run(WARM)
    assert first.workload.what == "first token, warm"
    assert first.memory
    asked = (tmp_path / "llama-completion.log").read_text().split()
    assert asked[asked.index("-p") + 1] == "abcde"
    assert both.run(WARM) == whole.run(SPEED) == []


def test_the_package_without_llama_bench(nothing: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = '{"version": "1", "load_s": 1, "flat": {"first_s": 2, "step_s": 0.5}, "deep": {"step_s": 1}}'
    python = program(tmp_path / "python", f"#!/bin/sh\necho noise\necho '{said}'\n")
    monkeypatch.setenv(llama.PYTHON, str(python))
    monkeypatch.setenv(genai.PYTHON, str(python))
    found = peers.find({"Q4_0": tmp_path / "m.gguf", "Q4_K": tmp_path / "k.gguf"})
    assert [(c.engine, c.config) for c in found.contenders] == [
        ("llama-cpp-python", "Q4_0"),
        ("OpenVINO GenAI", "Q4_0"),
    ]
    for contender in found.contenders:
        assert [s.value for s in contender.run(SPEED)] == [16, 2, 1]
        assert contender.run(WARM) == []


class Engine:
    """Stands for a model of either package; counts what it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.options, self.calls = options, list[tuple[int, int]]()
        made.append(self)

    def eval(self, tokens: list[int]) -> None:
        self.calls.append((len(tokens), 0))

    def reset(self) -> None:
        self.calls.append((0, 0))

    def generate(self, given: Any, config: Any) -> Any:
        self.calls.append((given.ids.shape[1], config.max_new_tokens))
        seconds = types.SimpleNamespace(mean=1000.0 * len(self.calls))
        metrics = types.SimpleNamespace(get_ttft=lambda: seconds, get_tpot=lambda: seconds)
        return types.SimpleNamespace(perf_metrics=metrics)


made: list[Engine] = []


def test_llama_child(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Engine, __version__="0"))  # type: ignore[arg-type]
    assert llama_child.main(["m.gguf", "2", "40", "3", "50"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["flat"]) == {"first_s", "step_s"}
    assert set(said["deep"]) == {"step_s"}
    engine = made[-1]
    assert engine.options["n_threads"] == 2
    assert engine.options["n_ctx"] >= 53
    assert [n for n, _ in engine.calls] == [32, 0, 40, 0, 1, 1, 1, 0, 50, 1, 1, 1]


def test_genai_child(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    package = types.SimpleNamespace(
        LLMPipeline=Engine,
        GenerationConfig=types.SimpleNamespace,
        TokenizedInputs=lambda ids, mask: types.SimpleNamespace(ids=ids, mask=mask),
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", package)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(Tensor=np.asarray, __version__="0"))  # type: ignore[arg-type]
    assert genai_child.main(["m.gguf", "2", "40", "3", "50"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert made[-1].options["INFERENCE_NUM_THREADS"] == 2
    assert made[-1].calls == [(40, 2), (40, 2), (40, 2), (1, 4), (50, 4)]
    assert said["flat"] == {"first_s": 3.0, "step_s": 4.0}  # the prompt's second time, single tokens after almost none
    assert said["deep"]["step_s"] == 5.0
