# SPDX-License-Identifier: Apache-2.0
"""Runs a bundle from Python through libnano.so: the standard library only, so it works wherever it is copied.

In a bundle this file is called run.py and finds libnano.so and model.nano beside itself. The same C code as the
program's, so the same tokens and bits.
"""

from __future__ import annotations

import argparse
import array
import ctypes as c
import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

_KV = ("f16", "i8")
_MAP = ("auto", "populate", "lazy", "read")
_BOS, _PARSE_SPECIAL, _SHOW_SPECIAL = 1, 2, 4  # kernels/runtime/tokenizer.h
_POSITION, _CONTEXT, _VOCAB, _TOKENS, _THREADS, _CHUNK, _HAS_TOKENIZER, _HAS_CHAT, _TOKEN_BYTES = range(9)
_FINISH = ("", "stop", "length", "interrupted")
_PIECE_MAX = 1024
_INTERRUPTED = 7


def _all(kind: type[c._SimpleCData[Any]], names: str) -> tuple[tuple[str, type[c._SimpleCData[Any]]], ...]:
    return tuple((name, kind) for name in names.split())


class _Options(c.Structure):
    _fields_ = (
        *_all(c.c_uint32, "size threads context chunk kv map_mode all_logits reserved"),
        ("isa", c.c_char_p),
    )


class _Generation(c.Structure):
    _fields_ = (
        *_all(c.c_uint32, "size max_tokens"),
        *_all(c.c_float, "temperature top_p min_p repeat"),
        *_all(c.c_uint32, "top_k repeat_window"),
        ("seed", c.c_uint64),
        *_all(c.c_uint32, "stop_count reserved"),
        ("stop", c.c_char_p * 4),
    )


class _Piece(c.Structure):
    _fields_ = (
        *(("text", c.c_void_p), ("length", c.c_uint32)),
        *(("id", c.c_int32), ("finish", c.c_uint32), ("reserved", c.c_uint32)),
    )


class _Error(c.Structure):
    _fields_ = (("status", c.c_int), ("code", c.c_char * 32), ("text", c.c_char * 320))


_P, _I32S, _SIZE = c.c_void_p, c.POINTER(c.c_int32), c.c_size_t
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "nb_open": (c.c_int, (c.c_char_p, _P, _P, _P)),
    "nb_close": (None, (_P,)),
    "nb_encode": (c.c_int, (_P, c.c_char_p, _SIZE, c.c_uint32, _I32S, _SIZE, _P, _P)),
    "nb_decode": (_SIZE, (_P, c.c_int32, c.c_uint32, c.c_int, c.c_char_p)),
    "nb_chat": (c.c_int, (_P, c.c_uint32, c.c_char_p, c.c_char_p, _I32S, _SIZE, _P, _P)),
    "nb_reset": (None, (_P,)),
    "nb_feed": (c.c_int, (_P, _I32S, _SIZE, _P)),
    "nb_logits": (_P, (_P,)),
    "nb_eval": (c.c_int, (_P, _I32S, _SIZE, _P, _P)),
    "nb_begin": (c.c_int, (_P, _P, _P)),
    "nb_next": (c.c_int, (_P, _P, _P)),
    "nb_number": (c.c_uint64, (_P, c.c_uint32)),
    "nb_isa": (c.c_char_p, (_P,)),
    "nb_info": (_SIZE, (_P, _P, _SIZE)),
    "nb_kernels": (_SIZE, (_P, _P, _SIZE)),
    "nb_verify": (c.c_int, (_P, _P)),
}


class RunError(Exception):
    """A refusal by the runtime: a stable code (E_...), the program's exit code, a subject and one line of text."""

    def __init__(self, code: str, exit_code: int, subject: str, text: str) -> None:
        super().__init__(f"{subject}: {text}")
        self.code, self.exit_code, self.subject, self.text = code, exit_code, subject, text


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to generate. Temperature 0 takes the likeliest token; top_k 0 and 1.0 for the others mean off."""

    max_tokens: int = 256  # 0: until the context is full
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    seed: int = 0
    stop: Sequence[str] = ()


class LLM:
    """One model with one sequence. Not for several threads at once."""

    finish_reason = ""  # of the last generation: "stop", "length" or "interrupted"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        context: int | None = None,
        chunk: int | None = None,
        kv: str = "f16",
        map_mode: str = "auto",
        isa: str | None = None,
        all_logits: bool = False,
        library: str | os.PathLike[str] | None = None,
    ) -> None:
        """path: a bundle's folder or a model.nano; library: libnano.so if it does not lie beside the model.

        all_logits makes room for eval(). Raises RunError.
        """
        self._engine = c.c_void_p()
        path = Path(path)
        self.model = path / "model.nano" if path.is_dir() else path
        for name, value, allowed in (("kv", kv, _KV), ("map_mode", map_mode, _MAP)):
            if value not in allowed:
                self._fail("E_OPTION", 2, str(self.model), f"{name} {value!a}, allowed are {', '.join(allowed)}")
        self._lib = self._load_library(Path(library) if library else self.model.resolve().parent / "libnano.so")
        options = _Options(
            size=c.sizeof(_Options),
            threads=threads or 0,
            context=context or 0,
            chunk=chunk or 0,
            kv=_KV.index(kv),
            map_mode=_MAP.index(map_mode),
            all_logits=all_logits,
            isa=isa.encode() if isa else None,
        )
        self._call("nb_open", os.fsencode(self.model), c.byref(options), c.byref(self._engine), subject=str(self.model))
        self.context, self.vocab = self._number(_CONTEXT), self._number(_VOCAB)

    def _load_library(self, path: Path) -> c.CDLL:
        try:
            library = c.CDLL(str(path.resolve()))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            self._fail("E_LIBRARY", 6, str(path), f"cannot be loaded: {error}")
        return library

    def _fail(self, code: str, exit_code: int, subject: str, text: str) -> NoReturn:
        raise RunError(code, exit_code, subject, text)

    def _call(self, name: str, *arguments: object, subject: str = "prompt") -> None:
        error = _Error()
        status = getattr(self._lib, name)(*arguments, c.byref(error))
        if status:
            self._fail(error.code.decode(), status, subject, error.text.decode("ascii", "replace"))

    def _number(self, which: int) -> int:
        return int(self._lib.nb_number(self._handle(), which))

    def _handle(self) -> c.c_void_p:
        if not self._engine:
            self._fail("E_CLOSED", 2, str(self.model), "is closed")
        return self._engine

    def close(self) -> None:
        """Gives all memory back; a second call does nothing."""
        if self._engine:
            self._lib.nb_close(self._engine)
            self._engine = c.c_void_p()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self.close()

    @property
    def isa(self) -> str:
        """The highest level in use."""
        return str(self._lib.nb_isa(self._handle()).decode())

    @property
    def position(self) -> int:
        """Tokens in the context."""
        return self._number(_POSITION)

    def _text(self, name: str) -> str:
        size = getattr(self._lib, name)(self._handle(), None, 0) + 1
        out = c.create_string_buffer(size)
        getattr(self._lib, name)(self._handle(), out, size)
        return out.value.decode()

    def info(self) -> str:
        """JSON: the model, threads, level, memory."""
        return self._text("nb_info")

    def kernels(self) -> str:
        """Which kernel each operator uses, one a line."""
        return self._text("nb_kernels")

    def verify(self) -> None:
        """Checks every checksum of the weights; raises RunError E_MODEL_CHECKSUM."""
        self._call("nb_verify", self._handle(), subject=str(self.model))

    def _ids(self, name: str, *arguments: object) -> list[int]:
        capacity, count, error = self.context, _SIZE(), _Error()
        while True:
            ids = (c.c_int32 * capacity)()
            status = getattr(self._lib, name)(self._handle(), *arguments, ids, capacity, c.byref(count), c.byref(error))
            if not status:
                return ids[: count.value]
            if count.value <= capacity:
                self._fail(error.code.decode(), status, "prompt", error.text.decode("ascii", "replace"))
            capacity = count.value

    def encode(self, text: str | bytes, *, bos: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text."""
        data = _bytes(text)
        return self._ids("nb_encode", data, len(data), _BOS * bos | _PARSE_SPECIAL * parse_special)

    def encode_chat(self, user: str | bytes, *, system: str | None = None, turn: int = 0) -> list[int]:
        """Token ids of one user turn of a conversation; turn 0 opens it. Raises RunError E_CHAT_NONE."""
        return self._ids("nb_chat", turn, None if system is None else _bytes(system), _bytes(user))

    def decode(self, ids: Iterable[int], *, show_special: bool = False) -> str:
        """Text of token ids."""
        out, piece = bytearray(), c.create_string_buffer(_PIECE_MAX)
        for n, i in enumerate(ids):
            size = self._lib.nb_decode(self._handle(), i, _SHOW_SPECIAL * show_special, n == 0, piece)
            out += piece.raw[:size]
        return out.decode("utf-8", "replace")

    def reset(self) -> None:
        """Forgets the sequence."""
        self._lib.nb_reset(self._handle())

    def feed(self, ids: Sequence[int]) -> None:
        """Appends tokens. Raises RunError E_PROMPT_TOO_LONG or E_TOKEN."""
        self._call("nb_feed", self._handle(), (c.c_int32 * len(ids))(*ids), len(ids))

    def logits(self) -> array.array[float]:
        """float32 logits after the last token, (vocab)."""
        out = array.array("f")
        out.frombytes(c.string_at(self._lib.nb_logits(self._handle()), 4 * self.vocab))
        return out

    def eval(self, ids: Sequence[int]) -> array.array[float]:
        """Appends tokens; float32 logits after each of them, (len(ids), vocab) in one row. Needs all_logits."""
        out = array.array("f", bytes(4 * len(ids) * self.vocab))
        self._call("nb_eval", self._handle(), (c.c_int32 * len(ids))(*ids), len(ids), out.buffer_info()[0])
        return out

    def begin(self, settings: Settings) -> None:
        """Starts a generation after what was fed; steps() gives it. Raises RunError E_SAMPLING or E_STOP."""
        s = settings
        if len(s.stop) > 4:
            self._fail("E_STOP", 2, "options", f"{len(s.stop)} stop strings, allowed are 4")
        numbers = (s.max_tokens, s.temperature, s.top_p, s.min_p, s.repeat_penalty, s.top_k, s.repeat_window, s.seed)
        stops = (c.c_char_p * 4)(*(_bytes(text) for text in s.stop))
        raw = _Generation(c.sizeof(_Generation), *numbers, len(s.stop), 0, stops)
        self._call("nb_begin", self._handle(), c.byref(raw), subject="options")

    def steps(self) -> Iterator[tuple[int, str]]:
        """(token id, text that became complete) until the generation ends; id -1: only text was left."""
        piece, finish = _Piece(), 0
        while not finish:
            self._call("nb_next", self._handle(), c.byref(piece))
            finish = piece.finish
            self.finish_reason = _FINISH[finish]
            text = c.string_at(piece.text, piece.length).decode("utf-8", "replace")
            if not finish or text:
                yield piece.id, text

    def stream(
        self, prompt: str | bytes, *, chat: bool = False, system: str | None = None, **settings: object
    ) -> Iterator[str]:
        """Text of a new sequence as it comes; settings: the fields of Settings."""
        self.reset()
        self.feed(self.encode_chat(prompt, system=system) if chat else self.encode(prompt))
        self.begin(Settings(**settings))  # type: ignore[arg-type]
        for _, piece in self.steps():
            if piece:
                yield piece

    def generate(self, prompt: str | bytes, **settings: object) -> str:
        """The whole text of a new sequence; arguments as in stream()."""
        return "".join(self.stream(prompt, **settings))  # type: ignore[arg-type]


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="run.py", description="Continue a text with the model beside this file.")
    add = p.add_argument
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("-p", "--prompt", help="text to continue")
    source.add_argument("-f", "--file", help="take it from a file; - is standard input")
    add("-n", "--max-tokens", type=int, default=256, help="most tokens to generate; 0: only read the prompt")
    add("--stop", action="append", default=[], help="end before this text; up to 4 times")
    add("--chat", "-st", action="store_true", help="put the prompt into the chat template")
    add("--system", help="system text of the chat")
    add("--temp", "--temperature", dest="temperature", type=float, default=0.0)
    add("--top-k", type=int, default=40)
    add("--top-p", type=float, default=0.95)
    add("--min-p", type=float, default=0.0)
    add("--repeat-penalty", type=float, default=1.0)
    add("-s", "--seed", type=int, default=0)
    add("-m", "--model", type=Path, default=Path(__file__).resolve().parent)
    add("-c", "--ctx", dest="context", type=int)
    add("-t", "--threads", type=int, default=os.environ.get("NB_THREADS"))
    add("--kv", choices=_KV, default="f16")
    add("--mmap-mode", dest="map_mode", choices=_MAP, default="auto")
    add("--chunk", type=int)
    add("--isa", default=os.environ.get("NB_ISA"))
    add("--library", type=Path, help="libnano.so, if it is not beside the model")
    add("--ids", action="store_true", help="print token ids instead of text")
    add("--logits", type=Path, help="write the last logits (raw float32)")
    add("-q", "--quiet", action="store_true", help="no report line")
    return p


def _prompt(a: argparse.Namespace) -> bytes:
    if a.prompt is not None:
        return os.fsencode(a.prompt)
    try:
        return sys.stdin.buffer.read() if a.file == "-" else Path(a.file).read_bytes()
    except OSError as error:
        raise RunError("E_PROMPT_FILE", 3, a.file, f"cannot be read: {error.strerror}") from error


def _run(a: argparse.Namespace, llm: LLM) -> None:
    prompt = _prompt(a)
    started = time.perf_counter()
    ids = llm.encode_chat(prompt, system=a.system) if a.chat else llm.encode(prompt)
    llm.feed(ids)
    fed = first = last = time.perf_counter()
    out, tokens = sys.stdout.buffer, 0
    if a.max_tokens:
        llm.begin(Settings(**{f.name: getattr(a, f.name) for f in dataclasses.fields(Settings) if hasattr(a, f.name)}))
        for token, text in llm.steps():
            last = time.perf_counter()
            first = first if tokens else last
            shown = (f" {token}" if tokens else f"{token}") if token >= 0 else ""
            tokens += token >= 0
            out.write((shown if a.ids else text).encode())
            out.flush()
        out.write(b"\n")
        out.flush()
    if a.logits:
        a.logits.write_bytes(llm.logits().tobytes())
    if not a.quiet:
        speed = (tokens - 1) / (last - first) if tokens > 1 else 0.0
        print(
            f"# nb {tokens} tok  {speed:.1f} tok/s  {1e3 / speed if speed else 0:.1f} ms/tok  isa {llm.isa}"
            f"  prompt {len(ids)} tok  {len(ids) / (fed - started):.1f} tok/s",
            file=sys.stderr,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code, the same as the program's."""
    a = _parser().parse_args(arguments)
    try:
        options = {
            name: getattr(a, name) for name in ("threads", "context", "chunk", "kv", "map_mode", "isa", "library")
        }
        with LLM(a.model, **options) as llm:
            _run(a, llm)
    except RunError as error:
        print(f"nano-build: error[{error.code}]: {error.subject}: {error.text}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
