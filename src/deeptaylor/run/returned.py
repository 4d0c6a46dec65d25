"""What did not reach the input is handed back to it at the end, place by place (bias="returned"; docs/theory.md, 10).

    R'_x = R_x (1 + T s_x / Σ_x' R_x' s_x')        T what biases took (and what was dropped), so Σ R' = Σ R + T = f
    s_x  = Σ_p B_p(x) P_p / Σ_x' B_p(x') R_x'      P_p the relevance of place p of the last feature map

B_p(x) says how much pixel x lies under place p (linear interpolation; over the places it sums to one). So each place's
relevance is shared by the pixels under it, in proportion to what reached them. Without a feature map, s = 1: in
proportion to the map. Every factor is ≥ 1, so that nothing becomes negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deeptaylor.maps.linear_map import Maybe, sum_windows
from deeptaylor.rules.steps import BlockStep, Step
from deeptaylor.run.result import Result
from deeptaylor.run.values import ForwardValues

__all__ = ["RETURNED", "LastPlaces", "arrived", "hands_back", "returned"]

RETURNED = "returned"
Parts = tuple[Tensor, ...]


def hands_back(steps: Iterable[Step], bias: str) -> bool:
    """True if what biases took goes back. Where relevance has two signs, its sum does not say how much arrived."""
    return bias == RETURNED and not any(isinstance(step, BlockStep) and step.rule.cancels for step in steps)


class LastPlaces:
    """What arrives at the last feature map: where relevance goes from what has no places to what has them."""

    def __init__(self, run: ForwardValues, inputs: Sequence[str], wanted: bool) -> None:
        self._run, self._inputs = run, inputs
        self._axes = len(run.shape(inputs[0])) if wanted and len(inputs) == 1 else 0
        self.sums: Parts = ()

    def note(self, node: str | None, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """What a step at a node (None: the score) hands on."""
        if self._axes < 3 or (node is not None and self._has_places(node)):
            return
        for name, out in zip(names, outs, strict=True):
            if out is not None and name not in self._inputs and self._has_places(name):
                P = out.expand(self._run.shape(name)).sum(1)
                if not self.sums:
                    self.sums = (P,)
                elif self.sums[0].shape == P.shape:
                    self.sums = (self.sums[0] + P,)

    def _has_places(self, name: str) -> bool:
        shape = self._run.shape(name)
        return self._run.layout[name].plain and len(shape) == self._axes and shape[2:].numel() > 1


def returned(result: Result) -> Result:
    """The result, and its rivals', with all of the score at the input; a map of which nothing arrived stays empty."""
    lead, wide = result.score.ndim, torch.promote_types(result.score.dtype, torch.float32)
    own = _sum(result.relevance, lead, wide)
    if result.entries is None:
        taken = (result.score.to(wide) - own).clamp(min=0)
    else:
        taken = result.entries[..., 2:, :].sum((-3, -2), dtype=wide)
        taken = taken.movedim(0, 1) if lead == 2 else taken
    rivals = result.rivals
    if rivals is not None:
        missing = rivals.began.to(wide) - _sum(rivals.relevance, lead, wide)
        rivals = replace(rivals, relevance=_handed_back(rivals.relevance, rivals.places, missing.clamp(min=0), lead))
    relevance = _handed_back(result.relevance, result.places, taken, lead)
    return replace(result, relevance=relevance, rivals=rivals)


def _handed_back(parts: Parts, places: Parts, taken: Tensor, lead: int) -> Parts:
    own = _sum(parts, lead, taken.dtype)
    some = arrived(own, own + taken)
    if not places:
        factor = torch.where(some, 1 + taken / torch.where(some, own, 1), 1)
        return tuple(R * factor.to(R.dtype).reshape(*factor.shape, *[1] * (R.ndim - lead)) for R in parts)
    R = parts[0].sum(lead, dtype=taken.dtype)
    s = _under(R, places[0].to(taken.dtype), lead)
    weight = (R * s).flatten(lead).sum(-1)
    by_place = some & (weight > 0)
    s = torch.where(_as(by_place, R), s, 1)
    share = torch.where(some, taken / torch.where(by_place, weight, torch.where(some, own, 1)), 0)
    return ((parts[0] * (1 + _as(share, R) * s).unsqueeze(lead)).to(parts[0].dtype),)


def _under(R: Tensor, P: Tensor, lead: int) -> Tensor:
    """s: of each place what it holds over what the pixels under it hold, seen from every pixel."""
    under = [_overlap(n, N, R) for n, N in zip(P.shape[lead:], R.shape[lead:], strict=True)]
    own = R
    for d, (by_place, _) in enumerate(under, start=lead):
        own = sum_windows(own, d, *by_place)
    some = arrived(own, P)
    s = torch.where(some, P / torch.where(some, own, 1), 0)
    for d, (_, by_pixel) in enumerate(under, start=lead):
        s = sum_windows(s, d, *by_pixel)
    return s


def _overlap(places: int, pixels: int, like: Tensor) -> tuple[Parts, Parts]:
    """How much pixels lie under places along one side: for each place, then for each pixel, the first and its weights.

    A pixel lies under two places at most, and its weights add up to one.
    """
    step = 2 * pixels  # from place to place; in whole numbers, so that no digits are lost along a long signal
    x, p = torch.arange(pixels, device=like.device), torch.arange(places, device=like.device)

    def position(x: Tensor) -> Tensor:
        at, last = (2 * x + 1) * places - pixels, step * (places - 1)
        return torch.where(at < 0, 0, torch.where(at > last, last, at))  # not clamp: inductor fails on one in an index

    def weight(x: Tensor, p: Tensor) -> Tensor:
        near = (step - (position(x) - step * p).abs()).clamp(min=0)
        return torch.where(x < pixels, near, 0).to(like.dtype) / step

    first = torch.where(p > 0, ((2 * p - 1) * pixels - places) // (2 * places) + 1, 0)
    below = first[:, None] + torch.arange(min(-(-step // places), pixels), device=like.device)
    place = position(x) // step
    above = place[:, None] + torch.arange(2, device=like.device)
    return (first, weight(below, p[:, None])), (place, weight(x[:, None], above))


def arrived(own: Tensor, whole: Tensor) -> Tensor:
    """True where enough reached the input to be enlarged: of less, too few digits are left."""
    least = torch.finfo(own.dtype)
    return own > whole * (least.tiny / least.eps)


def _sum(parts: Parts, lead: int, dtype: torch.dtype) -> Tensor:
    """Σ R of each sample (and target)."""
    sums = [R.flatten(lead).sum(-1, dtype=dtype) if R.ndim > lead else R.to(dtype) for R in parts]
    return torch.stack(sums).sum(0)


def _as(t: Tensor, like: Tensor) -> Tensor:
    return t.reshape(*t.shape, *[1] * (like.ndim - t.ndim))
