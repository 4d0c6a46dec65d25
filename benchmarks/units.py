"""Do explanations give the right answer where it is known? Small networks set by hand (units_networks.py).

    python benchmarks/units.py                        one minute
    python benchmarks/units_page.py                   the page, from the record

Every method is judged by the shares of the parts of the input, that is the relevance over the sum of its absolute
values: an answer is right if it differs from the right shares by at most 0.05 in all. So a method is not blamed for the
size of its relevance. `exact`: the relevance itself is right, up to a millionth.
Needs captum for DeepLift.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.target import LogOdds, Margin, Probability
from deeptaylor.errors import DeepTaylorError
from units_networks import Unit, units

RECORD = Path(__file__).resolve().parent / "results/units.json"
TOLERANCE, EXACT, STEPS = 0.05, 1e-6, 200
DEFAULT = "default"


class Scored(nn.Module):
    """A network with the score that a unit asks for as its only output, (batch, 1)."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.network, self.target = unit.network, unit.target

    def forward(self, x: Tensor) -> Tensor:
        z, target = self.network(x), self.target
        if isinstance(target, Margin):
            z = z[:, [target.target]] - z[:, [target.other]]
        elif isinstance(target, LogOdds):
            others = [k for k in range(z.shape[1]) if k != target.target]
            z = z[:, [target.target]] - z[:, others].logsumexp(1, keepdim=True)
        elif isinstance(target, Tensor):
            z = (z * target).sum(1, keepdim=True)
        else:
            z = z[:, [target.target if isinstance(target, Probability) else target]]
        return z


def shapley(unit: Unit) -> Tensor:
    """Return the Shapley value of each part against the reference, by enumeration."""
    score, parts = Scored(unit), unit.parts
    assert parts is not None
    n = int(parts.max()) + 1
    values: dict[tuple[bool, ...], float] = {}
    for present in product((False, True), repeat=n):
        with torch.no_grad():
            values[present] = float(score(torch.where(torch.tensor(present)[parts], unit.x, unit.compared)))
    found = torch.zeros(n, dtype=torch.float64)
    for without, value in values.items():
        for k in range(n):
            if not without[k]:
                orders = math.factorial(sum(without)) * math.factorial(n - sum(without) - 1)
                with_k = (*without[:k], True, *without[k + 1 :])
                found[k] += orders / math.factorial(n) * (values[with_k] - value)
    return found


# --- methods ----------------------------------------------------------------------------------------------------------


def explainer(unit: Unit, **settings: Any) -> dt.Explainer:
    domain = dt.NonNegative() if float(unit.x.min()) >= 0 else None
    return dt.Explainer(unit.network, domain=domain, **settings)


def by_default(unit: Unit) -> dt.Explanation:
    """Return the answer of the front door, with the reference where the question has one."""
    return explainer(unit, method="auto", reference=unit.reference).explain(unit.x, unit.target)


def gradient(unit: Unit, points: Tensor) -> Tensor:
    at = points.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Scored(unit)(at).sum(), at)
    return slope


def integrated_gradients(unit: Unit) -> Tensor:
    shares = ((torch.arange(STEPS, dtype=torch.float64) + 0.5) / STEPS).reshape(-1, *[1] * (unit.x.ndim - 1))
    points = unit.compared + shares * (unit.x - unit.compared)
    return (unit.x - unit.compared) * gradient(unit, points).mean(0, keepdim=True)


def deep_lift(unit: Unit) -> Tensor:
    from captum.attr import DeepLift

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Tensor = DeepLift(Scored(unit)).attribute(unit.x, unit.compared.clone(), target=0)
    return found


METHODS: dict[str, Callable[[Unit], Any]] = {
    DEFAULT: lambda u: by_default(u).relevance,
    "deep Taylor": lambda u: explainer(u, method="deep-taylor").explain(u.x, u.target).relevance,
    "integrated gradients": integrated_gradients,
    "gradient × input": lambda u: u.x * gradient(u, u.x),
    "DeepLift": deep_lift,
    "AttnLRP": lambda u: explainer(u, method="attnlrp").explain(u.x, u.target).relevance,
}


def judged(unit: Unit, relevance: Tensor) -> dict[str, Any]:
    """Judge one answer: relevance of the parts, distance of the shares, and whether it is exact."""
    got, wanted = unit.by_part(relevance), torch.tensor(unit.answer, dtype=torch.float64)
    shares, right = (t / t.abs().sum().clamp(min=1e-12) for t in (got, wanted))
    off = float((shares - right).abs().sum())
    exact = float((got - wanted).abs().max()) <= EXACT * float(wanted.abs().max())
    values = [round(float(g), 3) + 0.0 for g in got]
    return {"relevance": values, "off": round(off, 3), "right": off <= TOLERANCE, "exact": exact}


def measure(unit: Unit) -> dict[str, Any]:
    """Every method on one unit; None where a method does not support the network or the question."""
    found: dict[str, Any] = {}
    for name, method in METHODS.items():
        try:
            found[name] = judged(unit, method(unit))
        except DeepTaylorError:
            found[name] = None
    given = {None: "none", "zeros": "zeros"}.get(unit.reference) if not isinstance(unit.reference, Tensor) else "given"
    answer = [round(float(a), 3) for a in unit.answer]
    return {"name": unit.name, "reference": given, "answer": answer, "why": unit.why, "methods": found}


def main() -> None:
    record = {"tolerance": TOLERANCE, "units": [measure(unit) for unit in units()]}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in METHODS:
        answers = [u["methods"][name] for u in record["units"]]
        right, exact = (sum(a is not None and a[what] for a in answers) for what in ("right", "exact"))
        print(f"{name}: right in {right} of {len(answers)}, exact in {exact}, not supported {answers.count(None)}")


if __name__ == "__main__":
    main()
