"""Packages of npm, and what a network of TensorFlow.js looks like in one."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["npm_package", "tfjs_files"]


def npm_package(files: Mapping[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A .tgz with these files, and with members of other kinds that have no content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as package:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
        for member in others:
            package.addfile(member)
    return packed.getvalue()


def tfjs_files(tensors: Mapping[str, np.ndarray], shard: int = 2**22, **changed: Any) -> dict[str, bytes]:
    """model.json and its shards of so many bytes; ``changed`` overrules parts of the one group of the manifest."""
    data = b"".join(tensor.astype("<f4").tobytes() for tensor in tensors.values())
    pieces = [data[start : start + shard] for start in range(0, len(data), shard)]
    names = [f"group1-shard{k}of{len(pieces)}.bin" for k in range(1, len(pieces) + 1)]
    weights = [{"name": name, "shape": list(t.shape), "dtype": "float32"} for name, t in tensors.items()]
    model = {"format": "layers-model", "weightsManifest": [{"paths": names, "weights": weights, **changed}]}
    # The model after its shards and these in the order of their names, as npm packs them.
    shards = dict(sorted(zip(names, pieces, strict=True)))
    files = {**shards, "model.json": json.dumps(model).encode()}
    return {f"package/Net/{name}": content for name, content in files.items()}
