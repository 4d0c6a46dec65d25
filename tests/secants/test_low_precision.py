"""Products that read bfloat16: what is lost is bounded by what is derived, on any processor."""

from __future__ import annotations

import copy
import importlib
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.comparison import FlatProgram, compare_once
from deeptaylor.secants import low_precision, softmax
from deeptaylor.secants.pair import trace_walk

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
U = 2.0**-8  # half the distance of neighbouring numbers next to one: 8 binary digits
SUMS = 1e-6  # of float32, in all that is no product


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whatever the size."""
    monkeypatch.setattr(low_precision, "DEVICES", {"cpu"})
    monkeypatch.setattr(low_precision, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(low_precision, "MIN_WEIGHTS", 0)


@pytest.mark.parametrize("traced", [False, True])
def test_a_number_is_two_narrow_ones(traced: bool) -> None:
    a = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-20, 20).repeat(100)
    if traced:
        with trace_walk():
            high, low = low_precision.round_to_two(a, torch.bfloat16)
    else:
        high, low = low_precision.round_to_two(a, torch.bfloat16)
    assert high.dtype is low.dtype is torch.bfloat16
    assert bool(((high.double() + low.double() - a.double()).abs() <= U**2 * a.double().abs()).all())
    assert bool((low != 0).any())


def by_hand(net: nn.Sequential, x: Tensor, x0: Tensor, k: int) -> tuple[Tensor, list[Tensor]]:
    """f(x) − f(x0) of linear layers and tanh in float64, and Σ |R| on both sides of every linear layer."""
    at, at0 = [x.double()], [x0.double()]
    for module in net:
        at.append(module(at[-1]))
        at0.append(module(at0[-1]))
    m = F.one_hot(torch.tensor(k), at[-1].shape[1]).double().expand_as(at[-1])
    sums = []
    for place in reversed(range(len(net))):
        module, change = net[place], at[place + 1] - at0[place + 1]
        if isinstance(module, nn.Linear):
            back = m @ module.weight
            sums.append((m * change).abs().sum(1) + (back * (at[place] - at0[place])).abs().sum(1))
            m = back
        else:
            m = m * change / (at[place] - at0[place])
    return (at[-1] - at0[-1])[:, k], sums


@pytest.mark.parametrize("distance", [1.0, 1e-2])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.usefixtures("everywhere")
def test_what_is_lost_is_within_the_bound(seed: int, distance: float) -> None:
    torch.manual_seed(seed)
    layers = [module for _ in range(5) for module in (nn.Linear(40, 40), nn.Tanh())]
    net = nn.Sequential(*layers, nn.Linear(40, 3)).bfloat16().eval()
    x = torch.randn(4, 40).bfloat16()
    x0 = (x + distance * torch.randn(4, 40)).bfloat16()
    b = dt.Explainer(net, x).between(x, x0, 1)
    _, sums = by_hand(copy.deepcopy(net).double(), x, x0, 1)
    bound = sum(U**2 * s for s in sums) + SUMS * b.score.abs()
    assert bool((b.ledger.residual.double().abs() <= bound).all())
    assert "pairs of such numbers" in b.notes[-1]


@pytest.mark.parametrize("most", [2**26, 20])
@pytest.mark.usefixtures("everywhere")
def test_a_language_model_adds_up_and_agrees_with_float64(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MAX_WEIGHTS", most)
    torch.manual_seed(0)
    networks = importlib.import_module("text_network")
    net = networks.Llama(networks.LlamaShape(40, 16, 1, 2, 1, 16)).bfloat16()
    ids, ids0 = torch.randint(0, 40, (2, 2, 7))
    mask = torch.ones_like(ids)
    b = dt.Explainer(net).between((ids, mask), (ids0, None), 3)
    wide = dt.Explainer(copy.deepcopy(net).double()).between((ids, mask), (ids0, None), 3)
    assert float(b.ledger.gap.max()) <= 1e-4
    assert bool(b.ledger.accounted.all())
    assert float((b.relevance[0] - wide.relevance[0]).norm() / wide.relevance[0].norm()) <= 4 * U


def test_on_a_processor_and_for_float16_nothing_is_rounded() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not low_precision.is_fast(torch.bfloat16, cpu)
    assert not low_precision.is_fast(torch.float16, gpu)
    assert low_precision.is_fast(torch.bfloat16, gpu)
    assert not low_precision.is_worthwhile(torch.zeros(2**9, 2**12), torch.zeros(2**12, 2**12).bfloat16())


@pytest.mark.parametrize("most", [2**26, 20])
@pytest.mark.usefixtures("everywhere")
def test_a_flat_program_of_it_gives_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MAX_WEIGHTS", most)
    torch.manual_seed(0)
    networks = importlib.import_module("text_network")
    ids, ids0 = torch.randint(0, 40, (2, 2, 5))
    mask = torch.ones_like(ids)
    explainer = dt.Explainer(networks.Llama(networks.LlamaShape(40, 16, 1, 2, 1, 16)).bfloat16())
    engine = explainer.captured.open((ids, mask))[0]
    x, x0, target = (ids, mask), (ids0, mask), torch.tensor([3, 4])
    run = FlatProgram(partial(compare_once, engine), None)
    found, wanted = run(x, x0, target), compare_once(engine, x, x0, target)
    assert all(program is not None for program in run.programs.values())
    torch.testing.assert_close(found[0][0], wanted[0][0], rtol=1e-3, atol=1e-4)
    held = found[0][0].sum(1)
    torch.testing.assert_close(held, found[1] - found[2], rtol=1e-4, atol=1e-5)
