# SPDX-License-Identifier: Apache-2.0
"""What a machine has and what it lets us use: cores by capacity, caches, memory, and the limits of containers."""

from __future__ import annotations

from typing import TypedDict

from nanobuild.hostfiles import Files, cpu_list, cpu_text

_CPU = "/sys/devices/system/cpu"
_CGROUP = "/sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


class CoreGroup(TypedDict):
    """Cores of one speed."""

    cpus: str  # a list like 0-3
    count: int  # logical
    physical: int
    capacity: int | None  # relative, the fastest of a mixed machine has 1024
    max_mhz: int | None


class CacheInfo(TypedDict):
    """Caches that are alike."""

    level: int
    type: str  # data, instruction, unified
    bytes: int
    line: int | None
    cpus_each: int
    count: int


class Limits(TypedDict):
    """What the control groups allow; None: no limit."""

    version: int | None
    memory_bytes: int | None
    cpus: float | None  # time of that many CPUs
    cpuset: str | None


class Memory(TypedDict):
    """Bytes."""

    total: int
    available: int
    usable: int  # the smaller of what is there and what the control group allows
    swap_total: int
    swap_free: int
    zram: bool
    transparent_huge_pages: str | None


def allowed_cpus(files: Files) -> list[int]:
    """The CPUs that a process here may run on."""
    online = cpu_list(files.text(f"{_CPU}/online"))
    status = dict(files.fields("/proc/self/status"))
    own = set(cpu_list(status.get("Cpus_allowed_list", "")))
    if not online:
        online = sorted(
            int(value) for key, value in files.fields("/proc/cpuinfo") if key == "processor" and value.isdigit()
        )
    return [cpu for cpu in online if cpu in own] if own & set(online) else online


def core_groups(files: Files, cpus: list[int]) -> list[CoreGroup]:
    """The given CPUs by speed, fastest first."""
    groups: dict[tuple[int, int], list[int]] = {}
    # Intel's small cores clock almost as high as the large ones and do half of their work (kernels/runtime/cores.c)
    small = cpu_list(files.text("/sys/devices/cpu_atom/cpus")) if files.text("/sys/devices/cpu_core/cpus") else []
    for cpu in cpus:
        capacity = files.number(f"{_CPU}/cpu{cpu}/cpu_capacity") or 0
        if small and not capacity:
            capacity = 512 if cpu in small else 1024
        khz = files.number(f"{_CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq") or 0
        groups.setdefault((capacity, khz), []).append(cpu)
    return [
        CoreGroup(
            cpus=cpu_text(members),
            count=len(members),
            physical=_physical(files, members),
            capacity=capacity or None,
            max_mhz=khz // 1000 or None,
        )
        for (capacity, khz), members in sorted(groups.items(), reverse=True)
    ]


def _physical(files: Files, cpus: list[int]) -> int:
    """How many cores those CPUs are; threads of one core list one another as siblings."""
    cores = set()
    for cpu in cpus:
        siblings = cpu_list(files.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"))
        cores.add(min(set(siblings) & set(cpus), default=cpu))
    return len(cores)


def caches(files: Files, cpus: list[int]) -> list[CacheInfo]:
    """Distinct kinds of caches of the given CPUs, nearest first."""
    seen: dict[tuple[int, str, int, int | None, int], set[str]] = {}
    for cpu in cpus:
        folder = f"{_CPU}/cpu{cpu}/cache"
        for index in files.names(folder):
            place = f"{folder}/{index}"
            level, size = files.number(f"{place}/level"), _kib(files.text(f"{place}/size"))
            if level is None or not size:
                continue
            shared = files.text(f"{place}/shared_cpu_list") or str(cpu)
            kind = files.text(f"{place}/type").lower()
            line = files.number(f"{place}/coherency_line_size")
            key = (level, kind, size, line, len(cpu_list(shared)))
            seen.setdefault(key, set()).add(shared)
    return [
        CacheInfo(level=level, type=kind, bytes=size, line=line, cpus_each=each, count=len(places))
        for (level, kind, size, line, each), places in sorted(seen.items(), key=lambda row: row[0][:3])
    ]


def _kib(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
    return int(text[:-1]) * unit if text[:-1].isdigit() and len(text) < 12 else 0


def limits(files: Files) -> Limits:
    """The tightest limits on the way up from our control group."""
    second, first = None, {}
    for line in files.text("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            second = path
        else:
            first.update(dict.fromkeys(names.split(","), path))
    if second is not None and files.exists(f"{_CGROUP}/cgroup.controllers"):
        return _limits_v2(files, second)
    if first:
        return _limits_v1(files, first)
    return Limits(version=None, memory_bytes=None, cpus=None, cpuset=None)


def _chain(files: Files, mount: str, path: str) -> list[str]:
    """Folders of a group and of its parents; a path of the world outside of the container is not there: the mount."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    folders = [mount + "".join(f"/{part}" for part in parts[:n]) for n in range(len(parts), -1, -1)]
    return [folder for folder in folders if files.exists(folder)]


def _limits_v2(files: Files, path: str) -> Limits:
    chain = _chain(files, _CGROUP, path)
    memory = [limit for folder in chain if (limit := files.number(f"{folder}/memory.max")) is not None]
    quotas = []
    for folder in chain:
        quota, _, period = files.text(f"{folder}/cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    sets = [text for folder in chain if (text := files.text(f"{folder}/cpuset.cpus.effective"))]
    return Limits(
        version=2,
        memory_bytes=min(memory, default=None),
        cpus=min(quotas, default=None),
        cpuset=sets[0] if sets else None,
    )


def _limits_v1(files: Files, paths: dict[str, str]) -> Limits:
    def chain(controller: str) -> list[str]:
        mounts = [name for name in files.names(_CGROUP) if controller in name.split(",")]
        return _chain(files, f"{_CGROUP}/{mounts[0]}", paths.get(controller, "/")) if mounts else []

    read = [files.number(f"{folder}/memory.limit_in_bytes") for folder in chain("memory")]
    quotas = []
    for folder in chain("cpu"):
        quota, period = files.number(f"{folder}/cpu.cfs_quota_us"), files.number(f"{folder}/cpu.cfs_period_us")
        if quota and period and quota > 0 and period > 0:
            quotas.append(quota / period)
    names = ("cpuset.effective_cpus", "cpuset.cpus")
    sets = [text for folder in chain("cpuset") for name in names if (text := files.text(f"{folder}/{name}"))]
    tight = min((limit for limit in read if limit is not None and limit < _NO_LIMIT), default=None)
    return Limits(version=1, memory_bytes=tight, cpus=min(quotas, default=None), cpuset=sets[0] if sets else None)


def memory(files: Files, limit: int | None) -> Memory:
    """/proc/meminfo, swap, zram and huge pages."""
    table = {key: int(value.split()[0]) * 1024 for key, value in files.fields("/proc/meminfo") if value[:1].isdigit()}
    total = table.get("MemTotal", 0)
    available = table.get("MemAvailable", table.get("MemFree", 0))
    swaps = files.text("/proc/swaps")
    huge = files.text("/sys/kernel/mm/transparent_hugepage/enabled")
    return Memory(
        total=total,
        available=available,
        usable=min(available, limit) if limit is not None else available,
        swap_total=table.get("SwapTotal", 0),
        swap_free=table.get("SwapFree", 0),
        zram="/dev/zram" in swaps,
        transparent_huge_pages=huge.partition("[")[2].partition("]")[0] or None,
    )
