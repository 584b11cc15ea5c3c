# SPDX-License-Identifier: Apache-2.0
"""x86-64 instructions by the CPUID feature they need, as the `iced-x86` package knows it for each encoding.

The base is the first x86-64: SSE2, CMOV, FXSR. TZCNT counts as base: older CPUs run its bytes as BSF, and compilers
write it so on purpose where the operand cannot be zero. LZCNT does not: its bytes mean another result there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from nanobuild.errors import ToolError
from nanobuild.isaclasses import UNKNOWN, Instruction

BASE = frozenset({"x86-64", "fpu", "mmx", "sse", "sse2"})

# iced's names to those of /proc/cpuinfo, where lower case is not enough.
_BASE_NAMES = (
    "INTEL8086 INTEL186 INTEL286 INTEL386 INTEL486 X64 CPUID CMOV CX8 TSC FXSR SYSCALL PAUSE MULTIBYTENOP CET_IBT CLFSH"
)
_NAMES = dict.fromkeys(_BASE_NAMES.split(), "x86-64") | {
    "FPU287": "fpu",
    "FPU387": "fpu",
    "SSE3": "pni",
    "LZCNT": "abm",
    "CMPXCHG16B": "cx16",
    "PREFETCHW": "3dnowprefetch",
    "SHA": "sha_ni",
    "AVX512_IFMA": "avx512ifma",
    "AVX512_VBMI": "avx512vbmi",
}


def decode(code: bytes, cuts: Sequence[int]) -> list[list[Instruction]]:
    """Each piece is decoded from its start to its end; a byte that begins nothing counts as one instruction."""
    iced = _iced()
    known: dict[int, tuple[str, ...]] = {}
    pieces = []
    for start, end in itertools.pairwise(cuts):
        piece: list[Instruction] = []
        for instruction in iced.Decoder(64, code[start:end], ip=start):
            kind = instruction.code
            needs = known.get(kind)
            if needs is None:
                needs = known[kind] = _needs(instruction)
            piece.append((instruction.ip, needs))
        pieces.append(piece)
    return pieces


def text(code: bytes, offset: int, address: int) -> str:
    """The instruction in Intel's syntax."""
    iced = _iced()
    instruction = iced.Decoder(64, code[offset : offset + 15], ip=address + offset).decode()
    if instruction.is_invalid:
        return f"the bytes {code[offset : offset + 8].hex(' ')}"
    return str(iced.Formatter(iced.FormatterSyntax.INTEL).format(instruction))


def _needs(instruction: Any) -> tuple[str, ...]:
    iced = _iced()
    if instruction.is_invalid:
        return UNKNOWN
    if instruction.mnemonic == iced.Mnemonic.TZCNT:
        return ("x86-64",)
    names = {_feature_names()[number] for number in instruction.cpuid_features()}
    return tuple(sorted(_NAMES.get(name, name.lower()) for name in names))


@functools.cache
def _feature_names() -> dict[int, str]:
    return {number: name for name, number in vars(_iced().CpuidFeature).items() if name.isupper()}


@functools.cache
def _iced() -> Any:
    """The package, when the first x86-64 code is looked at: other architectures do without."""
    try:
        import iced_x86
    except ImportError:
        hint = "pip install iced-x86"
        raise ToolError("E_TOOL_MISSING", "iced-x86", "this package reads x86-64 code", hint=hint) from None
    return iced_x86
