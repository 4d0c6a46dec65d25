"""What biases took is handed back at the end, place by place: the whole score, and never negative."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.run.returned import arrived, returned
from deeptaylor.shown import percent


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


def by_definition(paper: dt.Explanation, P: Tensor) -> Tensor:
    """Place by place, with loops; P: relevance at the last feature map without channels."""
    out = []
    for R, places, f in zip(paper.relevance, P, paper.score, strict=True):
        height, width = R.shape[1:]
        s = torch.zeros(height, width, dtype=R.dtype)
        for row in range(places.shape[0]):
            for column in range(places.shape[1]):
                only = torch.zeros(1, 1, *places.shape, dtype=R.dtype)
                only[0, 0, row, column] = 1
                under = torch.nn.functional.interpolate(only, (height, width), mode="bilinear")[0, 0]
                s += under * places[row, column] / (under * R.sum(0)).sum()
        out.append(R * (1 + (f - R.sum()) * s / (R.sum(0) * s).sum()))
    return torch.stack(out)


def test_it_is_what_the_definition_says_and_sums_to_the_score() -> None:
    whole, paper = explained("returned"), explained("neuron")
    assert float((paper.score / paper.relevance.flatten(1).sum(1)).min()) > 1.5, "biases take much here"
    wanted = by_definition(paper, paper.at("4").sum(1))
    torch.testing.assert_close(whole.relevance, wanted, rtol=1e-10, atol=0)
    torch.testing.assert_close(whole.relevance.flatten(1).sum(1), whole.score, rtol=1e-12, atol=0)
    assert float(whole.relevance.min()) >= 0


def test_without_a_feature_map_it_has_the_shape_of_the_papers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    nn.init.constant_(model[1].bias, 1.0)
    nn.init.constant_(model[3].weight, 0.3)
    whole, paper = (explained(bias, 0, model) for bias in ("returned", "neuron"))
    factor = paper.score / paper.relevance.flatten(1).sum(1)
    torch.testing.assert_close(whole.relevance, paper.relevance * factor.reshape(-1, 1, 1, 1), rtol=1e-12, atol=0)


def test_where_biases_take_nothing_nothing_changes() -> None:
    model = network()
    for module in model:
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    model[1].running_mean.zero_()
    torch.testing.assert_close(explained("returned", 1, model).relevance, explained("neuron", 1, model).relevance)


def test_a_place_under_which_nothing_arrived_gives_to_the_others() -> None:
    """The left half of the picture is black, and a place there fires by its bias alone."""
    model = network()
    x = X.clone()
    x[..., :3] = 0
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.zero_()
    e = dt.Explainer(model, x, dt.NonNegative()).explain(x)
    assert float(e.score.min()) > 0
    assert not e.relevance[..., :1].any()
    torch.testing.assert_close(e.relevance.flatten(1).sum(1), e.score, rtol=1e-12, atol=0)


def test_the_ledger_says_what_was_handed_back() -> None:
    whole, paper = explained("returned").ledger, explained("neuron").ledger
    assert whole.returned is not None
    torch.testing.assert_close(whole.returned, paper.bias + paper.dropped)
    torch.testing.assert_close(whole.total, whole.score, rtol=1e-12, atol=0)
    assert not whole.bias.any()
    assert not whole.dropped.any()
    torch.testing.assert_close(whole.entries, paper.entries)  # the way down is the same
    assert "of which biases handed back" in str(whole)


def test_what_the_input_itself_holds_is_said_first() -> None:
    check = explained("returned").check()
    assert check.consistent
    assert check.own_share == pytest.approx(explained("neuron").check().input_share, rel=1e-9)
    assert check.own_share < 0.5
    assert str(check).startswith(
        f"The input itself holds only {percent(check.own_share)} of the score, at worst of the "
    )


def test_a_trace_is_said_with_all_its_digits() -> None:
    """Not as a difference of two numbers that are nearly the score: in float32 that would be noise."""
    model = network()
    nn.init.constant_(model[6].bias, 1e7)
    paper, whole = (dt.Explainer(model.float(), X.float(), BOX, bias=bias).explain(X.float(), 0) for bias in BOTH)
    assert 0 < paper.check().input_share < 1e-6
    assert whole.check().own_share == pytest.approx(paper.check().input_share, rel=1e-6)


def test_the_books_still_tell() -> None:
    """The factor comes from the books: where they do not close, the map does not sum to the score."""
    explainer = dt.Explainer(network(), X, BOX)
    result = explainer.run_batch(explainer.engine, (X,), 0, "by step")
    assert result.entries is not None
    wrong = replace(result, entries=torch.cat([result.entries[:, :2], 0.9 * result.entries[:, 2:]], dim=1))
    assert float((returned(wrong).relevance[0].flatten(1).sum(1) / result.score).max()) < 0.99


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
    assert "(of both, biases handed back" in str(c.ledger)
    assert c.check().accounted


def test_where_nothing_arrived_biases_keep_it() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(1.0)
        model[3].weight.fill_(1.0)
    e = explained("returned", 0, model)
    assert not e.relevance.any()
    assert e.ledger.returned is not None
    assert not e.ledger.returned.any()
    assert e.check().accounted
    assert not e.check().conservative


def test_too_little_is_not_enlarged() -> None:
    own, whole = torch.tensor([0.0, 1e-37, 1e-6]), torch.ones(3)
    assert arrived(own, whole).tolist() == [False, False, True]


def test_where_shares_are_subtracted_nothing_is_handed_back() -> None:
    rules = {"*": dt.rules.Epsilon(0.1)}
    whole, paper = explained("returned", rules=rules), explained("neuron", rules=rules)
    assert torch.equal(whole.relevance, paper.relevance)
    assert whole.ledger.returned is None


def test_inside_the_network_nothing_was_handed_back_yet() -> None:
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
