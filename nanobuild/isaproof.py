# SPDX-License-Identifier: Apache-2.0
"""Proof that no CPU meets an instruction it does not have: every instruction of a program, by the feature it needs.

A function whose name ends in __<level> may use what the level needs (platforms/isa.yaml); all others, the C library's
too, only what every CPU has that the program is for. data/isa_exceptions.yaml lists code that asks the CPU itself.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import functools
from pathlib import Path

import msgspec

from nanobuild import isa, resources, schema
from nanobuild.errors import ToolError, quoted
from nanobuild.isaclasses import UNKNOWN, decoder, elf

NO_SYMBOL = "(between functions)"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """An instruction where it must not be."""

    function: str
    address: int
    text: str
    needs: tuple[str, ...]  # the features that are too much
    allowed: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FunctionUse:
    """What one function holds."""

    name: str  # static functions of one name count together
    level: str  # "" for a function without one
    features: dict[str, int]  # instructions by feature; one that needs two counts twice
    instructions: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What was found in a file."""

    arch: str
    floor: tuple[str, ...]
    functions: tuple[FunctionUse, ...]
    violations: tuple[Violation, ...]


class _Exception(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arch: str
    functions: list[str]  # patterns of file names
    features: list[str]
    reason: str


class _ExceptionsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    exceptions: list[_Exception]


def examine(binary: Path, *, arch: str, floor: tuple[str, ...] = ("scalar",)) -> Proof:
    """Looks at all code of an unstripped program, library or object file.

    `floor` names the levels that every CPU has that this file is for. Raises ToolError E_ISA when the file cannot be
    read or is for another architecture, E_TOOL_MISSING when iced-x86 is not installed and the file is for x86-64.
    """
    found, sections = elf.read(binary)
    if found != arch:
        raise ToolError("E_ISA", binary, f"code for {found} found, allowed: {arch}")
    judge = _Judge(arch, floor)
    for code in sections:
        judge.section(code)
    return Proof(arch=arch, floor=floor, functions=judge.functions(), violations=tuple(judge.violations))


def require(proof: Proof, where: Path | str) -> None:
    """Raises ToolError E_ISA for the first violation."""
    if not proof.violations:
        return
    first, more = proof.violations[0], len(proof.violations) - 1
    what = "which is no instruction we know" if first.needs == UNKNOWN else f"which needs {', '.join(first.needs)}"
    text = f"function {quoted(first.function, 120)} holds {first.text} at {first.address:#x}, {what}, but may only use "
    text += f"{' '.join(first.allowed)}" + (f"; {more} more such" if more else "")
    raise ToolError("E_ISA", where, text, hint="code for a level belongs in a function named ...__<level>")


def summary(proof: Proof) -> dict[str, object]:
    """The proof for a manifest: functions by level, instructions by feature, and how many violations."""
    levels = collections.Counter(use.level or "base" for use in proof.functions)
    features: collections.Counter[str] = collections.Counter()
    for use in proof.functions:
        features.update(use.features)
    return {
        "floor": list(proof.floor),
        "functions": dict(sorted(levels.items())),
        "instructions": sum(use.instructions for use in proof.functions),
        "features": dict(sorted(features.items())),
        "violations": len(proof.violations),
    }


class _Judge:
    """Counts, and compares with what is allowed."""

    def __init__(self, arch: str, floor: tuple[str, ...]) -> None:
        table = isa.load_isa()
        self.arch, self.decoder = arch, decoder(arch)
        self.allowed: dict[str, frozenset[str]] = {}  # by level; "" for functions without one
        for level in ["", *(name for name, row in table.levels.items() if row.arch in (None, arch))]:
            held = table.closure([*floor, *([level] if level else [])])
            self.allowed[level] = self.decoder.BASE.union(*(table.levels[name].needs for name in held))
        unknown = sorted(set(floor) - self.allowed.keys())
        if unknown:
            raise ValueError(f"{unknown[0]} is no level of {arch}")
        self.uses: dict[tuple[str, str], collections.Counter[str]] = {}
        self.instructions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.violations: list[Violation] = []

    def section(self, code: elf.Code) -> None:
        """One executable section."""
        pieces = elf.pieces(code)
        cuts = [0, *(piece.end for piece in pieces)]
        for piece, instructions in zip(pieces, self.decoder.decode(code.data, cuts), strict=True):
            kinds = collections.Counter(needs for _, needs in instructions)
            padding = kinds.pop((), 0)
            name, level, allowed = self.owner(piece)
            if name == NO_SYMBOL and not code.data[piece.start : piece.end].strip(b"\0\xcc"):
                continue
            uses = self.uses.setdefault((name, level), collections.Counter())
            for needs, count in kinds.items():
                uses.update(dict.fromkeys(needs, count))
            self.instructions[name, level] += len(instructions) - padding
            if all(allowed.issuperset(needs) for needs in kinds):
                continue
            for offset, needs in instructions:
                if not allowed.issuperset(needs):
                    self.violations.append(
                        Violation(
                            function=name,
                            address=code.address + offset,
                            text=self.decoder.text(code.data, offset, code.address),
                            needs=tuple(sorted(set(needs) - allowed)),
                            allowed=tuple(sorted(allowed)),
                        )
                    )

    def functions(self) -> tuple[FunctionUse, ...]:
        """What was counted."""
        return tuple(
            FunctionUse(name=name, level=level, features=dict(sorted(uses.items())), instructions=count)
            for ((name, level), uses), count in zip(self.uses.items(), self.instructions.values(), strict=True)
        )

    def owner(self, piece: elf.Piece) -> tuple[str, str, frozenset[str]]:
        """Name, level and features of a stretch of code; under several names it may use what each of them may."""
        if not piece.owners:
            return NO_SYMBOL, "", self.allowed[""]
        levels = {symbol.name: self.level(symbol) for symbol in piece.owners}
        name = min(levels, key=lambda each: len(self.allowed[levels[each]]))
        allowed = frozenset.intersection(*(self.allowed[level] for level in levels.values()))
        excepted = (_excepted(self.arch, each) for each in levels)
        return name, levels[name], allowed.union(*excepted)

    def level(self, symbol: elf.Symbol) -> str:
        """The level in a name; a helper that a compiler left outside its kernel has that of its file."""
        name = symbol.name.split(".")[0]  # compilers append .cold, .part.0 and the like
        level = _suffix(name)
        if level not in self.allowed and not name.startswith("nb_"):
            level = _suffix(symbol.file.removesuffix(".c"))
        return level if level in self.allowed else ""


def _suffix(name: str) -> str:
    """What stands behind the last "__" of a name; "-", which is no level, where there is none."""
    return name.rpartition("__")[2] if "__" in name else "-"


@functools.cache
def _excepted(arch: str, name: str) -> frozenset[str]:
    """Features that data/isa_exceptions.yaml grants a function beside its level's."""
    path = resources.package_dir() / "data" / "isa_exceptions.yaml"
    rows = _exceptions(path)
    fitting = (row for row in rows if row.arch == arch and any(fnmatch.fnmatchcase(name, p) for p in row.functions))
    return frozenset().union(*(row.features for row in fitting))


@functools.cache
def _exceptions(path: Path) -> tuple[_Exception, ...]:
    return tuple(schema.load(path, _ExceptionsFile, "BOARD").exceptions)
