"""What an explanation can be looked at as: figures, files, pages, coloured text, bars, curves and slices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeptaylor import heatmap as colouring
from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture
from deeptaylor.pictures.axes import Axis
from deeptaylor.pictures.bars import Bars, bars
from deeptaylor.pictures.drawing import Drawing, is_signal, need_matplotlib
from deeptaylor.pictures.explained import Explained, line_axis, map_of, picture, values_of, whole_map
from deeptaylor.pictures.files import FIGURES, PAGE, PIXELS, kind_of, pixel_bytes
from deeptaylor.pictures.page import page
from deeptaylor.pictures.photograph import Photo, Photograph, laid_over, readable
from deeptaylor.pictures.scale import Floor, scale_of
from deeptaylor.pictures.tokens import Tokens, tokens
from deeptaylor.support.files import write_whole

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from deeptaylor.pictures.canvas import Figure, Size
    from deeptaylor.pictures.plotting import Layout

    Base = Explained
else:
    Base = object  # a protocol's properties would be taken for the defaults of a dataclass's fields

__all__ = ["Pictured"]


class Pictured(Base):
    """The pictures of an `Explanation`."""

    def drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        """One map with its words, before anything is drawn."""
        raise NotImplementedError

    def plot(
        self, cmap: str | Colormap | None = None, alpha: float = 0.85, layout: Layout = "row", size: Size = None,
        sample: int = 0, target: int = 0, which: int = 0, axis: Axis = None, floor: Floor = None,
        photo: Photo | None = None,
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
        photo    a picture (of Pillow, or an array of uint8) as the network saw it, where the explanation knows none
        """
        need_matplotlib()
        from deeptaylor.pictures.plotting import plot

        return plot(self.drawing(sample, target, which, axis, floor).over_photo(photo), cmap, alpha, layout, size)

    def plot_all(
        self, cmap: str | Colormap | None = None, alpha: float = 0.85, columns: int | None = None, size: Size = None,
        which: int = 0, axis: Axis = None, floor: Floor = None,
    ) -> Figure:  # fmt: skip
        """One figure of matplotlib with the map of every sample and every target, over its photograph if there is one.

        Each map has its own colours: full colour is where that map is strongest. The rest is as in `plot`.

        columns   how many stand side by side; None: as many as make the figure about square
        """
        need_matplotlib()
        from deeptaylor.pictures.plotting import plot_all

        targets = self.score.shape[1] if self.score.ndim == 2 else 1
        places = [(sample, target) for sample in range(len(self.score)) for target in range(targets)]
        return plot_all([self.drawing(*place, which, axis, floor) for place in places], cmap, alpha, columns, size)

    def save(
        self, path: str | os.PathLike[str], sample: int = 0, target: int = 0, overlay: bool = False,
        which: int = 0, axis: Axis = None, floor: Floor = None, photo: Photo | None = None,
    ) -> Path:  # fmt: skip
        """Write one sample's heatmap, whole or not at all, as what the ending of the file says.

        .png and .jpg hold the picture alone, a small one enlarged without blur; .pdf and .svg hold it with title,
        colour bar and caption, and need matplotlib. .html is one page that needs nothing else: the map over its
        photograph, with a slider, and the share of the score under the pointer or the arrow keys. `overlay`: over the
        original photograph. Relevance of signals (batch, channels, length) is drawn as curves. The rest as in `plot`.
        """
        kind = kind_of(path, (*PIXELS, *FIGURES, PAGE))
        if kind in PIXELS:
            if overlay or photo is not None:
                pixels = self.overlay(sample, target, original=True, floor=floor, photo=photo)
            elif is_signal(d := self.drawing(sample, target, which, axis, floor)):
                need_matplotlib()
                from deeptaylor.pictures.plotting import written

                return write_whole(path, written(d, "heatmap", kind[1:]))
            else:
                pixels = picture(self, sample, target, which, axis, floor)
            return write_whole(path, pixel_bytes(readable(pixels), kind))
        if kind in FIGURES:
            need_matplotlib()
        d = self.drawing(sample, target, which, axis, floor).over_photo(photo)
        if kind == PAGE:
            shared_out = self.method != "sensitivity"  # which splits nothing
            score = float(self.ledger.score[sample].flatten()[target]) if shared_out else 0.0
            return write_whole(path, page(d, score, self.feature_names if d.heat.ndim == 1 else ()).encode())
        from deeptaylor.pictures.plotting import written

        return write_whole(path, written(d, "overlay" if overlay or photo is not None else "heatmap", kind[1:]))

    def overlay(
        self, sample: int = 0, target: int = 0, original: bool = False, floor: Floor = None,
        photo: Photo | None = None, strength: float = 1.0,
    ) -> Picture:  # fmt: skip
        """One sample's heatmap over its photograph, as the network saw it; or over the original, in its resolution.

        photo      a picture as the network saw it, of whatever size, where the explanation knows none
        strength   colours so many times as strong: for a contrast in which hardly anything sets the class apart
        """
        if not self.photos and photo is None:
            raise InputError(
                "This explanation knows no photograph: explain one with a dt.Pretrained, or give photo=, a picture as "
                "the network saw it."
            )
        heat = strength * map_of(self, self.relevance, sample, target)
        t = scale_of(whole_map(self, sample, target), floor, automatic=False)(heat)
        if photo is not None:
            return laid_over(Photograph.given(photo), t)
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
        d = self.drawing(sample, target, which, axis, None, "tokens")
        return tokens(words, d.heat, d.scale, d.title, " ".join([*d.caption, *[d.scale.said] * bool(d.scale.said)]))

    def bars(
        self, names: Sequence[str] | None = None, top: int = 20, sample: int = 0, target: int = 0, which: int = 0,
        axis: Axis = None,
    ) -> Bars:  # fmt: skip
        """What each value of a table counted, the largest first: text, and with matplotlib `.figure()`.

        names   of the columns; None: those that the network was loaded with, or their numbers
        """
        names = names if names is not None or not self.feature_names else self.feature_names
        axis = line_axis(self, which, axis, None if names is None else len(names))
        d = self.drawing(sample, target, which, axis, None, "inputs")
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
        d = self.drawing(sample, target, which, axis, None, "points of the signal")
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

        d = self.drawing(sample, target, which, axis)
        return drawn(d, None if volume is None else values_of(volume), slices, along, cmap, alpha, size)
