# SPDX-License-Identifier: Apache-2.0
"""What was built is tried before it gets its name: natively where this machine can run it, else under QEMU.

The program checks every checksum of its model; when the model is small enough, it also goes on from a word, and tokens
and logits must be those of this machine's own library at the scalar level, bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from nanobuild import emulator, isa, proc, resources
from nanobuild.compile import build_library
from nanobuild.errors import IntegrityError
from nanobuild.platforms import Platform
from nanobuild.progress import Progress, silent

_PROMPT = "The"
_TOKENS = 4
# Bytes of weights that may be read for the comparison, a pass over the model for each token: some ten seconds, whether
# on two natively running cores at the scalar level, emulated, or emulated with vectors of any length, which is slowest.
_NATIVE, _EMULATED, _VECTORS = 4 << 30, 1 << 30, 200 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """How a bundle was checked."""

    on: str  # "this machine", or QEMU's command
    tokens: int  # generated and compared; 0: checksums only

    def to_json(self) -> dict[str, object]:
        """For the manifest."""
        return dataclasses.asdict(self)


def check(program: Path, model: Path, platform: Platform, *, text: bool, progress: Progress = silent) -> Checked | None:
    """Checks a program with its model; `text`: the model has a tokenizer. None when nothing here can run the program.

    Raises IntegrityError E_SELF_CHECK.
    """
    native = emulator.host_runs(platform.arch, platform.floor)
    prefix = () if native else emulator.find(platform.arch, platform.emulator_cpu)
    if prefix is None:
        progress(f"not checked: nothing here runs a program for {platform.arch}; {emulator.how_to_get()}")
        return None
    on = " ".join([Path(prefix[0]).name.removesuffix("-static"), *prefix[1:]]) if prefix else "this machine"
    progress(f"checking the program on {on}")
    _run([*prefix, str(program), "--model", str(model), "--verify"], program)
    comparable = text and isa.parse_arch(os.uname().machine) in isa.load_isa().arches
    tokens = _affordable(platform, model.stat().st_size, native=native) if comparable else 0
    if tokens:
        _compare(prefix, program, model, tokens)
    return Checked(on=on, tokens=tokens)


def _affordable(platform: Platform, size: int, *, native: bool) -> int:
    """How many tokens the comparison may have; the prompt costs about as much as one more."""
    budget = _NATIVE if native else _VECTORS if platform.arch == "riscv64" and len(platform.levels) > 1 else _EMULATED
    return max(0, min(_TOKENS, budget // max(size, 1) - 1))


def _compare(prefix: tuple[str, ...], program: Path, model: Path, tokens: int) -> None:
    with tempfile.TemporaryDirectory(prefix="nano-build-") as folder:
        library, said = Path(folder) / "libnano.so", []
        build_library(library)
        runner = [sys.executable, str(resources.package_dir() / "runner.py"), "--library", str(library)]
        runner += ["--isa", "scalar"]
        for name, words in (("built", [*prefix, str(program)]), ("host", runner)):
            logits = Path(folder) / name
            words += ["--model", str(model), "--prompt", _PROMPT, "--max-tokens", str(tokens), "--ids", "-q"]
            threads = ["--threads", "1"] if prefix else []
            text = _run([*words, "--ctx", "64", "--logits", str(logits), *threads], program)
            said.append((text.split(), logits.read_bytes()))
    (ids, logits_here), (expected, logits_there) = said
    if ids != expected:
        raise _failed(program, f"it generates the tokens {b' '.join(ids)!r}, expected {b' '.join(expected)!r}")
    if logits_here != logits_there:
        raise _failed(program, "its logits are not those of the scalar kernels")


def _run(words: list[str], program: Path) -> bytes:
    result = proc.run(words, env=proc.clean_env(), check=False)
    if result.returncode:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        died = f"ended by signal {-result.returncode}: " if result.returncode < 0 else ""
        raise _failed(program, f"{died}{said[0][:200]}")
    return result.stdout


def _failed(program: Path, text: str) -> IntegrityError:
    return IntegrityError("E_SELF_CHECK", program.parent, f"the bundle's own check failed: {text}")
