"""Targets written as functions of the output: looked at anew at every call, since what they close over may change.

read(score, output)
├── traced       the operations of the function on an output of this shape, by torch's tracer
├── checked      on made-up outputs: it draws no random numbers, and no sample's number changes with another sample
├── weights      where it is linear, f = Σ v z: the same question as weights v, and the same answer
└── signature    else a text that is another one if the function, or a tensor in it, is another

Scored(network, score) is a network of its own: what cannot be written as weights is captured with the function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import DeepTaylorError, TargetError
from deeptaylor.graph.capture import draws, pick_output
from deeptaylor.graph.eval_mode import LOCK
from deeptaylor.graph.failing import name_failure
from deeptaylor.operations.linear import is_linear

__all__ = [
    "ScoreFunction", "ScoreReading", "Scored", "WithProbabilities", "of_logits", "one_number_a_sample", "read",
]  # fmt: skip

ScoreFunction = Callable[[Tensor], Tensor]
_MIXES = (
    "The callable target mixes samples: a sample's number depends on the other samples. Compute each number from its "
    "own sample's row: output.amax(1) for output.max()."
)


@dataclass(frozen=True)
class ScoreReading:
    """What is known of a function: its weights where it is linear, and a text that tells it from others."""

    weights: Tensor | None
    signature: str | None


def read(score: ScoreFunction, output: Tensor) -> ScoreReading:
    """Look at a function on an output of this shape, type and place; its values do not matter."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

    zeros = torch.zeros(output.shape, dtype=output.dtype, device=output.device)
    try:
        with LOCK, torch.no_grad(), torch.random.fork_rng(devices=[]):
            graph = make_fx(lambda z: one_number_a_sample(score(z), z))(zeros)
    except DeepTaylorError:
        raise
    except Exception:  # noqa: BLE001 - its control flow may depend on values: the capture will say so, in our words
        graph = None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        made_up = torch.rand(output.shape, generator=torch.Generator().manual_seed(0)).to(zeros)
        _check_random(score, made_up, graph)
        _check_mixing(score, made_up)
        if graph is None or not _gives_the_same(graph, score, made_up):
            return ScoreReading(None, None)
    return ScoreReading(_weights(score, zeros) if _is_linear(graph) else None, _signature(graph))


def _check_random(score: ScoreFunction, output: Tensor, graph: fx.GraphModule | None) -> None:
    """Raise if a function gives another result at each call."""
    drawn = graph is not None and any(n.users and n.op == "call_function" and draws(n) for n in graph.graph.nodes)
    first, *again = (_try(score, output) for _ in range(4))
    if drawn or any(first is not None and other is not None and not _same(first, other) for other in again):
        raise TargetError(
            "The callable target gives another result each time it is called: does it draw random numbers, or count "
            "its calls? There is no one score to explain. Make it a function of the output alone, for example with "
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
            if now is not None and not _same(before[own], now[own]):
                raise TargetError(_MIXES)


def _gives_the_same(graph: fx.GraphModule, score: ScoreFunction, output: Tensor) -> bool:
    """False if numbers that the function read out of the output (.item(), NumPy) became constants of its graph."""
    a, b = _try(graph, output), _try(score, output)
    return a is None or b is None or _same(a, b)


def _try(score: Callable[[Tensor], Any], output: Tensor) -> Tensor | None:
    """A function's result; None if it fails on made-up values."""
    try:
        return one_number_a_sample(score(output.clone()), output).detach().reshape(-1)
    except Exception:  # noqa: BLE001 - a function may raise anything; the capture will say so, in our words
        return None


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def one_number_a_sample(score: Any, output: Tensor) -> Tensor:
    """A function's result, if it is what is asked for."""
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


class Scored(nn.Module):
    """score(network(x)): a callable target made part of the network."""

    def __init__(self, model: nn.Module, score: ScoreFunction, output: int | str | None) -> None:
        super().__init__()
        self.model, self.score, self.output = model, score, output
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Tensor:
        """The score of a batch."""
        chosen, _ = pick_output(self.model(*inputs), self.output, Tensor)
        return one_number_a_sample(self._score(chosen), chosen)

    def _score(self, output: Tensor) -> Tensor:
        """Return the function's result; what it raises on real values is an error of the target."""
        try:
            return self.score(output)
        except DeepTaylorError:
            raise
        except Exception as error:
            if type(output) is not Tensor:  # the exporter's own errors: torch must see them
                raise
            raise TargetError(
                f"The callable target raises {name_failure(error)}. It is called with the network's output, here of "
                f"shape {tuple(output.shape)}."
            ) from error


class WithProbabilities(Scored):
    """A network whose output is turned into probabilities by a function."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """The probabilities of a batch."""
        chosen, _ = pick_output(self.model(*inputs), self.output, Tensor)
        return self._score(chosen)


def of_logits(output: Tensor) -> Tensor:
    """Softmax over the classes; sigmoid of one number per sample."""
    return output.softmax(1) if output.ndim > 1 and output.shape[1] > 1 else output.sigmoid()


def _is_linear(module: fx.GraphModule) -> bool:
    """True if every operation between the output and the score is linear."""
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
    """v in f = Σ v z, one set a sample; None where f is not zero at zero."""
    with torch.inference_mode(False), torch.enable_grad():
        z = zeros.clone().requires_grad_()
        value = one_number_a_sample(score(z), z).reshape(-1)
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
    """The operations with their numbers, and the bits of every tensor among them."""
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
