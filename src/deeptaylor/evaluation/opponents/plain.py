"""Methods that need nothing but PyTorch: gradients, and noise."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from deeptaylor.evaluation.opponents.calling import chosen, on_a_copy

__all__ = ["gradient", "gradient_times_input", "random", "squared_gradient"]


def _derivative(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """∂f/∂x of each sample's class."""
    x.requires_grad_()
    return torch.autograd.grad(chosen(network(x), classes).sum(), x)[0]


@on_a_copy
def gradient(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """|∂f/∂x|"""
    return _derivative(network, x, classes).abs()


@on_a_copy
def squared_gradient(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """(∂f/∂x)², sensitivity analysis."""
    return _derivative(network, x, classes).square()


@on_a_copy
def gradient_times_input(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """x ∂f/∂x"""
    return _derivative(network, x, classes) * x


def random(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Noise between 0 and 1 that follows from the sample alone: neither its place in a batch nor its class matters."""
    return torch.stack([_noise(sample) for sample in x.detach()]).to(x.device)


def _noise(sample: Tensor) -> Tensor:
    seed = zlib.crc32(sample.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return torch.rand(sample.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
