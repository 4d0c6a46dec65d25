"""Taylor decomposition (section II-A of the paper): a first-order expansion of f at a root point."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.methods.outside import of_function
from deeptaylor.methods.root_search import Root
from deeptaylor.methods.score import Function, Score, check_finite, quiet


def taylor(
    f: Function, x: Tensor, target: Any = None, root: Root | Tensor | None = None, *, output: int | str | None = None
) -> Explanation:
    """R_p = ∂f/∂x_p at the root · (x_p − root_p), the residual f(x) − Σ R being what the expansion leaves out.

    root   what `nearest_root` found, or any points shaped like x; samples for which it found none get an empty map

    The residual is f(root) and the terms of higher order; it is in the ledger and in the check.

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
    with quiet(f):
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
        _, gradient = score.with_gradient(point)
        check_finite(gradient, "the gradient of f at the root")
        return of_function("taylor", gradient * (score.x - point), score.at_x, target, tuple(notes))
