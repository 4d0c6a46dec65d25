"""The smooth detection function of the paper's footnote in section III: where f is continuously differentiable, the
gradient at its nearest root points along x − root, and the Taylor decomposition there is positive.
"""

from __future__ import annotations

import copy
import math

from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import InputError


class SmoothReLU(nn.Module):
    """t⁻¹ log(0.5 + 0.5 exp(t x)): goes to max(0, x) as t grows, 0 at 0, never below −log(2) / t.

    >>> import torch
    >>> float(SmoothReLU(100.0)(torch.tensor(0.0)))
    0.0
    """

    def __init__(self, t: float = 10.0) -> None:
        super().__init__()
        if not (math.isfinite(t) and t > 0):
            raise InputError(f"SmoothReLU needs a positive, finite t; got {t!r}.")
        self.t = t

    def forward(self, x: Tensor) -> Tensor:
        """log(0.5 + 0.5 exp(t x)) = softplus(t x) − log 2, without overflow."""
        return F.softplus(x, beta=self.t, threshold=40) - math.log(2) / self.t

    def extra_repr(self) -> str:
        return f"t={self.t:g}"


def smoothed(network: nn.Module, t: float = 10.0) -> nn.Module:
    """A copy of a network with SmoothReLU(t) in place of every nn.ReLU; the network itself stays as it is."""
    if isinstance(network, nn.ReLU):
        return SmoothReLU(t)
    changed = copy.deepcopy(network)
    relus = [(m, name) for m in changed.modules() for name, child in m.named_children() if isinstance(child, nn.ReLU)]
    if not relus:
        raise InputError("The network has no nn.ReLU modules to make smooth (calls of F.relu cannot be exchanged).")
    for module, name in relus:
        setattr(module, name, SmoothReLU(t))
    return changed
