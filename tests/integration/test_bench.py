# SPDX-License-Identifier: Apache-2.0
"""`nano-build bench` on a tiny model: our own program's figures, whole processes, and peers that are small scripts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nano
import numpy as np
import pytest
import tiny

from nanobuild import cli, entry
from nanobuild.isa import load_isa
from nanobuild.modelfile import ModelFile
from nanobuild.peers import genai, llama

Run = Callable[..., dict[str, Any]]
PEER = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("version: 9.9 (build 1)")
elif words != ["--help"]:
    with open(sys.argv[0] + ".log", "a") as log:
        log.write(" ".join(words) + "\\n")
    value = {flag: int(words[words.index(flag) + 1]) for flag in ("-p", "-n", "-t")}
    tests = [t for t in ((value["-p"], 0), (0, value["-n"])) if any(t)]
    print(json.dumps([{"n_prompt": p, "n_gen": n, "n_threads": value["-t"], "samples_ts": [1e6]} for p, n in tests]))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that passes for a bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    nano.text_model(folder, max_position_embeddings=1024)
    shutil.copy(nano.program(), folder / "run")
    manifest = {"kind": "nano-build bundle", "model": {"recipe": "q8"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def nb(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `bench --json` with small numbers on a machine without peers: its object, with "notes" from stderr."""
    for name in (llama.BENCH, llama.PYTHON, genai.PYTHON):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    def run(*words: object, code: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        small = ("--prefill", 20, "--decode", 3, "--reps", 2, "--threads", 1)
        assert entry.guard(lambda: cli.run(["bench", *map(str, words), *map(str, small), "--json"])) == code
        out, err = capfd.readouterr()
        return dict(json.loads(out)) | {"notes": err}

    return run


def test_speed_depth_and_whole_processes(nb: Run, bundle: Path) -> None:
    said = nb(bundle, "--depth", 60, "--threads", 2, "--kv", "i8")
    kinds = [(r["workload"]["what"], r["workload"]["depth"], r["workload"]["threads"]) for r in said["rows"]]
    figures = [("prefill", 0), ("decode", 0), ("decode", 60), ("first token, warm", 0), ("first token, cold", 0)]
    wanted = [(what, depth, threads) for threads in (2, 1) for what, depth in figures]
    assert kinds == wanted or kinds == [k for k in wanted if "cold" not in k[0]]  # some file systems keep their pages
    assert said["binary_bytes"] == (bundle / "run").stat().st_size
    for row in said["rows"]:
        assert len(row["samples"]) == 2
        assert row["min"] <= row["median"] <= row["max"]
        assert row["machine"]["kernel"]
        assert row["machine"]["threads"] == row["workload"]["threads"]
        assert row["facts"]["kv"] == "i8"
        if row["unit"] == "s":
            memory = row["memory_kib"]
            assert 0 < memory["file"] <= memory["peak"] < 200_000
            assert 0 < row["facts"]["ready_s"] < row["median"] < 5
        else:
            assert row["rate"]["median"] > 0
            assert row["of_limit"]["samples"] == pytest.approx(
                [a / b for a, b in zip(row["rate"]["samples"], row["limit"]["samples"], strict=True)]
            )


def test_peers_run_in_turn_with_ours(nb: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(PEER)
    program.chmod(0o755)
    monkeypatch.setenv(llama.BENCH, str(program))
    source = tiny.write_gguf(tmp_path / "tiny.gguf", tiny.llama())
    said = nb(bundle, "--no-start", "--peer", "--gguf", source)
    assert [(r["workload"]["what"], r["engine"].split()[0]) for r in said["rows"]] == [
        ("prefill", "nano-build"),
        ("prefill", "llama.cpp"),
        ("decode", "nano-build"),
        ("decode", "llama.cpp"),
    ]
    ours, theirs = said["rows"][:2]
    assert theirs["config"] == "tiny.gguf as it is"
    assert theirs["ours_over_this"]["samples"] == pytest.approx([x / 1e6 for x in ours["samples"]])
    assert theirs["ours_over_this"]["median"] < 1  # and is printed all the same
    asked = Path(f"{program}.log").read_text().splitlines()
    assert [line.split("json ")[1] for line in asked] == ["-p 20 -n 3"] * 2
    assert "pip install openvino-genai" in said["notes"]


def test_a_peer_that_breaks_is_a_note(nb: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\n[ $# = 1 ] || { echo an error of mine >&2; exit 4; }\n")
    program.chmod(0o755)
    monkeypatch.setenv(llama.BENCH, str(program))
    source = tiny.write_gguf(tmp_path / "tiny.gguf", tiny.llama())
    said = nb(bundle, "--no-start", "--peer", "--gguf", source)
    assert [r["engine"].split()[0] for r in said["rows"]] == ["nano-build", "nano-build"]
    assert "left out" in said["notes"]
    assert "an error of mine" in said["notes"]


def test_no_peers_and_no_file_for_them_are_notes(nb: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = nb(bundle, "--no-start", "--peer")
    assert len(said["absent"]) == 2
    monkeypatch.setenv(genai.PYTHON, "/nonexistent/python")
    said = nb(bundle, "--no-start", "--peer")
    assert any("--gguf" in line for line in said["absent"])
    assert len(said["rows"]) == 2


def test_what_cannot_be_timed_is_refused(nb: Run, bundle: Path) -> None:
    assert nb(bundle, "--shape", "llama3-8b", code=2)["error"]["code"] == "E_USAGE"
    assert nb(bundle, "--kv", "f64", code=2)["error"]["code"] == "E_USAGE"
    assert nb("--shape", "llama4", code=2)["error"]["code"] == "E_SHAPE"
    error = nb(bundle, "--depth", 100_000, code=6)["error"]
    assert error["subject"] == "run"
    assert "E_CONTEXT" in error["text"]


def test_every_level_reads_every_byte_and_has_a_peak(bundle: Path) -> None:
    weights = ModelFile(bundle / "model.nano").section("WGTS")
    words = np.frombuffer(weights[: len(weights) // 4096 * 4096], "<u8")
    levels = load_isa().closure(["avx2"])
    for count in range(1, len(levels) + 1):
        options = ("-m", bundle / "model.nano", "--isa", ",".join(levels[:count]), "--reps", 1)
        done = nano.run(*options, "--bandwidth", "-t", 1 + count % 2)
        if done.returncode == 6:
            pytest.skip(f"this CPU has no {levels[count - 1]}")
        said = json.loads(done.stdout)
        assert said["isa"] == levels[count - 1]
        assert said["read_best_gb_s"] == max(said["read_gb_s"]) > 0
        assert int(said["xor"], 16) == int(np.bitwise_xor.reduce(words))
        done = nano.run(*options, "--bench", "--bench-prefill", 8, "--bench-decode", 0)
        assert min(json.loads(done.stdout)["prefill"]["peak_gop_s"]) > 0
