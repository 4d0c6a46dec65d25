"""Maps of texts, judged token by token: `evaluate_texts`, for maps that are there already, of whatever method."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.evaluation.result import Evaluation, Scores
from deeptaylor.metrics.case import Measured
from deeptaylor.metrics.interval import bootstrap
from deeptaylor.metrics.tokens import STEPS, Texts, TokenFlipping, TokenLeaveOneOut, token_drops

__all__ = ["evaluate_texts"]


def evaluate_texts(
    texts: Texts, maps: Mapping[str, Tensor], removals: Mapping[str, int | None] | None = None, steps: int = STEPS
) -> Evaluation:
    """Judge maps {method: (texts, tokens)} by token flipping and by leaving one out, with 95 % intervals.

    removals   {name: token that takes the place, or None for the attention mask}; `texts.instead` by default

    >>> import torch
    >>> words, weights = torch.tensor([[1, 2, 3]]), torch.tensor([0.0, 1.0, 4.0, 2.0])
    >>> texts = Texts(lambda t, m, _: (weights[t] * m).sum(1), words, torch.ones_like(words), words > 0)
    >>> found = evaluate_texts(texts, {"weights": weights[words]}, {"hidden": None})
    >>> round(found.of("token leave one out, hidden", "weights").interval.mean, 6)
    1.0
    """
    if not maps:
        raise InputError("There are no maps to judge: give {name of the method: maps}.")
    ways = {f", {name}": instead for name, instead in removals.items()} if removals else {"": texts.instead}
    flipping, leaving = TokenFlipping(steps), TokenLeaveOneOut()
    scores: list[Scores] = []
    for way, instead in ways.items():
        given = replace(texts, instead=instead)
        drops = token_drops(given)
        for method, R in maps.items():
            began = time.perf_counter()
            scores.append(_scores(method, flipping.name + way, flipping.measure(given, R), began))
            began = time.perf_counter()
            scores.append(_scores(method, leaving.name + way, leaving.measure(given, R, drops), began))
    metrics = {m.name + way: (m.about, m.higher) for way in ways for m in (flipping, leaving)}
    return Evaluation(tuple(scores), metrics, about={"samples": len(texts.tokens)})


def _scores(method: str, metric: str, found: Measured, began: float) -> Scores:
    values = found.values.cpu().numpy().astype(np.float64)
    curves = {name: curve.double().mean(0).cpu().numpy() for name, curve in found.curves.items()}
    return Scores(method, metric, values, bootstrap(values), curves, found.at, time.perf_counter() - began)
