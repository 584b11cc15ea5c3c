# SPDX-License-Identifier: Apache-2.0
"""The safetensors reader: right values from right files, one stable error from every kind of wrong one."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tinyfiles
from safetensors.numpy import save_file

from nanobuild.errors import InputError, NanoBuildError
from nanobuild.safetensors_file import SafetensorsFiles

RNG = np.random.default_rng(5)
ONE = {"a": RNG.standard_normal((6, 5)).astype(np.float32), "b": np.arange(4, dtype=np.float32)}


def entries(dtype: str = "F32") -> list[tinyfiles.Entry]:
    return tinyfiles.st_entries(ONE, dtype)


def opened(path: Path, data: bytes) -> SafetensorsFiles:
    path.write_bytes(data)
    return SafetensorsFiles(path)


def code_of(path: Path, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, data)
    return caught.value.code


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_values_by_rows(tmp_path: Path, dtype: str) -> None:
    file = opened(tmp_path / "m.safetensors", tinyfiles.st_bytes(entries(dtype)))
    for name, exact in ONE.items():
        if dtype == "F16":
            want = exact.astype(np.float16).astype(np.float32)
        elif dtype == "BF16":
            want = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
        else:
            want = exact
        got = file.read_rows(name, 0, len(exact))
        assert got.dtype == np.float32
        assert np.array_equal(got, want)
        assert np.array_equal(file.read_rows(name, 1, 3), want[1:3])
        assert file.read_rows(name, 2, 2).shape == (0, *exact.shape[1:])
    file.close()


def test_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({**ONE, "c": np.zeros((0, 3), np.float32)}, path, metadata={"format": "np", "x": "\u00e9"})
    file = SafetensorsFiles(path)
    assert file.tensors["c"].shape == (0, 3)
    assert np.array_equal(file.read_rows("a", 0, 6), ONE["a"])


def test_other_dtypes_are_sized_but_not_read(tmp_path: Path) -> None:
    other = [("ids", "I64", [2], bytes(16)), ("f8", "F8_E4M3", [3], bytes(3)), ("f4", "F4", [4], bytes(2))]
    file = opened(tmp_path / "m.safetensors", tinyfiles.st_bytes(entries() + other))
    for name, dtype in (("ids", "I64"), ("f8", "F8_E4M3"), ("f4", "F4")):
        with pytest.raises(InputError, match=dtype) as caught:
            file.check_type(name)
        assert caught.value.code == "E_ST_DTYPE"


def edit(change: Callable[[dict[str, Any]], None]) -> bytes:
    header, data = tinyfiles.st_header(entries())
    change(header)
    return tinyfiles.st_raw(header, data)


def put(name: str, key: str, value: object) -> bytes:
    return edit(lambda header: header[name].update({key: value}))


HEADER, DATA = tinyfiles.st_header(entries())
TEXT = json.dumps(HEADER)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "E_ST_SHORT"),
        (bytes(7), "E_ST_SHORT"),
        (tinyfiles.st_raw(HEADER, DATA, length=2**64 - 1), "E_ST_HEADER_LEN"),
        (tinyfiles.st_raw(HEADER, DATA, length=len(TEXT) + len(DATA) + 1), "E_ST_HEADER_LEN"),
        (tinyfiles.st_raw("<html>not found</html>", b""), "E_ST_HEADER_JSON"),
        (tinyfiles.st_raw("[1, 2]", b""), "E_ST_HEADER_JSON"),
        (tinyfiles.st_raw(" " + TEXT, DATA), "E_ST_HEADER_JSON"),
        (tinyfiles.st_raw(TEXT.encode().replace(b'"a"', b'"\xff"'), DATA), "E_ST_HEADER_UTF8"),
        (tinyfiles.st_raw('{"x":' * 99, b""), "E_ST_HEADER_JSON"),
        (tinyfiles.st_raw(TEXT[:-1] + ', "a": ' + json.dumps(HEADER["a"]) + "}", DATA), "E_ST_DUP_KEY"),
        (edit(lambda h: h.update(__metadata__={"format": 1})), "E_ST_METADATA"),
        (edit(lambda h: h["a"].pop("dtype")), "E_ST_ENTRY"),
        (edit(lambda h: h.update(a=3)), "E_ST_ENTRY"),
        (put("a", "extra", 1), "E_ST_ENTRY"),
        (put("a", "dtype", "F33"), "E_ST_DTYPE"),
        (put("a", "dtype", ["F32"]), "E_ST_DTYPE"),
        (put("a", "shape", [-6, -5]), "E_ST_SHAPE"),
        (put("a", "shape", [6.0, 5]), "E_ST_SHAPE"),
        (put("a", "shape", [True, 30]), "E_ST_SHAPE"),
        (put("a", "shape", [1] * 7 + [6, 5]), "E_ST_SHAPE"),
        (put("a", "shape", "30"), "E_ST_SHAPE"),
        (put("a", "shape", [2**32, 2**32]), "E_ST_OVERFLOW"),
        (put("a", "shape", [2**60, 0]), "E_ST_OVERFLOW"),
        (put("a", "shape", [6, 6]), "E_ST_OFFSETS"),
        (put("a", "data_offsets", [0]), "E_ST_OFFSETS"),
        (put("a", "data_offsets", [-120, 0]), "E_ST_OFFSETS"),
        (put("a", "data_offsets", [120, 0]), "E_ST_OFFSETS"),
        (put("b", "data_offsets", [0, 16]), "E_ST_OFFSETS"),
        (put("b", "data_offsets", [124, 140]), "E_ST_OFFSETS"),
        (tinyfiles.st_bytes(entries()) + b"PK\x05\x06", "E_ST_TRAILING"),
        (tinyfiles.st_bytes(entries())[:-1], "E_ST_TRUNCATED"),
        (tinyfiles.st_raw({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"0"), "E_ST_OFFSETS"),
    ],
)
def test_refused(tmp_path: Path, data: bytes, code: str) -> None:
    assert code_of(tmp_path / "m.safetensors", data) == code


def test_limits(tmp_path: Path) -> None:
    many = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(65537)}
    assert code_of(tmp_path / "a.safetensors", tinyfiles.st_raw(many, b"")) == "E_ST_LIMIT"
    wide = struct.pack("<Q", (16 << 20) + 1) + b"{}" + b" " * (16 << 20)
    assert code_of(tmp_path / "b.safetensors", wide) == "E_ST_HEADER_LEN"


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = tinyfiles.st_bytes(entries())
    for end in range(len(whole)):
        assert code_of(tmp_path / "m.safetensors", whole[:end]).startswith("E_ST_")


def test_flipped_header_bytes_never_crash(tmp_path: Path) -> None:
    whole = tinyfiles.st_bytes(entries())
    refused = 0
    for at in range(len(whole) - len(DATA)):
        bad = bytearray(whole)
        bad[at] ^= 1 << int(RNG.integers(8))
        try:
            opened(tmp_path / "m.safetensors", bytes(bad)).close()
        except NanoBuildError:
            refused += 1
    assert refused > (len(whole) - len(DATA)) // 2


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    file = opened(path, tinyfiles.st_bytes(entries()))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(InputError) as caught:
        file.read_rows("a", 0, 6)
    assert caught.value.code == "E_CKPT_TRUNCATED"


def test_rows_need_memory_for_these_rows_only(tmp_path: Path) -> None:
    big = np.zeros((4096, 1024), np.float32)
    file = opened(tmp_path / "m.safetensors", tinyfiles.st_bytes([("w", "BF16", [4096, 1024], bytes(big.size * 2))]))
    tracemalloc.start()
    file.read_rows("w", 1000, 1256)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20  # 1 MiB of rows and the scratch of one chunk


# ---------------------------------------------------------------- shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny.write_hf(tmp_path / "m", tiny.llama(), shards=3)


def index_code(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    tiny.write_json(path, index)
    with pytest.raises(InputError) as caught:
        SafetensorsFiles(path)
    return caught.value.code


def test_shards_hold_the_same_as_one_file(sharded: Path) -> None:
    file = SafetensorsFiles(sharded / "model.safetensors.index.json")
    model = tiny.llama()
    assert set(file.tensors) == set(model.tensors)
    assert [path.name[:11] for path in file.files] == ["model-00001", "model-00002", "model-00003"]


@pytest.mark.parametrize(
    "name",
    ["../m/model-00001-of-00003.safetensors", "/etc/passwd", "..", "a\\b.safetensors", "a\0.safetensors", "x.bin", ""],
)
def test_shard_names_stay_in_the_folder(sharded: Path, name: str) -> None:
    assert index_code(sharded, lambda index: index["weight_map"].update({"model.norm.weight": name})) == "E_CKPT_PATH"


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("weight_map"),
        lambda index: index.update(weight_map=[1]),
        lambda index: index.update(weight_map={}),
        lambda index: index["weight_map"].update({"model.norm.weight": 1}),
        lambda index: index["weight_map"].update({"model.norm.weight": "gone.safetensors"}),
        lambda index: index["weight_map"].update({"more": "model-00001-of-00003.safetensors"}),
        lambda index: index["weight_map"].pop("model.norm.weight"),
    ],
)
def test_the_index_has_to_agree_with_the_shards(sharded: Path, change: Callable[[dict[str, Any]], object]) -> None:
    assert index_code(sharded, change) == "E_CKPT_INDEX"


def test_one_tensor_in_two_shards(sharded: Path) -> None:
    first = sharded / "model-00001-of-00003.safetensors"
    (sharded / "other.safetensors").write_bytes(first.read_bytes())
    names = list(SafetensorsFiles(first).tensors)
    index = {"weight_map": {names[0]: first.name, names[1]: "other.safetensors"}}
    tiny.write_json(sharded / "model.safetensors.index.json", index)
    with pytest.raises(InputError) as caught:
        SafetensorsFiles(sharded / "model.safetensors.index.json")
    assert caught.value.code == "E_CKPT_INDEX"
