# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: what json.loads lets through and we do not, and what has to stay allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanobuild.errors import InputError
from nanobuild.jsonstrict import JsonError, load_object, parse


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "syntax"),
        (b'{"a": 1', "syntax"),
        (b'{"a": 1} x', "syntax"),
        (b'{"a": 1,}', "syntax"),
        (b'\xef\xbb\xbf{"a": 1}', "syntax"),
        (b'{"a": "\xff"}', "utf8"),
        (b'{"a": "\\ud800"}', "utf8"),
        (b'{"a": NaN}', "number"),
        (b'{"a": -Infinity}', "number"),
        (b'{"a": 1e999}', "number"),
        (b'{"a": ' + b"9" * 41 + b"}", "number"),
        (b'{"a": 1, "b": 2, "a": 1}', "duplicate"),
        (b'[{"b": {"a": 1, "a": 1}}]', "duplicate"),
        (b"[" * 65 + b"]" * 65, "depth"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "depth"),
        (b"[" * 200_000, "depth"),
    ],
)
def test_refused(data: bytes, kind: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse(data)
    assert caught.value.kind == kind


def test_allowed() -> None:
    assert parse(b"[" * 64 + b"]" * 64)
    assert parse(b"9" * 40) == int("9" * 40)
    assert parse(b'  {"\\ud83d\\ude00": [1, -2.5e3, null, true, "\xc3\xa9"]}\n') == {
        "\U0001f600": [1, -2500.0, None, True, "\u00e9"]
    }


def test_an_object_from_a_file(tmp_path: Path) -> None:
    def code(path: Path, limit: int = 100) -> str:
        with pytest.raises(InputError) as caught:
            load_object(path, limit, missing="E_MISSING", bad="E_BAD")
        return caught.value.code

    file, fifo = tmp_path / "a.json", tmp_path / "fifo"
    assert code(file) == "E_MISSING"
    file.write_text("[1]")
    assert code(file) == "E_BAD"
    file.write_text('{"a": 1}')
    assert code(file, limit=7) == "E_BAD"
    assert load_object(file, 8, missing="E_MISSING", bad="E_BAD") == {"a": 1}
    os.mkfifo(fifo)
    assert code(fifo) == "E_CKPT_READ"
    assert code(tmp_path) == "E_CKPT_READ"
