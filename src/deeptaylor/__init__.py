"""deeptaylor explains the decisions of neural networks by deep Taylor decomposition.

import deeptaylor as dt
explainer = dt.Explainer(model, example, domain=dt.Box(low, high))
e = explainer.explain(x)
e.relevance, e.score, e.ledger, e.check(), e.heatmap(), e.save("heatmap.png")

dt.sensitivity(model, x)
dt.taylor(model, x, root=dt.nearest_root(model, x, domain=dt.Box(low, high)))

The way of an explanation through the folders; each imports only from those above it (docs/architecture.md):

maps/          W and its transpose in every reading; tensors only
rules/         how relevance is shared out: the mathematics
secants/       the slope of every operation between two inputs; tensors only
graph/         the user's module → a flat graph that is the same network
operations/    how relevance flows through each operation
passes/        rewrites of the graph: many spellings to few, constants folded
plan/          which rule where, and why
engine/        forward once, steps in reverse; secants; the ledger and the checks
viz/           figures, tokens, bars, curves, colours
concepts/      what the channels of an inner layer did
explainer.py   what the user calls; its answer is an Explanation (explanation.py) with its Ledger (ledger.py)
losses/        losses on relevance, for training
text/          texts in, coloured words out: networks with their tokenizers
methods/       other ways to explain       models/   networks, files, photographs
evaluation/    methods judged by metrics   datasets/ whole data sets
paper/         the paper's experiments     app/      command and page (demo.py: the demo)
"""

import warnings
from typing import TYPE_CHECKING, Any

from deeptaylor import losses, rules
from deeptaylor.between import Between
from deeptaylor.check import Check
from deeptaylor.concepts.channels import ChannelExamples, Channels, ExampleSearch, channel_examples
from deeptaylor.datasets.concepts import Concepts
from deeptaylor.datasets.explain_dataset import explain_dataset
from deeptaylor.datasets.open_dataset import Run, open_dataset
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.engine.contrast import HARD
from deeptaylor.engine.place_target import best_box, box, pixel, region
from deeptaylor.engine.target import at_step, log_odds, logit, margin, negative, probability, unit
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
from deeptaylor.evaluation.evaluate import evaluate
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.control_flow import as_taken
from deeptaylor.ledger import Ledger
from deeptaylor.methods import relevance_models
from deeptaylor.methods.activation_patching import Patching, Site, channels, heads
from deeptaylor.methods.copies import average_copies
from deeptaylor.methods.delegates import Examples, examples, shapley
from deeptaylor.methods.registry import add_methods
from deeptaylor.methods.root_point import RootPoint, root_point
from deeptaylor.methods.root_search import Root, nearest_root
from deeptaylor.methods.taylor import SmoothReLU, sensitivity, smoothed, taylor
from deeptaylor.models.loading.load import load
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.one_call import contrast, explain, patching, similarity
from deeptaylor.text.model import TextModel
from deeptaylor.text.text_explainer import TextExplainer
from deeptaylor.text.text_explanation import TextExplanation

__version__ = "0.1.0"

_RENAMED = {
    "averaged": "average_copies",
    "run": "explain_dataset",
    "open_run": "open_dataset",
}  # former public names: they go in 0.2

add_methods()

__all__ = [
    "HARD",
    "Between",
    "BoundaryError",
    "Box",
    "CaptureError",
    "ChannelExamples",
    "Channels",
    "Check",
    "Concepts",
    "Contrast",
    "DeepTaylorError",
    "DeepTaylorWarning",
    "Domain",
    "ExampleSearch",
    "Examples",
    "Explainer",
    "Explanation",
    "InputError",
    "Ledger",
    "LoadError",
    "NonNegative",
    "Patching",
    "PlanError",
    "Preparation",
    "Pretrained",
    "Real",
    "Root",
    "RootPoint",
    "Run",
    "Site",
    "SmoothReLU",
    "StaleModelError",
    "TargetError",
    "TextExplainer",
    "TextExplanation",
    "TextModel",
    "UnsupportedOpError",
    "as_taken",
    "at_step",
    "average_copies",
    "best_box",
    "box",
    "channel_examples",
    "channels",
    "contrast",
    "evaluate",
    "examples",
    "explain",
    "explain_dataset",
    "heads",
    "load",
    "log_odds",
    "logit",
    "losses",
    "margin",
    "nearest_root",
    "negative",
    "open_dataset",
    "patching",
    "pixel",
    "probability",
    "region",
    "relevance_models",
    "root_point",
    "rules",
    "sensitivity",
    "shapley",
    "similarity",
    "smoothed",
    "taylor",
    "unit",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # so that type checkers know which names there are

    def __getattr__(name: str) -> Any:
        """Return a public object by its former name, with a DeprecationWarning."""
        if name not in _RENAMED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"dt.{name} is now dt.{_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]
