"""A photograph in its own resolution, and the part of it that the network saw.

Crop and resize are undone by where things lie: the map is put into the `window`, pixel by pixel and without blur.
Everything is done on bytes, so that a photograph of many megapixels takes a few times its own memory and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture, shades

__all__ = ["Photo", "Photograph", "dimmed", "laid_over", "readable"]

Photo = Picture | Image.Image  # as users have them
Window = tuple[float, float, float, float]
_SMALL, _READABLE = 128, 256  # pixels of the longer side: smaller than the one, a picture is enlarged to the other
_PALE, _PALER = 0.6, 0.25  # how much of the photograph's darkness is left beneath a map, and outside of it


@dataclass(frozen=True)
class Photograph:
    """Pixels (H, W, 3) or grey (H, W), and the window (left, top, right, bottom) in pixels that the network saw."""

    picture: Picture
    window: Window

    @classmethod
    def whole(cls, picture: Picture) -> Photograph:
        """A picture that was seen as it is."""
        shape: tuple[int, ...] = getattr(picture, "shape", ())
        if getattr(picture, "dtype", None) != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise InputError("A picture is a NumPy array of uint8, 0 to 255, of shape (height, width) or (…, 3).")
        height, width = picture.shape[:2]
        return cls(picture, (0.0, 0.0, float(width), float(height)))

    @classmethod
    def given(cls, photo: Photo) -> Photograph:
        """A picture of the user's: of Pillow, whatever its mode, or an array."""
        return cls.whole(np.asarray(photo.convert("RGB")) if isinstance(photo, Image.Image) else photo)

    @property
    def cropped(self) -> bool:
        """True if there is anything outside of the window."""
        height, width = self.picture.shape[:2]
        left, top, right, bottom = self.window
        return left >= 1 or top >= 1 or right <= width - 1 or bottom <= height - 1

    def fine_enough(self, shape: tuple[int, ...], pixels: int = 1) -> Photograph:
        """The same, enlarged by a whole number until every value of a map has so many pixels a side."""
        left, top, right, bottom = self.window
        most = max(shape[0] / (bottom - top), shape[1] / (right - left))
        factor = math.ceil(pixels * most - 1e-9)
        scaled = (left * factor, top * factor, right * factor, bottom * factor)
        return Photograph(_repeated(self.picture, factor), scaled) if factor > 1 else self

    def at_most(self, side: int) -> Photograph:
        """The same with no more pixels than these on its longer side: for a screen, which shows no more."""
        height, width = self.picture.shape[:2]
        factor = side / max(height, width)
        if factor >= 1:
            return self
        size = max(1, round(width * factor)), max(1, round(height * factor))
        small = Image.fromarray(self.picture).resize(size, Image.Resampling.BOX, reducing_gap=2.0)
        across, down = size[0] / width, size[1] / height
        left, top, right, bottom = self.window
        return Photograph(np.asarray(small), (left * across, top * down, right * across, bottom * down))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The pixels whose middles lie in the window."""
        left, top, right, bottom = (math.ceil(edge - 0.5) for edge in self.window)
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def inside(self, values: Picture) -> Picture:
        """Values of a map (h, w, …) at the pixels of the box: each has the value in which its middle lies."""
        box, window, sizes = self.box, self.window, values.shape
        rows, columns = (
            np.clip(
                ((np.arange(box[k], box[k + 2]) + 0.5 - window[k]) / (window[k + 2] - window[k]) * n).astype(int),
                0, n - 1,
            )
            for k, n in ((1, sizes[0]), (0, sizes[1]))
        )  # fmt: skip
        found: Picture = values[rows][:, columns]
        return found


def readable(picture: Picture) -> Picture:
    """A small picture enlarged by a whole number, without blur, until it can be read.

    >>> readable(np.zeros((8, 8, 3), np.uint8)).shape, readable(np.zeros((200, 300, 3), np.uint8)).shape
    ((256, 256, 3), (200, 300, 3))
    """
    side = max(picture.shape[:2])
    return _repeated(picture, -(-_READABLE // side) if side < _SMALL else 1)


def _repeated(picture: Picture, factor: int) -> Picture:
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def dimmed(photo: Photograph) -> Picture:
    """The photograph in its colours, and grey and pale where the network did not see it."""
    sheet = _pale(photo, _PALER)
    left, top, right, bottom = photo.box
    sheet.paste(Image.fromarray(photo.picture).convert("RGB").crop((left, top, right, bottom)), (left, top))
    return np.asarray(sheet)


def laid_over(
    photo: Photograph, t: Heat, opacity: float = 0.85, rgb: Picture | None = None, pixels: int = 1
) -> Picture:
    """A map t in [−1, 1] over the part that the network saw; ``rgb``: its colours, if they are not red and blue.

    The result has the photograph's own size, or is larger by a whole number: every value has so many pixels a side.
    """
    if not 0 <= opacity <= 1:
        raise InputError(f"The opacity of a map over its photograph lies between 0 and 1, got {opacity}.")
    photo = photo.fine_enough(t.shape, pixels)
    left, top, right, bottom = photo.box
    sheet, inside = _pale(photo, _PALER), _pale(photo, _PALE).crop((left, top, right, bottom))
    alpha = np.rint(255 * opacity * np.sqrt(np.abs(t))).astype(np.uint8)
    colour, mask = (Image.fromarray(photo.inside(a)) for a in (shades(t) if rgb is None else rgb, alpha))
    inside.paste(colour, (0, 0), mask)
    sheet.paste(inside, (left, top))
    return np.asarray(sheet)


def _pale(photo: Photograph, darkness: float) -> Image.Image:
    grey = Image.fromarray(photo.picture).convert("L")
    return grey.point([round(255 - darkness * (255 - v)) for v in range(256)]).convert("RGB")
