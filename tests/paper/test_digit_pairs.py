from __future__ import annotations

import gzip
import struct
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.paper.digit_pairs import (
    BLACK,
    WHITE,
    Digits,
    DigitsError,
    Pairs,
    PairSampler,
    PairsError,
    held_out_pairs,
    load_digits,
    training_pairs,
)

STEMS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def images_file(count: int, announced: int | None = None, magic: int = 2051, side: int = 28) -> bytes:
    header = struct.pack(">4I", magic, count if announced is None else announced, side, side)
    return header + bytes(i % 256 for i in range(count * side * side))


def labels_file(labels: list[int], announced: int | None = None, magic: int = 2049) -> bytes:
    return struct.pack(">2I", magic, len(labels) if announced is None else announced) + bytes(labels)


def folder_with(folder: Path, **changed: bytes) -> Path:
    """Three digits to learn from and two to test with; files can be replaced (train_images=…)."""
    contents = [images_file(3), labels_file([7, 0, 9]), images_file(2), labels_file([4, 1])]
    for stem, content in zip(STEMS, contents, strict=True):
        name = f"{stem}-idx{3 if 'images' in stem else 1}-ubyte"
        (folder / name).write_bytes(changed.get(stem.replace("-", "_"), content))
    return folder


def test_values_in_their_places(tmp_path: Path) -> None:
    digits = load_digits(folder_with(tmp_path))
    assert digits.train_images.shape == (3, 28, 28)
    assert digits.test_images.shape == (2, 28, 28)
    assert digits.train_images.dtype == digits.train_labels.dtype == np.uint8
    assert digits.train_labels.tolist() == [7, 0, 9]
    assert digits.test_labels.tolist() == [4, 1]
    # Byte number i of the file is i mod 256; image 1, row 2, column 5 is number 784 + 56 + 5 = 845 = 3 · 256 + 77.
    assert digits.train_images[1, 2, 5] == 77


def test_packed_and_other_spellings_read_the_same(tmp_path: Path) -> None:
    plain = load_digits(folder_with(tmp_path))
    for file in list(tmp_path.iterdir()):
        packed = file.with_name(file.name.replace("-idx", ".idx") + ".gz")
        packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()
    packed_digits = load_digits(str(tmp_path))
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert np.array_equal(getattr(plain, name), getattr(packed_digits, name))


def test_digits_cannot_be_changed(tmp_path: Path) -> None:
    digits = load_digits(folder_with(tmp_path))
    with pytest.raises(FrozenInstanceError):
        digits.train_images = digits.test_images  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        digits.train_images[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train_images", b"", r"train-images-idx3-ubyte ends inside its header: 0 bytes, expected 16"),
        ("train_images", images_file(3)[:15], r"ends inside its header: 15 bytes, expected 16"),
        ("train_images", images_file(3)[:-1], r"is cut short: 2351 bytes after its header, expected 2352"),
        ("train_images", images_file(3) + b"\0", r"is too long: more than the 2352 bytes"),
        ("train_images", images_file(3, magic=2049), r"begins with the number 2049, expected 2051"),
        ("train_images", images_file(3, magic=0x03080000), r"expected 2051: it is another kind of file"),
        ("train_images", images_file(3, side=27), r"holds images of 27 × 27 pixels, expected 28 × 28"),
        ("train_images", images_file(3, announced=2**32 - 1), r"announces 4294967295 digits, expected 1 to 1000000"),
        ("train_images", images_file(3, announced=1_000_000), r"is cut short: 2352 bytes.*expected 784000000"),
        ("train_images", images_file(0), r"announces 0 digits"),
        ("train_images", images_file(2), r"there are 2 train images, but 3 train labels"),
        ("train_images", gzip.compress(images_file(3), mtime=0)[:-9], r"is damaged: it cannot be unpacked to its end"),
        ("train_images", gzip.compress(images_file(3), mtime=0)[:9], r"is damaged: it cannot be unpacked to its end"),
        ("train_images", b"\x1f\x8b and then no gzip at all", r"is damaged: it cannot be unpacked to its end"),
        ("train_images", gzip.compress(images_file(3), mtime=0) + b"junk", r"is damaged|is too long"),
        ("train_images", gzip.compress(images_file(3), mtime=0) + gzip.compress(b"more", mtime=0), r"is too long"),
        ("t10k_labels", labels_file([4, 10]), r"the test labels hold 10, expected 0 to 9"),
        ("t10k_labels", labels_file([4]), r"there are 2 test images, but 1 test labels"),
        ("t10k_labels", images_file(2), r"t10k-labels-idx1-ubyte begins with the number 2051, expected 2049"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    with pytest.raises(DigitsError, match=message):
        load_digits(folder_with(tmp_path, **{file: content}))


def test_a_damaged_checksum_is_noticed(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(images_file(3), mtime=0))
    packed[-6] ^= 1
    with pytest.raises(DigitsError, match="is damaged"):
        load_digits(folder_with(tmp_path, train_images=bytes(packed)))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DigitsError, match=r"nowhere is not a folder; name one that holds the four files of MNIST"):
        load_digits(tmp_path / "nowhere")
    (folder_with(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        DeepTaylorError, match=r"holds no t10k-labels-idx1-ubyte; looked for: .*t10k-labels\.idx1-ubyte\.gz"
    ):
        load_digits(tmp_path)


def test_arrays_of_another_shape_are_refused() -> None:
    images, labels = np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.uint8)
    with pytest.raises(
        DigitsError, match=r"the test images are uint8 of shape \(2, 27, 28\), expected uint8 of \(count"
    ):
        Digits(images, labels, images[:, 1:], labels)
    with pytest.raises(DigitsError, match="the train labels are int64"):
        Digits(images, labels.astype(np.int64), images, labels)


def test_without_a_folder_the_files_come_out_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path)
    names = {f"mnist-{part}-{what}" for part in ("train", "test") for what in ("images", "labels")}
    assert set(assets.MNIST) == names
    asked = []

    def path(name: str) -> Path:
        asked.append(name)
        return tmp_path / assets.MNIST[name].file_name.removesuffix(".gz")

    monkeypatch.setattr(assets, "path", path)
    assert load_digits().test_labels.tolist() == [4, 1]
    assert set(asked) == names


def test_the_files_of_the_package_are_the_original_ones() -> None:
    found = {name: assets._find_installed(asset) for name, asset in assets.MNIST.items()}
    cached = {n: assets.cache_folder() / a.sha256[:16] / a.file_name for n, a in assets.MNIST.items()}
    if not all(found[name] or cached[name].is_file() for name in found):
        pytest.skip("MNIST is neither installed nor in the cache; load_digits() fetches it")
    digits = load_digits()
    assert digits.train_images.shape == (60_000, 28, 28)
    assert digits.test_images.shape == (10_000, 28, 28)
    # As published with the data set.
    assert np.bincount(digits.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(digits.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_without_network_the_error_says_to_give_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(assets, "_find_installed", lambda _: None)
    with pytest.raises(assets.AssetError, match="Give a folder that holds the four files of MNIST"):
        load_digits()


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
