from __future__ import annotations

import gzip
import struct
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.paper.data import Digits, DigitsError, load_digits

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
    found = {name: assets._installed(asset) for name, asset in assets.MNIST.items()}
    cached = {n: assets.cache_folder() / a.sha256[:16] / a.file_name for n, a in assets.MNIST.items()}
    if not all(found[name] or cached[name].is_file() for name in found):
        pytest.skip("MNIST is neither installed nor in the cache; deeptaylor.paper.data.load_digits() fetches it")
    digits = load_digits()
    assert digits.train_images.shape == (60_000, 28, 28)
    assert digits.test_images.shape == (10_000, 28, 28)
    # As published with the data set.
    assert np.bincount(digits.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(digits.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_without_network_the_error_says_to_give_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(assets, "_installed", lambda _: None)
    with pytest.raises(assets.AssetError, match="Give a folder that holds the four files of MNIST"):
        load_digits()
