# SPDX-License-Identifier: Apache-2.0
"""What this machine is, and what follows: the platform, the levels, the threads, with the reason for each.

Starts fast: no numpy, no YAML library, no subprocess. With a sysroot all facts come out of that tree.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

from nanobuild import hostcpu, hostinfo, plainyaml
from nanobuild.archs import parse_arch
from nanobuild.errors import InputError
from nanobuild.hostfiles import Files, cpu_list

if TYPE_CHECKING:
    from pathlib import Path

    from nanobuild.ui import Ui

_PROGRAMS = (
    *("zig", "clang", "gcc", "aarch64-linux-gnu-gcc", "riscv64-linux-gnu-gcc", "x86_64-linux-gnu-gcc"),
    *(f"qemu-{arch}{suffix}" for arch in ("aarch64", "riscv64", "x86_64") for suffix in ("", "-static")),
)
_SLOW_CORE = 0.6  # a core under this part of the fastest one's speed only makes the others wait


class Tool(TypedDict):
    """A program that can build or emulate."""

    name: str
    path: str


class Cpu(TypedDict):
    """The processor."""

    arch: str
    model: str
    features: list[str]
    source: str  # of the features: cpuid, hwcap, hwprobe, isa, cpuinfo
    cores: list[hostinfo.CoreGroup]
    caches: list[hostinfo.CacheInfo]


class System(TypedDict):
    """Board, kernel and distribution."""

    board: str
    compatible: list[str]
    kernel: str
    distribution: str
    page_bytes: int


class Suggestion(TypedDict):
    """What to do with all this."""

    platform: str
    levels: list[str]
    threads: int
    mmap: str
    reasons: list[str]


class Detected(TypedDict):
    """Everything that `detect` finds out."""

    system: System
    cpu: Cpu
    memory: hostinfo.Memory
    limits: hostinfo.Limits
    tools: list[Tool]
    suggest: Suggestion


def detect(sysroot: str | None = None) -> Detected:
    """The facts about this machine, or about the one whose /proc, /sys and /etc lie below `sysroot`.

    Raises InputError E_SYSROOT when that is no folder.
    """
    if sysroot is not None and not os.path.isdir(sysroot):
        raise InputError("E_SYSROOT", sysroot, "no such folder")
    files = Files(sysroot if sysroot is not None else "/")
    arch = _arch(files)
    cpus = hostinfo.allowed_cpus(files)
    limits = hostinfo.limits(files)
    if limits["cpuset"]:
        cpus = [cpu for cpu in cpus if cpu in cpu_list(limits["cpuset"])] or cpus
    names, source = hostcpu.features(files, arch)
    cpu = Cpu(
        arch=arch,
        model=_model(files),
        features=names,
        source=source,
        cores=hostinfo.core_groups(files, cpus),
        caches=hostinfo.caches(files, cpus),
    )
    system = _system(files, arch)
    memory = hostinfo.memory(files, limits["memory_bytes"])
    return Detected(
        system=system,
        cpu=cpu,
        memory=memory,
        limits=limits,
        tools=_tools(files),
        suggest=suggest(system, cpu, memory, limits),
    )


def host_levels() -> list[str]:
    """The levels of isa.yaml that this machine has, lowest first."""
    files = Files("/")
    arch = _arch(files)
    names, source = hostcpu.features(files, arch)
    return _levels(arch, names, source)[0]


def suggest(system: System, cpu: Cpu, memory: hostinfo.Memory, limits: hostinfo.Limits) -> Suggestion:
    """Platform, levels, threads and how to map the model, each with its reason."""
    platform, why_platform = _platform(system, cpu)
    levels, why_levels = _levels(cpu["arch"], cpu["features"], cpu["source"])
    threads, why_threads = _threads(cpu, limits)
    mode, why_mode = _mmap(memory)
    return Suggestion(
        platform=platform,
        levels=levels,
        threads=threads,
        mmap=mode,
        reasons=[why_platform, why_levels, why_threads, why_mode],
    )


def _arch(files: Files) -> str:
    if files.host:
        machine = os.uname().machine
        return parse_arch(machine) or machine
    keys = {key for key, _ in files.fields("/proc/cpuinfo")}
    signs = (("flags", "x86_64"), ("Features", "arm64"), ("isa", "riscv64"))
    return next((arch for key, arch in signs if key in keys), "unknown")


def _model(files: Files) -> str:
    for wanted in ("model name", "uarch"):
        for key, value in files.fields("/proc/cpuinfo"):
            if key == wanted and value:
                return value
    return ""


def _system(files: Files, arch: str) -> System:
    tree = "/proc/device-tree" if files.exists("/proc/device-tree") else "/sys/firmware/devicetree/base"
    compatible = [item for item in files.text(f"{tree}/compatible").split("\0") if item]
    dmi = [files.text(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    release = dict(line.split("=", 1) for line in files.text("/etc/os-release").splitlines() if "=" in line)
    page = hostcpu.auxv(files).get(hostcpu.AT_PAGESZ, 4096)
    return System(
        board=files.text(f"{tree}/model") or " ".join(part for part in dmi if part),
        compatible=compatible,
        kernel=files.text("/proc/sys/kernel/osrelease"),
        distribution=release.get("PRETTY_NAME", "").strip('"'),
        page_bytes=page if arch and page else 4096,
    )


def _tools(files: Files) -> list[Tool]:
    """Compilers and emulators, found by looking; nothing is started."""
    tools: list[Tool] = []
    if files.host:
        import sys

        packaged = [os.path.join(folder, "ziglang", "zig") for folder in sys.path if folder]
        tools += [Tool(name="zig", path=path) for path in packaged if os.access(path, os.X_OK)][:1]
        folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    else:
        folders = ["/usr/local/bin", "/usr/bin", "/bin"]
    for name in _PROGRAMS:
        places = [os.path.join(folder, name) for folder in folders]
        found = next((place for place in places if files.executable(place)), None)
        if found is not None and all(tool["name"] != name for tool in tools):
            tools.append(Tool(name=name, path=found))
    return tools


def _plain_platforms() -> dict[str, dict[str, plainyaml.Plain]]:
    """The profiles that ship, and isa.yaml, through the quick reader."""
    from nanobuild import resources

    folder = resources.platforms_dir()
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".yaml"):
            with open(folder / name, encoding="utf-8") as file:
                found[name.removesuffix(".yaml")] = plainyaml.parse(file.read())
    return found


def _platform(system: System, cpu: Cpu) -> tuple[str, str]:
    profiles = _plain_platforms()
    for wanted in system["compatible"]:  # the device tree lists the most specific name first
        for name, profile in profiles.items():
            if wanted in plainyaml.texts(plainyaml.mapping(profile.get("match")).get("compatible")):
                return name, f"platform {name}: the device tree says {wanted}"
    for name, profile in profiles.items():
        for part in plainyaml.texts(plainyaml.mapping(profile.get("match")).get("cpu")):
            if part.lower() in cpu["model"].lower():
                return name, f"platform {name}: the CPU is called {cpu['model']}"
    name = f"generic-{cpu['arch']}"
    if name in profiles:
        return name, f"platform {name}: no profile knows this board, this one fits all {cpu['arch']}"
    return "", f"no platform: there is no profile for {cpu['arch']}"


def _levels(arch: str, features: list[str], source: str) -> tuple[list[str], str]:
    table = plainyaml.mapping(_plain_platforms()["isa"].get("levels"))
    absent = ""
    levels: list[str] = []
    for name, row in table.items():
        level = plainyaml.mapping(row)
        if level.get("arch", arch) != arch:
            continue
        lacking = [need for need in plainyaml.texts(level.get("needs")) if need not in features]
        if not lacking and set(plainyaml.texts(level.get("implies"))) <= set(levels):
            levels.append(name)
        elif not absent:
            absent = f", no {name} for want of {', '.join(lacking) or 'a lower level'}"
    return levels, f"levels {', '.join(levels)}: according to {source}{absent}"


def _threads(cpu: Cpu, limits: hostinfo.Limits) -> tuple[int, str]:
    groups = cpu["cores"]
    if not groups:
        return 1, "1 thread: the number of cores is unknown"
    speed = [group["capacity"] or group["max_mhz"] or 0 for group in groups]
    fast = [group for group, value in zip(groups, speed, strict=True) if value >= _SLOW_CORE * max(speed)]
    count = sum(group["physical"] for group in fast)
    left = sum(group["physical"] for group in groups) - count
    logical = sum(group["count"] for group in fast)
    why = f"{count} fast cores" if left else f"{count} cores"
    why += f", the {left} slow ones left out" if left else ""
    why += ", one thread each" if logical > count else ""
    quota = limits["cpus"]
    if quota is not None and quota < count:
        count = max(1, int(quota))
        why = f"the control group allows the time of {quota:g} CPUs"
    return count, f"{count} thread{'s' if count != 1 else ''}: {why}"


def _mmap(memory: hostinfo.Memory) -> tuple[str, str]:
    if memory["zram"]:
        return "lazy", "mmap lazy: zram swap is on, pages read before they are needed would push others out"
    if memory["usable"] < 1 << 30:
        return "lazy", "mmap lazy: less than 1 GiB is usable, pages are read when they are needed"
    return "auto", "mmap auto: there is memory, the kernel reads the model ahead"


def main(ui: Ui, sysroot: Path | None) -> None:
    """`nano-build detect`."""
    found = detect(str(sysroot) if sysroot is not None else None)

    def show() -> None:
        ui.table(("", ""), [(key, value) for key, value in _rows(found) if value])
        for reason in found["suggest"]["reasons"]:
            ui.out(f"- {reason}")

    ui.result(dict(found), show)


def _rows(found: Detected) -> list[tuple[str, str]]:
    cpu, memory, limits, system = found["cpu"], found["memory"], found["limits"], found["system"]
    speeds = [f" at capacity {g['capacity']}" if g["capacity"] else "" for g in cpu["cores"]]
    speeds = [s + (f", {g['max_mhz']} MHz" if g["max_mhz"] else "") for s, g in zip(speeds, cpu["cores"], strict=True)]
    cores = [f"{g['physical']} cores (cpu {g['cpus']}){s}" for g, s in zip(cpu["cores"], speeds, strict=True)]
    kinds = [f"L{c['level']} {c['type']} {c['count']} x {_size(c['bytes'])}" for c in cpu["caches"]]
    swap = f"{_size(memory['swap_total'])}{' on zram' if memory['zram'] else ''}" if memory["swap_total"] else "none"
    limit = [f"memory {_size(limits['memory_bytes'])}"] if limits["memory_bytes"] is not None else []
    limit += [f"{limits['cpus']:g} CPUs"] if limits["cpus"] is not None else []
    suggested = found["suggest"]
    return [
        ("board", system["board"]),
        ("cpu", f"{cpu['model']} ({cpu['arch']})".strip()),
        ("features", " ".join(cpu["features"])),
        ("cores", "; ".join(cores)),
        ("caches", ", ".join(kinds)),
        ("memory", f"{_size(memory['total'])}, usable {_size(memory['usable'])}, swap {swap}"),
        ("limits", ", ".join(limit)),
        ("pages", f"{_size(system['page_bytes'])}, huge pages {memory['transparent_huge_pages'] or 'unknown'}"),
        ("system", ", ".join(part for part in (system["distribution"], f"Linux {system['kernel']}") if part)),
        ("tools", ", ".join(tool["name"] for tool in found["tools"])),
        ("platform", suggested["platform"]),
        ("levels", ", ".join(suggested["levels"])),
        ("threads", str(suggested["threads"])),
        ("mmap", suggested["mmap"]),
    ]


def _size(value: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g} {unit}"
    return f"{value} B"
