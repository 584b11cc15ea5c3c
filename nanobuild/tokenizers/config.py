# SPDX-License-Identifier: Apache-2.0
"""What the files beside a tokenizer say: tokenizer_config.json, special_tokens_map.json, chat_template.jinja."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from nanobuild.errors import InputError, quoted
from nanobuild.jsonstrict import Json, load_object
from nanobuild.rawfile import read_small

_CONFIG_LIMIT = 4 << 20
_TEMPLATE_LIMIT = 1 << 20
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The parts that decide something."""

    bos: str | None = None
    eos: str | None = None
    add_bos: bool | None = None
    add_prefix: bool | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # bos_token, eos_token ...
    special: frozenset[str] = frozenset()  # texts that are special by name, whatever their own flag says
    chat_template: str | None = None


def _text(value: Json, key: str, path: Path) -> str | None:
    """A token given as text or as an object with its text."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value or None
    raise InputError("E_TOK_JSON", path, f"{key} is {quoted(value)}, expected text")


def _load(path: Path) -> dict[str, Json]:
    return load_object(path, _CONFIG_LIMIT, missing="E_TOK_MISSING", bad="E_TOK_JSON") if path.exists() else {}


def _template(value: Json) -> str | None:
    """The template, the one named "default" if there are several."""
    if isinstance(value, list):
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, dict)}
        value = named.get("default")
    return value if isinstance(value, str) and value else None


def read_settings(folder: Path) -> Settings:
    """Reads what is there. Raises InputError E_TOK_JSON."""
    config_path, map_path = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    config, names = _load(config_path), _load(map_path)
    found: dict[str, str] = {}
    for key in _NAMES:
        text = _text(config.get(key), key, config_path) or _text(names.get(key), key, map_path)
        if text is not None:
            found[key] = text
    special = set(found.values())
    for source, path in ((config, config_path), (names, map_path)):
        more = source.get("additional_special_tokens")
        if isinstance(more, list):
            special |= {text for item in more if (text := _text(item, "additional_special_tokens", path))}
    template_path = folder / "chat_template.jinja"
    template = _template(config.get("chat_template"))
    if template_path.exists():
        data = read_small(template_path, _TEMPLATE_LIMIT, missing="E_TOK_MISSING", too_big="E_TPL_SYNTAX")
        template = data.decode("utf-8", "replace") or None

    def flag(key: str) -> bool | None:
        value = config.get(key)
        return value if isinstance(value, bool) else None

    return Settings(
        bos=found.get("bos_token"),
        eos=found.get("eos_token"),
        add_bos=flag("add_bos_token"),
        add_prefix=flag("add_prefix_space"),
        names=found,
        special=frozenset(special),
        chat_template=template,
    )
