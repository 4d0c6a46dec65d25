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
graph/         the user's module → a flat graph that is the same network
operations/    how relevance flows through each operation
passes/        rewrites of the graph: many spellings to few, constants folded
plan/          which rule where, and why
run/           forward once, steps in reverse; the books and the checks
concepts/      what the channels of an inner layer did
secant/        between two inputs: secants in the place of rules, and the answer to it
explainer.py   what the user calls; its answer is an Explanation (explanation.py) with its Ledger (ledger.py)
text/          texts in, coloured words out: networks with their tokenizers
methods/       other ways to explain       models/   networks, files, photographs
runs/          whole data sets             paper/    the paper's experiments
app/           command, page and demo
"""

from deeptaylor import rules
from deeptaylor.concepts.channels import Channels
from deeptaylor.concepts.examples import ChannelExamples, ExampleSearch, channel_examples
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
from deeptaylor.evaluation.evaluate import evaluate
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.as_taken import as_taken
from deeptaylor.ledger import Ledger
from deeptaylor.methods import relevance_models
from deeptaylor.methods.averaged import averaged
from deeptaylor.methods.examples import Examples, examples
from deeptaylor.methods.root_search import Root, nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.shapley import shapley
from deeptaylor.methods.smooth import SmoothReLU, smoothed
from deeptaylor.methods.taylor import taylor
from deeptaylor.methods.words import add_methods
from deeptaylor.models.loading.load import load
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.photographs import contrast, explain, similarity
from deeptaylor.properties import Check
from deeptaylor.root_point import RootPoint, root_point
from deeptaylor.run.contrast import HARD
from deeptaylor.run.target import at_step, log_odds, logit, margin, negative, probability
from deeptaylor.run.unit import unit
from deeptaylor.runs.concepts import Concepts
from deeptaylor.runs.reading import Run, open_run
from deeptaylor.runs.run import run
from deeptaylor.secant.between import Between
from deeptaylor.text.explainer import TextExplainer
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.model import TextModel

__version__ = "0.1.0"

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
    "PlanError",
    "Preparation",
    "Pretrained",
    "Real",
    "Root",
    "RootPoint",
    "Run",
    "SmoothReLU",
    "StaleModelError",
    "TargetError",
    "TextExplainer",
    "TextExplanation",
    "TextModel",
    "UnsupportedOpError",
    "as_taken",
    "at_step",
    "averaged",
    "channel_examples",
    "contrast",
    "evaluate",
    "examples",
    "explain",
    "load",
    "log_odds",
    "logit",
    "margin",
    "nearest_root",
    "negative",
    "open_run",
    "probability",
    "relevance_models",
    "root_point",
    "rules",
    "run",
    "sensitivity",
    "shapley",
    "similarity",
    "smoothed",
    "taylor",
    "unit",
]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__, "__version__"]
