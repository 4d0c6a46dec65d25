"""The photographs of the ILSVRC experiment (section IV-D): squares, two small copies of each, and what is on them.

photograph ──► square: the middle, 256 × 256 ──┬──► middle: what every network sees
                                               ├──► twice: two small copies side by side on gray
                                               └──► once: the left one alone
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.networks.photo import upright

__all__ = [
    "CREDIT", "KNOWN", "ImagenetError", "Known", "inside", "middle", "once", "photographs", "square", "twice",
]  # fmt: skip

SIDE = 256  # of the squares, which every network's preparation cuts and leaves as they are
COMMON = 224  # of the middle that every network sees
COPY = 112  # of a small copy
GRAY = (128, 128, 128)

Picture = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom in a square


class ImagenetError(DeepTaylorError, ValueError):
    """The experiment cannot be made as asked."""


@dataclass(frozen=True)
class Known:
    """What is on a photograph: classes that are right, a box around the object, and boxes around parts of it.

    Boxes were drawn by hand, on the photographs alone, before any heatmap of them was seen.
    """

    classes: tuple[str, ...]
    object: Box | None = None  # None where it fills the picture
    part: str = ""
    parts: tuple[Box, ...] = ()


# Eight, as in the paper; those that both networks recognise come first.
KNOWN: Mapping[str, Known] = {
    "coffee": Known(("espresso", "cup", "coffee mug"), (44, 8, 204, 134), "the cup's opening", ((44, 8, 204, 134),)),
    "camera": Known(("tripod",), (112, 96, 206, 256)),
    "lion": Known(("lion",), (0, 2, 186, 250), "the lion's head", ((62, 2, 180, 135),)),
    "cheetah": Known(("cheetah",), (22, 26, 244, 256), "the cheetah's head", ((22, 26, 226, 186),)),
    "cheetah-cub": Known(("cheetah",), (6, 18, 244, 252), "the cub's head", ((6, 18, 240, 172),)),
    "cat": Known(
        ("tabby", "tiger cat", "Egyptian cat"), None, "the cat's eyes", ((48, 64, 116, 132), (184, 88, 234, 144))
    ),
    "motorcycle": Known(
        ("moped", "motor scooter"), (0, 56, 256, 236), "the wheels", ((0, 122, 82, 212), (192, 132, 256, 236))
    ),
    "pagoda": Known(("palace", "monastery", "stupa"), (0, 14, 158, 232)),
}
CREDIT = (
    "cat, coffee and camera from scikit-image (public domain), motorcycle from the Middlebury stereo datasets by way "
    "of scikit-image; pagoda by danielbuechele on Flickr, CC BY 2.0, from scikit-learn; lion and both "
    "cheetahs from gradio"
)


def photographs(folder: Path | None = None) -> dict[str, Image.Image]:
    """The squares of the photographs in a folder, by name; of those in packages if none is given."""
    if folder is None:
        return {name: square(assets.path(name)) for name in KNOWN}
    if not folder.is_dir():
        raise ImagenetError(f"{folder} is not a folder; --photos takes one with photographs in it.")
    known = Image.registered_extensions()
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in known and path.is_file()]
    if not files:
        raise ImagenetError(f"{folder} has no picture in it: no file ends in .jpg, .png or the like.")
    stems = [path.stem for path in files]
    return {path.stem if stems.count(path.stem) == 1 else path.name: square(path) for path in files}


def square(photo: Path | Image.Image) -> Image.Image:
    """The middle of a photograph as a square of 256 pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.DeepTaylorWarning)  # gray or transparent pictures are shown as converted
        image = upright(photo, "RGB")
    return ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.LANCZOS)


def twice(photo: Image.Image) -> Image.Image:
    """Two small copies of a square side by side, gray above and below."""
    found = once(photo)
    found.paste(_copy(photo), (SIDE // 2, (SIDE - COPY) // 2))
    return found


def once(photo: Image.Image) -> Image.Image:
    """The left one of the two copies alone; where the right one was there is gray."""
    found = Image.new("RGB", (SIDE, SIDE), GRAY)
    found.paste(_copy(photo), (SIDE // 2 - COPY, (SIDE - COPY) // 2))
    return found


def middle(pictures: Picture) -> Picture:
    """What every network sees of squares (…, 256, 256, 3)."""
    start = (SIDE - COMMON) // 2
    return pictures[..., start : start + COMMON, start : start + COMMON, :]


def _copy(photo: Image.Image) -> Image.Image:
    margin = (SIDE - COMMON) // 2
    middle = photo.crop((margin, margin, margin + COMMON, margin + COMMON))
    return middle.resize((COPY, COPY), Image.Resampling.LANCZOS)


def inside(boxes: Sequence[Box]) -> npt.NDArray[np.bool_]:
    """Where the middle that every network sees lies in one of the boxes."""
    margin = (SIDE - COMMON) // 2
    found = np.zeros((SIDE, SIDE), dtype=bool)
    for left, top, right, bottom in boxes:
        found[top:bottom, left:right] = True
    return found[margin : margin + COMMON, margin : margin + COMMON]
