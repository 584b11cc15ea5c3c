# SPDX-License-Identifier: Apache-2.0
"""A kernel's name is a contract: files, kernels.def, slots.def and isa.yaml must say the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from nanobuild.isa import load_isa

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

# nb_<op>_<destination>_<sources...>__<level>; the op list is closed, a new op is a new typedef in hal.h
OPS = ["gemv", "gemm", "quantize", "rmsnorm", "rope", "silu_mul", "gelu_mul"]
OPS += ["add", "embed", "kv_store", "attend", "attend_join"]
TYPE = r"(?:f32|f16|i8|q8b32|q[48]g(?:16|32)s8p16x4|p16x4)"
NAME = re.compile(
    rf"nb_(?P<op>{'|'.join(sorted(OPS, key=len, reverse=True))})_{TYPE}(?:_{TYPE})+__(?P<level>[a-z0-9]+)"
)
# Intrinsics that round a product and a sum together
FUSED = r"\bfma[fl]?\(|_f(?:n?m(?:add|sub)|maddsub|msubadd)_p[sd]|\bvfm[as]q?_|vfn?m(?:acc|sac|add|sub)_v"
# Where a compiler's macro is not called like the level
GUARDS = {"sse41": "SSE4_1", "neon": "ARM_NEON", "dotprod": "ARM_FEATURE_DOTPROD", "i8mm": "ARM_FEATURE_MATMUL_INT8"}
GUARDS["rvv"] = "riscv_v"
ROW = re.compile(r"^NB_KERNEL\((\w+), (\w+), (\w+)\)$", re.MULTILINE)


def lists() -> list[Path]:
    """kernels.def and the lists per architecture that it includes, in order."""
    top = KERNELS / "hal/kernels.def"
    names = re.findall(r'^#include "hal/(kernels_\w+\.def)"$', top.read_text(), re.MULTILINE)
    assert sorted(names) == sorted(path.name for path in (KERNELS / "hal").glob("kernels_*.def"))
    return [top, *(KERNELS / "hal" / name for name in names)]


def rows() -> list[tuple[str, str, str, str]]:
    """(slot, symbol, bits, guard) of every row of the lists, in order; guard is "" outside #ifdef."""
    found, guard = [], ""
    for line in (line for path in lists() for line in path.read_text().splitlines()):
        if line.startswith("#ifdef "):
            guard = line.removeprefix("#ifdef ")
        elif line.startswith("#endif"):
            guard = ""
        elif match := ROW.match(line):
            found.append((*match.groups(), guard))
    return found


def formats() -> list[str]:
    text = (KERNELS / "hal/formats.def").read_text()
    return re.findall(r"^NB_FORMAT\(\d+, \w+, (\w+), \d+, \d+\)$", text, re.MULTILINE)


def slots() -> list[str]:
    text = (KERNELS / "hal/slots.def").read_text()
    named = re.findall(r"^NB_SLOT\(\w+, (\w+)\)$", text, re.MULTILINE)
    return [f"{op}_{name}" for op in re.findall(r"NB_SLOT\(\w+, (\w+)_##name\)", text) for name in formats()] + named


def files() -> list[Path]:
    return sorted((KERNELS / "ops").rglob("*.c"))


def test_every_line_of_the_list_is_read() -> None:
    assert len(rows()) == sum(path.read_text().count("\nNB_KERNEL(") for path in lists())
    slot_rows = (KERNELS / "hal/slots.def").read_text().count("NB_SLOT(") - 1  # one in the comment
    assert len(slots()) == slot_rows + 2 * (len(formats()) - 1)
    assert len(formats()) == (KERNELS / "hal/formats.def").read_text().count("\nNB_FORMAT(") > 0


@pytest.mark.parametrize(("slot", "symbol", "bits", "guard"), rows())
def test_row(slot: str, symbol: str, bits: str, guard: str) -> None:
    match = NAME.fullmatch(symbol)
    assert match, f"{symbol} is not nb_<op>_<types>__<level>"
    level = match["level"]
    assert level in load_isa().levels
    assert slot in slots()
    # gemv_q4g32s8 <- gemv_..._q4g32s8p16x4, kv_store_f16 <- kv_store_f16_..., attend_i8 <- attend_..._i8
    rest = slot.removeprefix(match["op"]).removeprefix("_")
    assert slot.startswith(match["op"])
    assert not rest or re.search(rf"_{rest}(?:p16x4)?_", symbol)
    if level == "scalar":
        assert (bits, guard) == ("0", "")
    else:
        assert (bits, guard) == (f"NB_ISA_{level.upper()}", f"NB_BUILD_{level.upper()}")


def test_every_slot_has_a_scalar_kernel_and_levels_rise() -> None:
    order = list(load_isa().levels)
    for slot in slots():
        levels = [order.index(symbol.partition("__")[2]) for s, symbol, _, _ in rows() if s == slot]
        assert levels[:1] == [0], f"{slot}: the scalar row comes first"
        assert levels == sorted(set(levels)), f"{slot}: within a slot the last row wins, so levels rise"


def test_symbols_and_files_belong_together() -> None:
    listed = Counter(symbol for _, symbol, _, _ in rows())
    assert max(listed.values()) == 1
    defined: Counter[str] = Counter()
    for path in files():
        stem, _, level = path.stem.partition("__")
        arch = path.parent.name
        assert arch == "scalar" if level == "scalar" else load_isa().levels[level].arch == arch
        symbols = re.findall(r"^void (nb_\w+)\(", path.read_text(), re.MULTILINE)
        assert symbols, f"{path.name} has no kernel"
        for symbol in symbols:
            assert symbol.endswith(f"__{level}")
            assert symbol.startswith((f"nb_{stem}_", f"nb_{stem}__")), f"{path.name}: {symbol} belongs in another file"
        defined.update(symbols)
    assert defined == listed


def test_vector_files_refuse_other_flags() -> None:
    for path in files():
        level = path.stem.partition("__")[2]
        if level != "scalar":
            texts, seen = [path.read_text()], set[str]()
            while names := {n for t in texts for n in re.findall(r'#include "(ops/\w+/\w+\.h)"', t)} - seen:
                seen |= names
                texts += [(KERNELS / name).read_text() for name in names]
            assert any(
                re.search(rf"^#ifndef __{GUARDS.get(level, level.upper())}(?:__)?\n#error", text, re.M)
                for text in texts
            ), path.name


def test_no_fused_multiply_add() -> None:
    for path in [*files(), *(KERNELS / "ops").rglob("*.h")]:
        assert not re.search(FUSED, path.read_text()), path.name
