"""Recurrent, attending, quantised and one-hot networks of ONNX, explained to the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import MismatchError
from deeptaylor.models.onnx.importer import OnnxNetwork, read_onnx
from onnx_files import Array, TensorProto, helper, ints, model_of, rand, written

GATES = {"LSTM": (4, (0, 3, 1, 2)), "GRU": (3, (1, 0, 2)), "RNN": (1, (0,))}  # torch's order → ONNX's


def in_onnx_order(op: str, weight: Tensor) -> Array:
    count, order = GATES[op]
    parts = weight.detach().chunk(count)
    found: Array = torch.cat([parts[k] for k in order]).numpy()
    return found


def recurrent(op: str, folder: Path) -> tuple[nn.Module, OnnxNetwork]:
    """A layer that reads both ways, then the mean over the steps; in torch and as an ONNX file."""
    torch.manual_seed(0)
    layer = getattr(nn, op)(3, 4, batch_first=True, bidirectional=True)
    sides = ("", "_reverse")
    named = {
        "w": [in_onnx_order(op, getattr(layer, f"weight_ih_l0{s}")) for s in sides],
        "r": [in_onnx_order(op, getattr(layer, f"weight_hh_l0{s}")) for s in sides],
        "b": [
            np.concatenate([in_onnx_order(op, getattr(layer, f"bias_{k}_l0{s}")) for k in ("ih", "hh")]) for s in sides
        ],
    }
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    n = helper.make_node
    nodes = [
        n("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        n(op, ["t", "w", "r", "b"], ["h"], hidden_size=4, direction="bidirectional", **more),
        n("Transpose", ["h"], ["g"], perm=[2, 0, 1, 3]),  # (batch, steps, ways, features)
        n("ReduceMean", ["g"], ["m"], axes=[1], keepdims=0),
        n("Flatten", ["m"], ["y"]),
    ]
    weights = {name: np.stack(both) for name, both in named.items()}
    return layer, read_onnx(written(model_of(nodes, ("n", 5, 3), weights), folder))


@pytest.mark.parametrize("op", GATES)
def test_recurrent_layers_are_torchs_and_explained_alike(op: str, tmp_path: Path) -> None:
    layer, network = recurrent(op, tmp_path)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)[0].mean(1)
            return y

    x, x0 = torch.from_numpy(rand(3, 5, 3)), torch.zeros(1, 5, 3)
    theirs = Mean()
    assert network.batch is None
    assert torch.allclose(network(x), theirs(x), atol=1e-6)
    found, wanted = (dt.Explainer(net).between(x, x0, 1) for net in (network, theirs))
    assert float(found.ledger.gap.max()) < 1e-5
    assert torch.allclose(found.relevance, wanted.relevance, atol=1e-6)


def attending(folder: Path) -> OnnxNetwork:
    """Tokens of six numbers: queries, keys and values of two heads, with rotated places, attended causally."""
    n = helper.make_node
    nodes = [
        *[n("MatMul", ["x", w], [w.lower()]) for w in "QKV"],
        *[n("RotaryEmbedding", [v, "cos", "sin", "places"], [f"{v}r"], num_heads=2) for v in "qk"],
        n("Attention", ["qr", "kr", "v"], ["a"], q_num_heads=2, kv_num_heads=2, is_causal=1),
        n("ReduceMean", ["a", "axes"], ["y"], keepdims=0),
    ]
    angles = np.arange(8, dtype=np.float32)[:, None] * np.float32([[1.0, 0.3]])
    weights = {
        **{w: rand(6, 8) * (k + 1) / 2 for k, w in enumerate("QKV")},
        "cos": np.cos(angles), "sin": np.sin(angles), "places": ints(0, 1, 2, 3)[None], "axes": ints(1),
    }  # fmt: skip
    return read_onnx(written(model_of(nodes, (1, 4, 6), weights, opset=23), folder))


def test_attention_is_explained(tmp_path: Path) -> None:
    network, x = attending(tmp_path), torch.from_numpy(rand(1, 4, 6))
    found = dt.Explainer(network).between(x, torch.zeros_like(x), 2)
    assert float(found.relevance.abs().min()) > 0
    assert float(found.ledger.gap.max()) < 1e-5


def test_a_quantised_network_is_explained_as_it_computes(tmp_path: Path) -> None:
    """Rounding is a part of the difference: the relevance adds up to that of the quantised network itself."""
    n = helper.make_node
    nodes = [
        n("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        n("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        n("DequantizeLinear", ["w", "ws", "wz"], ["real"], axis=1),
        n("MatMul", ["d", "real"], ["h"]),
        n("Relu", ["h"], ["y"]),
    ]
    weights = {
        "xs": np.float32(0.05), "xz": np.uint8(128), "ws": rand(3, low=0.01, high=0.02), "wz": np.zeros(3, np.int8),
        "w": np.random.default_rng(0).integers(-128, 127, (4, 3)).astype(np.int8),
    }  # fmt: skip
    network, x = read_onnx(written(model_of(nodes, ("n", 4), weights), tmp_path)), torch.from_numpy(rand(3, 4))
    assert [p.dtype for p in network.parameters() if p.shape == (4, 3)] == [torch.float32]  # dequantised once
    found = dt.Explainer(network).between(x, torch.zeros(1, 4), 0)
    assert torch.allclose(found.relevance.sum(1), (network(x) - network(torch.zeros(1, 4)))[:, 0].detach(), atol=1e-6)


def test_one_hot_tokens_are_explained(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [
        n("OneHot", ["x", "depth", "values"], ["h"]),
        n("Flatten", ["h"], ["f"]),
        n("MatMul", ["f", "w"], ["y"]),
    ]
    weights = {"depth": np.array(6), "values": np.float32([0, 1]), "w": rand(24, 2)}
    model = model_of(nodes, ("n", 4), weights, kind=TensorProto.INT64)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    network = read_onnx(written(model, tmp_path))
    x, x0 = torch.tensor([[0, 3, 5, 1]]), torch.zeros(1, 4, dtype=torch.int64)
    found = dt.Explainer(network).between(x, x0, 1)
    table = torch.from_numpy(weights["w"]).reshape(4, 6, 2)[..., 1]
    wanted = table[torch.arange(4), x[0]] - table[:, 0]
    assert torch.allclose(found.relevance[0], wanted, atol=1e-6)


def test_tokens_beyond_the_depth_are_read_and_not_explained(tmp_path: Path) -> None:
    nodes = [helper.make_node("OneHot", ["x", "depth", "values"], ["h"]), helper.make_node("Flatten", ["h"], ["y"])]
    weights = {"depth": np.array(3), "values": np.float32([0, 1])}
    model = model_of(nodes, ("n", 2), weights, kind=TensorProto.INT64)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    network, x = read_onnx(written(model, tmp_path)), torch.tensor([[-1, 7]])
    assert network(x).tolist() == [[0, 0, 1, 0, 0, 0]]
    with pytest.raises(MismatchError, match="such as negative indices"):
        dt.Explainer(network).between(x, torch.zeros_like(x), 2)
