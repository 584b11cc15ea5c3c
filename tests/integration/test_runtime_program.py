# SPDX-License-Identifier: Apache-2.0
"""The static program, its flags and its manners; the Python runner says the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nano
import numpy as np
import pytest
import tiny

from nanobuild import runner
from nanobuild.modelfile import ModelFile
from nanobuild.reference import Reference
from nanobuild.runner import LLM, RunError

REPORT = re.compile(
    rb"# nb (\d+) tok  \d+\.\d tok/s  \d+\.\d ms/tok  \d+\.\d GB/s  rss \d+M  isa (\w+)  logits [0-9a-f]{8}"
    rb"  ready \d+\.\d ms  prompt (\d+) tok  \d+\.\d tok/s\n\Z"
)
PROMPT = "the end of it"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a bundle has it: run, run.py, libnano.so, model.nano."""
    folder = tmp_path_factory.mktemp("bundle")
    nano.text_model(folder)
    shutil.copy(nano.program(), folder / "run")
    shutil.copy(nano.library(), folder / "libnano.so")
    shutil.copy(runner.__file__, folder / "run.py")
    return folder


def run(
    bundle: Path, *arguments: object, stdin: bytes = b"", env: dict[str, str] | None = None
) -> tuple[int, bytes, bytes]:
    done = nano.run("-m", bundle / "model.nano", *arguments, stdin=stdin, env=env)
    return done.returncode, done.stdout, done.stderr


def run_py(bundle: Path, *arguments: object, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    words = [sys.executable, "-I", "-S", str(bundle / "run.py"), *map(str, arguments)]  # -S: no installed package helps
    done = subprocess.run(words, input=stdin, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_program_runner_and_reference_agree(bundle: Path) -> None:
    file = ModelFile(bundle / "model.nano")
    with LLM(bundle) as llm:
        prompt = llm.encode(PROMPT)
        reference, ids, sequence = Reference(spec=file.spec, weights=file.weights()), [], prompt
        while len(ids) < 24:
            logits = reference.forward(sequence)[-1]
            ids.append(int(np.argmax(logits[: len(tiny.vocabulary())])))
            sequence = ids[-1:]
    want = " ".join(map(str, ids)).encode() + b"\n"
    for extra in ((), ("--isa", "scalar"), ("-t", 1), ("-t", 3), ("--chunk", 1), ("--mmap-mode", "read")):
        code, out, err = run(bundle, "-p", PROMPT, "-n", 24, "--ids", *extra)
        assert (code, out) == (0, want), err
        code, out, _ = run_py(bundle, "-p", PROMPT, "-n", 24, "--ids", *extra)
        assert (code, out) == (0, want)
    done = subprocess.run([bundle / "run", "-p", PROMPT, "-n", "24", "--ids"], capture_output=True, check=True)
    assert done.stdout == want  # finds model.nano beside itself


def test_seeded_text_is_the_same_everywhere(bundle: Path) -> None:
    flags = ("-p", PROMPT, "-n", 60, "--temp", 1.2, "--top-k", 0, "--top-p", 0.99, "--repeat-penalty", 1.2, "-s", 9)
    code, out, _ = run(bundle, *flags)
    assert code == 0
    assert run(bundle, *flags, "-t", 3)[1] == out
    assert run_py(bundle, *flags)[1] == out
    assert run(bundle, *flags[:-1], 10)[1] != out
    with LLM(bundle) as llm:
        text = llm.generate(PROMPT, max_tokens=60, temperature=1.2, top_k=0, top_p=0.99, repeat_penalty=1.2, seed=9)
        assert text + "\n" == out.decode()
        assert llm.finish_reason in ("length", "stop")
        out.decode()  # whole characters only, U+FFFD for bytes that are none


def test_stop_strings_across_tokens(bundle: Path) -> None:
    with LLM(bundle) as llm:
        for seed in range(100):
            sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": seed}
            whole = llm.generate(PROMPT, max_tokens=80, **sampling)
            plain = [i for i in range(4, len(whole) - 3) if "\ufffd" not in whole[i - 1 : i + 3]]
            if len(plain) > 2:
                break
        for i in plain:
            stop = whole[i : i + 3]
            pieces = list(llm.stream(PROMPT, max_tokens=80, stop=[stop, "never to be seen"], **sampling))
            assert "".join(pieces) == whole[: whole.index(stop)]
            assert llm.finish_reason == "stop"
        # nearly a stop string: held back, then shown
        near = whole[plain[0] : plain[0] + 3] + "\x7f\x7f"
        assert llm.generate(PROMPT, max_tokens=80, stop=[near], **sampling) == whole
    flags = ("-p", PROMPT, "-n", 80, "--temp", 1, "--top-k", 0, "--top-p", 1, "-s", seed, "--stop")
    assert run(bundle, *flags, stop)[1].decode() == whole[: whole.index(stop)] + "\n"


def test_report_line_is_the_last(bundle: Path) -> None:
    code, _, err = run(bundle, "-p", PROMPT, "-n", 5)
    match = REPORT.search(err)
    assert (code, match and match[1]) == (0, b"5")
    assert run(bundle, "-p", PROMPT, "-n", 5, "-q")[2] == b""
    code, out, err = run(bundle, "-p", PROMPT, "-n", 0)
    assert (code, out, bool(REPORT.search(err))) == (0, b"", True)


def test_prompt_from_a_file_and_from_stdin(bundle: Path, tmp_path: Path) -> None:
    want = run(bundle, "-p", PROMPT, "-n", 8)[1]
    (tmp_path / "prompt.txt").write_text(PROMPT)
    assert run(bundle, "-f", tmp_path / "prompt.txt", "-n", 8)[1] == want
    assert run(bundle, "-f", "-", "-n", 8, stdin=PROMPT.encode())[1] == want
    assert run_py(bundle, "-f", "-", "-n", 8, stdin=PROMPT.encode())[1] == want
    for bad in (b"\xff\xfe\x00 a\xc3", b"\xed\xa0\x80"):  # not UTF-8, with a zero byte: byte tokens
        code, _, err = run(bundle, "-f", "-", "-n", 3, stdin=bad)
        assert code == 0, err
    assert run(bundle, "-p", b"caf\xe9", "-n", 3)[0] == 0


def test_logits_files(bundle: Path, tmp_path: Path) -> None:
    last, every = tmp_path / "last", tmp_path / "all"
    code, _, err = run(bundle, "-p", PROMPT, "-n", 4, "--logits", last, "--logits-all", every)
    assert code == 0, err
    with LLM(bundle, all_logits=True) as llm:
        rows = np.fromfile(every, np.float32).reshape(-1, llm.vocab)
        prompt = llm.encode(PROMPT)
        assert len(rows) == len(prompt) + 3
        assert nano.same_bits(llm.eval(prompt), rows[: len(prompt)])
        assert nano.same_bits(llm.logits(), rows[len(prompt) - 1])
        assert last.read_bytes() == rows[-1].tobytes()
    run_py(bundle, "-p", PROMPT, "-n", 4, "--logits", tmp_path / "py")
    assert (tmp_path / "py").read_bytes() == last.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        ([], 2, "E_USAGE"),
        (["--nonsense"], 2, "E_USAGE"),
        (["-p", "x", "-n", "3x"], 2, "E_USAGE"),
        (["-p", "x", "-n"], 2, "E_USAGE"),
        (["-p", "x", "-f", "y"], 2, "E_USAGE"),
        (["-p", "x", "--kv", "f64"], 2, "E_USAGE"),
        (["-p", "x", "--temp", "9"], 2, "E_SAMPLING"),
        (["-p", "x", "--stop", ""], 2, "E_STOP"),
        (["-p", "x", "--isa", "mmx"], 2, "E_ISA_UNKNOWN"),
        (["-p", "x", "-c", "100000"], 2, "E_CONTEXT"),
        (["-p", "x", "-m", "/nowhere/model.nano"], 3, "E_MODEL_OPEN"),
        (["-p", "x", "-m", "/"], 3, "E_MODEL_OPEN"),
        (["-p", "x", "-m", "/dev/null"], 3, "E_MODEL_OPEN"),
        (["-f", "/nowhere/prompt"], 3, "E_PROMPT_FILE"),
        (["-p", "the " * 300], 3, "E_PROMPT_TOO_LONG"),
        (["-p", "a" * 90000, "-c", "16"], 3, "E_PROMPT_TOO_LONG"),
        (["-p", "x", "--logits", "/nowhere/logits"], 5, "E_OUTPUT"),
    ],
    ids=str,
)
def test_refusals(bundle: Path, arguments: list[str], code: int, name: str) -> None:
    got, out, err = run(bundle, *arguments)
    assert (got, out) == (code, b"")
    match = re.fullmatch(rb"nano-build: error\[(\w+)\]: [ -~]+: [ -~]+\n", err)
    assert match, err
    assert match[1].decode() == name
    if name == "E_PROMPT_TOO_LONG" and "-c" not in arguments:
        assert re.search(rb"\d{3} tokens, the context of 256 has room for 256", err)
        assert run_py(bundle, *arguments)[0] == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk(bundle: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [bundle / "run", "-p", PROMPT, "-n", "5"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 5
    assert b"error[E_OUTPUT]" in done.stderr


def test_levels_from_the_environment(bundle: Path) -> None:
    _, _, err = run(bundle, "-p", "x", "-n", 1, env={"NB_ISA": "scalar"})
    match = REPORT.search(err)
    assert match
    assert match[2] == b"scalar"
    assert run(bundle, "-p", "x", env={"NB_ISA": "sse9"})[0] == 2
    kernels = nano.run("--kernels", "--isa", "scalar").stdout.decode().splitlines()
    assert len(kernels) > 15
    assert all(line.endswith("__scalar") for line in kernels[2:])
    if " avx512_vnni" not in Path("/proc/cpuinfo").read_text():
        code, _, err = run(bundle, "-p", "x", "--isa", "avx512vnni")
        assert (code, b"E_ISA" in err) == (6, True)


def test_chat_in_one_turn_and_in_several(bundle: Path) -> None:
    with LLM(bundle) as llm:
        prompt = llm.encode_chat("in the end", system="of it")
        answer = llm.generate("in the end", chat=True, system="of it", max_tokens=6)
        assert tiny.token_id(tiny.USER) in prompt
        assert prompt.count(tiny.token_id(tiny.END)) == 2
        assert tiny.token_id(tiny.END) not in llm.encode_chat("in <|end|>", system="of it")[len(prompt) :]
        llm.reset()
        llm.feed(llm.encode_chat("in the end", system="of it"))
        llm.begin(runner.Settings(max_tokens=6))
        first = "".join(text for _, text in llm.steps())
        llm.feed(llm.encode_chat("and to", turn=1))
        llm.begin(runner.Settings(max_tokens=6))
        second = "".join(text for _, text in llm.steps())
    assert first == answer
    code, out, err = run(bundle, "--chat", "-p", "in the end", "--system", "of it", "-n", 6)
    assert (code, out.decode()) == (0, answer + "\n"), err
    code, out, err = run(bundle, "-i", "--system", "of it", "-n", 6, stdin=b"in the end\nand to")
    assert (code, out.decode()) == (0, first + "\n" + second + "\n"), err


def test_no_chat_mode_is_said(tmp_path: Path) -> None:
    nano.text_model(tmp_path, chat=False)
    for flags in (("--chat", "-p", "x"), ("-i",)):
        code, _, err = run(tmp_path, *flags)
        assert (code, b"error[E_CHAT_NONE]" in err) == (3, True)
    with LLM(tmp_path, library=nano.library()) as llm, pytest.raises(RunError, match="no chat mode"):
        llm.encode_chat("x")


def test_context_full_ends_the_text(bundle: Path) -> None:
    code, out, err = run(bundle, "-p", PROMPT, "-c", 20, "-n", 0, "--ids")
    assert (code, out) == (0, b"")
    with LLM(bundle, context=20) as llm:
        prompt = llm.encode(PROMPT)
        text = llm.generate(PROMPT, max_tokens=0)
        assert (llm.finish_reason, llm.position) == ("length", 20)
        assert text
    code, out, err = run(bundle, "-p", PROMPT, "-c", 20, "--ids")
    assert (code, len(out.split())) == (0, 20 - len(prompt) + 1), err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_within_a_token(tmp_path: Path, number: int, code: int) -> None:
    nano.text_model(
        tmp_path, max_position_embeddings=1 << 20, num_hidden_layers=4, hidden_size=256, intermediate_size=1024
    )
    words = [nano.program(), "-m", tmp_path / "model.nano", "-p", PROMPT, "-n", "1000000", "-c", "100000", "-t", "1"]
    words += ["--kv", "i8"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        first = process.stdout.read(40)
        process.send_signal(number)
        start = time.monotonic()
        rest, err = process.communicate(timeout=20)
    assert time.monotonic() - start < 5
    assert process.returncode == code
    (first + rest).decode()
    assert rest.endswith(b"\n")
    assert REPORT.search(err)
    assert b"error" not in err


def test_file_cut_while_in_use(tmp_path: Path) -> None:
    model = nano.text_model(tmp_path, max_position_embeddings=1 << 20, num_hidden_layers=4, intermediate_size=4096)
    words = [nano.program(), "-m", model, "-p", PROMPT, "-n", "1000000", "-c", "100000", "-t", "3", "--kv", "i8"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(40)
        os.truncate(model, 65536)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert re.fullmatch(rb"nano-build: error\[E_MODEL_IO\]: [ -~]+\n", err)


def test_reader_that_goes_away(bundle: Path) -> None:
    words = [bundle / "run", "-p", PROMPT, "-n", "200", "--temp", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr
        err = process.stderr.read()
        assert process.wait(20) == 0
    assert b"error" not in err


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize("flags", [(), ("--temp", "0.9", "--stop", "zzz", "--chat"), ("-i", "--kv", "i8")], ids=str)
def test_no_memory_and_no_file_after_ready(bundle: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    log = tmp_path / "strace"
    words = [
        "strace",
        "-f",
        "-o",
        str(log),
        "-e",
        "trace=!futex,sched_yield",
        str(bundle / "run"),
        "-n",
        "30",
        "-t",
        "3",
        *flags,
    ]
    words += [] if "-i" in flags else ["-p", PROMPT]
    done = subprocess.run(
        words, input=b"the\nand\n", capture_output=True, env=os.environ | {"NB_DEBUG": "1"}, timeout=60, check=False
    )
    if b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    before, after = log.read_text().split('"# ready', 1)
    assert re.search(r"open(at)?\(", before)
    calls = set(re.findall(r"^\d+ +(\w+)\(", after.split('"# nb', 1)[0], re.MULTILINE))
    assert "write" in calls
    assert not {"open", "openat", "mmap", "mremap", "brk", "clone", "clone3"} & calls


def test_show_and_bench_print_json(bundle: Path) -> None:
    shown = json.loads(run(bundle, "--show", "--json")[1])
    assert shown["layers"] == 2
    assert len(shown["tensors"]) == len(ModelFile(bundle / "model.nano").records)
    assert json.loads(shown["meta"])["family"] == "llama"
    assert b"layers.1.down" in run(bundle, "--show")[1]
    said = json.loads(run(bundle, "--bench", "--bench-prefill", 20, "--bench-decode", 5, "--reps", 2, "-t", 1)[1])
    assert len(said["prefill"]["seconds"]) == len(said["decode"]["seconds"]) == 2
    assert run(bundle, "--bench", "--bench-prefill", 20_000)[0] == 2
    assert json.loads(run(bundle, "--bandwidth", "--reps", 1)[1])["read_best_gb_s"] > 0


def test_runner_round_trip_and_info(bundle: Path) -> None:
    with LLM(bundle, threads=2, context=100) as llm:
        text = "The end.\n\n  to 1,000 é 日本 \U0001f600<|end|>"
        ids = llm.encode(text)
        assert llm.decode(ids) == text
        assert ids[0] == tiny.token_id(tiny.BOS) or llm.encode(text, bos=False) == ids
        assert tiny.token_id(tiny.END) not in ids
        assert tiny.token_id(tiny.END) in llm.encode(text, parse_special=True)
        assert llm.decode([tiny.token_id(tiny.END)], show_special=True) == tiny.END
        info = json.loads(llm.info())
        assert (info["threads"], info["context"], info["isa"]) == (2, 100, llm.isa)
        assert "attend_f16" in llm.kernels()
        with pytest.raises(RunError, match="not in the vocabulary"):
            llm.feed([llm.vocab])
        with pytest.raises(RunError, match="nothing was fed"):
            llm.begin(runner.Settings())
        with pytest.raises(RunError, match="without all_logits"):
            llm.eval([1])
    with pytest.raises(RunError, match="closed"):
        llm.feed([1])
