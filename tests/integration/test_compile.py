# SPDX-License-Identifier: Apache-2.0
"""Real compilers on a small source tree: a static program at a fixed address, a library, flags that reach their files.

The cache of the user is used, so that the C library is built once for all test runs.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import uuid
from pathlib import Path
from typing import cast

import pytest

from nanobuild import compile as building
from nanobuild.errors import ToolError
from nanobuild.isa import Compiler
from nanobuild.platforms import load_platform

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for the machine it runs on")

FILES = {
    "hal/x.h": "int nb_add(int a, int b);\nint nb_wide__avx2(const int *x);\nint nb_dots__avx512vnni(const int *x);\n",
    "hal/hal.c": """#include "hal/x.h"
#ifdef __AVX2__
#error a level's flags reached a file of the base
#endif
__attribute__((visibility("default"))) int nb_add(int a, int b) {
    static const int x[16] = {0, 0, 0, 7};
#if defined(NB_BUILD_AVX2) && defined(NB_BUILD_AVX512VNNI)
    if (a == 1000) return nb_wide__avx2(x);
    if (a == 2000) return nb_dots__avx512vnni(x);
#endif
    return a + b;
}
""",
    "ops/x86_64/nb_wide__avx2.c": """#include "hal/x.h"
#include <immintrin.h>
#ifdef __FMA__
#error more than the level asks for
#endif
int nb_wide__avx2(const int *x) { return _mm256_movemask_epi8(_mm256_loadu_si256((const void *)x)); }
""",
    "ops/x86_64/nb_dots__avx512vnni.c": """#include "hal/x.h"
#include <immintrin.h>
int nb_dots__avx512vnni(const int *x) {
    __m512i v = _mm512_loadu_si512((const void *)x);
    return _mm512_reduce_add_epi32(_mm512_dpbusd_epi32(v, v, v));
}
""",
    "runtime/main.c": """#include "hal/x.h"
#include <pthread.h>
#include <stdio.h>
static void *work(void *p) { *(int *)p = nb_add(20, 22); return p; }
int main(int argc, char **argv) {
    pthread_t t;
    int n = argc;
    if (pthread_create(&t, NULL, work, &n) || pthread_join(t, NULL)) return 1;
    printf("%d %s %s\\n", n, __FILE__, argv[0][0] ? "" : "x");
    return 0;
}
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sources, never seen before by any cache."""
    for name, text in FILES.items():
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name.endswith(".h") else f"/* {uuid.uuid4()} */\n{text}")
    return tmp_path / "kernels"


def elf_type(data: bytes) -> int:
    return int(struct.unpack_from("<H", data, 16)[0])


def has_interpreter(data: bytes) -> bool:
    offset, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    return any(struct.unpack_from("<I", data, offset + i * size)[0] == 3 for i in range(count))


@pytest.mark.parametrize("compiler", ["zig", "gcc", "clang"])
def test_program_and_library(folder: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "ZIG_LIB_DIR"):
        monkeypatch.setenv(name, "--nonsense")
    platform = load_platform("generic-x86_64")
    try:
        made = building.make_plan(platform, shared=False, toolchain=compiler, folder=folder)
    except ToolError as error:
        pytest.skip(error.text)
    report = building.execute(made, tmp_path / "run")
    data = (tmp_path / "run").read_bytes()
    assert (report.size, report.compiled, report.levels) == (len(data), 4, platform.levels)
    assert {"avx2", "avx512_vnni"} <= set(cast("dict[str, int]", report.isa["features"]))
    assert elf_type(data) == 2, "a program at a fixed address"
    assert not has_interpreter(data)
    assert b"debug_info" not in data
    assert str(tmp_path).encode() not in data
    assert subprocess.run([tmp_path / "run"], capture_output=True, check=True).stdout == b"42 runtime/main.c \n"
    made = building.make_plan(platform, shared=True, toolchain=compiler, folder=folder)
    building.execute(made, tmp_path / "libnano.so")
    library = ctypes.CDLL(str(tmp_path / "libnano.so"))
    assert library.nb_add(40, 2) == 42
    assert not hasattr(library, "nb_wide__avx2"), "only what is marked may be seen"
    assert not hasattr(library, "main")


def test_same_bytes_from_another_folder(folder: Path, tmp_path: Path) -> None:
    platform = load_platform("generic-x86_64")
    first = building.execute(building.make_plan(platform, shared=False, folder=folder), tmp_path / "a")
    moved = tmp_path / "deeper" / "other"
    moved.parent.mkdir()
    os.rename(folder, moved)
    for path in moved.rglob("*.h"):
        path.write_text(path.read_text() + f"/* {uuid.uuid4()} */\n")  # other keys: nothing comes from the cache
    second = building.execute(building.make_plan(platform, shared=False, folder=moved), tmp_path / "b")
    assert second.compiled == 4
    assert first.sha256 == second.sha256


def test_an_instruction_above_its_function_is_refused(folder: Path, tmp_path: Path) -> None:
    """A kernel's file whose function lost its level: the flags reach it, and nothing says who may call it."""
    for name in ("ops/x86_64/nb_wide__avx2.c", "hal/hal.c", "hal/x.h"):
        path = folder / name
        path.write_text(path.read_text().replace("nb_wide__avx2(", "nb_plain("))
    made = building.make_plan(load_platform("generic-x86_64"), shared=False, folder=folder)
    for _ in range(2):  # what is refused does not stay in the cache
        with pytest.raises(ToolError, match=r"'nb_plain' holds .* which needs avx") as caught:
            building.execute(made, tmp_path / "run")
        assert caught.value.code == "E_ISA"
    assert not (tmp_path / "run").exists()


def test_a_bad_source_is_one_error(folder: Path, tmp_path: Path) -> None:
    (folder / "runtime/main.c").write_text("int main(void) { return nonsense; }\n")
    made = building.make_plan(load_platform("generic-x86_64"), shared=False, folder=folder)
    with pytest.raises(ToolError, match="nonsense") as caught:
        building.execute(made, tmp_path / "run")
    assert caught.value.code == "E_TOOL_FAILED"
    assert not (tmp_path / "run").exists()
