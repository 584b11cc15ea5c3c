# SPDX-License-Identifier: Apache-2.0
"""Which instructions the CPU and its kernel allow, asked of the CPU itself and without a compiler.

x86_64: CPUID and XGETBV through a few bytes of machine code; arm64: HWCAP in the auxiliary vector; riscv64: the
hwprobe call and the isa string. Names are those of /proc/cpuinfo.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from nanobuild.hostfiles import Files

Features = tuple[list[str], str]  # sorted names, and where they come from

# cpuid(edi = leaf, esi = subleaf, rdx = u32[4] out)
_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
# xgetbv(rdi = u32[2] out), register 0
_XGETBV = bytes.fromhex("31c9 0f01d0 8907 895704 c3")

_YMM, _ZMM = 0x06, 0xE6  # bits of XCR0: the kernel saves these registers
# (leaf, subleaf, register eax..edx, bit, name, bits of XCR0 that it needs)
_X86 = (
    (1, 0, 2, 0, "pni", 0),
    (1, 0, 2, 9, "ssse3", 0),
    (1, 0, 2, 19, "sse4_1", 0),
    (1, 0, 2, 20, "sse4_2", 0),
    (1, 0, 2, 22, "movbe", 0),
    (1, 0, 2, 23, "popcnt", 0),
    (1, 0, 2, 12, "fma", _YMM),
    (1, 0, 2, 28, "avx", _YMM),
    (1, 0, 2, 29, "f16c", _YMM),
    (7, 0, 1, 3, "bmi1", 0),
    (7, 0, 1, 5, "avx2", _YMM),
    (7, 0, 1, 8, "bmi2", 0),
    (7, 0, 1, 16, "avx512f", _ZMM),
    (7, 0, 1, 17, "avx512dq", _ZMM),
    (7, 0, 1, 30, "avx512bw", _ZMM),
    (7, 0, 1, 31, "avx512vl", _ZMM),
    (7, 0, 2, 11, "avx512_vnni", _ZMM),
    (7, 1, 0, 4, "avx_vnni", _YMM),
    (7, 1, 0, 5, "avx512_bf16", _ZMM),
)
X86_NAMES = tuple(row[4] for row in _X86)

_ARM_HWCAP = {
    0: "fp",
    1: "asimd",
    7: "crc32",
    8: "atomics",
    9: "fphp",
    10: "asimdhp",
    12: "asimdrdm",
    20: "asimddp",
    22: "sve",
    23: "asimdfhm",
}
_ARM_HWCAP2 = {1: "sve2", 13: "i8mm", 14: "bf16"}
ARM_NAMES = (*_ARM_HWCAP.values(), *_ARM_HWCAP2.values())

AT_PAGESZ, _AT_HWCAP, _AT_HWCAP2 = 6, 16, 26
_T_HEAD = 0x5B7  # its cores say "v" and mean the vector draft 0.7.1, on which RVV 1.0 code dies

# riscv_hwprobe: key 4 (extensions) bit -> name; key 3 (base behaviour) bit 0 is ima
_RISCV_EXT = {0: "fd", 1: "c", 2: "v", 3: "zba", 4: "zbb", 5: "zbs", 6: "zicboz", 27: "zfh", 30: "zvfh", 60: "zicbop"}
_RISCV_HWPROBE = 258


def features(files: Files, arch: str) -> Features:
    """The feature names that matter to us or to people, sorted, and their source."""
    if arch == "x86_64":
        found = _x86(files)
    elif arch == "arm64":
        found = _arm(files)
    elif arch == "riscv64":
        found = _riscv(files)
    else:
        found = (set(), "nothing")
    return sorted(found[0]), found[1]


def auxv(files: Files) -> dict[int, int]:
    """The auxiliary vector that the kernel gave a process, by number."""
    data = files.data("/proc/self/auxv")
    pairs = struct.iter_unpack("<QQ", data[: len(data) // 16 * 16])
    return {key: value for key, value in pairs if key}


def _x86(files: Files) -> tuple[set[str], str]:
    if files.host:
        found = x86_from_cpuid(this_cpu())
        if found is not None:
            return found, "cpuid"
    flags = next((value.split() for key, value in files.fields("/proc/cpuinfo") if key == "flags"), [])
    return set(flags) & set(X86_NAMES), "cpuinfo"


class Cpu(Protocol):
    """The two instructions that tell."""

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        """eax, ebx, ecx, edx."""

    def xgetbv(self) -> int:
        """XCR0: which registers the kernel saves."""


def x86_from_cpuid(cpu: Cpu | None) -> set[str] | None:
    """Names from CPUID and XGETBV; None when the CPU could not be asked."""
    if cpu is None:
        return None
    highest = cpu.cpuid(0, 0)[0]
    saved = cpu.xgetbv() if cpu.cpuid(1, 0)[2] >> 27 & 1 else 0  # OSXSAVE: the kernel uses XSAVE, so XGETBV exists
    leaves = {(1, 0): cpu.cpuid(1, 0)}
    if highest >= 7:
        leaves[7, 0] = cpu.cpuid(7, 0)
        if leaves[7, 0][0] >= 1:
            leaves[7, 1] = cpu.cpuid(7, 1)
    none = (0, 0, 0, 0)
    return {
        name
        for leaf, subleaf, register, bit, name, needs in _X86
        if leaves.get((leaf, subleaf), none)[register] >> bit & 1 and saved & needs == needs
    }


def this_cpu() -> Cpu | None:
    """The CPU we run on; None where a process may not make memory executable."""
    import ctypes
    import mmap

    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, ValueError):
        return None
    page.write(_CPUID.ljust(64, b"\xcc") + _XGETBV)
    code = ctypes.c_char.from_buffer(page)
    pointer = ctypes.POINTER(ctypes.c_uint32)

    class ThisCpu:
        memory = code  # the mapping lives as long as the functions that point into it
        run_cpuid = staticmethod(
            ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, pointer)(ctypes.addressof(code))
        )
        run_xgetbv = staticmethod(ctypes.CFUNCTYPE(None, pointer)(ctypes.addressof(code) + 64))

        def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
            out = (ctypes.c_uint32 * 4)()
            self.run_cpuid(leaf, subleaf, out)
            return out[0], out[1], out[2], out[3]

        def xgetbv(self) -> int:
            out = (ctypes.c_uint32 * 2)()
            self.run_xgetbv(out)
            return out[0] | out[1] << 32

    return ThisCpu()


def _arm(files: Files) -> tuple[set[str], str]:
    vector = auxv(files)
    if _AT_HWCAP in vector:
        first, second = vector[_AT_HWCAP], vector.get(_AT_HWCAP2, 0)
        names = {name for bit, name in _ARM_HWCAP.items() if first >> bit & 1}
        return names | {name for bit, name in _ARM_HWCAP2.items() if second >> bit & 1}, "hwcap"
    words = next((value.split() for key, value in files.fields("/proc/cpuinfo") if key == "Features"), [])
    return set(words) & set(ARM_NAMES), "cpuinfo"


def _riscv(files: Files) -> tuple[set[str], str]:
    found: set[str] | None = None
    source = "hwprobe"
    if files.host:
        found = riscv_from_hwprobe(hwprobe)
    if found is None:
        fields = dict(files.fields("/proc/cpuinfo"))
        isa = fields.get("isa") or files.text("/proc/device-tree/cpus/cpu@0/riscv,isa")
        found, source = riscv_from_isa(isa), "isa"
    return _vector_truth(found, files), source


def riscv_from_isa(isa: str) -> set[str]:
    """Extensions of an isa string such as rv64imafdc_zba_zbb."""
    base, *longer = isa.strip().lower().split("_")
    if not base.startswith("rv64"):
        return set()
    letters = base[4:].replace("g", "imafd")
    return {letter for letter in letters if letter.isalpha()} | {name for name in longer if name}


def riscv_from_hwprobe(probe: Callable[[list[int]], dict[int, int] | None]) -> set[str] | None:
    """Extensions from the kernel's answer to riscv_hwprobe; None where there is no such call (Linux before 6.4)."""
    answer = probe([3, 4])
    if answer is None:
        return None
    names = {"i", "m", "a"} if answer.get(3, 0) & 1 else set()
    for bit, name in _RISCV_EXT.items():
        if answer.get(4, 0) >> bit & 1:
            names |= set(name) if name == "fd" else {name}
    return names


def hwprobe(keys: list[int]) -> dict[int, int] | None:
    """riscv_hwprobe for all CPUs; None when the kernel does not know the call."""
    import ctypes

    class Pair(ctypes.Structure):
        _fields_ = (("key", ctypes.c_int64), ("value", ctypes.c_uint64))

    pairs = (Pair * len(keys))(*(Pair(key, 0) for key in keys))
    null = ctypes.c_void_p(None)
    call = ctypes.CDLL(None).syscall
    status = call(ctypes.c_long(_RISCV_HWPROBE), pairs, ctypes.c_size_t(len(keys)), ctypes.c_size_t(0), null, 0)
    return {pair.key: pair.value for pair in pairs if pair.key >= 0} if status == 0 else None


def _vector_truth(found: set[str], files: Files) -> set[str]:
    """T-Head's "v" is the 0.7.1 draft; it gets the name that later kernels give it. Old kernels tell the core only in
    the device tree, or not at all but by the board."""
    fields = dict(files.fields("/proc/cpuinfo"))
    places = ("/proc/device-tree/cpus/cpu@0/compatible", "/proc/device-tree/compatible")
    names = " ".join([fields.get("uarch", ""), fields.get("model name", ""), *(files.text(place) for place in places)])
    draft = ("thead", "t-head", "c906", "c910", "c920", "allwinner,sun20i-d1")
    if "v" in found and (fields.get("mvendorid", "") == hex(_T_HEAD) or any(part in names.lower() for part in draft)):
        return (found - {"v"}) | {"xtheadvector"}
    return found
