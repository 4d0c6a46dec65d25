"""Read what users ask about: numbers for names, weights for linear functions, or the same network with another output.

TargetReader
├── read             a target in numbers and tensors
├── to_weights       a linear function of the output as weights over it
└── check            raise if a target does not fit the output

find_variant         the same network with the output that a target asks about: a probability, a function of the output,
                     or an inner layer
read_score_function  what is known of a function of the output, which is read anew at every call: what it closes over
                     may change
├── traced           the operations of the function on an output of this shape, by torch's tracer
├── checked          on random outputs: it draws no random numbers, and no sample's number depends on another sample
├── weights          if it is linear, f = Σ v z: the same question as the weights v, and the same answer
└── signature        otherwise a text that differs if the function, or a tensor in it, differs
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import ModelSource
from deeptaylor.engine.place_target import PlaceTarget, PlaceWeights, read_place
from deeptaylor.engine.target import Unit
from deeptaylor.errors import DeepTaylorError, TargetError
from deeptaylor.graph.capture import is_random, pick_output
from deeptaylor.graph.failure import summarise_error
from deeptaylor.graph.modes import MODEL_LOCK
from deeptaylor.operations.properties import is_linear
from deeptaylor.settings import Settings

__all__ = [
    "PROBABILITY_NOTE", "ScoreFunction", "ScoreReading", "ScoredNetwork", "TargetReader", "Variant", "find_variant",
    "read_score_function", "require_one_number",
]  # fmt: skip

PROBABILITY_NOTE = "the probability is explained, and not the logit: the score is a probability"
ScoreFunction = Callable[[Tensor], Tensor]
_MIXES = (
    "The callable target mixes samples: a sample's number depends on the other samples. Compute each number from its "
    "own sample's row: output.amax(1) for output.max()."
)


class TargetReader:
    """Reads targets for a network whose classes may have names."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def read(self, target: Any, x: Any) -> Any:
        """Return a target for the inputs x in numbers and tensors."""
        if target is None or isinstance(target, (Tensor, int)):
            return target
        if isinstance(target, PlaceTarget):
            return replace(target, target=targets.replace_names(target.target, self._source.class_index))
        first = x[0] if isinstance(x, tuple) and x else x
        batch = first.shape[0] if isinstance(first, Tensor) and first.ndim else 1
        return targets.to_numbers(target, batch, self._source.class_index)

    def read_place(
        self, target: PlaceTarget, model: nn.Module, inputs: Sequence[Tensor], output: int | str | None
    ) -> PlaceWeights:
        """Return the weights over one of the network's outputs that a box, region or pixel stands for."""
        return read_place(target, model, inputs, output, self._source.class_name)

    def read_rivals(self, rivals: Any) -> Any:
        """Return the rivals of a contrast in numbers and tensors."""
        return targets.replace_names(rivals, self._source.class_index)

    def to_weights(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> Any:
        """Replace a linear function of the output by its weights, and a logit by its class; keep others."""
        if isinstance(target, (targets.Logit, targets.Probability)):
            self.check(target, engine, inputs, values=not inputs[0].is_cuda)
        if isinstance(target, targets.Logit):
            return target.target
        if not targets.is_callable(target) or engine.planned.removed_operations:
            return target
        weights = read_score_function(target, engine.empty_output(len(inputs[0]))).weights
        return target if weights is None else weights

    def check(self, target: Any, engine: Engine, inputs: Sequence[Tensor], values: bool = True) -> None:
        """Raise TargetError if a target does not fit the output.

        values   False: do not read tensors on a GPU, which would synchronise with it
        """
        if isinstance(target, PlaceTarget):
            raise TargetError("Boxes, regions and pixels are explained by explain(x, target) and between alone.")
        targets.check(target, tuple(engine.output_shape(len(inputs[0]))), values)
        if isinstance(target, targets.LogOdds) and "sigmoid" in engine.planned.removed_operations:
            raise TargetError(
                "Log-odds need a softmax over classes, but this network ends in sigmoid: each class has its own "
                "probability p, and log p / (1 − p) is its logit. Ask for target=dt.logit(c)."
            )


# --- the same network with another output -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """The same network with another output, and the target that explains it.

    signature   a text that tells this output from others; None if none is known, so that it cannot be cached
    """

    signature: str | None
    model: nn.Module
    settings: Settings
    target: Any


def find_variant(
    target: Any, model: nn.Module, settings: Settings, engine: Engine, inputs: Sequence[Tensor]
) -> Variant | None:
    """Return the variant of a network whose output a target refers to; None if that is the network's own output.

    model, settings   of the captured network
    engine            of the inputs
    """
    if isinstance(target, Unit) and target.layer != settings.layer:
        return cut_at(target.layer, model, settings, target)
    if isinstance(target, targets.Probability):
        return _of_probabilities(model, settings, engine.planned.removed_operations, target.target)
    if targets.is_callable(target):
        signature = read_score_function(target, engine.empty_output(len(inputs[0]))).signature
        scored = ScoredNetwork(model, target, settings.output)
        return Variant(signature, scored, replace(settings, output=None, keeps_final=True), None)
    return None


def cut_at(layer: str, model: nn.Module, settings: Settings, target: Any = None) -> Variant:
    """Return the variant of the network that ends at a layer."""
    return Variant(f"cut at {layer}", model, replace(settings, output=None, layer=layer), target)


def _of_probabilities(model: nn.Module, settings: Settings, final: Sequence[str], target: Any) -> Variant:
    """Return the variant of the network that returns probabilities.

    final   the operations that the network ends in, the last one first
    """
    chosen = replace(settings, keeps_final=True)
    if final and final[0] != "log_softmax":
        return Variant("probability", model, chosen, target)
    likely = _ProbabilityNetwork(model, torch.exp if final else _to_probabilities, settings.output)
    return Variant("probability", likely, replace(chosen, output=None), target)


# --- functions of the output ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreReading:
    """What is known of a function: its weights if it is linear, and a text that tells it from others."""

    weights: Tensor | None
    signature: str | None


def read_score_function(score: ScoreFunction, output: Tensor) -> ScoreReading:
    """Trace a function on an output of this shape, dtype and device; the values of `output` do not matter."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    zeros = torch.zeros(output.shape, dtype=output.dtype, device=output.device)
    try:
        with MODEL_LOCK, torch.no_grad(), torch.random.fork_rng(devices=[]):
            graph = make_fx(lambda z: require_one_number(score(z), z))(zeros)
    except DeepTaylorError:
        raise
    except Exception:  # noqa: BLE001 - its control flow may depend on values: the capture will say so, in our words
        graph = None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        random_output = torch.rand(output.shape, generator=torch.Generator().manual_seed(0)).to(zeros)
        _check_random(score, random_output, graph)
        _check_mixing(score, random_output)
        if graph is None or not _agrees(graph, score, random_output):
            return ScoreReading(None, None)
    return ScoreReading(_weights(score, zeros) if _is_linear(graph) else None, _signature(graph))


def _check_random(score: ScoreFunction, output: Tensor, graph: fx.GraphModule | None) -> None:
    """Raise if a function gives another result at each call."""
    drawn = graph is not None and any(n.users and n.op == "call_function" and is_random(n) for n in graph.graph.nodes)
    first, *again = (_try(score, output) for _ in range(4))
    if drawn or any(first is not None and other is not None and not _is_close(first, other) for other in again):
        raise TargetError(
            "The callable target gives another result each time it is called: does it draw random numbers, or count "
            "its calls? There is no single score to explain. Make it a function of the output alone, for example with "
            "numbers that are drawn once, outside of it."
        )


def _check_mixing(score: ScoreFunction, output: Tensor) -> None:
    """Raise if the number of one sample changes with the output of another."""
    several = output if len(output) > 1 else torch.cat([output, output.flip(-1) * 0.7])
    n, before = len(several), _try(score, several)
    if before is None:
        return  # the function may insist on one sample
    for own, others in ((slice(0, 1), slice(1, n)), (slice(1, n), slice(0, 1))):
        for factor in (1, 10, -1):
            changed = several.clone()
            changed[others] = (several[others].flip(-1) + 0.1) * factor
            now = _try(score, changed)
            if now is not None and not _is_close(before[own], now[own]):
                raise TargetError(_MIXES)


def _agrees(graph: fx.GraphModule, score: ScoreFunction, output: Tensor) -> bool:
    """Return False if numbers that the function read from the output (.item(), NumPy) became constants in its trace."""
    a, b = _try(graph, output), _try(score, output)
    return a is None or b is None or _is_close(a, b)


def _try(score: Callable[[Tensor], Any], output: Tensor) -> Tensor | None:
    """Return the result of a function; None if it fails on random values."""
    try:
        return require_one_number(score(output.clone()), output).detach().reshape(-1)
    except Exception:  # noqa: BLE001 - a function may raise anything; the capture will say so, in our words
        return None


def _is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def require_one_number(score: Any, output: Tensor) -> Tensor:
    """Return the result of a function; raise TargetError unless it is one real number per sample."""
    shape = tuple(score.shape) if isinstance(score, Tensor) else None
    if not isinstance(score, Tensor) or shape not in ((output.shape[0],), (output.shape[0], 1)):
        got = type(score).__name__ if shape is None else f"shape {shape}"
        raise TargetError(
            "A callable target must return one number per sample: a tensor of shape (batch,) or (batch, 1); "
            f"for an output of shape {tuple(output.shape)} it returned {got}."
        )
    if not score.is_floating_point():
        kind = "complex numbers" if score.is_complex() else str(score.dtype)
        raise TargetError(
            f"A callable target must return real numbers; it returned {kind}. Return the scores before they are "
            "compared, rounded or made complex."
        )
    return score


class ScoredNetwork(nn.Module):
    """score(network(x)): a callable target made part of the network."""

    def __init__(self, model: nn.Module, score: ScoreFunction, output: int | str | None) -> None:
        super().__init__()
        self.model, self.score, self.output = model, score, output
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the score of a batch."""
        chosen, _ = pick_output(self.model(*inputs), self.output, Tensor)
        return require_one_number(self._score(chosen), chosen)

    def _score(self, output: Tensor) -> Tensor:
        """Return the function's result; raise TargetError if it fails."""
        try:
            return self.score(output)
        except DeepTaylorError:
            raise
        except Exception as error:
            if type(output) is not Tensor:  # the exporter's own errors: torch must see them
                raise
            raise TargetError(
                f"The callable target raises {summarise_error(error)}. It is called with the network's output, here of "
                f"shape {tuple(output.shape)}."
            ) from error


class _ProbabilityNetwork(ScoredNetwork):
    """A network whose output is turned into probabilities by a function."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the probabilities of a batch."""
        chosen, _ = pick_output(self.model(*inputs), self.output, Tensor)
        return self._score(chosen)


def _to_probabilities(output: Tensor) -> Tensor:
    """Return the softmax over the classes, or the sigmoid of one number per sample."""
    return output.softmax(1) if output.ndim > 1 and output.shape[1] > 1 else output.sigmoid()


def _is_linear(module: fx.GraphModule) -> bool:
    """Return True if every operation between the output and the score is linear."""
    data: set[fx.Node] = set()
    for node in module.graph.nodes:
        given = [n for n in node.all_input_nodes if n in data]
        if node.op == "placeholder":
            data.add(node)
        if not given or node.op == "output":
            continue
        value = node.meta.get("val")
        if not is_linear(node, given) or (isinstance(value, Tensor) and not value.is_floating_point()):
            return False
        data.add(node)
    return True


def _weights(score: ScoreFunction, zeros: Tensor) -> Tensor | None:
    """Return v in f = Σ v z, one set per sample; None if f is not zero at zero."""
    with torch.inference_mode(False), torch.enable_grad():
        z = zeros.clone().requires_grad_()
        value = require_one_number(score(z), z).reshape(-1)
        if bool((value.detach() != 0).any()) or not value.requires_grad:
            return None
        places = torch.arange(1, len(value) + 1, dtype=z.dtype, device=z.device)
        plain = torch.autograd.grad(value.sum(), z, retain_graph=True)[0]
        told = torch.autograd.grad((value * places).sum(), z)[0]
    expected = plain * places.reshape(-1, *[1] * (z.ndim - 1))  # its sums are rounded otherwise
    allowed = torch.finfo(z.dtype).eps ** 0.5
    if not torch.allclose(told, expected, rtol=allowed, atol=allowed * float(expected.abs().max())):
        raise TargetError(_MIXES)
    return plain


def _signature(module: fx.GraphModule) -> str:
    """Return a key of the function: its operations with their arguments, and the bytes of their tensors."""
    parts = [module.code]
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            t = value.detach().cpu().contiguous()
            bits = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
            parts.append(f"{t.dtype} {tuple(t.shape)} {hashlib.sha256(bits).hexdigest()}")
    return "\n".join(parts)
