# SPDX-License-Identifier: Apache-2.0
"""Publishing a file or folder: written under a temporary name beside its place, synced, then renamed.

Nothing half-written ever carries the final name, and a failure or an interrupt leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from nanobuild.errors import NanoBuildError, ResourceError, UsageError


def check_output(path: Path, *, force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Refuses an output that exists (without force) or is one of the inputs, before any work is done.

    Raises UsageError E_OUT_EXISTS, E_OUT_IS_INPUT or E_OUT_FOLDER.
    """
    for source in inputs:
        if path.exists() and source.exists() and os.path.samefile(path, source):
            raise UsageError("E_OUT_IS_INPUT", path, "the output is the input", hint="choose another name with -o")
    if not path.parent.is_dir():
        raise UsageError("E_OUT_FOLDER", path.parent, "no such folder for the output", hint=f"mkdir -p {path.parent}")
    if (path.exists() or path.is_symlink()) and not force:
        raise UsageError("E_OUT_EXISTS", path, "the output exists", hint="give --force to replace it")


def os_error(error: OSError, path: Path) -> NanoBuildError:
    """The named error for a failed system call while writing `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError("E_DISK_FULL", path, "no space left for the output", hint="free some space and run again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ResourceError("E_OUT_DENIED", path, f"cannot write here: {error.strerror}")
    return ResourceError("E_IO", path, f"writing failed: {error.strerror or error}")


@contextlib.contextmanager
def published_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file for writing (and reading back) that takes the name `path` only when the block ends well.

    Raises ResourceError E_DISK_FULL, E_OUT_DENIED or E_IO; whatever ends the block, no temporary stays.
    """
    temporary: str | None = None
    try:
        try:
            fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
            with os.fdopen(fd, "w+b") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.fsync(file.fileno())
            os.replace(temporary, path)
            temporary = None
            _sync_folder(path.parent)
        except OSError as error:
            raise os_error(error, path) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def published_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill that takes the name `path` only when the block ends well; an old folder is replaced.

    Raises ResourceError as published_file() does.
    """
    temporary: Path | None = None
    try:
        try:
            temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            _sync_folder(temporary)
            old = Path(f"{temporary}.old")
            if path.exists():
                os.replace(path, old)
            os.replace(temporary, path)
            temporary = None
            _sync_folder(path.parent)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise os_error(error, path) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
