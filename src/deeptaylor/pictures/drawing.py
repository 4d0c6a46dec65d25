"""One map with what is said about it, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deeptaylor.heatmap import Heat
from deeptaylor.pictures.photograph import Photo, Photograph
from deeptaylor.pictures.scale import Scale
from deeptaylor.support.optional import optional_package

__all__ = ["MOST_CURVES", "Drawing", "is_signal", "need_matplotlib"]

MOST_CURVES = 16  # in one figure
_LONG = 8  # times as many points as channels


@dataclass(frozen=True)
class Drawing:
    """The map of one sample, one class and one input."""

    heat: Heat
    scale: Scale
    title: str
    caption: tuple[str, ...]
    photo: Photograph | None = None
    axes: tuple[str, str] | None = None  # names of a map's two axes, where it is no picture
    name: str = "relevance"
    beneath: str = "photograph"
    over: str = "over the photograph"
    label: str = "relevance"  # beside the colours
    difference: Heat | None = None  # of a contrast: for the class, and against it
    difference_scale: Scale | None = None
    difference_name: str = ""

    def over_photo(self, photo: Photo | None) -> Drawing:
        """The same over a picture of the user's; None: as it is."""
        if photo is None:
            return self
        over = self.over.replace("photograph", "picture")
        return replace(self, photo=Photograph.given(photo), beneath="picture", over=over)


def is_signal(d: Drawing) -> bool:
    """True for relevance that is drawn as curves: (channels, length) with few channels that are long."""
    if d.heat.ndim != 2 or d.axes is None or d.photo is not None or d.difference is not None:
        return False
    channels, length = d.heat.shape
    return bool(channels <= MOST_CURVES and length >= _LONG * channels)


def need_matplotlib() -> None:
    """Refuse with a word on how to get it, where it is not installed."""
    optional_package("matplotlib", "figures are drawn with matplotlib", "plot")
