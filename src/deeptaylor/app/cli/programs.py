"""Verbs whose modules read their own words, without typer: demo, paper, serve."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from deeptaylor.assets import report_downloads
from deeptaylor.support.files import LIST, outputs
from deeptaylor.support.optional import MissingPackageError, how_to_install
from deeptaylor_command import EXITS, FINE

__all__ = ["EXPERIMENTS", "is_program", "run_program"]

EXPERIMENTS = {
    "mnist": "deeptaylor.paper.mnist",
    "imagenet": "deeptaylor.paper.imagenet",
    "rules": "deeptaylor.paper.root_points",
}
# What is there once an experiment has been done.
_RESULTS = {
    "mnist": ("numbers.json", "report.html"),
    "imagenet": ("numbers.json", "report.html"),
    "rules": ("root_points.png", "root_points.svg"),
}
_SERVER = "deeptaylor.app.server.main"
_EXAMPLES = {
    "demo": "deeptaylor demo --out demo_output",
    "mnist": "deeptaylor paper mnist --quick --out paper_output",
    "imagenet": "deeptaylor paper imagenet --photos FOLDER --out paper_output/imagenet",
    "rules": "deeptaylor paper rules --out paper_output",
}
_ALSO = f"""
also:
  --overwrite   also replace files that another command wrote
  --json        one JSON object on standard output: exit code, seconds, the files written
  --quiet, -q   print nothing but errors

{EXITS}
"""


def is_program(words: Sequence[str]) -> bool:
    """Whether a verb is one of these."""
    return list(words[:1]) in (["demo"], ["serve"]) or (
        list(words[:1]) == ["paper"] and (len(words) == 1 or words[1] in (*EXPERIMENTS, "--help", "-h"))
    )


def run_program(words: Sequence[str]) -> int:
    """Hand the words over; what --json and --quiet mean is the same for all."""
    count = 2 if words[0] == "paper" else 1
    verb, rest = list(words[:count]), list(words[count:])
    if verb in (["paper"], ["paper", "--help"], ["paper", "-h"]):
        firsts = {name: str(import_module(module).__doc__).splitlines()[0] for name, module in EXPERIMENTS.items()}
        lines = [f"  deeptaylor paper {name:9} {first}" for name, first in firsts.items()]
        sys.stdout.write("The paper's experiments; each has --help:\n\n" + "\n".join(lines) + f"\n{_ALSO}")
        return FINE
    if verb == ["serve"]:
        return _call(_serve(), rest)
    main = _main(verb)
    as_json, quiet = "--json" in rest, bool({"--quiet", "-q"} & set(rest))
    rest = [word for word in rest if word not in ("--json", "--quiet", "-q")]
    began = time.time()
    with _silence(as_json or quiet, quiet) as said:
        code = _call(main, rest) if verb[0] == "demo" else _experiment(verb[1], main, rest)
    if code != FINE:
        sys.stderr.write(said.getvalue())
    if {"--help", "-h"} & set(rest):
        sys.stdout.write(f"{_ALSO}\nExample: {_EXAMPLES[verb[-1]]}\n")
    elif as_json:
        out = _out(verb[-1], rest)
        files = [str(p) for p in sorted(out.rglob("*")) if _is_result(p, began)]
        seconds = round(time.time() - began, 1)
        found = {"verb": " ".join(verb), "exit_code": code, "seconds": seconds, "out": str(out), "files": files}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return code


def _experiment(name: str, main: Callable[[list[str]], int], rest: list[str]) -> int:
    """Done where it overwrites nothing but its own."""
    overwrite = "--overwrite" in rest
    rest = [word for word in rest if word != "--overwrite"]
    out = _out(name, rest)
    with report_downloads(_tell), outputs(out, f"deeptaylor paper {name}", overwrite) as own:
        if not {"--help", "-h"} & set(rest):
            own.check(out / result for result in _RESULTS[name])
        code = _call(main, rest)
    if own.replaced:
        sys.stdout.write(f"{len(own.replaced)} existing files were replaced.\n")
    return code


def _is_result(path: Path, began: float) -> bool:
    return path.is_file() and path.name != LIST and path.stat().st_mtime >= began - 1


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def _main(verb: Sequence[str]) -> Callable[[list[str]], int]:
    module = import_module("deeptaylor.demo" if verb[0] == "demo" else EXPERIMENTS[verb[1]])
    found: Callable[[list[str]], int] = module.main
    return found


def _serve() -> Callable[[list[str]], int]:
    try:
        found: Callable[[list[str]], int] = import_module(_SERVER).main
    except ImportError as error:
        missing = error.name or "one of its packages"
        here = missing.startswith("deeptaylor.app.server")
        why = "this version has no page" if here else f"{missing} is not installed"
        raise MissingPackageError(
            f"`deeptaylor serve` shows explanations in a browser, and {why}. Install it with: {how_to_install('web')}"
        ) from error
    return found


def _call(main: Callable[[list[str]], int], words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:  # argparse: help, or words it does not know
        return end.code if isinstance(end.code, int) else FINE


@contextlib.contextmanager
def _silence(wanted: bool, errors_too: bool) -> Iterator[io.StringIO]:
    """Standard output into nothing, and no more than warnings in the log; what goes to standard error may be kept."""
    kept = io.StringIO()
    with contextlib.ExitStack() as stack:
        if wanted:
            logging.disable(logging.INFO)
            stack.callback(logging.disable, logging.NOTSET)
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        if errors_too:
            stack.enter_context(contextlib.redirect_stderr(kept))
        yield kept


def _out(name: str, words: Sequence[str]) -> Path:
    usual = {"demo": "demo_output", "imagenet": "paper_output/imagenet"}.get(name, "paper_output")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out", type=Path, default=Path(usual))
    out: Path = parser.parse_known_args(list(words))[0].out
    return out
