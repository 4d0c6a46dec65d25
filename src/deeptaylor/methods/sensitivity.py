"""Sensitivity analysis (section II-B of the paper): the squared gradient of f at x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.explanation import Explanation
from deeptaylor.methods.outside import of_function
from deeptaylor.methods.score import Function, Score, quiet


def sensitivity(
    f: Function, x: Tensor, target: Any = None, *, rescale: bool = False, output: int | str | None = None
) -> Explanation:
    """R_p = (∂f/∂x_p)², a local effect: only the ratios between relevances mean something.

    rescale   scale each map so that it sums to max(0, f(x)), as in the paper's figures

    >>> import torch, deeptaylor as dt
    >>> dt.sensitivity(lambda x: 3 * x[:, 0] - x[:, 1], torch.tensor([[2.0, 1.0]])).relevance
    tensor([[9., 1.]])
    """
    with quiet(f):
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
        return of_function("sensitivity", R, score.at_x, target, tuple(notes))
