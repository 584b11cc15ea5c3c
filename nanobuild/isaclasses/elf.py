# SPDX-License-Identifier: Apache-2.0
"""The code of an ELF file (64-bit, little-endian) with the functions it belongs to: programs and object files.

Read with numpy instead of an ELF package: the ten thousand symbols of a RISC-V program take 5 ms so, and 600 there.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nanobuild.errors import ToolError, quoted

MACHINES = {62: "x86_64", 183: "arm64", 243: "riscv64"}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = np.dtype("<u4,<u4,<u8,<u8,<u8,<u8,<u4,<u4,<u8,<u8")
_SECTION.names = ("name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entsize")
_SYMBOL = np.dtype("<u4,u1,u1,<u2,<u8,<u8")
_SYMBOL.names = ("name", "info", "other", "shndx", "value", "size")
_PROGBITS, _SYMTAB = 1, 2
_ALLOC_EXEC = 2 | 4
_NOTYPE, _FUNC, _FILE, _IFUNC = 0, 2, 4, 10
_RELOCATABLE = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """A name for a place in code. `file` is the source that a local symbol comes from, "" for a global one."""

    name: str
    file: str
    start: int  # offset in the section
    end: int
    is_function: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """An executable section. `address` is where its first byte lies; 0 in an object file."""

    name: str
    address: int
    data: bytes
    symbols: tuple[Symbol, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of code that starts with an instruction, and the symbols it lies in; none: between functions."""

    start: int
    end: int
    owners: tuple[Symbol, ...]


def read(path: Path) -> tuple[str, tuple[Code, ...]]:
    """The architecture (our name) and all code. Raises ToolError E_ISA, also for a file without a symbol table."""
    data = path.read_bytes()
    try:
        return _read(data)
    except (ValueError, struct.error) as err:
        raise ToolError("E_ISA", path, f"its code cannot be read: {err}") from None


def pieces(code: Code) -> list[Piece]:
    """The section cut where functions start and end; together the pieces cover it.

    A label without a size counts as a function up to the next one, unless it lies in a function.
    """
    size = len(code.data)
    sized = [symbol for symbol in code.symbols if symbol.is_function and symbol.end > symbol.start]
    inside = np.zeros(size + 1, bool)
    inside[size] = True
    for symbol in sized:
        inside[symbol.start : symbol.end] = True
    loose = [symbol for symbol in code.symbols if not inside[symbol.start]]
    starts = sorted({symbol.start for symbol in [*sized, *loose]} | {size})
    following = dict(itertools.pairwise(starts))
    loose = [dataclasses.replace(symbol, end=following[symbol.start]) for symbol in loose]
    opening: dict[int, list[Symbol]] = {}
    for symbol in [*sized, *loose]:
        opening.setdefault(symbol.start, []).append(symbol)
    edges = sorted({0, size} | {edge for symbol in [*sized, *loose] for edge in (symbol.start, symbol.end)})
    made, owners = [], list[Symbol]()
    for start, end in itertools.pairwise(edges):
        owners = [symbol for symbol in owners if symbol.end > start] + opening.get(start, [])
        made.append(Piece(start=start, end=end, owners=tuple(owners)))
    return made


def _read(data: bytes) -> tuple[str, tuple[Code, ...]]:
    head = _HEADER.unpack_from(data)
    ident, kind, machine = head[0], head[1], head[2]
    if ident[:6] != b"\x7fELF\2\1" or machine not in MACHINES:
        raise ValueError(f"not an ELF file for {', '.join(MACHINES.values())}")
    section_offset, entry_size, count = head[6], head[11], head[12]
    if entry_size != _SECTION.itemsize:
        raise ValueError("no section table")
    sections = _table(data, _SECTION, section_offset, count * _SECTION.itemsize)
    tables = [section for section in sections if section["type"] == _SYMTAB]
    if len(tables) != 1 or int(tables[0]["link"]) >= count:
        raise ValueError("no symbol table: it was stripped")
    symbols = _table(data, _SYMBOL, int(tables[0]["offset"]), int(tables[0]["size"]))
    names = _content(data, sections[int(tables[0]["link"])])
    section_names = _content(data, sections[head[13]]) if head[13] < count else b""
    code = []
    for index, section in enumerate(sections):
        if int(section["flags"]) & _ALLOC_EXEC == _ALLOC_EXEC and section["type"] == _PROGBITS and section["size"]:
            address = 0 if kind == _RELOCATABLE else int(section["addr"])
            content = _content(data, section)
            own = tuple(_symbols(symbols, names, index, address, len(content)))
            code.append(
                Code(name=_name(section_names, int(section["name"])), address=address, data=content, symbols=own)
            )
    return MACHINES[machine], tuple(code)


def _symbols(table: npt.NDArray[np.void], names: bytes, section: int, address: int, size: int) -> Iterator[Symbol]:
    """Functions and labels of one section; without the marks that say where data is ($d, $x) and compilers' labels."""
    types = table["info"] & 15
    is_code = (table["shndx"] == section) & np.isin(types, (_NOTYPE, _FUNC, _IFUNC))
    file = ""
    for index in np.flatnonzero(is_code | (types == _FILE)).tolist():
        symbol = table[index]
        name = _name(names, int(symbol["name"]))
        if types[index] == _FILE:
            file = name
            continue
        if not name or name.startswith(("$", ".L")):
            continue
        start = int(symbol["value"]) - address
        end = start + int(symbol["size"])
        if not 0 <= start <= end <= size:
            raise ValueError(f"symbol {quoted(name)} reaches out of its section")
        local = symbol["info"] >> 4 == 0
        is_function = types[index] != _NOTYPE
        yield Symbol(name=name, file=file if local else "", start=start, end=end, is_function=bool(is_function))


def _table(data: bytes, kind: np.dtype[np.void], offset: int, size: int) -> npt.NDArray[np.void]:
    return np.frombuffer(_part(data, offset, size // kind.itemsize * kind.itemsize), kind)


def _content(data: bytes, section: np.void) -> bytes:
    return _part(data, int(section["offset"]), int(section["size"]))


def _part(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ValueError("a table reaches beyond the end of the file")
    return data[offset : offset + size]


def _name(names: bytes, offset: int) -> str:
    end = names.find(b"\0", offset)
    return names[offset : max(end, offset)].decode("utf-8", "backslashreplace")
