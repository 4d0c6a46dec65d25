"""Photographs to begin with: those of the demo that lie in installed packages; none is fetched, none is shipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from deeptaylor import assets, heatmap

__all__ = ["Sample", "samples"]

_SKIMAGE = "from scikit-image, public domain"


@dataclass(frozen=True)
class Sample:
    """A photograph with what it shows and whose it is."""

    name: str
    title: str
    credit: str
    files: tuple[str, ...]  # one, or two that are put above each other

    def read(self) -> bytes:
        """The picture as a file."""
        if len(self.files) == 1:
            return assets.path(self.files[0]).read_bytes()
        top, bottom = (Image.open(assets.path(name)) for name in self.files)
        return heatmap.png_bytes(np.asarray(heatmap.above(top, bottom)))


_ALL = (
    Sample("cat-and-cup", "A cat above a cup", _SKIMAGE, ("cat", "coffee")),
    Sample("cat", "A cat", _SKIMAGE, ("cat",)),
    Sample("coffee", "A cup of coffee", _SKIMAGE, ("coffee",)),
    Sample("rocket", "A rocket", _SKIMAGE, ("rocket",)),
    Sample("pagoda", "A pagoda", "by danielbuechele on Flickr, CC BY 2.0, from scikit-learn", ("pagoda",)),
    Sample("flower", "A flower", "by vultilion on Flickr, CC BY 2.0, from scikit-learn", ("flower",)),
)


def samples() -> tuple[Sample, ...]:
    """Those whose packages are installed here."""
    return tuple(sample for sample in _ALL if all(map(assets.is_here, sample.files)))
