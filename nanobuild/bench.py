# SPDX-License-Identifier: Apache-2.0
"""Timing rows: the bundle's program times itself, this module sets its medians beside the machine's limits."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobuild import proc
from nanobuild.errors import ToolError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Repeated measurements of one figure, in its unit."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def show(self, digits: int = 1) -> str:
        """min / median / max."""
        low, high = min(self.values), max(self.values)
        return f"{low:.{digits}f} / {self.median:.{digits}f} / {high:.{digits}f}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One thread count of one workload. All rates are of the same run of the same process."""

    model: str
    isa: str
    threads: int
    prefill_tokens: int
    decode_tokens: int
    prefill: Samples  # tokens per second
    decode: Samples  # tokens per second
    token_bytes: int  # weights read for one generated token
    token_macs: int  # multiply-accumulates of the matrices for one prompt token
    read: Samples  # GB/s: the same threads reading the same mapping and doing nothing
    peak: Samples  # Gop/s: int8 multiply and add from registers, two operations each

    @property
    def decode_gb_s(self) -> float:
        return self.decode.median * self.token_bytes * 1e-9

    @property
    def prefill_gop_s(self) -> float:
        return self.prefill.median * self.token_macs * 2e-9

    def to_json(self) -> dict[str, Any]:
        """Samples, medians and ratios as a plain dict."""
        return dataclasses.asdict(self) | {
            "prefill_tok_s": self.prefill.median,
            "decode_tok_s": self.decode.median,
            "decode_gb_s": self.decode_gb_s,
            "decode_of_read": self.decode_gb_s / self.read.median,
            "prefill_gop_s": self.prefill_gop_s,
            "prefill_of_peak": self.prefill_gop_s / self.peak.median,
        }


def measure(
    binary: Path,
    model: Path,
    name: str,
    *,
    threads: int,
    prefill: int,
    decode: int,
    reps: int,
    isa: str | None = None,
) -> Row:
    """Runs the program's own timing once. Raises ToolError E_BENCH if it fails or prints something else."""
    context = str(max(prefill, decode + 1))
    argv: list[str | Path] = [binary, "-m", model, "--bench", "--threads", str(threads), "--ctx", context]
    argv += ["--bench-prefill", str(prefill), "--bench-decode", str(decode), "--reps", str(reps)]
    if isa is not None:
        argv += ["--isa", isa]
    result = proc.run(argv, env=proc.clean_env(), timeout=3600.0)
    try:
        said = json.loads(result.stdout)
        return _row(said, name)
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ToolError("E_BENCH", binary, f"the program's timing cannot be read: {error}") from error


def _row(said: dict[str, Any], name: str) -> Row:
    def rates(part: dict[str, Any]) -> Samples:
        return Samples(values=tuple(part["tokens"] / s for s in part["seconds"]))

    return Row(
        model=name,
        isa=said["isa"],
        threads=said["threads"],
        prefill_tokens=said["prefill"]["tokens"],
        decode_tokens=said["decode"]["tokens"],
        prefill=rates(said["prefill"]),
        decode=rates(said["decode"]),
        token_bytes=said["token_bytes"],
        token_macs=said["token_macs"],
        read=Samples(values=tuple(said["read_gb_s"])),
        peak=Samples(values=tuple(said["peak_gop_s"])),
    )


COLUMNS = ("model", "threads", "isa", "what", "tok/s min / median / max", "rate", "limit here", "of limit")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Two lines a row: prefill against the integer peak, decode against the read bandwidth."""
    out: list[tuple[str, ...]] = []
    for r in rows:
        head = (r.model, str(r.threads), r.isa)
        limit = (f"{r.prefill_gop_s:.0f} Gop/s", f"{r.peak.median:.0f} Gop/s", _share(r.prefill_gop_s / r.peak.median))
        out.append((*head, f"prefill {r.prefill_tokens}", r.prefill.show(), *limit))
        limit = (f"{r.decode_gb_s:.1f} GB/s", f"{r.read.median:.1f} GB/s", _share(r.decode_gb_s / r.read.median))
        out.append((*head, f"decode {r.decode_tokens}", r.decode.show(), *limit))
    return out


def _share(x: float) -> str:
    return f"{100 * x:.0f} %"
