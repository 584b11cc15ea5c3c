# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured under: the machine and its state, the processors used, what the page cache holds."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nanobuild.detect import detect
from nanobuild.hostfiles import Files, cpu_list, cpu_text

PAGE_BYTES = mmap.PAGESIZE
_CPU = "/sys/devices/system/cpu"
_THERMAL = "/sys/class/thermal"


class Machine:
    """This machine; what does not change is read once."""

    def __init__(self, files: Files | None = None) -> None:
        self._files = files or Files()
        found = detect(None if self._files.host else self._files.root)
        self._facts: dict[str, Any] = {
            "cpu": found["cpu"]["model"] or found["cpu"]["arch"],
            "arch": found["cpu"]["arch"],
            "kernel": found["system"]["kernel"],
            "board": found["system"]["board"],
            "memory_bytes": found["memory"]["total"],
        }
        self._groups = [cpu_list(group["cpus"]) for group in found["cpu"]["cores"]]  # fastest first

    def cpus(self, threads: int) -> tuple[int, ...]:
        """Where that many threads run: fast cores first, one thread a core as long as there are cores."""
        first: list[int] = []
        second: list[int] = []
        for group in self._groups:
            for cpu in group:
                siblings = cpu_list(self._files.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"))
                (second if any(other in first for other in siblings) else first).append(cpu)
        return tuple(sorted([*first, *second][:threads]))

    def facts(self, cpus: Sequence[int]) -> dict[str, Any]:
        """The machine now; None for what it does not say. Clock in MHz and temperature in degrees Celsius."""
        first = cpus[0] if cpus else 0
        folder = f"{_CPU}/cpu{first}/cpufreq"
        khz = self._files.number(f"{folder}/scaling_cur_freq")
        load = self._files.text("/proc/loadavg").split()
        return self._facts | {
            "governor": self._files.text(f"{folder}/scaling_governor") or None,
            "clock_mhz": khz // 1000 if khz else self._cpuinfo_mhz(),
            "temperature_c": self._temperature(),
            "load": [float(x) for x in load[:3]] if len(load) >= 3 else None,
            "cpus": cpu_text(list(cpus)),
        }

    def _cpuinfo_mhz(self) -> int | None:
        for key, value in self._files.fields("/proc/cpuinfo"):
            if key == "cpu MHz":
                return round(float(value))
        return None

    def _temperature(self) -> float | None:
        """Of the hottest sensor."""
        zones = [name for name in self._files.names(_THERMAL) if name.startswith("thermal_zone")]
        read = [self._files.number(f"{_THERMAL}/{zone}/temp") for zone in zones]
        return max((value / 1000 for value in read if value), default=None)


@contextlib.contextmanager
def pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Programs started inside run on these processors only."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cached_pages(path: Path) -> int:
    """How many of a file's pages are in the page cache, as mincore says."""
    import ctypes

    import numpy as np

    size = path.stat().st_size
    if not size:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        data = np.frombuffer(view, np.uint8)
        there = np.zeros(pages, np.uint8)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        failed = mincore(ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(there.ctypes.data))
        del data  # or the mapping could not be closed
    return pages if failed else int((there & 1).sum())


def drop_pages(path: Path) -> int:
    """Asks the kernel to forget a file's pages; returns how many it kept all the same."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return cached_pages(path)


def read_through(path: Path) -> None:
    """Brings a file's pages into the page cache."""
    with path.open("rb", buffering=0) as file:
        block = bytearray(1 << 20)
        while file.readinto(block):
            pass
