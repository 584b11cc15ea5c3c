# SPDX-License-Identifier: Apache-2.0
"""doctor: each thing that can be missing is found, and comes with its fix."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nanobuild import doctor
from nanobuild.ui import Ui

ROOT = Path(__file__).resolve().parents[2]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def found() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_this_machine() -> None:
    checks = found()
    assert checks["Python"].status == "ok"
    assert checks["packages"].status == "ok"
    assert all(check.fix for check in checks.values() if check.status != "ok")


def test_the_packages_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text.split("\ndependencies = [")[1].split("]")[0]
    wanted = {name: spec for name, spec in re.findall(r'"([a-z0-9-]+)([^";]*)[^"]*"', block) if name != "ziglang"}
    stated = {}
    for name, (low, below) in doctor.NEEDED.items():
        stated[name] = f">={doctor._dotted(low)}" + (f",<{doctor._dotted(below)}" if below else "")
    assert stated == wanted


def test_broken_and_old_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("msgspec", None), ("rich", "1.2"), ("typer", "0.30.1")):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        if version:
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    checks = found()
    assert (checks["msgspec"].status, checks["msgspec"].found) == ("fail", "installed, but its metadata is broken")
    assert checks["msgspec"].fix == "python -m pip install --force-reinstall 'msgspec>=0.18'"
    assert checks["rich"].found == "1.2, needed >=13"
    assert checks["typer"].found == "0.30.1, needed >=0.21,<0.27"
    assert "packages" not in checks


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    assert found()["numpy"].found == "not installed"


def test_no_compiler_and_no_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("NANOBUILD_ZIG", raising=False)
    checks = found()
    assert (checks["zig"].status, checks["zig"].fix) == ("fail", "python -m pip install ziglang==0.17.1")
    assert checks["emulators"].status == "warn"
    assert checks["extra calibrate"].status == "warn"
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert found()["zig"].status == "warn"
    monkeypatch.setenv("NANOBUILD_ZIG", "/nowhere/zig")
    assert found()["zig"].status == "fail"


def test_cache_and_disk(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: Usage(0, 0, free))
        assert found()["disk"].status == status
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NANOBUILD_CACHE", str(tmp_path / "file"))
    checks = found()
    assert checks["cache"].status == "fail"
    assert "disk" not in checks


def test_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good = doctor.Check(name="a", status="ok", found="x")
    warn = doctor.Check(name="b", status="warn", found="y", fix="mend it")
    bad = doctor.Check(name="c", status="fail", found="z", fix="mend that")
    monkeypatch.setattr(doctor, "checks", lambda: [good, warn])
    assert doctor.main(Ui()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "b: mend it"
    monkeypatch.setattr(doctor, "checks", lambda: [good, bad])
    assert doctor.main(Ui(json=True)) == 6
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["checks"][1] == {"name": "c", "status": "fail", "found": "z", "fix": "mend that"}


def test_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: type(names)(("Linux", "n", "r", "v", "aarch64")))
    checks = found()
    assert checks["machine"].status == "ok"
    assert checks["emulators"].found == "no qemu-x86_64, qemu-riscv64"
    assert checks["emulators"].fix.startswith("apt-get install qemu-user-static ")
    monkeypatch.setattr(os, "uname", lambda: type(names)(("Linux", "n", "r", "v", "sparc64")))
    assert found()["machine"].status == "warn"


def test_compilers_are_listed_with_what_they_build_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found()["other compilers"].found == "none but zig, which is enough"
    tool = tmp_path / "aarch64-linux-gnu-gcc"
    tool.write_text(
        "#!/bin/sh\ncase $1 in -dumpmachine) echo aarch64-linux-gnu ;; -dumpversion) echo 12 ;; *) echo /c.a ;; esac\n"
    )
    tool.chmod(0o755)
    assert found()["other compilers"].found == "gcc 12 for arm64"
