"""Linear layers, written otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spellings.table import Spelled, bias_of, noise, spelling


def linear(name: str, write: Callable[..., Tensor], axes: tuple[int, ...] = (2, 3, 4)) -> None:
    """A spelling of `x Wᵀ + b` with `s.weight` and `s.bias`, for inputs with so many axes."""

    def respell(m: nn.Linear, x: Tensor) -> nn.Module | None:
        return Spelled(write, weight=m.weight, bias=bias_of(m)) if x.ndim in axes else None

    spelling("linear", nn.Linear, name)(respell)


linear("F.linear", lambda s, x: F.linear(x, s.weight, s.bias))
linear("x @ W.T + b", lambda s, x: x @ s.weight.T + s.bias)
linear("b + matmul", lambda s, x: s.bias + torch.matmul(x, s.weight.t()))
linear("addmm", lambda s, x: torch.addmm(s.bias, x, s.weight.t()), axes=(2,))
linear("einsum", lambda s, x: torch.einsum("...i,oi->...o", x, s.weight) + s.bias)
linear("einsum, weights first", lambda s, x: torch.einsum("oi,bi->bo", s.weight, x) + s.bias, axes=(2,))
linear("tensordot", lambda s, x: torch.tensordot(x, s.weight, ([-1], [1])) + s.bias)
linear("multiply and sum", lambda s, x: (x.unsqueeze(-2) * s.weight).sum(-1) + s.bias)
linear("multiply and mean", lambda s, x: (x.unsqueeze(-2) * s.weight).mean(-1) * s.weight.shape[1] + s.bias)
linear("1×1 convolution", lambda s, x: F.conv1d(x.unsqueeze(-1), s.weight.unsqueeze(-1), s.bias).squeeze(-1), (2,))
linear(
    "1×1 convolution over tokens",
    lambda s, x: F.conv1d(x.transpose(1, 2), s.weight.unsqueeze(-1), s.bias).transpose(1, 2),
    axes=(3,),
)
linear("full kernel and flatten", lambda s, x: F.conv1d(x.unsqueeze(1), s.weight.unsqueeze(1), s.bias).flatten(1), (2,))
linear("on permuted axes", lambda s, x: (s.weight @ x.mT).mT + s.bias, axes=(3,))
linear("constant factors", lambda s, x: F.linear(x * 2, s.weight, 2 * s.bias) / 2)
linear("bias apart", lambda s, x: F.linear(x, s.weight) + s.bias)
linear(
    "output features in two parts",
    lambda s, x: torch.cat([F.linear(x, s.weight[:2], s.bias[:2]), F.linear(x, s.weight[2:], s.bias[2:])], -1),
)
linear(
    "input features in two parts",
    lambda s, x: F.linear(x[..., :2], s.weight[:, :2]) + F.linear(x[..., 2:], s.weight[:, 2:], s.bias),
)
linear("weights of several lines", lambda s, x: F.linear(x, torch.stack(list(s.weight.unbind(0))), s.bias))
linear(
    "weights made in forward", lambda s, x: F.linear(x, s.weight * torch.ones(()).to(x), s.bias + torch.zeros(1).to(x))
)
linear("a sign on each side", lambda s, x: -F.linear(-x, s.weight, -s.bias))
linear("features turned and turned back", lambda s, x: F.linear(x.flip(-1), s.weight.flip(-1), s.bias))
linear("casts", lambda s, x: F.linear(x.to(torch.float64).type_as(x), s.weight, s.bias).double())


@spelling("linear", nn.Linear, "weight norm")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    return Spelled(
        lambda s, x: F.linear(x, s.g * s.v / s.v.norm(dim=1, keepdim=True), s.bias),
        v=3 * m.weight,
        g=m.weight.norm(dim=1, keepdim=True),
        bias=m.bias,
    )


@spelling("linear", nn.Linear, "two linear layers")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    """W = A B with a square B, and a bias in both."""
    n = m.in_features
    b = torch.eye(n).to(m.weight) + 0.3 * noise(m.weight, n, n)
    a, c = m.weight @ torch.linalg.inv(b), noise(m.weight, n)
    return Spelled(lambda s, x: F.linear(F.linear(x, s.b, s.c), s.a, s.d), a=a, b=b, c=c, d=bias_of(m) - a @ c)


@spelling("linear", nn.Linear, "low rank and merged")
def _(m: nn.Linear, x: Tensor) -> nn.Module:
    """LoRA: W₀ x + s · B A x."""
    a, b = noise(m.weight, 1, m.in_features), noise(m.weight, m.out_features, 1)
    return Spelled(
        lambda s, x: F.linear(x, s.weight, s.bias) + 2.0 * F.linear(F.dropout(F.linear(x, s.a), 0.1, False), s.b),
        weight=m.weight - 2 * b @ a,
        bias=m.bias,
        a=a,
        b=b,
    )


@spelling("linear", nn.Linear, "a bottleneck")
def _(m: nn.Linear, x: Tensor) -> nn.Module | None:
    """W = A B of a lower rank than its sides: two small layers for one large."""
    u, s, v = torch.linalg.svd(m.weight, full_matrices=False)
    rank = int((s > 1e-9 * s[0]).sum())
    if rank * sum(m.weight.shape) >= m.weight.numel():
        return None
    a, b = u[:, :rank] * s[:rank], v[:rank]
    return Spelled(lambda s, x: F.linear(F.linear(x, s.b), s.a, s.c), a=a, b=b, c=bias_of(m))
