"""The root points behind the rules (supplement, section I): where each unit's Taylor expansion is made.

The relevance of a detection unit is R_j = max(0, Σ_i x_i w_ij + b_j). A rule names a search direction v^(j), and its
root point is where that search meets the plane Σ_i x̃_i w_ij + b_j = 0. The first-order Taylor term there is the rule.

    rule   domain      search                                    direction v_i                        root exists for
    w²     ℝᵈ          the line through x along the gradient     w_ij                                 any b, w ≠ 0
    z      all three   segment (0, x)                            x_i                                  b ≤ 0
    z⁺     ℝᵈ₊         segment (x_i 1[w<0], x)                   x_i 1[w≥0]                           b ≤ 0
    z^B    box l, h    segment (l_i 1[w>0] + h_i 1[w<0], x)      x_i − l_i 1[w>0] − h_i 1[w<0]        b ≤ 0, l ≤ 0 ≤ h
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.domain import Box, Domain, NonNegative, Real, check_inside
from deeptaylor.errors import InputError, PlanError
from deeptaylor.rules import Rule, WSquare, Z, ZBox, ZPlus

__all__ = ["RootPoint", "root_point", "taylor_term"]

_WITH_ROOTS = (WSquare, Z, ZPlus, ZBox)


@dataclass(frozen=True, eq=False)
class RootPoint:
    """The root points x̃^(j) = x + t_j v^(j) of J units, for one input of d values or a batch of B.

    point       x̃: (J, d) or (B, J, d); x itself where R_j = 0
    direction   v, of the same shape
    end         the far end x − v of the segment, of the same shape; None for the line of w²
    t           (J,) or (B, J); in [−1, 0] on a segment, 0 where R_j = 0
    R           R_j at x: (J,) or (B, J)
    """

    point: Tensor
    direction: Tensor
    end: Tensor | None
    t: Tensor
    R: Tensor

    def __repr__(self) -> str:
        active = int((self.R > 0).sum())
        return f"<RootPoint of {self.R.shape[-1]} unit(s), {active} active: point {tuple(self.point.shape)}>"


@torch.no_grad()
def root_point(rule: Rule, W: Tensor, b: Tensor, x: Tensor, domain: Domain | None = None) -> RootPoint:
    """Find x̃^(j) = x + t v^(j) with t = −R_j / Σ_i v_i^(j) w_ij (supplement, section I).

    W is w_ij as in the paper, (d inputs, J units); the weight of nn.Linear is its transpose. b is (J,), x is (d,) or
    (B, d). A ZBox without bounds of its own takes those of `domain`, a Box.

    >>> root_point(Z(), torch.tensor([[1.0], [1.0]]), torch.tensor([-1.0]), torch.tensor([3.0, 1.0])).point
    tensor([[0.7500, 0.2500]])
    """
    domain = _read_domain(rule, domain)
    _check(rule, W, b, x)
    x_i, w = _check_inside(rule, domain, x).unsqueeze(-2), W.T.contiguous()
    z = x_i * w
    end = _find_end(rule, domain, w, x_i)
    v = w.expand_as(z) if end is None else x_i - end.expand_as(z)
    # Both sums run in the same order, and rounding is monotone: on a segment t stays in [−1, 0].
    R = (z.sum(-1) + b).clamp(min=0)
    t = torch.where(R > 0, -R / (v * w).sum(-1), 0)
    point = x_i + t.unsqueeze(-1) * v
    _check_found(rule, W, b, point, t, R)
    return RootPoint(point, v, None if end is None else end.expand_as(z), t, R)


def taylor_term(W: Tensor, root: RootPoint, x: Tensor) -> Tensor:
    """Return Σ_j ∂R_j/∂x_i |x̃^(j) · (x_i − x̃_i^(j)), the first-order term (supplement, section I): (d,) or (B, d).

    R_j has a kink at its roots. The derivative meant is the limit from the active side: w_ij where R_j(x) > 0, else 0.
    """
    expected = (*x.shape[:-1], W.shape[1], x.shape[-1])
    if root.point.shape != expected:
        raise InputError(
            f"taylor_term: x {tuple(x.shape)} and W {tuple(W.shape)} need root points of shape {expected}, got "
            f"{tuple(root.point.shape)}; give the same W and x as to root_point."
        )
    gradient = W.T * (root.R > 0).unsqueeze(-1)
    return (gradient * (x.unsqueeze(-2) - root.point)).sum(-2)


def _find_end(rule: Rule, domain: Domain, w: Tensor, x: Tensor) -> Tensor | None:
    """Return the end of the rule's search segment, from w (J, d) and x (..., 1, d)."""
    if isinstance(rule, WSquare):
        return None
    if isinstance(rule, ZPlus):
        return x * (w < 0)
    if isinstance(rule, ZBox) and isinstance(domain, Box):
        low, high = domain.bounds(x.flatten(0, -2))
        return low * (w > 0) + high * (w < 0)
    return torch.zeros_like(w)


# --- what can be searched ---------------------------------------------------------------------------------------------


def _read_domain(rule: Rule, given: Any) -> Domain:
    """Return the domain that the rule's search stays in."""
    if not isinstance(rule, _WITH_ROOTS):
        raise PlanError(
            f"root_point: {rule!r} has no root point in the paper; WSquare(), Z(), ZPlus() and ZBox(low, high) have."
        )
    if given is not None and not isinstance(given, Domain):
        raise PlanError(f"root_point: a domain is dt.Real(), dt.NonNegative() or dt.Box(low, high); got {given!r}.")
    if isinstance(rule, ZBox):
        if rule.low is not None and rule.high is not None:
            return Box(rule.low, rule.high)
        if isinstance(given, Box):
            return given
        raise PlanError(
            "root_point: the zB rule needs a box: give dt.rules.ZBox(low, high) or domain=dt.Box(low, high)."
        )
    if isinstance(rule, Z):
        return given or Real()
    own = Real() if isinstance(rule, WSquare) else NonNegative()
    if given is not None and type(given) is not type(own):
        raise PlanError(
            f"root_point: the {rule} rule belongs to the domain {str(own)!r}, not to {str(given)!r}; leave `domain` "
            "out, or take that domain's rule (w2: real, z+: x ≥ 0, zB: a box, z: any)."
        )
    return own


def _check(rule: Rule, W: Any, b: Any, x: Any) -> None:
    """Check shapes, dtypes and values of W, b and x, and the sign of b."""
    for name, t in (("W", W), ("b", b), ("x", x)):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"root_point: {name} must be a torch tensor of floating-point numbers, got {kind}.")
        if (t.dtype, t.device) != (W.dtype, W.device):
            raise InputError(
                f"root_point: W is {W.dtype} on {W.device}, {name} is {t.dtype} on {t.device}; convert one with .to()."
            )
    if W.ndim != 2:
        raise InputError(f"root_point: W must be (d inputs, J units), got shape {tuple(W.shape)}.")
    d, J = W.shape
    if b.shape != (J,):
        raise InputError(
            f"root_point: W has {J} units, so b must have shape ({J},); got {tuple(b.shape)}."
            + _hint_transpose(W, b, x)
        )
    if x.ndim not in (1, 2) or x.shape[-1] != d:
        raise InputError(
            f"root_point: W has {d} inputs, so x must have shape ({d},) or (B, {d}); got {tuple(x.shape)}."
            + _hint_transpose(W, b, x)
        )
    for name, t in (("W", W), ("b", b), ("x", x)):
        bad = ~torch.isfinite(t)
        if bool(bad.any()):
            raise InputError(
                f"root_point: {name} has {int(bad.sum())} value(s) that are NaN or infinite, the first at index "
                f"{_first_index(bad)}."
            )
    if not isinstance(rule, WSquare) and bool((b > 0).any()):
        (j,) = _first_index(b > 0)
        raise InputError(
            f"root_point: the {rule} rule needs b ≤ 0, but {int((b > 0).sum())} of {J} biases are positive "
            f"(first b[{j}] = {b[j].item():.4g}): its segment then need not hold a root. Leave these units out, or "
            "take WSquare(), which searches a whole line."
        )


def _hint_transpose(W: Tensor, b: Tensor, x: Tensor) -> str:
    turned = b.ndim == 1 and x.ndim in (1, 2) and W.shape == (b.shape[0], x.shape[-1])
    return " The weight of nn.Linear is (J, d): give its transpose, weight.T." if turned else ""


def _check_inside(rule: Rule, domain: Domain, given: Tensor) -> Tensor:
    """Check that x is in the domain; return it without the rounding that left it outside."""
    x = given.reshape(-1, given.shape[-1])
    try:
        check_inside(x, domain, "x")
    except InputError as error:
        raise InputError(f"root_point: the {rule} rule searches within {str(domain)!r}. {error}") from error
    if isinstance(domain, NonNegative):
        x = x.clamp(min=0)
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        without = ((low > 0) | (high < 0)).expand(1, x.shape[1])
        if bool(without.any()):
            _, i = _first_index(without)
            low, high = low.expand(1, x.shape[1]), high.expand(1, x.shape[1])
            raise InputError(
                f"root_point: the {rule} rule needs a box that holds 0 (l ≤ 0 ≤ h), but input {i} lies in "
                f"[{low[0, i].item():.4g}, {high[0, i].item():.4g}]: its segment then need not hold a root inside "
                "the box. Widen the box to 0, or shift x and b so that it holds 0."
            )
        x = x.clamp(low, high)
    return x.contiguous().reshape(given.shape)


def _check_found(rule: Rule, W: Tensor, b: Tensor, point: Tensor, t: Tensor, R: Tensor) -> None:
    """Raise if the root of an active unit cannot be expressed in numbers."""
    lost = ~(torch.isfinite(R) & torch.isfinite(point).all(-1)) | ((R > 0) & (t >= 0))
    if not bool(lost.any()):
        return
    at = _first_index(lost)
    j = at[-1]
    if not bool(W[:, j].any()):
        raise InputError(
            f"root_point: unit {j} has no connections, so R_j = b_j = {b[j].item():.4g} everywhere: it has no root. "
            "Leave it out."
        )
    raise InputError(
        f"root_point: the root of unit {j} (R_j = {R[at].item():.4g}) along the {rule} rule's direction cannot be "
        f"expressed in {W.dtype}; scale W, b and x, or use torch.float64."
    )


def _first_index(mask: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.nonzero(mask)[0])
