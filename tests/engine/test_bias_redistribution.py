"""Pixels are given what biases absorbed, place by place; the check judges what was there before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.bias_redistribution import _has_arrived, redistribute
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.linear_map import Maybe
from deeptaylor.rules.base import LedgerWriter


def network(classes: int = 4) -> nn.Module:
    """Biases take most of the score, as BatchNorm's do."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 4, classes),
    )  # fmt: skip
    nn.init.constant_(made[1].bias, 4.0)
    nn.init.uniform_(made[6].bias, 1.0, 2.0)
    return made.double().eval()


X = torch.rand(3, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
BOX = dt.Box(0.0, 1.0)
BOTH = ("neuron", "returned")


def explained(bias: str, target: object = 0, model: nn.Module | None = None, **settings: object) -> dt.Explanation:
    return dt.Explainer(model or network(), X, BOX, bias=bias, **settings).explain(X, target)  # type: ignore[arg-type]


def test_it_is_the_default() -> None:
    assert torch.equal(dt.Explainer(network(), X, BOX).explain(X, 0).relevance, explained("returned").relevance)


def by_definition(R: Tensor, P: Tensor, absorbed: Tensor) -> Tensor:
    """Redistribute one map (C, H, W) with loops; P: relevance at the last feature map without channels."""
    height, width = R.shape[1:]
    under, reached = {}, torch.zeros_like(P)
    for row, column in torch.cartesian_prod(*map(torch.arange, P.shape)).tolist():
        only = torch.zeros(1, 1, *P.shape, dtype=R.dtype)
        only[0, 0, row, column] = 1
        under[row, column] = torch.nn.functional.interpolate(only, (height, width), mode="bilinear")[0, 0]
        reached[row, column] = (under[row, column] * R.sum(0)).sum()
    above = (R.sum() + absorbed - P.sum()).clamp(min=0)
    lost = (P - reached).clamp(min=0) + above * P / P.sum()
    given = absorbed * lost / lost.sum()
    factor = torch.ones(height, width, dtype=R.dtype)
    for (row, column), B in under.items():
        if reached[row, column] > 0:
            factor += B * given[row, column] / reached[row, column]
    return R * factor


def test_it_is_what_the_definition_says() -> None:
    whole, paper = explained("returned"), explained("neuron")
    assert float((paper.score / paper.relevance.flatten(1).sum(1)).min()) > 1.5, "biases absorb much here"
    parts = zip(paper.relevance, paper.at("4").sum(1), paper.ledger.bias, strict=True)
    wanted = torch.stack([by_definition(R, P, absorbed) for R, P, absorbed in parts])
    torch.testing.assert_close(whole.relevance, wanted, rtol=1e-10, atol=0)
    torch.testing.assert_close(whole.relevance.flatten(1).sum(1), whole.score, rtol=1e-12, atol=0)
    assert float(whole.relevance.min()) >= 0


def test_a_contrast_is_what_the_public_maps_give() -> None:
    """The rivals' mixture of maps is redistributed as one map (docs/theory.md, section 9)."""
    power, rivals = 3.0, {1: 0.5, 2: 0.3, 3: 0.2}
    model = network()
    nn.init.constant_(model[6].bias, 40.0)  # all scores are positive
    c = dt.Explainer(model, X, BOX).contrast(X, 0, rivals, power=power)
    papers = {k: explained("neuron", k, model) for k in rivals}
    R = sum(q * papers[k].relevance / papers[k].score.reshape(-1, 1, 1, 1) for k, q in rivals.items())
    P = sum(q * papers[k].at("4").sum(1) / papers[k].score.reshape(-1, 1, 1) for k, q in rivals.items())
    M = torch.stack([by_definition(r, p, 1 - r.sum()) for r, p in zip(R, P, strict=True)]).sum(1)
    own = explained("returned", 0, model).relevance
    N = own.sum(1) / own.flatten(1).sum(1).reshape(-1, 1, 1)
    M = M / M.flatten(1).sum(1).reshape(-1, 1, 1)
    torch.testing.assert_close(c.relevance, own * (N / (N + M)).pow(power).unsqueeze(1), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_a_contrast_without_redistribution_is_a_mixture_of_public_maps(bias: str) -> None:
    power, rivals = 2.0, {1: 0.6, 3: 0.4}
    model = network()
    nn.init.constant_(model[6].bias, 40.0)
    c = dt.Explainer(model, X, BOX, bias=bias).contrast(X, 0, rivals, power=power)
    maps = {k: explained(bias, k, model) for k in (0, *rivals)}
    M = sum(q * maps[k].relevance.sum(1) / maps[k].score.reshape(-1, 1, 1) for k, q in rivals.items())
    M = M / M.flatten(1).sum(1).reshape(-1, 1, 1)
    own = maps[0].relevance
    N = own.sum(1) / own.flatten(1).sum(1).reshape(-1, 1, 1)
    torch.testing.assert_close(c.relevance, own * (N / (N + M)).pow(power).unsqueeze(1), rtol=1e-9, atol=1e-14)


class TwoSums(nn.Module):
    """relu(x₁ + 5) + relu(x₂ + x₃): the bias of the first unit has nothing to do with x₂ and x₃."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.Linear(3, 2).double()
        with torch.no_grad():
            self.units.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 1]]))
            self.units.bias.copy_(torch.tensor([5.0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.units(x)).sum(1, keepdim=True)


def test_an_input_is_not_credited_with_the_bias_of_another_unit() -> None:
    x = torch.tensor([[0.0, 1, 1]], dtype=torch.float64)
    e = dt.Explainer(TwoSums(), x, dt.NonNegative()).explain(x)
    assert e.relevance.tolist() == [[0, 1, 1]]
    assert e.ledger.bias.tolist() == [5]
    check = e.check()
    assert not check.conservative
    assert not check.consistent
    assert check.accounted


def test_without_a_feature_map_biases_keep_their_share() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    nn.init.constant_(model[1].bias, 1.0)
    nn.init.constant_(model[3].weight, 0.3)
    whole, paper = (explained(bias, 0, model) for bias in ("returned", "neuron"))
    assert torch.equal(whole.relevance, paper.relevance)
    assert whole.ledger.returned is None


def test_tokens_have_no_places() -> None:
    """(batch, tokens, features): features are not places, though they stand where those of a signal do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)).double()
    nn.init.constant_(model[0].bias, 1.0)
    x = torch.rand(2, 5, 8, dtype=torch.float64)
    whole, paper = (
        dt.Explainer(model, x, dt.NonNegative(), bias=bias).explain(x, 0) for bias in ("returned", "neuron")
    )
    assert torch.equal(whole.relevance, paper.relevance)


@pytest.mark.parametrize("seed", range(8))
def test_a_place_gives_no_more_than_biases_absorbed_below_it(seed: int) -> None:
    """With kernels of one element, every place sees one element of the input, and only its own biases count there."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 5, 1), nn.ReLU(), nn.Conv2d(5, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    model = model.double()
    nn.init.zeros_(model[5].bias)
    nn.init.constant_(model[5].weight, 0.5)
    x = torch.rand(2, 2, 2, 3, dtype=torch.float64) * (torch.rand(2, 1, 2, 3) > 0.3)
    paper, whole = (dt.Explainer(model, x, dt.NonNegative(), bias=bias).explain(x, 0) for bias in BOTH)
    P, own, shown = paper.at("3").sum(1), paper.relevance.sum(1), whole.relevance.sum(1)
    assert float((P - own).min()) > -1e-12
    wanted = torch.where(own > 0, P, 0.0)  # each place in full, or nothing where nothing arrived
    torch.testing.assert_close(shown, wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whole.ledger.total, whole.score, rtol=1e-12, atol=0)


def test_patches_do_not_give_to_their_neighbours() -> None:
    """Each patch of a patch embedding is seen by its own place alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
    nn.init.constant_(model[0].bias, 1.0)
    nn.init.constant_(model[3].weight, 0.5)
    nn.init.zeros_(model[3].bias)
    x = torch.rand(2, 1, 8, 7, dtype=torch.float64)  # the last rows and columns are in no patch
    paper, whole = (dt.Explainer(model, x, dt.NonNegative(), bias=bias).explain(x, 0) for bias in BOTH)
    sums = nn.functional.avg_pool2d(whole.relevance, 3, divisor_override=1)
    torch.testing.assert_close(sums[:, 0], paper.at("1").sum(1), rtol=1e-9, atol=0)


def test_where_biases_take_nothing_nothing_changes() -> None:
    model = network()
    for module in model:
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    model[1].running_mean.zero_()
    torch.testing.assert_close(explained("returned", 1, model).relevance, explained("neuron", 1, model).relevance)


def test_a_place_under_which_nothing_arrived_leaves_it_to_biases() -> None:
    """The left half of the picture is black, and a place there fires by its bias alone."""
    model = network()
    x = X.clone()
    x[..., :3] = 0
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.zero_()
        model[6].weight.abs_()
    e = dt.Explainer(model, x, dt.NonNegative()).explain(x)
    assert float(e.score.min()) > 0
    assert not e.relevance[..., :1].any()
    assert e.ledger.returned is not None
    torch.testing.assert_close(e.ledger.total, e.score, rtol=1e-12, atol=0)


def test_a_dead_place_keeps_its_share() -> None:
    """Two places: nothing arrives below the first, which fires by its bias."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(5.0)
        model[3].weight.fill_(1.0)
        model[3].bias.zero_()
    x = torch.tensor([[[[0.0, 1.0]]]], dtype=torch.float64)
    e = dt.Explainer(model, x, dt.NonNegative()).explain(x)
    torch.testing.assert_close(e.relevance, torch.tensor([[[[0.0, 6.0]]]], dtype=torch.float64))
    torch.testing.assert_close(e.ledger.bias, torch.tensor([5.0], dtype=torch.float64))


class Leaky(dt.rules.ZPlus):
    """z⁺, but a tenth of everything is dropped."""

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        ledger.dropped(0.1 * R)
        return super().__call__(W, 0.9 * R, ledger)


def test_what_was_dropped_stays_dropped() -> None:
    """In the plain call, too, which records no entries of biases."""
    model = network()
    explainer = dt.Explainer(model, X, BOX, rules={"3": Leaky()})
    paper = dt.Explainer(model, X, BOX, rules={"3": Leaky()}, bias="neuron").explain(X, 0)
    assert float(paper.ledger.dropped.min()) > 0
    e = explainer.explain(X, 0)
    torch.testing.assert_close(e.ledger.dropped, paper.ledger.dropped)
    torch.testing.assert_close(e.ledger.input + e.ledger.dropped, e.score, rtol=1e-9, atol=0)
    torch.testing.assert_close(explainer.forward(X, 0)[1], e.relevance, rtol=1e-10, atol=1e-14)


def test_the_ledger_says_what_was_redistributed() -> None:
    whole, paper = explained("returned").ledger, explained("neuron").ledger
    assert whole.returned is not None
    torch.testing.assert_close(whole.returned, paper.bias)
    torch.testing.assert_close(whole.total, whole.score, rtol=1e-12, atol=0)
    assert float(whole.bias.max()) < 1e-12
    torch.testing.assert_close(whole.dropped, paper.dropped)
    torch.testing.assert_close(whole.entries, paper.entries)  # the way down is the same
    assert "was absorbed by biases" in str(whole)


def test_the_check_judges_what_was_there_before() -> None:
    check, paper = explained("returned").check(), explained("neuron").check()
    assert not check.conservative
    assert not check.consistent
    assert check.positive
    assert check.accounted
    assert check.conservation_gap == pytest.approx(paper.conservation_gap, rel=1e-9)
    assert check.own_share == pytest.approx(paper.input_share, rel=1e-9)
    assert check.bias_share == pytest.approx(paper.bias_share, rel=1e-9)
    assert check.own_share < 0.5
    first = str(check).splitlines()[0]
    assert first.startswith("Conservative: no. Biases absorbed up to ")
    assert first.endswith(
        "(usual for networks with BatchNorm); the map is rescaled to the score so that you can read it."
    )


def test_a_trace_is_said_with_all_its_digits() -> None:
    """Not as a difference of two numbers that are nearly the score: in float32 that would be noise."""
    model = network()
    nn.init.constant_(model[6].bias, 1e7)
    paper, whole = (dt.Explainer(model.float(), X.float(), BOX, bias=bias).explain(X.float(), 0) for bias in BOTH)
    assert 0 < paper.check().input_share < 1e-6
    assert whole.check().own_share == pytest.approx(paper.check().input_share, rel=1e-6)


def test_the_books_still_tell() -> None:
    """What is given comes from the ledger: where it does not close, the map does not sum to the score."""
    explainer = dt.Explainer(network(), X, BOX)
    result = explainer.captured.run_batch(explainer.captured.engine, (X,), 0, "by step")
    assert result.entries is not None
    wrong = replace(result, entries=torch.cat([result.entries[:, :2], 0.9 * result.entries[:, 2:]], dim=1))
    assert (
        float(
            (
                redistribute(wrong, explainer.captured.engine.feature_map).relevance[0].flatten(1).sum(1) / result.score
            ).max()
        )
        < 0.99
    )


@pytest.mark.parametrize("target", [None, torch.tensor([[0, 1], [2, 3], [1, 0]]), dt.margin(0, 1)])
def test_forward_gives_the_same(target: object) -> None:
    explainer = dt.Explainer(network(), X, BOX)
    e = explainer.explain(X, target)
    score, relevance = explainer.forward(X, target)
    torch.testing.assert_close(score, e.score)
    torch.testing.assert_close(relevance, e.relevance, rtol=1e-10, atol=1e-14)


def test_contrast_splits_the_whole_map() -> None:
    explainer = dt.Explainer(network(), X, BOX)
    plain, c = explainer.explain(X, 0), explainer.contrast(X, 0)
    torch.testing.assert_close(c.relevance + c.shared, plain.relevance, rtol=1e-12, atol=0)
    torch.testing.assert_close(c.ledger.total, c.score, rtol=1e-12, atol=0)
    assert "was absorbed by biases)" in str(c.ledger)
    assert c.check().accounted


def test_where_nothing_arrived_biases_keep_it() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).double()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1.0)
        model[3].weight.fill_(1.0)
    e = explained("returned", 0, model)
    assert not e.relevance.any()
    assert e.ledger.returned is not None
    assert not e.ledger.returned.any()
    assert e.check().accounted
    assert not e.check().conservative


def test_an_empty_feature_map_leaves_all_of_it_to_biases() -> None:
    """The last layer's bias absorbs the whole score: there is nothing to give to pixels, and nothing is said given."""
    found = 0
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double().eval()
        x = torch.rand(1, 1, 4, 4, dtype=torch.float64)
        e = dt.Explainer(model, x, BOX, bias="returned").explain(x, [0, 1, 2])
        assert e.check().accounted, seed
        gained = e.ledger.input - e.ledger.own
        torch.testing.assert_close(e.ledger.returned, gained)
        found += int(((e.score > 0) & (e.ledger.input == 0)).sum())
    assert found  # there were such scores


def test_too_little_is_not_enlarged() -> None:
    own, whole = torch.tensor([0.0, 1e-37, 1e-6]), torch.ones(3)
    assert _has_arrived(own, whole).tolist() == [False, False, True]


def test_where_shares_are_subtracted_nothing_is_redistributed() -> None:
    rules = {"*": dt.rules.Epsilon(0.1)}
    whole, paper = explained("returned", rules=rules), explained("neuron", rules=rules)
    assert torch.equal(whole.relevance, paper.relevance)
    assert whole.ledger.returned is None


def test_inside_the_network_nothing_was_redistributed_yet() -> None:
    torch.testing.assert_close(explained("returned").at("2"), explained("neuron").at("2"))


def test_in_parts_and_with_few_digits() -> None:
    explainer = dt.Explainer(network().float(), X.float(), BOX).to(torch.bfloat16)
    x = X.to(torch.bfloat16)
    e = explainer.explain(x, 0)
    sums: Tensor = e.relevance.float().flatten(1).sum(1)
    torch.testing.assert_close(sums, e.score.float(), rtol=0.05, atol=0)
    assert e.check().accounted


def test_a_compiled_pass_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler: what is handed to it and taken from it."""
    monkeypatch.setattr(torch, "compile", lambda run, **_: run)
    explainer = dt.Explainer(network(), X, BOX)
    plain, contrast = explainer.explain(X), explainer.contrast(X, 0)
    explainer.compile()
    again = explainer.explain(X)
    assert torch.equal(again.relevance, plain.relevance)
    assert again.classes is not None
    assert plain.classes is not None
    assert torch.equal(again.classes, plain.classes)
    assert torch.equal(explainer.contrast(X, 0).relevance, contrast.relevance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own imports
def test_compiled_gives_the_same() -> None:
    explainer = dt.Explainer(network(), X, BOX)
    many = torch.tensor([[0, 1], [2, 3], [1, 0]])
    plain, contrast = explainer.explain(X, many), explainer.contrast(X, 0)
    explainer.compile()
    torch.testing.assert_close(explainer.explain(X, many).relevance, plain.relevance, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(explainer.contrast(X, 0).relevance, contrast.relevance, rtol=1e-9, atol=1e-14)
    _, relevance = torch.compile(explainer, fullgraph=True)(X, many)
    torch.testing.assert_close(relevance, plain.relevance, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("bias", [0.1, 1.0, 4.0])
def test_redistribution_rounds_little(bias: float) -> None:
    """In float32 it moves a map by at most three units of the type (docs/theory.md, section 7)."""
    model = network()
    nn.init.constant_(model[1].bias, bias)
    explainer = dt.Explainer(model, X, BOX)
    result = explainer.captured.run_batch(explainer.captured.engine, (X,), 0, "by step")
    assert result.entries is not None
    single = replace(
        result, score=result.score.float(), relevance=(result.relevance[0].float(),), entries=result.entries.float(),
        places=(result.places[0].float(),),
    )  # fmt: skip
    wide, narrow = (
        redistribute(r, explainer.captured.engine.feature_map).relevance[0].double() for r in (result, single)
    )
    assert float((narrow - wide).abs().sum() / wide.abs().sum()) <= 3 * 2**-24
