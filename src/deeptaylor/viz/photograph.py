"""A photograph in its own resolution, the part of it that the network saw, and the pieces where a map is strongest.

Crop and resize are undone by where things lie: the map is put into the `window`, pixel by pixel and without blur.
Everything is done on bytes, so that a photograph of many megapixels takes a few times its own memory and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from deeptaylor.errors import InputError
from deeptaylor.viz.colors import PALE, PALER, pale_grey, relevance_to_rgb
from deeptaylor.viz.heatmap import Heat, Picture

__all__ = [
    "Crop",
    "Photo",
    "Photograph",
    "cut_crop",
    "dim_outside",
    "enlarge_small",
    "find_strongest_square",
    "input_to_picture",
    "overlay_map",
]

Photo = Picture | Image.Image  # as users have them
Window = tuple[float, float, float, float]
Box = tuple[int, int, int, int]
_SMALL, _VISIBLE = 128, 256  # pixels of the longer side: smaller than the one, a picture is enlarged to the other


@dataclass(frozen=True)
class Photograph:
    """Pixels (H, W, 3) or grey (H, W), and the window (left, top, right, bottom) in pixels that the network saw."""

    picture: Picture
    window: Window

    @classmethod
    def from_pixels(cls, picture: Picture) -> Photograph:
        """Return a picture that the network saw as it is; raise InputError if it is not an array of uint8."""
        shape: tuple[int, ...] = getattr(picture, "shape", ())
        if getattr(picture, "dtype", None) != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise InputError("A picture is a NumPy array of uint8, 0 to 255, of shape (height, width) or (…, 3).")
        height, width = picture.shape[:2]
        return cls(picture, (0.0, 0.0, float(width), float(height)))

    @classmethod
    def from_picture(cls, photo: Photo) -> Photograph:
        """Return a picture of the user: of Pillow in any mode, or an array."""
        return cls.from_pixels(np.asarray(photo.convert("RGB")) if isinstance(photo, Image.Image) else photo)

    @property
    def is_cropped(self) -> bool:
        """Whether there is anything outside of the window."""
        height, width = self.picture.shape[:2]
        left, top, right, bottom = self.window
        return left >= 1 or top >= 1 or right <= width - 1 or bottom <= height - 1

    def enlarge_for(self, shape: tuple[int, ...], pixels: int = 1) -> Photograph:
        """Return the photograph enlarged by a whole number: each value of a map has this many pixels a side or more."""
        left, top, right, bottom = self.window
        most = max(shape[0] / (bottom - top), shape[1] / (right - left))
        factor = math.ceil(pixels * most - 1e-9)
        scaled = (left * factor, top * factor, right * factor, bottom * factor)
        return Photograph(_repeat_pixels(self.picture, factor), scaled) if factor > 1 else self

    def shrink_to(self, side: int) -> Photograph:
        """Return the photograph shrunk until its longer side has at most this many pixels, for a screen."""
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

    def resample(self, values: Picture) -> Picture:
        """Return values of a map (h, w, …) at the pixels of the box: each has the value in which its middle lies."""
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


def enlarge_small(picture: Picture) -> Picture:
    """Enlarge a small picture by a whole number, without blur, until details can be seen.

    >>> enlarge_small(np.zeros((8, 8, 3), np.uint8)).shape, enlarge_small(np.zeros((200, 300, 3), np.uint8)).shape
    ((256, 256, 3), (200, 300, 3))
    """
    side = max(picture.shape[:2])
    return _repeat_pixels(picture, -(-_VISIBLE // side) if side < _SMALL else 1)


def _repeat_pixels(picture: Picture, factor: int) -> Picture:
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def dim_outside(photo: Photograph) -> Picture:
    """Return the photograph in its colours, and in pale grey where the network did not see it."""
    sheet = _fade(photo, PALER)
    left, top, right, bottom = photo.box
    sheet.paste(Image.fromarray(photo.picture).convert("RGB").crop((left, top, right, bottom)), (left, top))
    return np.asarray(sheet)


def overlay_map(
    photo: Photograph, t: Heat, opacity: float = 0.85, rgb: Picture | None = None, pixels: int = 1
) -> Picture:
    """Lay a map t in [−1, 1] over the part that the network saw; ``rgb``: its colours, if they are not red and blue.

    The result has the photograph's own size, or is larger by a whole number: each value has ``pixels`` pixels a side.
    """
    if not 0 <= opacity <= 1:
        raise InputError(f"The opacity of a map over its photograph lies between 0 and 1, got {opacity}.")
    photo = photo.enlarge_for(t.shape, pixels)
    left, top, right, bottom = photo.box
    sheet, inside = _fade(photo, PALER), _fade(photo, PALE).crop((left, top, right, bottom))
    alpha = np.rint(255 * opacity * np.sqrt(np.abs(t))).astype(np.uint8)
    colour, mask = (Image.fromarray(photo.resample(a)) for a in (relevance_to_rgb(t) if rgb is None else rgb, alpha))
    inside.paste(colour, (0, 0), mask)
    sheet.paste(inside, (left, top))
    return np.asarray(sheet)


def _fade(photo: Photograph, darkness: float) -> Image.Image:
    grey = Image.fromarray(photo.picture).convert("L")
    return grey.point(np.rint(pale_grey(np.arange(256.0), darkness)).astype(int).tolist()).convert("RGB")


# --- crops ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crop:
    """A piece of a picture with its part of the map; `box`: left, top, right, bottom in pixels of the whole."""

    picture: Picture
    heat: Heat
    box: Box
    title: str
    share: float  # of the map's relevance that lies in the piece


def find_strongest_square(heat: Heat, side: int) -> Box:
    """Return the square of this side, in pixels, in which a map has its largest sum.

    >>> find_strongest_square(np.eye(4)[:, ::-1] * [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], 2)
    (1, 1, 3, 3)
    """
    height, width = min(side, heat.shape[0]), min(side, heat.shape[1])
    sums = np.pad(heat, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inside = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    top, left = (int(k) for k in np.unravel_index(int(inside.argmax()), inside.shape))
    return left, top, left + width, top + height


def cut_crop(picture: Picture, heat: Heat, part: float, title: str) -> Crop:
    """Cut out the square in which the map has its largest sum; `part`: its side as a part of the shorter side."""
    if not 0 < part <= 1:
        raise InputError(f"crop={part!r}: the side of a crop as a part of the picture's shorter side, 0 to 1.")
    if heat.shape != picture.shape[:2]:
        raise InputError(f"The picture has {picture.shape[:2]} pixels and its map {heat.shape}: they must be the same.")
    left, top, right, bottom = find_strongest_square(heat, max(1, round(part * min(heat.shape))))
    inside, total = heat[top:bottom, left:right], float(heat.sum())
    share = float(inside.sum()) / total if total > 0 else 0.0
    return Crop(picture[top:bottom, left:right], inside, (left, top, right, bottom), title, share)


def input_to_picture(x: Heat) -> Picture:
    """Return an input (channels, height, width) as a picture: its smallest number black, its largest white."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        raise InputError(f"Crops are cut from pictures of 1 or 3 channels; this input has the shape {x.shape}.")
    low, high = float(x.min()), float(x.max())
    pixels = np.rint(255 * (x - low) / (high - low or 1.0)).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0) if len(x) == 3 else pixels[0])
