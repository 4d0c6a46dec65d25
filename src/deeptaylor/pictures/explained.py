"""What an explanation gives to be drawn: the map of one sample, one class and one input, with its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from deeptaylor.heatmap import Heat, Picture, colours
from deeptaylor.ledger import Ledger
from deeptaylor.pictures import sentences
from deeptaylor.pictures.axes import Axis, by_length, input_part, one, summed
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.photograph import Photograph
from deeptaylor.pictures.scale import Floor, scale_of
from deeptaylor.pictures.slices import sheet

__all__ = ["Explained", "drawing", "line_axis", "map_of", "picture", "pictured", "values_of", "whole_map"]


class Explained(Protocol):
    """An `Explanation`, as far as it is drawn."""

    @property
    def relevance(self) -> Any: ...
    @property
    def score(self) -> Tensor: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def target(self) -> Any: ...
    @property
    def method(self) -> str: ...
    @property
    def photos(self) -> tuple[Picture, ...]: ...
    @property
    def titles(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def feature_names(self) -> tuple[str, ...]: ...
    @property
    def originals(self) -> tuple[Callable[[], Photograph], ...]: ...


def map_of(e: Explained, maps: Any, sample: int, target: int, which: int = 0, axis: Axis = None) -> Heat:
    """One map of one sample as it is drawn: without channels; of inputs (B, a, b) with both axes."""
    t = one(input_part(maps, which), sample, target, e.score.ndim == 2)
    return np.atleast_1d(summed(t, 0, () if t.ndim == 2 and axis is None else axis).numpy())


def whole_map(e: Explained, sample: int, target: int, which: int = 0, axis: Axis = None) -> Heat:
    """What colours are scaled by: the map; of a contrast both parts, so that a small one does not look large."""
    heat = map_of(e, e.relevance, sample, target, which, axis)
    shared = getattr(e, "shared", None)
    return heat if shared is None else heat + map_of(e, shared, sample, target, which, axis)


def line_axis(e: Explained, which: int, axis: Axis, length: int | None) -> Axis:
    """The axis to sum over where one number per place is wanted; refused where it is not known."""
    part, lead = input_part(e.relevance, which), e.score.ndim
    axis = by_length(part, lead, axis, length)
    summed(part[:0], lead, axis)
    return axis


def picture(
    e: Explained, sample: int, target: int, which: int = 0, axis: Axis = None, floor: Floor = None,
    automatic: bool = False, strength: float = 1.0,
) -> Picture:  # fmt: skip
    """A map in colours, without words; ``strength``: so many times as strong."""
    heat = strength * map_of(e, e.relevance, sample, target, which, axis)
    scale = scale_of(whole_map(e, sample, target, which, axis), floor, automatic)
    return sheet(heat, scale) if heat.ndim == 3 else colours(scale(heat), 1.0)


def pictured(e: Explained, sample: int, target: int) -> tuple[list[tuple[Picture, str]], list[str]]:
    """The maps of all inputs, each with what it is; and what must be said about them."""
    inputs = range(len(e.relevance) if isinstance(e.relevance, tuple) else 1)
    heats = [map_of(e, e.relevance, sample, target, k) for k in inputs]
    images = [
        (picture(e, sample, target, k, automatic=True), f"heatmap of sample {sample}" + f", input {k}" * (k > 0))
        for k in inputs
    ]
    said = [scale_of(whole_map(e, sample, target, k)).said for k in inputs]
    said += [f"Rows and columns are the input's own: {a} × {b}." for a, b in _kept_both(e, inputs, heats)]
    return images, list(dict.fromkeys(s for s in said if s))


def _kept_both(e: Explained, inputs: range, heats: list[Heat]) -> list[tuple[int, ...]]:
    own = [input_part(e.relevance, k).ndim - e.score.ndim for k in inputs]
    return [heat.shape for heat, axes in zip(heats, own, strict=True) if axes == heat.ndim == 2]


def drawing(
    e: Explained, title: Callable[[], str], sample: int, target: int, which: int = 0, axis: Axis = None,
    floor: Floor = None, what: str = "",
) -> Drawing:  # fmt: skip
    """A map with its words; ``what`` its places are called."""
    heat = map_of(e, e.relevance, sample, target, which, axis)
    both = heat.ndim == 2 == input_part(e.relevance, which).ndim - e.score.ndim
    what = what or {2: "inputs" if both else "pixels", 3: "voxels"}.get(heat.ndim, "inputs")
    what = "inputs" if isinstance(e.relevance, tuple) else what
    photo = None if which or not e.photos else Photograph.whole(e.photos[sample])
    return Drawing(
        heat,
        scale_of(whole_map(e, sample, target, which, axis), floor),
        title(),
        (sentences.account(e.ledger, sample, target, what, e.method),),
        e.originals[sample]() if photo is not None and e.originals else photo,
        ("axis 1 of the input", "axis 2 of the input") if both else None,
        label={"pixels": "relevance per pixel", "voxels": "relevance per voxel"}.get(what, "relevance"),
    )


def values_of(given: Any) -> Heat:
    """A signal or a volume as the user gives it, as an array."""
    given = given.detach().to("cpu", torch.float64) if isinstance(given, Tensor) else given
    return np.asarray(given, dtype=np.float64)
