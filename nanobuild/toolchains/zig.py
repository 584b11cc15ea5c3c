# SPDX-License-Identifier: Apache-2.0
"""zig cc, from the `ziglang` package, NANOBUILD_ZIG or PATH: one compiler for every target, no sysroot, same bytes.

Its caches always lie in our own cache folder: it refuses to run without HOME otherwise.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from nanobuild import proc, resources
from nanobuild.errors import ToolError
from nanobuild.isa import Arch
from nanobuild.toolchains import Found


def program() -> Path | None:
    """The zig executable: $NANOBUILD_ZIG, else the one of the ziglang package, else the one on PATH.

    Raises ToolError E_TOOL_MISSING when NANOBUILD_ZIG names no program.
    """
    named = os.environ.get("NANOBUILD_ZIG")
    if named:
        found = proc.which(named)
        if found is None:
            raise ToolError("E_TOOL_MISSING", "NANOBUILD_ZIG", f"{named} is no program")
        return found.absolute()
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        inside = Path(folder) / "zig"
        if os.access(inside, os.X_OK):  # the empty ziglang 0.0.0 that some platforms get has none
            return inside
    return proc.which("zig")


def environment() -> dict[str, str]:
    """What zig may see: nothing of the user's, and our cache folders."""
    cache = str(resources.cache_dir("zig"))
    return proc.clean_env(ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache)


@functools.cache
def version(zig: Path) -> str:
    """What `zig version` says."""
    return proc.run([zig, "version"], env=environment(), timeout=60).stdout.decode("ascii", "replace").strip()


def find(name: str, arch: Arch, cc: str | None) -> Iterator[Found]:
    """zig builds for every architecture; `cc` is for other compilers."""
    del name, arch, cc
    zig = program()
    if zig is not None:
        yield Found(name="zig", argv=(str(zig), "cc"), version=f"zig {version(zig)}", major=0, env=environment())


def target_flags(arch: Arch, *, shared: bool) -> tuple[str, ...]:
    """The target triple: static musl for programs, an old glibc for the library that Python loads."""
    return ("-target", arch.zig_shared if shared else arch.zig_static, "-fno-sanitize=all")


def link_flags(*, shared: bool) -> tuple[str, ...]:
    """-O3 and -g0 belong here too: other ones would cost another build of the C library."""
    return ("-O3", "-g0", *(("-shared", "-fPIC") if shared else ("-static",)))


def first_use(found: Found, arch: Arch, *, shared: bool) -> str:
    """zig compiles the C library at the first link for a target; a stamp in the cache remembers that it did."""
    target = arch.zig_shared if shared else arch.zig_static
    how_long = "a few seconds" if shared else "about half a minute"
    return "" if _stamp(found, target).exists() else f"building the C library for {target}, once: {how_long}"


def linked(found: Found, arch: Arch, *, shared: bool) -> None:
    """Remembers that the C library for this target is in the cache."""
    _stamp(found, arch.zig_shared if shared else arch.zig_static).touch()


def _stamp(found: Found, target: str) -> Path:
    return resources.cache_dir("zig") / f"linked.{found.version.split()[-1]}.{target}"
