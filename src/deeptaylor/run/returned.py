"""What did not reach the input is handed back to it at the end, in proportion to what did (bias="returned").

    R'_p = R_p · (Σ R + biases + dropped) / Σ R        never negative where R is not, and Σ R' = f

The map has the shape of the paper's, in which biases take their share, and holds the whole score (docs/theory.md,
section 10).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deeptaylor.rules.steps import BlockStep
from deeptaylor.run.engine import Engine
from deeptaylor.run.result import Result

__all__ = ["RETURNED", "arrived", "hands_back", "returned"]

RETURNED = "returned"


def hands_back(engine: Engine, bias: str) -> bool:
    """True if what biases took goes back. Where relevance has two signs, its sum does not say how much arrived."""
    subtracts = any(isinstance(step, BlockStep) and step.rule.cancels for step in engine.planned.steps)
    return bias == RETURNED and not subtracts


def returned(result: Result) -> Result:
    """The result with all of the score at the input; a map of which nothing arrived stays empty."""
    lead = result.score.ndim
    factor = _factor(result)
    back = [R * factor.to(R.dtype).reshape(*factor.shape, *[1] * (R.ndim - lead)) for R in result.relevance]
    return replace(result, relevance=tuple(back))


def _factor(result: Result) -> Tensor:
    """(Σ R + biases + dropped) / Σ R from the books; where none were kept, max(0, f) / Σ R, which is the same."""
    lead, score = result.score.ndim, result.score
    wide = torch.promote_types(score.dtype, torch.float32)
    sums = [R.flatten(lead).sum(-1, dtype=wide) if R.ndim > lead else R.to(wide) for R in result.relevance]
    own = torch.stack(sums).sum(0)
    if result.entries is None:
        whole = score.clamp(min=0).to(wide)
    else:
        taken = result.entries[..., 2:, :].sum((-3, -2), dtype=wide)
        whole = own + (taken.movedim(0, 1) if lead == 2 else taken)
    some = arrived(own, whole)
    return torch.where(some, whole / torch.where(some, own, 1), 1)


def arrived(own: Tensor, whole: Tensor) -> Tensor:
    """True where enough reached the input to be enlarged: of less, too few digits are left."""
    least = torch.finfo(own.dtype)
    return own > whole * (least.tiny / least.eps)
