# SPDX-License-Identifier: Apache-2.0
"""Threads: what is known of the cores, who gets which piece, jobs and the whole program under the thread sanitizer.

`tests/runtime_c/threads.c` is the program; `threads time N` prints what a job and a stage cost.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ctokenizer
import nano
import pytest

KERNELS = ctokenizer.KERNELS
PARTS = ("pool", "deal", "cores", "cgroup", "error")
STRICT = ("-g", "-std=gnu17", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", f"-I{KERNELS}")


def compiled(out: Path, sources: list[Path], *flags: str) -> Path:
    words = [*ctokenizer.compiler(), *STRICT, *flags, *(str(s) for s in sources), "-o", str(out), "-lm"]
    subprocess.run(words, check=True, timeout=300)
    return out


@functools.cache
def sanitizer() -> tuple[str, ...]:
    """The flag for the thread sanitizer, if this compiler has it and its programs run here."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "x.c"
        source.write_text("int main(void) { return 0; }\n")
        words = [*ctokenizer.compiler(), "-fsanitize=thread", str(source), "-o", f"{folder}/x"]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return ()
        return ("-fsanitize=thread",) if subprocess.run([f"{folder}/x"], check=False).returncode == 0 else ()


@functools.cache
def program(*flags: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nb-threads-"))
    sources = [KERNELS.parent / "tests/runtime_c/threads.c", *(KERNELS / f"runtime/{name}.c" for name in PARTS)]
    return compiled(folder / "threads", sources, "-O2", *flags)


def said(path: Path, *words: object) -> str:
    done = subprocess.run([str(path), *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 33])
def test_every_piece_once_and_nobody_is_held(threads: int) -> None:
    said(program(), "pool", threads)
    said(program(*sanitizer()), "pool", threads)


def test_pieces_come_from_the_front_then_from_the_longest_rest() -> None:
    said(program(), "deal")


def test_what_a_job_costs_is_printed() -> None:
    assert "2 threads: a job of nothing" in said(program(), "time", 2)


def machine(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        path = root / "sys/devices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def per_cpu(name: str, values: Sequence[object]) -> dict[str, object]:
    return {f"system/cpu/cpu{i}/{name}": value for i, value in enumerate(values)}


CAPACITY, CLOCK, SIBLINGS = "cpu_capacity", "cpufreq/cpuinfo_max_freq", "topology/thread_siblings_list"
PAIRS = ["0-1", "0-1", "2-3", "2-3"]
MACHINES: dict[str, tuple[dict[str, object], str, str]] = {
    "nothing to read": ({}, "0 1 2", "fast 3 even 1: 0=1024 1=1024 2=1024"),
    "four small, four large": (
        per_cpu(CAPACITY, [414] * 4 + [1024] * 4) | per_cpu(SIBLINGS, list(range(8))),
        "0 1 2 3 4 5 6 7",
        "fast 4 even 0: 4=1024 5=1024 6=1024 7=1024 0=414 1=414 2=414 3=414",
    ),
    "only the small ones are ours": (per_cpu(CAPACITY, [414] * 4 + [1024] * 4), "1 3", "fast 2 even 1: 1=1024 3=1024"),
    "three kinds": (
        per_cpu(CAPACITY, [250, 700, 1024]), "0 1 2", "fast 2 even 0: 2=1024 1=700 0=250",
    ),
    "one capacity cannot be read": (per_cpu(CAPACITY, [1024, 400]), "0 1 2", "fast 3 even 1: 0=1024 1=1024 2=1024"),
    "two threads a core": (per_cpu(SIBLINGS, PAIRS), "0 1 2 3", "fast 2 even 1: 0=1024 2=1024 1=1024 3=1024"),
    "the other thread is not ours": (per_cpu(SIBLINGS, PAIRS), "1 2 3", "fast 2 even 1: 1=1024 2=1024 3=1024"),
    "hybrid": (
        per_cpu(SIBLINGS, [*PAIRS, 4, 5]) | per_cpu(CAPACITY, [1024] * 6)
        | per_cpu(CLOCK, [5000000] * 4 + [3800000] * 2) | {"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-5"},
        "0 1 2 3 4 5",
        "fast 2 even 0: 0=1024 2=1024 4=389 5=389 1=1024 3=1024",
    ),
    "hybrid without clocks": ({"cpu_atom/cpus": "1,3-3"}, "0 1 2 3", "fast 2 even 0: 0=1024 2=1024 1=512 3=512"),
    "favoured cores": (per_cpu(CLOCK, [4700000, 5200000, 4700000]), "0 1 2", "fast 3 even 1: 0=1024 1=1024 2=1024"),
    "slow clocks": (per_cpu(CLOCK, [1000000, 2000000]), "0 1", "fast 1 even 0: 1=1024 0=512"),
    "nonsense": (
        per_cpu(CAPACITY, ["x", "-7"]) | per_cpu(SIBLINGS, ["", "9999999999-,,4-"]) | {"cpu_atom/cpus": "-"},
        "0 1",
        "fast 2 even 1: 0=1024 1=1024",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_cores(name: str, tmp_path: Path) -> None:
    files, cpus, want = MACHINES[name]
    assert said(program(), "cores", machine(tmp_path, files), *cpus.split()).strip() == want


@pytest.mark.slow
def test_the_runtime_has_no_races(tmp_path: Path) -> None:
    if not sanitizer():
        pytest.skip("this compiler has no thread sanitizer")
    sources = [p for p in (KERNELS / "hal").glob("*.c") if not p.name.startswith("cpu_")]
    sources += [KERNELS / "hal/cpu_x86_64.c", *(KERNELS / "ops/scalar").glob("*.c"), *(KERNELS / "runtime").glob("*.c")]
    run = compiled(tmp_path / "run", sources, "-O1", "-ffp-contract=off", "-fno-math-errno", *sanitizer())
    model = nano.text_model(tmp_path)
    common = ("-m", model, "--prompt", "the end of the world is in sight and then", "-n", 12, "--ids")
    answers = {said(run, *common, "-t", n, *more) for n in (1, 3) for more in ((), ("--chunk", 4))}
    assert len(answers) == 1
