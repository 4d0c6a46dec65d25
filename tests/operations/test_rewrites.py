"""What rows rewrite, stage by stage, each family alone: the graph computes what it computed, in the words promised."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.operations import (
    activations,
    averages,
    comparisons,
    layers,
    max_pooling,
    moves,
    norms,
    products,
    sums,
)
from deeptaylor.operations.row import Stage
from deeptaylor.operations.table import find_data_nodes
from graphs import captured_of, node_of, operations, value_of
from rows import ABOVE, IMAGE, LINE, drawn

FAMILIES: list[ModuleType] = [
    activations, averages, comparisons, moves, norms, max_pooling, products, sums,
    layers,
]  # fmt: skip


def apply(captured: CapturedGraph, family: ModuleType, stage: Stage) -> None:
    """What the rows of one family say of one stage."""
    data = find_data_nodes(captured)
    for node in list(captured.graph.nodes):
        unpacks = stage == "unpack" and node.target is operator.getitem
        row = family.ROWS.get(node.args[0].target if unpacks else node.target)
        if row is not None and stage in row.rewrites and (unpacks or stage != "unpack"):
            row.rewrites[stage](captured, node, data)
    captured.graph.eliminate_dead_code()


def statistics(layer: nn.Module) -> nn.Module:
    for name, value in [*layer.named_parameters(), *layer.named_buffers()]:
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5 if "var" in name else -1, 2)
    return layer


def softmax(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(1, keepdim=True)


Program = Callable[..., Tensor]
CASES: list[tuple[ModuleType, Stage, str, Program, Tensor, list[str], dict[str, nn.Module]]] = [
    (activations, "unify", "glu", lambda x: F.glu(x, 2), LINE, ["slice", "slice", "sigmoid", "mul"], {}),
    (activations, "name", "clip", lambda x: torch.clip(x, 0.0, 2.0), LINE, ["clamp"], {}),
    (activations, "shorten", "flat", lambda x: F.leaky_relu(x, 0.0), LINE, ["relu"], {}),
    (products, "unify", "of heads", lambda x: F.scaled_dot_product_attention(x, x + 1, x), IMAGE,
     ["add", "attention_weights", "matmul"], {}),
    (products, "unify", "grouped",
     lambda x: F.scaled_dot_product_attention(x, *[x.narrow(1, 0, 2)] * 2, enable_gqa=True), IMAGE,
     ["narrow", "attention_weights", "repeat_heads", "matmul"], {}),
    (averages, "drop", "to its own size", lambda x: F.adaptive_avg_pool2d(x, 6) + 1, IMAGE, ["add"], {}),
    (averages, "shorten", "of means", lambda x: x.mean(-1).mean(-1), IMAGE, ["mean"], {}),
    (averages, "shorten", "of a stack", lambda x: torch.stack([x.sin(), x.cos()], 1).sum(1), LINE,
     ["sin", "cos", "add"], {}),
    (averages, "layer", "of products", lambda s, x: (x * s.a.weight).sum((1, 2)), LINE,
     ["flatten", "linear", "squeeze"], {"a": nn.Linear(6, 4)}),
    (comparisons, "drop", "type", lambda x: x.type_as(x) + 1, LINE, ["add"], {}),
    (comparisons, "name", "max of two", lambda x: torch.max(x, x.flip(1)), LINE, ["flip", "maximum"], {}),
    (comparisons, "broadcast", "max with a row", lambda x: torch.maximum(x[..., :1], torch.ones(3)), LINE,
     ["slice", "expand", "maximum"], {}),
    (comparisons, "unify", "of powers of two", lambda x: torch.logaddexp2(x, x.flip(1)), LINE,
     ["flip", "mul", "mul", "logaddexp", "mul"], {}),
    (comparisons, "shorten", "max with zeros", lambda x: torch.maximum(torch.zeros_like(x), x), LINE, ["relu"], {}),
    (moves, "drop", "an empty part", lambda x: torch.cat([torch.zeros(0), x], 1) + 1, LINE, ["cat", "add"], {}),
    (moves, "drop", "dropout", lambda x: F.dropout(x, 0.5, False).clone() + 1, LINE, ["add"], {}),
    (moves, "unpack", "dropout", lambda x: torch.native_dropout(x, 0.5, False)[0] + 1, LINE,
     ["native_dropout", "add"], {}),  # read by nothing: it may only be dropped
    (comparisons, "unify", "masked_fill by a tensor", lambda x: x.masked_fill(x > 1, x.new_ones(())), LINE,
     ["gt", "new_ones", "where"], {}),
    (comparisons, "broadcast", "where", lambda x: torch.where(torch.ones(3) > 1, x[..., :1], 0.5), LINE,
     ["slice", "expand", "where"], {}),
    (comparisons, "shorten", "where", lambda x: torch.where(x > 0, x, 0.0), LINE, ["relu"], {}),
    (comparisons, "shorten", "where not", lambda x: torch.where(x < 0, 0.0, x), LINE, ["relu"], {}),
    (comparisons, "shorten", "where, by numbers", lambda x: torch.where(x > 0, x, 2.0), LINE, ["gt", "where"], {}),
    (comparisons, "shorten", "masked_fill", lambda x: x.masked_fill(x <= 0, 0.0), LINE, ["relu"], {}),
    (moves, "unpack", "split", lambda x: x.split([1, 3], 1)[1], LINE, ["slice"], {}),
    (moves, "unpack", "chunk", lambda x: x.chunk(2, -1)[1], LINE, ["slice"], {}),
    (moves, "unpack", "unbind", lambda x: x.unbind(1)[2], LINE, ["select"], {}),
    (moves, "name", "view", lambda x: x.view(-1, 24), LINE, ["reshape"], {}),
    (moves, "name", "swapdims", lambda x: x.swapdims(1, 2), LINE, ["transpose"], {}),
    (moves, "name", "moveaxis", lambda x: x.moveaxis(1, 2), LINE, ["movedim"], {}),
    (moves, "shorten", "padded twice", lambda x: torch.constant_pad_nd(torch.constant_pad_nd(x, (1, 0)), (0, 2, 1, 1)),
     LINE, ["constant_pad_nd"], {}),
    (moves, "unify", "pad", lambda x: F.pad(x, (1, 2), value=0.5), LINE, ["constant_pad_nd"], {}),
    (norms, "unpack", "layer", lambda x: torch.native_layer_norm(x, (6,), None, None, 0.1)[0], LINE,
     ["layer_norm"], {}),
    (norms, "unify", "layer", lambda s, x: s.a(x), LINE, ["divide_by_std", "centre"], {"a": nn.LayerNorm(6)}),
    (norms, "unify", "group", lambda s, x: s.a(x), IMAGE, ["divide_by_std", "centre"], {"a": nn.GroupNorm(2, 4)}),
    (norms, "unify", "instance", lambda s, x: s.a(x), IMAGE, ["divide_by_std", "centre"],
     {"a": nn.InstanceNorm2d(4, affine=True)}),
    (norms, "unify", "batch", lambda s, x: s.a(x), IMAGE, ["scale_shift"], {"a": nn.BatchNorm2d(4)}),
    (norms, "unify", "rms", lambda s, x: s.a(x), LINE, ["divide_by_rms", "scale_shift"], {"a": nn.RMSNorm(6, 1e-5)}),
    (max_pooling, "unpack", "max of an axis", lambda x: x.max(1).values, LINE, ["amax"], {}),
    (max_pooling, "unify", "max", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE, ["max_pool"], {}),
    (activations, "pool", "of cubes", lambda x: (F.avg_pool1d(x.pow(3), 2) * 2).pow(1 / 3), ABOVE, ["lp_pool"], {}),
    (activations, "pool", "of squares", lambda x: (F.avg_pool1d(x * x, 2) / 3).sqrt(), ABOVE, ["lp_pool", "mul"], {}),
    (products, "name", "multiply", lambda x: torch.multiply(x, x.flip(1)), LINE, ["flip", "mul"], {}),
    (products, "unify", "addmm", lambda x: torch.addmm(x.flip(1), x, x.exp()), drawn(3, 3),
     ["flip", "exp", "matmul", "add"], {}),
    (products, "broadcast", "by ones", lambda x: x * torch.ones_like(x) / torch.full([len(x), 4, 1], 2.0), LINE,
     ["mul", "div"], {}),
    (products, "broadcast", "along a new axis", lambda x: x.unsqueeze(2) * torch.arange(3.0)[:, None], LINE,
     ["unsqueeze", "expand", "mul"], {}),
    (products, "shorten", "mask", lambda x: x * (x > 0), LINE, ["relu"], {}),
    (products, "shorten", "softmax", lambda x: x.exp() / x.exp().sum(1, keepdim=True), LINE,
     ["exp", "exp", "sum", "div"], {}),  # of two exponentials it is none
    (products, "shorten", "softmax of one", softmax, LINE,
     ["softmax"], {}),
    (products, "layer", "matmul", lambda s, x: x @ s.a.weight, LINE, ["linear"], {"a": nn.Linear(3, 6)}),
    (products, "layer", "matmul before", lambda s, x: s.a.weight @ x, LINE, ["permute", "linear", "permute"],
     {"a": nn.Linear(4, 3)}),
    (products, "layer", "einsum", lambda s, x: torch.einsum("bti,oi->bto", x, s.a.weight), LINE, ["linear"],
     {"a": nn.Linear(6, 3)}),
    (products, "layer", "tensordot", lambda s, x: torch.tensordot(x, s.a.weight, ([1], [1])), LINE,
     ["permute", "linear"], {"a": nn.Linear(4, 3)}),
    (products, "scale", "by a number", lambda x: 0.5 * x / 4, LINE, ["scale_shift", "scale_shift"], {}),
    (sums, "name", "subtract", lambda x: torch.subtract(x, x.flip(1)), LINE, ["flip", "sub"], {}),
    (sums, "broadcast", "along a new first axis", lambda x: x + torch.arange(2.0)[:, None, None, None], LINE,
     ["expand", "add"], {}),
    (sums, "broadcast", "with ones", lambda x: x - x.new_ones(x.shape) * 2, LINE, ["sub"], {}),
    (sums, "shorten", "twice", lambda x: x + x, LINE, ["scale_shift"], {}),
    (sums, "shorten", "with its magnitude", lambda x: x + x.abs(), LINE, ["relu", "scale_shift"], {}),
    (sums, "shorten", "turned", lambda x: torch.rsub(x, x.flip(1)), LINE, ["flip", "sub"], {}),
    (sums, "centre", "by hand", lambda x: x - x.mean(-1, keepdim=True), LINE, ["centre"], {}),
    (sums, "scale", "with a number", lambda x: 2 - (x + 1), LINE, ["scale_shift", "scale_shift"], {}),
    (layers, "unify", "same", lambda s, x: s.a(x), IMAGE, ["conv2d"], {"a": nn.Conv2d(4, 3, 3, padding="same")}),
    (layers, "unify", "same, uneven", lambda s, x: s.a(x), LINE, ["constant_pad_nd", "conv1d"],
     {"a": nn.Conv1d(4, 3, 2, padding="same")}),
    (layers, "unify", "any", lambda s, x: torch.convolution(x, s.a.weight, None, [2], [1], [1], False, [0], 1), LINE,
     ["conv1d"], {"a": nn.Conv1d(4, 3, 3)}),
    (layers, "shorten", "padded", lambda s, x: s.a(torch.constant_pad_nd(x, (1, 1, 2, 2))), IMAGE, ["conv2d"],
     {"a": nn.Conv2d(4, 3, 3)}),
    (layers, "shorten", "of single elements", lambda s, x: s.a(x), IMAGE, ["scale_shift"],
     {"a": nn.Conv2d(4, 4, 1, groups=4)}),
]  # fmt: skip


def named(family: ModuleType) -> str:
    return family.__name__.rpartition(".")[2]


@pytest.mark.parametrize(
    ("family", "stage", "program", "x", "words", "parts"),
    [(family, stage, *rest) for family, stage, _, *rest in CASES],
    ids=[f"{named(family)}, {stage}: {name}" for family, stage, name, *_ in CASES],
)
def test_a_family_rewrites(
    family: ModuleType, stage: Stage, program: Program, x: Tensor, words: list[str], parts: dict[str, nn.Module]
) -> None:
    captured = captured_of(program, x, **{name: statistics(part) for name, part in parts.items()})
    expected = value_of(captured, x)
    apply(captured, family, stage)
    assert operations(captured) == words
    torch.testing.assert_close(value_of(captured, x), expected)


def test_every_stage_of_every_family_is_tried() -> None:
    said = {(named(f), stage) for f in FAMILIES for row in f.ROWS.values() for stage in row.rewrites}
    assert said - {(named(family), stage) for family, stage, *_ in CASES} == set()


def test_a_squeeze_never_takes_the_axis_of_the_samples() -> None:
    captured = captured_of(lambda x: x.squeeze(), drawn(2, 1, 3))
    apply(captured, moves, "name")
    assert node_of(captured, "squeeze").args[1] == [1]
    assert value_of(captured, drawn(1, 1, 3)).shape == (1, 3)


def test_a_pooling_that_tells_places_too_is_unpacked_and_then_spelled() -> None:
    captured = captured_of(lambda x: F.adaptive_max_pool1d(x, 4), LINE)
    apply(captured, max_pooling, "unpack")
    apply(captured, max_pooling, "unify")
    assert operations(captured) == ["adaptive_max_pool"]
    assert torch.equal(value_of(captured, LINE), F.adaptive_max_pool1d(LINE, 4))


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (lambda x: F.leaky_relu(x, 0.25), "leaky_relu"),
        (lambda x: x.masked_fill(x <= 0, 0.5), "masked_fill"),
        (lambda x: torch.where(x > 0.5, x, 0.0), "where"),
        (lambda x: torch.maximum(x, torch.full_like(x, 0.5)), "maximum"),
        (lambda x: x - x.mean(0, keepdim=True), "sub"),  # samples stay apart
        (lambda x: x - x.mean(-1, keepdim=True) * 2, "sub"),
        (lambda x: F.adaptive_avg_pool1d(x, 3), "adaptive_avg_pool1d"),
        (lambda x: (F.avg_pool1d(x * x, 2)).pow(1 / 3), "pow"),  # another root
    ],
)
def test_what_only_looks_alike_stays(program: Program, word: str) -> None:
    captured = captured_of(program, LINE)
    stages: tuple[Stage, ...] = ("drop", "pool", "shorten", "centre")
    for family in FAMILIES:
        for stage in stages:
            apply(captured, family, stage)
    assert word in operations(captured)


def constants(captured: CapturedGraph) -> dict[str, Any]:
    return {n.name: captured.constants[str(n.target)] for n in captured.graph.nodes if n.op == "get_attr"}


def test_what_is_rewritten_keeps_no_constants_that_nothing_reads() -> None:
    captured = captured_of(lambda s, x: s.a(x), IMAGE, a=statistics(nn.BatchNorm2d(4)))
    assert len(constants(captured)) == 4
    apply(captured, norms, "unify")
    assert [tuple(c.shape) for c in constants(captured).values()] == [(1, 4, 1, 1)] * 2
