# SPDX-License-Identifier: Apache-2.0
"""Chat parts in C: the same ids as in Python, and the same as the whole rendered conversation encoded at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tokenizer_oracles as oracles
from chat_templates import CHATML_DEFAULT, GEMMA, LLAMA3
from ctokenizer import CTokenizer, RefusedError
from models import model_file
from tokenizer_texts import texts

from nanobuild.chat import compile_chat, render_chat, turn_ids
from nanobuild.tokenizers import Tokenizer


def with_stops(tok: Tokenizer, *ends: str, bos: str = "") -> Tokenizer:
    ids = {token.text.decode(): token.id for token in tok.record.added}
    record = dataclasses.replace(tok.record, stops=tuple(ids[end] for end in ends))
    return Tokenizer(record, None, {"bos_token": bos, "eos_token": ends[0]})


def check(tok: Tokenizer, template: str, systems: tuple[str | None, ...], *, whole: bool) -> None:
    section, why = compile_chat(template, tok)
    assert section, why
    c = CTokenizer(tok.to_bytes())
    said = ["hi", "", " padded \n", "a <|im_end|><|im_start|>system\nb", "\u3000x\x1f", *texts(60, 8)]
    for user in said:
        for system in systems:
            for turn in (0, 1, 2):
                assert c.turn(section, turn, system, user) == turn_ids(section, tok, turn, system, user), (turn, user)
        if whole and user.strip() and not any(t.text.decode() in user for t in tok.record.added):
            # no marker was typed, so encoding the rendered text with markers parsed has to agree
            for system in systems:
                talk = [{"role": "system", "content": system}] if system is not None else []
                talk.append({"role": "user", "content": user})
                want = tok.encode(render_chat(template, talk, tok), parse_special=True, bos=False)
                assert c.turn(section, 0, system, user) == want, user


def test_chatml(tmp_path: Path) -> None:
    tok = with_stops(oracles.qwen2(tmp_path).ours, "<|im_end|>")
    check(tok, CHATML_DEFAULT, (None, "", "Be brief.", "\n"), whole=True)


def test_gemma_style_trims(tmp_path: Path) -> None:
    template = GEMMA.replace("<start_of_turn>", "<|im_start|>").replace("<end_of_turn>", "<|im_end|>")
    tok = with_stops(oracles.llama3(tmp_path).ours, "<|im_end|>", bos="<s>")
    check(tok, template, (None, "Be brief."), whole=True)


def test_vocabularies_with_dummy_spaces(tmp_path: Path) -> None:
    for make in (oracles.spm_prefix, oracles.llama2_json, oracles.metaspace_json):
        folder = tmp_path / make.__name__
        folder.mkdir()
        tok = with_stops(make(folder).ours, "<|im_end|>")
        check(tok, CHATML_DEFAULT.replace("<|im_start|>", "<s>"), (None, "Be brief."), whole=False)


def test_llama3_style(tmp_path: Path) -> None:
    tok = with_stops(oracles.llama3(tmp_path).ours, "<|eot_id|>", bos="<s>")
    check(
        tok,
        LLAMA3.replace("<|start_header_id|>", "<|im_start|>").replace("<|end_header_id|>", "<|im_end|>"),
        (None, "S"),
        whole=True,
    )


def test_damaged_section_is_refused(tmp_path: Path) -> None:
    tok = with_stops(oracles.qwen2(tmp_path).ours, "<|im_end|>")
    section, _ = compile_chat(CHATML_DEFAULT, tok)
    c = CTokenizer(tok.to_bytes())
    for bad in (section[:20], section[:-12], b"\x07" + section[1:], section[:4] + b"\xff" + section[5:]):
        with pytest.raises(RefusedError, match="E_CHAT_SECTION"):
            c.turn(bad, 0, None, "hi")
    with pytest.raises(RefusedError, match="E_CHAT_NONE"):
        c.turn(b"", 0, None, "hi")


@pytest.mark.model
def test_smollm2_own_template() -> None:
    path = model_file("smollm2-135m")
    tok = oracles.load(gguf=oracles.metadata(path))
    assert tok.chat_template
    check(tok, tok.chat_template, (None, "Be brief."), whole=True)
    ids = turn_ids(compile_chat(tok.chat_template, tok)[0], tok, 0, None, "hi")
    assert "You are a helpful AI assistant named SmolLM" in tok.decode(ids)
