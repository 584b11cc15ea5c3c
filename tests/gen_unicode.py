# SPDX-License-Identifier: Apache-2.0
"""Writes the Unicode tables of the tokenizer: kernels/runtime/unicode_tables.h and nanobuild/tokenizers/unidata.py.

The tables are asked out of the `tokenizers` library itself, code point by code point, because agreeing with it is what
they are for: its regular expressions, its Digits splitter and its normalizers follow three different Unicode versions.
Run with --check to compare instead of writing.
"""

from __future__ import annotations

import base64
import itertools
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.normalizers import NFC, NFD, Normalizer
from tokenizers.pre_tokenizers import Digits, PreTokenizer, Split

ROOT = Path(__file__).resolve().parent.parent
CODEPOINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LETTER, NUMBER, MARK, SPACE, DIGIT, WORD = 1, 2, 4, 8, 16, 32


def chunks(size: int = 4096) -> Iterator[list[int]]:
    for i in range(0, len(CODEPOINTS), size):
        yield CODEPOINTS[i : i + size]


def matched(pattern: str) -> set[int]:
    """Code points that the library's regular expressions match."""
    splitter: PreTokenizer = Split(Regex(pattern), "removed")
    rest: set[int] = set()
    for chunk in chunks():
        for _, (start, stop) in splitter.pre_tokenize_str("".join(map(chr, chunk))):
            rest.update(chunk[start:stop])
    return set(CODEPOINTS) - rest


def digits() -> set[int]:
    """Code points that Digits(individual_digits) takes for a digit: those it cuts out between two letters."""
    found: set[int] = set()
    for chunk in chunks():
        for _, (start, stop) in Digits(individual_digits=True).pre_tokenize_str("".join(f"a{chr(c)}" for c in chunk)):
            if stop - start == 1 and start % 2 == 1:
                found.add(chunk[start // 2])
    return found


def word() -> set[int]:
    """Code points that count as a part of a word beside an added token with single_word."""
    tok = Tokenizer(models.BPE(vocab={"\x01": 0}, merges=[]))
    tok.add_tokens([AddedToken("\x01\x01", single_word=True, normalized=False)])
    mark = tok.token_to_id("\x01\x01")
    found: set[int] = set()
    for chunk in chunks():
        text = "".join(f"\x02{chr(c)}\x01\x01" for c in chunk)
        alone = {
            start // 4 for (start, _), i in ((o, i) for o, i in zip(*_encoded(tok, text), strict=True)) if i == mark
        }
        found.update(c for k, c in enumerate(chunk) if k not in alone)
    return found


def _encoded(tok: Tokenizer, text: str) -> tuple[list[tuple[int, int]], list[int]]:
    encoding = tok.encode(text)
    return encoding.offsets, encoding.ids


def normalized(normalizer: Normalizer) -> dict[int, str]:
    return {c: normalizer.normalize_str(chr(c)) for c in CODEPOINTS}


def combining_classes(nfd: dict[int, str], candidates: set[int]) -> dict[int, int]:
    """Canonical combining class of each code point, found by asking NFD which of two marks it puts first."""
    # one well-known mark per class; a code point's class equals k if it swaps with neither side of mark k
    marks = {1: 0x334, 6: 0x16FF0, 7: 0x93C, 8: 0x3099, 9: 0x94D, 10: 0x5B0, 11: 0x5B1, 12: 0x5B2, 13: 0x5B3, 14: 0x5B4}
    marks |= {
        15: 0x5B5,
        16: 0x5B6,
        17: 0x5B7,
        18: 0x5B8,
        19: 0x5B9,
        20: 0x5BB,
        21: 0x5BC,
        22: 0x5BD,
        23: 0x5BF,
        24: 0x5C1,
    }
    marks |= {
        25: 0x5C2,
        26: 0xFB1E,
        27: 0x64B,
        28: 0x64C,
        29: 0x64D,
        30: 0x64E,
        31: 0x64F,
        32: 0x650,
        33: 0x651,
        34: 0x652,
    }
    marks |= {35: 0x670, 36: 0x711, 84: 0xC55, 91: 0xC56, 103: 0xE38, 107: 0xE48, 118: 0xEB8, 122: 0xEC8, 129: 0xF71}
    marks |= {
        130: 0xF72,
        132: 0xF74,
        202: 0x321,
        214: 0x1DCE,
        216: 0x31B,
        218: 0x302A,
        220: 0x316,
        222: 0x59A,
        224: 0x302E,
    }
    marks |= {226: 0x1D16D, 228: 0x5AE, 230: 0x300, 232: 0x315, 233: 0x35C, 234: 0x35D, 240: 0x345}
    order = NFD()

    def swaps(first: int, second: int) -> bool:
        return order.normalize_str("a" + chr(first) + chr(second)) != "a" + chr(first) + chr(second)

    # the library's version may be older than a mark: then it has no class there and the number does not occur
    marks = {n: m for n, m in marks.items() if n in (1, 240) or (swaps(m, 0x334) and swaps(0x345, m))}
    found: dict[int, int] = {}
    for c in sorted(candidates):
        if nfd[c] != chr(c) or not (swaps(c, 0x334) or swaps(0x345, c)):
            continue
        for number, mark in marks.items():
            if not swaps(c, mark) and not swaps(mark, c):
                found[c] = number
                break
        else:
            raise SystemExit(f"no known class for U+{c:04X}")
    return found


def ranges(value: dict[int, int]) -> list[int]:
    """Packed run starts: code point << 8 | value, each holding until the next."""
    out, last = [0], 0
    for c in range(0x110000):
        now = value.get(c, 0)
        if now != last:
            out.append(c << 8 | now)
            last = now
    return out


def build() -> dict[str, list[int]]:
    classes: dict[int, int] = {}
    marks = matched(r"\p{M}")
    members = [
        (matched(r"\p{L}"), LETTER),
        (matched(r"\p{N}"), NUMBER),
        (marks, MARK),
        (matched(r"\s"), SPACE),
    ]
    for group, bit in [*members, (digits(), DIGIT), (word(), WORD)]:
        for c in group:
            classes[c] = classes.get(c, 0) | bit
    nfd, nfc = normalized(NFD()), normalized(NFC())
    hangul = range(0xAC00, 0xAC00 + 11172)
    split = {c: nfd[c] for c in CODEPOINTS if nfd[c] != chr(c) and c not in hangul}
    pairs: list[tuple[int, int, int]] = []
    for c, parts in split.items():
        if nfc[c] == chr(c) and len(parts) > 1:
            head = NFC().normalize_str(parts[:-1])
            assert len(head) == 1
            pairs.append((ord(head), ord(parts[-1]), c))
    pairs.sort()
    return {
        "classes": ranges(classes),
        "combining": ranges(combining_classes(nfd, marks)),
        "decomposed": [*split],
        "parts": [ord(p) for parts in split.values() for p in parts],
        "starts": [*itertools.accumulate((len(parts) for parts in split.values()), initial=0)],
        "compose": [x for pair in pairs for x in pair],
    }


NOTE = f"Generated by tests/gen_unicode.py from tokenizers {tokenizers.__version__}; do not edit."


def header(tables: dict[str, list[int]]) -> str:
    lines = ["/* SPDX-License-Identifier: Apache-2.0", f" * {NOTE}", " * Formats: kernels/runtime/unicode.c. */"]
    lines += ["#ifndef NB_UNICODE_TABLES_H", "#define NB_UNICODE_TABLES_H", "", "#include <stdint.h>", ""]
    for name, values in tables.items():
        lines.append(f"enum {{ NB_U_{name.upper()} = {len(values)} }};")
        lines.append(f"static const uint32_t nb_u_{name}[NB_U_{name.upper()}] = {{")
        row = ""
        for v in values:
            item = f"{v:#x},"
            if len(row) + len(item) > 126:
                lines.append("    " + row)
                row = ""
            row += item
        lines += ["    " + row, "};", ""]
    return "\n".join([*lines, "#endif", ""])


def module(tables: dict[str, list[int]]) -> str:
    flat = [x for values in tables.values() for x in (len(values), *values)]
    # differences first: neighbouring entries are close, so they compress to a third
    deltas = [flat[0], *((b - a) & 0xFFFFFFFF for a, b in itertools.pairwise(flat))]
    text = base64.b85encode(zlib.compress(struct.pack(f"<{len(deltas)}I", *deltas), 9)).decode()
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        f'"""{NOTE}',
        "",
        "The same tables as kernels/runtime/unicode_tables.h,",
    ]
    lines += [
        "as differences, deflated, base 85.",
        '"""',
        "",
        f"NAMES = {tuple(tables)!r}".replace("'", '"'),
        "DATA = (",
    ]
    lines += [f'    "{text[i : i + 110]}"' for i in range(0, len(text), 110)]
    return "\n".join([*lines, ")", ""])


def main() -> int:
    tables = build()
    wanted = {
        ROOT / "kernels" / "runtime" / "unicode_tables.h": header(tables),
        ROOT / "nanobuild" / "tokenizers" / "unidata.py": module(tables),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        return len(stale)
    for path in stale:
        path.write_text(wanted[path])
    print({name: len(values) for name, values in tables.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
