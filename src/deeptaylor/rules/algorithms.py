"""The supplement's procedures for one layer, section II, as they stand there: matrices and vectors, without biases.

    W   {w_ij}, inputs by units        X   {x_i}        R   {R_j}        L, H   the bounds {l_i}, {h_i}

They are for reading, and to compare with; networks are explained by `Explainer`, which also has biases, convolutions,
and units whose inputs are signed. A batch of rows, X (batch, inputs) and R (batch, units), goes through as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["w_square", "z", "z_box", "z_plus"]


def w_square(W: Tensor, R: Tensor) -> Tensor:
    """The w²-rule: R_i = Σ_j w²_ij / Σ_i' w²_i'j R_j.

    >>> w_square(torch.tensor([[2.0], [-1.0]]), torch.tensor([5.0]))
    tensor([4., 1.])
    """
    V = W * W
    N = V / V.sum(0)
    return R @ N.T


def z(W: Tensor, X: Tensor, R: Tensor) -> Tensor:
    """The z-rule: R_i = Σ_j z_ij / Σ_i' z_i'j R_j.

    >>> z(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]), torch.tensor([4.0]))
    tensor([0.8000, 3.2000])
    """
    Z = X @ W
    return X * ((R / Z) @ W.T)


def z_plus(W: Tensor, X: Tensor, R: Tensor) -> Tensor:
    """The z⁺-rule: R_i = Σ_j x_i w⁺_ij / Σ_i' x_i' w⁺_i'j R_j, for x ≥ 0.

    >>> z_plus(torch.tensor([[2.0], [-1.0]]), torch.tensor([3.0, 2.0]), torch.tensor([5.0]))
    tensor([5., 0.])
    """
    return z(W.clamp(min=0), X, R)


def z_box(W: Tensor, X: Tensor, L: Tensor, H: Tensor, R: Tensor) -> Tensor:
    """The z^B-rule, for l ≤ x ≤ h: q_ij = x_i w_ij − l_i w⁺_ij − h_i w⁻_ij in the place of z_ij.

    >>> z_box(torch.tensor([[2.0], [-1.0]]), torch.tensor([3.0, 2.0]), torch.tensor(-1.0), torch.tensor(4.0),
    ...       torch.tensor([5.0]))
    tensor([4., 1.])
    """
    L, H = torch.broadcast_to(L, X.shape), torch.broadcast_to(H, X.shape)
    U, V = W.clamp(max=0), W.clamp(min=0)
    N = R / (X @ W - L @ V - H @ U)
    return X * (N @ W.T) - L * (N @ V.T) - H * (N @ U.T)
