"""Slow float64 versions of every rule, for one layer and one sample, written from `docs/theory.md` alone.

Nothing here imports the package: this is what the package is judged by. `W` is a materialised matrix of shape (inputs,
units), z_j = Σ_i x_i w_ij + b_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bias = Literal["neuron", "spread"]

Result = tuple[Array, float, float]
"""(relevance of the inputs, what the bias took, what was dropped)."""


def divide(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape), where=b != 0)


def sign_of(z: Array) -> Array:
    """+1 where z ≥ 0, −1 where z < 0."""
    return np.where(z >= 0, 1.0, -1.0)


def detect(q: Array, sb: Array, R: Array, bias: Bias) -> tuple[Array, float, Array]:
    """Hand R_j out over q_ij and the bias neuron max(0, s_j b_j): (R_i, bias, R_j of the units with denominator 0)."""
    beta = np.maximum(0, sb) if bias == "neuron" else np.zeros_like(sb)
    Z = q.sum(axis=0) + beta
    return q @ divide(R, Z), float((beta * divide(R, Z)).sum()), np.where(Z == 0, R, 0.0)


def _layer(W: Array, q: Array, sb: Array, R: Array, bias: Bias) -> Result:
    """`detect`, and what it left: dropped, or under `spread` split by squared weights."""
    R_in, taken, left = detect(q, sb, R, bias)
    if bias == "neuron":
        return R_in, taken, float(left.sum())
    squares = W**2
    constant = squares.sum(axis=0) == 0
    R_in = R_in + squares @ divide(left, squares.sum(axis=0))
    return R_in, float(left[constant & (sb > 0)].sum()), float(left[constant & (sb <= 0)].sum())


def w_square(W: Array, R: Array) -> Result:
    """R_i = Σ_j w_ij² / Σ_i' w_i'j² · R_j."""
    R_in, _, left = detect(W**2, np.zeros(W.shape[1]), R, "neuron")
    return R_in, 0.0, float(left.sum())


def z_plus(W: Array, b: Array, x: Array, R: Array, bias: Bias = "neuron") -> Result:
    """R_i = Σ_j x_i w⁺_ij / (Σ_i' x_i' w⁺_i'j + b⁺_j) · R_j, for x ≥ 0."""
    if (x < 0).any():
        raise ValueError("z_plus is for x >= 0; signed inputs take `signed`")
    return _layer(W, x[:, None] * np.maximum(0, W), b, R, bias)


def signed(W: Array, b: Array, x: Array, R: Array, bias: Bias = "neuron", sign: Array | None = None) -> Result:
    """q_ij = max(0, s_j w_ij x_i), s_j the sign of z_j unless given: z = max(0, z) − max(0, −z)."""
    s = sign_of(x @ W + b) if sign is None else sign
    return _layer(W, np.maximum(0, s * W * x[:, None]), s * b, R, bias)


def box_shares(W: Array, x: Array, low: Array, high: Array) -> Array:
    """q_ij = (x_i − l_i) w⁺_ij + (x_i − h_i) w⁻_ij."""
    return (x - low)[:, None] * np.maximum(0, W) + (x - high)[:, None] * np.minimum(0, W)


def z_box(
    W: Array, b: Array, x: Array, R: Array, low: Array, high: Array, bias: Bias = "neuron", sign: Array | float = 1.0
) -> Result:
    """`box_shares` of s_j w_ij; the default sign is a rectified unit's."""
    return _layer(W, box_shares(sign * W, x, low, high), sign * b, R, bias)


def z(W: Array, b: Array, x: Array, R: Array) -> Result:
    """R_i = Σ_j w_ij x_i / z_j · R_j; the bias takes b_j / z_j."""
    return epsilon(W, b, x, R, 0.0)


def epsilon(W: Array, b: Array, x: Array, R: Array, eps: float) -> Result:
    """R_i = Σ_j w_ij x_i / (z_j + ε s(z_j)) · R_j; the stabiliser's share is dropped."""
    R_in, taken, dropped = np.zeros(len(x)), 0.0, 0.0
    for j in range(W.shape[1]):
        z_j = x @ W[:, j] + b[j]
        s = 1.0 if z_j >= 0 else -1.0
        if z_j + eps * s == 0:
            dropped += R[j]
            continue
        R_in += x * W[:, j] / (z_j + eps * s) * R[j]
        taken += b[j] / (z_j + eps * s) * R[j]
        dropped += eps * s / (z_j + eps * s) * R[j]
    return R_in, float(taken), float(dropped)


def alpha_beta(W: Array, b: Array, x: Array, R: Array, alpha: float, beta: float) -> Result:
    """R_i = Σ_j (α z⁺_ij / (Σ z⁺ + b⁺) − β z⁻_ij / (Σ z⁻ + b⁻)) · R_j; a side alone takes the whole."""
    R_in, taken, dropped = np.zeros(len(x)), 0.0, 0.0
    for j in range(W.shape[1]):
        zp, zn = np.maximum(0, x * W[:, j]), np.minimum(0, x * W[:, j])
        bp, bn = max(0.0, b[j]), min(0.0, b[j])
        P, N = zp.sum() + bp, zn.sum() + bn
        if P == 0 and N == 0:
            dropped += R[j]
        elif N == 0:
            R_in += zp / P * R[j]
            taken += bp / P * R[j]
        elif P == 0:
            R_in += zn / N * R[j]
            taken += bn / N * R[j]
        else:
            R_in += (alpha * zp / P - beta * zn / N) * R[j]
            taken += (alpha * bp / P - beta * bn / N) * R[j]
    return R_in, float(taken), float(dropped)


def gamma(W: Array, b: Array, x: Array, R: Array, gamma: float) -> Result:
    """R_i = Σ_j (z_ij + γ s_j max(0, s_j z_ij)) / (z_j + γ s_j (Σ_i max(0, s_j z_ij) + max(0, s_j b_j))) · R_j."""
    R_in, taken, dropped = np.zeros(len(x)), 0.0, 0.0
    for j in range(W.shape[1]):
        z_ij = x * W[:, j]
        z_j = z_ij.sum() + b[j]
        s = 1.0 if z_j >= 0 else -1.0
        q, beta = np.maximum(0, s * z_ij), max(0.0, s * b[j])
        Z = z_j + gamma * s * (q.sum() + beta)
        if Z == 0:
            dropped += R[j]
            continue
        R_in += (z_ij + gamma * s * q) / Z * R[j]
        taken += (b[j] + gamma * s * beta) / Z * R[j]
    return R_in, float(taken), float(dropped)


def flat(W: Array, R: Array, connected: NDArray[np.bool_] | None = None) -> Result:
    """R_i = Σ_j 1/n_j · R_j over the connections of j (where w_ij ≠ 0, unless given)."""
    ones = (W != 0 if connected is None else connected).astype(float)
    R_in, _, left = detect(ones, np.zeros(W.shape[1]), R, "neuron")
    return R_in, 0.0, float(left.sum())


def algorithm_w_square(W: Array, R: Array) -> Array:
    """The supplement's procedure for the w²-rule."""
    V = W * W
    N = V / (np.ones((W.shape[0], W.shape[0])) @ V)
    return N @ R


def algorithm_z(W: Array, X: Array, R: Array) -> Array:
    """The supplement's procedure for the z-rule."""
    Z = W.T @ X
    return X * (W @ (R / Z))


def algorithm_z_plus(W: Array, X: Array, R: Array) -> Array:
    """The supplement's procedure for the z⁺-rule."""
    V = np.maximum(0, W)
    Z = V.T @ X
    return X * (V @ (R / Z))


def algorithm_z_box(W: Array, X: Array, R: Array, L: Array, H: Array) -> Array:
    """The supplement's procedure for the z^B-rule."""
    U = np.minimum(0, W)
    V = np.maximum(0, W)
    N = R / (W.T @ X - V.T @ L - U.T @ H)
    return X * (W @ N) - L * (V @ N) - H * (U @ N)


@dataclass(frozen=True)
class Average:
    """An average over places: of which tensor, its matrix A, and the place of each element that it reads."""

    operand: str
    A: Array
    place: Array

    @property
    def count(self) -> int:
        """The number of places."""
        return int(self.place.max()) + 1

    def at_places(self, W: Array) -> Array:
        """The matrix of what reads the average, W, at every place by itself: units of one place beside each other."""
        at = self.A @ W
        return np.concatenate([np.where((self.place == p)[:, None], at, 0.0) for p in range(self.count)], axis=1)
