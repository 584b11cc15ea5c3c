# SPDX-License-Identifier: Apache-2.0
"""The GGUF reader: values, lazy arrays, and one stable error from every kind of wrong header."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import tinyfiles
from tinyfiles import GgufTensor, gguf_bytes, gguf_string, gguf_value

from nanobuild.errors import InputError, NanoBuildError
from nanobuild.gguf_file import GgufFile

RNG = np.random.default_rng(7)
VALUES = RNG.standard_normal((4, 64)).astype(np.float32)
META: dict[str, object] = {"general.architecture": "x", "x.n": 3}


def tensor(name: str = "w", **over: Any) -> GgufTensor:
    made = GgufTensor(name, [64, 4], 0, VALUES.tobytes())
    for key, value in over.items():
        setattr(made, key, value)
    return made


def opened(folder: Path, data: bytes) -> GgufFile:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def code_of(folder: Path, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        opened(folder, data).close()
    return caught.value.code


def pair(key: str | bytes, kind: int, raw: bytes) -> bytes:
    """Metadata of one entry with any type number; goes where `pairs` of gguf_bytes goes."""
    return gguf_string(key) + struct.pack("<I", kind) + raw


def with_pairs(*raw: bytes) -> bytes:
    body = b"".join(raw)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(raw)) + body + bytes(64)


@pytest.mark.parametrize("version", [2, 3])
def test_values(tmp_path: Path, version: int) -> None:
    vector = GgufTensor("v", [64], 0, VALUES[0].tobytes())
    file = opened(tmp_path, gguf_bytes(META, [tensor(), vector], version=version))
    assert file.tensors["w"].shape == (4, 64)
    assert np.array_equal(file.read_rows("w", 0, 4), VALUES)
    assert np.array_equal(file.read_rows("w", 1, 3), VALUES[1:3])
    assert np.array_equal(file.read_rows("v", 10, 20), VALUES[0, 10:20])


def test_every_metadata_type(tmp_path: Path) -> None:
    scalars = [("B", 0, 200), ("b", 1, -5), ("H", 2, 60000), ("h", 3, -300), ("I", 4, 2**32 - 1), ("i", 5, -(2**31)),
               ("f", 6, 0.5), ("B", 7, 1), ("Q", 10, 2**64 - 1), ("q", 11, -(2**63)), ("d", 12, 0.1)]  # fmt: skip
    pairs = [pair(f"s{kind}", kind, struct.pack("<" + code, value)) for code, kind, value in scalars]
    pairs += [
        pair(f"a{kind}", 9, struct.pack("<IQ", kind, 3) + struct.pack("<3" + code, *[value] * 3))
        for code, kind, value in scalars
    ]
    pairs.append(pair("text", 8, gguf_string("h\u00e9llo")))
    pairs.append(pair("texts", 9, struct.pack("<IQ", 8, 3) + b"".join(map(gguf_string, ["a", "", "\u20ac\0"]))))
    meta = opened(tmp_path, with_pairs(*pairs)).metadata
    for _, kind, value in scalars:
        assert meta[f"s{kind}"] == value
        array = meta[f"a{kind}"]
        assert isinstance(array, np.ndarray)
        assert array.tolist() == [value] * 3
    assert meta["s7"] is True
    assert meta["text"] == "h\u00e9llo"
    assert meta["texts"] == ["a", "", "\u20ac\0"]
    assert len(meta) == len(list(meta)) == 24
    assert "texts" in meta
    assert "other" not in meta


def test_a_large_vocabulary_opens_at_once(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(262_144)]
    data = gguf_bytes(META | {"t": tokens}, [])
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    begin = time.process_time()
    file = GgufFile(path)
    assert time.process_time() - begin < 1.0
    assert file.metadata["t"] == tokens


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_what_the_reference_package_writes(tmp_path: Path, kind: str) -> None:
    path, theirs = tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "x")
    raw = gguf.quants.quantize(VALUES, theirs)
    writer.add_tensor("w", raw, raw_dtype=theirs)
    writer.add_array("list", ["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert file.metadata["list"] == ["a", "b"]
    assert file.tensors["w"].dtype == kind
    whole = file.read_rows("w", 0, 4)
    assert np.array_equal(whole, gguf.quants.dequantize(raw, theirs))
    assert np.array_equal(file.read_rows("w", 3, 4), whole[3:4])


PLAIN = gguf_bytes(META, [tensor()])
ALIGN = "general.alignment"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "E_GGUF_SHORT"),
        (b"GGUF", "E_GGUF_SHORT"),
        (b"GGML" + PLAIN[4:], "E_GGUF_MAGIC"),
        (gguf_bytes(META, [], version=1), "E_GGUF_VERSION"),
        (gguf_bytes(META, [], version=3 << 24), "E_GGUF_VERSION"),
        (gguf_bytes(META, [tensor()], counts=(None, 2**64 - 1)), "E_GGUF_COUNT"),
        (gguf_bytes(META, [tensor()], counts=(2**64 - 1, None)), "E_GGUF_COUNT"),
        (gguf_bytes(META, [tensor()], counts=(60, None)), "E_GGUF_COUNT"),
        (with_pairs(struct.pack("<Q", 2**63)), "E_GGUF_STRING"),
        (with_pairs(struct.pack("<Q", 1 << 20)), "E_GGUF_TRUNCATED"),
        (with_pairs(pair(b"\xff", 0, b"1")), "E_GGUF_STRING"),
        (with_pairs(pair("", 0, b"1")), "E_GGUF_KEY"),
        (with_pairs(pair("a", 0, b"1"), pair("a", 0, b"1")), "E_GGUF_DUP"),
        (with_pairs(pair("a", 13, b"1")), "E_GGUF_TYPE"),
        (with_pairs(pair("a", 7, b"\2")), "E_GGUF_VALUE"),
        (with_pairs(pair("a", 8, struct.pack("<Q", (16 << 20) + 1))), "E_GGUF_STRING"),
        (with_pairs(pair("a", 9, struct.pack("<IQ", 9, 1))), "E_GGUF_TYPE"),
        (with_pairs(pair("a", 9, struct.pack("<IQ", 0, 2**63))), "E_GGUF_COUNT"),
        (with_pairs(pair("a", 9, struct.pack("<IQ", 10, 1 << 20))), "E_GGUF_TRUNCATED"),
        (with_pairs(pair("a", 9, struct.pack("<IQQ", 8, 2, 2**62))), "E_GGUF_STRING"),
        (gguf_bytes({ALIGN: 0}, []), "E_GGUF_ALIGN"),
        (gguf_bytes({ALIGN: 48}, []), "E_GGUF_ALIGN"),
        (gguf_bytes({ALIGN: 8192}, []), "E_GGUF_ALIGN"),
        (gguf_bytes({ALIGN: "32"}, []), "E_GGUF_TYPE"),
        (gguf_bytes(META, [tensor(), tensor()]), "E_GGUF_DUP"),
        (gguf_bytes(META, [tensor("")]), "E_GGUF_KEY"),
        (gguf_bytes(META, [tensor(rank=0)]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(rank=2**32 - 1)]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(dims=[64, 1, 1, 1, 4])]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(dims=[64, 0])]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(dims=[2**60, 16])]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(dims=[2**63, 2**63])]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(kind=8, dims=[48, 4])]), "E_GGUF_SHAPE"),
        (gguf_bytes(META, [tensor(kind=16)]), "E_GGUF_TYPE"),
        (gguf_bytes(META, [tensor(kind=4000)]), "E_GGUF_TYPE"),
        (gguf_bytes(META, [tensor(offset=33)]), "E_GGUF_OFFSET"),
        (gguf_bytes(META, [tensor(offset=1 << 40)]), "E_GGUF_OFFSET"),
        (gguf_bytes(META, [tensor(offset=2**64 - 32)]), "E_GGUF_OFFSET"),
        (gguf_bytes(META, [tensor(), tensor("x", offset=992)]), "E_GGUF_OFFSET"),
        (gguf_bytes(META, [tensor(dims=[64, 5])]), "E_GGUF_TRUNCATED"),
        (PLAIN[:-1], "E_GGUF_TRUNCATED"),
    ],
)
def test_refused(tmp_path: Path, data: bytes, code: str) -> None:
    assert code_of(tmp_path, data) == code


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'w' has type 16 \(IQ2_XXS\)"):
        opened(tmp_path, gguf_bytes(META, [tensor(kind=16)]))


def test_alignment_and_gaps_are_honoured(tmp_path: Path) -> None:
    data = gguf_bytes({ALIGN: 256}, [tensor("a", offset=1024), tensor("b", offset=4096)], align=256)
    file = opened(tmp_path, data[:-2048] + bytes(1024) + data[-2048:-1024] + bytes(2048) + data[-1024:])
    assert file.alignment == 256
    assert np.array_equal(file.read_rows("b", 0, 4), VALUES)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes({**META, "l": ["a", "bc"], "f": [1.0], "s": "x"}, [tensor(), tensor("x")])
    body = len(whole) - 2 * VALUES.nbytes
    for end in [*range(body), *range(body, len(whole), 97), len(whole) - 1]:
        assert code_of(tmp_path, whole[:end]).startswith("E_GGUF_")


def test_flipped_header_bytes_never_crash(tmp_path: Path) -> None:
    whole = gguf_bytes(tiny.gguf_metadata(tiny.llama()), [tensor()])
    body = len(whole) - VALUES.nbytes
    outcomes = {"read": 0, "refused": 0}
    for at in [*range(200), *RNG.integers(200, body, 300).tolist(), *range(body - 80, body)]:
        bad = bytearray(whole)
        bad[at] ^= 1 << int(RNG.integers(8))
        try:
            file = opened(tmp_path, bytes(bad))
            assert len(dict(file.metadata)) == len(file.metadata)
            file.close()
            outcomes["read"] += 1
        except NanoBuildError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    file = opened(tmp_path, gguf_bytes({**META, "l": ["a"] * 99}, [tensor()]))
    (tmp_path / "m.gguf").write_bytes(PLAIN[:100])
    for read in (lambda: file.read_rows("w", 0, 4), lambda: file.metadata["l"]):
        with pytest.raises(InputError) as caught:
            read()
        assert caught.value.code == "E_CKPT_TRUNCATED"


def test_rows_need_memory_for_these_rows_only(tmp_path: Path) -> None:
    big = GgufTensor("w", [1024, 4096], 12, bytes(4096 * 4 * 144))
    file = opened(tmp_path, gguf_bytes(META, [big]))
    tracemalloc.start()
    file.read_rows("w", 1000, 2024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20  # 4 MiB of rows and the scratch of one chunk; the tensor has 16 MiB


def test_value_encoding_of_the_test_writer() -> None:
    assert gguf_value([1, 2]) == struct.pack("<IIQii", 9, 5, 2, 1, 2)
    assert tinyfiles.GGUF_TYPES["BF16"] == 30
