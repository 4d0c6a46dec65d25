"""Secants by dense matrices, one sample in float64 NumPy, and forwards: the map from Δinput to Δ of every value.

Nothing is shared with the package, neither code nor the way: it goes back with multipliers, this goes forwards with
whole matrices, and takes every slope as the plain quotient of differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Value(NamedTuple):
    """A vector at x and at the reference; `map` takes the input's change to its change."""

    x: Array
    x0: Array
    map: Array

    @property
    def middle(self) -> Array:
        return (self.x + self.x0) / 2


def begin(x: Array, x0: Array) -> Value:
    """The input itself, flat."""
    return Value(x.reshape(-1), x0.reshape(-1), np.eye(x.size))


def relevance(value: Value, k: int, start: Value) -> Array:
    """R of the input for the k-th element of a value."""
    return value.map[k] * (start.x - start.x0)


def linear(v: Value, weight: Array, bias: Array | float = 0.0) -> Value:
    return Value(weight @ v.x + bias, weight @ v.x0 + bias, weight @ v.map)


def add(a: Value, b: Value) -> Value:
    return Value(a.x + b.x, a.x0 + b.x0, a.map + b.map)


def unary(v: Value, function: Callable[[Array], Array]) -> Value:
    y, y0 = function(v.x), function(v.x0)
    slope = np.array([(a - b) / (c - d) if c != d else 0.0 for a, b, c, d in zip(y, y0, v.x, v.x0, strict=True)])
    return Value(y, y0, slope[:, None] * v.map)


def product(a: Value, b: Value) -> Value:
    return Value(a.x * b.x, a.x0 * b.x0, b.middle[:, None] * a.map + a.middle[:, None] * b.map)


def quotient(a: Value, b: Value) -> Value:
    """From a = y b."""
    y, y0 = a.x / b.x, a.x0 / b.x0
    return Value(y, y0, (a.map - ((y + y0) / 2)[:, None] * b.map) / b.middle[:, None])


def softmax(v: Value) -> Value:
    p, p0 = (np.exp(s) / np.exp(s).sum() for s in (v.x, v.x0))
    mean = (p - p0) / (np.log(p) - np.log(p0))
    return Value(p, p0, (np.diag(mean) - np.outer(mean, mean) / mean.sum()) @ v.map)


def layer_norm(v: Value, gamma: Array, beta: Array, eps: float) -> Value:
    """Centre, variance as a mean of products, root, quotient."""
    n = len(v.x)
    centred = linear(v, np.eye(n) - 1 / n)
    variance = linear(product(centred, centred), np.full((1, n), 1 / n), eps)
    deviation = linear(unary(variance, np.sqrt), np.ones((n, 1)))
    return linear(quotient(centred, deviation), np.diag(gamma), beta)


def matrices(a: Value, b: Value, m: int, n: int, o: int) -> Value:
    """a (m × n) times b (n × o), element by element."""

    def rows(value: Value, index: list[int]) -> Value:
        return Value(value.x[index], value.x0[index], value.map[index])

    total: Value | None = None
    for k in range(n):
        left = rows(a, [i * n + k for i in range(m) for _ in range(o)])
        right = rows(b, [k * o + j for _ in range(m) for j in range(o)])
        term = product(left, right)
        total = term if total is None else add(total, term)
    assert total is not None
    return total


def each(v: Value, width: int, function: Callable[[Value], Value]) -> Value:
    """A function of every row of `width` numbers."""
    parts = [
        function(Value(v.x[k : k + width], v.x0[k : k + width], v.map[k : k + width]))
        for k in range(0, len(v.x), width)
    ]
    return Value(*(np.concatenate([part[n] for part in parts]) for n in range(3)))


def turned(v: Value, rows: int, columns: int) -> Value:
    """A matrix transposed."""
    order = np.arange(rows * columns).reshape(rows, columns).T.reshape(-1)
    return Value(v.x[order], v.x0[order], v.map[order])
