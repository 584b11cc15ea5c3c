# SPDX-License-Identifier: Apache-2.0
"""Seeded texts that tokenizers get wrong: every plane, marks, emoji, scripts, code, blanks, digits, markers."""

from __future__ import annotations

import random
from collections.abc import Iterator


def _words(text: str) -> list[str]:
    return text.split()


WORDS = _words(
    "the of and to in is it you that he was for on are with as I his they be at one have this from "
    "or had by word but what "
    "some we can out other were all there when up use your how said an each she which do their time "
    "if will way about many "
    "then them write would like so these her long make thing see him two has look more day could go "
    "come did number sound "
    "no most people my over know water than call first who may down side been now find Hello WORLD "
    "iPhone naïve café Straße "
    "don't I'm we've they'll it's he'd you're DON'T I'M WE'VE THEY'LL IT'S '\u017f 'S 's 're 'RE "
    "rock'n'roll l'été"
)
MARKERS = _words(
    "<|endoftext|> <|im_start|> <|im_end|> <bos> <eos> <start_of_turn> <end_of_turn> <|eot_id|> "
    "<|begin_of_text|> </s> <s> "
    "<unk> <0x0A> <unused5> <table> </code> <|im_start|>user <tool_call> [INST] <pad> <mask> <|im_ "
    "<|| im_end|> \u2581\u2581"
)
EMOJI = _words(
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd "
    "\U0001f1ec\U0001f1e7 "
    "\u2764\ufe0f \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f "
    "1\ufe0f\u20e3 \U0001fae8 \u263a"
)
FOREIGN = _words(
    "日本語のテキスト 中文字符测试 한국어 각 русский язык עברית العربية हिन्दी ไทย ελληνικά Tiếng Việt ქართული አማርኛ "
    "தமிழ் "
    "𝒳𝓎𝓏 𠀀𠀁 ＦＵＬＬ ﬁﬂ ½¼Ⅷ ①② ٣٤٥ १२३ 〇一二 ㈠ Å Å Å ṩ ṩ ṩ e\u0301 \u0958 \u1100\u1161\u11a8 \u0f73 \u0344 \u2126"
)
CODE = (
    "for (int i = 0; i < n; ++i) {\n\tx[i] += y[i] * 2.5e-3;\n}\n",
    "def f(a, *b, **c):\n    return {'k': a[::-1], \"z\": None}  # ok\n",
    "SELECT * FROM t WHERE id IN (1,22,333,4444,55555);\r\n",
    '<div class="a b">&nbsp;</div>\n\n\n\t\t<p>\u00a0</p>',
    "https://example.org/a%20b?q=1&r=%F0%9F%98%80#x_y-z",
    "x = 3.14159265358979; y=1_000_000; z=0xDEADBEEF; w=1e-10",
)
BLANKS = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\x85",
    "\x0b",
    "        ",
)
MARKS = (
    "\u0301\u0323\u0327\u0308\u0345\u05b0\u05bc\u064b\u0651\u093c\u094d\u0e38\u0e48\u3099\u0334\u20d0\u1dc0\U0001d165"
)


def codepoint(rng: random.Random) -> str:
    """Any code point that may stand in a text; low planes more often."""
    while True:
        c = rng.randrange((0x80, 0x300, 0x3000, 0x10000, 0x20000, 0x110000)[rng.randrange(6)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def piece(rng: random.Random) -> str:
    """A fragment of one of many kinds."""
    kind = rng.randrange(13)
    if kind < 3:
        return rng.choice(("", " ", " ")) + rng.choice(WORDS)
    if kind == 3:
        return rng.choice(MARKERS)
    if kind == 4:
        return rng.choice(EMOJI)
    if kind == 5:
        return rng.choice(FOREIGN)
    if kind == 6:
        return rng.choice(CODE)[: rng.randrange(1, 60)]
    if kind == 7:
        return "".join(rng.choice(BLANKS) for _ in range(rng.randrange(1, 5)))
    if kind == 8:
        return str(rng.randrange(10 ** rng.randrange(1, 12)))
    if kind == 9:
        return "".join(codepoint(rng) for _ in range(rng.randrange(1, 8)))
    if kind == 10:
        return rng.choice("aeioucndAE\u00e9\uac00\u1100\u1161\u0928") + "".join(
            rng.choice(MARKS) for _ in range(rng.randrange(1, 5))
        )
    if kind == 11:
        return "".join(rng.choice("!?.,;:'\"()-_/\\|@#$%^&*+=~`<>[]{}") for _ in range(rng.randrange(1, 6)))
    return rng.choice("ab \n0.\u00e9") * rng.randrange(1, 40)


def texts(count: int, seed: int) -> Iterator[str]:
    """`count` texts of up to some 200 characters, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(piece(rng) for _ in range(rng.randrange(1, 7)))


def training_lines(seed: int) -> list[str]:
    """Lines to train a small vocabulary on; special markers left out."""
    rng = random.Random(seed)
    lines = []
    for _ in range(4000):
        words = [rng.choice(rng.choice((WORDS, WORDS, FOREIGN, EMOJI, CODE))) for _ in range(rng.randrange(3, 12))]
        lines.append(rng.choice((" ", " ", "  ", "\n")).join(words) + str(rng.randrange(10**6)))
    return lines
