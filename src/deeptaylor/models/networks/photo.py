"""A photograph, from a file or from memory, made upright and eight bits a channel before a network sees it.

What the file holds is never guessed: a picture that is damaged, or not what its name says, is refused. What had to be
converted is said with a warning; nothing is clipped, and nothing missing is filled in.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from deeptaylor.errors import InputError, warn
from deeptaylor.models.networks.jpeg import is_whole
from deeptaylor.shown import shown
from deeptaylor.support.files import check_path, special_kind

__all__ = ["opened", "upright"]

_SIXTEEN_BITS = 257  # 65535 / 255: white stays white
# Read by code inside Pillow alone; EPS, for one, would start another program.
_FORMATS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "TGA", "TIFF", "WEBP")
_SAME_FORMAT = {"MPO": "JPEG"}  # what cameras call .jpg and Pillow tells apart
_SAME = {"RGB": ("RGB", "RGBA", "RGBX"), "L": ("L", "LA")}  # beside the alpha channel, which is another matter
_WORDS = {
    "1": "black and white",
    "L": "grayscale",
    "LA": "grayscale",
    "P": "in palette colours",
    "PA": "in palette colours",
}


def upright(photo: str | os.PathLike[str] | Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """The first frame of a photograph, turned as its EXIF data say, in a mode; on white where it is transparent."""
    if isinstance(photo, Image.Image):
        return _converted(photo, mode)
    with _from_path(Path(photo)) as image:
        return _converted(image, mode)


@contextlib.contextmanager
def opened(
    file: Path | BinaryIO, name: str, formats: tuple[str, ...] | None = None, most_pixels: int | None = None
) -> Iterator[Image.Image]:
    """A picture that is not decoded yet: its kind and its size are known, and too large a one is refused here."""
    Image.init()
    known = [kind for kind in formats or _FORMATS if kind in Image.OPEN]
    try:
        with _bombs_refused():
            image = Image.open(file, formats=known)
    except UnidentifiedImageError as error:
        raise InputError(f"{name} is not a picture that can be read, whatever its name says.") from error
    except _BOMBS as error:
        raise InputError(
            f"{name} is refused before decoding: {str(error).partition(',')[0]}; make it smaller first, such as with "
            "ImageMagick: magick FILE -resize 4000x4000 smaller.jpg"
        ) from error
    except OSError as error:
        raise InputError(f"{name} cannot be opened: {error.strerror or error}") from error
    except Exception as error:  # a damaged header makes Pillow raise nearly anything
        raise InputError(f"{name} is damaged or cut short: {_words(error)}") from error
    with image:
        if most_pixels is not None and image.width * image.height > most_pixels:
            raise InputError(
                f"{name} is refused before decoding: {image.width} × {image.height} pixels, at most "
                f"{most_pixels / 1e6:g} million are taken."
            )
        yield image


@contextlib.contextmanager
def _from_path(path: Path) -> Iterator[Image.Image]:
    check_path(path, InputError)
    try:
        if path.is_dir():
            raise InputError(f"{shown(path)} is a folder, not a picture.")
        if what := special_kind(path):
            raise InputError(f"{shown(path)} is {what}, not a picture; copy what it holds into a file.")
        if path.stat().st_size == 0:
            raise InputError(f"{shown(path)} is empty.")
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be opened: {error.strerror or error}") from error
    with opened(path, shown(path)) as image:
        said = Image.registered_extensions().get(path.suffix.lower())
        found = _SAME_FORMAT.get(image.format or "", image.format)
        if said is not None and found != _SAME_FORMAT.get(said, said):
            raise InputError(
                f"{shown(path)} is called {path.suffix} but holds a {found} picture; give it its right name."
            )
        yield image


_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


@contextlib.contextmanager
def _bombs_refused() -> Iterator[None]:
    """Pillow only warns of pictures up to twice its limit. What else it would say of a damaged file, errors say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _words(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _converted(photo: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    path = Path(getattr(photo, "filename", "") or "the picture")
    name, where = shown(path.name), shown(path)  # in notes, and in errors, as all errors of files have it
    deep = _is_deep(photo)
    try:
        with _bombs_refused():
            if (frames := getattr(photo, "n_frames", 1)) > 1:
                photo.seek(0)
            data = _jpeg(photo)
            photo.load()
            if data is not None and not is_whole(data, photo):
                raise InputError(f"{where} is damaged or cut short: what is missing would be filled with gray.")
            image = ImageOps.exif_transpose(photo)
            image.load()
    except InputError:
        raise
    except _BOMBS as error:
        raise InputError(f"{where} is refused before decoding: {error}") from error
    except Exception as error:  # OSError mostly; but damaged data make Pillow raise nearly anything
        raise InputError(f"{where} is damaged or cut short: {_words(error)}") from error
    if frames > 1:
        warn(f"{name} holds {frames} frames; the first one is taken.")
    if image.mode == "I" and photo.format in ("PNG", "PPM"):  # their white is 65535, as Pillow reads them
        image = Image.fromarray(np.asarray(image).astype(np.uint16))
    if deep or image.mode.startswith("I;16"):
        warn(f"{name} has sixteen bits a channel; they are scaled to eight.")
    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.round(np.asarray(image) / _SIXTEEN_BITS).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise InputError(
            f"{where} has mode {image.mode!r}: numbers without a known white. Scale it to eight bits a channel first."
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            warn(f"{name} is transparent in places; they are put on white.")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if photo.mode not in _SAME[mode] and not photo.mode.startswith("I"):
        warn(f"{name} is {_WORDS.get(photo.mode, photo.mode)}; converted to {'RGB' if mode == 'RGB' else 'gray'}.")
    return image.convert(mode)


def _jpeg(photo: Image.Image) -> bytes | None:
    """The file of a JPEG that was not decoded yet."""
    file = getattr(photo, "fp", None)
    if photo.format not in ("JPEG", "MPO") or file is None or not getattr(photo, "tile", ()):
        return None
    place = file.tell()
    file.seek(0)
    data: bytes = file.read()
    file.seek(place)
    return data


def _is_deep(photo: Image.Image) -> bool:
    """Sixteen bits a channel in colour: Pillow makes eight of them by itself, and says nothing."""
    tiles = [tile[3] for tile in getattr(photo, "tile", ())]
    if photo.format == "PPM":  # a tile says the white of the file
        return any(isinstance(tile, tuple) and isinstance(tile[-1], int) and tile[-1] > 255 for tile in tiles)
    return any("16" in str(tile) for tile in tiles) and not photo.mode.startswith("I")
