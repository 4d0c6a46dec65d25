"""Roots made as exact as arithmetic allows, where f is smooth.

A nearest root ξ is a fixed point of T: linearise f at ξ, and project x onto that half-space and the domain. The search
has come close to one; here the iteration ξ ← T(ξ) goes on with Anderson's acceleration, which combines the last few
steps so that their residuals cancel. At the kinks of a piecewise linear f, T jumps, and a row soon gives up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deeptaylor.methods.projection import clip, project

MEMORY = 10
STEPS = 80
PATIENCE = 8  # steps in which the residual must halve
ENOUGH = {torch.float64: 1e-9}  # residual, over the distance


def polish(
    x: Tensor,
    start: Tensor,
    low: Tensor,
    high: Tensor,
    goal: Tensor,
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """T(ξ) of the point with the smallest residual ‖T(ξ) − ξ‖ / ‖x − ξ‖ on the way, and how many evaluations."""
    n, d = x.shape
    best, least = start.clone(), torch.full_like(goal, torch.inf)
    spent = torch.zeros(n, dtype=torch.long, device=x.device)
    rows = torch.arange(n, device=x.device)
    xi, due, mark = start, torch.full_like(spent, PATIENCE), torch.full_like(goal, torch.inf)
    steps, residuals = x.new_zeros(n, 0, d), x.new_zeros(n, 0, d)  # differences of consecutive ξ and T(ξ) − ξ
    last: tuple[Tensor, Tensor] | None = None
    for k in range(STEPS):
        value, g = evaluate(xi, rows)
        spent[rows] += 1
        edge = goal[rows] - value + (g * xi).sum(1)
        y, _ = project(x[rows], g[:, None], edge[:, None], low[rows], high[rows])
        r = y - xi
        size = torch.linalg.vector_norm(r, dim=1) / torch.linalg.vector_norm(y - x[rows], dim=1)
        size = torch.where(torch.isfinite(size), size, torch.inf)
        better = size < least[rows]
        best[rows[better]], least[rows[better]] = y[better], size[better]
        if last is not None:
            steps = torch.cat([steps, (xi - last[0])[:, None]], 1)[:, -MEMORY:]
            residuals = torch.cat([residuals, (r - last[1])[:, None]], 1)[:, -MEMORY:]
        halved = least[rows] <= 0.5 * mark
        mark, due = torch.where(halved, least[rows], mark), torch.where(halved, k + PATIENCE, due)
        going = torch.isfinite(size) & (least[rows] > ENOUGH.get(x.dtype, 1e-5)) & (due > k)
        if not bool(going.any()):
            break
        rows, xi, r, steps, residuals, due, mark = (t[going] for t in (rows, xi, r, steps, residuals, due, mark))
        last = (xi, r)
        xi = clip(_accelerated(xi, r, steps, residuals), low[rows], high[rows])
    return best, spent


def _accelerated(xi: Tensor, r: Tensor, steps: Tensor, residuals: Tensor) -> Tensor:
    """ξ + r − (ΔΞ + ΔR) γ, with γ such that r − ΔR γ is smallest."""
    if not steps.shape[1]:
        return xi + r
    gram = torch.bmm(residuals, residuals.transpose(1, 2))
    size = gram.diagonal(dim1=1, dim2=2)
    ridge = 10 * torch.finfo(r.dtype).eps * size + torch.finfo(r.dtype).tiny
    right = torch.bmm(residuals, r[:, :, None])
    gamma = torch.linalg.solve(gram + torch.diag_embed(ridge), right)
    return xi + r - torch.bmm((steps + residuals).transpose(1, 2), gamma)[:, :, 0]
