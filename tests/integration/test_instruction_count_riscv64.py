# SPDX-License-Identifier: Apache-2.0
"""Instructions per product of the RVV matrix kernels, counted in what zig made of them, beside the counts on paper.

The derivations stand in the kernels' opening comments. Kernels for several vector lengths have a loop for each.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobuild.isa import load_isa
from nanobuild.toolchains import zig

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
NAMES = ("llvm-objdump", *(f"llvm-objdump-{version}" for version in range(22, 13, -1)))
OBJDUMP = next(filter(None, map(shutil.which, NAMES)), None)
FORMATS = ("q4g16s8", "q4g32s8", "q8g32s8")
SLACK = 1.15
# Instructions for a block of 32 k: gemm for two tokens of VLEN / 4 rows; gemv by panels of 16 rows that go together
GEMM = {"q4g16s8": 239, "q4g32s8": 239, "q8g32s8": 212}
GEMV = {
    "q4g16s8": {1: 138, 2: 167, 4: 211},
    "q4g32s8": {1: 129, 2: 145, 4: 167},
    "q8g32s8": {1: 98, 2: 121, 4: 159},
}
LOADS = {"q4g16s8": 10, "q4g32s8": 5, "q8g32s8": 9}  # vle8 of gemv in a block, codes and scales, of each panel

Loop = list[str]  # mnemonics


def innermost(listing: str) -> Iterator[tuple[str, Loop]]:
    """(function, mnemonics) of each loop without a loop inside: a branch back and what lies between."""
    name, code = "", list[tuple[int, str, str]]()
    for line in [*listing.splitlines(), "0 <>:"]:
        if head := re.match(r"[0-9a-f]+ <(.*)>:", line):
            back = [
                (int(to[1], 16), at)
                for at, op, rest in code
                if op[0] in "bj" and (to := re.search(r"0x([0-9a-f]+)", rest)) and code[0][0] <= int(to[1], 16) <= at
            ]
            for start, end in back:
                if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in back):
                    yield name, [op for at, op, _ in code if start <= at <= end]
            name, code = head[1], []
        elif row := re.match(r"\s*([0-9a-f]+):\s+([a-z][\w.]*)\s*(.*)", line):
            code.append((int(row[1], 16), row[2], row[3]))


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Loop]]:
    """Innermost loops that multiply and add int8, by operator and format."""
    program = zig.program()
    if program is None:
        pytest.skip("no zig")
    if OBJDUMP is None:
        pytest.skip("no llvm-objdump (Debian package llvm)")
    found: dict[tuple[str, str], list[Loop]] = {(op, name): [] for op in ("gemv", "gemm") for name in FORMATS}
    flags = [*zig.target_flags(load_isa().arch("riscv64"), shared=False), *load_isa().flags("riscv64", "rvv", "zig")]
    for op in ("gemv", "gemm"):
        source, target = f"ops/riscv64/{op}_f32_q8b32__rvv.c", tmp_path_factory.mktemp("rvv") / f"{op}.o"
        argv = [str(program), "cc", *flags, "-O3", "-g0", "-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-I."]
        subprocess.run(
            [*argv, "-c", source, "-o", str(target)], cwd=KERNELS, env=zig.environment(), check=True, timeout=120
        )
        dump = [OBJDUMP, "-d", "--no-show-raw-insn", "--mattr=+m,+a,+f,+d,+c,+v", str(target)]
        done = subprocess.run(dump, capture_output=True, text=True, check=True, timeout=60)
        for function, loop in innermost(done.stdout):
            if any(mnemonic.startswith("vwmacc.v") for mnemonic in loop):
                found[op, function.split("_")[4].removesuffix("p16x4")].append(loop)
    return found


def check(loop: Loop, paper: int, what: str) -> None:
    """The count, no spill, and no instruction that rounds a product and a sum together or in another order."""
    kinds = Counter("vset" if op.startswith("vset") else "vector" if op[0] == "v" else "scalar" for op in loop)
    assert len(loop) <= SLACK * paper, f"{what}: {len(loop)} instructions, {paper} on paper: {dict(kinds)}"
    assert not [op for op in loop if re.fullmatch(r"v[ls][1248]r(e\d+)?\.v", op)], f"{what} spills registers"
    assert not [op for op in loop if re.match(r"vfn?m(acc|sac|add|sub)|vfw?red[uo]sum|vfcvt\.rtz", op)]


@pytest.mark.parametrize("name", FORMATS)
def test_gemm(loops: dict[tuple[str, str], list[Loop]], name: str) -> None:
    (loop,) = loops["gemm", name]
    assert sum(op in ("vwmul.vx", "vwmacc.vx") for op in loop) == 64  # 32 k, two tokens, whatever the vector length
    check(loop, GEMM[name], f"gemm {name}")


@pytest.mark.parametrize("name", FORMATS)
def test_gemv(loops: dict[tuple[str, str], list[Loop]], name: str) -> None:
    by_panels = {sum(op == "vle8.v" for op in loop) // LOADS[name]: loop for loop in loops["gemv", name]}
    assert sorted(by_panels) == [1, 2, 4]
    a_panel = []
    for panels, loop in sorted(by_panels.items()):
        assert sum(op in ("vwmul.vv", "vwmacc.vv") for op in loop) == 8
        check(loop, GEMV[name][panels], f"gemv {name}, {panels} panels")
        a_panel.append(len(loop) / panels)
    assert a_panel[0] > 1.4 * a_panel[1] > 1.4 * a_panel[2]  # VLEN 128, 256, 512
