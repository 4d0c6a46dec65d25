"""Check all that a row of operations/ says of an operation: its range, its map and its secant.

    check_operation(aten.logaddexp.default, LINE, OTHER)

in a test of the operation's family; the tests of all rows then ask for no other example of it.
"""

from __future__ import annotations

import ast
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from deeptaylor.operations.ranges import Range
from deeptaylor.operations.table import GraphRanges, flow_of, is_never_negative, secant_of
from deeptaylor.secants.pair import Pair, find_pairs, replace_pairs
from graphs import Fixed, Values, by_hand
from layout import ROOT

EXACT = 1e-12  # of the sizes that are added up


def check_operation(target: Any, *args: Any, positive: bool = False) -> None:
    """Check a row for arguments of which tensors are data and `Fixed` tensors constants.

    positive   the operation is defined for data above zero only
    """
    variants = [lambda x: x.abs() + 0.01, lambda x: 1.5 + x.sigmoid()]
    variants += [] if positive else [lambda x: x, lambda x: -x.abs(), torch.sigmoid]
    for vary in variants:
        varied = [vary(a) if isinstance(a, Tensor) else a for a in args]
        _check_range(target, varied)
        _check_map(target, varied)
        if secant_of(target) is not None:
            _check_secant(target, varied)


def checked_operations() -> set[Any]:
    """Return the operations that tests of operations/ check."""
    calls = [
        node
        for path in (ROOT / "tests" / "operations").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == check_operation.__name__
    ]
    return {attrgetter(ast.unparse(call.args[0]))(torch.ops) for call in calls}


def _check_range(target: Any, args: list[Any]) -> None:
    captured = by_hand(target, *args)
    value = captured.output.meta["val"]
    for cache in ({n: _span(n.meta["val"]) for n in captured.inputs}, {}):
        ranges = GraphRanges(captured)
        ranges.cache.update(cache)
        found = ranges.of(captured.output)
        assert found.low - 1e-12 <= float(value.min()), (target, found)
        assert float(value.max()) <= found.high + 1e-12, (target, found)
        assert not found.non_negative or float(value.min()) >= 0, (target, found)
    assert not is_never_negative(captured.output) or float(value.min()) >= 0, target


def _span(x: Tensor) -> Range:
    return Range(float(x.min()), float(x.max()))


def _check_map(target: Any, args: list[Any]) -> None:
    """The map of an affine operation computes it; its transpose is that of the same matrix, in every reading."""
    captured = by_hand(target, *args)
    node, flow = captured.output, flow_of(captured.output)
    if not flow.is_affine:
        return
    built = flow.map(node, captured, captured.inputs, lambda n: False)
    run = Values({n.name: n.meta["val"] for n in captured.graph.nodes if n.op != "output"})
    xs = [n.meta["val"] for n in captured.inputs]
    y, offset = built.map("signed", xs, run), built.offset(run)
    torch.testing.assert_close(y if offset is None else y + offset, node.meta["val"], rtol=0, atol=1e-12)
    assert set(built.reads) <= set(run.values)
    s = torch.randn(node.meta["val"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for reading in ("signed", "positive", "negative", "magnitude", "squared", "flat"):
        mapped, back = built.map(reading, xs, run), built.transpose(reading, s, run)
        forth = 0.0 if mapped is None else float((mapped * s).sum())
        returned = sum(float((x * b).sum()) for x, b in zip(xs, back, strict=True) if b is not None)
        assert abs(forth - returned) <= 1e-10 * float(s.abs().sum()), (target, reading)


def _check_secant(target: Any, args: list[Any]) -> None:
    """Σ slope · Δ is the change of the result in float64; in float32 slopes keep their digits when points meet."""
    for step in (0.0, 1e-9, 1e-5, 1e-3, 0.1, 0.9):
        maps = []
        for dtype in (torch.float64, torch.float32):
            generator = torch.Generator().manual_seed(1)
            pairs = [_pair(a, step, generator, dtype) for a in args]
            y: Pair = secant_of(target)(target, pairs, {})  # type: ignore[misc]
            now, before = (target(*replace_pairs(pairs, attrgetter(at))) for at in ("value", "x0"))
            v = torch.rand(now.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(dtype)
            leaves = find_pairs(pairs)
            maps.append(torch.autograd.grad((v * y.x).sum(), [p.x for p in leaves]))
            rounding = EXACT if dtype is torch.float64 else 1e-5
            torch.testing.assert_close(y.x.detach(), now, rtol=rounding, atol=rounding)
            torch.testing.assert_close(y.x0, before, rtol=rounding, atol=rounding)
            held = sum(float((m * p.change).sum()) for m, p in zip(maps[-1], leaves, strict=True))
            size = float((v * now).abs().sum() + (v * before).abs().sum()) + 1.0
            assert abs(held - float((v * (now - before)).sum())) <= rounding * size, (target, step, dtype)
        for exact, rounded in zip(*maps, strict=True):
            torch.testing.assert_close(rounded.double(), exact, rtol=1e-4, atol=1e-4)


def _pair(arg: Any, step: float, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Return a point and one at a distance, at every third place the same; both are numbers of float32."""
    if isinstance(arg, Fixed):
        return arg.value.float().to(dtype)
    if not isinstance(arg, Tensor):
        return arg
    factor = 1 + step * torch.rand(arg.shape, dtype=torch.float64, generator=generator)
    factor.flatten()[::3] = 1
    x, x0 = arg.float(), (arg * factor).float()
    return Pair(x.to(dtype).requires_grad_(), x0.to(dtype))
