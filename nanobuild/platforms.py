# SPDX-License-Identifier: Apache-2.0
"""Board profiles: what a board is and what may be built for it. A board is one YAML file in platforms/.

`extends` names another profile; mappings are merged key by key, anything else is replaced, and `match` (how `detect`
knows the board) is never inherited.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from nanobuild import convert, isa, resources, schema
from nanobuild.errors import InputError, UsageError, quoted

if TYPE_CHECKING:
    from nanobuild.ui import Ui

MAX_EXTENDS = 8
_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"

Name = Annotated[str, msgspec.Meta(pattern=_NAME, description="lower-case letters, digits, '.', '_' and '-'")]
Line = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{0,200}$", description="one line of at most 200 ASCII characters")]
Size = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,8}[KMG]$", description="a size like 32K, 2M or 1G")]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]
RamMb = Annotated[int, msgspec.Meta(ge=16, le=1 << 24)]
Program = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$", description="a program's name, looked up on PATH")
]
Cflag = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^-(O[0123s]|mtune=(?!native$)[a-z0-9._-]{1,40})$",
        description="-O0, -O1, -O2, -O3, -Os or -mtune=CPU (not native)",
    ),
]
QemuCpu = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,99}$", description="a CPU as QEMU's -cpu names it"),
]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `detect` knows the board: entries of the device tree's root `compatible`, or parts of the CPU's name."""

    compatible: list[Line] = []
    cpu: list[Line] = []


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cache sizes, per core or per cluster as the data sheet gives them."""

    l1d: Size | None = None
    l2: Size | None = None
    l3: Size | None = None


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which compilers may build for the board, best first."""

    prefer: tuple[isa.Compiler, ...] = ("zig", "clang", "gcc")
    cc: Program | None = None
    cflags: list[Cflag] = []


class Emulator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How QEMU stands in for the board."""

    cpu: QemuCpu | None = None


class BoardFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile as it stands in YAML, after `extends` is resolved."""

    version: Literal[1]
    name: Name
    arch: Annotated[str, msgspec.Meta(max_length=16)]
    levels: tuple[str, ...] = ("scalar",)
    floor: Annotated[str, msgspec.Meta(max_length=16)] = "scalar"
    title: Line = ""
    soc: Line = ""
    source: Line = ""
    extends: Name | None = None
    match: Match = Match()
    cores: Count | None = None
    threads: Count | None = None
    ram_mb: RamMb | None = None
    cache: Cache = Cache()
    toolchain: Toolchain = Toolchain()
    emulator: Emulator = Emulator()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """A resolved profile."""

    name: str
    title: str
    arch: str  # our name: x86_64, arm64, riscv64
    levels: tuple[str, ...]  # lowest first, implied ones included
    floor: tuple[str, ...]  # those of them that the program takes for granted; at least scalar
    soc: str
    source: str
    cores: int | None
    threads: int | None  # default for the board; None: one per fast core
    ram_bytes: int | None
    cache: Mapping[str, int]  # bytes by "l1d", "l2", "l3"
    toolchains: tuple[isa.Compiler, ...]  # best first
    cc: str | None  # a particular gcc or clang program
    cflags: tuple[str, ...]
    emulator_cpu: str | None  # for QEMU's -cpu; None: what QEMU takes by itself
    files: tuple[Path, ...]  # the profile and what it extends

    @property
    def buildable(self) -> bool:
        """Whether this version has kernels for the architecture."""
        return self.arch in isa.load_isa().arches


def list_platforms() -> list[str]:
    """Names of the profiles that ship, generic ones first."""
    names = {path.stem for path in resources.platforms_dir().glob("*.yaml")} - {"isa"}
    return sorted(names, key=lambda name: (not name.startswith("generic-"), name))


def default_platform() -> str:
    """Name of the generic profile of this machine. Raises ToolError E_TARGET where there are no kernels for it."""
    machine = os.uname().machine
    arch = isa.parse_arch(machine) or machine
    isa.load_isa().arch(arch)
    return f"generic-{arch}"


def load_platform(name: str | Path) -> Platform:
    """A profile by name, by path (ends in .yaml, or contains a slash), or "native": the one that `detect` suggests.

    Raises UsageError E_TARGET (no such name) and InputError E_YAML_*, E_BOARD_KEY, E_BOARD_VALUE, E_BOARD_MISSING.
    """
    text = str(name)
    if text == "native":
        from nanobuild import detect

        text = detect.detect()["suggest"]["platform"]
    if "/" in text or text.endswith((".yaml", ".yml")):
        path = Path(text)
    else:
        names = list_platforms()
        if text not in names:
            hint = convert.did_you_mean(text, names) or "nano-build targets"
            raise UsageError("E_TARGET", "", f"unknown platform {quoted(text)}", hint=hint)
        path = resources.platforms_dir() / f"{text}.yaml"
    node, files = _resolve(path)
    return _platform(node, files)


def _resolve(path: Path) -> tuple[schema.Node, tuple[Path, ...]]:
    """The merged tree of a file and all it extends."""
    node = schema.read(path, "BOARD")
    files, chain = [path], [path.resolve()]
    tree = node
    while isinstance(node.value, Mapping) and "extends" in node.value:
        parent = node.value["extends"]
        where = f"{parent.file}:{parent.line}"
        if not isinstance(parent.value, str) or not re.fullmatch(_NAME, parent.value):
            raise InputError(
                "E_BOARD_VALUE", where, f"extends: found {quoted(parent.value)}, allowed: a profile's name"
            )
        shipped = resources.platforms_dir() / f"{parent.value}.yaml"
        path = shipped if shipped.is_file() else path.parent / f"{parent.value}.yaml"
        if path.resolve() in chain or len(chain) >= MAX_EXTENDS:
            names = " > ".join(p.stem for p in [*chain, path])
            what = "a circle" if path.resolve() in chain else f"more than {MAX_EXTENDS} files"
            raise InputError("E_BOARD_VALUE", where, f"extends: {what}: {quoted(names, 200)}")
        if not path.is_file():
            names = ", ".join(list_platforms())
            raise InputError("E_BOARD_VALUE", where, f"extends: found {quoted(parent.value)}, allowed: {names}")
        node = schema.read(path, "BOARD")
        files.append(path)
        chain.append(path.resolve())
        tree = _merged(tree, node, top=True)
    return tree, tuple(files)


def _merged(child: schema.Node, parent: schema.Node, *, top: bool = False) -> schema.Node:
    if not isinstance(child.value, Mapping) or not isinstance(parent.value, Mapping):
        return child
    kept = {
        key: item for key, item in parent.value.items() if not (top and key in ("name", "extends", "match", "title"))
    }
    for key, item in child.value.items():
        kept[key] = _merged(item, kept[key]) if key in kept else item
    return schema.Node(kept, child.file, child.line)


def _platform(node: schema.Node, files: tuple[Path, ...]) -> Platform:
    board = convert.convert(node, BoardFile, "BOARD")
    entries = node.value if isinstance(node.value, Mapping) else {}
    arch = isa.parse_arch(board.arch)
    if arch is None:
        raise _refuse(entries["arch"], f"arch: found {quoted(board.arch)}, allowed: {', '.join(isa.SYNONYMS)}")
    table = isa.load_isa()
    try:
        levels = table.closure(board.levels)
    except ValueError as err:
        raise _refuse(entries.get("levels", node), f"levels: {err}") from None
    foreign = [name for name in (*board.levels, *levels) if table.levels[name].arch not in (None, arch)]
    if foreign or not levels:
        allowed = ", ".join(name for name, level in table.levels.items() if level.arch in (None, arch))
        found = quoted(foreign[0]) if foreign else "an empty list"
        raise _refuse(entries.get("levels", node), f"levels: found {found}, allowed for {arch}: {allowed}")
    if board.floor not in levels:
        found, allowed = quoted(board.floor), ", ".join(levels)
        raise _refuse(entries["floor"], f"floor: found {found}, allowed with these levels: {allowed}")
    sizes = {"l1d": board.cache.l1d, "l2": board.cache.l2, "l3": board.cache.l3}
    return Platform(
        name=board.name,
        title=board.title,
        arch=arch,
        levels=levels,
        floor=table.closure([board.floor]),
        soc=board.soc,
        source=board.source,
        cores=board.cores,
        threads=board.threads,
        ram_bytes=board.ram_mb * (1 << 20) if board.ram_mb is not None else None,
        cache={key: parse_size(text) for key, text in sizes.items() if text is not None},
        toolchains=board.toolchain.prefer,
        cc=board.toolchain.cc,
        cflags=tuple(board.toolchain.cflags),
        emulator_cpu=board.emulator.cpu,
        files=files,
    )


def _refuse(node: schema.Node, text: str) -> InputError:
    return InputError("E_BOARD_VALUE", f"{node.file}:{node.line}", text)


def parse_size(text: str) -> int:
    """Bytes of a size like 32K, 2M or 1G (powers of 1024)."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def main(ui: Ui, name: str | None) -> None:
    """`nano-build targets [NAME]`."""
    platforms = [load_platform(name)] if name else [load_platform(each) for each in list_platforms()]
    data = {"targets": [describe(platform) for platform in platforms]}
    if name:
        rows = [(key, _cell(value)) for key, value in describe(platforms[0]).items() if value not in (None, "", [], {})]
        ui.result(data, lambda: ui.table(("", ""), rows))
        return
    rows4 = [(p.name, p.arch, ", ".join(p.levels), "yes" if p.buildable else "no", p.title) for p in platforms]
    ui.result(data, lambda: ui.table(("target", "arch", "levels", "builds", "what"), rows4))


def describe(platform: Platform) -> dict[str, object]:
    """A platform for JSON."""
    data = dataclasses.asdict(platform)
    data["files"] = [path.name for path in platform.files]
    data["buildable"] = platform.buildable
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {size // 1024}K" for key, size in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
