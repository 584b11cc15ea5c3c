# SPDX-License-Identifier: Apache-2.0
"""`nano-build eval`: a quantized model, run by the real kernels, against its float original."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nanobuild import pipeline
from nanobuild.checkpoint import open_checkpoint
from nanobuild.errors import InputError, UsageError, quoted
from nanobuild.evaluate import DEFAULT_TEXT, EvalReport, evaluate, logits_of
from nanobuild.llm import LLM
from nanobuild.publish import published_file
from nanobuild.ui import Ui


def main(
    ui: Ui,
    source: str,
    model: str | None,
    recipe: str,
    text: Path | None,
    *,
    windows: int,
    window_tokens: int,
    kv: str,
    out: Path | None,
    offline: bool,
) -> None:
    """Prints (and with `out` writes) the receipt. Without `model`, `source` is quantized by `recipe` first."""
    if kv not in ("f16", "i8"):
        raise UsageError("E_USAGE", "--kv", f"found {quoted(kv)}, allowed f16 or i8")
    path = pipeline.resolve_model(source, offline=offline, progress=ui.progress)
    bundle = pipeline.prepare(model or source, recipe, None, offline=offline, progress=ui.progress)
    words = _read_text(text or DEFAULT_TEXT)
    with open_checkpoint(path) as checkpoint, LLM(bundle.path, kv=kv, context=window_tokens, all_logits=True) as llm:
        report = evaluate(
            checkpoint,
            logits_of(llm),
            pipeline.tokenizer_of(checkpoint),
            words,
            windows=windows,
            window_tokens=window_tokens,
            progress=ui.progress,
        )
    facts = bundle.manifest["model"]
    receipt = report.to_json() | {
        "kv": kv,
        "model": {key: facts[key] for key in ("identity", "source_sha256", "recipe", "recipe_sha256")},
    }
    if out is not None:
        with published_file(out) as file:
            file.write(json.dumps(receipt, indent=1, sort_keys=True).encode() + b"\n")
    ui.result(receipt, lambda: _show(ui, report, facts["recipe"], kv))


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise InputError("E_EVAL_TEXT", path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        digest = hashlib.sha256(data).hexdigest()[:8]
        raise InputError("E_EVAL_TEXT", path, f"not UTF-8 at byte {error.start} (sha256 {digest}...)") from error


def _show(ui: Ui, r: EvalReport, recipe: str, kv: str) -> None:
    rows = [
        ("scored tokens", f"{r.tokens} in {len(r.windows)} windows of {r.window_tokens}"),
        ("mean KL", f"{r.kl:.5f} +- {r.kl_se:.5f} nats"),
        ("99th percentile KL", f"{r.kl_p99:.4f} nats"),
        ("top-1 agreement", f"{100 * r.top1:.2f} %"),
        ("ln perplexity, float", f"{r.ln_ppl_float:.4f}"),
        ("ln perplexity, ours", f"{r.ln_ppl_ours:.4f}"),
        ("difference", f"{r.delta_ln_ppl:+.4f} +- {r.delta_se:.4f}"),
    ]
    ui.table((f"recipe {recipe}, kv {kv}", "value"), rows)
