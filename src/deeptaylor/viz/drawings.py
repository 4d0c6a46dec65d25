"""What an explanation gives to be drawn: the map of one sample, one class and one input, with its scale and its words.

`e` is an `Explanation` and `c` a `Contrast` throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.viz import captions
from deeptaylor.viz.colors import relevance_to_rgb
from deeptaylor.viz.heatmap import (
    Axis,
    ColorScale,
    Floor,
    Heat,
    Picture,
    fit_scale,
    infer_axis,
    montage,
    render,
    robust_scale,
    select_input,
    select_sample,
    sum_channels,
)
from deeptaylor.viz.photograph import Photo, Photograph, enlarge_small, input_to_picture

__all__ = [
    "MOST_CURVES",
    "Drawing",
    "add_difference",
    "choose_line_axis",
    "choose_slices",
    "class_heat",
    "color_strength",
    "contrast_heading",
    "difference_map",
    "find_picture",
    "find_signal",
    "is_signal",
    "make_drawing",
    "render_inputs",
    "render_map",
    "render_slices",
    "select_heat",
    "square_columns",
    "to_array",
]

MOST_CURVES = 16  # in one figure
_LONG = 8  # times as many points as channels
_FAINT = 8  # of full colour the eighth part: less is white on most screens


@dataclass(frozen=True)
class Drawing:
    """A map with everything that is written beside it."""

    heat: Heat
    scale: ColorScale
    title: str
    caption: tuple[str, ...]
    photo: Photograph | None = None
    axes: tuple[str, str] | None = None  # names of both axes of a map that is not a picture
    name: str = "relevance"
    beneath: str = "photograph"
    over: str = "over the photograph"
    label: str = "relevance"  # beside the colours
    difference: Heat | None = None  # of a contrast: for the class, and against it
    difference_scale: ColorScale | None = None
    difference_name: str = ""

    def over_photo(self, photo: Photo | None) -> Drawing:
        """Return the drawing over a picture of the user; None: unchanged."""
        if photo is None:
            return self
        over = self.over.replace("photograph", "picture").replace("input", "picture")
        return replace(self, photo=Photograph.from_picture(photo), beneath="picture", over=over)


def make_drawing(
    e: Any, title: Callable[[], str], sample: int, target: int, which: int = 0, axis: Axis = None,
    floor: Floor = None, places: str = "",
) -> Drawing:  # fmt: skip
    """Return the drawing of a map; ``places``: what its values belong to (pixels, tokens, …) if that is known."""
    heat = select_heat(e, e.relevance, sample, target, which, axis)
    both = heat.ndim == 2 == select_input(e.relevance, which).ndim - e.score.ndim
    places = places or {2: "inputs" if both else "pixels", 3: "voxels"}.get(heat.ndim, "inputs")
    places = "inputs" if isinstance(e.relevance, tuple) else places
    photo = None if which or not e.photos else Photograph.from_pixels(e.photos[sample])
    named: dict[str, Any] = {}
    if photo is None and not which and (picture := find_picture(e, sample, heat.shape)) is not None:
        photo, named = Photograph.from_pixels(picture), {"beneath": "input", "over": "over the input"}
    return Drawing(
        heat,
        fit_scale(class_heat(e, sample, target, which, axis), floor),
        title(),
        (captions.describe_account(e.ledger, sample, target, places, e.method),),
        e.originals[sample]() if photo is not None and not named and e.originals else photo,
        ("axis 1 of the input", "axis 2 of the input") if both else None,
        label={"pixels": "relevance per pixel", "voxels": "relevance per voxel"}.get(places, "relevance"),
        **named,
    )


def find_picture(e: Any, sample: int, shape: tuple[int, ...] | None = None) -> Picture | None:
    """Return the first input of a sample as a picture; None if it is not one of 1 or 3 channels and this shape."""
    if not e.inputs or e.inputs[0].ndim != 4 or not e.inputs[0].is_floating_point():
        return None
    x = e.inputs[0][sample].movedim(e.channel_axis - 1, 0).to("cpu", torch.float64).numpy()
    is_picture = len(x) in (1, 3) and shape in (None, x.shape[1:]) and bool(np.isfinite(x).all())
    return input_to_picture(x) if is_picture else None


def find_signal(inputs: Sequence[Tensor], sample: int, which: int, length: int) -> Heat | None:
    """Return an input (channels, length) of a sample, to be drawn as curves; None for inputs of other shapes."""
    if not -len(inputs) <= which < len(inputs):
        return None
    x = inputs[which]
    fits = x.is_floating_point() and x.ndim == 3 and x.shape[2] == length and x.shape[1] <= MOST_CURVES
    return to_array(x[sample]) if fits else None


def is_signal(d: Drawing) -> bool:
    """Return whether relevance is drawn as curves: (channels, length) with few channels that are long."""
    if d.heat.ndim != 2 or d.axes is None or d.photo is not None or d.difference is not None:
        return False
    channels, length = d.heat.shape
    return bool(channels <= MOST_CURVES and length >= _LONG * channels)


# --- maps -------------------------------------------------------------------------------------------------------------


def select_heat(e: Any, maps: Any, sample: int, target: int, which: int = 0, axis: Axis = None) -> Heat:
    """Return one map of one sample as it is drawn: summed over channels; of inputs (B, a, b) with both axes."""
    t = select_sample(select_input(maps, which), sample, target, e.score.ndim == 2)
    return np.atleast_1d(sum_channels(t, 0, () if t.ndim == 2 and axis is None else e.axis_of(which, axis)).numpy())


def class_heat(e: Any, sample: int, target: int, which: int = 0, axis: Axis = None) -> Heat:
    """Return the map that colours are scaled by: of a contrast both parts, so that a small one does not look large."""
    heat = select_heat(e, e.relevance, sample, target, which, axis)
    shared = getattr(e, "shared", None)
    return heat if shared is None else heat + select_heat(e, shared, sample, target, which, axis)


def choose_line_axis(e: Any, which: int, axis: Axis, length: int | None) -> Axis:
    """Return the axis to sum over for one number per place; raise InputError if the shape does not say which."""
    part, lead = select_input(e.relevance, which), e.score.ndim
    axis = infer_axis(part, lead, e.axis_of(which, axis), length)
    sum_channels(part[:0], lead, axis)
    return axis


def render_map(
    e: Any, sample: int, target: int, which: int = 0, axis: Axis = None, floor: Floor = None,
    automatic: bool = False, strength: float = 1.0,
) -> Picture:  # fmt: skip
    """Return a map in colours, without words; ``strength`` multiplies its values."""
    heat = strength * select_heat(e, e.relevance, sample, target, which, axis)
    scale = fit_scale(class_heat(e, sample, target, which, axis), floor, automatic)
    return render_slices(heat, scale) if heat.ndim == 3 else render(scale(heat), 1.0)


def render_inputs(e: Any, sample: int, target: int) -> tuple[list[tuple[Picture, str]], list[str]]:
    """Return the map of every input with its name, and the notes that belong below them."""
    inputs = range(len(e.relevance) if isinstance(e.relevance, tuple) else 1)
    images, notes, shapes = [], [], []
    for k in inputs:
        name = f"heatmap of sample {sample}" + f", input {k}" * (k > 0)
        images.append((render_map(e, sample, target, k, automatic=True), name))
        notes.append(fit_scale(class_heat(e, sample, target, k)).note)
        heat = select_heat(e, e.relevance, sample, target, k)
        if select_input(e.relevance, k).ndim - e.score.ndim == heat.ndim == 2:
            shapes.append("Rows and columns are the input's own: {} × {}.".format(*heat.shape))
    return images, list(dict.fromkeys(note for note in [*notes, *shapes] if note))


def render_slices(heat: Heat, scale: ColorScale, count: int = 9) -> Picture:
    """Return slices along the first axis side by side, all in one colour scale."""
    numbers = choose_slices(len(heat), count)
    pictures = [enlarge_small(relevance_to_rgb(scale(heat[k]))) for k in numbers]
    return montage(pictures, [f"slice {k}" for k in numbers], columns=square_columns(len(numbers)))


def choose_slices(depth: int, count: int) -> list[int]:
    """Return the numbers of slices at even distances, from the middle of the first part to the middle of the last.

    >>> choose_slices(10, 3), choose_slices(2, 9)
    ([1, 5, 8], [0, 1])
    """
    if count < 1:
        raise InputError(f"slices={count}: at least one.")
    count = min(depth, count)
    return [int((k + 0.5) * depth / count) for k in range(count)]


def square_columns(count: int) -> int:
    """Return how many of these pictures stand side by side in a montage that is about square."""
    return int(np.ceil(np.sqrt(count)))


def to_array(values: Any) -> Heat:
    """Return a signal or a volume of the user, a tensor or what NumPy takes, as an array."""
    values = values.detach().to("cpu", torch.float64) if isinstance(values, Tensor) else values
    return np.asarray(values, dtype=np.float64)


# --- contrasts --------------------------------------------------------------------------------------------------------


def difference_map(c: Any, sample: int, target: int, which: int = 0, axis: Axis = None) -> tuple[Heat, ColorScale]:
    """Return the class's map minus its rivals' with its scale: full colour is that of the class's own map."""
    own, shared, difference = (
        select_heat(c, t, sample, target, which, axis) for t in (c.relevance, c.shared, c.difference)
    )
    scale = ColorScale(robust_scale(own + shared), signed=True, largest=float(np.abs(difference).max()))
    return difference, scale


def color_strength(c: Any, sample: int, target: int) -> float:
    """Return the factor that makes the distinctive part of a map visible: 1 if it is visible as it is.

    0 if nothing distinguishes the class (`captions.is_indistinct`): with any factor the map would show shared evidence.
    """
    own, both = (t[sample, target] if t.ndim == 2 else t[sample] for t in (c.ledger.input, c.ledger.input_total))
    if float(both) <= 0 or captions.is_indistinct(float(own) / float(both)):
        return 0.0
    times = robust_scale(class_heat(c, sample, target)) / robust_scale(select_heat(c, c.relevance, sample, target))
    return times if times > _FAINT else 1.0


def contrast_heading(c: Any, sample: int, target: int) -> str:
    """Return the title of a contrast, with the class and its rivals."""
    name = captions.class_title(c.classes if c.target is None else c.target, c.titles, sample, target) or "the class"
    return captions.contrast_title(name, _rivals(c, sample, target), c.class_names)


def add_difference(c: Any, d: Drawing, sample: int, target: int, which: int, axis: Axis) -> Drawing:
    """Return the drawing of a distinctive part with the difference from the rivals beside it."""
    if not _rivals(c, sample, target):
        return d
    difference, scale = difference_map(c, sample, target, which, axis)
    notes = [captions.describe_split(c.ledger, sample, target), f"{c.apart_text(sample, target)}."]
    notes += ["Rivals count by the percentages in the title."] * ("%)" in d.title)
    return replace(
        d,
        caption=(*d.caption, *notes),
        name="what sets it apart",
        over="what sets it apart",
        difference=difference,
        difference_scale=scale,
        difference_name="more than the rivals: red, less: blue",
    )


def _rivals(c: Any, sample: int, target: int) -> tuple[tuple[int, float], ...]:
    """Return the rivals of one map with their weights."""
    targets = c.score.shape[1] if c.score.ndim == 2 else 1
    rivals: tuple[tuple[int, float], ...] = c.rivals[sample % len(c.score) * targets + target % targets]
    return rivals
