"""Contrasts of torchvision's families: both parts are never negative and add up to the score, in little memory."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.engine.target import Against
from live_memory import peak_of

if importlib.util.find_spec("torchvision") is None:  # it is imported by torchvision_shim
    pytest.skip("torchvision is not installed", allow_module_level=True)
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import zoo

FAST = ("resnet18", "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5")
FAMILIES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in zoo.FAMILIES]


def domain() -> dt.Box:
    return dt.Box.from_normalisation(zoo.MEAN, zoo.STD)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_contrast_adds_up(name: str) -> None:
    network = zoo.family(name)
    x, bias = network.x[:1], ("neuron", "spread")[list(zoo.FAMILIES).index(name) % 2]  # `make zoo` tries both
    c = dt.Explainer(network.model, x, domain(), bias=bias).contrast(x)
    gap, lowest = zoo.contrast(c)
    assert gap <= zoo.CONTRAST
    assert lowest >= 0
    assert c.rivals[0]
    assert float(c.shared.sum()) > 0


# --- memory -----------------------------------------------------------------------------------------------------------


@functools.cache
def small(name: str) -> zoo.Network:
    """The family's network on pictures so small that a pass takes a moment; what a pass holds grows with them."""
    from torchvision_shim import models

    def build() -> nn.Module:
        network: nn.Module = getattr(models, zoo.FAMILIES[name])(weights=None)
        return network

    return zoo.seeded(name, build, lambda: zoo.images(2, 96), convolutional=True, seed=0)


@pytest.mark.parametrize("bias", ["neuron", pytest.param("spread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_a_contrast_takes_little_more_memory_than_a_map(name: str, bias: str) -> None:
    network = small(name)
    explainer = dt.Explainer(network.model, network.x, domain(), bias=bias)
    for recomputed in (False, True):
        explainer.recompute(recomputed)
        with torch.no_grad():
            plain, contrast = (peak_of(functools.partial(explainer, network.x, t)) for t in (None, Against()))
        assert plain < contrast <= 1.3 * plain, f"{contrast / plain:.3f}"


def test_memory_is_counted_while_it_is_held() -> None:
    def call() -> torch.Tensor:
        a = torch.ones(1000)  # 4000 bytes
        b = a + 1
        del a
        c = (b * 2).view(10, 100)  # two at once: b and c
        del b
        return c.sum()

    assert peak_of(call) == 8000
