# SPDX-License-Identifier: Apache-2.0
"""Inner loops of the arm64 integer products: instructions per multiply-accumulate, against the count on paper.

Each kernel file derives its best count in its opening comment; what the compiler makes may be 15 % above it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from nanobuild import proc
from nanobuild.isa import load_isa
from nanobuild.toolchains import zig

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
MATRIX = {name: f"_{name}p16x4" for name in ("q4g16s8", "q4g32s8", "q8g32s8")}
CACHE = {"i8": ""}
FILES = {  # kernels of a file: the name in its comment, what their symbol adds to the file's name
    "gemv_f32_q8b32__neon": MATRIX,
    "gemm_f32_q8b32__neon": MATRIX,
    "attend_f32_f32_i8__neon": CACHE,
    "gemv_f32_q8b32__dotprod": MATRIX,
    "gemm_f32_q8b32__dotprod": MATRIX,
    "attend_f32_f32_i8__dotprod": CACHE,
    "gemm_f32_q8b32__i8mm": MATRIX,
}
PRODUCTS = {"smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8, "sdot": 16, "smmla": 32}  # of one instruction
SLACK = 1.15

Loop = list[str]  # mnemonics from the target of a backward branch to the branch


def on_paper(stem: str) -> dict[str, float]:
    """Instructions per multiply-accumulate of each kernel, from the kernel's opening comment."""
    comment = (KERNELS / "ops/arm64" / f"{stem}.c").read_text().partition("*/")[0].replace("\n *", "")
    rows = re.findall(r"\b(\w+8):(?:(?!\w8:).)*?= (\d+) instructions +per +(\d+)", comment)
    return {name: int(count) / int(products) for name, count, products in rows}


def disassemble(stem: str, out: Path) -> dict[str, list[tuple[int, str, str]]]:
    """(address, mnemonic, operands) of every instruction of every function that zig makes of a kernel file."""
    program = zig.program()
    if program is None:
        pytest.skip("no zig")
    objdump = next(filter(shutil.which, ("aarch64-linux-gnu-objdump", "llvm-objdump", "llvm-objdump-19")), None)
    if objdump is None:
        pytest.skip("no disassembler for aarch64")
    isa, target = load_isa(), out / f"{stem}.o"
    flags = (*zig.target_flags(isa.arch("arm64"), shared=False), *isa.flags("arm64", stem.partition("__")[2], "zig"))
    common = ("-O3", "-g0", "-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", f"-I{KERNELS}")
    source = str(KERNELS / "ops/arm64" / f"{stem}.c")
    argv = [str(program), "cc", *flags, *common, "-c", source, "-o", str(target)]
    proc.run(argv, env=zig.environment(), timeout=300)
    more = ["--mattr=+dotprod,+i8mm"] if objdump.startswith("llvm") else []  # GNU knows them all by itself
    text = proc.run([objdump, "-d", "--no-show-raw-insn", *more, str(target)], timeout=60).stdout.decode()
    functions: dict[str, list[tuple[int, str, str]]] = {}
    for line in text.splitlines():
        if match := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            functions[match[1]] = []
        elif match := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line):
            functions[next(reversed(functions))].append((int(match[1], 16), match[2], match[3]))
    return functions


def products(loop: Loop) -> int:
    """Multiply-accumulates of one pass."""
    return sum(PRODUCTS.get(mnemonic, 0) for mnemonic in loop)


def inner_loop(code: list[tuple[int, str, str]]) -> Loop:
    """The innermost loop with the most products."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    spans = []
    for i, (address, mnemonic, operands) in enumerate(code):
        target = re.search(r"(?:0x)?([0-9a-f]+) <", operands)
        if re.fullmatch(r"b|b\.\w+|cbn?z|tbn?z", mnemonic) and target and int(target[1], 16) < address:
            spans.append((index[int(target[1], 16)], i))
    loops = {span: [mnemonic for _, mnemonic, _ in code[span[0] : span[1] + 1]] for span in spans}
    busy = {span: loop for span, loop in loops.items() if products(loop)}
    innermost = [
        loop
        for (first, last), loop in busy.items()
        if not any((first, last) != (a, b) and first <= a and b <= last for a, b in busy)
    ]
    assert innermost, "no loop with products"
    return max(innermost, key=products)


@pytest.mark.parametrize("stem", FILES)
def test_inner_loops_are_as_short_as_on_paper(stem: str, tmp_path: Path) -> None:
    paper, functions = on_paper(stem), disassemble(stem, tmp_path)
    types, _, level = stem.partition("__")
    assert set(paper) == set(FILES[stem]), f"{stem}: the opening comment has no count for a kernel"
    for name, more in FILES[stem].items():
        loop = inner_loop(functions[f"nb_{types}{more}__{level}"])
        have = len(loop) / products(loop)
        assert have <= SLACK * paper[name], f"{stem}, {name}: {have:.4f} per product, on paper {paper[name]:.4f}"
        assert not {"fmla", "fmls", "fmadd", "fmsub"} & set(loop), "multiply and add are rounded separately"


def test_the_counter_counts() -> None:
    """A loop in a loop, as objdump prints it: the inner one is found, and the products of its instructions."""
    code = [
        (0, "mov", "x0, x1"),
        (4, "movi", "v0.4s, #0x0"),
        (8, "sdot", "v0.4s, v1.16b, v2.4b[0]"),
        (12, "subs", "x0, x0, #0x1"),
        (16, "b.ne", "8 <f+0x8>  // b.any"),
        (20, "b.ne", "0x4 <f+0x4>"),
    ]
    assert inner_loop(code) == ["sdot", "subs", "b.ne"]
    assert products(inner_loop(code)) == 16
