"""The onnx package's own tests of single operators: read right or refused, never wrong, and no other error.

Each test is read twice: as it is, and with all inputs but the first stored in the file, as networks have them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError, MismatchError
from deeptaylor.models.onnx.importer import read_onnx
from deeptaylor.models.onnx.tensors import TYPES

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

# Of 1,884 tests as they are, and of 1,361 with stored inputs, in onnx 1.23; more may be read, and not fewer.
RIGHT, RIGHT_STORED = 690, 667
# onnxruntime computes these otherwise than the standard, so they are refused where it is installed.
OTHERWISE = {
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
}
_TOLERANCE = {"bfloat16": (2e-2, 1e-2), "float16": (5e-3, 1e-3)}
Array = np.ndarray[Any, Any]


def cases(stored: bool) -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
    """Name, model, inputs and outputs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = collect_testcases(None)
    assert len(every) >= 1884
    for case in every:
        inputs, outputs = case.data_sets[0]
        if not stored:
            yield case.name, case.model, list(inputs), list(outputs)
        elif len(inputs) > 1 and all(isinstance(x, (np.ndarray, np.generic, onnx.TensorProto)) for x in inputs[1:]):
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            for info, x in zip(list(model.graph.input)[1:], inputs[1:], strict=True):
                proto = x if isinstance(x, onnx.TensorProto) else onnx.numpy_helper.from_array(np.asarray(x))
                model.graph.initializer.append(proto)
                model.graph.initializer[-1].name = info.name
            del model.graph.input[1:]
            yield case.name, model, list(inputs[:1]), list(outputs)


def array_of(x: Any) -> Array:
    return np.asarray(onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x)


def tensor(x: Any, kind: torch.dtype) -> Tensor:
    array = array_of(x)
    wide = array.astype(np.float32 if str(array.dtype) == "bfloat16" else array.dtype)
    return torch.from_numpy(np.ascontiguousarray(wide)).reshape(array.shape).to(kind)


def agree(ours: Tensor, theirs: Any) -> bool:
    there = array_of(theirs)
    relative, absolute = _TOLERANCE.get(str(there.dtype), (1e-3, 1e-6))
    here = ours.detach().double().numpy()
    return here.shape == there.shape and np.allclose(here, there.astype(np.float64), relative, absolute, equal_nan=True)


def verdict(model: Any, inputs: list[Any], outputs: list[Any], path: Path) -> str:
    path.write_bytes(model.SerializeToString())
    try:
        network = read_onnx(path)
    except MismatchError:
        return "differs from onnxruntime"
    except DeepTaylorError:
        return "refused"
    named = dict(zip([i.name for i in model.graph.input], inputs, strict=False))
    given = [tensor(named[n], kind) for n, kind in zip(network.input_names, network.input_types, strict=True)]
    found = network(*given)
    results = list(found.values()) if isinstance(found, dict) else [found]
    fits = len(results) == len(outputs) and all(agree(a, b) for a, b in zip(results, outputs, strict=True))
    return "right" if fits else "wrong"


@pytest.mark.parametrize(("stored", "least"), [(False, RIGHT), (True, RIGHT_STORED)], ids=["as given", "stored"])
def test_no_operator_is_read_wrong(stored: bool, least: int, tmp_path: Path) -> None:
    found = {name: verdict(*case, tmp_path / "model.onnx") for name, *case in cases(stored)}
    counts = Counter(found.values())
    print(f"\n{'stored' if stored else 'as given'}: {dict(counts)}")
    assert [name for name, said in found.items() if said == "wrong"] == []
    assert {name for name, said in found.items() if said == "differs from onnxruntime"} <= OTHERWISE
    assert counts["right"] >= least


@pytest.mark.parametrize("stored", [False, True], ids=["as given", "stored"])
def test_what_is_read_is_explained_or_refused(stored: bool, tmp_path: Path) -> None:
    """Shapes are kept, and there is no error but the library's own."""
    counts: Counter[str] = Counter()
    for name, model, inputs, outputs in cases(stored):
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            loaded = dt.load(path, domain=dt.Real(), class_names=None)
        except DeepTaylorError:
            counts["refused"] += 1
            continue
        network: Any = loaded.network  # type: ignore[union-attr]
        if len(network.input_names) > 1:
            counts["several inputs"] += 1
            continue
        kind = model.graph.input[0].type.tensor_type.elem_type
        x = tensor(inputs[0], torch.float32 if TYPES[kind].is_floating_point else TYPES[kind])
        assert network(x).shape == array_of(outputs[0]).shape, name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dt.explain(network, x, domain=dt.Real(), target=lambda o: o.flatten(1).sum(1) if o.ndim > 1 else o)
        except DeepTaylorError:
            counts["not explained"] += 1
            continue
        counts["explained"] += 1
    print(f"\n{dict(counts)}")
    assert counts["explained"] >= (110 if not stored else 230)
