"""The answer: relevance, score, the ledger that accounts for it, and how it shows itself."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from torch import Tensor

from deeptaylor.check import DEEP_TAYLOR, Check, check
from deeptaylor.concepts.channels import Channels, read_through
from deeptaylor.engine import contrast as contrasts
from deeptaylor.engine.layer_relevance import LayerRecord, LayerRelevance, SelectedLayerRelevance
from deeptaylor.engine.result import Result
from deeptaylor.engine.spatial import smooth
from deeptaylor.engine.target import select_samples
from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.formatting import format_percent
from deeptaylor.ledger import Ledger, sum_relevance
from deeptaylor.support.files import output_suffix, write_whole
from deeptaylor.support.provenance import to_picklable
from deeptaylor.viz import captions, drawings
from deeptaylor.viz import heatmap as colouring
from deeptaylor.viz.drawings import Drawing
from deeptaylor.viz.heatmap import (
    Axis,
    Floor,
    Picture,
    encode_pixels,
    encode_png,
    fit_scale,
    select_input,
    sum_channels,
)
from deeptaylor.viz.named_values import Bars, TokenMap, make_bars, make_tokens
from deeptaylor.viz.pages import html_figure, render_viewer
from deeptaylor.viz.photograph import Photo, Photograph, enlarge_small, overlay_map

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from deeptaylor.viz.figures import Figure, Layout, Size

_PIXELS, _FIGURES, _PAGE = (".png", ".jpg", ".jpeg"), (".pdf", ".svg"), ".html"  # by Pillow, matplotlib and pages.py
_MOST_SHOWN = 8  # heatmaps in a notebook
_FEW = 4  # scores and names in a line
_BARS = 20  # columns of a table in a figure, those that count most


@dataclass(frozen=True)
class Explanation:
    """Which parts of the input made the network decide so, and how much each counted."""

    relevance: Any  # a tensor shaped like the input ((B, K, …) for K targets), or a tuple of them for several inputs
    score: Tensor
    ledger: Ledger
    target: Any
    notes: tuple[str, ...]
    source: Callable[[str], Tensor]
    flips: Callable[[Tensor, Axis], Tensor] | None = None  # a map → the area of flipping
    method: str = DEEP_TAYLOR
    photos: tuple[Picture, ...] = ()  # of each sample, what the network saw; where photographs were explained
    classes: Tensor | None = None  # (B,): the network's answer, where that was asked for (target=None)
    titles: tuple[tuple[str, ...], ...] = ()  # of each sample, the names of the classes that are explained
    probabilities: tuple[tuple[float, ...], ...] = ()  # of each sample, those of these classes, where they are known
    originals: tuple[Callable[[], Photograph], ...] = ()  # of each sample, the photograph in its own resolution
    class_names: tuple[str, ...] = ()  # of all classes, where they are known
    inside: Callable[[str, int | None], LayerRelevance | SelectedLayerRelevance] | None = (
        None  # a layer → what passes through it
    )
    feature_names: tuple[str, ...] = ()  # of the columns, where the input is a table's row that has names
    seen: Mapping[str, LayerRecord] = field(
        default_factory=dict, repr=False
    )  # by layer that is watched (Explainer.watch)
    outputs: int | None = None  # how many numbers the network gives per sample, if that is known
    next_class: Callable[[], tuple[Tensor, Tensor]] | None = None  # the next class of each sample, and the overlap
    channel_axis: int = 1  # the axis of the (first) input that holds channels
    reason: str = ""  # which method answered, and why, in one sentence
    mean_of: str = ""  # "16 noisy copies", where map, score and ledger are means over them
    inputs: tuple[Tensor, ...] = field(default=(), repr=False)  # what was explained, to be drawn below the map

    _maps: ClassVar[tuple[str, ...]] = ("relevance",)  # the names of all that is shaped like the input

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.score)

    def __getitem__(self, sample: int | slice) -> Self:
        """Return the explanation of one sample, or of several: e[1], e[-1], e[:4]."""
        count = len(self)
        if isinstance(sample, slice):
            return self.select(range(count)[sample])
        if not -count <= sample < count:
            raise IndexError(f"This explanation has {count} sample{'s' * (count > 1)}, from 0 on; got {sample}.")
        return self.select([sample % count])

    def select(self, samples: Sequence[int]) -> Self:
        """Return the explanation of some of the samples, in this order."""
        rows = list(samples)

        def pick(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[k] for k in rows) if values else ()

        return replace(
            self,
            relevance=select_rows(self.relevance, rows), score=self.score[rows], ledger=self.ledger.select(rows),
            target=select_samples(self.target, rows), source=lambda name: self.source(name)[rows],
            flips=self.flips and partial(_measure_some_flips, self.flips, rows, len(self)),
            inside=self.inside and (lambda *layer: SelectedLayerRelevance(self.channels(*layer).through, rows)),
            next_class=self.next_class and partial(self._next_of, rows),
            photos=pick(self.photos), titles=pick(self.titles), originals=pick(self.originals),
            probabilities=pick(self.probabilities),
            classes=None if self.classes is None else self.classes[rows],
            seen={name: LayerRecord(r.relevance[rows], r.activation[rows]) for name, r in self.seen.items()},
            inputs=tuple(x[rows] for x in self.inputs),
        )  # fmt: skip

    def at(self, name: str) -> Tensor:
        """Return the relevance at an inner node, by module path or node name, before any redistribution."""
        return self.source(name)

    def channels(self, layer: str, axis: int | None = None) -> Channels[Self]:
        """Return the relevance of each channel of a layer; `.map(channel)` is the part of the map through it.

        axis   the channel axis of the layer's output, as in `dt.unit`
        """
        return Channels(self, layer, read_through(self.inside, self.ledger, layer, axis))

    def noting(self, *notes: str) -> Self:
        """Return this explanation with more notes."""
        return replace(self, notes=(*notes, *self.notes))

    def __getstate__(self) -> dict[str, Any]:
        # A file holds the answer; the network that could be asked for more stays behind, and so does a function that
        # was the target, where it has no name to be found by.
        target = to_picklable(self.target) if callable(self.target) else self.target
        return {
            **self.__dict__,
            "source": _raise_left_behind,
            "flips": None,
            "inside": None,
            "next_class": None,
            "target": target,
            "inputs": (),
        }

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        scores = ", ".join(f"{f:.4g}" for f in self.score.flatten()[:_FEW].tolist())
        more = ", …" if self.score.numel() > _FEW else ""
        names = [self._named(*place) for place in self._places[: _FEW + 1]]
        names = names if all(names) else []
        of = f" of {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}" if names else ""
        mean = self.mean_of and f"mean of {self.mean_of}, "
        return f"<{type(self).__name__}{of}: {mean}relevance {shapes}, f = {scores}{more}; print it for the check>"

    def overlap(self) -> Tensor:
        """Return how much of each map is the same for the next class, 0 to 1: Σ min(N_a, N_b), one number per sample.

        N_a and N_b are the heatmaps of the explained class and of the best other class, each divided by its sum. Near 1
        the map does not depend on the class: `explainer.contrast(x)` then shows what sets the class apart. An empty
        map overlaps with none. Costs a forward pass and a contrast.
        """
        return self._next()[1]

    def _next(self) -> tuple[Tensor, Tensor]:
        if self.next_class is None:
            raise InputError(
                "The overlap with the next class needs an explanation of a class by explain(x) or "
                "explain(x, c), not one loaded from a file."
            )
        return self.next_class()

    def _next_of(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        classes, shares = self._next()
        return classes[rows], shares[rows]

    def _next_named(self) -> tuple[tuple[float, ...], tuple[str, ...]]:
        """The overlap with each sample's next class, and its name."""
        classes, shares = self._next()
        names = [repr(self.class_names[k]) if self.class_names else str(k) for k in classes.tolist()]
        return tuple(shares.tolist()), tuple(names)

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Conservative, positive, consistent, accounted: with the measured gaps.

        `faithful`: the network is asked, too. Patches are taken away, the least relevant first and the most relevant
        first. The result is the mean difference of the class's probability; a random map scores 0 (`metrics.flipping`).
        `axis` is that of `heatmap`, used only for `faithful`.
        `classes`: also measure how much of the map is the same for the next class (`overlap`).
        """
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.ledger
        found = check(
            parts, self.score, ledger.input_total, ledger.bias, ledger.dropped, self.notes, ledger.residual,
            self.method, ledger.own, self._flipping(axis) if faithful else None, ledger.returned,
        )  # fmt: skip
        shares, names = self._next_named() if classes else (None, ())
        return replace(found, outputs=self.outputs, overlap=shares, next_classes=names)

    def _flipping(self, axis: Axis) -> Tensor:
        if self.flips is None:
            raise InputError(
                "This explanation cannot call its network: it was loaded from a file, or made by a method "
                "that does not use the graph."
            )
        return self.flips(self.heatmap(axis=axis), self.axis_of(0, axis))

    def heatmap(self, which: int = 0, axis: Axis = None) -> Tensor:
        """Return relevance summed over channels: (B, H, W) for images; (B, N) of tokens and vectors is unchanged.

        which   the index of the input, if there are several
        axis    the axis of the input to sum over, if not that of a picture's channels; required for inputs
                (B, a, b): 1 for signals (B, channels, length), 2 for embeddings (B, tokens, features), () for none
        """
        return sum_channels(select_input(self.relevance, which), self.score.ndim, self.axis_of(which, axis))

    def axis_of(self, which: int = 0, axis: Axis = None) -> Axis:
        """Return the axis of an input that maps are summed over: the one that was named, or that of its channels."""
        part = select_input(self.relevance, which)
        is_picture = part.ndim - self.score.ndim > 2
        return self.channel_axis if axis is None and is_picture and part is select_input(self.relevance, 0) else axis

    def smooth(self, width: float | None = None) -> Self:
        """Return this explanation with relevance smoothed over neighbouring pixels, to remove a grid of dots.

        Strided layers leave dots in a map, as far apart as the stride. The sum of the map stays the same.

        width   the standard deviation in pixels; None: a hundredth of the shorter side, and at least 1
        """
        part = select_input(self.relevance, 0)
        axes = part.ndim - self.score.ndim - 1
        if isinstance(self.relevance, tuple) or axes < 2:
            raise InputError(
                f"Only maps of pictures can be smoothed; this relevance has the shape {tuple(part.shape)}."
            )
        if width is None:
            width = max(1.0, min(self.heatmap().shape[-axes:]) / 100)
        maps: dict[str, Any] = {
            name: smooth(R, width, axes, self.channel_axis)
            for name in self._maps
            if (R := getattr(self, name)) is not None
        }
        note = f"smoothed for the picture (standard deviation {width:.3g} px): the sum of the map is unchanged"
        return replace(self, **maps).noting(note)

    # --- pictures, figures and files ------------------------------------------------------------------------------

    def drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        """Return one map with its captions, ready to be drawn."""

        def title() -> str:
            score = self.score[sample].flatten()[target]
            return captions.map_title(self.label(sample, target), score, self.method, self.mean_of)

        return drawings.make_drawing(self, title, sample, target, *where)

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Return all pairs of sample and target."""
        targets = self.score.shape[1] if self.score.ndim == 2 else 1
        return [(sample, target) for sample in range(len(self.score)) for target in range(targets)]

    @property
    def _asked(self) -> Any:
        return self.classes if self.target is None else self.target

    def label(self, sample: int = 0, target: int = 0) -> str:
        """Return the name of the explained class, or its number, with its probability; "" if it is not a class."""
        name = self._named(sample, target)
        known = self.probabilities and self.probabilities[sample]
        return f"{name}, {format_percent(known[target])}" if name and known else name

    def _named(self, sample: int, target: int) -> str:
        """Return the explained class by name or number; "" if it is not a class."""
        return captions.class_title(self._asked, self.titles, sample, target)

    def plot(
        self, cmap: str | Colormap | None = None, alpha: float = 0.85, layout: Layout | None = None, size: Size = None,
        sample: int | None = None, target: int | None = None, which: int = 0, axis: Axis = None, floor: Floor = None,
        photo: Photo | None = None, smooth: bool = False,
    ) -> Figure:  # fmt: skip
        """Return a figure of matplotlib. It needs matplotlib (the extra `plot`).

        For one picture it shows the photograph or input, the heatmap, and the map over the photograph, with colour bar
        and caption. The overlay has the photograph's original resolution. For several samples or targets it shows
        the map of each. Signals are drawn as curves, tables as bars.

        cmap     a colour map of matplotlib; None: red for the decision, blue against it
        alpha    how opaque the map is over the photograph where it is strongest
        layout   of one map: "row" or "column" of all panels; "heatmap", "overlay" or, of a contrast, "difference" alone
        size     the width in inches, or (width, height)
        sample, target   the map to draw; None: all of them, or the first one if layout or photo is given
        floor    the value where colours begin: None for 0, or a low quantile if most of the map is nearly constant (the
                 caption then says so); "auto" for that quantile in any case; or a number
        photo    a picture (of Pillow, or an array of uint8) as the network saw it, if the explanation has none
        smooth   draw the map without the grid of dots that strided layers leave (`smooth` sets its width)
        """
        from deeptaylor.viz.figures import check_layout, plot, plot_all, plot_bars, plot_curves

        if smooth:
            return self.smooth().plot(cmap, alpha, layout, size, sample, target, which, axis, floor, photo)
        is_one = any(choice is not None for choice in (sample, target, layout, photo))
        places = [(sample or 0, target or 0)] if is_one else self._places
        maps = [self.drawing(*place, which, axis, floor) for place in places]
        dimensions = maps[0].heat.ndim
        if dimensions == 1 and self.feature_names and layout is None:
            return plot_bars([self.bars(None, _BARS, *place, which, axis) for place in places], size)
        if dimensions == 1 or drawings.is_signal(maps[0]):
            check_layout(layout, maps[0])
            signals = [drawings.find_signal(self.inputs, place[0], which, maps[0].heat.shape[-1]) for place in places]
            return plot_curves(maps, signals, cmap, size)
        if dimensions == 2 and len(maps) > 1:
            return plot_all(maps, cmap, alpha, None, size)
        return plot(maps[0].over_photo(photo), cmap, alpha, layout or "row", size)

    def show(self, **options: Any) -> None:
        """Show the figure of `plot` in a notebook or a window; warn if there is neither.

        options   those of `plot`
        """
        from deeptaylor.viz.figures import show

        show(lambda: self.plot(**options))

    def plot_all(
        self, cmap: str | Colormap | None = None, alpha: float = 0.85, columns: int | None = None, size: Size = None,
        which: int = 0, axis: Axis = None, floor: Floor = None,
    ) -> Figure:  # fmt: skip
        """Return one figure of matplotlib with the map of every sample and target, over its photograph if it has one.

        Each map has its own colour scale: full colour is where that map is strongest. Other options are as in `plot`.

        columns   how many maps per row; None: as many as make the figure about square
        """
        from deeptaylor.viz.figures import plot_all

        drawings = [self.drawing(*place, which, axis, floor) for place in self._places]
        return plot_all(drawings, cmap, alpha, columns, size)

    def save(
        self, path: str | os.PathLike[str], sample: int = 0, target: int = 0, overlay: bool = False,
        which: int = 0, axis: Axis = None, floor: Floor = None, photo: Photo | None = None, smooth: bool = False,
    ) -> Path:  # fmt: skip
        """Write one sample's heatmap atomically, in the format of the file's suffix, and return the path.

        .png and .jpg hold only the picture, a small one enlarged without blur; .pdf and .svg hold it with title,
        colour bar and caption, and need matplotlib. .html is one page that needs nothing else: the map over its
        photograph, with a slider, and the share of the score under the pointer or the arrow keys. `overlay`: over the
        original photograph. Signals (batch, channels, length) are drawn as curves, rows of a table as bars. The rest
        as in `plot`.
        """
        kind = output_suffix(path, (*_PIXELS, *_FIGURES, _PAGE))
        if smooth:
            return self.smooth().save(path, sample, target, overlay, which, axis, floor, photo)
        over = overlay or photo is not None
        if kind in _PIXELS and over:
            pixels = self.overlay(sample, target, original=True, floor=floor, photo=photo)
            return write_whole(path, encode_pixels(enlarge_small(pixels), kind))
        d = self.drawing(sample, target, which, axis, floor).over_photo(photo)
        if kind != _PAGE and d.heat.ndim == 1 and self.feature_names:
            return self.bars(None, _BARS, sample, target, which, axis).save(path)
        if kind in _PIXELS and not drawings.is_signal(d):
            pixels = drawings.render_map(self, sample, target, which, axis, floor)
            return write_whole(path, encode_pixels(enlarge_small(pixels), kind))
        if kind == _PAGE:
            is_split = self.method != "sensitivity"  # which splits nothing
            score = float(self.ledger.score[sample].flatten()[target]) if is_split else 0.0
            return write_whole(path, render_viewer(d, score, self.feature_names if d.heat.ndim == 1 else ()).encode())
        from deeptaylor.viz.figures import encode_plot

        return write_whole(path, encode_plot(d, "overlay" if over else "heatmap", kind[1:]))

    def overlay(
        self, sample: int = 0, target: int = 0, original: bool = False, floor: Floor = None,
        photo: Photo | None = None, strength: float = 1.0,
    ) -> Picture:  # fmt: skip
        """Return one sample's heatmap over its photograph, as the network saw it or in its original resolution.

        photo      a picture as the network saw it, of any size, if the explanation has none
        strength   a factor for the map, for a contrast with hardly any distinctive relevance
        """
        seen = self.photos[sample] if self.photos else drawings.find_picture(self, sample)
        if seen is None and photo is None:
            raise InputError(
                "This explanation has no photograph, and its input is not a picture of 1 or 3 channels. Give photo=, a "
                "picture as the network saw it."
            )
        heat = strength * drawings.select_heat(self, self.relevance, sample, target)
        t = fit_scale(drawings.class_heat(self, sample, target), floor, automatic=False)(heat)
        if photo is not None:
            return overlay_map(Photograph.from_picture(photo), t)
        if original and self.originals:
            return overlay_map(self.originals[sample](), t)
        assert seen is not None
        return colouring.overlay(seen, t, scale=1.0)

    def tokens(
        self, words: Sequence[str] | None = None, sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None
    ) -> TokenMap:
        """Return the words of one sample in the colours of their relevance, for a notebook and a terminal.

        words   one per token; None: tokens are named by their numbers
        """
        axis = drawings.choose_line_axis(self, which, axis, None if words is None else len(words))
        d = self.drawing(sample, target, which, axis, None, "tokens")
        return make_tokens(words, d.heat, d.scale, d.title, " ".join(s for s in [*d.caption, d.scale.note] if s))

    def bars(
        self, names: Sequence[str] | None = None, top: int = 20, sample: int = 0, target: int = 0, which: int = 0,
        axis: Axis = None,
    ) -> Bars:  # fmt: skip
        """Return the relevance of each value of a table, the largest first: text, and with matplotlib `.figure()`.

        names   of the columns; None: the names from loading the network, or their numbers
        """
        names = names if names is not None or not self.feature_names else self.feature_names
        axis = drawings.choose_line_axis(self, which, axis, None if names is None else len(names))
        d = self.drawing(sample, target, which, axis, None, "inputs")
        return make_bars(names, d.heat, top, d.title, " ".join(d.caption))

    def curve(
        self, signal: Any = None, sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None,
        cmap: str | Colormap | None = None, size: Size = None,
    ) -> Figure:  # fmt: skip
        """Return a figure of matplotlib: a signal with its relevance as colour behind it.

        signal   the explained sample, (length,) or (channels, length); None: draw the relevance as the curve
        axis     () draws a row for each channel; 1 sums over the channels of signals (B, channels, length)
        """
        from deeptaylor.viz.figures import plot_curve

        values = None if signal is None else drawings.to_array(signal)
        axis = drawings.choose_line_axis(self, which, axis, None if values is None else values.shape[-1])
        d = self.drawing(sample, target, which, axis, None, "points of the signal")
        return plot_curve(d, values, cmap, size)

    def volume(
        self, volume: Any = None, slices: int = 9, along: int = 0, sample: int = 0, target: int = 0, which: int = 0,
        axis: Axis = None, cmap: str | Colormap | None = None, alpha: float = 0.85, size: Size = None,
    ) -> Figure:  # fmt: skip
        """Return a figure of matplotlib: slices through a map of three dimensions, all in one colour scale.

        volume   the explained sample, (depth, height, width), drawn beneath in grey
        along    0, 1 or 2: the dimension that the slices are cut across
        """
        from deeptaylor.viz.figures import plot_volume

        d = self.drawing(sample, target, which, axis)
        return plot_volume(d, None if volume is None else drawings.to_array(volume), slices, along, cmap, alpha, size)

    # --- how it shows itself --------------------------------------------------------------------------------------

    def _repr_png_(self) -> bytes:
        return encode_png(enlarge_small(drawings.render_map(self, 0, 0)))

    def _repr_html_(self) -> str:
        figures = "".join(self._figure(*place) for place in self._places[:_MOST_SHOWN])
        more = len(self._places) - _MOST_SHOWN
        rest = f"<p>… and {more} more</p>" if more > 0 else ""
        return f"{figures}{rest}<pre>{html.escape(str(self.check()))}</pre>"

    def _figure(self, sample: int, target: int) -> str:
        if self.feature_names and self.heatmap()[sample].ndim == self.score.ndim:
            return self.bars(None, _BARS, sample, target)._repr_html_()
        images, said = drawings.render_inputs(self, sample, target)
        if self.photos:
            low = fit_scale(drawings.class_heat(self, sample, target)).low  # as in the map beside it
            images.append((self.overlay(sample, target, floor=low), f"the same over the photograph of sample {sample}"))
        name = self.label(sample, target)
        title = f"{html.escape(name)}: " if name else ""
        score = float(self.score[sample].flatten()[target])
        mean = self.mean_of and f" (the mean of {self.mean_of})"
        return html_figure(images, " ".join([f"{title}f = {score:.4g}{mean}", *said]))

    def numpy(self) -> Any:
        """Return the relevance as NumPy array(s)."""
        if isinstance(self.relevance, tuple):
            return tuple(np.asarray(r.detach().cpu()) for r in self.relevance)
        return np.asarray(self.relevance.detach().cpu())

    def __str__(self) -> str:
        return "\n".join([str(self.check()), str(self.ledger), *[self.reason] * bool(self.reason)])


@dataclass(frozen=True, repr=False)
class Contrast(Explanation):
    """What sets a class apart from its rivals: `relevance` is that part of its map, `shared` the rest.

    rivals       of each sample (of K targets one after the other) classes and weights, the largest first
    difference   the class's map minus its rivals', both of the class's sum: red for the one, blue for the others
    apart        how large that is, 0 to 1: the part of the map that the class does not share with its rivals
    """

    shared: Any = None
    rivals: tuple[tuple[tuple[int, float], ...], ...] = ()
    difference: Any = None
    apart: Tensor | None = None

    _maps: ClassVar[tuple[str, ...]] = ("relevance", "shared", "difference")

    def select(self, samples: Sequence[int]) -> Self:
        rows, targets = list(samples), len(self.rivals) // len(self)
        return replace(
            super().select(rows),
            shared=select_rows(self.shared, rows), difference=select_rows(self.difference, rows),
            apart=None if self.apart is None else self.apart[rows],
            rivals=tuple(self.rivals[k * targets + t] for k in rows for t in range(targets)),
        )  # fmt: skip

    def difference_picture(self, sample: int = 0, target: int = 0) -> Picture:
        """Return the difference in red and blue, over the photograph if there is one.

        Full colour is the maximum of the class's own map, so a difference of one per cent is hardly visible.
        """
        difference, scale = drawings.difference_map(self, sample, target)
        if self.photos:
            return colouring.overlay(self.photos[sample], difference, scale=scale.high)
        return colouring.render(difference, scale.high)

    def apart_text(self, sample: int = 0, target: int = 0) -> str:
        """Return a sentence about how much the class's map differs from its rivals'."""
        assert self.apart is not None
        size = float(self.apart[sample, target] if self.apart.ndim == 2 else self.apart[sample])
        rivals = self.rivals[sample * (len(self.rivals) // len(self)) + target]
        others = "its rival" if len(rivals) == 1 else "its rivals"
        return (
            f"{format_percent(size)} {captions.describe_specific(self._named(sample, target) or 'the class', others)}"
        )

    def drawing(self, sample: int, target: int, which: int = 0, axis: Axis = None, *where: Any) -> Drawing:
        d = drawings.make_drawing(
            self, partial(drawings.contrast_heading, self, sample, target), sample, target, which, axis, *where
        )
        return drawings.add_difference(self, d, sample, target, which, axis)

    def _figure(self, sample: int, target: int) -> str:
        said = f"for the class red, for its rivals blue: {html.escape(self.apart_text(sample, target))}"
        image = (self.difference_picture(sample, target), f"against its rivals, sample {sample}")
        return super()._figure(sample, target) + html_figure([image], said)


def make_contrast(whole: Explanation, result: Result, power: float) -> Contrast:
    """Return the explanation of a class, its map split into a distinctive and a shared part."""
    parts = contrasts.split_map(result, power, whole.channel_axis)
    differences, apart = contrasts.subtract_rivals(result)
    many = result.score.ndim == 2
    distinctive, shared = (sum_relevance(p, many) for p in parts)
    maps = [p[0] if len(p) == 1 else p for p in (*parts, differences)]
    assert result.rivals is not None
    return Contrast(
        **{f.name: getattr(whole, f.name) for f in fields(whole)}
        | {"next_class": None, "relevance": maps[0], "ledger": replace(whole.ledger, input=distinctive, shared=shared)},
        shared=maps[1],
        rivals=contrasts.list_rivals(result.rivals),
        difference=maps[2],
        apart=apart,
    )


def select_rows(maps: Any, rows: list[int]) -> Any:
    """Return some samples of a map, or of a tuple of maps."""
    return tuple(R[rows] for R in maps) if isinstance(maps, tuple) else maps[rows]


def _measure_some_flips(
    measure: Callable[[Tensor, Axis], Tensor], rows: list[int], count: int, heat: Tensor, axis: Axis = None
) -> Tensor:
    """Measure the area of flipping of some samples of a batch of `count`, by a function for the whole batch."""
    whole = heat.new_zeros(count, *heat.shape[1:])
    whole[rows] = heat
    return measure(whole, axis)[rows]


def _raise_left_behind(name: str) -> Tensor:
    raise BoundaryError(
        "This explanation was saved and loaded without its explainer, which is needed for the "
        f"relevance at {name!r}: call explainer.relevance_at(name, x, target)."
    )
