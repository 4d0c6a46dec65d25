"""The numbers that verdicts on MNIST are judged by, from maps alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deeptaylor.paper.digit_pairs import Pairs
from deeptaylor.paper.mnist_arrays import METHODS
from deeptaylor.paper.mnist_comparisons import compare_maps
from deeptaylor.paper.mnist_numbers import method_numbers
from deeptaylor.support.provenance import to_json_values

Array = np.ndarray[Any, Any]


def compute_verdict_numbers(
    maps: Mapping[str, Mapping[str, Array]], scores: Mapping[str, Array], pairs: Pairs
) -> dict[str, Any]:
    """Return the numbers of a report on these maps; what is not measured on maps has values of no meaning."""
    made = {
        network: {
            key: {"maps": R, "score": scores[network], "seconds": np.ones(()), "gradient_seconds": np.ones(())}
            for key, R in methods.items()
        }
        for network, methods in maps.items()
    }
    f, total = scores["two-layer"], maps["two-layer"]["min-max"].sum((1, 2))
    blind = {"gap": 0.3, "broken_gap": 0.3, "lowest": -0.5, "broken_lowest": -0.5}  # as where ε breaks one layer
    reuse = {"gap": 0.6, "untrained_gap": 0.6, "time": 1.0, "time_again": 1.0}
    alike = {"alike": 0.1, "untrained": 0.1, "others": 1.0}
    context = dict.fromkeys(("inhibition", "inhibition_other", "context", "context_other"), 0.5)
    found = {
        "methods": {n: {key: method_numbers(a, pairs) for key, a in of.items()} for n, of in made.items()},
        "compared": compare_maps(made, pairs),
        "min_max": {"mean_gap_over_mean_score": float(np.abs(f - total).mean() / f.mean())},
        "statements": {
            "layers": blind, "garson": alike, "reuse": {"w2": reuse, "zB": reuse},
            "box": {network: {"alike": 0.2, "other": 0.2} for network in METHODS}, "context": context,
        },
    }  # fmt: skip
    result: dict[str, Any] = to_json_values(found)
    return result
