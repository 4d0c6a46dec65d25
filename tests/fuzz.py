"""Two spellings of one network compared in their maps, and random networks respelled."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

import deeptaylor as dt
from deeptaylor import engine
from deeptaylor.capture import Captured, capture

BIASES = ("neuron", "spread")


def copied(captured: Captured) -> Captured:
    """A captured network again, to be rewritten apart."""
    graph, new = fx.Graph(), {}
    for node in captured.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
        new[node].meta = dict(node.meta)
    fields = {k: copy.copy(v) for k, v in vars(captured).items() if k not in ("graph", "inputs", "output")}
    return Captured(graph=graph, inputs=[new[n] for n in captured.inputs], output=new[captured.output], **fields)


@contextmanager
def captured_once() -> Iterator[None]:
    """Within, a network is exported once and planned as often as asked: export takes nearly all of the time."""
    known: dict[int, tuple[nn.Module, Captured]] = {}

    def once(model: nn.Module, *arguments: Any) -> Captured:
        if id(model) not in known:
            known[id(model)] = (model, capture(model, *arguments))
        return copied(known[id(model)][1])

    with mock.patch.object(engine, "capture", once), warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.DeepTaylorWarning)
        yield


def targets(model: nn.Module, x: Tensor) -> list[Any]:
    """The top class, and weights of both signs that give a positive score."""
    with torch.no_grad():
        z = model(x)
    weights = torch.linspace(1.0, -0.7, z.shape[1]).to(z).expand_as(z)
    return [None, weights * (weights * z).sum(1, keepdim=True).sign()]


def maps(model: nn.Module, x: Tensor, domain: dt.Domain, bias: str) -> list[Tensor] | str:
    """The map of each target, or the error's name."""
    try:
        explainer = dt.Explainer(model, x, domain, bias=bias)
        return [explainer.explain(x, target=t).relevance for t in targets(model, x)]
    except dt.DeepTaylorError as error:
        return f"{type(error).__name__}: {error}"


def difference(ours: list[Tensor] | str, theirs: list[Tensor] | str) -> float:
    """The largest Σ|R − R'| / Σ|R| of a sample; infinite where one is refused and the other is not."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return 0.0 if isinstance(ours, str) and isinstance(theirs, str) else float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        gap, size = (t.abs().flatten(1).sum(1) for t in (a - b, a))
        worst = max(worst, float((gap / size.clamp(min=1e-300)).max()))
    return worst
