"""Two methods for vision transformers that others published, by changing what torch's functions do while they run.

chefer          attention weights times their positive slopes, multiplied along the layers (Chefer et al., 2021)
attnlrp_gamma   AttnLRP with the γ rule at convolutions and linear layers (Achtibat et al., 2024), as a slope times x
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

GAMMA = {F.conv2d: 0.25, F.linear: 0.05}
Function = Callable[..., Any]


class _Keeping(TorchFunctionMode):
    """Keeps what softmax gives."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.softmax, Tensor.softmax):
            self.kept.append(out)
        return out


def chefer(model: nn.Module, x: Tensor, classes: Tensor, token: bool) -> Tensor:
    """Return relevance of patches (B, side, side); `token`: the row of the class token, else the mean of all rows."""
    with _Keeping() as mode:
        out = model(x.detach().requires_grad_())
    slopes = torch.autograd.grad(out.gather(1, classes[:, None]).sum(), mode.kept)
    R = torch.eye(mode.kept[0].shape[-1], device=x.device).expand(len(x), -1, -1)
    for a, slope in zip(mode.kept, slopes, strict=True):
        R = R + (a * slope).clamp(min=0).mean(1).detach() @ R
    row = R[:, 0, 1:] if token else R.mean(1)
    return row.unflatten(1, (int(row.shape[1] ** 0.5), -1))


class _AttnLRP(TorchFunctionMode):
    """Each function gives the same numbers, with slopes that times x are the relevance of AttnLRP."""

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in GAMMA:
            return _with_gamma(func, GAMMA[func], *args, **kwargs)
        if func is F.gelu:
            x = args[0]
            return x * (func(x) / torch.where(x == 0, 1, x)).detach()
        if func is F.layer_norm:
            return _norm(*args, **kwargs)
        out = func(*args, **kwargs)
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):  # a product: half to each factor
            return out / 2 + (out / 2).detach()
        return out


def _norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    scale = (x.var(axes, unbiased=False, keepdim=True) + eps).rsqrt().detach()
    return (x - x.mean(axes, keepdim=True)) * scale * weight + bias


def _with_gamma(func: Function, gamma: float, x: Tensor, w: Tensor, b: Tensor | None = None, *more: Any) -> Tensor:
    """A layer whose slopes follow the γ rule: terms of the result's sign count 1 + γ times."""
    z = func(x, w, b, *more)
    w_up, b_up = (None if t is None else t + gamma * t.clamp(min=0) for t in (w, b))
    w_down, b_down = (None if t is None else t + gamma * t.clamp(max=0) for t in (w, b))
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    same = func(positive, w_up, b_up, *more) + func(negative, w_down, None, *more)
    other = func(positive, w_down, b_down, *more) + func(negative, w_up, None, *more)
    chosen = torch.where(z > 0, same, other)
    return chosen * (z / torch.where(chosen.abs() > 1e-9, chosen, 1e-9)).detach()


def attnlrp_gamma(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Return relevance (B, channels, height, width)."""
    x = x.detach().requires_grad_()
    with _AttnLRP():
        score = model(x).gather(1, classes[:, None]).sum()
    return torch.autograd.grad(score, x)[0] * x.detach()
