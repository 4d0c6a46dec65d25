"""Where a relevance model of a named layer belongs: the tensors below and above it, and the modules in between.

upper    the detection layer above                      relu2
         …
pooled   the layer that is named                        pool
         its detection layer's ReLU                     relu1
         the detection layer itself                     linear1
lower    what the detection layer reads                 x
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from deeptaylor.domain import Box, Domain, NonNegative
from deeptaylor.errors import PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.methods.relevance_samples import Place
from deeptaylor.methods.relevance_start import Pooling
from deeptaylor.rules import Rule, WSquare, ZBox, ZPlus
from deeptaylor.rules.steps import BlockStep, LpStep, MaxStep, PassStep, ScoreStep, Step
from deeptaylor.run.engine import Engine
from deeptaylor.run.inputs import Inputs, as_tuple

__all__ = ["Found", "found", "usual_rule"]


@dataclass(frozen=True)
class Found:
    """A place, and the network's own layer there: its modules, where they could be told."""

    place: Place
    detection: nn.Module | None
    pooling: Pooling | None


def found(explainer: Explainer, layer: str, x: Inputs) -> Found:
    """The place of a layer, by its module path or node name."""
    engine = explainer.engine_for(as_tuple(x))
    steps = {step.node: step for step in engine.planned.steps}
    pooled = engine.boundary(layer)
    relu = _relu_below(steps, pooled, layer)
    detection = steps[relu.inputs[0]]
    if not isinstance(detection, BlockStep) or len(detection.inputs) != 1:
        raise PlanError(f"Below {layer!r} there is no detection layer that reads one tensor alone.")
    place = Place(detection.inputs[0], pooled, _upper(steps, pooled, layer))
    own, pooling = _module(explainer, engine, detection.node), _pooling(explainer, engine, steps[pooled])
    if own is None or pooling is None:
        return Found(place, None, None)
    return Found(place, nn.Sequential(nn.Flatten(), own) if isinstance(own, nn.Linear) else own, pooling)


def _relu_below(steps: Mapping[str, Step], pooled: str, layer: str) -> Step:
    """The ReLU of the detection layer that is pooled here, which may be the layer itself."""
    step = steps.get(pooled)
    if step is not None and _pools(step):
        step = steps.get(step.inputs[0])
    if step is None or not isinstance(step, PassStep) or step.inputs[0] not in steps:
        raise PlanError(f"{layer!r} pools no detection layer: name a ReLU, or what pools one by its sum, mean or most.")
    return step


def _pools(step: Step) -> bool:
    """True of what takes the most, a norm, or a sum with weights of one sign."""
    if isinstance(step, BlockStep):
        return len(step.inputs) == 1 and not isinstance(step, ScoreStep) and not step.block.has_negative
    return isinstance(step, MaxStep | LpStep)


def _upper(steps: Mapping[str, Step], pooled: str, layer: str) -> str:
    """The output of the one detection layer that reads the pooled one."""
    readers = [step for step in steps.values() if pooled in step.inputs]
    if len(readers) != 1 or isinstance(readers[0], ScoreStep) or not isinstance(readers[0], BlockStep):
        raise PlanError(f"A relevance model needs one layer with weights and a ReLU above {layer!r}, and no other.")
    above = [s for s in steps.values() if readers[0].node in s.inputs and isinstance(s, PassStep)]
    return above[0].node if above else readers[0].node


def _module(explainer: Explainer, engine: Engine, node: str) -> nn.Module | None:
    """The module that made a tensor, if one alone did."""
    paths = [p for p, n in engine.captured.outputs.items() if engine.captured.now(n) == node]
    modules = dict(explainer.model.named_modules())
    own = [modules[p] for p in paths if p in modules and not list(modules[p].children())]
    return own[0] if len(own) == 1 else None


def _pooling(explainer: Explainer, engine: Engine, step: Step) -> Pooling | None:
    if isinstance(step, PassStep):
        return _as_it_is
    module = _module(explainer, engine, step.node)
    return module if _pools(step) else None


def _as_it_is(x_j: Tensor) -> Tensor:
    return x_j


def usual_rule(explainer: Explainer, lower: str, x: Inputs) -> Rule:
    """The paper's rule for what the detection layer reads: by its domain where it is an input, else z⁺."""
    inputs = explainer.engine_for(as_tuple(x)).planned.inputs
    domain: Domain = explainer.settings.domains[inputs.index(lower)] if lower in inputs else NonNegative()
    if isinstance(domain, Box):
        return ZBox(domain.low, domain.high)
    return ZPlus() if domain.non_negative else WSquare()
