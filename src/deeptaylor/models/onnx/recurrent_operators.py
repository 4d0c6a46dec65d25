"""ONNX's LSTM, GRU and RNN, step by step: the same operations as graph/recurrent.py makes of torch's layers.

ONNX orders the gates otherwise than torch (LSTM: input, output, forget, cell; GRU: update, reset, hidden), knows other
activations, peepholes and lengths of sequences, and stacks both directions along an axis of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["gru", "lstm", "rnn"]

Memory = tuple[Tensor, ...]  # h, and c of an LSTM
Function = Callable[[Tensor], Tensor]
_WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}  # read backwards?


# --- activations ------------------------------------------------------------------------------------------------------


def _affine(x: Tensor, alpha: float, beta: float) -> Tensor:
    return alpha * x + beta


def _scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    return alpha * torch.tanh(beta * x)


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _leaky_relu(x: Tensor, alpha: float) -> Tensor:
    return F.leaky_relu(x, alpha)


def _thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    return F.threshold(x, alpha, 0.0)


def _elu(x: Tensor, alpha: float) -> Tensor:
    return F.elu(x, alpha)


# With the default of each parameter.
_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "relu": (torch.relu, {}),
    "tanh": (torch.tanh, {}),
    "sigmoid": (torch.sigmoid, {}),
    "softsign": (F.softsign, {}),
    "softplus": (F.softplus, {}),
    "affine": (_affine, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (_scaled_tanh, {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": (_leaky_relu, {"alpha": 0.01}),
    "thresholdedrelu": (_thresholded_relu, {"alpha": 1.0}),
    "elu": (_elu, {"alpha": 1.0}),
}


@dataclass(frozen=True)
class _Functions:
    """The activations of each direction."""

    names: Sequence[str]
    alphas: Sequence[float]
    betas: Sequence[float]
    clip: float | None

    def read(self) -> list[Function]:
        """Return the functions; parameters are consumed in the order of the functions that have them."""
        left = {"alpha": list(self.alphas), "beta": list(self.betas)}
        found: list[Function] = []
        for name in self.names:
            if name.lower() not in _ACTIVATIONS:
                raise ValueError(f"the activation {name!r} is not known")
            function, defaults = _ACTIVATIONS[name.lower()]
            given = {key: left[key].pop(0) if left[key] else value for key, value in defaults.items()}
            found.append(self._clip(partial(function, **given)))
        return found

    def _clip(self, function: Function) -> Function:
        if self.clip is None:
            return function
        bound = self.clip
        return lambda x: function(torch.clamp(x, -bound, bound))


# --- one step ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """One direction: its weights, biases, peepholes and activations."""

    w: Tensor
    r: Tensor
    wb: Tensor | None
    rb: Tensor | None
    peepholes: Tensor | None
    functions: Sequence[Function]
    linear_before_reset: bool = False

    def lstm(self, x: Tensor, memory: Memory) -> Memory:
        """Return h and c after a step."""
        h, c = memory
        f, g, k = self.functions
        i, o, forget, new = (F.linear(x, self.w, self.wb) + F.linear(h, self.r, self.rb)).chunk(4, -1)
        p = (None, None, None) if self.peepholes is None else self.peepholes.chunk(3, -1)
        if p[0] is not None:
            i, forget = i + p[0] * c, forget + p[2] * c
        c = f(forget) * c + f(i) * g(new)
        if p[1] is not None:
            o = o + p[1] * c
        return f(o) * k(c), c

    def gru(self, x: Tensor, memory: Memory) -> Memory:
        """Return h after a step."""
        (h,), (f, g) = memory, self.functions
        size = h.shape[-1]
        z, r, n = F.linear(x, self.w, self.wb).chunk(3, -1)
        split = (2 * size, size)
        gates, new = self.r.split(split)
        gate_bias, new_bias = (None, None) if self.rb is None else self.rb.split(split)
        hz, hr = F.linear(h, gates, gate_bias).chunk(2, -1)
        keep, reset = f(z + hz), f(r + hr)
        if self.linear_before_reset:
            n = n + reset * F.linear(h, new, new_bias)
        else:
            n = n + F.linear(reset * h, new, new_bias)
        return (keep * h + (1 - keep) * g(n),)

    def rnn(self, x: Tensor, memory: Memory) -> Memory:
        """Return h after a step."""
        (h,), (f,) = memory, self.functions
        return (f(F.linear(x, self.w, self.wb) + F.linear(h, self.r, self.rb)),)


# --- all steps --------------------------------------------------------------------------------------------------------


def _run(
    step: str, functions: _Functions, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None,
    states: Sequence[Tensor | None], peepholes: Tensor | None = None, *,
    direction: str, layout: int, linear_before_reset: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the outputs of all steps, and the last states."""
    if direction not in _WAYS:
        raise ValueError(f"the direction {direction!r} is not known")
    ways, size = _WAYS[direction], r.shape[-1]
    x = x.transpose(0, 1) if layout else x
    start = [
        x.new_zeros(len(ways), x.shape[1], size) if s is None else s.transpose(0, 1) if layout else s for s in states
    ]
    each = functions.read()
    per_way = len(each) // len(ways)
    outputs, ends = [], []
    for d, backwards in enumerate(ways):
        wb, rb = (None, None) if b is None else b[d].chunk(2)
        own = each[d * per_way : (d + 1) * per_way]
        cell = _Cell(w[d], r[d], wb, rb, None if peepholes is None else peepholes[d], own, linear_before_reset)
        seen, memory = _run_steps(getattr(cell, step), x, lengths, tuple(s[d] for s in start), backwards)
        outputs.append(seen)
        ends.append(memory)
    y, last = torch.stack(outputs, 1), [torch.stack(state) for state in zip(*ends, strict=True)]
    if layout:
        return (y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last))
    return (y, *last)


def _run_steps(
    step: Callable[[Tensor, Memory], Memory], x: Tensor, lengths: Tensor | None, memory: Memory, backwards: bool
) -> tuple[Tensor, Memory]:
    """Run one direction; beyond a sample's length its memory stays and its output is zero."""
    inputs = list(enumerate(x.unbind(0)))
    seen = []
    for t, now in reversed(inputs) if backwards else inputs:
        new = step(now, memory)
        output = new[0]
        if lengths is not None:
            going = (lengths > t).unsqueeze(1)
            new = tuple(torch.where(going, a, b) for a, b in zip(new, memory, strict=True))
            output = torch.where(going, output, 0)
        memory = new
        seen.append(output)
    if lengths is not None:  # as onnxruntime does; the standard does not say
        memory = tuple(torch.where((lengths > 0).unsqueeze(1), state, 0) for state in memory)
    return torch.stack(seen[::-1] if backwards else seen), memory


# --- the operators ----------------------------------------------------------------------------------------------------


def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    hidden_size: int | None = None,
    direction: str = "forward",
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    input_forget: int = 0,
    layout: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    """LSTM."""
    if input_forget:
        raise ValueError("an LSTM with coupled gates (input_forget) is not supported")
    names = _read_names(activations, ["Sigmoid", "Tanh", "Tanh"], direction)
    functions = _Functions(names, activation_alpha, activation_beta, clip)
    states = [initial_h, initial_c]
    return _run("lstm", functions, x, w, r, b, sequence_lens, states, p, direction=direction, layout=layout)


def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    hidden_size: int | None = None,
    direction: str = "forward",
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    """GRU."""
    names = _read_names(activations, ["Sigmoid", "Tanh"], direction)
    functions = _Functions(names, activation_alpha, activation_beta, clip)
    return _run(
        "gru", functions, x, w, r, b, sequence_lens, [initial_h], direction=direction, layout=layout,
        linear_before_reset=bool(linear_before_reset),
    )  # fmt: skip


def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    hidden_size: int | None = None,
    direction: str = "forward",
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    layout: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    """RNN."""
    functions = _Functions(_read_names(activations, ["Tanh"], direction), activation_alpha, activation_beta, clip)
    return _run("rnn", functions, x, w, r, b, sequence_lens, [initial_h], direction=direction, layout=layout)


def _read_names(given: Sequence[str | bytes], default: list[str], direction: str) -> list[str]:
    """Return the names of the activations of every direction."""
    ways = len(_WAYS.get(direction, ()))
    names = [name.decode() if isinstance(name, bytes) else name for name in given] or default * ways
    if len(names) != len(default) * ways:
        raise ValueError(f"{len(names)} activations are given, {len(default) * ways} are needed")
    return names
