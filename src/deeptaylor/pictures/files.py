"""A picture to a file of the kind that its name says."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.shown import shown
from deeptaylor.support.files import check_path

__all__ = ["FIGURES", "PAGE", "PIXELS", "html_figure", "jpeg_bytes", "kind_of", "pixel_bytes"]

PIXELS = (".png", ".jpg", ".jpeg")  # written by Pillow
FIGURES = (".pdf", ".svg")  # drawn by matplotlib
PAGE = ".html"  # page.py


def kind_of(path: str | os.PathLike[str], kinds: Sequence[str]) -> str:
    """Return the suffix of a file to be written, which says what it holds; raise if nothing can be written there.

    >>> kind_of("map.PNG", PIXELS)
    '.png'
    """
    check_path(path, InputError)
    suffix = Path(path).suffix.lower()
    if suffix not in kinds:
        ends = f"ends in {suffix}" if suffix else "has no ending"
        raise InputError(
            f"{shown(Path(path))} {ends}; the ending says what is written, and there are {', '.join(kinds)}."
        )
    if not Path(path).parent.is_dir():
        raise InputError(f"{shown(Path(path))} cannot be written: there is no folder {shown(Path(path).parent)}.")
    if Path(path).is_dir():
        raise InputError(f"{shown(Path(path))} cannot be written: it is a folder.")
    return suffix


def pixel_bytes(picture: Picture, kind: str) -> bytes:
    """A picture as the bytes of a PNG or JPEG file."""
    return png_bytes(picture) if kind == ".png" else jpeg_bytes(picture)


def jpeg_bytes(picture: Picture) -> bytes:
    """A picture as the bytes of a JPEG file, of a quality at which edges stay sharp."""
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="JPEG", quality=95, subsampling=0)
    return data.getvalue()


def html_figure(images: Sequence[tuple[Picture, str]], caption: str) -> str:
    """Pictures, each with what it shows in words, over a caption, which is HTML already."""
    shown_images = "".join(
        f'<img alt="{alt}" style="min-width:160px;image-rendering:pixelated" '
        f'src="data:image/png;base64,{base64.b64encode(png_bytes(picture)).decode()}">'
        for picture, alt in images
    )
    return f'<figure style="display:inline-block;margin:4px">{shown_images}<figcaption>{caption}</figcaption></figure>'
