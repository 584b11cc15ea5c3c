# SPDX-License-Identifier: Apache-2.0
"""Makes small copies of /proc, /sys and /etc of boards, with what `detect` reads and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

CPU = "sys/devices/system/cpu"
X86_FLAGS = (
    "fpu sse sse2 pni ssse3 fma sse4_1 sse4_2 movbe popcnt avx f16c bmi1 avx2 bmi2 avx512f avx512dq avx512bw avx512vl "
    "avx512_vnni ht syscall"
)


def put(root: Path, name: str, text: str | bytes) -> None:
    """One file, with its folders."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def meminfo(root: Path, total: int, available: int, swap: int = 0) -> None:
    """/proc/meminfo; the numbers are KiB."""
    put(root, "proc/meminfo", f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
    with (root / "proc/meminfo").open("a") as file:
        file.write(f"SwapTotal: {swap} kB\nSwapFree: {swap} kB\nHugePages_Total: 0\n")


def cpu(root: Path, number: int, caches: list[tuple[int, str, str, str]], **files: str) -> None:
    """One CPU: caches are (level, type, size, CPUs that share it), files are path-with-dots -> content."""
    for index, (level, kind, size, shared) in enumerate(caches):
        place = f"{CPU}/cpu{number}/cache/index{index}"
        rows = {"level": str(level), "type": kind, "size": size, "coherency_line_size": "64", "shared_cpu_list": shared}
        for key, value in rows.items():
            put(root, f"{place}/{key}", value + "\n")
    for key, value in files.items():
        put(root, f"{CPU}/cpu{number}/{key.replace('__', '/')}", value + "\n")


def common(root: Path, cpus: str, kernel: str, system: str, auxv: dict[int, int] | None = None) -> None:
    """What every tree has."""
    put(root, f"{CPU}/online", cpus + "\n")
    put(root, "proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{cpus}\n")
    put(root, "proc/sys/kernel/osrelease", kernel + "\n")
    put(root, "etc/os-release", f'ID=x\nPRETTY_NAME="{system}"\n')
    put(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    if auxv:
        put(root, "proc/self/auxv", b"".join(struct.pack("<QQ", *pair) for pair in [*auxv.items(), (0, 0)]))


def laptop(root: Path) -> None:
    """Core i5-1135G7: four cores of two threads each, AVX-512 VNNI, swap on disk."""
    common(root, "0-7", "6.8.0-45-generic", "Ubuntu 24.04.1 LTS", {6: 4096, 16: 0xBFEBFBFF})
    rows = [
        f"processor: {n}\nmodel name: 11th Gen Intel(R) Core(TM) i5-1135G7 @ 2.40GHz\nflags: {X86_FLAGS}\n"
        for n in range(8)
    ]
    put(root, "proc/cpuinfo", "\n".join(rows))
    meminfo(root, 16_000_000, 12_000_000, 2_000_000)
    put(root, "proc/swaps", "Filename Type Size Used Priority\n/swapfile file 2000000 0 -2\n")
    put(root, "proc/self/cgroup", "0::/user.slice\n")
    put(root, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    put(root, "sys/fs/cgroup/user.slice/memory.max", "max\n")
    put(root, "sys/class/dmi/id/sys_vendor", "Framework\n")
    put(root, "sys/class/dmi/id/product_name", "Laptop\n")
    for n in range(8):
        pair = f"{n % 4},{n % 4 + 4}"
        caches = [(1, "Data", "48K", pair), (1, "Instruction", "32K", pair), (2, "Unified", "1280K", pair)]
        cpu(
            root,
            n,
            [*caches, (3, "Unified", "8192K", "0-7")],
            cpufreq__cpuinfo_max_freq="4200000",
            topology__thread_siblings_list=pair,
        )
    put(root, "usr/bin/gcc", "#!/bin/sh\n")
    (root / "usr/bin/gcc").chmod(0o755)


def container_v2(root: Path) -> None:
    """A container with 1.5 CPUs and 2 GiB on a server: limits set on the parent group and on its own."""
    common(root, "0-15", "6.1.0-18-amd64", "Debian GNU/Linux 12 (bookworm)")
    put(root, "proc/cpuinfo", f"processor: 0\nmodel name: Intel(R) Xeon(R) Platinum\nflags: {X86_FLAGS}\n")
    meminfo(root, 64_000_000, 60_000_000)
    put(root, "proc/self/cgroup", "0::/pod/app\n")
    put(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
    put(root, "sys/fs/cgroup/pod/memory.max", f"{2 << 30}\n")
    put(root, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    put(root, "sys/fs/cgroup/pod/app/memory.max", "max\n")
    put(root, "sys/fs/cgroup/pod/app/cpu.max", "max 100000\n")
    put(root, "sys/fs/cgroup/pod/app/cpuset.cpus.effective", "4-11\n")


def container_v1(root: Path) -> None:
    """The same with version 1: the path in /proc/self/cgroup is the host's and not there, the mounts are the group."""
    common(root, "0-3", "4.19.0-26-amd64", "Debian GNU/Linux 10 (buster)")
    put(root, "proc/cpuinfo", f"processor: 0\nmodel name: Xeon\nflags: {X86_FLAGS.replace('avx512_vnni ', '')}\n")
    meminfo(root, 8_000_000, 7_000_000)
    put(
        root,
        "proc/self/cgroup",
        "5:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n3:cpuset:/docker/0123\n1:name=systemd:/\n",
    )
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{512 << 20}\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/cpuset/cpuset.cpus", "1-2\n")


def rpi4(root: Path) -> None:
    """Raspberry Pi 4: no dot product; version 1 groups without limits; zram swap."""
    common(root, "0-3", "6.6.31+rpt-rpi-v8", "Debian GNU/Linux 12 (bookworm)", {6: 4096, 16: 0x887 & ~0x800, 26: 0})
    put(root, "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n")
    meminfo(root, 3_800_000, 3_300_000, 1_900_000)
    put(root, "proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1900000 0 100\n")
    put(root, "proc/self/cgroup", "2:memory:/\n0::/\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(root, "proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    put(root, "proc/device-tree/compatible", "raspberrypi,4-model-b\0brcm,bcm2711\0")
    for n in range(4):
        caches = [(1, "Data", "32K", str(n)), (1, "Instruction", "48K", str(n)), (2, "Unified", "1024K", "0-3")]
        cpu(root, n, caches, cpu_capacity="1024", cpufreq__cpuinfo_max_freq="1800000")


def rk3588(root: Path) -> None:
    """Orange Pi 5: four A55 and two clusters of A76; 16 KiB pages to see that they are read."""
    common(root, "0-7", "6.1.43-rockchip", "Armbian", {6: 16384, 16: 1 << 1 | 1 << 8 | 1 << 20, 26: 0})
    put(root, "proc/cpuinfo", "processor : 0\nFeatures : fp asimd atomics asimddp\n")
    meminfo(root, 7_900_000, 7_000_000)
    put(root, "sys/firmware/devicetree/base/model", "Orange Pi 5\0")
    put(root, "sys/firmware/devicetree/base/compatible", "xunlong,orangepi-5\0rockchip,rk3588s\0rockchip,rk3588\0")
    for n in range(8):
        big = n >= 4
        caches = [(1, "Data", "64K" if big else "32K", str(n)), (2, "Unified", "512K" if big else "128K", str(n))]
        khz = "2400000" if n >= 6 else "2256000" if big else "1800000"
        capacity = "1024" if n >= 6 else "1000" if big else "530"
        cpu(root, n, [*caches, (3, "Unified", "3072K", "0-7")], cpu_capacity=capacity, cpufreq__cpuinfo_max_freq=khz)


def visionfive2(root: Path) -> None:
    """StarFive JH7110: rv64gc without vectors, caches unknown to the kernel."""
    common(root, "0-3", "5.15.0-starfive", "Debian GNU/Linux bookworm/sid")
    rows = [f"processor: {n}\nhart: {n + 1}\nisa: rv64imafdc\nmmu: sv39\nuarch: sifive,u74-mc\n" for n in range(4)]
    put(root, "proc/cpuinfo", "\n".join(rows))
    meminfo(root, 8_000_000, 7_500_000)
    put(root, "proc/device-tree/model", "StarFive VisionFive V2\0")
    put(root, "proc/device-tree/compatible", "starfive,visionfive-2-v1.3b\0starfive,jh7110\0")
    for n in range(4):
        cpu(root, n, [], cpufreq__cpuinfo_max_freq="1500000")


def d1(root: Path) -> None:
    """Allwinner D1: one C906, whose "v" is not RVV 1.0; too little memory to read ahead."""
    common(root, "0", "6.1.0-d1", "Debian GNU/Linux trixie/sid")
    put(
        root,
        "proc/cpuinfo",
        "processor: 0\nhart: 0\nisa: rv64imafdcv\nmmu: sv39\nuarch: thead,c906\nmvendorid: 0x5b7\n",
    )
    meminfo(root, 1_000_000, 700_000)
    put(root, "proc/device-tree/model", "Sipeed Lichee RV\0")
    put(root, "proc/device-tree/compatible", "sipeed,lichee-rv\0allwinner,sun20i-d1\0")
    cpu(root, 0, [(1, "Data", "32K", "0")])


def bananapi_f3(root: Path) -> None:
    """SpacemiT K1 under the vendor's kernel: eight X60 with vectors."""
    common(root, "0-7", "6.6.36", "Bianbu 2.0", {6: 4096, 16: 0x20112D})
    isa = "rv64imafdcv_sscofpmf_sstc_svpbmt_zicbom_zicboz_zicbop_zihintpause_zvfh"
    rows = [f"processor: {n}\nhart: {n}\nmodel name: Spacemit(R) X60\nisa: {isa}\nmmu: sv39\n" for n in range(8)]
    put(root, "proc/cpuinfo", "\n".join(f"{row}uarch: spacemit,x60\nmvendorid: 0x710\n" for row in rows))
    meminfo(root, 4_000_000, 3_500_000)
    put(root, "proc/device-tree/model", "BananaPi BPI-F3\0")
    put(root, "proc/device-tree/compatible", "spacemit,k1-x\0")
    for n in range(8):
        caches = [(1, "Data", "32K", str(n)), (2, "Unified", "512K", "0-3" if n < 4 else "4-7")]
        cpu(root, n, caches, cpufreq__cpuinfo_max_freq="1600000")


BOARDS: dict[str, Callable[[Path], None]] = {
    "laptop": laptop,
    "container_v2": container_v2,
    "container_v1": container_v1,
    "rpi4": rpi4,
    "rk3588": rk3588,
    "visionfive2": visionfive2,
    "d1": d1,
    "bananapi_f3": bananapi_f3,
}
