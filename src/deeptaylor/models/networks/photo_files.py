"""Load a photograph, from a file or from memory: upright, eight bits per channel.

The content of a file is never guessed: a picture that is damaged, or not what its name says, raises an InputError.
Conversions are reported by a warning; nothing is clipped, and nothing missing is filled in.

A JPEG file that merely ends early is rejected by Pillow. One that was cut and then closed with an end mark (by a camera
that lost power, by a repaired download) is decoded as if it were complete: libjpeg fills the rest with gray. So such a
file is decoded twice, the second time with other bytes before the mark. A decoder that had all its data skips them; one
that was still waiting for data takes them for pixels. The scans of a progressive file tell which of them are missing.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from deeptaylor.errors import InputError, warn
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import check_path, special_kind

__all__ = [
    "is_complete_jpeg",
    "load_photo",
    "open_picture",
]


_SIXTEEN_BITS = 257  # 65535 / 255: white stays white
# Read by code inside Pillow alone; EPS, for one, would start another program.
_FORMATS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "TGA", "TIFF", "WEBP")
_SAME_FORMAT = {"MPO": "JPEG"}  # what cameras call .jpg and Pillow tells apart
_SAME = {"RGB": ("RGB", "RGBA", "RGBX"), "L": ("L", "LA")}  # beside the alpha channel, which is another matter
_MODE_NAMES = {
    "1": "black and white",
    "L": "grayscale",
    "LA": "grayscale",
    "P": "in palette colours",
    "PA": "in palette colours",
}


def load_photo(photo: str | os.PathLike[str] | Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """Load the first frame of a photograph in a mode, turned by its EXIF data, on white where it is transparent."""
    if isinstance(photo, Image.Image):
        return _convert(photo, mode)
    with _open_path(Path(photo)) as image:
        return _convert(image, mode)


@contextlib.contextmanager
def open_picture(
    file: Path | BinaryIO, name: str, formats: tuple[str, ...] | None = None, most_pixels: int | None = None
) -> Iterator[Image.Image]:
    """Open a picture without decoding it; raise if it is not a known kind or is too large."""
    Image.init()
    known = [kind for kind in formats or _FORMATS if kind in Image.OPEN]
    try:
        with _reject_bombs():
            image = Image.open(file, formats=known)
    except UnidentifiedImageError as error:
        raise InputError(f"{name} is not a picture that can be read, whatever its name says.") from error
    except _BOMBS as error:
        raise InputError(
            f"{name} is rejected before decoding: {str(error).partition(',')[0]}; make it smaller first, such as with "
            "ImageMagick: magick FILE -resize 4000x4000 smaller.jpg"
        ) from error
    except OSError as error:
        raise InputError(f"{name} cannot be opened: {error.strerror or error}") from error
    except Exception as error:  # a damaged header makes Pillow raise nearly anything
        raise InputError(f"{name} is damaged or cut short: {_error_text(error)}") from error
    with image:
        if most_pixels is not None and image.width * image.height > most_pixels:
            raise InputError(
                f"{name} is rejected before decoding: {image.width} × {image.height} pixels, at most "
                f"{most_pixels / 1e6:g} million are taken."
            )
        yield image


@contextlib.contextmanager
def _open_path(path: Path) -> Iterator[Image.Image]:
    check_path(path, InputError)
    try:
        if path.is_dir():
            raise InputError(f"{escape_name(path)} is a folder, not a picture.")
        if what := special_kind(path):
            raise InputError(f"{escape_name(path)} is {what}, not a picture; copy what it holds into a file.")
        if path.stat().st_size == 0:
            raise InputError(f"{escape_name(path)} is empty.")
    except OSError as error:
        raise InputError(f"{escape_name(path)} cannot be opened: {error.strerror or error}") from error
    with open_picture(path, escape_name(path)) as image:
        said = Image.registered_extensions().get(path.suffix.lower())
        found = _SAME_FORMAT.get(image.format or "", image.format)
        if said is not None and found != _SAME_FORMAT.get(said, said):
            raise InputError(
                f"{escape_name(path)} is called {path.suffix} but holds a {found} picture; give it its right name."
            )
        yield image


_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


@contextlib.contextmanager
def _reject_bombs() -> Iterator[None]:
    """Raise for pictures beyond Pillow's limit, for which it only warns up to twice that size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _error_text(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _convert(photo: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    path = Path(getattr(photo, "filename", "") or "the picture")
    name, where = escape_name(path.name), escape_name(path)  # in notes, and in errors, as all errors of files have it
    deep = _is_deep(photo)
    try:
        with _reject_bombs():
            if (frames := getattr(photo, "n_frames", 1)) > 1:
                photo.seek(0)
            data = _jpeg_bytes(photo)
            photo.load()
            if data is not None and not is_complete_jpeg(data, photo):
                raise InputError(f"{where} is damaged or cut short: what is missing would be filled with gray.")
            image = ImageOps.exif_transpose(photo)
            image.load()
    except InputError:
        raise
    except _BOMBS as error:
        raise InputError(f"{where} is rejected before decoding: {error}") from error
    except Exception as error:  # OSError mostly; but damaged data make Pillow raise nearly anything
        raise InputError(f"{where} is damaged or cut short: {_error_text(error)}") from error
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
            warn(f"{name} is transparent in places; these are filled with white.")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if photo.mode not in _SAME[mode] and not photo.mode.startswith("I"):
        warn(f"{name} is {_MODE_NAMES.get(photo.mode, photo.mode)}; converted to {'RGB' if mode == 'RGB' else 'gray'}.")
    return image.convert(mode)


def _jpeg_bytes(photo: Image.Image) -> bytes | None:
    """Return the file of a JPEG that was not decoded yet."""
    file = getattr(photo, "fp", None)
    if photo.format not in ("JPEG", "MPO") or file is None or not getattr(photo, "tile", ()):
        return None
    place = file.tell()
    file.seek(0)
    data: bytes = file.read()
    file.seek(place)
    return data


def _is_deep(photo: Image.Image) -> bool:
    """Return whether a picture has sixteen bits a channel in colour, which Pillow reduces to eight silently."""
    tiles = [tile[3] for tile in getattr(photo, "tile", ())]
    if photo.format == "PPM":  # a tile says the white of the file
        return any(isinstance(tile, tuple) and isinstance(tile[-1], int) and tile[-1] > 255 for tile in tiles)
    return any("16" in str(tile) for tile in tiles) and not photo.mode.startswith("I")


# --- JPEG files that were cut -----------------------------------------------------------------------------------------


_PROGRESSIVE, _SCAN, _END = 0xC2, 0xDA, 0xD9
_NOISE = bytes(np.random.default_rng(0).integers(0, 255, 512, dtype=np.uint8))  # 255 would begin a mark
# With the marks at which some decoders begin anew, for files that were cut right there.
_FILLER = _NOISE + b"".join(bytes([0xFF, 0xD0 + k]) + _NOISE for k in range(8))


def is_complete_jpeg(data: bytes, decoded: Image.Image) -> bool:
    """Return whether a JPEG that was decoded holds all of its picture."""
    end, scans = None, _Scans()
    for at, mark in _find_markers(data):
        if mark == _END:
            end = at
            break
        scans.add(data, at, mark)
    if end is None:
        return True  # then libjpeg was never told that this is all, and Pillow has refused it if it is not
    if not scans.are_complete():
        return False
    with Image.open(io.BytesIO(data[:end] + _FILLER + data[end:]), formats=["JPEG"]) as again:
        again.load()
        return again.mode != decoded.mode or again.size != decoded.size or again.tobytes() == decoded.tobytes()


class _Scans:
    """What the scans of a progressive JPEG have brought: for each component and frequency, the bits still to come."""

    def __init__(self) -> None:
        self.missing: dict[tuple[int, int], int] = {}

    def add(self, data: bytes, at: int, mark: int) -> None:
        if mark == _PROGRESSIVE and len(data) > at + 9 + 3 * data[at + 9]:
            components = data[at + 10 : at + 10 + 3 * data[at + 9] : 3]
            self.missing = {(c, frequency): 16 for c in components for frequency in range(64)}
        elif mark == _SCAN and self.missing and len(data) > at + 7 + 2 * data[at + 4]:
            count = data[at + 4]
            first, last, bits = data[at + 5 + 2 * count : at + 8 + 2 * count]
            for component in data[at + 5 : at + 5 + 2 * count : 2]:
                self.missing |= {(component, frequency): bits & 15 for frequency in range(first, last + 1)}

    def are_complete(self) -> bool:
        return not any(self.missing.values())


def _find_markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield every mark of the first picture and its place, outside of the segments that state their length."""
    at = 2
    while 0 <= at < len(data) - 1:
        mark = data[at + 1]
        if data[at] != 0xFF:
            at = data.find(b"\xff", at)
        elif mark == 0xFF:
            at += 1
        elif mark in (0x00, 0x01) or 0xD0 <= mark <= 0xD7:
            at += 2
        else:
            yield at, mark
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
