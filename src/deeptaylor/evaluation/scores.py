"""What an evaluation found: a mean and an interval a method and metric, with the values it is made of."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package
from deeptaylor.support.provenance import to_json_values
from deeptaylor.support.statistics import Interval, bootstrap
from deeptaylor.viz import pages as report

__all__ = ["Evaluation", "Scores", "html", "json_bytes", "parse_evaluation", "write"]


Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Scores:
    """One method by one metric. Where a value could not be had it is NaN, and not counted."""

    method: str
    metric: str
    values: Array  # (samples,)
    interval: Interval
    curves: Mapping[str, Array] = field(default_factory=dict)  # means over the samples
    at: tuple[float, ...] = ()
    seconds: float = 0.0  # to make the maps and to judge them


@dataclass(frozen=True)
class Evaluation:
    """Methods by metrics; ``failed`` says which methods could not be judged, and why."""

    scores: tuple[Scores, ...]
    metrics: Mapping[str, tuple[str, bool | None]]  # what a metric says, and whether more is better
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Array] = field(default_factory=dict)  # by metric: samples that belong together

    def of(self, metric: str, method: str) -> Scores:
        """Return one method's scores by one metric."""
        for s in self.scores:
            if (s.metric, s.method) == (metric, method):
                return s
        there = ", ".join(f"{s.method} by {s.metric}" for s in self.scores)
        raise InputError(f"There are no scores of {method!r} by {metric!r}; there are {there or 'none'}.")

    def ranked(self, metric: str) -> list[Scores]:
        """Return the methods by one metric: the best first, those without a single value last.

        If neither high nor low is good, the methods stay in the order in which they were evaluated.
        """
        higher = self.metrics[metric][1]
        sign = 0 if higher is None else -1 if higher else 1

        def place(s: Scores) -> tuple[bool, float]:
            return (True, 0.0) if s.interval.samples == 0 else (False, sign * s.interval.mean)

        return sorted((s for s in self.scores if s.metric == metric), key=place)

    def leaders(self, metric: str) -> list[str]:
        """Return the best method and those whose intervals overlap with its own.

        The list is empty if neither high nor low is good.
        """
        if self.metrics[metric][1] is None:
            return []
        ranked = [s for s in self.ranked(metric) if s.interval.samples]
        return [s.method for s in ranked if s.interval.overlaps(ranked[0].interval)]

    def difference(self, metric: str, method: str, other: str) -> Interval:
        """Return how much more a method gets than another on the same samples, with its 95 % interval."""
        a, b = (self.of(metric, name).values for name in (method, other))
        return bootstrap(a - b, groups=self.groups.get(metric))

    def record(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        return {
            "about": dict(self.about),
            "notes": list(self.notes),
            "failed": dict(self.failed),
            "metrics": {name: {"about": text, "higher": higher} for name, (text, higher) in self.metrics.items()},
            "groups": {name: [int(g) for g in of] for name, of in self.groups.items()},
            "scores": [_plain(s) for s in self.scores],
        }

    def __repr__(self) -> str:
        methods = len({s.method for s in self.scores})
        ordered = [metric for metric, (_, higher) in self.metrics.items() if higher is not None]
        best = [f"{metric}: {', '.join(self.leaders(metric)) or 'none'}" for metric in ordered]
        failed = f"; left out: {', '.join(self.failed)}" if self.failed else ""
        samples = self.about.get("samples", "?")
        return (
            f"<Evaluation of {methods} method(s) on {samples} sample(s){failed}; print it for the intervals\n"
            f"  best, or not distinguishable from the best, by {'; by '.join(best) or 'no metric'}>"
        )

    def __str__(self) -> str:
        lines = []
        for metric, (about, _) in self.metrics.items():
            leaders = self.leaders(metric)
            lines += [f"{metric}: {about}"]
            lines += [
                f"  {s.method:<34} {s.interval}{' *' if s.method in leaders else ''}" for s in self.ranked(metric)
            ]
        lines += [f"left out: {name}: {why}" for name, why in self.failed.items()]
        return "\n".join([*lines, *[f"note: {note}" for note in self.notes]])


def _plain(s: Scores) -> dict[str, Any]:
    return {
        "method": s.method,
        "metric": s.metric,
        **vars(s.interval),
        "seconds": s.seconds,
        "at": list(s.at),
        "curves": {name: [float(v) for v in curve] for name, curve in s.curves.items()},
        "values": [None if np.isnan(v) else float(v) for v in s.values],
    }


def parse_evaluation(record: Mapping[str, Any]) -> Evaluation:
    """Return an evaluation from what `record` gave."""
    return Evaluation(
        tuple(
            Scores(
                s["method"],
                s["metric"],
                _numbers(s["values"]),
                _interval(s),
                {name: _numbers(curve) for name, curve in s["curves"].items()},
                tuple(s["at"]),
                s["seconds"],
            )
            for s in record["scores"]
        ),
        {name: (m["about"], m["higher"]) for name, m in record["metrics"].items()},
        record["failed"],
        tuple(record["notes"]),
        record["about"],
        {name: np.array(of) for name, of in record["groups"].items()},
    )


def _interval(s: Mapping[str, Any]) -> Interval:
    mean, low, high = _numbers([s["mean"], s["low"], s["high"]]).tolist()
    return Interval(mean, low, high, s["samples"])


def _numbers(values: Sequence[float | None]) -> Array:
    """Return numbers from JSON, which has no NaN but null."""
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


_LEAD = (
    "Each method explained the same inputs. Each metric then tested the maps on the network itself. Every mean has its "
    "95 % interval (the middle 95 % of the means of resampled inputs). A method is marked if its interval overlaps "
    "that of the first: the numbers do not distinguish the two."
)


def write(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write report.html and evaluation.json into a folder that exists, each whole or not at all."""
    files = {folder / "report.html": html(evaluation).encode(), folder / "evaluation.json": json_bytes(evaluation)}
    return [write_whole(path, data) for path, data in files.items()]


def json_bytes(evaluation: Evaluation) -> bytes:
    """Return all values, for programs; NaN is null."""
    text = json.dumps(to_json_values(evaluation.record()), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def html(evaluation: Evaluation) -> str:
    """Return the report as one HTML file."""
    about = evaluation.about
    lead: list[report.Part] = [_LEAD]
    if about:
        lead.append(f"{about['network']}, {about['samples']} inputs.")
    lead += [f"Left out: {name}. {why}" for name, why in evaluation.failed.items()]
    lead += list(evaluation.notes)
    sections = [report.Section(name.capitalize(), _parts(evaluation, name)) for name in evaluation.metrics]
    return report.render_report(
        "Do the maps show what the network uses?", lead, sections, "Made by deeptaylor evaluate."
    )


def _parts(evaluation: Evaluation, metric: str) -> list[report.Part]:
    about, higher = evaluation.metrics[metric]
    ranked, first = evaluation.ranked(metric), evaluation.leaders(metric)
    best = {True: "high is good", False: "low is good", None: "neither high nor low is good"}[higher]
    rows = [(s.method, *_cells(s), "best, or not distinguishable from it" if s.method in first else "") for s in ranked]
    table = report.Table(f"{about} ({best}).", ("method", "mean", "95 % interval", "inputs", ""), rows)
    pictures: list[report.Part] = []
    if ranked and ranked[0].curves:
        try:
            pictures = [
                report.ReportPicture(curves(ranked), f"{metric}: means over the inputs.", f"Curves of {metric}")
            ]
        except DeepTaylorError as error:
            pictures = [f"The curves are not drawn: {error}"]
    return [table, *pictures]


def _cells(s: Scores) -> tuple[str, str, str]:
    i = s.interval
    return (f"{i.mean:.3f}", f"{i.low:.3f} to {i.high:.3f}", str(i.samples)) if i.samples else ("-", "-", "0")


def curves(ranked: list[Scores]) -> bytes:
    """Draw every method's curves as a PNG, one panel for each kind of curve."""
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
    drawn.axes[0].set_ylabel("mean probability of the class")
    drawn.axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    data = io.BytesIO()
    drawn.savefig(data, format="png", dpi=120)
    return data.getvalue()
