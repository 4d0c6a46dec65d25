"""Two tasks with known truth for small modern networks: pictures, classes and the boxes of two objects per picture.

digits     (1, 48, 48): two digits of different classes, pieces of other digits as clutter, a soft uneven ground, noise.
           A classifier with ten logits; the target gives one half to each of the two classes (softmax).
textures   (3, 48, 48): two shapes filled with different textures in random colours, over a ground of soft coloured
           noise with plain patches. The kind of texture is the class; colour and shape say nothing. Eight logits, each
           a yes or no (sigmoid).

Every split has its own seed, and digits of its own: `train` and `validation` come from MNIST's training set, `test`
from its test set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

SIDE, BOX = 48, 22
SEEDS = {"train": 1, "validation": 2, "test": 3}
CLASSES = {"digits": 10, "textures": 8}
CHANNELS = {"digits": 1, "textures": 3}
TEXTURES = ("lying stripes", "standing stripes", "diagonal stripes", "dots", "checks", "rings", "waves", "spots")
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pictures:
    """Pictures in [0, 1], the two classes of each (N, 2), the boxes (N, 2, 4) as top, left, bottom, right."""

    x: Tensor
    classes: Tensor
    boxes: Tensor
    ground: Tensor  # the same pictures without the two objects

    def __getitem__(self, which: slice) -> Pictures:
        return Pictures(self.x[which], self.classes[which], self.boxes[which], self.ground[which])

    def to(self, device: str) -> Pictures:
        return Pictures(*[t.to(device) for t in (self.x, self.classes, self.boxes, self.ground)])

    def masks(self) -> Tensor:
        """True inside each box, (N, 2, 48, 48)."""
        at = torch.arange(SIDE, device=self.boxes.device)
        top, left, bottom, right = (self.boxes[..., k, None] for k in range(4))
        rows, columns = (at >= top) & (at < bottom), (at >= left) & (at < right)
        return rows[..., :, None] & columns[..., None, :]


def pictures(task: str, split: str, count: int) -> Pictures:
    """Render pictures of a task; the same seed gives the same pictures."""
    lot = np.random.default_rng((SEEDS[split], sorted(CLASSES).index(task)))
    return {"digits": _digits, "textures": _textures}[task](lot, split, count)


def _corners(lot: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Top left corners (count, 2, 2) of two boxes in different quarters of the picture, each moved by up to 2 px."""
    first = lot.integers(0, 4, count)
    quarter = np.stack([first, (first + lot.integers(1, 4, count)) % 4], 1)
    at = np.stack([quarter // 2, quarter % 2], 2)
    return (SIDE - BOX - 2) * at + lot.integers(0, SIDE // 2 - BOX + 1, at.shape)


def _two_classes(lot: np.random.Generator, count: int, of: int) -> npt.NDArray[np.int64]:
    first = lot.integers(0, of, count)
    return np.stack([first, (first + lot.integers(1, of, count)) % of], 1)


def _soft(lot: np.random.Generator, count: int, channels: int, cells: int) -> Array:
    """Smooth random fields in [0, 1]."""
    coarse = torch.from_numpy(lot.random((count, channels, cells, cells), dtype=np.float32))
    return F.interpolate(coarse, SIDE, mode="bicubic").clamp(0, 1).numpy()


def _made(x: Array, ground: Array, noise: Array, classes: Array, corners: Array) -> Pictures:
    boxes = np.concatenate([corners, corners + BOX], 2)
    whole, empty = (torch.from_numpy((part + noise).clip(0, 1)) for part in (x, ground))
    return Pictures(whole, torch.from_numpy(classes), torch.from_numpy(boxes), empty)


# --- digits -----------------------------------------------------------------------------------------------------------


def _digits(lot: np.random.Generator, split: str, count: int) -> Pictures:
    from deeptaylor.paper.digit_pairs import load_digits

    mnist = load_digits()
    ink, labels = (
        (mnist.test_images, mnist.test_labels) if split == "test" else (mnist.train_images, mnist.train_labels)
    )
    if split != "test":
        part = slice(0, 50_000) if split == "train" else slice(50_000, None)
        ink, labels = ink[part], labels[part]
    ink = ink[:, 3:25, 3:25].astype(np.float32) / 255
    by_class = [np.flatnonzero(labels == k) for k in range(10)]
    classes, corners = _two_classes(lot, count, 10), _corners(lot, count)
    ground = 0.4 * _soft(lot, count, 1, 4)
    for k in range(count):
        for _ in range(4):  # clutter: pieces of nine pixels of any digits
            piece = ink[lot.integers(len(ink))][7 : 7 + 9, 4:13] * lot.uniform(0.5, 1)
            top, left = lot.integers(0, SIDE - 9 + 1, 2)
            here = ground[k, 0, top : top + 9, left : left + 9]
            np.maximum(here, piece, out=here)
    x = ground.copy()
    for k in range(count):
        for c, (top, left) in zip(classes[k], corners[k], strict=True):
            digit = ink[lot.choice(by_class[c])] * lot.uniform(0.6, 1)
            here = x[k, 0, top : top + BOX, left : left + BOX]
            np.maximum(here, digit, out=here)
    return _made(x, ground, lot.normal(0, 0.06, x.shape).astype(np.float32), classes, corners)


# --- textures ---------------------------------------------------------------------------------------------------------


def _textures(lot: np.random.Generator, split: str, count: int) -> Pictures:
    classes, corners = _two_classes(lot, count, len(TEXTURES)), _corners(lot, count)
    ground = 0.15 + 0.7 * _soft(lot, count, 3, 6)
    ground += 0.25 * (_soft(lot, count, 1, 16) - 0.5)
    for k in range(count):
        for _ in range(3):  # clutter: plain patches
            height, width = lot.integers(5, 11, 2)
            top, left = lot.integers(0, SIDE - 10, 2)
            ground[k, :, top : top + height, left : left + width] = lot.random((3, 1, 1))
    x = ground.copy()
    for k in range(count):
        for c, (top, left) in zip(classes[k], corners[k], strict=True):
            one = lot.random((3, 1, 1))
            other = (one + lot.choice([-1, 1], (3, 1, 1)) * lot.uniform(0.35, 0.65, (3, 1, 1))) % 1.0
            filled = np.where(_texture(lot, c)[None], one, other)
            here = x[k, :, top : top + BOX, left : left + BOX]
            here[:] = np.where(_shape(lot)[None], filled, here)
    return _made(x, ground, lot.normal(0, 0.04, x.shape).astype(np.float32), classes, corners)


_AT = np.arange(BOX, dtype=np.float32)
_Y, _X = np.meshgrid(_AT, _AT, indexing="ij")


def _texture(lot: np.random.Generator, kind: int) -> npt.NDArray[np.bool_]:
    """One of the eight textures with its own period and phase, True where it has the first colour."""
    period, a, b = lot.uniform(4.5, 6.5), *lot.uniform(0, 6.5, 2)
    y, x = (_Y + a) % period, (_X + b) % period
    half = period / 2
    if kind == 0:
        return y < half
    if kind == 1:
        return x < half
    if kind == 2:
        return (_X + _Y + a) % (1.4 * period) < 0.7 * period
    if kind == 3:
        return np.hypot(y - half, x - half) < 0.3 * period
    if kind == 4:
        return (y < half) ^ (x < half)
    if kind == 5:
        centre = lot.uniform(8, 14, 2)
        return np.hypot(_Y - centre[0], _X - centre[1]) % period < half
    if kind == 6:
        return (_Y + 1.8 * np.sin((_X + b) * 2 * np.pi / 9) + a) % period < half
    coarse = torch.from_numpy(lot.random((1, 1, 8, 8), dtype=np.float32))
    return F.interpolate(coarse, BOX, mode="bicubic")[0, 0].numpy() > 0.5


def _shape(lot: np.random.Generator) -> npt.NDArray[np.bool_]:
    """A disc, a square, a diamond or an ellipse inside the box."""
    y, x = (_Y - BOX / 2 + 0.5) / (BOX / 2), (_X - BOX / 2 + 0.5) / (BOX / 2)
    which = lot.integers(4)
    if which == 0:
        return np.hypot(y, x) <= 1
    if which == 1:
        return np.maximum(abs(y), abs(x)) <= 0.85
    if which == 2:
        return abs(y) + abs(x) <= 1.25
    return np.hypot(y * lot.uniform(1, 1.3), x) <= 1
