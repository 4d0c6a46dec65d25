"""Recurrent layers as the operations of their steps, one step after another: they are explained like any others.

    LSTM   c ← σ(f) c + σ(i) tanh(g)             h ← σ(o) tanh(c)
    GRU    n ← tanh(a + σ(r) b)                  h ← σ(z) h + (1 − σ(z)) n
    RNN    h ← φ(a + b)                          φ is tanh or the rectifier

a = W x + b and b = V h + c are what the step reads of the input and of its memory; i, f, g, o, r and z are their parts.
The sigmoids are gates, through which relevance goes to what they weigh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.exporting import exporting

__all__ = ["unrolled"]

aten = torch.ops.aten
Memory = tuple[Tensor, ...]  # h, and c where there is one
Step = Callable[[Tensor, Tensor, Memory], Memory]


def unrolled(program: Any) -> Any:
    """An exported program with the steps of its recurrent layers in their place."""
    if not any(node.target in _STEPS for node in program.graph.nodes):
        return program
    with exporting():
        return program.run_decompositions(_STEPS)


def _lstm_step(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    i, f, g, o = (a + b).chunk(4, -1)
    c = torch.sigmoid(f) * memory[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    (r, z, n), (hr, hz, hn) = a.chunk(3, -1), b.chunk(3, -1)
    keep = torch.sigmoid(z + hz)
    return (keep * memory[0] + (1 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn),)


def _tanh_step(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    return (torch.tanh(a + b),)


def _relu_step(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    return (torch.relu(a + b),)


def _layer(step: Step, x: Tensor, memory: Memory, weights: Sequence[Tensor], biased: bool) -> tuple[Tensor, Memory]:
    """One direction of one layer over all steps: (time, batch, features)."""
    w, v = weights[:2]
    biases = weights[2:4] if biased else (None, None)
    smaller = weights[-1] if len(weights) in (3, 5) else None  # an LSTM's output projection
    seen = []
    for now in x.unbind(0):  # each step reads its own input: what it adds up is one sum
        h, *rest = step(F.linear(now, w, biases[0]), F.linear(memory[0], v, biases[1]), memory)
        memory = (h if smaller is None else F.linear(h, smaller), *rest)
        seen.append(memory[0])
    return torch.stack(seen), memory


def _layers(step: Step) -> Callable[..., Memory]:
    """All layers and directions, as torch's operation takes and returns them."""

    def run(
        x: Tensor, memory: Any, params: Sequence[Tensor], biased: bool, layers: int,
        dropout: float, train: bool, both_ways: bool, batch_first: bool,
    ) -> Memory:  # fmt: skip
        states = memory if isinstance(memory, list | tuple) else [memory]
        x = x.transpose(0, 1) if batch_first else x
        ways = 2 if both_ways else 1
        each, ends = len(params) // (layers * ways), []
        for layer in range(layers):
            found = []
            for way in range(ways):
                k = layer * ways + way
                first = tuple(s[k] for s in states)
                y, end = _layer(step, x.flip(0) if way else x, first, params[k * each : (k + 1) * each], biased)
                found.append(y.flip(0) if way else y)
                ends.append(end)
            x = torch.cat(found, -1) if both_ways else found[0]
        return x.transpose(0, 1) if batch_first else x, *(torch.stack(s) for s in zip(*ends, strict=True))

    return run


def _cell(step: Step) -> Callable[..., Any]:
    """One step, as torch's operation takes and returns it."""

    def run(x: Tensor, memory: Any, w: Tensor, v: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Any:
        states = tuple(memory) if isinstance(memory, list | tuple) else (memory,)
        after = step(F.linear(x, w, b), F.linear(states[0], v, c), states)
        return after if len(after) > 1 else after[0]

    return run


_STEPS = {
    aten.lstm.input: _layers(_lstm_step),
    aten.gru.input: _layers(_gru_step),
    aten.rnn_tanh.input: _layers(_tanh_step),
    aten.rnn_relu.input: _layers(_relu_step),
    aten.lstm_cell.default: _cell(_lstm_step),
    aten.gru_cell.default: _cell(_gru_step),
    aten.rnn_tanh_cell.default: _cell(_tanh_step),
    aten.rnn_relu_cell.default: _cell(_relu_step),
}
