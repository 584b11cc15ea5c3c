# SPDX-License-Identifier: Apache-2.0
"""The one table of architecture names; it imports nothing, because `detect` needs it first."""

from __future__ import annotations

SYNONYMS: dict[str, tuple[str, ...]] = {
    "x86_64": ("x86_64", "x86-64", "amd64", "x64"),
    "arm64": ("arm64", "aarch64", "armv8", "armv8l"),
    "riscv64": ("riscv64", "rv64", "rv64gc"),
}


def parse_arch(name: str) -> str | None:
    """Our name for an architecture given under any of its names; None when it is none of ours."""
    lowered = name.strip().lower()
    return next((arch for arch, names in SYNONYMS.items() if lowered in names), None)
