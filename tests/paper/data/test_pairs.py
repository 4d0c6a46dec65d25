from __future__ import annotations

import numpy as np
import pytest
import torch

from deeptaylor.paper.data import Digits, Pairs, PairSampler, held_out_pairs, training_pairs
from deeptaylor.paper.data.pairs import BLACK, WHITE, PairsError

ROWS = slice(0, 28)


def plain_digits(count: int = 40, offset: int = 0) -> Digits:
    """Each digit is one flat grey of its own: odd for training, even for testing. Labels go round 0 to 9."""
    greys = np.arange(count, dtype=np.uint8) * 2 + offset
    labels = (np.arange(count) % 10).astype(np.uint8)

    def flat(values: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return np.broadcast_to(values[:, None, None], (count, 28, 28)).copy()

    return Digits(flat(greys + 51), labels, flat(greys + 52), labels.copy())


def greys(pairs: Pairs) -> torch.Tensor:
    """The brightest grey (count, 2) of each half, 0 to 255."""
    return ((pairs.images + 0.5) * 255 / 2).round().reshape(-1, 28, 2, 28).amax((1, 3)).long()


def test_shapes_and_types() -> None:
    pairs = training_pairs(plain_digits(), 7)
    assert len(pairs) == 7
    assert pairs.images.shape == (7, 1, 28, 56)
    assert pairs.images.dtype == pairs.target.dtype == torch.float32
    assert pairs.target.shape == pairs.side.shape == (7,)
    assert pairs.labels.shape == (7, 2)


def test_coding_is_exact_at_both_ends() -> None:
    images = np.zeros((2, 28, 28), np.uint8)
    images[:, 3], images[:, 4] = 255, 102
    digits = Digits(images, np.array([0, 9], np.uint8), images.copy(), np.array([0, 9], np.uint8))
    x = held_out_pairs(digits, 5, absent="distractor").images
    assert (x[:, :, 0] == BLACK).all()
    assert (x[:, :, 3] == WHITE).all()
    # 2 · 102 / 255 − 0.5 = 0.8 − 0.5 = 0.3
    torch.testing.assert_close(x[:, :, 4], torch.full_like(x[:, :, 4], 0.3))


@pytest.mark.parametrize("absent", ["distractor", "empty", "either"])
def test_what_is_in_a_pair(absent: str) -> None:
    digits = plain_digits()
    pairs = training_pairs(digits, 4000, seed=3, max_shift=0, absent=absent)  # type: ignore[arg-type]
    present = pairs.target == 100
    assert set(pairs.target.tolist()) == {0.0, 100.0}
    assert 0.47 < present.float().mean() < 0.53
    assert ((pairs.side >= 0) == present).all()
    left, right = (pairs.labels[:, side] for side in (0, 1))
    for side, target, distractor in ((0, left, right), (1, right, left)):
        chosen = pairs.side == side
        assert 0.2 < chosen.float().mean() < 0.3
        assert set(target[chosen].tolist()) == {0, 1, 2, 3}
        assert set(distractor[chosen].tolist()) == {4, 5, 6, 7, 8, 9}
    without = pairs.labels[~present]
    if absent == "distractor":
        assert set(without.flatten().tolist()) == {4, 5, 6, 7, 8, 9}
    else:
        empty = (without.amin(1) == -1).float().mean()
        assert empty == 1 if absent == "empty" else 0.45 < empty < 0.55
        assert set(without.amax(1).tolist()) == {4, 5, 6, 7, 8, 9}
        assert 0.4 * empty < (without[:, 0] == -1).float().mean() < 0.6 * empty
    # The labels are those of the digits shown: grey 2 i + 51 is digit i, label i mod 10; an empty half is black.
    grey = greys(pairs)
    assert torch.equal(torch.where(grey == 0, -1, (grey - 51) // 2 % 10), pairs.labels)


def test_training_and_held_out_digits_are_never_mixed() -> None:
    digits = plain_digits()
    assert (greys(training_pairs(digits, 500, absent="distractor")) % 2 == 1).all()
    assert (greys(held_out_pairs(digits, 500, absent="distractor")) % 2 == 0).all()


def test_every_digit_is_used_alike() -> None:
    counts = (
        greys(training_pairs(plain_digits(), 20_000, max_shift=0, absent="distractor")).flatten().bincount()[51:131:2]
    )
    assert (counts > 0).all()
    # 16 digits 0–3 share 10,000 places: 625 each. 24 distractors share 20,000 + 10,000: 1250 each.
    detected = torch.arange(40) % 10 < 4
    assert ((counts[detected] - 625).abs() < 125).all()
    assert ((counts[~detected] - 1250).abs() < 200).all()


def test_the_seed_decides() -> None:
    digits = plain_digits()
    a, b, c = training_pairs(digits, 50, seed=1), training_pairs(digits, 50, seed=1), training_pairs(digits, 50, seed=2)
    for field in ("images", "target", "side", "labels"):
        assert torch.equal(getattr(a, field), getattr(b, field))
    assert not torch.equal(a.images, c.images)


def test_pairs_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    digits = plain_digits()
    sampler = PairSampler(digits.train_images, digits.train_labels)
    at_once = sampler.sample(60, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    parts = [sampler.sample(count, generator).images for count in (1, 19, 40)]
    assert torch.equal(torch.cat(parts), at_once.images)


def test_moved_digits_leave_black_behind() -> None:
    digits = plain_digits()
    pairs = training_pairs(digits, 3000, max_shift=2, absent="distractor")
    moves = set()
    for half in pairs.images[:, 0].split(28, dim=2):
        ink = half > BLACK
        rows, columns = ink.any(2), ink.any(1)
        # A flat square that was moved: what is left of it is a rectangle that touches the side it was moved to.
        assert torch.equal(ink, rows[:, :, None] & columns[:, None, :])
        for lines in (rows, columns):
            assert (lines[:, 2:26]).all()
            first, last = lines.long().argmax(1), lines.flip(1).long().argmax(1)
            assert ((first == 0) | (last == 0)).all()
            moves |= set((first - last).tolist())
    assert moves == {-2, -1, 0, 1, 2}
    assert (held_out_pairs(digits, 100, absent="distractor").images > BLACK).all(), (
        "held-out digits are where they are in the data"
    )


def test_moved_digits_are_the_digit_moved() -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 10, 20] = 255
    images, labels = np.concatenate([image, image]), np.array([1, 5], np.uint8)
    pairs = training_pairs(Digits(images, labels, images.copy(), labels.copy()), 2000, max_shift=3, absent="distractor")
    points = [half.flatten(1).argmax(1) for half in pairs.images[:, 0].split(28, dim=2)]
    for point in points:
        assert set((point // 28).tolist()) == set(range(7, 14))
        assert set((point % 28).tolist()) == set(range(17, 24))
    assert (points[0] != points[1]).any(), "each half moves on its own"


def test_ink_of_the_target() -> None:
    images = np.zeros((2, 28, 28), np.uint8)
    images[:, 5:9, 6:8] = 255
    digits = Digits(images, np.array([2, 8], np.uint8), images.copy(), np.array([2, 8], np.uint8))
    pairs = held_out_pairs(digits, 40, absent="distractor")
    ink, half = pairs.target_ink(), pairs.target_half()
    assert ink.shape == half.shape == pairs.images.shape
    for i, side in enumerate(pairs.side.tolist()):
        expected = torch.zeros(28, 56, dtype=torch.bool)
        if side >= 0:
            assert half[i, 0, :, 28 * side : 28 * side + 28].all()
            assert half[i].sum() == 28 * 28
            expected[5:9, 28 * side + 6 : 28 * side + 8] = True
        assert torch.equal(ink[i, 0], expected)


def test_presence() -> None:
    digits = plain_digits()
    for presence, side in ((0.0, False), (1.0, True)):
        sampler = PairSampler(digits.train_images, digits.train_labels, presence=presence)
        assert ((sampler.sample(200, torch.Generator()).side >= 0) == side).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_shift": -1}, "max_shift is a number of pixels from 0 to 27; got -1"),
        ({"max_shift": 28}, "got 28"),
        ({"max_shift": 1.5}, "got 1.5"),
        ({"absent": "nothing"}, "absent is one of 'distractor', 'empty', 'either'; got 'nothing'"),
        ({"presence": 1.5}, "presence is a probability from 0 to 1; got 1.5"),
        ({"presence": float("nan")}, "got nan"),
    ],
)
def test_wrong_arguments(wrong: dict[str, object], message: str) -> None:
    digits = plain_digits()
    with pytest.raises(PairsError, match=message):
        PairSampler(digits.train_images, digits.train_labels, **wrong)  # type: ignore[arg-type]


def test_both_kinds_of_digit_are_needed() -> None:
    with pytest.raises(PairsError, match="one of the two is missing"):
        PairSampler(np.zeros((2, 28, 28), np.uint8), np.array([0, 3], np.uint8))


def test_the_number_of_pairs() -> None:
    with pytest.raises(PairsError, match="at least 1; got 0"):
        training_pairs(plain_digits(), 0)
