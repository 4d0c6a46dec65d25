"""deeptaylor explains the decisions of neural networks by deep Taylor decomposition.

import deeptaylor as dt
explainer = dt.Explainer(model, example, domain=dt.Box(low, high))
e = explainer.explain(x)
e.relevance, e.score, e.ledger, e.check(), e.heatmap(), e.save("heatmap.png")

dt.sensitivity(model, x)
dt.taylor(model, x, root=dt.nearest_root(model, x, domain=dt.Box(low, high)))
"""

from deeptaylor import rules
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.errors import (
    BoundaryError,
    CaptureError,
    DeepTaylorError,
    DeepTaylorWarning,
    InputError,
    LoadError,
    PlanError,
    StaleModelError,
    TargetError,
    UnsupportedOpError,
)
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation, Ledger
from deeptaylor.methods.root_search import Root, nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.smooth import SmoothReLU, smoothed
from deeptaylor.methods.taylor import taylor
from deeptaylor.models.loading.load import load
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.photographs import explain
from deeptaylor.properties import Check
from deeptaylor.root_point import RootPoint, root_point
from deeptaylor.run.target import margin

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
    "LoadError",
    "NonNegative",
    "PlanError",
    "Preparation",
    "Pretrained",
    "Real",
    "Root",
    "RootPoint",
    "SmoothReLU",
    "StaleModelError",
    "TargetError",
    "UnsupportedOpError",
    "explain",
    "load",
    "margin",
    "nearest_root",
    "root_point",
    "rules",
    "sensitivity",
    "smoothed",
    "taylor",
]
