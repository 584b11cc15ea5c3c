# SPDX-License-Identifier: Apache-2.0
"""From C sources to a static program or a shared library: plan first, then do only what is not in the cache.

A file's place decides how it is compiled: ops/<arch>/<kernel>__<level>.c gets the level's flags from isa.yaml, all
others the architecture's base flags. Each object is kept under a hash of everything that went into it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from nanobuild import isa, proc, resources, toolchains
from nanobuild.archs import parse_arch
from nanobuild.errors import ToolError
from nanobuild.platforms import Platform, load_platform
from nanobuild.progress import Progress, silent
from nanobuild.publish import published_file

_CFLAGS = ("-O3", "-std=gnu17", "-g0", "-ffp-contract=off", "-fno-math-errno", "-pthread")
_SECTIONS = ("-ffunction-sections", "-fdata-sections")
_HEADERS = {".h", ".def", ".inc"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One object to compile: the command line (run in the folder of the sources) without its output, and its key."""

    source: str  # relative to the folder of the sources
    argv: tuple[str, ...]
    key: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that will be done, in order."""

    folder: Path  # of the sources
    arch: str
    levels: tuple[str, ...]
    shared: bool
    toolchain: toolchains.Toolchain
    compiler: toolchains.Found
    steps: tuple[Step, ...]
    link: tuple[str, ...]  # before the objects
    key: str

    def lines(self) -> list[str]:
        """The exact command lines, for people; objects go by the names of their sources."""
        objects = [step.source.removesuffix(".c").replace("/", "_") + ".o" for step in self.steps]
        pairs = zip(self.steps, objects, strict=True)
        compiles = [shlex.join([*step.argv, step.source, "-o", name]) for step, name in pairs]
        return [
            *compiles,
            shlex.join([*self.link, *objects, *_LIBRARIES, "-o", "libnano.so" if self.shared else "run"]),
        ]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """What was built, and how."""

    out: Path
    size: int  # bytes
    sha256: str
    compiler: str  # name and version
    arch: str
    levels: tuple[str, ...]
    compiled: int  # objects that were not in the cache
    cached: int
    seconds: float


_LIBRARIES = ("-lm",)


def build_binary(
    platform: Platform, out: Path, *, progress: Progress = silent, toolchain: isa.Compiler | None = None
) -> BuildReport:
    """The static program for a platform. Raises ToolError E_TARGET, E_TOOL_MISSING, E_TOOL_FAILED; ResourceError."""
    return execute(make_plan(platform, shared=False, toolchain=toolchain), out, progress)


def build_library(out: Path, *, progress: Progress = silent, toolchain: isa.Compiler | None = None) -> BuildReport:
    """libnano.so for this machine's Python: every level of its architecture, the same sources without main.c."""
    arch = parse_arch(os.uname().machine) or os.uname().machine
    isa.load_isa().arch(arch)
    platform = load_platform(f"generic-{arch}")
    return execute(make_plan(platform, shared=True, toolchain=toolchain), out, progress)


def make_plan(
    platform: Platform, *, shared: bool, toolchain: isa.Compiler | None = None, folder: Path | None = None
) -> Plan:
    """What building for a platform means on this machine; `folder` holds the sources (default: our own)."""
    table = isa.load_isa()
    arch = table.arch(platform.arch)
    folder = folder or resources.kernels_dir()
    prefer = (toolchain,) if toolchain else platform.toolchains
    module, found = toolchains.choose(platform.arch, prefer, cc=platform.cc)
    target = module.target_flags(arch, shared=shared)
    common = (*found.argv, *target, *_CFLAGS, *_SECTIONS, "-fvisibility=hidden", *(("-fPIC",) if shared else ()))
    defines = tuple(f"-DNB_BUILD_{level.upper()}=1" for level in platform.levels)
    headers = _digest_of(folder, (path for path in sorted(folder.rglob("*")) if path.suffix in _HEADERS))
    steps = []
    for source, level in _sources(folder, platform, shared=shared):
        flags = table.flags(platform.arch, level, found.name)
        extra = defines if source.startswith("hal/") else ()
        argv = (*common, *flags, *platform.cflags, *extra, "-I.", "-c")
        made_of = [found.version, argv[len(found.argv) :], _digest_of(folder, [folder / source]), headers]
        steps.append(Step(source=source, argv=argv, key=_key(made_of)))
    if not steps:
        raise ToolError("E_INSTALL", folder, "no C sources here", hint="install nano-build again")
    base = arch.base.of(found.name)
    link = (*found.argv, *target, *base, *module.link_flags(shared=shared), "-pthread", "-s", "-Wl,--gc-sections")
    link += ("-Wl,-soname,libnano.so",) if shared else ()
    key = _key([found.version, link[len(found.argv) :], [step.key for step in steps]])
    return Plan(
        folder=folder,
        arch=platform.arch,
        levels=platform.levels,
        shared=shared,
        toolchain=module,
        compiler=found,
        steps=tuple(steps),
        link=link,
        key=key,
    )


def execute(plan: Plan, out: Path, progress: Progress = silent) -> BuildReport:
    """Does what is not in the cache, and publishes the result under the name `out`."""
    start = time.monotonic()
    store = resources.cache_dir("objects")
    linked = _stored(store, plan.key)
    missing: list[Step] = []
    if not linked.exists():
        missing = [step for step in plan.steps if not _stored(store, step.key).exists()]
        _compile(plan, missing, store, progress)
        _link(plan, store, progress)
    data = linked.read_bytes()
    with published_file(out) as file:
        file.write(data)
    out.chmod(out.stat().st_mode | ((out.stat().st_mode & 0o444) >> 2))  # executable for all who may read it
    return BuildReport(
        out=out,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        compiler=plan.compiler.version,
        arch=plan.arch,
        levels=plan.levels,
        compiled=len(missing),
        cached=len(plan.steps) - len(missing),
        seconds=time.monotonic() - start,
    )


def _sources(folder: Path, platform: Platform, *, shared: bool) -> list[tuple[str, str]]:
    """Sources with the level each is compiled for, in a fixed order."""
    chosen: list[tuple[str, str]] = []
    for place in ("hal", "runtime", "ops/scalar", f"ops/{platform.arch}"):
        for path in sorted((folder / place).glob("*.c")):
            name = f"{place}/{path.name}"
            level = path.stem.rpartition("__")[2] if "__" in path.stem else "scalar"
            if place == "hal" and path.stem.startswith("cpu_") and path.stem != f"cpu_{platform.arch}":
                continue
            if (shared and name == "runtime/main.c") or level not in platform.levels:
                continue
            chosen.append((name, level))
    return chosen


def _compile(plan: Plan, steps: list[Step], store: Path, progress: Progress) -> None:
    what = f"compiling for {plan.arch} with {plan.compiler.version}"
    workers = max(1, len(os.sched_getaffinity(0)))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            jobs = [pool.submit(_run, plan, [*step.argv, step.source], _stored(store, step.key)) for step in steps]
            for done, job in enumerate(concurrent.futures.as_completed(jobs)):
                job.result()
                progress(what, done + 1, len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            proc.end_all()
            raise


def _link(plan: Plan, store: Path, progress: Progress) -> None:
    arch = isa.load_isa().arch(plan.arch)
    slow = plan.toolchain.first_use(plan.compiler, arch, shared=plan.shared)
    progress(slow or f"linking for {plan.arch}")
    objects = [str(_stored(store, step.key)) for step in plan.steps]
    _run(plan, [*plan.link, *objects, *_LIBRARIES], _stored(store, plan.key))
    plan.toolchain.linked(plan.compiler, arch, shared=plan.shared)


def _run(plan: Plan, argv: list[str], out: Path) -> None:
    """Runs the compiler; its output takes its place in the cache only when it is complete."""
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp.", dir=out.parent) as folder:
        made = Path(folder) / out.name
        proc.run([*argv, "-o", made], env=plan.compiler.env, cwd=plan.folder)
        os.replace(made, out)


def _stored(store: Path, key: str) -> Path:
    return store / key[:2] / f"{key}.o"


def _digest_of(folder: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _key(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
