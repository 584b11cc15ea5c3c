# SPDX-License-Identifier: Apache-2.0
"""Wall time and peak memory of one whole process: started by a small process of its own (this file as a program), whose
only child it is, so that what the kernel counts is that program's alone and Python's start is not in the time."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    """A process that ended well."""

    seconds: float
    peak_kib: int
    stdout: bytes


def run(argv: Sequence[str | Path], *, cpus: Sequence[int], timeout: float = 3600.0) -> Whole:
    """Runs a program to its end on some processors. Raises ToolError E_TOOL_*, E_BENCH."""
    from nanobuild import conditions, proc
    from nanobuild.errors import ToolError

    starter = [sys.executable, "-I", "-S", __file__]
    with conditions.pinned(cpus):
        result = proc.run([*starter, *argv], env=proc.clean_env(), timeout=timeout, check=False)
    if result.returncode:
        raise proc.failed(dataclasses.replace(result, argv=result.argv[len(starter) :]))
    try:
        said = json.loads(result.stderr.splitlines()[-1])
        return Whole(seconds=said["seconds"], peak_kib=said["peak_kib"], stdout=result.stdout)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ToolError("E_BENCH", Path(argv[0]).name, f"its run was not measured: {error}") from error


def main(argv: list[str]) -> int:
    """Runs `argv`; its exit code. The last line of stderr is ours."""
    start = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, os.environ)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        sys.stderr.write("\n" + json.dumps({"seconds": seconds, "peak_kib": usage.ru_maxrss}) + "\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
