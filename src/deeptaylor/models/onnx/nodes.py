"""Nodes of an ONNX graph as Python values: constants, attributes, and which of them cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.models.onnx.file import all_nodes, name_of, opset_of
from deeptaylor.models.onnx.ops import OPS
from deeptaylor.models.onnx.shapes import SHAPES, Array
from deeptaylor.models.onnx.tensors import OnnxError, onnx_package, tensor_of

if TYPE_CHECKING:
    import onnx

__all__ = ["attributes_of", "constant_of", "folded", "numbers_of", "refuse_unknown", "where"]


def where(node: onnx.NodeProto, opset: int) -> str:
    """A node for an error message."""
    return f"node {name_of(node)!r} ({node.op_type}, opset {opset})"


def refuse_unknown(model: onnx.ModelProto, path: Path) -> None:
    """All operators that have no counterpart, in one error."""
    unknown = [n for n in all_nodes(model.graph) if n.op_type not in {*OPS, *SHAPES, "Constant", "If"}]
    if not unknown:
        return
    kinds: dict[str, list[str]] = {}
    for node in unknown:
        kinds.setdefault(node.op_type, []).append(name_of(node))
    listed = [f"{op} ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" for op, names in sorted(kinds.items())]
    advice = ""
    if any("quantize" in op.lower() or "QLinear" in op or op.endswith("Integer") for op in kinds):
        advice += " A quantised network cannot be decomposed; use the file in floating point."
    if kinds.keys() & {"Loop", "Scan", "SequenceMap"}:
        advice += " Loops have no fixed graph; export the network with them unrolled."
    raise OnnxError(
        f"{path.name} (opset {opset_of(model)}) has operators that are not read: {'; '.join(listed)}.{advice}"
    )


def attributes_of(node: onnx.NodeProto, opset: int, host: bool) -> dict[str, Any]:
    """A node's attributes as keywords; an attribute that its function does not know is refused."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx_package().helper.get_attribute_value(attribute)
        if attribute.name == "consumed_inputs":  # a hint to memory planners before opset 6
            continue
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif attribute.HasField("t"):  # of ConstantOfShape alone: one number
            tensor = tensor_of(attribute.t, None)
            value, found["dtype"] = tensor.reshape(-1)[0].item(), tensor.dtype
        elif isinstance(value, (list, tuple)):
            value = list(value)
        found[{"min": "low", "max": "high"}.get(attribute.name, attribute.name)] = value
    if not host:
        known = OPS[node.op_type].keywords
        if strange := sorted(found.keys() - known):
            raise OnnxError(f"{where(node, opset)} has unknown attributes: {', '.join(strange)}.")
        found.update({k: v for k, v in (("opset", opset), ("outputs", len(node.output))) if k in known})
    elif node.op_type == "Split":
        found["outputs"] = len(node.output)
    return found


def numbers_of(tensor: Tensor) -> Array:
    """A constant as numbers known before the data."""
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def folded(array: Array) -> Tensor:
    """Numbers computed from constants, as a constant."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def constant_of(node: onnx.NodeProto) -> Tensor:
    """What a Constant node holds."""
    attribute = node.attribute[0]
    if attribute.HasField("t"):
        return tensor_of(attribute.t, None)
    value = onnx_package().helper.get_attribute_value(attribute)
    kinds = {"value_float": torch.float32, "value_floats": torch.float32, "value_int": torch.int64}
    if attribute.name not in {*kinds, "value_ints"}:
        raise OnnxError(f"The constant {name_of(node)!r} is text or sparse ({attribute.name}), which is not read.")
    return torch.tensor(
        list(value) if attribute.name.endswith("s") else value, dtype=kinds.get(attribute.name, torch.int64)
    )
