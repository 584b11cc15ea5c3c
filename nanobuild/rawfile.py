# SPDX-License-Identifier: Apache-2.0
"""A regular file read by position, never mapped: a file that shrinks while we read is an error, not a signal."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError, ResourceError

FloatArray = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RawTensor:
    """One tensor as its file describes it; the shape is row-major, whatever the file's own order is."""

    name: str
    dtype: str  # the file's own word for it
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


class WeightSource(Protocol):
    """What a weight file, or a set of them, offers to the checkpoint reader."""

    @property
    def tensors(self) -> Mapping[str, RawTensor]:
        """Every tensor by its name in the file."""

    @property
    def files(self) -> list[Path]:
        """The weight files, in a fixed order."""

    def check_type(self, name: str) -> None:
        """Raises InputError when read_rows cannot turn this tensor into floats."""

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) of the first dimension as float32."""

    def close(self) -> None:
        """Gives the file descriptors back."""


class RawFile:
    """An open regular file with the size it had when it was opened."""

    def __init__(self, path: Path, *, missing: str = "E_CKPT_NOT_FOUND") -> None:
        """Raises InputError: `missing` when there is no such file, E_CKPT_READ when it cannot be opened."""
        self.path = path
        try:
            # Non-blocking, because opening a FIFO would wait for a writer for ever.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(missing, path, "no such file") from None
        except (OSError, ValueError) as error:
            raise InputError("E_CKPT_READ", path, f"cannot be opened: {_reason(error)}") from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise InputError("E_CKPT_READ", path, "not a regular file")
        self.size = status.st_size

    def pread(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from `offset`. Raises InputError E_CKPT_TRUNCATED when the file has shrunk."""
        out = np.empty(count, np.uint8)
        self.read_into(offset, out)
        return out.tobytes()

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fills the contiguous bytes `out` from `offset`. Raises InputError E_CKPT_TRUNCATED, ResourceError."""
        view, done = out.data, 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise ResourceError("E_CKPT_READ", self.path, f"read failed: {_reason(error)}") from None
            if got == 0:
                raise InputError(
                    "E_CKPT_TRUNCATED", self.path, f"ended at byte {offset + done} while {len(view)} were being read"
                )
            done += got

    def close(self) -> None:
        """Closes the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "not a usable path"


def read_small(path: Path, limit: int, *, missing: str, too_big: str) -> bytes:
    """A whole file of at most `limit` bytes. Raises InputError with the codes given, or E_CKPT_READ."""
    file = RawFile(path, missing=missing)
    try:
        if file.size > limit:
            raise InputError(too_big, path, f"{file.size} bytes, at most {limit} are allowed")
        return file.pread(0, file.size)
    finally:
        file.close()
