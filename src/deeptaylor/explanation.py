"""The answer: relevance, score, the ledger that accounts for it, and how it shows itself."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch import Tensor

from deeptaylor import heatmap as colouring
from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.ledger import Ledger, seen_from_outside
from deeptaylor.pictures import contrasted, sentences
from deeptaylor.pictures.axes import Axis, input_part, summed
from deeptaylor.pictures.bars import Bars, bars
from deeptaylor.pictures.drawing import Drawing, need_matplotlib
from deeptaylor.pictures.explained import drawing, line_axis, map_of, picture, pictured, values_of, whole_map
from deeptaylor.pictures.files import FIGURES, PIXELS, html_figure, kind_of, pixel_bytes
from deeptaylor.pictures.photograph import Photograph, laid_over, readable
from deeptaylor.pictures.scale import Floor, scale_of
from deeptaylor.pictures.tokens import Tokens, tokens
from deeptaylor.properties import DEEP_TAYLOR, Check, check
from deeptaylor.shown import percent
from deeptaylor.support.files import write_whole
from deeptaylor.support.plain import told

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from deeptaylor.pictures.canvas import Figure, Size
    from deeptaylor.pictures.plotting import Layout

_MOST_SHOWN = 8  # heatmaps in a notebook
_FEW = 4  # scores and names in a line


@dataclass(frozen=True)
class Explanation:
    """Which parts of the input made the network decide so, and how much each counted."""

    relevance: Any  # a tensor shaped like the input ((B, K, …) for K targets), or a tuple of them for several inputs
    score: Tensor
    ledger: Ledger
    target: Any
    notes: tuple[str, ...]
    source: Callable[[str], Tensor]
    flips: Callable[[Tensor, Axis], Tensor] | None = (
        None  # a map → the area of flipping, where the network can be asked
    )
    method: str = DEEP_TAYLOR
    photos: tuple[Picture, ...] = ()  # of each sample, what the network saw; where photographs were explained
    classes: Tensor | None = None  # (B,): the network's answer, where that was asked for (target=None)
    titles: tuple[tuple[str, ...], ...] = ()  # of each sample, the names of the classes that are explained
    originals: tuple[Callable[[], Photograph], ...] = ()  # of each sample, the photograph in its own resolution
    class_names: tuple[str, ...] = ()  # of all classes, where they are known
    mean_of: str = ""  # "16 noisy copies", where map, score and ledger are means over them

    def at(self, name: str) -> Tensor:
        """The relevance at an inner node, by module path or node name; nothing was handed back to it yet."""
        return self.source(name)

    def noting(self, note: str) -> Self:
        """The same with a further note."""
        return replace(self, notes=(note, *self.notes))

    def __getstate__(self) -> dict[str, Any]:
        # What is written to a file is the answer; the network that could be asked for more stays behind, and so does a
        # function that was the target, where it has no name to be found by.
        target = told(self.target) if callable(self.target) else self.target
        return {**self.__dict__, "source": _left_behind, "flips": None, "target": target}

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        scores = ", ".join(f"{f:.4g}" for f in self.score.flatten()[:_FEW].tolist())
        more = ", …" if self.score.numel() > _FEW else ""
        samples, targets = len(self.score), self.score.shape[1] if self.score.ndim == 2 else 1
        names = [self._named(s, t) for s in range(samples) for t in range(targets)][: _FEW + 1]
        names = names if all(names) else []
        of = f" of {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}" if names else ""
        mean = self.mean_of and f"mean of {self.mean_of}, "
        return f"<{type(self).__name__}{of}: {mean}relevance {shapes}, f = {scores}{more}; print it for the check>"

    def check(self, faithful: bool = False, axis: Axis = None) -> Check:
        """Conservative, positive, consistent, accounted: with the measured gaps.

        `faithful`: the network is asked, too. Patches are taken away, the least relevant first and the most relevant
        first; the mean difference of the class's probability is 0 for a map that knows nothing (`metrics.flipping`).
        `axis` is that of `heatmap`, for this question alone.
        """
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.ledger
        return check(
            parts, self.score, ledger.held, ledger.bias, ledger.dropped, self.notes, ledger.residual, self.method,
            ledger.own, self._flipping(axis) if faithful else None,
        )  # fmt: skip

    def _flipping(self, axis: Axis) -> Tensor:
        if self.flips is None:
            raise InputError(
                "This explanation cannot ask its network: it was loaded from a file, or made by a method that sees the "
                "network from outside."
            )
        return self.flips(self.heatmap(axis=axis), axis)

    def heatmap(self, which: int = 0, axis: Axis = None) -> Tensor:
        """Relevance summed over channels: (B, H, W) for images; (B, N) of tokens and vectors stays as it is.

        which   the input, where there are several
        axis    the axis of the input to sum over, where it is not that of images (B, C, …); for inputs (B, a, b) it
                must be said: 1 for signals (B, channels, length), 2 for embeddings (B, tokens, features), () for none
        """
        return summed(input_part(self.relevance, which), self.score.ndim, axis)

    # --- pictures -------------------------------------------------------------------------------------------------

    def plot(
        self, cmap: str | Colormap | None = None, alpha: float = 0.85, layout: Layout = "row", size: Size = None,
        sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None, floor: Floor = None,
        photo: Picture | None = None,
    ) -> Figure:  # fmt: skip
        """A figure of matplotlib: photograph, heatmap and both over each other, with title, colour bar and caption.

        The map lies over the original photograph, in its own resolution, where the network saw it. Needs matplotlib
        (the extra `plot`).

        cmap     a colour map of matplotlib; None: red for the decision, blue against it
        alpha    how opaque the map is over the photograph where it is strongest
        layout   "row" or "column" of all there is to show; "heatmap", "overlay" or, of a contrast, "difference" alone
        size     the width in inches, or (width, height)
        floor    where colours begin: None for 0, or a low quantile where most of the map is an even floor (the caption
                 then says so); "auto" for that quantile in any case; or a number
        photo    a picture (uint8) as the network saw it, where the explanation knows none
        """
        need_matplotlib()
        from deeptaylor.pictures.plotting import plot

        d = self._drawing(sample, target, which, axis, floor)
        if photo is not None:
            d = replace(
                d, photo=Photograph.whole(photo), beneath="picture", over=d.over.replace("photograph", "picture")
            )
        return plot(d, cmap, alpha, layout, size)

    def save(
        self, path: str | os.PathLike[str], sample: int = 0, target: int = 0, overlay: bool = False,
        which: int = 0, axis: Axis = None, floor: Floor = None,
    ) -> Path:  # fmt: skip
        """Write one sample's heatmap, whole or not at all, as what the ending of the file says.

        .png and .jpg hold the picture alone, a small one enlarged without blur; .pdf and .svg hold it with title,
        colour bar and caption, and need matplotlib. `overlay`: over the original photograph. The rest as in `plot`.
        """
        kind = kind_of(path, (*PIXELS, *FIGURES))
        if kind in PIXELS:
            if overlay:
                pixels = self.overlay(sample, target, original=True, floor=floor)
            else:
                pixels = picture(self, sample, target, which, axis, floor)
            return write_whole(path, pixel_bytes(readable(pixels), kind))
        need_matplotlib()
        from deeptaylor.pictures.canvas import figure_bytes
        from deeptaylor.pictures.plotting import plot

        figure = plot(
            self._drawing(sample, target, which, axis, floor),
            None,
            0.85,
            "overlay" if overlay else "heatmap",
            None,
            sharp=True,
        )
        return write_whole(path, figure_bytes(figure, kind[1:]))

    def overlay(self, sample: int = 0, target: int = 0, original: bool = False, floor: Floor = None) -> Picture:
        """One sample's heatmap over its photograph, as the network saw it; or over the original, in its resolution."""
        if not self.photos:
            raise InputError(
                "This explanation knows no photograph: explain one with a dt.Pretrained, or use "
                "deeptaylor.heatmap.overlay(photo, e.heatmap()[0])."
            )
        heat = map_of(self, self.relevance, sample, target)
        t = scale_of(whole_map(self, sample, target), floor, automatic=False)(heat)
        if original and self.originals:
            return laid_over(self.originals[sample](), t)
        return colouring.overlay(self.photos[sample], t, scale=1.0)

    # --- other inputs ---------------------------------------------------------------------------------------------

    def tokens(
        self, words: Sequence[str] | None = None, sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None
    ) -> Tokens:
        """The words of one sample in the colours of their relevance: shows itself in a notebook and a terminal.

        words   one per token; without them tokens are shown by their numbers
        """
        axis = line_axis(self, which, axis, None if words is None else len(words))
        d = self._drawing(sample, target, which, axis, None, "tokens")
        return tokens(words, d.heat, d.scale, d.title, " ".join([*d.caption, *[d.scale.said] * bool(d.scale.said)]))

    def bars(
        self, names: Sequence[str] | None = None, top: int = 20, sample: int = 0, target: int = 0, which: int = 0,
        axis: Axis = None,
    ) -> Bars:  # fmt: skip
        """What each value of a table counted, the largest first: text, and with matplotlib `.figure()`."""
        axis = line_axis(self, which, axis, None if names is None else len(names))
        d = self._drawing(sample, target, which, axis, None, "inputs")
        return bars(names, d.heat, top, d.title, " ".join(d.caption))

    def curve(
        self, signal: Any = None, sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None,
        cmap: str | Colormap | None = None, size: Size = None,
    ) -> Figure:  # fmt: skip
        """A signal with its relevance as colour behind it: a figure of matplotlib.

        signal   the sample that was explained, (length,) or (channels, length); without it relevance is the curve
        axis     () draws a row for each channel; 1 sums over the channels of signals (B, channels, length)
        """
        need_matplotlib()
        from deeptaylor.pictures.curve import curve

        values = None if signal is None else values_of(signal)
        axis = line_axis(self, which, axis, None if values is None else values.shape[-1])
        d = self._drawing(sample, target, which, axis, None, "points of the signal")
        return curve(d, values, cmap, size)

    def volume(
        self, volume: Any = None, slices: int = 9, along: int = 0, sample: int = 0, target: int = 0, which: int = 0,
        axis: Axis = None, cmap: str | Colormap | None = None, alpha: float = 0.85, size: Size = None,
    ) -> Figure:  # fmt: skip
        """Slices through a map of three dimensions, of one colour scale: a figure of matplotlib.

        volume   what was explained, (depth, height, width), drawn beneath in grey
        along    0, 1 or 2: the dimension that the slices are cut across
        """
        need_matplotlib()
        from deeptaylor.pictures.volume import volume as drawn

        d = self._drawing(sample, target, which, axis)
        return drawn(d, None if volume is None else values_of(volume), slices, along, cmap, alpha, size)

    # --- how it shows itself --------------------------------------------------------------------------------------

    def _drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        said = (self._asked, self.titles, self.score, self.method, sample, target, self.mean_of)
        title = partial(sentences.title, *said)
        return drawing(self, title, sample, target, *where)

    @property
    def _asked(self) -> Any:
        return self.classes if self.target is None else self.target

    def _named(self, sample: int, target: int) -> str:
        """The class that is explained, by name or number; empty where it is none."""
        return sentences.class_title(self._asked, self.titles, sample, target)

    def _repr_png_(self) -> bytes:
        return png_bytes(readable(picture(self, 0, 0)))

    def _repr_html_(self) -> str:
        targets = self.score.shape[1] if self.score.ndim == 2 else 1
        shown = [(s, t) for s in range(self.score.shape[0]) for t in range(targets)]
        figures = "".join(self._figure(s, t) for s, t in shown[:_MOST_SHOWN])
        more = len(shown) - _MOST_SHOWN
        rest = f"<p>… and {more} more</p>" if more > 0 else ""
        return f"{figures}{rest}<pre>{html.escape(str(self.check()))}</pre>"

    def _figure(self, sample: int, target: int) -> str:
        images, said = pictured(self, sample, target)
        if self.photos:
            low = scale_of(whole_map(self, sample, target)).low  # as in the map beside it
            images.append((self.overlay(sample, target, floor=low), f"the same over the photograph of sample {sample}"))
        name = self._named(sample, target)
        title = f"{html.escape(name)}: " if name else ""
        score = float(self.score[sample].flatten()[target])
        mean = self.mean_of and f" (the mean of {self.mean_of})"
        return html_figure(images, " ".join([f"{title}f = {score:.4g}{mean}", *said]))

    def numpy(self) -> Any:
        """The relevance as NumPy array(s)."""
        if isinstance(self.relevance, tuple):
            return tuple(np.asarray(r.detach().cpu()) for r in self.relevance)
        return np.asarray(self.relevance.detach().cpu())

    def __str__(self) -> str:
        return f"{self.check()}\n{self.ledger}"


@dataclass(frozen=True, repr=False)
class Contrast(Explanation):
    """What sets a class apart from its rivals: `relevance` is that part of its map, `shared` the rest.

    rivals       of each sample (of K targets one after the other) classes and weights, the largest first
    difference   the class's map minus its rivals', both of the class's sum: red for the one, blue for the others
    apart        how large that is, 0 to 1: the part of the relevance that lies elsewhere than the rivals'
    """

    shared: Any = None
    rivals: tuple[tuple[tuple[int, float], ...], ...] = ()
    difference: Any = None
    apart: Tensor | None = None

    def difference_picture(self, sample: int = 0, target: int = 0) -> Picture:
        """The difference in red and blue, over the photograph where there is one.

        Full colour is where it is as large as the class's own map: a difference of a per cent is hardly to be seen.
        """
        apart, scale = contrasted.difference(self, sample, target)
        if self.photos:
            return colouring.overlay(self.photos[sample], apart, scale=scale.high)
        return colouring.colours(apart, scale.high)

    def apart_text(self, sample: int = 0, target: int = 0) -> str:
        """How far apart the class and its rivals are, in words."""
        assert self.apart is not None
        size = float(self.apart[sample, target] if self.apart.ndim == 2 else self.apart[sample])
        return f"{percent(size)} of the relevance lies elsewhere than the rivals'"

    def _drawing(self, sample: int, target: int, which: int = 0, axis: Axis = None, *where: Any) -> Drawing:
        d = drawing(self, partial(contrasted.title, self, sample, target), sample, target, which, axis, *where)
        return contrasted.with_difference(self, d, sample, target, which, axis)

    def _figure(self, sample: int, target: int) -> str:
        said = f"for the class red, for its rivals blue: {html.escape(self.apart_text(sample, target))}"
        image = (self.difference_picture(sample, target), f"against its rivals, sample {sample}")
        return super()._figure(sample, target) + html_figure([image], said)


def _left_behind(name: str) -> Tensor:
    raise BoundaryError(
        f"This explanation was saved and loaded without its explainer, which alone can tell the relevance at {name!r}: "
        "ask explainer.relevance_at(name, x, target)."
    )


def of_function(method: str, relevance: Tensor, score: Tensor, target: Any, notes: tuple[str, ...]) -> Explanation:
    """The explanation of a method that sees f from outside: all that it did not hand out is the residual."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"{method} explains f as a whole: there is no relevance at {name!r} inside of it.")

    return Explanation(relevance, score, seen_from_outside(relevance, score), target, notes, inner, method=method)
