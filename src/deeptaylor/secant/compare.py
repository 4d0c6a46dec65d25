"""A batch and its references through one engine: relevance, both scores, and what there is to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.run import target as targets
from deeptaylor.run.engine import Engine
from deeptaylor.secant.between import METHOD, Between, BetweenLedger
from deeptaylor.secant.front_door import channel_axis, smooth
from deeptaylor.secant.narrow import is_fast
from deeptaylor.secant.together import compared_together, grouped
from deeptaylor.secant.traced import Found, Walk
from deeptaylor.secant.walk import Walked, number_type, taken_back, walked

__all__ = ["Compared", "answered", "compared", "means_note", "one"]


class Compared(NamedTuple):
    """What came of it: one map an input, (B, …) or, of K targets, (B, K, …)."""

    relevance: tuple[Tensor, ...]
    ledger: BetweenLedger
    chosen: Tensor | None  # the network's answer, where that was asked for
    notes: tuple[str, ...]


def compared(
    engine: Engine, run: Walk, inputs: Sequence[Tensor], references: Sequence[Sequence[Tensor]], target: Any,
    width: float = 0.0,
) -> Compared:  # fmt: skip
    """Compare with every reference and return the mean.

    run     how one reference is compared
    width   the standard deviation, in pixels, by which the relevance of pictures is smoothed; 0: not at all
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = [t.detach().clone() if t.is_inference() else t.detach() for t in inputs]
        others = [[_own(t0, t, own) for t0, t, own in zip(x0, inputs, x, strict=True)] for x0 in references]
        groups = grouped(others, x, engine, target)
        each = [found for group in groups for found in compared_together(run, x, group, target)]
    relevance = tuple(torch.stack(maps).mean(0) for maps in zip(*(e[0] for e in each), strict=True))
    score, reference = each[0][1], torch.stack([e[2] for e in each]).mean(0)
    if width:
        axis = channel_axis(engine)
        relevance = tuple(smooth(R, width, x.ndim - 2, axis) for R, x in zip(relevance, inputs, strict=True))
    _check_finite(score, reference, relevance)
    lead = score.ndim
    sums = [torch.stack([_sum(s * R, lead) for R in relevance]).sum(0) for s in (1, -1)]
    ledger = BetweenLedger.made(score, reference, *sums)
    notes = [means_note(len(each))] * (len(each) > 1)
    if number_type(engine) is not engine.one.dtype:
        narrow = str(engine.one.dtype).removeprefix("torch.")
        products = (
            "; large products of matrices read pairs of such numbers" if is_fast(engine.one.dtype, x[0].device) else ""
        )
        notes.append(
            f"computed in float32, with the weights of the network in {narrow}: differences need the digits{products}"
        )
    return Compared(relevance, ledger, each[0][3], tuple(notes))


def means_note(count: int) -> str:
    """What is said of several references."""
    return f"the reference's score and the relevance are means over {count} references"


def _check_finite(score: Tensor, reference: Tensor, relevance: Sequence[Tensor]) -> None:
    *scores, maps = torch.stack([
        torch.isfinite(score).all(), torch.isfinite(reference).all(),
        torch.stack([torch.isfinite(R).all() for R in relevance]).all(),
    ]).tolist()  # fmt: skip  # at once: a GPU is waited for
    for what, finite in zip(("input", "reference"), scores, strict=True):
        if not finite:
            raise InputError(
                f"The network's score of the {what} is NaN or infinite: there is no difference to explain."
            )
    if not maps:
        raise InputError(
            "The slopes between the input and the reference overflow, though both scores are finite: compare in "
            "float64, or with another reference."
        )


def _sum(R: Tensor, lead: int) -> Tensor:
    """What is positive, over everything but samples and targets."""
    return R.clamp(min=0).reshape(*R.shape[:lead], -1).sum(-1)


def _own(reference: Tensor, x: Tensor, own: Tensor) -> Tensor:
    """A reference that autograd may keep; where it is x, or the same tokens or masks, that of x."""
    if reference is x or (not x.is_floating_point() and reference.dtype is x.dtype and torch.equal(reference, x)):
        return own
    return reference.detach().clone() if reference.is_inference() else reference.detach()


def one(engine: Engine, x: Sequence[Tensor], x0: Sequence[Tensor], target: Any) -> Found:
    """One comparison, step by step."""
    way = walked(engine, x, x0)
    if isinstance(target, targets.LogOdds):
        return _by_log_odds(way, target)
    against = isinstance(target, targets.Against)
    v, many = (targets.against_weights if against else targets.weights)(target, way.output.detach())
    layout, batch = engine.layout[engine.planned.output], len(x[0])

    def score(weights: Tensor, output: Tensor) -> Tensor:
        return layout.per_sample(weights * output, batch)

    if not many:
        f = score(v, way.output)
        top = target.target if against else target
        chosen = v.argmax(1) if top is None and v.ndim == 2 else None
        return taken_back(way, f), f.detach(), score(v, way.output0), chosen
    fs = [score(w, way.output) for w in v]
    maps = [taken_back(way, f, keep=k < len(fs) - 1) for k, f in enumerate(fs)]
    relevance = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
    return relevance, torch.stack(fs, 1).detach(), torch.stack([score(w, way.output0) for w in v], 1), None


def _by_log_odds(way: Walked, target: targets.LogOdds) -> Found:
    """One comparison of the log-odds of a class, or of K classes."""
    asked, output = target.target, way.output.detach()
    z, z0 = (targets.class_scores(asked, at) for at in (output, way.output0))
    own, many = targets.weights(targets.class_of(asked), z)
    classes = own if many else own.unsqueeze(0)
    v = [targets.over_output(asked, targets.log_odds_weights(c, z, z0), output) for c in classes]
    maps = [taken_back(way, (w * way.output).flatten(1).sum(1), keep=k < len(v) - 1) for k, w in enumerate(v)]
    scores = [targets.log_odds_of(classes, at) for at in (z, z0)]
    if not many:
        return maps[0], scores[0][0], scores[1][0], own.argmax(1) if asked is None else None
    relevance = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
    return relevance, scores[0].movedim(0, 1), scores[1].movedim(0, 1), None


def answered(found: Compared, target: Any, flips: Any, notes: Sequence[str]) -> Between:
    """The answer to the user."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"Secants are taken to the input in one go: there is no relevance at {name!r} inside.")

    maps = found.relevance
    return Between(
        relevance=maps[0] if len(maps) == 1 else maps, score=found.ledger.score, ledger=found.ledger, target=target,
        notes=(*notes, *found.notes), source=inner, flips=flips, method=METHOD, classes=found.chosen,
        reference_score=found.ledger.reference,
    )  # fmt: skip
