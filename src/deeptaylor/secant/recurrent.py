"""Recurrent layers, written out: one step of an LSTM, a GRU or a plain RNN after the other, each of exact splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.secant import unary
from deeptaylor.secant.pair import Pair, RefusedError
from deeptaylor.secant.products import linear, multiply
from deeptaylor.secant.unary import bent, of_form

__all__ = ["gru", "lstm", "rnn"]

States = tuple[Any, ...]  # h, and of an LSTM c
Step = Callable[[Any, Any, States, int], States]  # of what x and h give, the states, and the width


def _add(a: Any, b: Any) -> Pair:
    return linear(torch.add, (a, b), {})


def _times(a: Any, b: Any) -> Any:
    return multiply(torch.mul, (a, b), {})


def _part(p: Any, k: int, width: int) -> Pair:
    return linear(lambda t: t[..., k * width : (k + 1) * width], (p,), {})


def _sigmoid(p: Pair) -> Pair:
    return of_form(unary.sigmoid)(torch.sigmoid, (p,), {})


def _tanh(p: Pair) -> Pair:
    return of_form(unary.tanh)(torch.tanh, (p,), {})


# --- one step ---------------------------------------------------------------------------------------------------------


def _lstm_step(of_x: Any, of_h: Any, states: States, width: int) -> States:
    """c' = f c + i g, h' = o tanh(c')."""
    gates = _add(of_x, of_h)
    i, f, g, o = (_part(gates, k, width) for k in range(4))
    c = _add(_times(_sigmoid(f), states[1]), _times(_sigmoid(i), _tanh(g)))
    return _times(_sigmoid(o), _tanh(c)), c


def _gru_step(of_x: Any, of_h: Any, states: States, width: int) -> States:
    """h' = n + z (h − n), n = tanh(W x + r (V h))."""
    r, z = (_sigmoid(_add(_part(of_x, k, width), _part(of_h, k, width))) for k in range(2))
    n = _tanh(_add(_part(of_x, 2, width), _times(r, _part(of_h, 2, width))))
    return (_add(n, _times(z, linear(torch.sub, (states[0], n), {}))),)


def _rnn_step(bend: Callable[[Pair], Pair]) -> Step:
    def step(of_x: Any, of_h: Any, states: States, width: int) -> States:
        return (bend(_add(of_x, of_h)),)

    return step


# --- all steps --------------------------------------------------------------------------------------------------------


def _direction(x: Any, states: States, weights: Sequence[Tensor], step: Step, backwards: bool) -> tuple[Pair, States]:
    """One layer in one direction, time first."""
    to_gates, from_state, *biases = weights
    b, c = biases or (None, None)
    of_x = linear(F.linear, (x, to_gates, b), {})
    outputs: list[Any] = []
    times = range(of_x.x.shape[0])
    for t in reversed(times) if backwards else times:
        here = linear(lambda v, t=t: v[t], (of_x,), {})
        states = step(here, linear(F.linear, (states[0], from_state, c), {}), states, from_state.shape[1])
        outputs.append(states[0])
    stacked = linear(torch.stack, (outputs[::-1] if backwards else outputs,), {})
    return stacked, states


def _layers(
    x: Any, begin: Sequence[Any], weights: Sequence[Tensor], how: tuple[Any, ...], step: Step
) -> tuple[Any, ...]:
    """Every layer, in one direction or both; the outputs, and the last states of each."""
    has_biases, layers, _, train, both, batch_first = how
    if train:
        raise RefusedError("it is in training mode")
    ways, per = 2 if both else 1, 4 if has_biases else 2
    if len(weights) != layers * ways * per:
        raise RefusedError("a recurrent layer with a projection has no split")
    x = linear(lambda t: t.transpose(0, 1), (x,), {}) if batch_first else x
    last: list[States] = []
    for k in range(layers):
        found = []
        for way in range(ways):
            n = k * ways + way
            states = tuple(linear(lambda t, n=n: t[n], (h,), {}) for h in begin)
            output, ended = _direction(x, states, weights[n * per : (n + 1) * per], step, bool(way))
            found.append(output)
            last.append(ended)
        x = linear(lambda *t: torch.cat(t, -1), tuple(found), {})
    ends = [linear(lambda *t: torch.stack(t), tuple(states[k] for states in last), {}) for k in range(len(begin))]
    return (linear(lambda t: t.transpose(0, 1), (x,), {}) if batch_first else x, *ends)


def lstm(op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The outputs, and the last h and c."""
    x, begin, weights, *how = args
    return _layers(x, begin, weights, tuple(how), _lstm_step)


def gru(op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The outputs, and the last h."""
    x, begin, weights, *how = args
    return _layers(x, (begin,), weights, tuple(how), _gru_step)


def rnn(rectified: bool) -> Callable[..., tuple[Any, ...]]:
    """The same with tanh or a rectifier alone."""

    def split(op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        x, begin, weights, *how = args
        bend: Callable[[Pair], Pair] = (lambda p: bent(torch.relu, (p,), {})) if rectified else _tanh
        return _layers(x, (begin,), weights, tuple(how), _rnn_step(bend))

    return split
