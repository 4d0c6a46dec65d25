"""One floating type throughout: conversions inside a network are dropped, so that constants follow the input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.graph.capture import Captured
from deeptaylor.operations.table import data_nodes

__all__ = ["one_type"]


def one_type(captured: Captured) -> None:
    """Bring what stands beside the data to the data's type, in place: float32 constants in a network of doubles."""
    data = data_nodes(captured)
    kinds = [n.meta["val"].dtype for n in captured.inputs if n.meta["val"].is_floating_point()]
    kinds += [t.dtype for t in captured.constants.values() if t.is_floating_point()]
    if not kinds:
        return
    dtype = kinds[0]

    def wanted(kind: torch.dtype) -> torch.dtype:
        return dtype if kind.is_floating_point else kind

    for node in captured.graph.nodes:
        val = node.meta.get("val")
        if node.op == "get_attr" and str(node.target) in captured.constants:
            key = str(node.target)
            value = captured.constants[key]
            if value.is_floating_point() and value.ndim:  # a number takes the type of what it meets
                captured.constants[key] = value.to(dtype)
                node.meta["val"] = val.to(dtype)
        elif node in data and node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map_only(torch.dtype, wanted, (node.args, node.kwargs))
            if isinstance(val, Tensor) and val.is_floating_point() and val.dtype is not dtype:
                node.meta["val"] = val.to(dtype)
