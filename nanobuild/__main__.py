# SPDX-License-Identifier: Apache-2.0
"""`nano-build` and `python -m nanobuild`."""

from __future__ import annotations

import sys

from nanobuild import entry


def main(args: list[str] | None = None) -> None:
    """Runs the command line and exits."""
    words = sys.argv[1:] if args is None else args
    entry.active.json, entry.active.debug = "--json" in words, "--debug" in words  # for errors of the parsing itself
    sys.exit(entry.guard(lambda: _dispatch(words)))


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["detect"] and set(words[1:]) <= {"--json", "-q", "--quiet", "--debug"}:
        # detect promises to start in 150 ms; Typer alone may take two thirds of that
        from nanobuild import detect

        quiet = "-q" in words or "--quiet" in words
        detect.main(entry.configure(quiet=quiet, verbose=0, json="--json" in words, debug="--debug" in words), None)
        return 0
    from nanobuild import cli

    return cli.run(words)


if __name__ == "__main__":
    main()
