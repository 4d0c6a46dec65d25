"""Pairs of digits, the images of the paper's experiments: is there a digit 0–3 beside the distractor 4–9?

    target present (100)    one digit 0–3 and one distractor 4–9, left and right at random
    target absent  (0)      a distractor, and in the other half
                                absent="distractor"   a second distractor: every image is a pair of digits
                                absent="empty"        nothing
                                absent="either"       the one or the other, as likely

With nothing in the other half it is enough to count digits: a network learns to see two halves with ink, and says
"present" to any two distractors; with a second distractor always there it is at a loss before an empty half. Hence
``"either"`` unless said otherwise.

Pixels are coded from −0.5 (black) to 1.5 (white). A digit is moved by up to ``max_shift`` pixels up, down, left and
right, each distance as likely as any other; what it leaves behind is black, what leaves its half is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from deeptaylor.errors import DeepTaylorError
from deeptaylor.paper.data.digits import SIDE, Bytes, Digits

__all__ = ["BLACK", "WHITE", "Absent", "PairSampler", "Pairs", "PairsError", "held_out_pairs", "training_pairs"]

BLACK, WHITE = -0.5, 1.5
PRESENT = 100.0
TRAIN_SHIFT = 3
_DETECTED = 4  # classes below it are to be detected, the others distract
_NOTHING = -1

Absent = Literal["distractor", "empty", "either"]


class PairsError(DeepTaylorError, ValueError):
    """Pairs cannot be made as asked."""


@dataclass(frozen=True)
class Pairs:
    """Images (count, 1, 28, 56) and what is in them.

    ``target`` (count,) is 100 where a digit 0–3 is present, else 0; ``side`` (count,) says in which half: 0 left,
    1 right, −1 none; ``labels`` (count, 2) are the digits left and right, −1 for an empty half.
    """

    images: Tensor
    target: Tensor
    side: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def target_half(self) -> Tensor:
        """True (count, 1, 28, 56) in the half that holds the digit to detect; False everywhere if there is none."""
        half = torch.arange(2 * SIDE, device=self.side.device) // SIDE
        return (half == self.side[:, None]).reshape(-1, 1, 1, 2 * SIDE).expand(self.images.shape)

    def target_ink(self, brighter_than: float = (BLACK + WHITE) / 2) -> Tensor:
        """True (count, 1, 28, 56) where the digit to detect has ink: pixels of its half above a brightness."""
        return self.target_half() & (self.images > brighter_than)


class PairSampler:
    """Makes pairs out of digits on one device, thousands at once.

    Chance comes from a generator on the CPU, whatever the device: a seed gives the same pairs everywhere.
    """

    def __init__(
        self,
        images: Bytes,
        labels: Bytes,
        *,
        max_shift: int = TRAIN_SHIFT,
        absent: Absent = "either",
        presence: float = 0.5,
        device: torch.device | str = "cpu",
    ) -> None:
        if type(max_shift) is not int or not 0 <= max_shift < SIDE:
            raise PairsError(f"max_shift is a number of pixels from 0 to {SIDE - 1}; got {max_shift!r}")
        if absent not in get_args(Absent):
            raise PairsError(f"absent is one of {', '.join(map(repr, get_args(Absent)))}; got {absent!r}")
        if not 0 <= presence <= 1:
            raise PairsError(f"presence is a probability from 0 to 1; got {presence!r}")
        self.absent, self.presence, self.shifts = absent, presence, 2 * max_shift + 1
        classes = torch.tensor(labels, dtype=torch.long)
        self._detected, self._distracting = (
            torch.nonzero(c)[:, 0] for c in (classes < _DETECTED, classes >= _DETECTED)
        )
        if not len(self._detected) or not len(self._distracting):
            raise PairsError("pairs need digits of the classes 0–3 and of the classes 4–9; one of the two is missing")
        self._classes = torch.cat([classes, torch.tensor([_NOTHING])])
        # A black image at the end stands for the empty half.
        size = SIDE + 2 * max_shift
        padded = torch.zeros(len(images) + 1, size, size, dtype=torch.uint8)
        padded[:-1, max_shift : max_shift + SIDE, max_shift : max_shift + SIDE] = torch.tensor(images)
        # A view (count, shifts, shifts, 28, 28): the digit, moved down and right.
        self._moved = padded.to(device).unfold(1, SIDE, 1).unfold(2, SIDE, 1)

    def sample(self, count: int, generator: torch.Generator) -> Pairs:
        """That many pairs, drawn with this generator."""
        if count < 1:
            raise PairsError(f"the number of pairs is at least 1; got {count}")
        if generator.device.type != "cpu":
            raise PairsError(f"the generator must be on the CPU (torch.Generator()); this one is on {generator.device}")
        # One row a pair: pairs do not depend on how many are drawn at once. (In float32 a product could round up to
        # the number of choices.)
        chance = torch.rand(count, 10, dtype=torch.float64, generator=generator)
        present, right = chance[:, 0] < self.presence, chance[:, 1] < 0.5
        detected, distractor = _choose(self._detected, chance[:, 2]), _choose(self._distracting, chance[:, 3])
        other = _choose(self._distracting, chance[:, 4])
        empty = chance[:, 9] < {"distractor": 0.0, "either": 0.5, "empty": 1.0}[self.absent]
        other = torch.where(empty, len(self._classes) - 1, other)
        first = torch.where(present, detected, other)
        halves = torch.where(right[:, None], torch.stack([distractor, first], 1), torch.stack([first, distractor], 1))
        down, across = (chance[:, 5:9] * self.shifts).long().reshape(count, 2, 2).unbind(2)
        return self._picture(halves, down, across, present, right)

    def _picture(self, halves: Tensor, down: Tensor, across: Tensor, present: Tensor, right: Tensor) -> Pairs:
        device = self._moved.device
        pixels = self._moved[halves.to(device), down.to(device), across.to(device)]
        images = pixels.transpose(1, 2).reshape(-1, 1, SIDE, 2 * SIDE).float()
        return Pairs(
            # 255 · 2 / 255 is 2 in floating point too: white is exactly the upper bound.
            images=images.mul_(WHITE - BLACK).div_(255).add_(BLACK),
            target=(PRESENT * present.float()).to(device),
            side=torch.where(present, right.long(), _NOTHING).to(device),
            labels=self._classes[halves].to(device),
        )


def training_pairs(
    digits: Digits, count: int, seed: int = 0, *, max_shift: int = TRAIN_SHIFT, absent: Absent = "either"
) -> Pairs:
    """Pairs of the digits to learn from, moved by up to three pixels unless said otherwise."""
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent)
    return sampler.sample(count, torch.Generator().manual_seed(seed))


def held_out_pairs(
    digits: Digits, count: int, seed: int = 0, *, max_shift: int = 0, absent: Absent = "either"
) -> Pairs:
    """Pairs of the digits to test with, where MNIST has them unless said otherwise: only training moves digits."""
    sampler = PairSampler(digits.test_images, digits.test_labels, max_shift=max_shift, absent=absent)
    return sampler.sample(count, torch.Generator().manual_seed(seed))


def _choose(among: Tensor, chance: Tensor) -> Tensor:
    return among[(chance * len(among)).long()]
