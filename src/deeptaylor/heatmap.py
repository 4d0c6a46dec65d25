"""Relevance to colours: white is zero, red speaks for the decision, blue against it.

    relevance ──channel_sum──► heat ──colours──► RGB ──┬── save_png / png_bytes
                                 └────overlay──► RGB ──┴── montage

A picture is a uint8 array (H, W, 3). The colour scale is symmetric around zero, and *robust*: full colour is reached at
the 99.5th percentile of the absolute heat (`robust_scale`), so that a few hot pixels do not hide the rest; what lies
beyond is shown in the same full colour. Pass one `scale` to several pictures to make their colours comparable.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from deeptaylor.support.files import write_whole

__all__ = ["above", "channel_sum", "colours", "montage", "overlay", "png_bytes", "robust_scale", "save_png", "shades"]

Heat = npt.NDArray[np.float64]
Picture = npt.NDArray[np.uint8]
Values = torch.Tensor | npt.NDArray[np.generic]

SCALE_PERCENTILE = 99.5
STRIP_HEIGHT = 16

# White to red to dark red at 0, 1/2 and 1. Lightness falls all the way, so the map also reads in grey.
_ANCHORS = np.array([0.0, 0.5, 1.0])
_REDS = np.array([[255, 255, 255], [250, 92, 70], [150, 0, 16]], dtype=np.float64)


def channel_sum(relevance: Values) -> Heat:
    """Relevance (..., C, H, W) summed over the channels: (..., H, W). Pictures (H, W) and strips (N,) stay as they are.

    >>> channel_sum(torch.ones(3, 2, 2)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    r = _finite(relevance, "relevance")
    return r.sum(axis=-3) if r.ndim >= 3 else r


def robust_scale(heat: Values) -> float:
    """The value that gets full colour: the 99.5th percentile of |heat|; its maximum if that is zero; never zero.

    >>> robust_scale(np.zeros(4))
    1.0
    """
    size = np.abs(_finite(heat, "heat"))
    if not size.any():
        return 1.0
    return float(np.percentile(size, SCALE_PERCENTILE)) or float(size.max())


def colours(heat: Values, scale: float | None = None) -> Picture:
    """Heat (H, W) as RGB; (C, H, W) is summed over its channels first; (N,) becomes a strip 16 pixels high.

    >>> colours(np.array([[0.0, 1.0, -1.0]])).tolist()
    [[[255, 255, 255], [150, 0, 16], [16, 0, 150]]]
    """
    return shades(_normalised(_picture_heat(heat), scale))


def overlay(photo: Image.Image | Picture, heat: Values, opacity: float = 0.85, scale: float | None = None) -> Picture:
    """Heat over its photograph in pale grey: opaque where the heat is strong, only the photograph where it is zero."""
    if not 0 <= opacity <= 1:
        raise ValueError(f"overlay: opacity must lie between 0 and 1, got {opacity}")
    t = _normalised(_picture_heat(heat), scale)
    image = photo if isinstance(photo, Image.Image) else Image.fromarray(_picture(photo))
    if (image.height, image.width) != t.shape:
        raise ValueError(
            f"overlay: the photograph has {image.height} x {image.width} pixels, the heat {t.shape[0]} x {t.shape[1]}; "
            "give the photograph as the network saw it (after resizing and cropping)"
        )
    grey = 255 - 0.6 * (255 - np.asarray(image.convert("L"), dtype=np.float64)[..., None])
    alpha = opacity * np.sqrt(np.abs(t))[..., None]
    return _bytes((1 - alpha) * grey + alpha * shades(t))


def montage(
    pictures: Sequence[Picture], labels: Sequence[str] | None = None, columns: int | None = None, margin: int = 8
) -> Picture:
    """Pictures side by side on white, each in a cell of its own with its label below; all in one row by default."""
    if not pictures:
        raise ValueError("montage: no pictures given")
    labels = [""] * len(pictures) if labels is None else labels
    if len(labels) != len(pictures):
        raise ValueError(f"montage: {len(pictures)} pictures, but {len(labels)} labels")
    columns = len(pictures) if columns is None else columns
    if columns < 1:
        raise ValueError(f"montage: columns must be at least 1, got {columns}")
    images = [Image.fromarray(_picture(picture)).convert("RGB") for picture in pictures]
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
            draw.text((x, y + height + 2 + 18 * m), _shortened(line, width, font), fill="black", font=font)
    return np.asarray(sheet)


def above(top: Image.Image, bottom: Image.Image, side: int = 448) -> Image.Image:
    """Two photographs in one square, one above the other, each cut to its middle."""
    both = Image.new("RGB", (side, side))
    for n, photo in enumerate((top, bottom)):
        scale = max(side / photo.width, side / 2 / photo.height)
        image = photo.convert("RGB").resize((round(photo.width * scale), round(photo.height * scale)))
        left, up = (image.width - side) // 2, (image.height - side // 2) // 2
        both.paste(image.crop((left, up, left + side, up + side // 2)), (0, n * side // 2))
    return both


def png_bytes(picture: Picture) -> bytes:
    """A picture, (H, W, 3) or grey (H, W), as the bytes of a PNG file."""
    buffer = io.BytesIO()
    # Deflate at level 6. With `optimize`, level 9, a heatmap takes four times as long and is 3 % smaller.
    Image.fromarray(_picture(picture)).save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def save_png(path: str | os.PathLike[str], picture: Picture) -> Path:
    """Write a picture as PNG, whole or not at all."""
    return write_whole(path, png_bytes(picture))


def _finite(values: Values, name: str) -> Heat:
    """The values as float64, or an error that says where they are not finite."""
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


def _picture_heat(heat: Values) -> Heat:
    summed = channel_sum(heat)
    if summed.ndim == 1:
        return np.tile(summed, (STRIP_HEIGHT, 1))
    if summed.ndim != 2:
        raise ValueError(
            f"heat: one picture has the shape (H, W), (C, H, W) or (N,), got {tuple(heat.shape)}; "
            "take one sample of a batch, as in relevance[0]"
        )
    return summed


def _normalised(heat: Heat, scale: float | None) -> Heat:
    """Heat in [−1, 1], where ±1 is full colour."""
    scale = robust_scale(heat) if scale is None else scale
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: must be positive and finite, got {scale}")
    with np.errstate(over="ignore"):  # a tiny scale may overflow; the clip below is what is meant
        return np.clip(heat / scale, -1.0, 1.0)


def shades(t: Heat) -> Picture:
    """Values in [−1, 1] as RGB: white at 0, full red at 1, full blue at −1."""
    red = np.stack([np.interp(np.abs(t), _ANCHORS, channel) for channel in _REDS.T], axis=-1)
    return _bytes(np.where(t[..., None] < 0, red[..., ::-1], red))


def _bytes(values: Heat) -> Picture:
    return np.rint(values).astype(np.uint8)


def _picture(array: Picture) -> Picture:
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        raise ValueError(f"picture: expected uint8 of shape (H, W, 3) or (H, W), got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _shortened(line: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(line) <= width:
        return line
    while line and font.getlength(line + "…") > width:
        line = line[:-1]
    return line + "…"
