# SPDX-License-Identifier: Apache-2.0
"""Normalizers and pre-tokenizers of tokenizer.json, recognised and turned into flags and stages, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nanobuild.errors import InputError, quoted
from nanobuild.jsonstrict import Json
from nanobuild.tokenizers.record import MARK, MAX_LITERAL, Flag, Stage

_GPT2_TAIL = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NONE = Flag(0)


def _known_patterns() -> dict[str, tuple[Stage, int]]:
    known = {
        "'s|'t|'re|'ve|'m|'ll|'d" + _GPT2_TAIL: (Stage.GPT2, 0),
        "'(?:[sdmt]|ll|ve|re)" + _GPT2_TAIL: (Stage.GPT2, 0),
    }
    # ignoring case by flag also folds the long s (U+017F), listing both cases does not
    contractions = {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)": 32,
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])": 0,
    }
    digits = {r"\p{N}{1,3}": 3, r"\p{N}": 1, r"\p{N}+": 0}
    for start, fold in contractions.items():
        for number, most in digits.items():
            for mark, bit in (("", 0), (r"\p{M}", 16)):
                letters = rf"[\p{{L}}{mark}]+" if mark else r"\p{L}+"
                pattern = (
                    rf"{start}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{number}"
                    rf"| ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                )
                known[pattern] = (Stage.WORDS, most | bit | fold)
    return known


PATTERNS = _known_patterns()


@dataclasses.dataclass(slots=True)
class Pipeline:
    """What a file's normalizer and pre-tokenizer come to."""

    subject: object
    flags: Flag = _NONE
    stages: list[tuple[Stage, int]] = dataclasses.field(default_factory=list)
    literal: str = ""
    byte_level: bool = False

    def refuse(self, what: str, item: object) -> InputError:
        return InputError("E_TOK_UNSUPPORTED", self.subject, f"{what} {quoted(item)} is not supported")

    # ------------------------------------------------------------ normalizer

    def normalizer(self, value: Json) -> None:
        """Reads a normalizer. Raises InputError E_TOK_UNSUPPORTED."""
        for item in steps(value, "normalizers", "normalizer", self.subject):
            kind = item.get("type")
            if kind == "NFC" and not self.flags:
                self.flags |= Flag.NFC
            elif kind == "Replace" and item.get("pattern") == {"String": " "} and item.get("content") == MARK:
                self.flags |= Flag.SPACES
            elif kind == "Prepend" and item.get("prepend") == MARK:
                self.flags |= Flag.PREFIX
            else:
                raise self.refuse("normalizer", item if kind in ("NFC", "Replace", "Prepend") else kind)
        if self.flags & Flag.PREFIX and not self.flags & Flag.SPACES:
            raise self.refuse("normalizer", "Prepend without Replace")

    # --------------------------------------------------------- pre-tokenizer

    def pre_tokenizer(self, value: Json) -> None:
        """Reads a pre-tokenizer. Raises InputError E_TOK_UNSUPPORTED."""
        for item in steps(value, "pretokenizers", "pre-tokenizer", self.subject):
            kind = item.get("type")
            if self.byte_level:
                raise self.refuse("pre-tokenizer after ByteLevel", kind)
            if kind == "ByteLevel":
                self._byte_level(item)
            elif kind == "Digits":
                self.stages.append((Stage.DIGITS, int(item.get("individual_digits") is True)))
            elif kind == "Split":
                self._split(item)
            elif kind == "Metaspace":
                self._metaspace(item)
            else:
                raise self.refuse("pre-tokenizer", kind)

    def _byte_level(self, item: dict[str, Json]) -> None:
        if item.get("add_prefix_space") is True:
            if self.stages:
                raise self.refuse("pre-tokenizer", "ByteLevel that adds a space after a split")
            self.flags |= Flag.LATE_PREFIX
        if item.get("use_regex", True) is not False:
            self.stages.append((Stage.GPT2, 0))
        self.byte_level = True

    def _split(self, item: dict[str, Json]) -> None:
        pattern, behavior, invert = item.get("pattern"), item.get("behavior"), item.get("invert") is True
        if not isinstance(pattern, dict) or len(pattern) != 1:
            raise self.refuse("split pattern", pattern)
        if "Regex" in pattern:
            known = PATTERNS.get(str(pattern["Regex"]))
            # each of these patterns matches every character, so that keeping the matches is keeping everything
            if known is None or (behavior, invert) not in (("Isolated", False), ("Removed", True)):
                raise self.refuse("split pattern", pattern["Regex"])
            self.stages.append(known)
            return
        text = pattern.get("String")
        if not isinstance(text, str) or not text or invert:
            raise self.refuse("split pattern", pattern)
        if self.flags & Flag.SPACES and " " in text:
            return  # spaces are gone by now: it never matches
        self._literal(text, {"Isolated": 0, "MergedWithPrevious": 1, "MergedWithNext": 2}.get(str(behavior), -1))

    def _literal(self, text: str, arg: int) -> None:
        if arg < 0 or len(text.encode()) > MAX_LITERAL or self.literal not in ("", text):
            raise self.refuse("split at the text", text)
        self.literal = text
        self.stages.append((Stage.LITERAL, arg))

    def _metaspace(self, item: dict[str, Json]) -> None:
        if self.stages or item.get("replacement", MARK) != MARK or self.flags & Flag.NFC:
            raise self.refuse("pre-tokenizer", "Metaspace in this place")
        old = item.get("add_prefix_space", True)
        scheme = item.get("prepend_scheme", "always" if old is not False else "never")
        added = {"always": Flag.LATE_PREFIX, "first": Flag.LATE_PREFIX_FIRST, "never": Flag(0)}.get(str(scheme))
        if added is None:
            raise self.refuse("prepend_scheme", scheme)
        self.flags |= added | Flag.SPACES
        if item.get("split", True) is not False:
            self._literal(MARK, 2)


def steps(value: Json, inner: str, name: str, subject: object) -> Iterator[dict[str, Json]]:
    """The steps of a component, sequences unfolded."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise InputError("E_TOK_UNSUPPORTED", subject, f"{name} is {quoted(value)}")
    if value.get("type") != "Sequence":
        yield value
        return
    items = value.get(inner)
    if not isinstance(items, list):
        raise InputError("E_TOK_UNSUPPORTED", subject, f"{name} is a sequence without {inner}")
    for item in items:
        yield from steps(item, inner, name, subject)
