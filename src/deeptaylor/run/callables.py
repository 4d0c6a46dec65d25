"""Targets written as functions of the output: looked at anew at every call, since what they close over may change.

read(score, output)
├── traced       the operations of the function on an output of this shape, by torch's tracer
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
from deeptaylor.graph.capture import pick_output
from deeptaylor.graph.eval_mode import LOCK
from deeptaylor.graph.failing import name_failure
from deeptaylor.operations.linear import is_linear

__all__ = ["ScoreFunction", "ScoreReading", "Scored", "one_number_a_sample", "read"]

ScoreFunction = Callable[[Tensor], Tensor]


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
        with LOCK, torch.no_grad():
            graph = make_fx(lambda z: one_number_a_sample(score(z), z))(zeros)
    except DeepTaylorError:
        raise
    except Exception:  # noqa: BLE001 - its control flow may depend on values: the capture will say so, in our words
        return ScoreReading(None, None)
    return ScoreReading(_weights(score, zeros) if _is_linear(graph) else None, _signature(graph))


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
    if not torch.equal(told, plain * places.reshape(-1, *[1] * (z.ndim - 1))):
        raise TargetError("The callable target mixes samples: each number must be computed from its own sample's row.")
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
