# SPDX-License-Identifier: Apache-2.0
"""The whole way, step by step: checkpoint -> quantized checkpoint -> bundle. Plain values in and out, no printing.

prepare() runs all of it through the cache, keyed by what goes in, so that a second run finds everything done.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nanobuild import __version__, resources
from nanobuild.bundle import Bundle, is_bundle, open_bundle, write_bundle
from nanobuild.chat import compile_chat
from nanobuild.checkpoint import Checkpoint, open_checkpoint
from nanobuild.errors import InputError, UsageError
from nanobuild.fetch import fetch_model, known_models
from nanobuild.isa import Compiler
from nanobuild.platforms import Platform, default_platform, load_platform
from nanobuild.progress import Progress, silent
from nanobuild.publish import check_output
from nanobuild.quantize import Plan, make_plan, write_quantized
from nanobuild.quantized import QuantizedCheckpoint
from nanobuild.recipes import load_recipe
from nanobuild.tokenizers import Tokenizer, load_tokenizer


def resolve_model(name: str, *, offline: bool = False, progress: Progress = silent) -> Path:
    """A path that exists, or the file of a fetchable model by its name. Raises UsageError E_MODEL_NAME."""
    path = Path(name)
    if path.exists():
        return path
    if name in known_models():
        return fetch_model(name, offline=offline, progress=progress)
    text = f"no such file, and not one of the models that can be fetched: {', '.join(known_models())}"
    raise UsageError("E_MODEL_NAME", name, text)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's own tokenizer. Raises InputError E_TOK_* or E_SPM_*."""
    return load_tokenizer(
        checkpoint.tokenizer_source, vocab=checkpoint.spec.vocab, eos_ids=checkpoint.eos_ids, bos_id=checkpoint.bos_id
    )


def plan_quantized(checkpoint: Checkpoint, recipe_name: str, *, progress: Progress = silent) -> Plan:
    """The exact plan for a checkpoint, tokenizer and chat parts included."""
    recipe = load_recipe(recipe_name)
    tokenizer = tokenizer_of(checkpoint)
    chat, reason = compile_chat(tokenizer.chat_template, tokenizer)
    notes = {"chat": "compiled" if chat else reason}
    return make_plan(checkpoint, recipe, tokenizer=tokenizer.to_bytes(), chat=chat, notes=notes, progress=progress)


def quantize(
    source: Path, out: Path, recipe_name: str, *, force: bool = False, progress: Progress = silent
) -> tuple[Plan, str]:
    """Quantizes a checkpoint to a file: the plan and the file's SHA-256."""
    with open_checkpoint(source) as checkpoint:
        check_output(out, force=force, inputs=(source, *checkpoint.files))
        plan = plan_quantized(checkpoint, recipe_name, progress=progress)
        return plan, write_quantized(checkpoint, plan, out, progress=progress)


def build(
    source: Path,
    out: Path,
    platform: Platform,
    *,
    packed: Path | None = None,
    toolchain: Compiler | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Bundle:
    """A bundle for one platform from a quantized checkpoint; `packed`: its model file, if another bundle has it."""
    check_output(out, force=force, inputs=(source,))
    if out.is_dir() and not is_bundle(out) and any(out.iterdir()):
        raise UsageError("E_OUT_FOLDER", out, "a folder that is not a bundle is not replaced")
    with QuantizedCheckpoint(source) as quantized:
        return write_bundle(quantized, platform, out, packed=packed, toolchain=toolchain, progress=progress)


def prepare(
    model: str, recipe_name: str, platform_name: str | None, *, offline: bool = False, progress: Progress = silent
) -> Bundle:
    """A bundle for whatever `model` names: a bundle, a quantized checkpoint, a checkpoint or a fetchable model.

    It is built for the platform (None: this machine's generic one); a finished bundle is taken as it is.
    """
    path = resolve_model(model, offline=offline, progress=progress)
    if is_bundle(path):
        return open_bundle(path)
    platform = load_platform(platform_name or default_platform())
    code, quantized = _code(), path
    if not QuantizedCheckpoint.recognises(path):
        recipe = load_recipe(recipe_name)
        name = f"{path.stem}.{recipe.name}.{_key(_fingerprint(path), recipe.identity(), code)}.safetensors"
        quantized = resources.cache_dir("quantized") / name
        if not quantized.exists():
            quantize(path, quantized, recipe_name, progress=progress)
    profiles = "".join(path.read_text() for path in platform.files)
    key = _key(_fingerprint(quantized), platform.name, profiles, code)
    out = resources.cache_dir("bundles") / f"{quantized.stem.split('.')[0]}.{platform.name}.{key}"
    if is_bundle(out):
        return open_bundle(out)
    return build(quantized, out, platform, progress=progress)


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _fingerprint(path: Path) -> str:
    """Names, sizes and change times of a file or of a folder's files; reading gigabytes at each run would not do."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files:
        raise InputError("E_CKPT_NOT_FOUND", path, "an empty folder")
    rows = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    return json.dumps([str(path.resolve()), rows])


def _code() -> str:
    """Identity of this version of nano-build: its own sources and kernels."""
    digest = hashlib.sha256(__version__.encode())
    roots = [
        (resources.package_dir(), "*.py"),
        (resources.kernels_dir(), "*.[chd]*"),
        (resources.platforms_dir(), "isa.yaml"),
    ]
    for root, pattern in roots:
        for file in sorted(root.rglob(pattern)):
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
