# SPDX-License-Identifier: Apache-2.0
"""Instructions by feature, and who may hold them. The bytes come from LLVM's assembler, not from our own tables."""

from __future__ import annotations

import fnmatch
import struct
from pathlib import Path

import pytest

from nanobuild import isa, isaproof
from nanobuild.errors import ToolError
from nanobuild.isaclasses import UNKNOWN, decoder, elf, patterns

X86 = """
4889d8         x86-64                mov rax, rbx
0f58c1         sse                   addps xmm0, xmm1
660ffec1       sse2                  paddd xmm0, xmm1
d9e8           fpu                   fld1
0f77           mmx                   emms
0f45c3         x86-64                cmovne eax, ebx
0fc708         x86-64                cmpxchg8b [rax]
f30f1efa       x86-64                endbr64
f390           x86-64                pause
0fae00         x86-64                fxsave [rax]
0fae38         x86-64                clflush [rax]
0fa2           x86-64                cpuid
f30fbcc3       x86-64                rep bsf eax, ebx
f20fd0c1       pni                   addsubps xmm0, xmm1
660f3800c1     ssse3                 pshufb xmm0, xmm1
660f3840c1     sse4_1                pmulld xmm0, xmm1
660f3837c1     sse4_2                pcmpgtq xmm0, xmm1
f20f38f1c3     sse4_2                crc32 eax, ebx
f30fb8c3       popcnt                popcnt eax, ebx
f30fbdc3       abm                   lzcnt eax, ebx
0f38f003       movbe                 movbe eax, [rbx]
480fc708       cx16                  cmpxchg16b [rax]
c5f058c2       avx                   vaddps xmm0, xmm1, xmm2
c5f1fec2       avx                   vpaddd xmm0, xmm1, xmm2
c5f458c2       avx                   vaddps ymm0, ymm1, ymm2
c5f877         avx                   vzeroupper
c5f5fec2       avx2                  vpaddd ymm0, ymm1, ymm2
c4e27978c1     avx2                  vpbroadcastb xmm0, xmm1
c4e27d13c1     f16c                  vcvtph2ps ymm0, xmm1
c4e275b8c2     fma                   vfmadd231ps ymm0, ymm1, ymm2
c4e3f168c320   fma4                  vfmaddps xmm0, xmm1, xmm2, xmm3
c4e260f2c1     bmi1                  andn eax, ebx, ecx
c4e271f7c3     bmi2                  shlx eax, ebx, ecx
660f38f6c3     adx                   adcx eax, ebx
660f38dcc1     aes                   aesenc xmm0, xmm1
660f3a44c100   pclmulqdq             pclmulqdq xmm0, xmm1, 0
0f38c9c1       sha_ni                sha1msg1 xmm0, xmm1
0fc7f0         rdrand                rdrand eax
0f01d0         xsave                 xgetbv
c4e27550c2     avx_vnni              {vex} vpdpbusd ymm0, ymm1, ymm2
62f2754850c2   avx512_vnni           vpdpbusd zmm0, zmm1, zmm2
62e2752850c2   avx512_vnni,avx512vl  vpdpbusd ymm16, ymm1, ymm2
62f17548fec2   avx512f               vpaddd zmm0, zmm1, zmm2
62e17508fec2   avx512f,avx512vl      vpaddd xmm16, xmm1, xmm2
62f17548fcc2   avx512bw              vpaddb zmm0, zmm1, zmm2
62f2f54840c2   avx512dq              vpmullq zmm0, zmm1, zmm2
c5f892c8       avx512f               kmovw k1, eax
c5f992c8       avx512dq              kmovb k1, eax
c4e1fb92c8     avx512bw              kmovq k1, rax
62f275488dc2   avx512vbmi            vpermb zmm0, zmm1, zmm2
62f2f548b4c2   avx512ifma            vpmadd52luq zmm0, zmm1, zmm2
62f27d4844c1   avx512cd              vplzcntd zmm0, zmm1
62f27d4855c1   avx512_vpopcntdq      vpopcntd zmm0, zmm1
62f27d4854c1   avx512_bitalg         vpopcntb zmm0, zmm1
62f27e4872c1   avx512_bf16,avx512f   vcvtneps2bf16 ymm0, zmm1
62f27d4863c8   avx512_vbmi2          vpcompressb zmm0, zmm1
c4e275dcc2     vaes                  vaesenc ymm0, ymm1, ymm2
c4e275cfc2     avx,gfni              vgf2p8mulb ymm0, ymm1, ymm2
c4e26b5ec1     amx_int8              tdpbssd tmm0, tmm1, tmm2
06             unknown               push es, which 64-bit code has not
"""

ARM64 = """
2000028b base      add x0, x1, x2
e007c1a8 base      ldp x0, x1, [sp], #16
207c5fc8 base      ldxr x0, [x1]
20740bd5 base      dc zva, x0
40d03bd5 base      mrs x0, tpidr_el0
5f2403d5 base      bti c
3f2303d5 base      paciasp
2028221e fp        fadd s0, s1, s2
200c421f fp        fmadd d0, d1, d2, d3
20c0231e fp        fcvt h0, s1
2078210e asimd     fcvtl v0.4s, v1.4h
2084224e asimd     add v0.16b, v1.16b, v2.16b
2020724f asimd     smlal2 v0.4s, v1.8h, v2.h[3]
2000024e asimd     tbl v0.16b, {v1.16b}, v2.16b
0070df4c asimd     ld1 {v0.16b}, [x0], #16
2010a24f asimd     fmla v0.4s, v1.4s, v2.s[1]
2094824e asimddp   sdot v0.4s, v1.16b, v2.16b
20e8a22f asimddp   udot v0.2s, v1.8b, v2.4b[3]
20a4824e i8mm      smmla v0.4s, v1.16b, v2.16b
209c824e i8mm      usdot v0.4s, v1.16b, v2.16b
20f0224f i8mm      sudot v0.4s, v1.16b, v2.4b[1]
2028e21e fphp      fadd h0, h1, h2
2014424e asimdhp   fadd v0.8h, v1.8h, v2.8h
2010124f asimdhp   fmla v0.8h, v1.8h, v2.h[1]
20d8794e asimdhp   scvtf v0.8h, v1.8h
410020b8 atomics   ldadd w0, w1, [x2]
41fce0c8 atomics   casal x0, x1, [x2]
2084826e asimdrdm  sqrdmlah v0.4s, v1.4s, v2.4s
20ec224e asimdfhm  fmlal v0.4s, v1.4h, v2.4h
20fc426e bf16      bfdot v0.4s, v1.8h, v2.8h
20ec426e bf16      bfmmla v0.4s, v1.8h, v2.8h
20cc826e fcma      fcmla v0.4s, v1.4s, v2.4s, #90
205cc29a crc32     crc32cx w0, w1, x2
2048284e aes       aese v0.16b, v1.16b
20e0e20e pmull     pmull v0.1q, v1.1d, v2.1d
2000025e sha1      sha1c q0, s1, v2.4s
2040025e sha2      sha256h q0, q1, v2.4s
208062ce sha512    sha512h q0, q1, v2.2d
200c02ce sha3      eor3 v0.16b, v1.16b, v2.16b, v3.16b
20c0bff8 lrcpc     ldapr x0, [x1]
208040d9 ilrcpc    ldapur x0, [x1, #8]
20007e1e jscvt     fjcvtzs w0, d1
20e8214e frint     frint32z v0.4s, v1.4s
1f4000d5 flagm     cfinv
5f4000d5 flagm2    axflag
01081fd7 paca      braa x0, x1
ff0b5fd6 paca      retaa
200420f8 paca      ldraa x0, [x1]
2010df9a mte       irg x0, x1
2000a204 sve       add z0.s, z1.s, z2.s
00a000a4 sve       ld1b {z0.b}, p0/z, [x0]
7f4703d5 sme       smstart
00243bd5 rng       mrs x0, rndr
000038d5 cpuid     mrs x0, midr_el1
01000000 unknown   udf #1
20040032 base      orr w0, w1, #3
20fc0032 unknown   orr w0, w1 with the immediate that does not exist
2084e20e unknown   add v0.1d, v1.1d, v2.1d, which does not exist
030000d4 unknown   smc #0
"""

RISCV64 = """
3385c500 i         add a0, a1, a2
0f100000 i         fence.i
2e95     c         c.add a0, a1
0821     c         c.fld fa0, 0(a0)
3385c502 m         mul a0, a1, a2
2f25b600 a         amoadd.w a0, a1, (a2)
07250500 f         flw fa0, 0(a0)
73252000 f         frrm a0
43f5c56a d         fmadd.d fa0, fa1, fa2, fa3
53f51540 d         fcvt.s.d fa0, fa1
57f5050c v         vsetvli a0, a1, e8, m1, ta, ma
577502cd v         vsetivli a0, 4, e32, m1, ta, ma
07000502 v         vle8.v v0, (a0)
27600502 v         vse32.v v0, (a0)
0750b50a v         vlse16.v v0, (a0), a1
07008502 v         vl1re8.v v0, (a0)
57001102 v         vadd.vv v0, v1, v2
572031f6 v         vwmacc.vv v0, v2, v3
57201102 v         vredsum.vs v0, v1, v2
575025b2 v         vfmacc.vf v0, fa0, v2
732520c2 v         csrr a0, vlenb
33a5c520 zba       sh1add a0, a1, a2
1b953508 zba       slli.uw a0, a1, 3
33f5c540 zbb       andn a0, a1, a2
13950560 zbb       clz a0, a1
13d5856b zbb       rev8 a0, a1
13d53560 zbb       rori a0, a1, 3
3bc50508 zbb       zext.h a0, a1
3395c528 zbs       bset a0, a1, a2
13d54548 zbs       bexti a0, a1, 4
3395c50a zbc       clmul a0, a1, a2
53f5c504 zfh       fadd.h fa0, fa1, fa2
07150500 zfh       flh fa0, 0(a0)
732500c0 zicntr    rdcycle a0
33f5c50e zicond    czero.nez a0, a1, a2
0f204500 zicboz    cbo.zero (a0)
0b85c500 xthead    the first vendors' space
57802006 zvkb      vandn.vv v0, v2, v1
0120     unknown   c.addiw zero, 0
33b5c5fe unknown   an OP that nobody has defined
1f000000 unknown   the beginning of a longer instruction
"""

CASES = [
    pytest.param(arch, *line.split(None, 2), id=f"{arch} {line.split(None, 2)[2]}")
    for arch, table in (("x86_64", X86), ("arm64", ARM64), ("riscv64", RISCV64))
    for line in table.strip().splitlines()
]


@pytest.mark.parametrize(("arch", "code", "needs", "text"), CASES)
def test_an_instruction_needs_its_feature(arch: str, code: str, needs: str, text: str) -> None:
    data = bytes.fromhex(code)
    ((first, *rest),) = decoder(arch).decode(data, [0, len(data)])
    assert first == (0, tuple(needs.split(","))), text
    assert not rest or needs == "unknown"


@pytest.mark.parametrize("arch", ["x86_64", "arm64", "riscv64"])
def test_every_need_of_a_level_is_a_feature_that_an_instruction_can_have(arch: str) -> None:
    """A misspelt name in isa.yaml would allow nothing."""
    table = {"x86_64": X86, "arm64": ARM64, "riscv64": RISCV64}[arch]
    known = {word for line in table.strip().splitlines() for word in line.split()[1].split(",")}
    levels = [level for level in isa.load_isa().levels.values() if level.arch == arch]
    assert levels
    assert {need for level in levels for need in level.needs} <= known


def test_no_row_of_the_tables_is_hidden_behind_an_earlier_one() -> None:
    for name, width in (
        ("instructions_arm64.txt", 32),
        ("instructions_riscv64.txt", 32),
        ("instructions_riscv64c.txt", 16),
    ):
        rows = patterns.load(name, width)
        for index, row in enumerate(rows):
            for before in rows[:index]:
                covers = before.mask & row.mask == before.mask and row.value & before.mask == before.value
                assert not covers, f"{name}: {row.name} {row.value:#x} lies in {before.name} {before.value:#x}"


def test_bad_rows_are_refused() -> None:
    for row in ("base x 012", "base x", "base", "base x " + "0" * 33):
        with pytest.raises(ValueError, match="bad row"):
            patterns.parse(row, 32)


# A small object or program: sections of code and the symbols in them.

MACHINE = {"x86_64": 62, "arm64": 183, "riscv64": 243}
FUNC, NOTYPE, FILE = 2, 0, 4
GLOBAL, LOCAL = 1, 0
SDOT, ADD, RET = (bytes.fromhex(word) for word in ("2094824e", "2000028b", "c0035fd6"))


def make_elf(
    path: Path,
    arch: str,
    code: bytes,
    symbols: list[tuple[str, int, int, int, int]],  # name, type, binding, start, size
    *,
    stripped: bool = False,
    address: int = 0x1000,
) -> Path:
    names = b"\0" + b"".join(symbol[0].encode() + b"\0" for symbol in symbols)
    table = bytes(24)
    for name, kind, binding, start, size in symbols:
        where = (0, 0xFFF1) if kind == FILE else (address + start, 1)
        table += struct.pack("<IBBHQQ", names.index(name.encode()), binding << 4 | kind, 0, where[1], where[0], size)
    contents = [b"", code, table, names]
    offsets = [64 + sum(map(len, contents[:i])) for i in range(4)]
    kinds = [(0, 0, 0, 0, 0), (1, 6, address, 0, 0), (0 if stripped else 2, 0, 0, 3, 24), (3, 0, 0, 0, 0)]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, MACHINE[arch], 1, 0, 0, offsets[3] + len(names), 0, 64, 0, 0, 64, 4, 3
    )
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, flags, addr, offset, len(content), link, 0, 1, entry)
        for content, offset, (kind, flags, addr, link, entry) in zip(contents, offsets, kinds, strict=True)
    )
    path.write_bytes(head + b"".join(contents) + sections)
    return path


def arm(path: Path, code: bytes, *symbols: tuple[str, int, int, int, int]) -> isaproof.Proof:
    return isaproof.examine(make_elf(path / "x", "arm64", code, list(symbols)), arch="arm64", floor=("scalar",))


def test_a_violation_says_where_what_and_what_is_allowed(tmp_path: Path) -> None:
    proof = arm(tmp_path, ADD + SDOT + RET, ("dot", FUNC, GLOBAL, 0, 12))
    assert [(v.function, v.address, v.needs) for v in proof.violations] == [("dot", 0x1004, ("asimddp",))]
    assert proof.violations[0].allowed == ("asimd", "base", "fp")
    with pytest.raises(
        ToolError, match=r"function 'dot' holds sdot .* at 0x1004, which needs asimddp, but may only"
    ) as e:
        isaproof.require(proof, tmp_path)
    assert e.value.code == "E_ISA"


@pytest.mark.parametrize("name", ["nb_x__dotprod", "nb_x__i8mm", "nb_x__dotprod.cold", "nb_x__dotprod.llvm.12"])
def test_a_level_may_use_what_it_and_all_it_implies_need(tmp_path: Path, name: str) -> None:
    proof = arm(tmp_path, SDOT + RET, (name, FUNC, LOCAL, 0, 8))
    isaproof.require(proof, tmp_path)
    assert proof.functions[0].features == {"asimddp": 1, "base": 1}
    assert isaproof.summary(proof)["violations"] == 0


@pytest.mark.parametrize("name", ["nb_x__neon", "nb_x__avx2", "nb_x_dotprod", "dotprod", "nb_x__dotprod_more"])
def test_other_names_may_not(tmp_path: Path, name: str) -> None:
    assert len(arm(tmp_path, SDOT + RET, (name, FUNC, GLOBAL, 0, 8)).violations) == 1


def test_the_floor_is_allowed_everywhere(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x", "arm64", SDOT, [("dot", FUNC, GLOBAL, 0, 4)])
    assert not isaproof.examine(path, arch="arm64", floor=("dotprod",)).violations
    assert isaproof.examine(path, arch="arm64", floor=("neon",)).violations


def test_a_function_under_two_names_may_use_what_both_may(tmp_path: Path) -> None:
    both = [(name, FUNC, GLOBAL, 0, 8) for name in ("nb_x__dotprod", "nb_alias")]
    for names in (both, both[::-1]):
        assert [v.function for v in arm(tmp_path, SDOT + RET, *names).violations] == ["nb_alias"]


def test_a_helper_left_outside_its_kernel_has_the_level_of_its_file(tmp_path: Path) -> None:
    for file, name, binding, count in (
        ("gemv__dotprod.c", "helper", LOCAL, 0),
        ("gemv__dotprod.c", "nb_helper", LOCAL, 1),  # nb_ is what other files can call
        ("gemv__dotprod.c", "helper", GLOBAL, 1),
        ("gemv__neon.c", "helper", LOCAL, 1),
        ("graph.c", "helper", LOCAL, 1),
    ):
        proof = arm(tmp_path, SDOT, (file, FILE, LOCAL, 0, 0), (name, FUNC, binding, 0, 4))
        assert len(proof.violations) == count, (file, name, binding)


def test_code_between_functions_and_under_plain_labels_counts(tmp_path: Path) -> None:
    proof = arm(tmp_path, RET + SDOT + RET, ("f__dotprod", FUNC, GLOBAL, 0, 4), ("g", FUNC, GLOBAL, 8, 4))
    assert [(v.function, v.address) for v in proof.violations] == [(isaproof.NO_SYMBOL, 0x1004)]
    proof = arm(tmp_path, RET + SDOT + RET, ("f__dotprod", FUNC, GLOBAL, 0, 4), ("label", NOTYPE, LOCAL, 4, 0))
    assert [(v.function, v.address) for v in proof.violations] == [("label", 0x1004)]
    proof = arm(tmp_path, RET + SDOT + RET, ("f__dotprod", FUNC, GLOBAL, 0, 12), ("$x", NOTYPE, LOCAL, 4, 0))
    assert not proof.violations
    proof = arm(tmp_path, RET + SDOT + RET, ("f__dotprod", FUNC, GLOBAL, 0, 12), ("inner", NOTYPE, LOCAL, 4, 0))
    assert not proof.violations


def test_padding_is_nothing_and_other_bytes_are_a_violation(tmp_path: Path) -> None:
    assert not arm(tmp_path, RET + bytes(8) + RET, ("f", FUNC, GLOBAL, 0, 4), ("g", FUNC, GLOBAL, 12, 4)).violations
    proof = arm(tmp_path, RET + b"\xff\xff\xff\xff", ("f", FUNC, GLOBAL, 0, 8))
    assert [(v.text, v.needs) for v in proof.violations] == [("the word 0xffffffff", UNKNOWN)]
    with pytest.raises(ToolError, match="no instruction we know"):
        isaproof.require(proof, tmp_path)
    odd = arm(tmp_path, RET + b"\x1f\x20", ("f", FUNC, GLOBAL, 0, 4), ("g", FUNC, GLOBAL, 4, 2))
    assert [v.function for v in odd.violations] == ["g"]


def test_a_truncated_instruction_is_a_violation(tmp_path: Path) -> None:
    for arch, code in (("riscv64", "3385c502 3385"), ("x86_64", "90 c5f5fe")):
        data = bytes.fromhex(code)
        path = make_elf(tmp_path / "x", arch, data, [("f", FUNC, GLOBAL, 0, len(data))])
        assert [v.needs for v in isaproof.examine(path, arch=arch).violations][-1] == UNKNOWN


def test_x86_pieces_start_at_symbols(tmp_path: Path) -> None:
    """A stray byte before a function does not put the rest out of step."""
    code = bytes.fromhex("c3 c5 f5 90 c5f5fec2 c3")  # ret, a torn prefix, nop, vpaddd ymm, ret
    symbols = [("f", FUNC, GLOBAL, 0, 1), ("g", FUNC, GLOBAL, 4, 5)]
    proof = isaproof.examine(make_elf(tmp_path / "x", "x86_64", code, symbols), arch="x86_64")
    assert ("g", ("avx2",)) in [(v.function, v.needs) for v in proof.violations]
    assert next(v.text for v in proof.violations if v.function == "g") == "vpaddd ymm0,ymm1,ymm2"


def test_exceptions_hold_for_their_function_and_feature_only(tmp_path: Path) -> None:
    xgetbv = bytes.fromhex("0f01d0")
    for name, count in (("nb_cpu_isa", 0), ("nb_hal_init", 1)):
        path = make_elf(tmp_path / "x", "x86_64", xgetbv, [(name, FUNC, GLOBAL, 0, 3)])
        assert len(isaproof.examine(path, arch="x86_64").violations) == count
    path = make_elf(tmp_path / "x", "x86_64", bytes.fromhex("c5f5fec2"), [("nb_cpu_isa", FUNC, GLOBAL, 0, 4)])
    assert isaproof.examine(path, arch="x86_64").violations


def test_exceptions_are_never_for_our_kernels() -> None:
    path = Path(isaproof.__file__).parent / "data" / "isa_exceptions.yaml"
    for row in isaproof._exceptions(path):
        assert row.arch in MACHINE
        assert row.reason
        assert not any(
            fnmatch.fnmatchcase(f"nb_gemv_f32__{level}", p) for p in row.functions for level in ("avx2", "rvv")
        )


def test_the_floor_is_a_level_of_the_architecture(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x", "arm64", RET, [("f", FUNC, GLOBAL, 0, 4)])
    for floor in (("avx2",), ("nonsense",)):
        with pytest.raises(ValueError, match=floor[0]):
            isaproof.examine(path, arch="arm64", floor=floor)


def test_the_summary_counts(tmp_path: Path) -> None:
    symbols = [("f__dotprod", FUNC, GLOBAL, 0, 8), ("g", FUNC, GLOBAL, 8, 4)]
    assert isaproof.summary(arm(tmp_path, SDOT + RET + ADD, *symbols)) == {
        "floor": ["scalar"],
        "functions": {"base": 1, "dotprod": 1},
        "instructions": 3,
        "features": {"asimddp": 1, "base": 2},
        "violations": 0,
    }


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    good = make_elf(tmp_path / "good", "arm64", RET, [("f", FUNC, GLOBAL, 0, 4)])
    data = good.read_bytes()
    cases = {
        "not an ELF file": b"MZ" + data[2:],
        "code for arm64 found": data,
        "requires a buffer": data[:20],
        "beyond the end": data[:-10],
        "out of its section": make_elf(tmp_path / "x", "arm64", RET, [("f", FUNC, GLOBAL, 0, 8)]).read_bytes(),
        "stripped": make_elf(tmp_path / "x", "arm64", RET, [], stripped=True).read_bytes(),
    }
    for text, content in cases.items():
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ToolError, match=text) as error:
            isaproof.examine(tmp_path / "bad", arch="riscv64")
        assert error.value.code == "E_ISA"


def test_pieces_cover_a_section() -> None:
    def symbol(name: str, start: int, end: int) -> elf.Symbol:
        return elf.Symbol(name=name, file="", start=start, end=end, is_function=True)

    code = elf.Code(name=".text", address=0, data=bytes(32), symbols=(symbol("a", 4, 20), symbol("b", 8, 12)))
    made = [(p.start, p.end, [owner.name for owner in p.owners]) for p in elf.pieces(code)]
    assert made == [(0, 4, []), (4, 8, ["a"]), (8, 12, ["a", "b"]), (12, 20, ["a"]), (20, 32, [])]


def test_without_iced_only_x86_cannot_be_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nanobuild.isaclasses import x86_64

    monkeypatch.setitem(__import__("sys").modules, "iced_x86", None)
    x86_64._iced.cache_clear()
    try:
        with pytest.raises(ToolError, match="reads x86-64 code") as error:
            isaproof.examine(make_elf(tmp_path / "x", "x86_64", b"\xc3", [("f", FUNC, GLOBAL, 0, 1)]), arch="x86_64")
        assert error.value.code == "E_TOOL_MISSING"
        assert not arm(tmp_path, RET, ("f", FUNC, GLOBAL, 0, 4)).violations
    finally:
        x86_64._iced.cache_clear()
