# SPDX-License-Identifier: Apache-2.0
"""Strict YAML: what is read, what is refused, and where the error points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from nanobuild import convert, schema
from nanobuild.errors import InputError


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=1, le=8)]
    kind: Literal["a", "b"] = "a"


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner | None = None
    items: list[Inner] = []
    table: dict[str, float] = {}
    group: int | Literal["auto"] = "auto"
    match: str | list[str] = "x"
    pair: tuple[str, ...] = ()
    flag: bool = False

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name: found bad, allowed: a good one")


def read(text: str | bytes) -> schema.Node:
    data = text.encode() if isinstance(text, str) else text
    return schema.parse(data, "f.yaml", "RECIPE")


def make(text: str) -> Outer:
    return convert.convert(read(text), Outer, "RECIPE")


def refused(text: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        convert.convert(read(text), Outer, "RECIPE")
    return caught.value


def plain(node: schema.Node) -> object:
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    return {k: plain(v) for k, v in node.value.items()} if isinstance(node.value, dict) else node.value


def test_scalars() -> None:
    text = "a: 1\nb: -2\nc: 1.5\nd: 1e3\ne: true\nf: ~\ng:\nh: 32K\ni: '7'\nj: 1:30\nk: 2024-01-01\n"
    text += "l: |\n  x\n  y\nm: 0x10\n"
    expected = [1, -2, 1.5, 1000.0, True, None, None, "32K", "7", "1:30", "2024-01-01", "x\ny\n", "0x10"]
    values = plain(read(text))
    assert isinstance(values, dict)
    assert list(values.values()) == expected
    assert [type(value) for value in values.values()] == [type(value) for value in expected]


def test_lines_and_file_are_kept() -> None:
    root = read("a: 1\nb:\n  - x\n  - y\n")
    assert isinstance(root.value, dict)
    items = root.value["b"].value
    assert isinstance(items, tuple)
    assert (items[1].file, items[1].line) == ("f.yaml", 4)


def test_conversion() -> None:
    made = make(
        "name: n\ninner: {size: 3, kind: b}\nitems:\n- size: 1\n- size: 2\ntable: {x: 1, y: 2.5}\ngroup: 32\n"
        "match: [p, q]\npair: [r]\nflag: true\n"
    )
    assert made == Outer(
        name="n",
        inner=Inner(size=3, kind="b"),
        items=[Inner(size=1), Inner(size=2)],
        table={"x": 1.0, "y": 2.5},
        group=32,
        match=["p", "q"],
        pair=("r",),
        flag=True,
    )
    assert make("name: n\ninner: null\ngroup: auto\nmatch: p\n") == Outer(name="n", match="p")


@pytest.mark.parametrize(
    ("text", "code", "subject", "part"),
    [
        (
            "name: n\ninner: {size: 9}\n",
            "E_RECIPE_VALUE",
            "f.yaml:2",
            "inner.size: found 9, allowed: an integer from 1 to 8",
        ),
        ("name: n\ninner:\n  size: 3.5\n", "E_RECIPE_VALUE", "f.yaml:3", "found 3.5"),
        ("name: n\ninner:\n  size: true\n", "E_RECIPE_VALUE", "f.yaml:3", "found true"),
        ("name: n\ninner:\n  size: 1\n  kind: c\n", "E_RECIPE_VALUE", "f.yaml:4", "found 'c', allowed: a, b"),
        ("name: n\nitems:\n- size: 1\n- {}\n", "E_RECIPE_KEY", "f.yaml:4", "items[1]: key 'size' is missing"),
        ("name: n\nitems: 3\n", "E_RECIPE_VALUE", "f.yaml:2", "found 3, allowed: a list"),
        ("name: n\ninner: [1]\n", "E_RECIPE_VALUE", "f.yaml:2", "found a list of 1"),
        ("name: n\ngroup: often\n", "E_RECIPE_VALUE", "f.yaml:2", "found 'often', allowed: an integer or auto"),
        ("name: n\ngroup: {}\n", "E_RECIPE_VALUE", "f.yaml:2", "found a mapping"),
        ("name: 5\n", "E_RECIPE_VALUE", "f.yaml:1", "found 5, allowed: text"),
        ("name: bad\n", "E_RECIPE_VALUE", "f.yaml:1", "allowed: a good one"),
        ("{}", "E_RECIPE_KEY", "f.yaml:1", "key 'name' is missing"),
        ("just text", "E_RECIPE_VALUE", "f.yaml:1", "found 'just text', allowed: a mapping"),
        ("name: yes\n", "E_RECIPE_VALUE", "f.yaml:1", "boolean"),
        ("name: NO\n", "E_RECIPE_VALUE", "f.yaml:1", "boolean"),
        ("name: 007\n", "E_RECIPE_VALUE", "f.yaml:1", "'007' found"),
        ("name: 1e999\n", "E_YAML_LIMIT", "f.yaml:1", "finite"),
        ("? [a]\n: 1\n", "E_YAML_SYNTAX", "f.yaml:1", "a key that is a list"),
        ("name: n\n\n  x: :\n: ]", "E_YAML_SYNTAX", "f.yaml:3:4", ""),
        ("name: *x\n", "E_YAML_ALIAS", "f.yaml:1", "'x'"),
        ("&k name: n\n", "E_YAML_ALIAS", "f.yaml:1", "'k'"),
        ("name: !x n\n", "E_YAML_TAG", "f.yaml:1", "'!x'"),
        ("name: !!str n\n", "E_YAML_TAG", "f.yaml:1", ""),
        ("", "E_YAML_SYNTAX", "f.yaml", "empty"),
        ("# only a comment\n", "E_YAML_SYNTAX", "f.yaml", "empty"),
    ],
)
def test_refusals(text: str, code: str, subject: str, part: str) -> None:
    error = refused(text)
    assert (error.code, error.subject) == (code, subject)
    assert part in error.text


def test_unknown_key_with_the_nearest_name() -> None:
    error = refused("name: n\nitmes: []\n")
    assert (error.code, error.subject, error.hint) == ("E_RECIPE_KEY", "f.yaml:2", "did you mean 'items'?")
    assert error.text.startswith("unknown key 'itmes' found, allowed: name, inner")


def test_bytes_that_are_no_text() -> None:
    error = refused(b"name: n\nx: \xff\n")
    assert (error.code, error.text) == ("E_YAML_SYNTAX", "byte 11 is not UTF-8")
    error = refused(b"name: n\nx: a\0b\n")
    assert (error.code, error.subject) == ("E_YAML_SYNTAX", "f.yaml:2")
    assert refused(b"name: \x07\n").code == "E_YAML_SYNTAX"


def test_limits() -> None:
    assert refused("name: '" + "x" * schema.MAX_BYTES + "'").code == "E_YAML_LIMIT"
    assert refused("name: " + "9" * 100_000).code == "E_YAML_LIMIT"
    assert refused("[" * 33 + "]" * 33).code == "E_YAML_LIMIT"
    assert refused("[" * 100_000).code in ("E_YAML_LIMIT", "E_YAML_SYNTAX")  # libyaml has a limit of its own
    assert refused("x" * 300 + ": 1").code == "E_YAML_LIMIT"
    assert isinstance(read("[" * 32 + "]" * 32), schema.Node)


def test_errors_never_carry_control_characters() -> None:
    error = refused('name: n\n"\\x1b[31m\\a": 1\n')
    assert error.code == "E_RECIPE_KEY"
    assert "\x1b" not in error.text
    assert "\\x1b[31m\\x07" in error.text


def test_files(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        schema.load(tmp_path / "none.yaml", Outer, "RECIPE")
    assert caught.value.code == "E_RECIPE_MISSING"
    with pytest.raises(InputError) as caught:
        schema.load(tmp_path, Outer, "BOARD")
    assert caught.value.code == "E_BOARD_MISSING"
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(schema.MAX_BYTES + 1)
    with pytest.raises(InputError) as caught:
        schema.load(big, Outer, "RECIPE")
    assert caught.value.code == "E_YAML_LIMIT"
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfname: n\n")
    assert schema.load(good, Outer, "RECIPE") == Outer(name="n")
