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
ROW = re.compile(r"^NB_KERNEL\((\w+), (\w+), (\w+)\)$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    """(slot, symbol, bits, guard) of every row of kernels.def, in order; guard is "" outside #ifdef."""
    found, guard = [], ""
    for line in (KERNELS / "hal/kernels.def").read_text().splitlines():
        if line.startswith("#ifdef "):
            guard = line.removeprefix("#ifdef ")
        elif line.startswith("#endif"):
            guard = ""
        elif match := ROW.match(line):
            found.append((*match.groups(), guard))
    return found


def slots() -> list[str]:
    return re.findall(r"^NB_SLOT\(\w+, (\w+)\)$", (KERNELS / "hal/slots.def").read_text(), re.MULTILINE)


def files() -> list[Path]:
    return sorted((KERNELS / "ops").rglob("*.c"))


def test_every_line_of_the_list_is_read() -> None:
    text = (KERNELS / "hal/kernels.def").read_text()
    assert len(rows()) == text.count("\nNB_KERNEL(")
    assert len(slots()) == (KERNELS / "hal/slots.def").read_text().count("\nNB_SLOT(")


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
            header = re.findall(r'#include "(ops/x86_64/\w+\.h)"', path.read_text())
            texts = [(KERNELS / name).read_text() for name in header]
            while header:
                header = [n for t in texts[-len(header) :] for n in re.findall(r'#include "(ops/x86_64/\w+\.h)"', t)]
                texts += [(KERNELS / name).read_text() for name in header]
            assert any(f"#ifndef __{level.upper()}__\n#error" in text for text in texts), path.name


def test_no_fused_multiply_add() -> None:
    for path in [*files(), *(KERNELS / "ops").rglob("*.h")]:
        assert not re.search(r"\bfma[fl]?\(|_f(?:n?m(?:add|sub)|maddsub|msubadd)_p[sd]", path.read_text()), path.name
