"""How much each channel of a layer counted for a decision, the part of the map that passed through it, and examples.

e.channels(layer)         Channels: relevance by channel, and what passed the layer by or was absorbed by biases
├── .map(channel)         the part of the map that passed through a channel, as an explanation
└── .past_map()           the part that passed the layer by
ExampleSearch(explainer, layer)
├── .update(batch)        explain a batch; of each channel only the best inputs are kept, so that memory does not grow
└── .result()             ChannelExamples: of(channel), crops(channel), figure(channel)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.engine.layer_relevance import LayerPart, LayerRelevance, SelectedLayerRelevance
from deeptaylor.engine.target import check_channel, find_channel_axis, unit
from deeptaylor.errors import BoundaryError, InputError, TargetError
from deeptaylor.formatting import format_percent
from deeptaylor.ledger import Ledger, sum_relevance
from deeptaylor.support.files import output_suffix, write_whole
from deeptaylor.viz import captions
from deeptaylor.viz.photograph import Crop, cut_crop, input_to_picture

if TYPE_CHECKING:
    from deeptaylor.viz.figures import Figure, Size

__all__ = ["ChannelExamples", "Channels", "Example", "ExampleSearch", "channel_examples"]


By = Literal["relevance", "activation"]
_KINDS = (".png", ".pdf", ".svg")
_CHANNELS_SHOWN = 8  # channels in a text


_SHOWN = 10  # channels in a table
_LENGTH = 24  # letters of the longest bar


E = TypeVar("E", bound=Any)


@dataclass(frozen=True, repr=False)
class Channels(Generic[E]):
    """The relevance at a layer by channel. With `past`, `bias` and `dropped` it adds up to the score.

    relevance   (B, channels): what arrived at each channel of the layer, summed over its places
    past        (B,): what reached the input past the layer, by a skip connection or another branch
    bias        (B,): relevance absorbed by biases outside of the layer
    dropped     (B,): relevance that could not be redistributed outside of the layer
    at          (B, channels, …): the relevance at the layer, place by place
    """

    explanation: E
    layer: str
    through: LayerRelevance | SelectedLayerRelevance

    @property
    def at(self) -> Tensor:
        """(B, channels, …): the relevance at the layer, place by place."""
        return self.through.at

    @property
    def relevance(self) -> Tensor:
        """(B, channels): what arrived at each channel of the layer."""
        return self.at.flatten(2).sum(2) if self.at.ndim > 2 else self.at

    @property
    def past(self) -> Tensor:
        """(B,): what reached the input past the layer."""
        return self.through.past

    @property
    def bias(self) -> Tensor:
        """(B,): what biases took outside of the layer."""
        return self.through.bias

    @property
    def dropped(self) -> Tensor:
        """(B,): what was dropped outside of the layer."""
        return self.through.dropped

    @property
    def total(self) -> Tensor:
        """(B,): the sum of all parts, equal to max(0, f) but for rounding."""
        return self.relevance.sum(1) + self.past + self.bias + self.dropped

    def top(self, count: int = _SHOWN, sample: int = 0) -> list[tuple[int, float]]:
        """Return the channels that counted most for a sample, for or against, each with its relevance."""
        R = self.relevance[sample]
        order = R.abs().argsort(descending=True, stable=True)[:count].tolist()
        return [(channel, float(R[channel])) for channel in order]

    # --- parts of the map -----------------------------------------------------------------------------------------

    def map(self, channel: int) -> E:
        """Return the part of the map that passed through one channel, as an explanation."""
        return self.maps([channel])[0]

    def maps(self, channels: Sequence[int]) -> list[E]:
        """Return the parts of several channels. Those of all channels and `past_map()` sum to the map.

        With bias="returned" every part is multiplied at each pixel by the same factor as the whole map.
        """
        for channel in channels:
            check_channel(self.layer, channel, self.at.shape[1])
        parts = self.through.parts(list(channels)) if len(channels) else []
        return [
            self._explain_part(part, f"through channel {c} of {self.layer}")
            for c, part in zip(channels, parts, strict=True)
        ]

    def past_map(self) -> E:
        """Return the part of the map that went past the layer; zero if everything passes through it."""
        return self._explain_part(self.through.skip_part(), f"past {self.layer}")

    def _explain_part(self, part: LayerPart, way: str) -> E:
        e = self.explanation
        arrived = torch.stack([part.arrived, part.own, part.bias, part.dropped])[None]
        ledger = Ledger(
            input=part.own,
            bias=part.bias,
            dropped=part.dropped,
            residual=torch.zeros_like(part.own),
            score=part.arrived,
            rows=((self.layer, "", way, "all steps"),),
            by_step=arrived,
            score_is=f"the relevance that goes {way}",
        )
        score = part.arrived
        if self.through.redistributes:
            none, score = torch.zeros_like(part.own), sum_relevance(part.relevance, many=False)
            ledger = replace(
                ledger, input=score, bias=none, dropped=none, score=score, returned=score - part.own, own=part.own,
                score_is=f"the part of the score that went {way}",
            )  # fmt: skip
        asked = e.classes if e.target is None else e.target
        whose = [captions.class_title(asked, e.titles, k, 0) for k in range(len(score))]
        titles = tuple((f"{who} {way}".strip(),) for who in whose)
        relevance = part.relevance[0] if len(part.relevance) == 1 else part.relevance
        return replace(
            self.explanation, relevance=relevance, score=score, ledger=ledger, titles=titles, source=_raise_partial,
            inside=None, next_class=None, seen={},
        )  # fmt: skip

    # --- how it shows itself --------------------------------------------------------------------------------------

    def table(self, sample: int = 0, count: int = _SHOWN) -> str:
        """Return a text table: the channels that counted most, the others together, and the rest of the score."""
        f, shown = float(self.explanation.score[sample].clamp(min=0)), self.top(count, sample)
        rest = float(self.relevance[sample].sum()) - sum(R for _, R in shown)
        others = self.at.shape[1] - len(shown)
        lines = [(f"channel {c}", R) for c, R in shown]
        lines += [(f"{others} other channels", rest)] * (others > 0)
        lines += [("past the layer", float(self.past[sample])), ("biases outside of it", float(self.bias[sample]))]
        lines += [("dropped", float(self.dropped[sample]))] * bool(self.dropped[sample])
        lines.append(("score", float(self.total[sample])))
        names, numbers = [name for name, _ in lines], [f"{R:.4g}" for _, R in lines]
        shares = [format_percent(R / f) if f > 0 else "–" for _, R in lines]
        longest = max([abs(R) for _, R in shown] or [0.0]) or 1.0
        bars = ["█" * round(_LENGTH * abs(R) / longest) for _, R in shown] + [""] * (len(lines) - len(shown))
        wide = [max(map(len, column)) for column in (names, numbers, shares)]
        rows = [
            f"{name.ljust(wide[0])}  {number.rjust(wide[1])}  {share.rjust(wide[2])}  {bar}".rstrip()
            for name, number, share, bar in zip(names, numbers, shares, bars, strict=True)
        ]
        return "\n".join([f"Relevance of the {self.at.shape[1]} channels of {self.layer}, sample {sample}", *rows])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        samples, channels = self.at.shape[:2]
        return f"<Channels of {self.layer}: {channels} channels, {samples} sample(s); print it for the table>"


def _raise_partial(name: str) -> Tensor:
    raise BoundaryError(f"This map is a part of an explanation: read the relevance at {name!r} from that one.")


def read_through(
    ask: Callable[[str, int | None], LayerRelevance | SelectedLayerRelevance] | None,
    ledger: Ledger,
    layer: str,
    axis: int | None,
) -> LayerRelevance | SelectedLayerRelevance:
    """Return what passes through a layer; raise InputError if the explanation cannot measure it.

    ask   the function of the explanation that measures it; None if it has lost its network
    """
    if ledger.shared is not None:
        raise InputError(
            "A contrast has no channels; measure them on the class's map: explainer.explain(x, c).channels(layer)."
        )
    if ask is None:
        raise InputError(
            "This explanation cannot measure channels of its network: it was loaded from a file, is a part of "
            "another, or was made by a method without relevance inside the network. Use {method}.",
            method="deep-taylor",
        )
    return ask(layer, axis)


# --- examples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """An input in which a channel counted much: its number in the order of the search, and the channel's value."""

    number: int
    value: float
    title: str  # the class that was explained; of activations empty
    input: Any
    target: int | None


@dataclass(frozen=True)
class _SearchedInput:
    """An input of the search with its class."""

    input: Any
    target: int | None
    title: str


class ExampleSearch:
    """Finds the inputs in which each channel of a layer counted most, batch by batch; keeps `top` of each.

    explainer   a `dt.Explainer`
    layer       the layer, by module path or node name
    channels    the channels to search for; None: all
    by          "relevance": of the class that is explained; or "activation", at the channel's most active place
    top         how many inputs are kept of each channel
    axis        the axis of the layer's output that counts the channels, as in `dt.unit`

    Inputs are kept as they were passed: names of files take no memory, tensors do.
    """

    def __init__(
        self, explainer: Any, layer: str, channels: Sequence[int] | None = None, by: By = "relevance",
        top: int = 8, axis: int | None = None,
    ) -> None:  # fmt: skip
        if by not in get_args(By):
            raise InputError(f"by={by!r}: there are {' and '.join(map(repr, get_args(By)))}.")
        if top < 1:
            raise InputError(f"top={top}: at least one.")
        self.explainer, self.layer, self.by, self.top, self.axis = explainer, layer, by, top, axis
        self._channels = None if channels is None else tuple(channels)
        self._values: Tensor | None = None  # (channels, kept), the largest first; −∞: none
        self._numbers = torch.zeros(0, 0, dtype=torch.long)
        self._kept: dict[int, _SearchedInput] = {}
        self.seen = 0

    def update(self, x: Any, target: Any = None) -> Self:
        """Explain a batch and keep its best inputs; `x` and `target` are as for `Explainer.explain`. Return self."""
        values, kept = self._rank_relevance(x, target) if self.by == "relevance" else self._rank_activation(x, target)
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

    def _rank_relevance(self, x: Any, target: Any) -> tuple[Tensor, list[_SearchedInput]]:
        e = self.explainer.explain(x, target)
        classes = e.classes if e.target is None else e.target
        if isinstance(classes, int):
            classes = torch.full((len(e.score),), classes)
        if classes is not None and (not isinstance(classes, Tensor) or classes.is_floating_point() or classes.ndim > 1):
            raise TargetError("Examples need one class per sample: None, a class, or an integer tensor (batch,).")
        rows = [None] * len(e.score) if classes is None else [int(c) for c in classes.expand(len(e.score))]
        items = _split_batch(x, len(e.score))
        names = [e.titles[k][0] if e.titles else "" if c is None else f"class {c}" for k, c in enumerate(rows)]
        kept = [_SearchedInput(*one) for one in zip(items, rows, names, strict=True)]
        return e.channels(self.layer, self.axis).relevance, kept

    def _rank_activation(self, x: Any, target: Any) -> tuple[Tensor, list[_SearchedInput]]:
        if target is not None:
            raise TargetError('An activation belongs to no class: by="activation" takes no target.')
        a = self.explainer.activations(self.layer, x)
        a = a.movedim(find_channel_axis(self.layer, a.shape, self.axis), 1).flatten(2 if a.ndim > 2 else 1)
        return a.amax(2) if a.ndim > 2 else a, [_SearchedInput(one, None, "") for one in _split_batch(x, len(a))]

    def result(self) -> ChannelExamples:
        """Return the examples found so far; raise InputError before the first batch."""
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

    explainer: Any
    layer: str
    by: By
    axis: int | None
    seen: int
    found: dict[int, tuple[Example, ...]]

    def of(self, channel: int) -> tuple[Example, ...]:
        """Return a channel's examples, the strongest first; fewer than `top` if it counted in fewer inputs."""
        if channel not in self.found:
            raise TargetError(
                f"The channel {channel} was not searched for: there are {_list_channels(list(self.found))}."
            )
        return self.found[channel]

    def crops(self, channel: int, crop: float = 0.4) -> list[Crop]:
        """Return of each example the square crop in which most of the channel's relevance lies.

        crop   the side of the crop, as a part of the picture's shorter side
        """
        made = []
        for k, example in enumerate(self.of(channel)):  # one at a time: inputs may differ in size
            e = self._map(channel, example)
            heat = e.heatmap()[0].detach().to("cpu", torch.float64).numpy()
            if heat.ndim != 2:
                raise InputError(f"Crops are cut from pictures; the maps of these inputs have the shape {heat.shape}.")
            picture = e.photos[0] if e.photos else input_to_picture(_as_array(example.input))
            title = "\n".join([*[example.title] * bool(example.title), f"{k + 1}: {example.value:.3g}"])
            made.append(cut_crop(picture, heat, crop, title))
        return made

    def _map(self, channel: int, example: Example) -> Any:
        if self.by == "activation":
            return self.explainer.explain(example.input, unit(self.layer, channel, "max", self.axis))
        return self.explainer.explain(example.input, example.target).channels(self.layer, self.axis).map(channel)

    def figure(self, channel: int, crop: float = 0.4, size: Size = None) -> Figure:
        """Return a figure of matplotlib: the crops of a channel's examples, and beneath them its maps."""
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
            f"Numbers are the channel's {what} in each input. Each piece is the square of "
            f"{format_percent(crop, '.0f')} of "
            f"the shorter side in which most of the map lies. Below: {how}, each in a colour scale of its own."
        )
        from deeptaylor.viz.figures import plot_crops

        return plot_crops(crops, title, [caption], size)

    def save(self, channel: int, path: str | os.PathLike[str], crop: float = 0.4) -> Path:
        """Write a channel's figure (.png, .pdf or .svg) atomically; return its path."""
        kind = output_suffix(path, _KINDS)
        figure = self.figure(channel, crop)
        from deeptaylor.viz.figures import encode_figure

        return write_whole(path, encode_figure(figure, kind[1:]))

    def __str__(self) -> str:
        first = list(self.found.items())[:_CHANNELS_SHOWN]
        lines = [f"channel {c}: " + (_list_examples(examples) or "none") for c, examples in first]
        more = len(self.found) - len(first)
        head = f"{self.layer}: the inputs of {self.seen} with the greatest {self.by} of each channel"
        return "\n".join([head, *lines, *[f"… and {more} more channels"] * (more > 0)])

    def __repr__(self) -> str:
        return f"<ChannelExamples of {len(self.found)} channels of {self.layer}, from {self.seen} inputs>"


def channel_examples(
    explainer: Any, batches: Iterable[Any], layer: str, channels: Sequence[int] | None = None,
    by: By = "relevance", top: int = 8, target: Any = None, axis: int | None = None,
) -> ChannelExamples:  # fmt: skip
    """Return the inputs in which each channel of a layer counted most, over any number of batches.

    batches   an iterable of what `Explainer.explain` takes: tensors, or lists of photographs
    target    the class to explain in every input; None: the network's answer to each

    The other arguments are those of `ExampleSearch`, which takes batches one by one, each with its target.
    """
    search = ExampleSearch(explainer, layer, channels, by, top, axis)
    for x in batches:
        search.update(x, target)
    return search.result()


def _split_batch(x: Any, samples: int) -> list[Any]:
    """Return the inputs of a batch one by one, each as the explainer takes it."""
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
    """Return one input as an array without its axis of samples."""
    t = x.detach().to("cpu", torch.float64).numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)
    return t[0] if t.ndim == 4 else t


def _list_examples(examples: Sequence[Example]) -> str:
    return ", ".join(f"{e.number} ({e.value:.3g})" for e in examples)


def _list_channels(channels: Sequence[int]) -> str:
    first = ", ".join(map(str, channels[:8]))
    return f"{first}, …" if len(channels) > 8 else first
