"""What a contrast gives to be drawn beside its map: the difference from its rivals, and its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from deeptaylor.heatmap import Heat, robust_scale
from deeptaylor.pictures import sentences
from deeptaylor.pictures.axes import Axis
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.explained import Explained, map_of, whole_map
from deeptaylor.pictures.scale import Scale

__all__ = ["Contrasted", "difference", "strength", "title", "with_difference"]

_FAINT = 8  # of full colour the eighth part: less is white on most screens


class Contrasted(Explained, Protocol):
    """A `Contrast`, as far as it is drawn."""

    @property
    def shared(self) -> Any: ...
    @property
    def difference(self) -> Any: ...
    @property
    def rivals(self) -> tuple[tuple[tuple[int, float], ...], ...]: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> Any: ...
    def apart_text(self, sample: int = 0, target: int = 0) -> str:
        """How far apart the class and its rivals are."""
        ...


def difference(c: Contrasted, sample: int, target: int, which: int = 0, axis: Axis = None) -> tuple[Heat, Scale]:
    """For the class and for its rivals; full colour is where it is as large as the class's own map."""
    own, shared, apart = (map_of(c, t, sample, target, which, axis) for t in (c.relevance, c.shared, c.difference))
    return apart, Scale(robust_scale(own + shared), signed=True, largest=float(np.abs(apart).max()))


def strength(c: Contrasted, sample: int, target: int) -> float:
    """How many times as strong colours must be for what sets a class apart to be seen: 1 where it is as it is.

    0 where nothing sets the class apart (`sentences.nothing_apart`): in any colours that would be its own map.
    """
    own, both = (t[sample, target] if t.ndim == 2 else t[sample] for t in (c.ledger.input, c.ledger.held))
    if float(both) <= 0 or sentences.nothing_apart(float(own) / float(both)):
        return 0.0
    times = robust_scale(whole_map(c, sample, target)) / robust_scale(map_of(c, c.relevance, sample, target))
    return times if times > _FAINT else 1.0


def title(c: Contrasted, sample: int, target: int) -> str:
    """What sets a class apart from which others."""
    name = sentences.class_title(c.classes if c.target is None else c.target, c.titles, sample, target) or "the class"
    return sentences.against(name, rivals_of(c, sample, target), c.class_names)


def rivals_of(c: Contrasted, sample: int, target: int) -> tuple[tuple[int, float], ...]:
    """The rivals of one map, and what each counts."""
    targets = c.score.shape[1] if c.score.ndim == 2 else 1
    return c.rivals[sample % len(c.score) * targets + target % targets]


def with_difference(c: Contrasted, d: Drawing, sample: int, target: int, which: int, axis: Axis) -> Drawing:
    """The drawing of the distinctive part, with the difference beside it."""
    if not rivals_of(c, sample, target):
        return d
    apart, scale = difference(c, sample, target, which, axis)
    said = [sentences.split(c.ledger, sample, target), f"{c.apart_text(sample, target)}."]
    said += ["Rivals count by the percentages in the title."] * ("%)" in d.title)
    return replace(
        d,
        caption=(*d.caption, *said),
        name="what sets it apart",
        over="what sets it apart",
        difference=apart,
        difference_scale=scale,
        difference_name="more than the rivals: red, less: blue",
    )
