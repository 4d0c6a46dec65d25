"""The tables of operations: how relevance flows, which map a node has, and the range of what it gives."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.graph.capture import Captured
from deeptaylor.maps.linear_map import Linear, Reduce, Sum
from deeptaylor.maps.structural import Permute
from deeptaylor.operations import build, flow
from deeptaylor.operations.ranges import ANY, Range, Ranges
from deeptaylor.passes.rewrite import rewrite
from graphs import captured_of, node_of


def program(s: nn.Module, x: Tensor) -> Tensor:
    h = torch.sigmoid(s.layer(x)) + 1
    return (h.transpose(1, 2) + torch.relu(x.mT)).mean(-1)


@functools.cache
def captured() -> Captured:
    return captured_of(program, torch.rand(2, 3, 4), layer=nn.Linear(4, 4))


def node(name: str) -> Any:
    return node_of(captured(), name)


def test_flow_says_in_one_word_how_relevance_goes_through_a_node() -> None:
    kinds = {name: flow.kind_of(node(name)) for name in ("linear", "sigmoid", "transpose", "relu", "mean")}
    assert kinds == {
        "linear": "mixing",
        "sigmoid": "activation",
        "transpose": "structural",
        "relu": "rectifier",
        "mean": "mixing",
    }


def test_flow_looks_at_arguments_where_the_operation_does_not_decide() -> None:
    kinds = [
        flow.kind_of(node_of(captured_of(lambda x, low=low: x.clamp(min=low), torch.rand(2, 3)), "clamp"))
        for low in (0.0, -1.0)
    ]
    assert kinds == ["rectifier", "activation"]


def test_build_gives_every_affine_kind_its_map() -> None:
    assert isinstance(build.linear(node("linear"), captured(), ["x"]), Linear)
    assert isinstance(build.reduce(node("mean"), captured(), ["x"]), Reduce)
    turned = build.permute(node("transpose"), captured(), ["x"])
    assert isinstance(turned, Permute)
    assert turned.dims == [0, 2, 1]
    two = captured_of(lambda x: x.sin() - x.cos(), torch.rand(2, 3))
    difference = build.add_or_sub(node_of(two, "sub"), two, ["a", "b"])
    assert isinstance(difference, Sum)
    assert difference.has_negative
    affine = {k for k, row in flow.TABLE.items() if row.kind in flow.AFFINE}
    assert not [k for k in affine if flow.TABLE[k].build is None]


def test_ranges_follow_the_operations_and_are_never_too_narrow() -> None:
    ranges = Ranges(captured())
    assert ranges.of(node("sigmoid")) == Range(0, 1)
    assert ranges.of(node("relu")).non_negative
    assert ranges.of(node("linear")) == ANY
    assert ranges.of(2.5) == Range(2.5, 2.5)
    shifted = captured_of(lambda x: x.sigmoid() * 2 - 3, torch.rand(2, 3))
    assert Ranges(shifted).of(node_of(shifted, "sub"))[:2] == (-3, -1)
    rest = captured_of(lambda x: 1 - x.sigmoid(), torch.rand(2, 3))
    rewrite(rest)
    found = Ranges(rest).of(node_of(rest, "scale_shift"))
    assert found.unit
    assert not found.non_negative  # rounding may take it below
