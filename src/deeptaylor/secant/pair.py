"""A value at x and at the reference, and how a slope of our own is put between two of them.

Torch's autograd makes the reverse pass. A linear operation it takes back as it is: its transpose is exact. Any other is
computed without a record and put back on it with its secants (`attached`), or is recorded at the midpoint (`midway`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Pair",
    "RefusedError",
    "UndecidedError",
    "attached",
    "changes",
    "is_traced",
    "look",
    "midway",
    "plain",
    "same",
    "tracing",
    "with_slope",
]


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
    positive: bool = False  # known to be so, at both points

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


def plain(args: Any, read: Callable[[Pair], Any]) -> Any:
    """Arguments with plain tensors in place of pairs."""
    if type(args) is Pair:
        return read(args)
    if isinstance(args, tuple | list):
        return type(args)([plain(a, read) if isinstance(a, tuple | list | dict) else a for a in args])
    return {k: plain(v, read) for k, v in args.items()} if isinstance(args, dict) else args


class UndecidedError(Exception):
    """A walk that is traced came to where it depends on values."""


_TRACING: ContextVar[bool] = ContextVar("tracing", default=False)


@contextmanager
def tracing() -> Iterator[None]:
    """While a walk is traced no values are looked at: they may be others the next time."""
    before = _TRACING.set(True)
    try:
        yield
    finally:
        _TRACING.reset(before)


def is_traced() -> bool:
    """True while a walk is traced."""
    return _TRACING.get()


def look() -> None:
    """Said before values are looked at."""
    if is_traced():
        raise UndecidedError


def same(a: Tensor, b: Tensor) -> bool:
    """True where whole numbers or masks do not differ between both points."""
    if a is b:
        return True
    look()
    return torch.equal(a, b)


def changes(args: Any) -> list[Pair]:
    """The pairs among arguments."""
    if type(args) is Pair:
        return [args]
    if isinstance(args, dict):
        args = args.values()
    return [p for a in args if isinstance(a, tuple | list | dict) for p in changes(a)]


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
