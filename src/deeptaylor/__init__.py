"""deeptaylor explains the decisions of neural networks by deep Taylor decomposition.

import deeptaylor as dt
explainer = dt.Explainer(model, example, domain=dt.Box(low, high))
e = explainer.explain(x)
e.relevance, e.score, e.ledger, e.check(), e.heatmap(), e.save("heatmap.png")
"""

from deeptaylor import rules
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.errors import (
    BoundaryError,
    CaptureError,
    DeepTaylorError,
    DeepTaylorWarning,
    InputError,
    PlanError,
    StaleModelError,
    TargetError,
    UnsupportedOpError,
)
from deeptaylor.explainer import Explainer, explain
from deeptaylor.explanation import Explanation, Ledger
from deeptaylor.properties import Check
from deeptaylor.target import margin

__version__ = "0.1.0"

__all__ = [
    "BoundaryError",
    "Box",
    "CaptureError",
    "Check",
    "DeepTaylorError",
    "DeepTaylorWarning",
    "Domain",
    "Explainer",
    "Explanation",
    "InputError",
    "Ledger",
    "NonNegative",
    "PlanError",
    "Real",
    "StaleModelError",
    "TargetError",
    "UnsupportedOpError",
    "explain",
    "margin",
    "rules",
]
