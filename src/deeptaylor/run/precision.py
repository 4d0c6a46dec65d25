"""Types of few digits: what they cannot do is refused before, what went wrong in them is seen after."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from deeptaylor.errors import InputError, PlanError, TargetError, warn
from deeptaylor.maps.linear_map import Sum
from deeptaylor.plan import guard
from deeptaylor.rules.steps import BlockStep
from deeptaylor.run import target as targets
from deeptaylor.run.engine import Engine
from deeptaylor.run.inputs import check_processor
from deeptaylor.run.result import Result
from deeptaylor.run.short_of_memory import Batch

__all__ = ["NARROW", "check_half", "check_precision", "dtype_of", "problem", "sound"]

NARROW = (torch.float16, torch.bfloat16)

_SPACING = 2.0**-24  # of float16 around zero; rounding is off by up to half of it
_UNDERFLOW = 0.02  # the part of a map that such roundings may be at most


def dtype_of(inputs: Sequence[Tensor]) -> torch.dtype:
    """The type that a network computes in."""
    return next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_precision(engine: Engine, inputs: Sequence[Tensor], target: object, values: bool = True) -> None:
    """Refuse what a type of few digits cannot do: differences of numbers that are nearly the same.

    `values`: look into tensors wherever they are (see targets.check).
    """
    dtype = dtype_of(inputs)
    if dtype not in NARROW:
        return
    check_processor(inputs)
    instead = "Explain it in float32: explainer.float(), and x.float()."
    for step in engine.planned.steps:
        if isinstance(step, BlockStep) and step.rule.cancels:
            what = f"The rule {step.rule} (at {step.node}) takes differences, and {name_of(dtype)} is too coarse."
            raise PlanError(f"{what} {instead}")
    if dtype is torch.float16 and engine.lost_squares:
        raise PlanError(f"The squared weights at {engine.lost_squares} are too small for float16. {instead}")
    if _is_difference(target, values) or any(isinstance(m, Sum) and m.has_negative for m in engine.score.block.maps):
        raise TargetError(f"A logit difference is too fine for {name_of(dtype)}. {instead}")


def _is_difference(target: object, values: bool) -> bool:
    """True for a margin, and for weights of which a sample has both signs."""
    if isinstance(target, Tensor) and target.is_floating_point() and target.ndim > 1:
        signs = (target > 0).flatten(1).any(1) & (target < 0).flatten(1).any(1)
        return targets.may_look(target, values) and bool(signs.any())
    return isinstance(target, targets.Margin)


def check_half(result: Result, inputs: Sequence[Tensor]) -> None:
    """Refuse a result that float16 was too narrow for, where nothing is computed again."""
    if dtype_of(inputs) is torch.float16 and (said := problem(result, torch.float16)):
        raise InputError(f"{said}. Explain in bfloat16 or float32: explainer.float(), and x.float().")


def sound(engine: Engine, batch: Batch, result: Result) -> tuple[Result, list[str]]:
    """A sound result; where a narrow type was too narrow, one computed again in float32, and that said."""
    dtype = dtype_of(batch.inputs)
    wrong = problem(result, dtype)
    if not wrong:
        guard.check(engine.watched, engine.planned.watched, result.lowest)
        return result, []
    # For a class that does not exist, no number is the score.
    targets.check(batch.target, tuple(engine.layout[engine.planned.output].shape(len(batch))), values=True)
    if dtype in NARROW:
        said = f"{wrong}; the explanation was computed again in float32"
        warn(said)
        wider = [x.float() if x.is_floating_point() else x for x in batch.inputs]
        result = copy.deepcopy(engine).float().run(wider, batch.target, batch.books, batch.keep)
        if not problem(result, torch.float32):
            guard.check(engine.watched, engine.planned.watched, result.lowest)
            return result, [said]
    bad = "relevance" if bool(torch.isfinite(result.score).all()) else "score"
    raise InputError(
        f"The network's {bad} is not finite for this input: its values overflow. Check weights and input scale."
    )


def problem(result: Result, dtype: torch.dtype) -> str:
    """What a type did to a result, in words; empty where nothing."""
    booked = _booked(result)  # on the CPU: a GPU is waited for once
    if not (bool(torch.isfinite(booked).all()) or _finite([result.score, *result.relevance])):
        return f"{name_of(dtype)} overflowed"
    if dtype in NARROW and result.entries is not None and not _closes(booked[: result.entries.numel()], result.entries):
        return f"{name_of(dtype)} overflowed"
    if dtype is torch.float16 and _too_small(result):
        return "float16 cannot hold relevances this small"
    return ""


def _booked(result: Result) -> Tensor:
    """Numbers of which one is not finite where the score, or a relevance, is not; the books first."""
    sums = [R.sum() for R in result.relevance] if result.entries is None else [result.entries]
    return torch.cat([t.reshape(-1) for t in (*sums, result.score)]).to("cpu")


def _finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _closes(booked: Tensor, like: Tensor) -> bool:
    """True if every page of the books balances to a tenth: an infinite denominator swallows relevance silently."""
    arrived, on, bias, dropped = booked.reshape(like.shape).double().unbind(-2)
    return bool(((arrived - on - bias - dropped).abs() <= 0.1 * arrived.abs() + 1e-12).all())


def _too_small(result: Result) -> bool:
    """True if rounding to the smallest numbers of float16 may be too large a part of a map."""
    score = result.score
    found, rounding = torch.zeros_like(score, dtype=torch.float32), 0.0
    for R in result.relevance:
        own = R.flatten(score.ndim) if R.ndim > score.ndim else R.unsqueeze(-1)
        found += own.sum(-1, dtype=torch.float32)
        rounding += own.shape[-1] * _SPACING / 2
    return bool(((score > 0) & (found < rounding / _UNDERFLOW)).any())
