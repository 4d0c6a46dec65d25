"""A value at x and at the reference, and how the change of a result is split among the arguments of an operation.

A secant is called with an operation, its arguments and its keywords, with a Pair for every argument that changes, and
returns the Pair of the result. It is exact: Σ slope · Δ over the arguments equals the Δ of the result.

The reverse pass is torch's autograd. For a linear operation, autograd's transpose is already exact. Any other operation
is computed without autograd; its slopes are attached (`attach_slopes`), or it is recorded at the midpoint
(`split_at_midpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "NoSecantError",
    "Pair",
    "Secant",
    "TracedValueError",
    "allow_first_only",
    "attach_slopes",
    "check_values_known",
    "find_pairs",
    "is_same",
    "is_traced",
    "read_first",
    "replace_pairs",
    "split_at_midpoint",
    "to_real",
    "to_real_pairs",
    "trace_walk",
]

Secant = Callable[[Any, Any, Any], Any]  # of an operation, its arguments, its keywords


class NoSecantError(Exception):
    """An operation has no secant for these arguments; the walk over the graph adds the node to the error."""


class Pair(NamedTuple):
    """A value that depends on the input: at x, recorded by autograd, and at the reference.

    Integers and masks have no slope; relevance goes back through `carrier` instead. The carrier of tokens is 1 at x and
    0 at the reference; the carrier of a mask is the mask as real numbers.
    """

    x: Tensor
    x0: Tensor
    carrier: Tensor | None = None
    reciprocal_of: Any = None  # the pair b if this is 1 / b, so that a · (1 / b) can be split as a / b
    is_positive: bool = False  # True if every element is certainly positive at both points

    @property
    def value(self) -> Tensor:
        """The value at x, detached."""
        return self.x.detach()

    @property
    def middle(self) -> Tensor:
        """½ (x + x0)."""
        return torch.lerp(self.x0, self.value, 0.5)

    @property
    def change(self) -> Tensor:
        """Δ = x − x0."""
        return self.value - self.x0


# --- arguments --------------------------------------------------------------------------------------------------------


def replace_pairs(args: Any, read: Callable[[Pair], Any]) -> Any:
    """Return arguments with read(pair) in place of every pair."""
    if type(args) is Pair:
        return read(args)
    if isinstance(args, tuple | list):
        return type(args)([replace_pairs(a, read) if isinstance(a, tuple | list | dict) else a for a in args])
    return {k: replace_pairs(v, read) for k, v in args.items()} if isinstance(args, dict) else args


def find_pairs(args: Any) -> list[Pair]:
    """Return the pairs among arguments, which are the arguments that change."""
    if type(args) is Pair:
        return [args]
    if isinstance(args, dict):
        args = args.values()
    return [p for a in args if isinstance(a, tuple | list | dict) for p in find_pairs(a)]


def read_first(args: Any, kwargs: Any) -> tuple[Pair, list[Any]]:
    """Return the first argument as real numbers, and the others; raise NoSecantError if one of the others changes."""
    first, *rest = args
    if not isinstance(first, Pair) or find_pairs((rest, kwargs)):
        raise NoSecantError("only its first argument may depend on the input, but another does")
    return to_real(first), rest


def allow_first_only(secant: Secant) -> Secant:
    """Return a secant that raises NoSecantError if anything but the first argument changes."""

    @wraps(secant)
    def split(op: Any, args: Any, kwargs: Any) -> Any:
        first, rest = read_first(args, kwargs)
        return secant(op, (first, *rest), kwargs)

    return split


def to_real(p: Pair) -> Pair:
    """Return a mask as real numbers, through its carrier; return real numbers unchanged, and raise for integers."""
    if p.x.is_floating_point():
        return p
    if p.carrier is None or p.x.dtype is not torch.bool:
        raise NoSecantError("its integer arguments differ between the input and the reference")
    return Pair(p.carrier, p.x0.to(p.carrier.dtype))


def to_real_pairs(a: Any, b: Any, like: Pair | None = None) -> list[Pair]:
    """Return two values as pairs of real numbers; constants get the dtype of the other value, or of `like`."""
    read = [to_real(p) if isinstance(p, Pair) else p for p in (a, b)]
    model = next(p for p in (*read, like) if isinstance(p, Pair)).x
    tensors = (p if isinstance(p, Pair) else torch.as_tensor(p).to(model) for p in read)
    return [p if isinstance(p, Pair) else Pair(p, p) for p in tensors]


# --- tracing ----------------------------------------------------------------------------------------------------------


class TracedValueError(Exception):
    """A compiled or exported secant pass reached a decision that depends on values."""


_TRACING: ContextVar[bool] = ContextVar("trace_walk", default=False)


@contextmanager
def trace_walk() -> Iterator[None]:
    """Trace a secant pass to compile or export it: no decision may depend on values, which later runs change."""
    before = _TRACING.set(True)
    try:
        yield
    finally:
        _TRACING.reset(before)


def is_traced() -> bool:
    """Return True while a secant pass is traced."""
    return _TRACING.get()


def check_values_known() -> None:
    """Raise TracedValueError while a secant pass is traced; called before a decision that depends on values."""
    if is_traced():
        raise TracedValueError


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if integers or masks are equal at both points."""
    if a is b:
        return True
    check_values_known()
    return torch.equal(a, b)


# --- slopes on autograd's record --------------------------------------------------------------------------------------


class _SlopeRecord(torch.autograd.Function):
    """y; in the reverse pass each operand gets the multiplier times its slope."""

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
            (m if slope is None else m * slope).sum_to_size(shape) if is_needed else None
            for slope, shape, is_needed in zip(ctx.saved_tensors, ctx.shapes, needed, strict=True)
        ]
        return (None, None, *back, *[None] * count)


def attach_slopes(y: Tensor, *links: tuple[Tensor, Tensor | None]) -> Tensor:
    """Return y connected to each operand for the reverse pass.

    links   (operand, slope) pairs; slope: Δy per unit of the operand's Δ, element by element and broadcast; None for 1
    """
    operands, slopes = [pair[0] for pair in links], [pair[1] for pair in links]
    made: Tensor = _SlopeRecord.apply(y, len(links), *operands, *slopes)  # type: ignore[no-untyped-call]
    return made


def split_at_midpoint(op: Callable[..., Tensor], args: Any, kwargs: Any) -> Pair:
    """Split an operation of degree at most two in everything that changes: the tangent at the midpoint is exact.

    Then f(x) − f(x0) = ∇f(½ (x + x0)) · (x − x0); for a product, ½ (a + a0) Δb + ½ (b + b0) Δa.
    """
    y = op(*replace_pairs(args, lambda p: p.value), **replace_pairs(kwargs, lambda p: p.value))
    y0 = op(*replace_pairs(args, lambda p: p.x0), **replace_pairs(kwargs, lambda p: p.x0))
    recorded = [replace_pairs(a, lambda p: attach_slopes(p.middle, (p.x, None))) for a in (args, kwargs)]
    return Pair(attach_slopes(y, (op(*recorded[0], **recorded[1]), None)), y0)
