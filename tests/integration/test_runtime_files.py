# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious model files: refused with a code, never a crash; the mapping stays clean."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import nano
import numpy as np
import pytest

import nanobuild
from nanobuild.errors import InputError, IntegrityError, NanoBuildError
from nanobuild.runner import LLM, RunError

LINE = re.compile(rb"nano-build: error\[(E_[A-Z_]+)\]: [ -~]+: [ -~]+\n\Z")
HEADER, ENTRY = 64, 32
FIRST = ("MAGIC", "VERSION", "TRUNCATED", "CHECKSUM", "SECTION")  # what is found before anything else is believed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "model.nano"
    nano.random_model(path, layers=2, hidden=64, ffn=96, vocab=90, qk_norm=True, ropes=2, tied=False)
    return path


def opens(path: Path) -> str:
    """The code of the refusal, or "" if it opens; then a few tokens go through it."""
    with contextlib.ExitStack() as stack:
        refusal = stack.enter_context(refusals())
        llm = stack.enter_context(LLM(path, threads=1, context=64, library=nano.library()))
        llm.feed([1, 2, 3])
        llm.feed([4])
    return refusal[0] if refusal else ""


@contextlib.contextmanager
def refusals() -> Iterator[list[str]]:
    """The list gets the code of a RunError, which ends here if it is of the allowed kinds."""
    codes: list[str] = []
    try:
        yield codes
    except RunError as error:
        if error.exit_code not in (3, 4, 5) or len(error.text) >= 320:
            raise
        codes.append(error.code)


def sections(data: bytes) -> dict[str, tuple[int, int, int]]:
    """Kind: (place of its entry, offset, size)."""
    out = {}
    for i in range(min(struct.unpack_from("<I", data, 24)[0], 16)):
        at = HEADER + ENTRY * i
        kind, _, offset, size = struct.unpack_from("<4sIQQ", data, at)
        out[kind.decode("latin1")] = (at, offset, size)
    return out


def with_good_checksums(data: bytearray) -> bytes:
    """After a change: the sections' and the header's checksums as a writer would have put them."""
    for kind, (at, offset, size) in sections(data).items():
        if kind != "WGTS" and offset + size <= len(data):
            struct.pack_into("<I", data, at + 24, crc32c.crc32c(bytes(data[offset : offset + size])))
    struct.pack_into("<I", data, 28, 0)
    end = HEADER + ENTRY * min(struct.unpack_from("<I", data, 24)[0], 16)
    struct.pack_into("<I", data, 28, crc32c.crc32c(bytes(data[:end])))
    return bytes(data)


def test_cut_at_every_4_kib(model: Path, tmp_path: Path) -> None:
    data, cut = model.read_bytes(), tmp_path / "cut.nano"
    for size in [*range(0, len(data), 4096), 1, 7, 8, 63, 65, len(data) - 1]:
        cut.write_bytes(data[:size])
        assert opens(cut) == "E_MODEL_TRUNCATED", size
    done = nano.run("-m", cut, "-p", "x")
    assert done.returncode == 4
    assert LINE.match(done.stderr)
    assert done.stdout == b""
    cut.write_bytes(data + b"\0")
    assert opens(cut) == "E_MODEL_TRUNCATED"


def test_every_bit_of_the_header_and_the_small_sections(model: Path, tmp_path: Path) -> None:
    data, path = model.read_bytes(), tmp_path / "bit.nano"
    places = list(range(HEADER + ENTRY * len(sections(data))))
    for kind in ("SPEC", "TENS", "CSUM", "META"):
        _, offset, size = sections(data)[kind]
        places += range(offset, offset + size, 5)
    path.write_bytes(data)
    with path.open("r+b") as file:
        for place in places:
            for bit in range(8) if place < HEADER else (place % 8,):
                file.seek(place)
                file.write(bytes([data[place] ^ 1 << bit]))
                file.flush()
                code = opens(path)
                assert code in (
                    "E_MODEL_MAGIC",
                    "E_MODEL_VERSION",
                    "E_MODEL_TRUNCATED",
                    "E_MODEL_CHECKSUM",
                    "E_MODEL_SECTION",
                )
            file.seek(place)
            file.write(data[place : place + 1])
    path.write_bytes(data[: HEADER + 300] + b"\1" + data[HEADER + 301 :])
    assert opens(path) == "E_MODEL_SECTION"  # the gaps are zeros


def test_lies_with_good_checksums(model: Path, tmp_path: Path) -> None:
    """Every number of the header, the record and the table replaced by others: refused, or harmless."""
    data, path = model.read_bytes(), tmp_path / "lie.nano"
    table = sections(data)
    places = list(range(8, 28, 4)) + list(range(HEADER, HEADER + ENTRY * len(table), 4))
    for kind, limit in (("SPEC", 10**6), ("TENS", 16 + 64 * 6), ("CSUM", 12)):
        _, offset, size = table[kind]
        places += range(offset, offset + min(size, limit) - 3, 4)
    codes, rng = set(), np.random.default_rng(1)
    for place in places:
        (old,) = struct.unpack_from("<I", data, place)
        for value in (0, old + 1, old ^ 0x80000000, 0xFFFFFFFF, int(rng.integers(2**32))):
            changed = bytearray(data)
            struct.pack_into("<I", changed, place, value & 0xFFFFFFFF)
            path.write_bytes(with_good_checksums(changed))
            codes.add(opens(path))
    assert {"E_MODEL_SPEC", "E_MODEL_TENSOR", "E_MODEL_SECTION", "E_MODEL_FEATURE", "E_MODEL_VERSION"} <= codes


def test_verify_names_the_tensor(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    good = nano.run("-m", model, "--verify")
    assert good.returncode == 0
    assert b"all checksums match" in good.stdout
    _, offset, size = sections(data)["WGTS"]
    data[offset + size - 100] ^= 4
    path = tmp_path / "bad.nano"
    path.write_bytes(data)
    assert opens(path) == ""  # weights are not read at the start
    done = nano.run("-m", path, "--verify")
    assert done.returncode == 4
    match = LINE.match(done.stderr)
    assert match
    assert match[1] == b"E_MODEL_CHECKSUM"
    assert b"tensor head:" in done.stderr
    with LLM(path, threads=1, library=nano.library()) as llm, pytest.raises(RunError, match="tensor head"):
        llm.verify()


def test_errors_of_the_package(model: Path, tmp_path: Path) -> None:
    """nanobuild.LLM raises the package's own errors."""
    with pytest.raises(InputError):
        nanobuild.LLM(tmp_path / "missing.nano", library=nano.library())
    (tmp_path / "short.nano").write_bytes(model.read_bytes()[:1000])
    with pytest.raises(IntegrityError) as caught:
        nanobuild.LLM(tmp_path / "short.nano", library=nano.library())
    assert caught.value.code == "E_MODEL_TRUNCATED"
    with pytest.raises(NanoBuildError, match="allowed are 1 to 256"):
        nanobuild.LLM(model, threads=1000, library=nano.library())


@pytest.mark.parametrize("mode", ["auto", "populate", "lazy", "read"])
def test_every_way_to_map(model: Path, mode: str) -> None:
    with LLM(model, map_mode=mode, library=nano.library()) as llm, LLM(model, library=nano.library()) as other:
        for one in (llm, other):
            one.feed([5, 6, 7])
        assert llm.logits() == other.logits()
        maps = Path("/proc/self/smaps").read_text().split(str(model))[1:]
        assert len(maps) == (1 if mode == "read" else 2)
        for part in maps:
            assert re.search(r"Private_Dirty: +0 kB", part.split("VmFlags")[0])


def test_a_context_that_does_not_fit(tmp_path: Path) -> None:
    nano.random_model(tmp_path / "model.nano", max_positions=1 << 24, layers=1, hidden=64, head_dim=256, ffn=64)
    done = nano.run("-m", tmp_path / "model.nano", "-p", "x", "-c", 1 << 24)
    assert done.returncode == 5
    assert re.search(
        rb"error\[E_MEMORY\]: .*: needs \d+ KiB \(cache of 16777216 positions \d+, activations", done.stderr
    )
    done = nano.run("-m", tmp_path / "model.nano", "-p", "x", "-c", (1 << 24) + 1)
    assert (done.returncode, b"E_CONTEXT" in done.stderr) == (2, True)
