"""Recurrent layers, unrolled into the operations of their time steps, which are explained like any others.

    LSTM   c ← σ(f) c + σ(i) tanh(g)             h ← σ(o) tanh(c)
    GRU    n ← tanh(a + σ(r) b)                  h ← σ(z) h + (1 − σ(z)) n
    RNN    h ← φ(a + b)                          φ is tanh or the rectifier

a = W x + b is computed from the input, b = V h + c from the memory; i, f, g, o, r and z are parts of them.
The sigmoids are gates: relevance goes to the values that they multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.modes import isolate_export

__all__ = ["unroll_recurrent"]

aten = torch.ops.aten
Memory = tuple[Tensor, ...]  # h; for an LSTM h and c
Step = Callable[[Tensor, Tensor, Memory], Memory]


def unroll_recurrent(program: Any) -> Any:
    """Replace the recurrent layers of an exported program by the operations of their time steps."""
    if not any(node.target in _STEPS for node in program.graph.nodes):
        return program
    with isolate_export():
        return program.run_decompositions(_STEPS)


def _step_lstm(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    """Return h and c after one time step of an LSTM."""
    i, f, g, o = (a + b).chunk(4, -1)
    c = torch.sigmoid(f) * memory[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _step_gru(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    """Return h after one time step of a GRU."""
    (r, z, n), (hr, hz, hn) = a.chunk(3, -1), b.chunk(3, -1)
    keep = torch.sigmoid(z + hz)
    return (keep * memory[0] + (1 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn),)


def _step_tanh(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    """Return h after one time step of an RNN with tanh."""
    return (torch.tanh(a + b),)


def _step_relu(a: Tensor, b: Tensor, memory: Memory) -> Memory:
    """Return h after one time step of an RNN with ReLU."""
    return (torch.relu(a + b),)


def _run_layer(
    step: Step, x: Tensor, memory: Memory, weights: Sequence[Tensor], has_biases: bool
) -> tuple[Tensor, Memory]:
    """Return the outputs and the last memory of one direction of one layer, for x of shape (time, batch, features)."""
    w, v = weights[:2]
    biases = weights[2:4] if has_biases else (None, None)
    projection = weights[-1] if len(weights) in (3, 5) else None  # an LSTM's output projection
    seen = []
    for now in x.unbind(0):  # one projection per time step, so that input and memory are added in one sum
        h, *rest = step(F.linear(now, w, biases[0]), F.linear(memory[0], v, biases[1]), memory)
        memory = (h if projection is None else F.linear(h, projection), *rest)
        seen.append(memory[0])
    return torch.stack(seen), memory


def _make_layers(step: Step) -> Callable[..., Memory]:
    """Return a replacement for torch's recurrent operation that runs this step in all layers and directions."""

    def run(
        x: Tensor, memory: Any, params: Sequence[Tensor], has_biases: bool, layers: int,
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
                y, end = _run_layer(step, x.flip(0) if way else x, first, params[k * each : (k + 1) * each], has_biases)
                found.append(y.flip(0) if way else y)
                ends.append(end)
            x = torch.cat(found, -1) if both_ways else found[0]
        return x.transpose(0, 1) if batch_first else x, *(torch.stack(s) for s in zip(*ends, strict=True))

    return run


def _make_cell(step: Step) -> Callable[..., Any]:
    """Return a replacement for torch's recurrent cell that runs this step once."""

    def run(x: Tensor, memory: Any, w: Tensor, v: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Any:
        states = tuple(memory) if isinstance(memory, list | tuple) else (memory,)
        after = step(F.linear(x, w, b), F.linear(states[0], v, c), states)
        return after if len(after) > 1 else after[0]

    return run


_STEPS = {
    aten.lstm.input: _make_layers(_step_lstm),
    aten.gru.input: _make_layers(_step_gru),
    aten.rnn_tanh.input: _make_layers(_step_tanh),
    aten.rnn_relu.input: _make_layers(_step_relu),
    aten.lstm_cell.default: _make_cell(_step_lstm),
    aten.gru_cell.default: _make_cell(_step_gru),
    aten.rnn_tanh_cell.default: _make_cell(_step_tanh),
    aten.rnn_relu_cell.default: _make_cell(_step_relu),
}
