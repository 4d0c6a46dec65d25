"""Relevance to pictures: the axis to sum over, the scale of colours, RGB, and the bytes of a file.

    relevance ──sum_channels / to_heat──► heat ──fit_scale──► [−1, 1] ──render / overlay──► RGB ──encode_png──► file

A picture is a uint8 array (H, W, 3): white is zero, red speaks for the decision, blue against it (colors.py). Full
colour is reached at the 99.5th percentile of the absolute heat (`robust_scale`), so that a few hot pixels do not hide
the rest; larger values have the same full colour. Pass one `scale` to several pictures to compare their colours.

Colours of a map without negative values go from 0 to full colour, those of a signed one are symmetric around 0. If most
of a map is an even floor, as where biases are spread over all pixels, colours may begin at that floor; the caption then
says so (`ColorScale.note`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.formatting import format_percent
from deeptaylor.support.files import write_whole
from deeptaylor.viz.colors import pale_grey, relevance_to_rgb

__all__ = [
    "AUTO",
    "Axis",
    "ColorScale",
    "Floor",
    "encode_pixels",
    "encode_png",
    "encode_thumbnail",
    "fit_scale",
    "infer_axis",
    "montage",
    "overlay",
    "render",
    "robust_scale",
    "save_png",
    "select_input",
    "select_sample",
    "stack_photos",
    "sum_channels",
    "to_heat",
]

Axis = int | tuple[()] | None
Heat = npt.NDArray[np.float64]
Picture = npt.NDArray[np.uint8]
Values = torch.Tensor | npt.NDArray[np.generic]
AUTO: Literal["auto"] = "auto"
Floor = float | Literal["auto"] | None

SCALE_PERCENTILE = 99.5
STRIP_HEIGHT = 16
_LOW = 0.2  # the quantile at which colours begin
_MOST = 0.5  # of the relevance: where as much lies beneath that quantile, the map is mostly floor
_UNSEEN = 1 / 512  # of full colour: no screen shows less

# --- axes and samples -------------------------------------------------------------------------------------------------


def select_input(relevance: Any, which: int) -> Tensor:
    """Return the relevance of one of several inputs; raise InputError if there is no such input."""
    parts: tuple[Tensor, ...] = relevance if isinstance(relevance, tuple) else (relevance,)
    if not -len(parts) <= which < len(parts):
        raise InputError(f"which={which}: this explanation has {len(parts)} input{'s' * (len(parts) > 1)}, from 0 on.")
    return parts[which]


def sum_channels(relevance: Tensor, lead: int, axis: Axis = None) -> Tensor:
    """Return relevance summed over channels. ``lead``: axes of samples and targets; ``axis`` counts those of the input.

    >>> sum_channels(torch.ones(2, 3, 8, 8), 1).shape, sum_channels(torch.ones(2, 12, 64), 1, axis=2).shape
    (torch.Size([2, 8, 8]), torch.Size([2, 12]))
    """
    own = relevance.ndim - lead
    if axis == ():
        return relevance
    if axis is None:
        if own == 2:
            raise InputError(_axis_message(relevance.shape[lead:]))
        return relevance.sum(lead) if own > 2 else relevance
    if not isinstance(axis, int) or isinstance(axis, bool) or not (0 < axis <= own or -own <= axis < 0):
        raise InputError(
            f"axis={axis!r}: an axis of the input to sum over, 1 to {own}, for 0 holds the samples; or () for none."
        )
    return relevance.sum(axis + lead - 1 if axis > 0 else axis)


def _axis_message(shape: torch.Size) -> str:
    a, b = shape
    return (
        f"Each sample of this input has the shape ({a}, {b}), which does not say what to sum over. Say "
        f"axis=1 to sum over the first ({a}: the channels of a signal) and keep {b} numbers; axis=2 to sum over the "
        f"second ({b}: the embedding of each token) and keep {a}; or axis=() to keep both (a picture without channels)."
    )


def infer_axis(relevance: Tensor, lead: int, axis: Axis, length: int | None) -> Axis:
    """Return the axis to sum over; if none was named, the one that leaves as many places as there are words."""
    sizes = relevance.shape[lead:]
    if axis is None and len(sizes) == 2 and length is not None and (sizes[0] == length) != (sizes[1] == length):
        return 2 if sizes[0] == length else 1
    return axis


def select_sample(t: Tensor, sample: int, target: int, many: bool) -> Tensor:
    """Return one sample and, of ``many``, one target; on the CPU in float64. Raise InputError if it does not exist."""
    for name, index, size in (("sample", sample, t.shape[0]), ("target", target, t.shape[1] if many else 1)):
        if not -size <= index < size:
            raise InputError(f"{name}={index}: this explanation has {size} {name}{'s' * (size > 1)}, from 0 on.")
    return (t[sample, target] if many else t[sample]).detach().to("cpu", torch.float64)


# --- colours ----------------------------------------------------------------------------------------------------------


def to_heat(relevance: Values) -> Heat:
    """Return relevance (..., C, H, W) summed over channels in float64; pictures (H, W) and strips (N,) are unchanged.

    >>> to_heat(torch.ones(3, 2, 2)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    r = _check_finite(relevance, "relevance")
    return r.sum(axis=-3) if r.ndim >= 3 else r


def robust_scale(heat: Values) -> float:
    """Return the value that gets full colour: the 99.5th percentile of |heat|, or its maximum if that is 0.

    >>> robust_scale(np.zeros(4))
    1.0
    """
    size = np.abs(_check_finite(heat, "heat"))
    if not size.any():
        return 1.0
    return float(np.percentile(size, SCALE_PERCENTILE)) or float(size.max())


def render(heat: Values, scale: float | None = None) -> Picture:
    """Return heat (H, W) as RGB; (C, H, W) is summed over channels first; (N,) becomes a strip 16 pixels high.

    >>> render(np.array([[0.0, 1.0, -1.0]])).tolist()
    [[[255, 255, 255], [150, 0, 16], [16, 0, 150]]]
    """
    return relevance_to_rgb(_divide_by_scale(_to_map(heat), scale))


def overlay(photo: Image.Image | Picture, heat: Values, opacity: float = 0.85, scale: float | None = None) -> Picture:
    """Lay heat over its photograph in pale grey: opaque where it is strong, transparent where it is zero."""
    if not 0 <= opacity <= 1:
        raise ValueError(f"overlay: opacity must lie between 0 and 1, got {opacity}")
    t = _divide_by_scale(_to_map(heat), scale)
    image = photo if isinstance(photo, Image.Image) else Image.fromarray(_check_picture(photo))
    if (image.height, image.width) != t.shape:
        raise ValueError(
            f"overlay: the photograph has {image.height} x {image.width} pixels, the heat {t.shape[0]} x {t.shape[1]}; "
            "give the photograph as the network saw it (after resizing and cropping)"
        )
    grey = pale_grey(np.asarray(image.convert("L"), dtype=np.float64)[..., None])
    alpha = opacity * np.sqrt(np.abs(t))[..., None]
    return np.rint((1 - alpha) * grey + alpha * relevance_to_rgb(t)).astype(np.uint8)


def montage(
    pictures: Sequence[Picture], labels: Sequence[str] | None = None, columns: int | None = None, margin: int = 8
) -> Picture:
    """Arrange pictures in cells on white, each with its label below; all in one row by default."""
    if not pictures:
        raise ValueError("montage: no pictures given")
    labels = [""] * len(pictures) if labels is None else labels
    if len(labels) != len(pictures):
        raise ValueError(f"montage: {len(pictures)} pictures, but {len(labels)} labels")
    columns = len(pictures) if columns is None else columns
    if columns < 1:
        raise ValueError(f"montage: columns must be at least 1, got {columns}")
    images = [Image.fromarray(_check_picture(picture)).convert("RGB") for picture in pictures]
    font = ImageFont.load_default(size=14)
    width, height = max(i.width for i in images), max(i.height for i in images)
    lines = max(label.count("\n") + 1 for label in labels) if any(labels) else 0
    cell_width, cell_height = width + margin, height + margin + 18 * lines
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * cell_width + margin, rows * cell_height + margin), "white")
    draw = ImageDraw.Draw(sheet)
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        row, column = divmod(n, columns)
        x, y = margin + column * cell_width, margin + row * cell_height
        sheet.paste(image, (x + (width - image.width) // 2, y + (height - image.height) // 2))
        for m, line in enumerate(label.split("\n")):
            draw.text((x, y + height + 2 + 18 * m), _shorten(line, width, font), fill="black", font=font)
    return np.asarray(sheet)


def stack_photos(top: Image.Image, bottom: Image.Image, side: int = 448) -> Image.Image:
    """Return two photographs in one square, one above the other, each cut to its middle."""
    both = Image.new("RGB", (side, side))
    for n, photo in enumerate((top, bottom)):
        scale = max(side / photo.width, side / 2 / photo.height)
        image = photo.convert("RGB").resize((round(photo.width * scale), round(photo.height * scale)))
        left, up = (image.width - side) // 2, (image.height - side // 2) // 2
        both.paste(image.crop((left, up, left + side, up + side // 2)), (0, n * side // 2))
    return both


def encode_png(picture: Picture) -> bytes:
    """Return a picture, (H, W, 3) or grey (H, W), as a PNG file."""
    buffer = io.BytesIO()
    # Deflate at level 6. With `optimize`, level 9, a heatmap takes four times as long and is 3 % smaller.
    Image.fromarray(_check_picture(picture)).save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def encode_thumbnail(picture: Picture, side: int) -> bytes:
    """Return a picture as a small JPEG, its longer side at most `side` pixels."""
    image, data = Image.fromarray(picture), io.BytesIO()
    image.thumbnail((side, side))
    image.convert("RGB").save(data, "JPEG", quality=80, subsampling=0, optimize=True)  # maps are thin red lines
    return data.getvalue()


def save_png(path: str | os.PathLike[str], picture: Picture) -> Path:
    """Write a picture as PNG file atomically; return its path."""
    return write_whole(path, encode_png(picture))


def encode_pixels(picture: Picture, kind: str) -> bytes:
    """Return a picture as a file of this kind: .png, .jpg or .jpeg; edges stay sharp in JPEG."""
    if kind == ".png":
        return encode_png(picture)
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="JPEG", quality=95, subsampling=0)
    return data.getvalue()


def _check_finite(values: Values, name: str) -> Heat:
    """Return values as float64; raise ValueError with the place of the first that is not finite."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to(device="cpu", dtype=torch.float64).numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name}: nothing to show in an array of shape {array.shape}")
    bad = ~np.isfinite(array)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name}: {int(bad.sum())} of {array.size} values are not finite (first at index {index}: {array[index]}); "
            "a heatmap of them would mislead"
        )
    return array


def _to_map(heat: Values) -> Heat:
    summed = to_heat(heat)
    if summed.ndim == 1:
        return np.tile(summed, (STRIP_HEIGHT, 1))
    if summed.ndim != 2:
        raise ValueError(
            f"heat: one picture has the shape (H, W), (C, H, W) or (N,), got {tuple(heat.shape)}; "
            "take one sample of a batch, as in relevance[0]"
        )
    return summed


def _divide_by_scale(heat: Heat, scale: float | None) -> Heat:
    """Return heat in [−1, 1], where ±1 is full colour."""
    scale = robust_scale(heat) if scale is None else scale
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: must be positive and finite, got {scale}")
    with np.errstate(over="ignore"):  # a tiny scale may overflow; the clip below is what is meant
        return np.clip(heat / scale, -1.0, 1.0)


def _check_picture(array: Picture) -> Picture:
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise ValueError(f"picture: expected uint8 of shape (H, W, 3) or (H, W), got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _shorten(line: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(line) <= width:
        return line
    while line and font.getlength(line + "…") > width:
        line = line[:-1]
    return line + "…"


# --- the scale of a map -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColorScale:
    """White at ``low``, full colour at ``high``; of a signed map also at −``high``."""

    high: float
    low: float = 0.0
    signed: bool = False
    beneath: float = 0.0  # the share of the relevance that lies beneath ``low``
    largest: float = 0.0  # of |heat|: beyond ``high`` it is shown in the same full colour

    def __call__(self, heat: Heat) -> Heat:
        """Return heat in [−1, 1], where ±1 is full colour."""
        with np.errstate(over="ignore"):
            return np.clip((heat - self.low) / (self.high - self.low), -1.0 if self.signed else 0.0, 1.0)

    @property
    def note(self) -> str:
        """Say that white is not zero; empty if it is."""
        if not self.low:
            return ""
        beneath = format_percent(self.beneath)
        return f"Colours begin at {self.low:.3g} and not at 0: {beneath} of the relevance lies beneath that."


def fit_scale(heat: Heat, floor: Floor = None, automatic: bool = True) -> ColorScale:
    """Return the scale of a map.

    floor       None: 0, or a low quantile if most of a picture is floor; "auto": that quantile in any case; a number
    automatic   False: None is 0, for pictures without a caption
    """
    high, largest = robust_scale(heat), float(np.abs(heat).max())
    if heat.min() < -_UNSEEN * high:
        if floor:
            raise InputError(f"floor={floor!r} is for maps without negative values; this one is symmetric around 0.")
        return ColorScale(high, signed=True, largest=largest)
    low = _find_floor(heat, high, floor, automatic and heat.ndim > 1)
    return ColorScale(high, low, beneath=_share_below(heat, low), largest=largest)


def _find_floor(heat: Heat, high: float, floor: Any, automatic: bool) -> float:
    """Return the value at which colours begin."""
    if floor is None or floor == AUTO:
        low = max(0.0, float(np.quantile(heat, _LOW)))
        wanted = floor == AUTO or (automatic and _share_below(heat, low) > _MOST)
        return low if wanted and high - low > _UNSEEN * high else 0.0  # of an even map nothing would be left
    if not isinstance(floor, int | float) or not 0 <= floor < high:
        raise InputError(
            f"floor={floor!r}: None, 'auto', or a number at which colours begin, from 0 on and below full colour, "
            f"which is at {high:.4g}."
        )
    return float(floor)


def _share_below(heat: Heat, low: float) -> float:
    """Return the share of a map's sum that lies beneath a level."""
    total = float(heat.sum())
    return float(np.minimum(heat, low).sum()) / total if total > 0 and low > 0 else 0.0
