"""Items of a run as PNG: small ones for a grid, large ones, and the mean of many heatmaps."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from deeptaylor import heatmap
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.heatmap import Picture
from deeptaylor.models.networks.photo import upright
from deeptaylor.runs.view import View

__all__ = ["enlarged", "large", "mean", "mean_words", "photograph", "thumbnail"]

_SMALL, _LARGE = 160, 512  # pixels, the longer side
_TAKEN = 4000  # heatmaps that a mean is of at most
_READ = 256  # that are read at once
_SENT = 2048  # pixels, the longer side of a photograph that is explained anew


def thumbnail(view: View, pictured: bool) -> bytes:
    """The heatmap of an item over its photograph; what of the two there is."""
    if not _mapped(view):
        return _png(np.asarray(view.seen(0).convert("RGB")), _SMALL)
    return _png(_over(view, pictured), _SMALL)


def large(view: View, mapped: bool, pictured: bool) -> bytes:
    """The photograph as the network saw it; or the heatmap, over it where there is one."""
    if mapped:
        if not _mapped(view):
            raise InputError("The item was not explained, so it has no heatmap.")
        return _png(_over(view, pictured), _LARGE)
    return _png(np.asarray(view.seen(0).convert("RGB")), _LARGE)


def photograph(picture: Image.Image) -> bytes:
    """The photograph itself as a run reads it, at most so large, for the page to explain it anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the run read it
        image = upright(picture, "RGB")
    image.thumbnail((_SENT, _SENT), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def mean(view: View) -> bytes:
    """The mean heatmap of the items that were explained."""
    some = _some(view)
    if not len(some):
        raise InputError("None of these items was explained, so there is no mean heatmap.")
    total = np.zeros(some.heatmaps.shape[1:])
    for first in range(0, len(some), _READ):
        total += np.nan_to_num(some.heatmaps[np.arange(first, min(first + _READ, len(some)))]).sum(0, dtype=np.float64)
    return _png(heatmap.colours(total / len(some)), _SMALL)


def mean_words(view: View) -> str:
    """What `mean` is of."""
    good, taken = len(_explained(view)), len(_some(view))
    if not good:
        return ""
    if taken < good:
        return f"Mean heatmap of {taken:,} of these {good:,} items, evenly taken"
    return f"Mean heatmap of {'this item' if good == 1 else f'these {good:,} items'}"


def enlarged(picture: Picture, side: int) -> bytes:
    """A picture as PNG with its longer side near so many pixels."""
    return _png(picture, side)


def _explained(view: View) -> View:
    return view.where(status="explained")


def _some(view: View) -> View:
    good = _explained(view)
    if len(good) <= _TAKEN:
        return good
    return good[np.linspace(0, len(good) - 1, _TAKEN).astype(np.int64)]


def _mapped(view: View) -> bool:
    return len(_explained(view)) == 1


def _heat(view: View) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.nan_to_num(view.heatmaps[np.arange(1)][0].astype(np.float64))
    return found


def _over(view: View, pictured: bool) -> Picture:
    if pictured:
        try:
            return heatmap.overlay(view.seen(0), _heat(view))
        except DeepTaylorError:
            pass  # it has been moved since; the heatmap is still there
    return heatmap.colours(_heat(view))


def _png(picture: Picture, side: int) -> bytes:
    """Enlarged by a whole number, so that pixels stay squares; or made smaller."""
    times = side // max(picture.shape[:2])
    if times >= 1:
        return heatmap.png_bytes(picture.repeat(times, 0).repeat(times, 1))
    image = Image.fromarray(picture)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return heatmap.png_bytes(np.asarray(image))
