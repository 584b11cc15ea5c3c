# SPDX-License-Identifier: Apache-2.0
"""Both tokenizers, Python and C, against the libraries that define the answer: no mismatch over ten thousand texts."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
from pathlib import Path

import pytest
import tokenizer_oracles as oracles
from ctokenizer import CTokenizer, RefusedError, sanitized
from models import model_file
from tokenizer_texts import texts
from tokenizers import AddedToken

from nanobuild.chat import compile_chat
from nanobuild.tokenizers.record import Added

COUNT = 10_000


def compare(case: oracles.Case, *, count: int, seed: int, markers: bool) -> None:
    """Encodes and decodes in all three; stops at the first difference."""
    c = CTokenizer(case.ours.to_bytes())
    flagged = (False, True) if markers else (False,)
    for number, text in enumerate(texts(count, seed)):
        special = flagged[number % len(flagged)]
        want = case.encode(text, special)
        if special and text.startswith("<s>") and want[:2] == [case.ours.bos_id] * 2:
            want = want[1:]  # the library doubles a BOS that the text brings along, we never do
        ours = case.ours.encode(text, parse_special=special)
        assert ours == want, f"Python, text {number}: {text!r}"
        assert c.encode(text, bos=True, parse_special=special) == want, f"C, text {number}: {text!r}"
        if number % 4:
            continue
        chunks = c.chunks(want)
        assert b"".join(chunks) == case.ours.decode_bytes(want), f"C decoding, text {number}: {text!r}"
        if "\ufffd" not in case.ours.decode(want):
            [chunk.decode() for chunk in chunks]  # what comes out is whole characters at every moment
        assert case.ours.decode(want) == "".join(case.ours.stream(want)), f"stream, text {number}: {text!r}"
        if "\ufffd" not in case.ours.decode(want):
            assert case.ours.decode(want) == case.decode(want), f"decoding, text {number}: {text!r}"


@pytest.mark.parametrize("make", oracles.SYNTHETIC, ids=lambda make: make.__name__)
def test_trained_tokenizers(make, tmp_path: Path) -> None:
    case = make(tmp_path)
    count = COUNT if make is oracles.qwen2 else 1500
    compare(case, count=count, seed=11, markers=(tmp_path / "tokenizer.json").exists())


@pytest.mark.model
def test_smollm2() -> None:
    path = model_file("smollm2-135m")
    compare(oracles.smollm2(path), count=COUNT, seed=12, markers=True)


@pytest.mark.model
def test_gemma3() -> None:
    path = model_file("gemma3-270m")
    case = oracles.gemma3(path)
    assert case.ours.encode("x")[0] == case.ours.bos_id == 2
    no_bos = CTokenizer(case.ours.to_bytes())
    for number, text in enumerate(texts(COUNT, 13)):
        want = case.encode(text, False)
        assert case.ours.encode(text, bos=False) == want, f"Python, text {number}: {text!r}"
        assert no_bos.encode(text) == want, f"C, text {number}: {text!r}"
        if number % 4 == 0:
            assert case.ours.decode(want) == case.decode(want) == b"".join(no_bos.chunks(want)).decode()


@pytest.mark.model
def test_checkpoint_folders() -> None:
    root = os.environ.get("NB_SHARED_MODELS")
    folders = sorted(Path(root).glob("*/tokenizer.json")) if root else []
    if not folders:
        pytest.skip("NB_SHARED_MODELS names no folder of checkpoints")
    for path in folders:
        compare(oracles.folder_case(path.parent), count=1000, seed=14, markers=True)


def borders() -> list[str]:
    """The code points on both sides of every change of class or combining class, those that decompose, and a sample of
    the rest, in runs of 32, each between a letter and a blank."""
    from nanobuild.tokenizers.unicode import _tables

    tables = _tables()
    edges = {entry >> 8 for name in ("classes", "combining") for entry in tables[name]}
    codes = edges | {c - 1 for c in edges if c} | set(tables["decomposed"]) | set(range(0, 0x110000, 101))
    chars = [chr(c) for c in sorted(codes) if not 0xD800 <= c < 0xE000]
    return ["".join(f"a{c} {c}{c}1" for c in chars[i : i + 32]) for i in range(0, len(chars), 32)]


@pytest.mark.parametrize("make", [oracles.qwen35, oracles.digits], ids=lambda make: make.__name__)
def test_borders_of_classes(make, tmp_path: Path) -> None:
    case = make(tmp_path)
    c = CTokenizer(case.ours.to_bytes())
    for text in borders():
        want = case.encode(text, False)
        assert c.encode(text) == want, text
        assert case.ours.encode(text) == want, text


MORE = (oracles.qwen2, oracles.gpt2, oracles.spm_prefix, oracles.gemma_json)
BYTES = (
    b"\xff",
    b"\xe2\x82",
    b"a\xf0\x9f\x98 b",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\x80\x80 x",
    b"\xf4\x90\x80\x80",
    b"\x00",
    b"",
)


@pytest.mark.parametrize("make", MORE, ids=lambda make: make.__name__)
def test_any_bytes(make, tmp_path: Path) -> None:
    tok = make(tmp_path).ours
    c = CTokenizer(tok.to_bytes())
    rng = random.Random(5)
    alphabet = b"a \xe2\x96\x81\xcc\x81\xff\xc3\xa9\xf0\x9f\n1"
    noise = [bytes(rng.choices(alphabet, k=rng.randrange(40))) for _ in range(500)]
    marks = ("q" + "\u0301\u0323\u0345\u05b0" * 150).encode()
    for data in (*BYTES, marks, *noise):
        ids = tok.encode(data)
        assert c.encode(data, bos=True) == ids, data
        assert b"".join(c.piece(i) for i in ids) == b"".join(tok.piece(i) for i in ids)
        if make is oracles.gemma_json:
            assert tok.decode_bytes(ids) == data.replace("\u2581".encode(), b" ")
        if make is oracles.qwen2 and data in BYTES:
            assert tok.decode_bytes(ids) == data
        assert c.encode(data, follows=True) == tok.encode(data, follows=True)


def test_hypothesis_texts(tmp_path: Path) -> None:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    case = oracles.qwen2(tmp_path)
    c = CTokenizer(case.ours.to_bytes())

    @settings(max_examples=250, deadline=None, database=None)
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.booleans())
    def check(text: str, special: bool) -> None:
        want = case.encode(text, special)
        assert case.ours.encode(text, parse_special=special) == want
        assert c.encode(text, parse_special=special) == want

    check()


def test_long_runs_stay_linear(tmp_path: Path) -> None:
    import time

    tok = oracles.spm_prefix(tmp_path).ours
    c = CTokenizer(tok.to_bytes())
    for unit in ("a", " ", "\n", "the ", "\u0301", "<", "日", "an"):
        text = unit * ((1 << 19) // len(unit.encode()))
        before = time.process_time()
        c.encode(text)
        assert time.process_time() - before < 5, unit
        assert c.encode(text[:3000]) == tok.encode(text[:3000], bos=False)


def test_bos_is_never_doubled(tmp_path: Path) -> None:
    tok = oracles.llama3(tmp_path).ours
    c = CTokenizer(tok.to_bytes())
    for text, special in (("<s>hi", True), ("<s><s>hi", True), ("<s>hi", False), ("", True)):
        ids = tok.encode(text, parse_special=special)
        assert ids[0] == tok.bos_id
        assert ids[1:2] != [tok.bos_id] or text.startswith("<s><s>")
        assert c.encode(text, bos=True, parse_special=special) == ids


def test_markers_in_text_stay_text(tmp_path: Path) -> None:
    tok = oracles.qwen2(tmp_path).ours
    c = CTokenizer(tok.to_bytes())
    markers = [t.id for t in tok.record.added if t.text.startswith(b"<|")]
    text = "a<|im_end|>\n<|im_start|>system"
    assert not set(c.encode(text)) & set(markers)
    assert len(set(c.encode(text, parse_special=True)) & set(markers)) == 2
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text, parse_special=True)) == "a\nsystem"
    assert tok.decode(tok.encode(text, parse_special=True), show_special=True) == text
    assert c.piece(markers[0]) == b""
    assert c.piece(markers[0], show_special=True) == b"<|endoftext|>"
    assert c.piece(-1) == c.piece(10**6) == b""


def test_section_survives(tmp_path: Path) -> None:
    for make in (oracles.qwen2, oracles.spm_prefix, oracles.gemma_json):
        folder = tmp_path / make.__name__
        folder.mkdir()
        tok = make(folder).ours
        again = type(tok).from_bytes(tok.to_bytes())
        assert again.record == tok.record
        assert again.to_bytes() == tok.to_bytes()


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

FUZZ = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/chat.h"
/* argv: TOKN, texts, rounds, CHAT. Damages both sections in many ways and encodes, decodes and chats with them. */
static unsigned long long seed = 88172645463325252ull;
static unsigned next(unsigned n) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return (unsigned)(seed >> 11) % n;
}
static unsigned char *load(const char *name, size_t *size) {
    FILE *f = fopen(name, "rb");
    fseek(f, 0, SEEK_END); *size = (size_t)ftell(f); rewind(f);
    unsigned char *p = malloc(*size); if (fread(p, 1, *size, f) != *size) exit(9); fclose(f); return p;
}
int main(int argc, char **argv) {
    size_t size, words; unsigned char *good = load(argv[1], &size), *text = load(argv[2], &words);
    int rounds = atoi(argv[3]), opened = 0; (void)argc;
    size_t talk_size; unsigned char *talk = load(argv[4], &talk_size);
    for (int r = 0; r < rounds; r++) {
        size_t n = next(8) == 0 ? next((unsigned)size + 1) : size;
        unsigned char *bad = malloc(n ? n : 1); memcpy(bad, good, n);
        for (unsigned k = next(12); k > 0 && n; k--) {
            size_t at = next(3) == 0 ? next(n < 160 ? (unsigned)n : 160) : next((unsigned)n);
            if (next(2)) bad[at] = (unsigned char)next(256); else bad[at] ^= (unsigned char)(1u << next(8));
        }
        struct nb_tokenizer t; struct nb_error e;
        if (nb_tokenizer_open(&t, bad, n, &e) == NB_OK) {
            opened++;
            for (unsigned flags = 0; flags < 12; flags += 3) {
                size_t at = next((unsigned)words - 200), length = next(200), count;
                int32_t *ids = malloc((nb_tokenizer_bound(&t, length) + 1) * sizeof *ids);
                void *scratch = malloc(nb_tokenizer_scratch(&t, length));
                if (nb_tokenizer_encode(&t, (char *)text + at, length, flags, ids, &count, scratch, &e) == NB_OK) {
                    char out[NB_TOK_PIECE_MAX];
                    for (size_t i = 0; i < count; i++) nb_tokenizer_piece(&t, ids[i], flags, i == 0, out);
                    nb_tokenizer_is_stop(&t, 1);
                }
                free(ids); free(scratch);
            }
            size_t m = next(6) ? talk_size : next((unsigned)talk_size + 1), count;
            unsigned char *worse = malloc(m ? m : 1); memcpy(worse, talk, m);
            for (unsigned k = next(4); k > 0 && m; k--) worse[next((unsigned)m)] = (unsigned char)next(256);
            struct nb_chat chat;
            if (nb_chat_open(&chat, worse, m, &e) == NB_OK) {
                size_t bound = nb_tokenizer_bound(&t, 4096 + 150) / (next(3) + 1);
                int32_t *ids = malloc((bound + 1) * sizeof *ids);
                void *scratch = malloc(nb_tokenizer_scratch(&t, 150));
                const char *words = (char *)text;
                nb_chat_turn(&chat, &t, next(2), next(2) ? words : 0, 50, words + 50, 100, ids, bound, &count,
                             scratch, &e);
                free(ids); free(scratch);
            }
            free(worse);
        }
        free(bad);
    }
    free(good); free(text); free(talk);
    printf("%d of %d opened\\n", opened, rounds);
    return 0;
}
"""


def test_damaged_sections_never_crash(tmp_path: Path) -> None:
    program = sanitized(tmp_path, FUZZ)
    words = tmp_path / "words"
    words.write_bytes("".join(texts(400, 3)).encode())
    for make in (oracles.qwen2, oracles.spm_prefix, oracles.gemma_json, oracles.metaspace_split_json):
        folder = tmp_path / make.__name__
        folder.mkdir()
        section = folder / "section"
        tok = make(folder).ours
        section.write_bytes(tok.to_bytes())
        first = next(token for token in tok.record.added if token.flags & Added.SPECIAL)
        ends, marker = dataclasses.replace(tok.record, stops=(first.id,)), first.text.decode()
        template = CHATML.replace("<|im_start|>", marker).replace("<|im_end|>", marker)
        talk, why = compile_chat(template, type(tok)(ends))
        assert talk, why
        (folder / "talk").write_bytes(talk)
        done = subprocess.run(
            [program, section, words, "3000", folder / "talk"], capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert int(done.stdout.split()[0]) > 300  # the damage must not all be caught at the door


def test_refusals_have_a_code(tmp_path: Path) -> None:
    good = oracles.spm_prefix(tmp_path).ours.to_bytes()
    for bad in (b"", good[:100], b"\x02" + good[1:], good[:4] + b"\x09" + good[5:], good[:-64]):
        with pytest.raises(RefusedError, match="E_TOK_SECTION"):
            CTokenizer(bad)


def test_added_token_next_to_words(tmp_path: Path) -> None:
    tok = oracles._train(oracles.pre_tokenizers.ByteLevel(add_prefix_space=False), 400)
    tok.add_tokens([AddedToken("zq", single_word=True, normalized=False), AddedToken("@@", lstrip=True, rstrip=True)])
    case = oracles.of_library(tok, tmp_path)
    c = CTokenizer(case.ours.to_bytes())
    words = ("zq", "a zq b", "azq", "zqa", "zq_", "zq.", "ézq", "zq\u0301", "\u2160zq", " @@@@ ", "@@ @@")
    for text in (*words, "a \t@@\u3000\n b@@"):
        assert case.ours.encode(text) == case.encode(text, False), text
        assert c.encode(text) == case.encode(text, False), text
