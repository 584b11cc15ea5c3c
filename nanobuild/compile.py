# SPDX-License-Identifier: Apache-2.0
"""From C sources to a static program or a shared library: plan first, then do only what is not in the cache.

A file's place decides how it is compiled: ops/<arch>/<kernel>__<level>.c gets the level's flags from isa.yaml, all
others the architecture's base flags, the kernel table also the platform's floor. Each object is kept under a hash of
everything that went into it; what is linked is disassembled once, with its symbols, before it is kept.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nanobuild import isa, isaproof, proc, resources, toolchains
from nanobuild.errors import ToolError
from nanobuild.platforms import Platform, default_platform, load_platform
from nanobuild.progress import Progress, silent
from nanobuild.publish import published_file

_CFLAGS = ("-O3", "-std=gnu17", "-g0", "-ffp-contract=off", "-fno-math-errno", "-pthread")
_SECTIONS = ("-ffunction-sections", "-fdata-sections")
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


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
    floor: tuple[str, ...]
    shared: bool
    toolchain: toolchains.Toolchain
    compiler: toolchains.Found
    steps: tuple[Step, ...]
    link: tuple[str, ...]  # before the objects
    key: str

    def link_line(self, objects: Sequence[str], out: str, *, symbols: bool = False) -> list[str]:
        """The command line of the link; the program that ships has no symbols."""
        return [*self.link, *(() if symbols else ("-s",)), *objects, "-lm", "-o", out]

    def lines(self) -> list[str]:
        """The exact command lines, for people; objects go by the names of their sources."""
        objects = [step.source.removesuffix(".c").replace("/", "_") + ".o" for step in self.steps]
        pairs = zip(self.steps, objects, strict=True)
        compiles = [shlex.join([*step.argv, step.source, "-o", name]) for step, name in pairs]
        return [*compiles, shlex.join(self.link_line(objects, "libnano.so" if self.shared else "run"))]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BuildReport:
    """What was built, and how."""

    out: Path
    size: int  # bytes
    sha256: str
    compiler: str  # name and version
    arch: str
    levels: tuple[str, ...]
    isa: Mapping[str, object]  # what the disassembly found: see isaproof.summary()
    compiled: int  # objects that were not in the cache
    cached: int
    seconds: float


def build_binary(
    platform: Platform, out: Path, *, progress: Progress = silent, toolchain: isa.Compiler | None = None
) -> BuildReport:
    """The static program for a platform. Raises ToolError E_TARGET, E_TOOL_MISSING, E_TOOL_FAILED; ResourceError."""
    return execute(make_plan(platform, shared=False, toolchain=toolchain), out, progress)


def build_library(
    out: Path,
    platform: Platform | None = None,
    *,
    progress: Progress = silent,
    toolchain: isa.Compiler | None = None,
) -> BuildReport:
    """libnano.so for a platform's Python (None: this machine's): the same sources without main.c. Raises the same."""
    platform = platform or load_platform(default_platform())
    return execute(make_plan(platform, shared=True, toolchain=toolchain), out, progress)


def make_plan(
    platform: Platform, *, shared: bool, toolchain: isa.Compiler | None = None, folder: Path | None = None
) -> Plan:
    """What building for a platform means on this machine; `folder` holds the sources (default: our own)."""
    table = isa.load_isa()
    arch = table.arch(platform.arch)
    folder = folder or resources.kernels_dir()
    prefer = (toolchain,) if toolchain else platform.toolchains
    module, found = toolchains.choose(platform.arch, platform.levels, prefer, cc=platform.cc)
    target = module.target_flags(arch, shared=shared)
    common = (*found.argv, *target, *_CFLAGS, *_SECTIONS, "-fvisibility=hidden", *(("-fPIC",) if shared else ()))
    defines = tuple(f"-DNB_BUILD_{level.upper()}=1" for level in platform.levels)
    floor = "|".join(f"NB_ISA_{level.upper()}" for level in platform.floor if level != "scalar")
    defines += (f"-DNB_FLOOR=({floor})",) if floor else ()
    steps, seen = [], dict[Path, list[Path]]()
    for source, level in _sources(folder, platform, shared=shared):
        flags = table.flags(platform.arch, level, found.name)
        extra = defines if source.startswith("hal/") else ()
        argv = (*common, *flags, *platform.cflags, *extra, "-I.", "-c")
        made_of = [
            found.version,
            argv[len(found.argv) :],
            _digest_of(folder, _with_headers(folder, folder / source, seen)),
        ]
        steps.append(Step(source=source, argv=argv, key=_key(made_of)))
    if not steps:
        raise ToolError("E_INSTALL", folder, "no C sources here", hint="install nano-build again")
    base = arch.base.of(found.name)
    link = (*found.argv, *target, *base, *module.link_flags(shared=shared), "-pthread", "-Wl,--gc-sections")
    link += ("-Wl,-soname,libnano.so",) if shared else ()
    key = _key([found.version, link[len(found.argv) :], [step.key for step in steps]])
    return Plan(
        folder=folder,
        arch=platform.arch,
        levels=platform.levels,
        floor=platform.floor,
        shared=shared,
        toolchain=module,
        compiler=found,
        steps=tuple(steps),
        link=link,
        key=key,
    )


def execute(plan: Plan, out: Path, progress: Progress = silent) -> BuildReport:
    """Does what is not in the cache, and publishes the result under the name `out`.

    Raises ToolError E_TOOL_FAILED, and E_ISA when an instruction is in it that a CPU may meet and not know.
    """
    start = time.monotonic()
    store = resources.cache_dir("objects")
    linked, proof = _stored(store, plan.key), _stored(store, _key([plan.key, _rules()]), ".json")
    missing: list[Step] = []
    if not (linked.exists() and proof.exists()):
        missing = [step for step in plan.steps if not _stored(store, step.key).exists()]
        _compile(plan, missing, store, progress)
        _link(plan, store, progress)
        _prove(plan, store, proof, progress)
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
        isa=json.loads(proof.read_bytes()),
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
            jobs = [pool.submit(_compile_one, plan, step, store) for step in steps]
            for done, job in enumerate(concurrent.futures.as_completed(jobs)):
                job.result()
                progress(what, done + 1, len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            proc.end_all()
            raise


def _compile_one(plan: Plan, step: Step, store: Path) -> None:
    with _place(_stored(store, step.key)) as made:
        _run(plan, [*step.argv, step.source, "-o", str(made)])


def _link(plan: Plan, store: Path, progress: Progress) -> None:
    arch = isa.load_isa().arch(plan.arch)
    slow = plan.toolchain.first_use(plan.compiler, arch, shared=plan.shared)
    progress(slow or f"linking for {plan.arch}")
    linked = _stored(store, plan.key)
    with _place(linked) as made:
        _run(plan, plan.link_line(_objects(plan, store), str(made)))
    plan.toolchain.linked(plan.compiler, arch, shared=plan.shared)


def _prove(plan: Plan, store: Path, out: Path, progress: Progress) -> None:
    """Disassembles the same link with its symbols, and keeps the summary when nothing is wrong."""
    progress(f"checking the instructions for {plan.arch}")
    with _place(out) as made, tempfile.TemporaryDirectory(prefix=".tmp.", dir=store) as folder:
        program = link_with_symbols(plan, Path(folder) / ("libnano.so" if plan.shared else "run"))
        proof = isaproof.examine(program, arch=plan.arch, floor=plan.floor)
        isaproof.require(proof, Path(program.name))
        made.write_text(json.dumps(isaproof.summary(proof)))


def link_with_symbols(plan: Plan, out: Path) -> Path:
    """The program of a plan that was executed, with the names of its functions: for disassembly, not to ship."""
    _run(plan, plan.link_line(_objects(plan, resources.cache_dir("objects")), str(out), symbols=True))
    return out


@functools.cache
def _rules() -> str:
    """Identity of the rules by which programs are examined."""
    folder = resources.package_dir()
    modules = [folder / "isaproof.py", *sorted((folder / "isaclasses").glob("*.py"))]
    levels = (resources.platforms_dir() / "isa.yaml").read_text()
    tables = [folder / "data/isa_exceptions.yaml", *sorted((folder / "data").glob("instructions_*.txt"))]
    return _key([_digest_of(folder, [*modules, *tables]), levels])


def _objects(plan: Plan, store: Path) -> list[str]:
    return [str(_stored(store, step.key)) for step in plan.steps]


@contextlib.contextmanager
def _place(out: Path) -> Iterator[Path]:
    """A file to write that takes its place in the cache only when it is complete."""
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp.", dir=out.parent) as folder:
        made = Path(folder) / out.name
        yield made
        os.replace(made, out)


def _run(plan: Plan, argv: list[str]) -> None:
    proc.run(argv, env=plan.compiler.env, cwd=plan.folder)


def _stored(store: Path, key: str, suffix: str = ".o") -> Path:
    return store / key[:2] / f"{key}{suffix}"


def _with_headers(folder: Path, source: Path, seen: dict[Path, list[Path]]) -> list[Path]:
    """A source and all of ours that it includes, whatever the conditions around an #include; `seen` saves reading."""
    found, queue = {source}, [source]
    while queue:
        path = queue.pop()
        if path not in seen:
            names = [os.fsdecode(name) for name in _INCLUDE.findall(path.read_bytes())]
            places = (place / name for name in names for place in (path.parent, folder))
            seen[path] = [header for header in places if header.is_file()]
        queue += [header for header in seen[path] if header not in found]
        found.update(seen[path])
    return sorted(found)


def _digest_of(folder: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _key(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
