# SPDX-License-Identifier: Apache-2.0
"""The C tokenizer and chat parts as a shared library, called through ctypes, for tests."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
SOURCES = ("error", "unicode", "split", "merge", "tokenizer", "chat")
FLAGS = ("-O2", "-g", "-std=gnu17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-shared", "-fPIC")
BOS, PARSE_SPECIAL, SHOW_SPECIAL, CONTINUE = 1, 2, 4, 8


class Error(ctypes.Structure):
    _fields_ = (("status", ctypes.c_int), ("code", ctypes.c_char * 32), ("text", ctypes.c_char * 320))


class RefusedError(Exception):
    """nb_fail was called: code and text."""


@functools.cache
def compiler() -> list[str]:
    """A C compiler of this machine, else the one of the ziglang package."""
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "cc"]


@functools.cache
def library(extra: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Compiles once per process."""
    folder = Path(tempfile.mkdtemp(prefix="nb-tok-"))
    out = folder / "tokenizer.so"
    sources = [str(KERNELS / "runtime" / f"{name}.c") for name in SOURCES]
    subprocess.run([*compiler(), *FLAGS, *extra, f"-I{KERNELS}", *sources, "-o", str(out)], check=True)
    lib = ctypes.CDLL(str(out))
    lib.nb_tokenizer_scratch.restype = ctypes.c_size_t
    lib.nb_tokenizer_bound.restype = ctypes.c_size_t
    lib.nb_tokenizer_piece.restype = ctypes.c_size_t
    lib.nb_utf8_push.restype = ctypes.c_size_t
    lib.nb_utf8_flush.restype = ctypes.c_size_t
    shutil.rmtree(folder)
    return lib


class CTokenizer:
    """A section TOKN opened by the C code, in memory that ends at an unreadable page."""

    def __init__(self, section: bytes) -> None:
        self.lib = library()
        self.struct = ctypes.create_string_buffer(1024)
        self.memory = mmap.mmap(-1, -(-max(len(section), 1) // mmap.PAGESIZE) * mmap.PAGESIZE)
        # at the end of the mapping, as far as alignment allows: reads past the section leave it soon
        at = (len(self.memory) - len(section)) & ~15
        self.memory[at : at + len(section)] = section
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + at
        self.size = len(section)
        self.error = Error()
        status = self.lib.nb_tokenizer_open(
            self.struct, ctypes.c_void_p(self.address), ctypes.c_size_t(len(section)), ctypes.byref(self.error)
        )
        self._check(status)

    def _check(self, status: int) -> None:
        if status:
            raise RefusedError(self.error.code.decode(), self.error.text.decode())

    def encode(
        self, text: str | bytes, *, bos: bool = False, parse_special: bool = False, follows: bool = False
    ) -> list[int]:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        flags = BOS * bos | PARSE_SPECIAL * parse_special | CONTINUE * follows
        length = ctypes.c_size_t(len(data))
        bound = self.lib.nb_tokenizer_bound(self.struct, length)
        ids = (ctypes.c_int32 * (bound + 4))()
        for i in range(4):
            ids[bound + i] = 0x5A5A5A5A
        need = self.lib.nb_tokenizer_scratch(self.struct, length)
        scratch = ctypes.create_string_buffer(need + 8)
        scratch[need : need + 8] = b"\x5a" * 8
        count = ctypes.c_size_t()
        status = self.lib.nb_tokenizer_encode(
            self.struct, data, length, flags, ids, ctypes.byref(count), scratch, ctypes.byref(self.error)
        )
        assert scratch[need : need + 8] == b"\x5a" * 8, "scratch overrun"
        assert all(ids[bound + i] == 0x5A5A5A5A for i in range(4)), "ids overrun"
        self._check(status)
        return ids[: count.value]

    def turn(self, section: bytes, turn: int, system: str | None, user: str) -> list[int]:
        """Ids of one chat turn."""
        chat = ctypes.create_string_buffer(256)
        memory = ctypes.create_string_buffer(section, len(section))
        length = ctypes.c_size_t(len(section))
        self._check(self.lib.nb_chat_open(chat, memory, length, ctypes.byref(self.error)))
        said, words = (system or "").encode(), user.encode()
        both = ctypes.c_size_t(len(said) + len(words))
        capacity = self.lib.nb_tokenizer_bound(self.struct, ctypes.c_size_t(both.value + 4096)) + 64
        ids = (ctypes.c_int32 * capacity)()
        scratch = ctypes.create_string_buffer(self.lib.nb_tokenizer_scratch(self.struct, both))
        count = ctypes.c_size_t()
        status = self.lib.nb_chat_turn(
            chat, self.struct, turn, None if system is None else said, ctypes.c_size_t(len(said)), words,
            ctypes.c_size_t(len(words)), ids, ctypes.c_size_t(capacity), ctypes.byref(count), scratch,
            ctypes.byref(self.error),
        )  # fmt: skip
        self._check(status)
        return ids[: count.value]

    def piece(self, token: int, first: bool = False, *, show_special: bool = False) -> bytes:
        out = ctypes.create_string_buffer(1024)
        size = self.lib.nb_tokenizer_piece(self.struct, token, SHOW_SPECIAL * show_special, int(first), out)
        return out.raw[:size]

    def is_stop(self, token: int) -> bool:
        return bool(self.lib.nb_tokenizer_is_stop(self.struct, token))

    def chunks(self, ids: Iterable[int]) -> list[bytes]:
        """What comes out after each token, and what is left at the end."""
        held = ctypes.create_string_buffer(8)
        out, first = [], True
        for token in ids:
            data = self.piece(token, first)
            first = first and not self.piece(token)
            room = ctypes.create_string_buffer(len(data) + 4)
            size = self.lib.nb_utf8_push(held, data, ctypes.c_size_t(len(data)), room)
            out.append(room.raw[:size])
        room = ctypes.create_string_buffer(4)
        size = self.lib.nb_utf8_flush(held, room)
        return [*out, room.raw[:size]]


def sanitized(folder: Path, source: str) -> Path:
    """A program from `source` (a main) and the tokenizer's files, with address and undefined-behaviour checks if the
    compiler has them."""
    main = folder / "main.c"
    main.write_text(source)
    files = [str(main), *(str(KERNELS / "runtime" / f"{name}.c") for name in SOURCES)]
    out = folder / "program"
    base = [*compiler(), "-O1", "-g", "-std=gnu17", f"-I{KERNELS}", *files, "-o", str(out)]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    done = subprocess.run([*base, *checks], check=False, capture_output=True, env=os.environ)
    if done.returncode:
        subprocess.run(base, check=True)
    return out
