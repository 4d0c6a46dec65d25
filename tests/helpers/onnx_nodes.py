"""The onnx package's own tests of single operators, and a verdict on how each is read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from deeptaylor.errors import DeepTaylorError, MismatchError
from deeptaylor.models.onnx.importer import read_onnx

__all__ = ["Array", "array_of", "cases", "tensor", "verdict"]

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
    except DeepTaylorError as error:
        return f"refused: {error}"
    named = dict(zip([i.name for i in model.graph.input], inputs, strict=False))
    given = [tensor(named[n], kind) for n, kind in zip(network.input_names, network.input_types, strict=True)]
    found = network(*given)
    results = list(found.values()) if isinstance(found, dict) else [found]
    fits = len(results) == len(outputs) and all(agree(a, b) for a, b in zip(results, outputs, strict=True))
    return "right" if fits else "wrong"
