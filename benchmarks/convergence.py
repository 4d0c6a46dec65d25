"""Do maps of different classes become one on the way down (Sixt et al., 2020)?

A product of many matrices without negative entries comes close to rank one: whatever relevance begins at the output,
the same direction arrives at the input. Measured as the cosine of the relevances of different classes, boundary by
boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer

__all__ = ["convergence"]


def convergence(
    explainer: Explainer, x: Tensor, classes: Tensor | Sequence[int], layers: Sequence[str] | None = None
) -> dict[str, float]:
    """The mean cosine of the relevance of every two classes, by boundary from the output to the input.

    classes   K of them, the same for every input, or (B, K); of those with a negative score there is no relevance
    layers    module paths or node names, in the order of the answer; all boundaries by default
    """
    asked = torch.as_tensor(classes, device=x.device)
    asked = asked.expand(len(x), -1) if asked.ndim == 1 else asked
    if asked.ndim != 2 or asked.shape[1] < 2:
        raise InputError(f"Relevance converges between classes: give two or more; got shape {tuple(asked.shape)}.")
    engine = explainer.captured.engine_for((x,))
    if layers is None:
        layers = [step.node for step in engine.planned.steps[1:]] + list(engine.planned.inputs)
    nodes = {name: engine.boundary(name) for name in layers}
    explainer.relevance_at(layers[-1], x, asked)  # refuses what does not fit
    with torch.no_grad():
        kept = explainer.captured.run_batch(engine, (x,), asked, keep=frozenset(nodes.values())).kept
    return {name: _cosine(kept[node]) for name, node in nodes.items()}


def _cosine(R: Tensor) -> float:
    """The mean over samples and pairs of classes, of relevance (B, K, …)."""
    R = R.flatten(2).double()
    R = R / R.norm(dim=2, keepdim=True)
    pairs = torch.triu_indices(R.shape[1], R.shape[1], offset=1, device=R.device)
    return float((R @ R.transpose(1, 2))[:, pairs[0], pairs[1]].nanmean())
