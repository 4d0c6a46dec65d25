"""How a photograph, or a row of a table, becomes the input of a network, and hence what values it can take there.

    photograph ──► resized ──► the middle cut out ──► channels in order, 0 … white ──► (value − mean) / std
    row        ──► every column scaled: (value − center) · factor + shift

Nothing of this has a default: each network was trained with its own, and a wrong one gives wrong answers silently.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.domain import Box, Domain, NonNegative
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.viz.heatmap import Picture
from deeptaylor.viz.photograph import Photograph

__all__ = ["Preparation", "Scaling"]

Numbers = npt.NDArray[np.float32]
Channels = Literal["RGB", "BGR", "L"]
_MOST_PIXELS = 2**27  # of a photograph after resizing; what Pillow takes for a bomb is smaller than that
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What was done to photographs when a network was trained; every part of it must be said.

    >>> Preparation(size=224, resize=256, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear").domain
    Box(low=-1.0, high=1.0)
    """

    size: int | tuple[int, int]  # what the network sees, from the middle: a side, or (height, width)
    resize: int | tuple[int, int]  # before that: the short side, or (height, width) whatever the proportions were
    channels: Channels  # their order; "L" is gray
    white: float  # the value of white before the mean is subtracted: 255 or 1; black is 0
    mean: float | tuple[float, ...]  # a number, or one per channel in the order of `channels`
    std: float | tuple[float, ...]
    interpolation: Interpolation

    def __post_init__(self) -> None:
        for name in ("size", "resize"):
            object.__setattr__(self, name, _pixels(name, getattr(self, name)))
        if any(r < s for r, s in zip(_pair(self.resize), _pair(self.size), strict=True)):
            raise InputError(
                "{resize} is smaller than {size}, which is cut out of it.", resize=self.resize, size=self.size
            )
        for name, words in (("channels", Channels), ("interpolation", Interpolation)):
            if getattr(self, name) not in get_args(words):
                raise InputError(
                    f"{{{name}}}, not one of {', '.join(get_args(words))}.",
                    **{name: getattr(self, name)},
                )
        if not (math.isfinite(self.white) and self.white > 0):
            raise InputError("{white}; it is 255 or 1, the value of white when black is 0.", white=self.white)
        for name in ("mean", "std"):
            object.__setattr__(self, name, self._check_numbers(name, getattr(self, name)))
        if bool((torch.as_tensor(self.std) <= 0).any()):
            raise InputError("{std}; it must be positive.", std=self.std)
        for name in ("mean", "std"):
            numbers = torch.as_tensor(getattr(self, name))
            fractions = bool(((numbers > 0) & (numbers < 1)).all())
            if (self.white == 255 and fractions) or (self.white == 1 and bool((numbers > 1).any())):
                other = 1 if self.white == 255 else 255
                raise InputError(
                    f"{{{name}}} is that of pixels from 0 to {other}, but white is {self.white:g}. Give {{white}}, "
                    f"or the {name} of pixels from 0 to {self.white:g}.",
                    **{name: getattr(self, name)},
                    white=other,
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        return (1 if self.channels == "L" else 3, *_pair(self.size))

    @property
    def domain(self) -> Box:
        """The values a pixel can take: black to white, for each channel."""
        low, high = self._normalise(torch.zeros(())), self._normalise(torch.full((), float(self.white)))
        if low.ndim == 0:
            return Box(low.item(), high.item())
        return Box(low.flatten(), high.flatten())

    def __call__(self, photo: str | os.PathLike[str] | Image.Image) -> tuple[Tensor, Image.Image]:
        """Return the input (1, channels, height, width) for a photograph, and the part that the network sees."""
        image = self._cut(self.read(photo))
        return self.inputs(np.asarray(image)[None]), image

    def inputs(self, pixels: Picture) -> Tensor:
        """Return the inputs (batch, channels, height, width) of photographs that are resized and cut already."""
        channels = pixels.reshape(*pixels.shape[:3], -1)[..., :: -1 if self.channels == "BGR" else 1]
        values = np.empty((len(pixels), *self.shape), np.float32)
        for table, k in zip(self._tables, range(self.shape[0]), strict=True):
            np.take(table, channels[..., k], out=values[:, k], mode="clip")
        return torch.from_numpy(values)

    def pixels(self, photo: str | os.PathLike[str] | Image.Image) -> Picture:
        """Return a photograph as the network sees it, not yet normalised: (height, width, 3), or gray."""
        return np.asarray(self._cut(self.read(photo)))

    @functools.cached_property
    def _tables(self) -> Numbers:
        """(channels, 256): the value in the input of each of the 256 that a pixel has in a photograph."""
        every = torch.arange(256, dtype=torch.float32).expand(self.shape[0], 1, 256) * self.white / 255
        return self._normalise(every)[:, 0].numpy()

    def read(self, photo: str | os.PathLike[str] | Image.Image) -> Image.Image:
        """Return a photograph upright and in its own resolution, before anything is resized or cut."""
        return load_photo(photo, "L" if self.channels == "L" else "RGB")

    def window(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Return the part of a photograph of this size that the network sees: left, top, right, bottom, in pixels.

        >>> said = dict(channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
        >>> Preparation(size=224, resize=256, **said).window(512, 1024)
        (288.0, 32.0, 736.0, 480.0)
        """
        (top, left, bottom, right), (rows, columns) = (
            self._find_middle(height, width),
            self._find_resized_size(height, width),
        )
        return left * width / columns, top * height / rows, right * width / columns, bottom * height / rows

    def original(self, photo: str | os.PathLike[str] | Image.Image, seen: Picture) -> Photograph:
        """Read an explained photograph again; raise if it no longer holds what the network saw."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when it was read first
            image = self.read(photo)
            if not np.array_equal(np.asarray(self._cut(image)), seen):
                name = "The picture" if isinstance(photo, Image.Image) else escape_name(photo)
                raise InputError(f"{name} was changed since it was explained: the map belongs to what it was before.")
        return Photograph(np.asarray(image), self.window(image.height, image.width))

    def _cut(self, image: Image.Image) -> Image.Image:
        """Resize, and cut out the middle."""
        height, width = self._find_resized_size(image.height, image.width)
        top, left, bottom, right = self._find_middle(image.height, image.width)
        return image.resize((width, height), Image.Resampling[self.interpolation.upper()]).crop(
            (left, top, right, bottom)
        )

    def _find_middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        (height, width), size = self._find_resized_size(height, width), _pair(self.size)
        top, left = (height - size[0]) // 2, (width - size[1]) // 2
        return top, left, top + size[0], left + size[1]

    def _find_resized_size(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.resize, tuple):
            return self.resize
        factor = self.resize / min(height, width)
        rows, columns = _pair(self.size)
        resized = max(rows, round(height * factor)), max(columns, round(width * factor))
        if resized[0] * resized[1] > _MOST_PIXELS:
            raise InputError(
                f"a photograph of {height} x {width} pixels is too narrow: with its short side resized to "
                f"{self.resize} it would have {resized[0]} x {resized[1]}. Cut out the part that matters first."
            )
        return resized

    def _normalise(self, values: Tensor) -> Tensor:
        mean, std = (_a_channel(getattr(self, name)) for name in ("mean", "std"))
        return (values - mean) / std

    def _check_numbers(self, name: str, given: Any) -> float | tuple[float, ...]:
        numbers = [given] if isinstance(given, int | float) else list(given)
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise InputError(f"{{{name}}}; it is a finite number, or one per channel.", **{name: given})
        if isinstance(given, int | float):
            return float(given)
        if len(numbers) != self.shape[0]:
            raise InputError(
                f"The {name} has {len(numbers)} numbers, but {self.channels} has {self.shape[0]} channel(s)."
            )
        return tuple(float(n) for n in numbers)


def _pixels(name: str, given: Any) -> int | tuple[int, int]:
    sides = (given,) if isinstance(given, int) else tuple(given)
    if not all(isinstance(side, int) and side > 0 for side in sides) or len(sides) not in (1, 2):
        raise InputError(f"{{{name}}}; it is a number of pixels, or (height, width).", **{name: given})
    return given if isinstance(given, int) else (sides[0], sides[1])


def _pair(sides: int | tuple[int, int]) -> tuple[int, int]:
    return (sides, sides) if isinstance(sides, int) else sides


def _a_channel(numbers: float | tuple[float, ...]) -> Tensor:
    return torch.tensor(numbers) if isinstance(numbers, float) else torch.tensor(numbers).reshape(-1, 1, 1)


# --- rows of tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scale every column of a table: z = (x − center) · factor + shift, with one number per column; factors are > 0.

    >>> one = torch.ones(1)
    >>> Scaling(2 * one, 3 * one, one).then(Scaling(one, 2 * one, 0 * one))(torch.tensor([[4.0]]))
    tensor([[12.]])
    """

    center: Tensor
    factor: Tensor
    shift: Tensor

    def __call__(self, rows: Any, like: Tensor | None = None) -> Tensor:
        """Return raw rows (a tensor or an array) as the network takes them, with the dtype and device of `like`."""
        try:
            x = torch.as_tensor(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"Rows of a table are numbers; got {type(rows).__name__}: {error}.") from error
        x = x.to(torch.promote_types(x.dtype, self.factor.dtype))
        if x.ndim == 0 or x.shape[-1] != len(self.factor):
            raise InputError(f"Rows of this table have {len(self.factor)} columns; got shape {tuple(x.shape)}.")
        center, factor, shift = (t.to(x.device) for t in (self.center, self.factor, self.shift))
        z = (x - center) * factor + shift
        return z if like is None else z.to(like)

    def then(self, after: Scaling) -> Scaling:
        """Return this scaling followed by another one; the first center stays, so nothing cancels."""
        return Scaling(
            self.center, self.factor * after.factor, (self.shift - after.center) * after.factor + after.shift
        )

    def domain(self, raw: Domain) -> Domain:
        """Return the domain of the scaled columns for a domain in the table's own units."""
        if isinstance(raw, Box):
            low, high = raw.bounds(self.factor.unsqueeze(0))
            return Box(*(self(bound.expand(1, len(self.factor)))[0] for bound in (low, high)))
        if isinstance(raw, NonNegative) and bool((self(torch.zeros_like(self.factor)) != 0).any()):
            raise InputError(
                "dt.NonNegative() does not hold for the scaled columns: the scaler shifts them. Give "
                "domain=dt.Box(low, high) in the table's own units, or leave the domain out."
            )
        return raw
