"""The nearest point of a box that satisfies a few linear inequalities, for many boxes at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

QUICK, CAREFUL = 8, 24  # steps
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.01)  # of a step, tried when care is needed


def project(
    a: Tensor, G: Tensor, e: Tensor, low: Tensor, high: Tensor, guess: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y = argmin ‖y − a‖² with G y ≤ e and low ≤ y ≤ high, and the multipliers λ ≥ 0 of the inequalities.

    a, low, high (N, d); G (N, m, d), a row of zeros being no inequality; e (N, m). The solution has the form
    y(λ) = clip(a − Gᵀλ), where λ maximises the concave dual function. λ is sought by Newton's method with the set of
    active inequalities and of free coordinates settled anew in every step: with full steps first, then, where these
    went in circles, with the best of a few parts of each step. Where nothing satisfies all inequalities, y is the
    point of the box that came nearest to the conditions.
    """
    boxes = _Boxes(a, G, e, low, high, G.square().sum(2))
    multipliers, gap = _newton(boxes, torch.zeros_like(e) if guess is None else guess, QUICK, (1.0,))
    rest = torch.nonzero(~torch.isfinite(gap) | (gap > 0)).flatten()
    if len(rest):
        careful, smaller = _newton(boxes.keep(rest), torch.zeros_like(e[rest]), CAREFUL, _SHARES)
        multipliers[rest] = torch.where((smaller < gap[rest])[:, None], careful, multipliers[rest])
    return boxes.point(multipliers), multipliers


@dataclass(frozen=True)
class _Boxes:
    """The problems: every field has one entry a box."""

    a: Tensor
    G: Tensor
    e: Tensor
    low: Tensor
    high: Tensor
    scale: Tensor  # ‖G_i‖² of every inequality

    def keep(self, these: Tensor) -> _Boxes:
        return _Boxes(*(getattr(self, field.name)[these] for field in fields(self)))

    def unclipped(self, multipliers: Tensor) -> Tensor:
        return self.a - torch.bmm(multipliers[:, None], self.G)[:, 0]

    def point(self, multipliers: Tensor) -> Tensor:
        """y(λ)."""
        return clip(self.unclipped(multipliers), self.low, self.high)

    def violation(self, y: Tensor) -> Tensor:
        return torch.bmm(self.G, y[:, :, None])[:, :, 0] - self.e

    def dual(self, multipliers: Tensor) -> Tensor:
        """What the multipliers maximise."""
        y = self.point(multipliers)
        return 0.5 * (y - self.a).square().sum(1) + (multipliers * self.violation(y)).sum(1)


def _newton(boxes: _Boxes, start: Tensor, steps: int, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The best multipliers met on the way, and by how much they miss the conditions: a length, 0 for rounding."""
    best, least = start.clone(), torch.full_like(start[:, 0], torch.inf)
    rows = torch.arange(len(start), device=start.device)
    multipliers = start
    for _ in range(steps):
        u = boxes.unclipped(multipliers)
        y = clip(u, boxes.low, boxes.high)
        r = boxes.violation(y)
        gap = _gap(boxes, y, multipliers, r)
        better = gap < least[rows]
        best[rows[better]], least[rows[better]] = multipliers[better], gap[better]
        going = torch.nonzero(gap > 0).flatten()
        if not len(going):
            break
        if 2 * len(going) < len(gap):
            boxes, rows = boxes.keep(going), rows[going]
            u, r, multipliers = u[going], r[going], multipliers[going]
        new = _step(boxes, u, r, multipliers)
        if len(shares) > 1:
            tried = torch.stack([multipliers + share * (new - multipliers) for share in shares])
            which = torch.stack([boxes.dual(t) for t in tried]).argmax(0)
            new = tried[which, torch.arange(len(which), device=which.device)]
        multipliers = new
    return best, least


def _gap(boxes: _Boxes, y: Tensor, multipliers: Tensor, r: Tensor) -> Tensor:
    """How far λ ≥ 0, r ≤ 0, λ r = 0 are from holding, in units of y; 0 if that is rounding."""
    eps = torch.finfo(y.dtype).eps
    gap = torch.minimum(multipliers * boxes.scale, -r).abs().div(boxes.scale.sqrt().clamp(min=eps)).amax(1)
    small = eps**0.5 * torch.linalg.vector_norm(y - boxes.a, dim=1) + 10 * eps * boxes.a.abs().amax(1)
    return torch.where(gap <= small, 0, gap)


def _step(boxes: _Boxes, u: Tensor, r: Tensor, multipliers: Tensor) -> Tensor:
    """Newton's step: r would vanish on the active inequalities if the free coordinates stayed the same."""
    eps = torch.finfo(u.dtype).eps
    free = (u >= boxes.low) & (u <= boxes.high)
    H = torch.bmm(boxes.G * free[:, None], boxes.G.transpose(1, 2))
    h = H.diagonal(dim1=1, dim2=2)
    movable = h > eps * boxes.scale
    active = (multipliers * boxes.scale + r > 0) & movable
    ridge = torch.where(active, 1e2 * eps * h.amax(1, keepdim=True), 1)
    system = torch.where(active[:, :, None] & active[:, None, :], H, 0) + torch.diag_embed(ridge)
    right = torch.where(active, r + torch.bmm(H, multipliers[:, :, None])[:, :, 0], 0)
    solved = torch.linalg.solve(system, right).clamp(min=0)
    # An inequality whose coordinates are all at their bounds keeps its multiplier: no step would change it.
    return torch.where(movable | (r <= 0), solved, multipliers)


def clip(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point of the box."""
    return torch.minimum(torch.maximum(y, low), high)
