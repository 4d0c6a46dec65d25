"""An evaluation as a report: one table and one picture of curves a metric, and all of it as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from deeptaylor.errors import DeepTaylorError
from deeptaylor.evaluation.result import Evaluation, Scores
from deeptaylor.support import report
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package
from deeptaylor.support.plain import plain

__all__ = ["html", "json_bytes", "write"]

_LEAD = (
    "Each method explained the same inputs, and each metric asked the network itself whether the map is true. Beside a "
    "mean stands its 95 % interval (the middle 95 % of the means of samples drawn anew). Methods whose interval "
    "overlaps that of the first are marked: the numbers do not tell them apart."
)


def write(evaluation: Evaluation, folder: Path) -> list[Path]:
    """report.html and evaluation.json in a folder that exists, each whole or not at all."""
    files = {folder / "report.html": html(evaluation).encode(), folder / "evaluation.json": json_bytes(evaluation)}
    return [write_whole(path, data) for path, data in files.items()]


def json_bytes(evaluation: Evaluation) -> bytes:
    """All values, for programs; NaN is null."""
    text = json.dumps(plain(evaluation.record()), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def html(evaluation: Evaluation) -> str:
    """The report as one HTML file."""
    about = evaluation.about
    lead: list[report.Part] = [_LEAD]
    if about:
        lead.append(f"{about['network']}, {about['samples']} inputs.")
    lead += [f"Left out: {name}. {why}" for name, why in evaluation.failed.items()]
    lead += list(evaluation.notes)
    sections = [report.Section(name.capitalize(), _parts(evaluation, name)) for name in evaluation.metrics]
    return report.page("Are the maps true?", lead, sections, "Made by deeptaylor evaluate.")


def _parts(evaluation: Evaluation, metric: str) -> list[report.Part]:
    about, higher = evaluation.metrics[metric]
    ranked, first = evaluation.ranked(metric), evaluation.leaders(metric)
    best = {True: "high is good", False: "low is good", None: "neither high nor low is good"}[higher]
    rows = [(s.method, *_numbers(s), "first, or not told apart from it" if s.method in first else "") for s in ranked]
    table = report.Table(f"{about} ({best}).", ("method", "mean", "95 % interval", "inputs", ""), rows)
    pictures: list[report.Part] = []
    if ranked and ranked[0].curves:
        try:
            pictures = [report.Picture(curves(ranked), f"{metric}: means over the inputs.", f"Curves of {metric}")]
        except DeepTaylorError as error:
            pictures = [f"The curves are not drawn: {error}"]
    return [table, *pictures]


def _numbers(s: Scores) -> tuple[str, str, str]:
    i = s.interval
    return (f"{i.mean:.3f}", f"{i.low:.3f} to {i.high:.3f}", str(i.samples)) if i.samples else ("-", "-", "0")


def curves(ranked: list[Scores]) -> bytes:
    """Every method's curves as a PNG, a panel a kind of curve."""
    figure: Any = optional_package("matplotlib.figure", "curves are drawn with matplotlib", "evaluation")
    kinds = list(ranked[0].curves)
    drawn = figure.Figure(figsize=(5.2 * len(kinds), 4.2), layout="constrained")
    for panel, kind in zip(drawn.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for number, s in enumerate(ranked):
            panel.plot(
                s.at, s.curves[kind], label=s.method, color=f"C{number % 10}", ls=["-", "--", ":"][number // 10 % 3]
            )
        panel.set_title(kind)
        panel.set_xlabel("share of the regions")
        panel.grid(alpha=0.3)
    drawn.axes[0].set_ylabel("what the network says of the class, mean")
    drawn.axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    data = io.BytesIO()
    drawn.savefig(data, format="png", dpi=120)
    return data.getvalue()
