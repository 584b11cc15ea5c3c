# SPDX-License-Identifier: Apache-2.0
"""The machine's facts from a tree of files, where threads are put, and what the page cache holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild import conditions, whole
from nanobuild.errors import ToolError
from nanobuild.hostfiles import Files


@pytest.fixture
def board(tmp_path: Path) -> Files:
    """Two slow cores (cpu 0 and 1) and a fast one with two threads (cpu 2 and 3)."""

    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    put("proc/cpuinfo", "\n".join(f"processor : {i}\nFeatures : fp asimd" for i in range(4)))
    put("proc/sys/kernel/osrelease", "6.1.0-board")
    put("proc/loadavg", "0.25 0.50 0.75 1/99 1234")
    put("sys/devices/system/cpu/online", "0-3")
    for cpu, capacity, siblings in ((0, 400, "0"), (1, 400, "1"), (2, 1024, "2-3"), (3, 1024, "2-3")):
        put(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
        put(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    put("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance")
    put("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "1800000")
    put("sys/class/thermal/thermal_zone0/temp", "51500")
    put("sys/class/thermal/thermal_zone1/temp", "48000")
    return Files(str(tmp_path))


def test_fast_cores_first_and_one_thread_a_core(board: Files) -> None:
    machine = conditions.Machine(board)
    assert [machine.cpus(n) for n in (1, 2, 3, 4)] == [(2,), (0, 2), (0, 1, 2), (0, 1, 2, 3)]


def test_facts(board: Files) -> None:
    facts = conditions.Machine(board).facts((2,))
    assert (facts["arch"], facts["kernel"], facts["cpus"]) == ("arm64", "6.1.0-board", "2")
    assert (facts["governor"], facts["clock_mhz"], facts["temperature_c"]) == ("performance", 1800, 51.5)
    assert facts["load"] == [0.25, 0.5, 0.75]
    assert conditions.Machine(board).facts((0,))["governor"] is None


def test_pinned_is_only_for_the_block() -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    with conditions.pinned((cpu,)):
        assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == before


def test_pages_go_and_come_back(tmp_path: Path) -> None:
    file = tmp_path / "pages"
    file.write_bytes(os.urandom(40 * conditions.PAGE_BYTES + 1))
    assert conditions.cached_pages(file) == 41
    if conditions.drop_pages(file):
        pytest.skip("this file system keeps its pages")
    assert conditions.cached_pages(file) == 0
    conditions.read_through(file)
    assert conditions.cached_pages(file) == 41


def test_a_whole_process_is_timed_without_python(tmp_path: Path) -> None:
    script = tmp_path / "program"
    script.write_text("#!/bin/sh\necho out\necho err >&2\nexec sleep 0.2\n")
    script.chmod(0o755)
    done = whole.run([script], cpus=())
    assert done.stdout == b"out\n"
    assert 0.2 <= done.seconds < 5
    assert done.peak_kib > 0
    script.write_text("#!/bin/sh\necho an error here >&2\nexit 3\n")
    with pytest.raises(ToolError, match="an error here") as caught:
        whole.run([script], cpus=())
    assert (caught.value.subject, caught.value.text[:13]) == ("program", "exit status 3")
