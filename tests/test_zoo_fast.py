"""The fast cut of the zoo: small `transformers` networks held to the checks of benchmarks/zoo.py in both bias modes."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from untouched import changes, snapshot, unchanged

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import hf_zoo
import zoo

FAST = ("resnet", "regnet", "efficientnet", "convnextv2", "vit", "swin", "bert")


@functools.cache
def network(name: str) -> zoo.Network:
    return hf_zoo.family(name, seed=0)


@pytest.mark.parametrize("bias", ["neuron", pytest.param("spread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAST)
def test_family_holds(name: str, bias: str) -> None:
    result = zoo.check(network(name), bias)
    assert not result.problems, str(result)


def test_networks_are_seeded() -> None:
    one, two, other = (hf_zoo.family("resnet", seed) for seed in (0, 0, 1))
    with torch.no_grad():
        assert torch.equal(one.model(one.x), two.model(two.x))
        assert not torch.equal(one.x, other.x)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def written_and_written_back(model: nn.Sequential) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0)


@pytest.mark.parametrize(
    ("touch", "place"),
    [
        (lambda model: model.train(), "training"),
        (lambda model: model[1].running_mean.add_(1e-7), "running_mean"),
        (lambda model: model[0].weight.requires_grad_(False), "requires_grad"),
        (lambda model: model[0].register_forward_hook(lambda *_: None), "_forward_hooks"),
        (lambda model: setattr(model[2], "note", 1), "note"),
        (lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.detach())), "identity"),
        (lambda model: model(torch.ones(1, 3, 4, 4)).sum().backward(), "gradient"),
        (written_and_written_back, "version"),
    ],
)
def test_a_touched_model_is_noticed(touch: Callable[[nn.Sequential], object], place: str) -> None:
    model = small()
    before = snapshot(model)
    assert unchanged(model, before)
    with torch.no_grad():
        model(torch.ones(1, 3, 4, 4))
    assert unchanged(model, before)
    touch(model)
    assert any(place in line for line in changes(model, before))
