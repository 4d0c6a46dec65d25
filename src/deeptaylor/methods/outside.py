"""The explanation of a method that sees f from outside."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deeptaylor.errors import BoundaryError
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import seen_from_outside

__all__ = ["of_function"]


def of_function(method: str, relevance: Tensor, score: Tensor, target: Any, notes: tuple[str, ...]) -> Explanation:
    """The explanation of such a method: all that it did not hand out is the residual."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"{method} explains f as a whole: there is no relevance at {name!r} inside of it.")

    return Explanation(relevance, score, seen_from_outside(relevance, score), target, notes, inner, method=method)
