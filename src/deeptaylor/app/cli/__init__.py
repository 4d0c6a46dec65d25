"""The command `deeptaylor`: parses words, calls the library, shows what it says. Its help: deeptaylor_command.py."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deeptaylor import __version__
from deeptaylor.app.cli import programs
from deeptaylor.app.cli.programs import EXPERIMENTS
from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import escape_name, escape_text
from deeptaylor.support.optional import optional_package
from deeptaylor_command import BAD_INPUT, FINE, HELP, INTERRUPTED

__all__ = ["EXPERIMENTS", "main"]

_COMPLETION = "_DEEPTAYLOR_COMPLETE"
VERBS = ("explain", "check", "compare", "evaluate", "run", "status", "verify", "fit", "export", "doctor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _replace_unprintable()
    try:
        if _COMPLETION in os.environ:  # the shell asks what could come next
            return _run_verb(words)
        if programs.is_program(words):
            return programs.run_program(words)
        if not words or words in (["-h"], ["--help"]):
            sys.stdout.write(HELP)
            return FINE
        if words in (["--version"], ["-V"]):
            sys.stdout.write(f"deeptaylor {__version__}\n")
            return FINE
        if not (words[0].startswith("-") or words[0] in VERBS):
            sys.stderr.write(f"error: {escape_text(_describe_unknown_verb(words))}\n")
            return BAD_INPUT
        return _run_verb(words)
    except DeepTaylorError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; no file was left half-written\n")
        return INTERRUPTED
    except BrokenPipeError:  # `deeptaylor … | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _describe_unknown_verb(words: Sequence[str]) -> str:
    """What was written, and what may have been meant."""
    front, said, known = "deeptaylor", words[0], [*VERBS, "demo", "serve", "paper"]
    if words[0] == "paper":
        front, said, known = "deeptaylor paper", words[1], list(EXPERIMENTS)
    near = difflib.get_close_matches(said.lower(), known, n=1, cutoff=0.5)
    guess = f"Did you mean `{front} {near[0]}`? " if near else ""
    if Path(said).exists():
        guess = f"To explain a photograph: deeptaylor explain {escape_name(said)} --model NAME. "
    listed = f"Commands: {', '.join(known)}; `deeptaylor --help` describes them."
    return f"there is no `{front} {said}`. {guess}{listed}"


def _run_verb(words: list[str]) -> int:
    """The verbs whose words are read by typer."""
    why = f"`deeptaylor {' '.join(words[:1])}` needs typer and rich"
    for name in ("typer", "rich"):
        optional_package(name, why, "cli")
    from deeptaylor.app.cli.commands import app

    try:
        app(args=words, prog_name="deeptaylor")
    except SystemExit as end:
        if end.code == INTERRUPTED:  # a verb's own, or typer's, which says nothing
            raise KeyboardInterrupt from None
        return end.code if isinstance(end.code, int) else BAD_INPUT if end.code else FINE
    return FINE


def _replace_unprintable() -> None:
    """A terminal without Σ gets a question mark in its place, not an error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
