# SPDX-License-Identifier: Apache-2.0
"""The commands from checkpoint to text, and what they refuse: exit code, one line, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from nanobuild import bundle, cli, entry
from nanobuild.llm import LLM
from nanobuild.modelfile import ModelFile
from nanobuild.progress import Progress
from nanobuild.quantized import QuantizedCheckpoint
from nanobuild.reference import Reference

ERROR = re.compile(r"nano-build: error\[(E_[A-Z0-9_]+)\]: .+")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nb(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = entry.guard(lambda: cli.run([str(w) for w in words]))
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tmp_path_factory.mktemp("hf") / "llama", tiny.llama())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("recipe", ["q4", "q8", "q4g32"])
def test_checkpoint_to_text(nb: Run, tmp_path: Path, name: str, recipe: str) -> None:
    source = tiny.write_hf(tmp_path / "hf", getattr(tiny, name)())
    quantized, folder = tmp_path / "m.safetensors", tmp_path / "bundle"
    code, out, err = nb("quantize", source, "-o", quantized, "--recipe", recipe, "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["file_bytes"] == quantized.stat().st_size
    code, _, err = nb("build", quantized, "-o", folder)
    assert code == 0, err
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"run", "run.py", "libnano.so", "model.nano"} <= set(manifest["files"])
    assert manifest["model"]["recipe"] == recipe
    code, text, err = nb("run", folder, "--prompt", "the end", "-n", 12, "--ids")
    assert code == 0, err
    ids = [int(word) for word in text.split()]
    assert nb("run", folder, "--prompt", "the end", "-n", 12, "--ids", "--runner", "python")[1] == text
    file = ModelFile(folder / "model.nano")
    with LLM(folder) as llm:
        prompt = llm.encode("the end")
        logits = np.frombuffer(LLM.eval(LLM(folder, all_logits=True), prompt + ids), np.float32)
    reference = Reference(file.spec, file.weights()).forward(prompt + ids)
    assert (logits.reshape(reference.shape) == reference).all()
    for kind in (source, quantized, folder, folder / "model.nano"):
        code, out, err = nb("show", kind, "--json")
        assert code == 0, err
        assert json.loads(out)["spec"]["hidden"] == file.spec.hidden


def test_dry_run_writes_nothing(nb: Run, llama: Path, tmp_path: Path) -> None:
    code, out, _ = nb("quantize", llama, "--dry-run")
    assert code == 0
    assert "bits a weight" in out
    assert list(tmp_path.iterdir()) == []


def test_several_targets_and_force(nb: Run, llama: Path, tmp_path: Path) -> None:
    quantized, out = tmp_path / "m.safetensors", tmp_path / "out"
    assert nb("quantize", llama, "-o", quantized)[0] == 0
    assert nb("quantize", llama, "-o", quantized)[0] == 2
    assert nb("quantize", llama, "-o", quantized, "--force")[0] == 0
    code, _, err = nb("build", quantized, "-o", out, "-t", "generic-x86_64", "-t", "i5-1135g7")
    assert code == 0, err
    assert sorted(p.name for p in out.iterdir()) == ["generic-x86_64", "i5-1135g7"]
    board = tmp_path / "board.yaml"
    board.write_text("version: 1\nname: board\narch: aarch64\ntoolchain:\n  prefer: [gcc]\n  cc: no-such-gcc\n")
    code, _, err = nb("build", quantized, "-o", tmp_path / "pi", "-t", board)
    assert code == 6
    assert "E_TOOL_MISSING" in err
    assert not (tmp_path / "pi").exists()


def refused(result: tuple[int, str, str], code: int, name: str) -> None:
    lines = [line for line in result[2].splitlines() if ERROR.match(line)]
    assert len(lines) == 1, result
    assert (result[0], ERROR.match(lines[0])[1]) == (code, name)  # type: ignore[index]
    assert "Traceback" not in result[2]


def test_missing_and_foreign_inputs(nb: Run, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    refused(nb("quantize", tmp_path / "none.gguf", "-o", out), 2, "E_MODEL_NAME")
    (tmp_path / "x.gguf").write_bytes(b"not a gguf at all" * 10)
    refused(nb("quantize", tmp_path / "x.gguf", "-o", out), 3, "E_GGUF_MAGIC")
    refused(nb("build", tmp_path / "x.gguf", "-o", tmp_path / "b"), 3, "E_QUANTIZED")
    refused(nb("show", tmp_path / "none"), 3, "E_CKPT_NOT_FOUND")
    refused(nb("run", tmp_path / "none", "--prompt", "x"), 2, "E_MODEL_NAME")
    refused(nb("quantize", tmp_path / "x.gguf"), 2, "E_USAGE")
    refused(nb("recipes", "nope"), 2, "E_RECIPE_NAME")
    assert not out.exists()


def test_unknown_architecture_and_dtype(nb: Run, tmp_path: Path) -> None:
    folder, out = tiny.write_hf(tmp_path / "hf", tiny.llama()), tmp_path / "o.safetensors"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    refused(nb("quantize", folder, "-o", out), 3, "E_CFG_UNSUPPORTED")
    folder = tiny.write_hf(tmp_path / "hf2", tiny.llama())
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data.replace(b'"BF16"', b'"I16" ', 1))
    refused(nb("quantize", folder, "-o", out), 3, "E_ST_DTYPE")
    assert not out.exists()


def test_truncated_checkpoint_at_every_4_kib(nb: Run, tmp_path: Path) -> None:
    folder, out = tiny.write_hf(tmp_path / "hf", tiny.llama()), tmp_path / "o.safetensors"
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    for size in [*range(0, len(data), 4096), len(data) - 1]:
        weights.write_bytes(data[:size])
        code, _, err = nb("quantize", folder, "-o", out)
        assert code == 3, (size, err)
        assert ERROR.search(err)
        assert [p.name for p in tmp_path.iterdir()] == ["hf"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(nb: Run, llama: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(nb("quantize", llama, "-o", tmp_path / "o.safetensors"), 5, "E_OUT_DENIED")


def test_read_only_file_system(nb: Run, llama: Path) -> None:
    if os.geteuid() != 0 or not Path("/sys/kernel").is_dir():
        pytest.skip("needs root, for whom only a foreign file system is unwritable")
    code, _, err = nb("quantize", llama, "-o", "/sys/kernel/o.safetensors")
    assert code == 5
    assert ERROR.search(err)


def test_full_disk(nb: Run, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        source = tiny.write_hf(tmp_path / "hf", tiny.llama(vocab_size=2000))
        refused(nb("quantize", source, "-o", disk / "o.safetensors"), 5, "E_DISK_FULL")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_bad_weights_are_refused_by_name(nb: Run, tmp_path: Path) -> None:
    model = tiny.llama()
    model.tensors["model.layers.1.mlp.up_proj.weight"][2, 3] = np.nan
    source = tiny.write_hf(tmp_path / "hf", model)
    result = nb("quantize", source, "-o", tmp_path / "o.safetensors")
    refused(result, 3, "E_CKPT_NONFINITE")
    assert "layers.1.up" in result[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_quantize_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    source = tiny.write_hf(tmp_path / "hf", tiny.llama(vocab_size=60_000, hidden_size=256))
    out = tmp_path / "out"
    out.mkdir()
    words = [sys.executable, "-m", "nanobuild", "quantize", str(source), "-o", str(out / "o.safetensors")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(out.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert any(out.iterdir()), "the temporary file never appeared"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert list(out.iterdir()) == []


def test_a_bundle_that_fails_its_own_check_is_not_published(
    nb: Run, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized, out = tmp_path / "m.safetensors", tmp_path / "out"
    assert nb("quantize", llama, "-o", quantized)[0] == 0
    pack = bundle.pack_model

    def damaged(source: QuantizedCheckpoint, path: Path, *, progress: Progress) -> str:
        identity = pack(source, path, progress=progress)
        with path.open("r+b") as file:
            file.seek(70_000)
            byte = file.read(1)[0]
            file.seek(70_000)
            file.write(bytes([byte ^ 1]))
        return identity

    monkeypatch.setattr(bundle, "pack_model", damaged)
    refused(nb("build", quantized, "-o", out), 4, "E_SELF_CHECK")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_run_prints_one_object(nb: Run, llama: Path, tmp_path: Path) -> None:
    code, out, err = nb("run", llama, "--prompt", "the end", "-n", 6, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["text"].encode() == nb("run", llama, "--prompt", "the end", "-n", 6)[1].encode()
    assert int(answer["report"]["tokens"]) <= 6
    code, out, err = nb("run", llama, "--prompt", "the end", "-n", 6, "--json", "--top-p", 7)
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2
    assert ERROR.search(err)
    refused(nb("run", llama, "-i", "--json"), 2, "E_USAGE")
