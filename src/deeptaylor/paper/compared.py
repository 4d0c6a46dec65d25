"""Two runs of the MNIST experiments side by side: their numbers, and where they differ by more than chance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deeptaylor.errors import DeepTaylorError
from deeptaylor.paper.methods import METHODS
from deeptaylor.support.files import write_whole

__all__ = ["Compared", "compare", "read"]

FILE = "comparison.json"
_PLACES = ("on_half", "on_ink", "coverage", "on_border")
Compared = tuple[str, float | None, float | None, bool | None]  # what, here, there, whether intervals overlap


class CompareError(DeepTaylorError, ValueError):
    """There are no numbers to compare with."""


def read(path: Path) -> dict[str, Any]:
    """The numbers of another run: its numbers.json, or the folder that holds it."""
    file = path / "numbers.json" if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CompareError(f"{file} holds no numbers of such an experiment: {error}") from error
    if "methods" not in found:
        raise CompareError(f"{file} holds no numbers of such an experiment.")
    return found


def compare(here: Mapping[str, Any], there: Mapping[str, Any], out: Path) -> list[str]:
    """Lines that say what differs; every number goes to a file."""
    rows = list(_rows(here, there))
    data = [{"what": what, "here": a, "there": b, "agrees": agrees} for what, a, b, agrees in rows]
    write_whole(out / FILE, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
    same = [name for name, mark in here["weights"].items() if there["weights"].get(name) == mark]
    lines = [f"weights with the same bits: {', '.join(same) or 'none'}"]
    lines += [f"{_mark(agrees)} {what}: {_number(a)} here, {_number(b)} there" for what, a, b, agrees in rows]
    judged = [agrees for *_, agrees in rows if agrees is not None]
    return [*lines, f"{sum(judged)} of {len(judged)} intervals overlap; {out / FILE}"]


def _rows(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Compared]:
    for network, methods in METHODS.items():
        a, b = (found["quality"][network]["held_out"]["accuracy"] for found in (here, there))
        yield f"{network}: accuracy", a, b, None
        for method in methods:
            ours, theirs = (found["methods"][network][method.key] for found in (here, there))
            for place in _PLACES:
                p, q = ours[place], theirs[place]
                yield f"{network}, {method.title}: {place}", p["mean"], q["mean"], _overlap(p, q)
            yield f"{network}, {method.title}: kept", ours["kept"], theirs["kept"], None
    for name, value in here["min_max"].items():
        yield f"min-max: {name}", value, there["min_max"].get(name), None


def _overlap(p: Mapping[str, Any], q: Mapping[str, Any]) -> bool | None:
    if None in (p["low"], p["high"], q["low"], q["high"]):
        return None
    return bool(p["low"] <= q["high"] and q["low"] <= p["high"])


def _mark(agrees: bool | None) -> str:
    return {True: "same  ", False: "OTHER ", None: "      "}[agrees]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
