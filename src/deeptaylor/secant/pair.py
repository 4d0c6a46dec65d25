"""A value at x and at the reference, and how a slope of our own is put between two of them.

Torch's autograd makes the reverse pass. A linear operation it takes back as it is: its transpose is exact. Any other is
computed without a record and put back on it with its secants (`attached`), or is recorded at the midpoint (`midway`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Pair", "RefusedError", "attached", "changes", "midway", "plain", "with_slope"]


class RefusedError(Exception):
    """Why an operation has no split here; the node it is at is added where the graph is walked."""


class Pair(NamedTuple):
    """A value that depends on the input: at x, where relevance is taken back through it, and at the reference.

    Whole numbers and masks have no slope. `carrier` stands for those that relevance can be taken back through: of
    tokens it is 1 where x is read and 0 where the reference is, of masks the mask as real numbers.
    """

    x: Tensor
    x0: Tensor
    carrier: Tensor | None = None
    over: Any = None  # the pair that this is one over, where it is: a · (1 / b) is split as a / b is

    @property
    def now(self) -> Tensor:
        """The value at x, without its record."""
        return self.x.detach()

    @property
    def middle(self) -> Tensor:
        """½ (x + x0)."""
        return torch.lerp(self.x0, self.now, 0.5)

    @property
    def change(self) -> Tensor:
        """Δ = x − x0."""
        return self.now - self.x0


# Tokens of both points, masks of both: to a tree of arguments a pair is one leaf.
def _is_pair(value: Any) -> bool:
    return isinstance(value, Pair)


def plain(args: Any, read: Callable[[Pair], Any]) -> Any:
    """Arguments with plain tensors in place of pairs."""
    return pytree.tree_map(lambda v: read(v) if _is_pair(v) else v, args, is_leaf=_is_pair)


def changes(args: Any) -> list[Pair]:
    """The pairs among arguments."""
    return [v for v in pytree.tree_leaves(args, is_leaf=_is_pair) if _is_pair(v)]


class _Attached(torch.autograd.Function):
    """y, whose multiplier goes on to each operand times a slope."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, count: int, *operands_and_slopes: Tensor | None) -> Tensor:
        operands, slopes = operands_and_slopes[:count], operands_and_slopes[count:]
        ctx.shapes = [t.shape for t in operands if t is not None]
        ctx.save_for_backward(*slopes)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), count = ms, len(ctx.shapes)
        needed = ctx.needs_input_grad[2 : 2 + count]
        back = [
            (m if slope is None else m * slope).sum_to_size(shape) if wanted else None
            for slope, shape, wanted in zip(ctx.saved_tensors, ctx.shapes, needed, strict=True)
        ]
        return (None, None, *back, *[None] * count)


def attached(y: Tensor, *ways: tuple[Tensor, Tensor | None]) -> Tensor:
    """y, with ways back: (operand, Δy per unit of its Δ; None for 1), element by element and broadcast."""
    operands, slopes = [w[0] for w in ways], [w[1] for w in ways]
    made: Tensor = _Attached.apply(y, len(ways), *operands, *slopes)  # type: ignore[no-untyped-call]
    return made


def with_slope(y: Tensor, y0: Tensor, x: Pair, slope: Tensor) -> Pair:
    """A function of one value."""
    return Pair(attached(y, (x.x, slope)), y0)


def midway(op: Callable[..., Tensor], args: Any, kwargs: Any) -> Pair:
    """An operation that is a polynomial of degree two at most in all that changes: exact with the tangent midway.

    f(x) − f(x0) = ∇f(½ (x + x0)) · (x − x0) for these; of a product, ½ (a + a0) Δb + ½ (b + b0) Δa.
    """
    y = op(*plain(args, lambda p: p.now), **plain(kwargs, lambda p: p.now))
    y0 = op(*plain(args, lambda p: p.x0), **plain(kwargs, lambda p: p.x0))
    recorded = [plain(a, lambda p: attached(p.middle, (p.x, None))) for a in (args, kwargs)]
    return Pair(attached(y, (op(*recorded[0], **recorded[1]), None)), y0)
