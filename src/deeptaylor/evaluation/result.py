"""What an evaluation found: a mean and an interval a method and metric, with the values it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.errors import InputError
from deeptaylor.metrics.interval import Interval, bootstrap

__all__ = ["Evaluation", "Scores", "read"]

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
        """One method's scores by one metric."""
        for s in self.scores:
            if (s.metric, s.method) == (metric, method):
                return s
        there = ", ".join(f"{s.method} by {s.metric}" for s in self.scores)
        raise InputError(f"There are no scores of {method!r} by {metric!r}; there are {there or 'none'}.")

    def ranked(self, metric: str) -> list[Scores]:
        """The methods by one metric, the best first; those without a single value last."""
        higher = self.metrics[metric][1]
        found = [s for s in self.scores if s.metric == metric]
        return sorted(found, key=lambda s: (s.interval.samples == 0, -s.interval.mean if higher else s.interval.mean))

    def leaders(self, metric: str) -> list[str]:
        """The first, and those whose interval overlaps with its own."""
        ranked = [s for s in self.ranked(metric) if s.interval.samples]
        return [s.method for s in ranked if s.interval.overlaps(ranked[0].interval)]

    def difference(self, metric: str, method: str, other: str) -> Interval:
        """How much more a method gets than another on the same samples, with its 95 % interval."""
        a, b = (self.of(metric, name).values for name in (method, other))
        return bootstrap(a - b, groups=self.groups.get(metric))

    def record(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
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
        best = [f"{metric}: {', '.join(self.leaders(metric)) or 'none'}" for metric in self.metrics]
        failed = f"; left out: {', '.join(self.failed)}" if self.failed else ""
        samples = self.about.get("samples", "?")
        return (
            f"<Evaluation of {methods} method(s) on {samples} sample(s){failed}; print it for the intervals\n"
            f"  first, or not to be told apart from it, by {'; by '.join(best) or 'no metric'}>"
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


def read(record: Mapping[str, Any]) -> Evaluation:
    """An evaluation from what `record` gave."""
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
    """JSON has no word for NaN but null."""
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
