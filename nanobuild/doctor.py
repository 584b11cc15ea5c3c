# SPDX-License-Identifier: Apache-2.0
"""What is missing on this machine, each with the one line that mends it. Nothing is changed and no package imported."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from nanobuild import emulator, proc, resources, toolchains
from nanobuild.archs import parse_arch
from nanobuild.errors import NanoBuildError
from nanobuild.isa import Compiler, load_isa
from nanobuild.toolchains import zig

if TYPE_CHECKING:
    from nanobuild.ui import Ui

Status = Literal["ok", "warn", "fail"]

NEEDED = {
    "typer": ((0, 21), (0, 27)),
    "rich": ((13,), None),
    "numpy": ((1, 26), None),
    "safetensors": ((0, 4, 3), None),
    "pyyaml": ((6,), None),
    "msgspec": ((0, 18), None),
    "platformdirs": ((4,), None),
    "jinja2": ((3, 1, 6), None),
    "crc32c": ((2, 4), None),
    "iced-x86": ((1, 17), None),
}  # as in pyproject.toml, ziglang apart: from (included), below (excluded)
_DISK_GOOD, _DISK_BAD = 2 << 30, 512 << 20
_FAILED = 6
_ICED = ("x86_64", "aarch64")  # machines that have iced-x86; elsewhere programs for x86-64 cannot be examined


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: Status
    found: str
    fix: str = ""


def checks() -> list[Check]:
    """All findings, worst not first: in the order in which things are needed."""
    return [_python(), _machine(), *_packages(), _zig(), _compilers(), *_cache(), _emulators(), _extra()]


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.maxsize < 1 << 32:
        return Check(
            name="Python", status="fail", found=f"{version}, 32 bits", fix="install a 64-bit Python 3.10 or newer"
        )
    return Check(name="Python", status="ok", found=version)


def _machine() -> Check:
    name, arches = os.uname().machine, load_isa().arches
    if parse_arch(name) in arches:
        return Check(name="machine", status="ok", found=f"{name}, builds for {', '.join(arches)}")
    fix = f"build for another machine with --target: there are kernels for {', '.join(arches)} only"
    return Check(name="machine", status="warn", found=name, fix=fix)


def _packages() -> Iterator[Check]:
    """Each package that we need: there, with readable metadata, in a version that we can use."""
    good = []
    needed = {name: span for name, span in NEEDED.items() if name != "iced-x86" or os.uname().machine in _ICED}
    for name, (low, below) in needed.items():
        span = f">={_dotted(low)}" + (f",<{_dotted(below)}" if below else "")
        fix = f"python -m pip install --force-reinstall '{name}{span}'"
        try:
            metadata = importlib.metadata.distribution(name).metadata
        except importlib.metadata.PackageNotFoundError:
            yield Check(name=name, status="fail", found="not installed", fix=fix)
            continue
        version = metadata["Version"] if "Version" in metadata else ""  # noqa: SIM401  the type has no get()
        if not version:  # a dist-info folder that lost its METADATA
            yield Check(name=name, status="fail", found="installed, but its metadata is broken", fix=fix)
        elif _parts(version) < low or (below and _parts(version) >= below):
            yield Check(name=name, status="fail", found=f"{version}, needed {span}", fix=fix)
        else:
            good.append(f"{name} {version}")
    if len(good) == len(needed):
        yield Check(name="packages", status="ok", found=", ".join(good))


def _zig() -> Check:
    fix = f"python -m pip install ziglang=={toolchains.PINNED}"
    try:
        program = zig.program()
        version = zig.version(program) if program else ""
    except NanoBuildError as err:
        return Check(name="zig", status="fail", found=str(err), fix=fix)
    if program is None:
        other = next((name for name in ("clang", "gcc") if proc.which(name)), None)
        found = f"not installed; {other} is there and can be used" if other else "no compiler at all"
        return Check(name="zig", status="warn" if other else "fail", found=found, fix=fix)
    if version != toolchains.PINNED:
        return Check(name="zig", status="warn", found=f"{version} ({program}), tried with {toolchains.PINNED}", fix=fix)
    return Check(name="zig", status="ok", found=f"{version} ({program})")


def _cache() -> Iterator[Check]:
    try:
        folder = resources.cache_dir()
    except NanoBuildError as err:
        yield Check(name="cache", status="fail", found=str(err), fix=err.hint)
        return
    yield Check(name="cache", status="ok", found=str(folder))
    free = shutil.disk_usage(folder).free
    found = f"{free / (1 << 30):.1f} GiB free for the cache"
    status: Status = "ok" if free >= _DISK_GOOD else "warn" if free >= _DISK_BAD else "fail"
    fix = "" if status == "ok" else f"free some space, or set NANOBUILD_CACHE to another disk than that of {folder}"
    yield Check(name="disk", status=status, found=found, fix=fix)


def _compilers() -> Check:
    """clang and gcc, which can build instead of zig: which of them for which architecture."""
    found = []
    names: tuple[Compiler, ...] = ("clang", "gcc")
    for name in names:
        for arch, row in load_isa().arches.items():
            compiler = next(iter(toolchains.load(name).find(arch, row, None)), None)
            if compiler:
                found.append(f"{name} {compiler.major} for {arch}")
    text = ", ".join(found) or "none but zig, which is enough"
    return Check(name="other compilers", status="ok", found=text)


def _emulators() -> Check:
    own = parse_arch(os.uname().machine)
    wanted = {arch: row.emulator for arch, row in load_isa().arches.items() if arch != own}
    missing = [name for arch, name in wanted.items() if emulator.program_of(arch) is None]
    if not missing:
        return Check(name="emulators", status="ok", found=", ".join(wanted.values()))
    fix = f"{emulator.how_to_get()} (only to check and run programs for other CPUs)"
    return Check(name="emulators", status="warn", found=f"no {', '.join(missing)}", fix=fix)


def _extra() -> Check:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not missing:
        return Check(name="extra calibrate", status="ok", found="installed")
    fix = "python -m pip install 'nano-build[calibrate]' (only for quantization with calibration)"
    return Check(name="extra calibrate", status="warn", found=f"no {', '.join(missing)}", fix=fix)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version.split("+", maxsplit=1)[0])[:3])


def _dotted(parts: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in parts)


def main(ui: Ui) -> int:
    """`nano-build doctor`: exit code 6 when something has to be mended."""
    found = checks()
    ok = all(check.status != "fail" for check in found)

    def show() -> None:
        ui.table(("", "what", "found"), [(check.status, check.name, check.found) for check in found])
        for check in found:
            if check.fix:
                ui.out(f"{check.name}: {check.fix}")

    ui.result({"ok": ok, "checks": [dataclasses.asdict(check) for check in found]}, show)
    return 0 if ok else _FAILED
