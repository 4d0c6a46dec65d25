"""Over many inputs: those in which a channel counted most, or was most active, with the pieces that it counted in.

ExampleSearch(explainer, layer)
├── update(batch)      a batch is explained; of each channel the best inputs are kept, so that memory does not grow
└── result()           ChannelExamples: of(channel), crops(channel), figure(channel)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.errors import InputError, TargetError
from deeptaylor.pictures.crops import Crop, crop_of, crops_figure, picture_of
from deeptaylor.pictures.files import kind_of
from deeptaylor.run.unit import channel_axis, check_channel, unit
from deeptaylor.shown import percent
from deeptaylor.support.files import write_whole

if TYPE_CHECKING:
    from deeptaylor.pictures.canvas import Figure, Size

__all__ = ["ChannelExamples", "Example", "ExampleSearch", "channel_examples"]

By = Literal["relevance", "activation"]
_KINDS = (".png", ".pdf", ".svg")
_SHOWN = 8  # channels in a text


class _Explains(Protocol):
    """Of an explainer, what a search needs."""

    def explain(self, x: Any, target: Any = None) -> Any: ...
    def activations(self, layer: str, x: Any) -> Tensor: ...


@dataclass(frozen=True)
class Example:
    """One input: its number in the order in which they were given, what the channel counted in it, and the input."""

    number: int
    value: float
    title: str  # the class that was explained, where relevance was asked for
    input: Any
    target: int | None


@dataclass(frozen=True)
class _Kept:
    """What is kept of an input."""

    input: Any
    target: int | None
    title: str


class ExampleSearch:
    """Finds the inputs in which each channel of a layer counted most; batch by batch, keeping no more than `top` each.

    explainer   a `dt.Explainer`
    layer       the layer, by module path or node name
    channels    those that are asked about; None: all
    by          "relevance": of the class that is explained; or "activation", at the channel's most active place
    top         how many inputs are kept of each channel
    axis        that of the layer's output which counts the channels, as in `dt.unit`

    What is kept is the input as it was given: the name of a file takes no room, a tensor its own.
    """

    def __init__(
        self, explainer: _Explains, layer: str, channels: Sequence[int] | None = None, by: By = "relevance",
        top: int = 8, axis: int | None = None,
    ) -> None:  # fmt: skip
        if by not in get_args(By):
            raise InputError(f"by={by!r}: there are {' and '.join(map(repr, get_args(By)))}.")
        if top < 1:
            raise InputError(f"top={top}: at least one.")
        self.explainer, self.layer, self.by, self.top, self.axis = explainer, layer, by, top, axis
        self._channels = None if channels is None else tuple(channels)
        self._values: Tensor | None = None  # (channels, kept), the largest first; −∞ where there is none
        self._numbers = torch.zeros(0, 0, dtype=torch.long)
        self._kept: dict[int, _Kept] = {}
        self.seen = 0

    def update(self, x: Any, target: Any = None) -> Self:
        """Explain a batch, and keep what belongs to the best; inputs and targets are those of `Explainer.explain`."""
        values, kept = self._of_relevance(x, target) if self.by == "relevance" else self._of_activation(x, target)
        if self._channels is None:
            self._channels = tuple(range(values.shape[1]))
        for channel in self._channels:
            check_channel(self.layer, channel, values.shape[1])
        new = values[:, list(self._channels)].T.to("cpu", torch.float64)
        new = torch.where(new > 0, new, -torch.inf)
        numbers = torch.arange(self.seen, self.seen + len(kept)).expand(len(new), -1)
        if self._values is not None:
            new, numbers = torch.cat([self._values, new], 1), torch.cat([self._numbers, numbers], 1)
        self._values, order = new.sort(dim=1, descending=True, stable=True)  # of equal ones the earlier stays first
        self._values, self._numbers = self._values[:, : self.top], numbers.gather(1, order)[:, : self.top]
        self._kept |= dict(zip(range(self.seen, self.seen + len(kept)), kept, strict=True))
        wanted = set(self._numbers[self._values > -torch.inf].tolist())
        self._kept = {number: one for number, one in self._kept.items() if number in wanted}
        self.seen += len(kept)
        return self

    def _of_relevance(self, x: Any, target: Any) -> tuple[Tensor, list[_Kept]]:
        e = self.explainer.explain(x, target)
        classes = e.classes if e.target is None else e.target
        if isinstance(classes, int):
            classes = torch.full((len(e.score),), classes)
        if classes is not None and (not isinstance(classes, Tensor) or classes.is_floating_point() or classes.ndim > 1):
            raise TargetError("Examples are told of one class a sample: None, a class, or an integer tensor (batch,).")
        rows = [None] * len(e.score) if classes is None else [int(c) for c in classes.expand(len(e.score))]
        items = _rows(x, len(e.score))
        names = [e.titles[k][0] if e.titles else "" if c is None else f"class {c}" for k, c in enumerate(rows)]
        kept = [_Kept(*one) for one in zip(items, rows, names, strict=True)]
        return e.channels(self.layer, self.axis).relevance, kept

    def _of_activation(self, x: Any, target: Any) -> tuple[Tensor, list[_Kept]]:
        if target is not None:
            raise TargetError('An activation belongs to no class: by="activation" takes no target.')
        a = self.explainer.activations(self.layer, x)
        a = a.movedim(channel_axis(self.layer, a.shape, self.axis), 1).flatten(2 if a.ndim > 2 else 1)
        return a.amax(2) if a.ndim > 2 else a, [_Kept(one, None, "") for one in _rows(x, len(a))]

    def result(self) -> ChannelExamples:
        """What was found so far."""
        if self._values is None or self._channels is None:
            raise InputError("Nothing was searched yet: call update(batch) first.")
        found = {}
        for channel, values, numbers in zip(
            self._channels, self._values.tolist(), self._numbers.tolist(), strict=True
        ):  # fmt: skip
            best = [(v, n, self._kept[n]) for v, n in zip(values, numbers, strict=True) if v > -float("inf")]
            found[channel] = tuple(Example(n, v, one.title, one.input, one.target) for v, n, one in best)
        return ChannelExamples(self.explainer, self.layer, self.by, self.axis, self.seen, found)


@dataclass(frozen=True, repr=False)
class ChannelExamples:
    """The inputs in which each channel of a layer counted most, of all that were searched."""

    explainer: _Explains
    layer: str
    by: By
    axis: int | None
    seen: int
    found: dict[int, tuple[Example, ...]]

    def of(self, channel: int) -> tuple[Example, ...]:
        """A channel's examples, the first one first; fewer than were asked for where it counted in no more."""
        if channel not in self.found:
            raise TargetError(f"The channel {channel} was not searched for: there are {_some(list(self.found))}.")
        return self.found[channel]

    def crops(self, channel: int, crop: float = 0.4) -> list[Crop]:
        """Of each example the square piece in which most of the channel's relevance lies.

        crop   the side of the piece, as a part of the picture's shorter side
        """
        made = []
        for k, example in enumerate(self.of(channel)):  # one at a time: inputs may differ in size
            e = self._map(channel, example)
            heat = e.heatmap()[0].detach().to("cpu", torch.float64).numpy()
            if heat.ndim != 2:
                raise InputError(f"Crops are cut from pictures; the maps of these inputs have the shape {heat.shape}.")
            picture = e.photos[0] if e.photos else picture_of(_as_array(example.input))
            title = "\n".join([*[example.title] * bool(example.title), f"{k + 1}: {example.value:.3g}"])
            made.append(crop_of(picture, heat, crop, title))
        return made

    def _map(self, channel: int, example: Example) -> Any:
        if self.by == "activation":
            return self.explainer.explain(example.input, unit(self.layer, channel, "max", self.axis))
        return self.explainer.explain(example.input, example.target).channels(self.layer, self.axis).map(channel)

    def figure(self, channel: int, crop: float = 0.4, size: Size = None) -> Figure:
        """The pieces of a channel's examples, and beneath them the maps of what it counted: a figure of matplotlib."""
        crops = self.crops(channel, crop)
        if not crops:
            raise InputError(f"Channel {channel} of {self.layer} counted in none of the {self.seen} inputs.")
        did, what = ("counted", "relevance") if self.by == "relevance" else ("was most active", "activation")
        most = " most" if self.by == "relevance" else ""
        title = f"Channel {channel} of {self.layer}: the {len(crops)} of {self.seen} inputs in which it {did}{most}"
        how = (
            "the part of the class's map that passed through the channel"
            if self.by == "relevance"
            else "the map of the channel's activation at its most active place"
        )
        caption = (
            f"Numbers are the channel's {what} in each input. Each piece is the square of {percent(crop, '.0f')} of "
            f"the shorter side in which most of the map lies. Below: {how}, each in a colour scale of its own."
        )
        return crops_figure(crops, title, [caption], size)

    def save(self, channel: int, path: str | os.PathLike[str], crop: float = 0.4) -> Path:
        """Write a channel's figure (.png, .pdf or .svg), whole or not at all."""
        kind = kind_of(path, _KINDS)
        figure = self.figure(channel, crop)
        from deeptaylor.pictures.canvas import figure_bytes

        return write_whole(path, figure_bytes(figure, kind[1:]))

    def __str__(self) -> str:
        first = list(self.found.items())[:_SHOWN]
        lines = [f"channel {c}: " + (_listed(examples) or "none") for c, examples in first]
        more = len(self.found) - len(first)
        head = f"{self.layer}: the inputs of {self.seen} with the greatest {self.by} of each channel"
        return "\n".join([head, *lines, *[f"… and {more} more channels"] * (more > 0)])

    def __repr__(self) -> str:
        return f"<ChannelExamples of {len(self.found)} channels of {self.layer}, from {self.seen} inputs>"


def channel_examples(
    explainer: _Explains, batches: Iterable[Any], layer: str, channels: Sequence[int] | None = None,
    by: By = "relevance", top: int = 8, target: Any = None, axis: int | None = None,
) -> ChannelExamples:  # fmt: skip
    """The inputs in which each channel of a layer counted most, over batches of any number.

    batches   an iterable of what `Explainer.explain` takes: tensors, or lists of photographs
    target    the class to explain in every input; None: the network's answer to each

    The rest is that of `ExampleSearch`, which takes batches one by one, with a target each.
    """
    search = ExampleSearch(explainer, layer, channels, by, top, axis)
    for x in batches:
        search.update(x, target)
    return search.result()


def _rows(x: Any, samples: int) -> list[Any]:
    """The inputs of a batch one by one, each as the explainer takes it."""
    if isinstance(x, (list, tuple)) and len(x) == samples and all(map(_is_photo, x)):
        return list(x)
    if isinstance(x, list) and len(x) == samples:
        return [one if isinstance(one, Tensor) else [one] for one in x]
    if isinstance(x, (Tensor, np.ndarray)) and len(x) == samples and x.ndim > 1:
        rows = [x[k : k + 1] for k in range(samples)]
        return [row.detach().clone() if isinstance(row, Tensor) else row.copy() for row in rows]
    if samples == 1 and _is_photo(x):
        return [x]
    raise InputError(
        "A search takes batches of one input: a tensor or an array with the samples in front, or a list of photographs."
    )


def _is_photo(x: Any) -> bool:
    pixels = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim < 4
    return pixels or isinstance(x, (str, os.PathLike, Image.Image))


def _as_array(x: Any) -> Any:
    """One input as an array without its axis of samples."""
    t = x.detach().to("cpu", torch.float64).numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)
    return t[0] if t.ndim == 4 else t


def _listed(examples: Sequence[Example]) -> str:
    return ", ".join(f"{e.number} ({e.value:.3g})" for e in examples)


def _some(channels: Sequence[int]) -> str:
    first = ", ".join(map(str, channels[:8]))
    return f"{first}, …" if len(channels) > 8 else first
