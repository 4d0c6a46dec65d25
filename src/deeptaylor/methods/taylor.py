"""Taylor decomposition (section II-A of the paper): a first-order expansion of f at a root point."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.methods.root_search import Root
from deeptaylor.methods.score import Function, Score, check_finite, disable_gradients, make_explanation


def sensitivity(
    f: Function, x: Tensor, target: Any = None, *, rescale: bool = False, output: int | str | None = None
) -> Explanation:
    """Compute R_p = (∂f/∂x_p)², a local effect: only the ratios between relevances mean something.

    rescale   scale each map so that it sums to max(0, f(x)), as in the paper's figures

    >>> import torch, deeptaylor as dt
    >>> dt.sensitivity(lambda x: 3 * x[:, 0] - x[:, 1], torch.tensor([[2.0, 1.0]])).relevance
    tensor([[9., 1.]])
    """
    with disable_gradients(f):
        score = Score(f, x, target, output)
        R = score.gradient_at_x.square()
        notes = ["Sensitivity measures a local effect and does not decompose the score."]
        if rescale:
            total = R.flatten(1).sum(1)
            factor = torch.where(total > 0, score.at_x.clamp(min=0) / total, 0)
            R = R * factor.reshape(-1, *[1] * (R.ndim - 1))
            notes.append("The maps are scaled to the score; that they sum to it says nothing.")
            if bool((total == 0).any()):
                notes.append(f"{int((total == 0).sum())} gradients are zero: their maps are empty.")
        return make_explanation("sensitivity", R, score.at_x, target, tuple(notes))


class SmoothReLU(nn.Module):
    """t⁻¹ log(0.5 + 0.5 exp(t x)): goes to max(0, x) as t grows, 0 at 0, never below −log(2) / t.

    >>> import torch
    >>> float(SmoothReLU(100.0)(torch.tensor(0.0)))
    0.0
    """

    def __init__(self, t: float = 10.0) -> None:
        super().__init__()
        if not (math.isfinite(t) and t > 0):
            raise InputError(f"SmoothReLU needs a positive, finite t; got {t!r}.")
        self.t = t

    def forward(self, x: Tensor) -> Tensor:
        """Compute log(0.5 + 0.5 exp(t x)) = softplus(t x) − log 2, without overflow."""
        return F.softplus(x, beta=self.t, threshold=40) - math.log(2) / self.t

    def extra_repr(self) -> str:
        return f"t={self.t:g}"


def smoothed(network: nn.Module, t: float = 10.0) -> nn.Module:
    """Copy a network with SmoothReLU(t) in place of every nn.ReLU; the network itself stays as it is."""
    if isinstance(network, nn.ReLU):
        return SmoothReLU(t)
    changed = copy.deepcopy(network)
    relus = [(m, name) for m in changed.modules() for name, child in m.named_children() if isinstance(child, nn.ReLU)]
    if not relus:
        raise InputError("The network has no nn.ReLU modules to make smooth (calls of F.relu cannot be exchanged).")
    for module, name in relus:
        setattr(module, name, SmoothReLU(t))
    return changed


def taylor(
    f: Function, x: Tensor, target: Any = None, root: Root | Tensor | None = None, *, output: int | str | None = None
) -> Explanation:
    """Compute R_p = ∂f/∂x_p at the root · (x_p − root_p); the residual f(x) − Σ R is what the expansion omits.

    root   the result of `nearest_root`, or any points shaped like x; samples without a root get an empty map

    If f has a kink at a root of `nearest_root`, the gradient is the subgradient that satisfies the conditions of a
    nearest root, x − root = λ g. Then the map is positive, as for a smooth f.

    The residual, f(root) plus the terms of higher order, is in the ledger and in the check.

    >>> import torch, deeptaylor as dt
    >>> f, x = lambda x: (x[:, 0] * x[:, 1]), torch.tensor([[2.0, 1.0]])
    >>> e = dt.taylor(f, x, root=torch.tensor([[1.0, 0.0]]))
    >>> e.relevance, e.ledger.residual
    (tensor([[0., 1.]]), tensor([1.]))
    """
    if not isinstance(root, (Root, Tensor)):
        raise InputError(
            f"taylor expands at a root point: give root=dt.nearest_root(f, x, …) or points shaped like x; got "
            f"{type(root).__name__}."
        )
    with disable_gradients(f):
        score = Score(f, x, target, output)
        point = (root.point if isinstance(root, Root) else root).to(score.x)
        if point.shape != score.x.shape:
            raise InputError(f"The root has shape {tuple(point.shape)}, x has {tuple(score.x.shape)}.")
        notes: list[str] = []
        if isinstance(root, Root):
            missing = ~root.converged.to(point.device)
            point = torch.where(missing.reshape(-1, *[1] * (point.ndim - 1)), score.x, point)
            why = [f"sample {k}: {root.reason[k]}" for k in torch.nonzero(missing).flatten().tolist()]
            notes += (
                [f"{len(why)} of {len(missing)} samples have no root, so their maps are empty; {why[0]}"] if why else []
            )
        check_finite(point, "the root")
        gradient = root.gradient.to(score.x) if isinstance(root, Root) else score.with_gradient(point)[1]
        check_finite(gradient, "the gradient of f at the root")
        return make_explanation("taylor", gradient * (score.x - point), score.at_x, target, tuple(notes))
