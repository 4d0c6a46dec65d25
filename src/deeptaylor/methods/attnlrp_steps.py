"""AttnLRP, operation by operation (Achtibat et al., 2024): which way relevance goes back, and what does not go on.

linear     linear in all that depends on the input: in proportion, the ε rule with ε = 0; what constants add is theirs
product    1 / n to each of n factors
by_value   a function of one value, and the scale of a norm: all of it goes on; of_one: also where it is written out
softmax    its tangent, times what it reads; the tangent does not go through zero, and what it leaves out is booked
frozen     one over something, deviations, lengths: constants, as what divides is

A step is called with an operation, its arguments and its keywords, and a book. What requires a gradient depends on the
input. Every step gives y, on record, so that autograd's reverse pass takes back multipliers m with R = m · value; where
y is not Σ slope · operand, the rest of it goes to the book.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.maps import ops
from deeptaylor.secant.pair import RefusedError, attached
from deeptaylor.secant.splits import BENT, FORMS, KINKED, LINEAR, SMOOTH
from deeptaylor.secant.unary import ratio

__all__ = ["CONSTANTS", "SOFTMAX", "Book", "Step", "by_number", "of_one", "recorded", "step_of"]

aten = torch.ops.aten

CONSTANTS, SOFTMAX = "constants", "softmax"  # who keeps what does not go on
Book = Callable[[str, Tensor, Tensor], None]  # by whom it is kept, y, and which part of y it is
Step = Callable[[Any, Any, Any, Book], Any]


def recorded(value: Any) -> bool:
    """True of what depends on the input."""
    return isinstance(value, Tensor) and value.requires_grad


def _changed(args: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Arguments, with what depends on the input changed."""
    return pytree.tree_map(lambda v: change(v) if recorded(v) else v, args)


# --- steps ------------------------------------------------------------------------------------------------------------


def linear(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """R of each operand in proportion; what is there when all of them are zero is of constants."""
    y = op(*args, **kwargs)
    if isinstance(y, Tensor) and y.requires_grad:
        book(CONSTANTS, y, op(*_changed(args, torch.zeros_like), **_changed(kwargs, torch.zeros_like)))
    return y


def _part(t: Tensor, count: int) -> Tensor:
    """t, of whose multiplier one part in `count` goes on."""
    return attached(t.detach(), (t, torch.full((), 1 / count, dtype=t.dtype, device=t.device)))


def product(first: int = 0) -> Step:
    """Half to each of two factors, which are the arguments from `first` on."""

    def step(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
        factors = args[first : first + 2]
        if all(map(recorded, factors)):
            args = (*args[:first], *[_part(t, 2) for t in factors], *args[first + 2 :])
        return linear(op, args, kwargs, book)

    return step


def contraction(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """A sum of products of several: to each factor as much."""
    count = sum(map(recorded, args[1]))
    factors = [_part(t, count) if recorded(t) else t for t in args[1]]
    return linear(op, (args[0], factors, *args[2:]), kwargs, book)


def quotient(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """What divides is a constant."""
    if kwargs.get("rounding_mode"):
        raise RefusedError("a quotient that is rounded")
    a, b = args[:2]
    return linear(op, (a, b.detach() if recorded(b) else b), kwargs, book)


def by_value(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """φ(x) / x; a value that zero has does not go on."""
    x, *rest = args
    return _handed_on(op(x.detach(), *rest, **kwargs), x, book)


def _handed_on(y: Tensor, x: Tensor, book: Book) -> Tensor:
    made = attached(y, (x, ratio(y, x.detach(), 0.0)))
    book(CONSTANTS, made, torch.where(x.detach() == 0, y, 0))
    return made


def of_one(x: Tensor) -> Step:
    """A product of two functions of x, number by number, such as ½ x (1 + tanh(…)): a function of one value, too."""

    def step(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
        return _handed_on(frozen(op, args, kwargs, book), x, book)

    return step


def power(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """x^p, p > 0 by its value; one over something is a constant."""
    x, p = args[:2]
    if recorded(p) or not recorded(x):
        raise RefusedError("a power whose exponent depends on the input")
    return (by_value if p > 0 else frozen)(op, args, kwargs, book)


def frozen(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """A constant, whatever it reads."""
    return op(*_changed(args, Tensor.detach), **_changed(kwargs, Tensor.detach))


def winner(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """The larger of two, or the smaller: all to the one that is it."""
    a, b = args[:2]
    wins = op(*_changed(args, Tensor.detach)) == (a.detach() if isinstance(a, Tensor) else a)
    return linear(torch.where, (wins, a, b), {}, book)


class _Softmax(torch.autograd.Function):
    """p, with the tangent p (m − Σ p m); a row that is masked whole has none."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(p)
        ctx.dim = dim
        return p.view_as(p)

    @staticmethod
    def backward(ctx: Any, *ms: Tensor) -> Any:
        (m,), (p,) = ms, ctx.saved_tensors
        return p * (m - (p * m).sum(ctx.dim, keepdim=True)), None, None


def softmax(op: Any, args: Any, kwargs: Any, book: Book) -> Tensor:
    """p; its tangent at s gives p (s − Σ p s)."""
    s, dim = args[:2]
    p = torch.softmax(s.detach(), dim).nan_to_num(0.0)
    ps = torch.where(p > 0, p * s.detach(), 0)
    made: Tensor = _Softmax.apply(s, p, dim)  # type: ignore[no-untyped-call]
    book(SOFTMAX, made, p - (ps - p * ps.sum(dim, keepdim=True)))
    return made


def log_softmax(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """s − log Z."""
    s, dim = args[:2]
    y = op(*args, **kwargs)
    book(SOFTMAX, y, (_mean(s.detach(), dim, True) - torch.logsumexp(s.detach(), dim, True)).expand(y.shape))
    return y


def log_sum_exp(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """log Z; its tangent at s gives Σ p s."""
    s, dims, *rest = args
    dims = [dims] if isinstance(dims, int) else dims
    if len(dims) != 1:
        raise RefusedError("it is taken over several axes at once")
    y = op(*args, **kwargs)
    keep = bool(rest[0] if rest else kwargs.get("keepdim", False))
    book(SOFTMAX, y, y.detach() - _mean(s.detach(), dims[0], keep))
    return y


def _mean(s: Tensor, dim: int, keep: bool) -> Tensor:
    p = torch.softmax(s, dim)
    return torch.where(p > 0, p * s, 0).sum(dim, keepdim=keep)


def attention_weights(op: Any, args: Any, kwargs: Any, book: Book) -> Any:
    """softmax(q kᵀ · scale + mask): q and k by halves, then the tangent of the softmax."""
    q, k, mask, causal, scale, grouped = args
    k = ops.repeat_heads(k, q.shape[-3] // k.shape[-3]) if grouped else k
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = product()(torch.matmul, (q, k.mT), {}, book)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = linear(torch.masked_fill, (scores, future, float("-inf")), {}, book)
    if mask is not None and mask.dtype == torch.bool:
        scores = linear(torch.masked_fill, (scores, ~mask, float("-inf")), {}, book)
    elif mask is not None:
        scores = linear(torch.add, (scores, mask), {}, book)
    return softmax(torch.softmax, (scores, -1), {}, book)


# --- the table --------------------------------------------------------------------------------------------------------

TABLE: dict[Any, Step] = {
    **dict.fromkeys(LINEAR, linear),
    **dict.fromkeys((*BENT, *SMOOTH, *KINKED, *FORMS), by_value),
    **dict.fromkeys((ops.divide_by_std, ops.divide_by_rms), by_value),
    **dict.fromkeys((aten.mul, aten.multiply, aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot), product()),
    **dict.fromkeys((aten.linear, ops.linear, aten.conv1d, aten.conv2d, aten.conv3d, aten.tensordot), product()),
    **dict.fromkeys((aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), product()),
    **dict.fromkeys((aten.addmm, aten.baddbmm), product(1)),
    aten.einsum: contraction,
    **dict.fromkeys((aten.div, aten.divide, aten.true_divide), quotient),
    aten.pow: power,
    **dict.fromkeys((aten.reciprocal, aten.rsqrt, aten.var, aten.std, aten.linalg_vector_norm), frozen),
    **dict.fromkeys((ops.max_pool, ops.adaptive_max_pool, ops.lp_pool, aten.amax, aten.amin), linear),
    **dict.fromkeys((aten.sort, aten.topk, aten.where, aten.masked_fill), linear),
    **dict.fromkeys((aten.maximum, aten.minimum), winner),
    **dict.fromkeys((aten.softmax, aten._softmax), softmax),
    **dict.fromkeys((aten.log_softmax, aten._log_softmax), log_softmax),
    aten.logsumexp: log_sum_exp,
    ops.attention_weights: attention_weights,
}


_BY_NUMBER = {
    *BENT, *SMOOTH, *KINKED, *FORMS, aten.add, aten.sub, aten.subtract, aten.rsub, aten.neg, aten.negative, aten.mul,
    aten.multiply, aten.div, aten.divide, aten.true_divide, aten.pow, aten.reciprocal, aten.rsqrt, ops.scale_shift,
}  # fmt: skip
_PRODUCTS = (aten.mul, aten.multiply)


def by_number(operation: Any) -> str:
    """What an operation that takes numbers one by one is, "product" or "other"; "" of any that does not."""
    packet = getattr(operation, "overloadpacket", operation)
    return "product" if packet in _PRODUCTS else "other" if packet in _BY_NUMBER else ""


def step_of(operation: Any) -> Step | None:
    """How relevance goes back through an operation; None where that is not known."""
    return TABLE.get(operation) or TABLE.get(getattr(operation, "overloadpacket", None))
