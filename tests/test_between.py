"""The answer of `between`: its account, its words, its pictures; targets, batches, types."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.between import METHOD, BetweenLedger


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    return nn.Sequential(*layers).double()


@pytest.fixture
def x() -> Tensor:
    return torch.rand(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_account_of_a_batch(net: nn.Module, x: Tensor) -> None:
    b = dt.Explainer(net).between(x, "zeros")
    y, y0 = net(x).detach(), net(torch.zeros_like(x)).detach()
    k = y.argmax(1, keepdim=True)
    torch.testing.assert_close(b.score, y.gather(1, k)[:, 0])
    torch.testing.assert_close(b.reference_score, y0.gather(1, k)[:, 0])
    assert b.classes is not None
    assert b.classes.tolist() == k[:, 0].tolist()
    torch.testing.assert_close(b.in_favour - b.against, b.relevance)
    assert float(b.in_favour.min()) >= 0
    assert float(b.against.min()) >= 0
    torch.testing.assert_close(b.ledger.in_favour, b.in_favour.flatten(1).sum(1))
    torch.testing.assert_close(b.ledger.against, b.against.flatten(1).sum(1))
    torch.testing.assert_close(b.ledger.total, b.score)
    assert float(b.ledger.residual.abs().max()) < 1e-14
    assert b.heatmap().shape == (3, 8, 8)
    assert b.method == METHOD
    check = b.check()
    assert check.accounted
    assert not check.positive


def test_samples_do_not_see_each_other(net: nn.Module, x: Tensor) -> None:
    explainer = dt.Explainer(net)
    whole = explainer.between(x, x.flip(0), 1).relevance
    alone = torch.cat([explainer.between(x[k : k + 1], x.flip(0)[k : k + 1], 1).relevance for k in range(3)])
    torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize(
    ("target", "weights"),
    [
        (2, [0.0, 0.0, 1.0, 0.0, 0.0]),
        (dt.margin(1, 3), [0.0, 1.0, 0.0, -1.0, 0.0]),
        (lambda z: 2 * z[:, 0] - z[:, 4], [2.0, 0.0, 0.0, 0.0, -1.0]),
    ],
)
def test_targets(net: nn.Module, x: Tensor, target: Any, weights: list[float]) -> None:
    b = dt.Explainer(net).between(x, "zeros", target)
    v = torch.tensor(weights, dtype=x.dtype)
    torch.testing.assert_close(b.score, net(x).detach() @ v)
    torch.testing.assert_close(b.relevance.flatten(1).sum(1), (net(x) - net(0 * x)).detach() @ v)


def test_several_targets_are_each_alone(net: nn.Module, x: Tensor) -> None:
    explainer = dt.Explainer(net)
    many = explainer.between(x, "zeros", [4, 0])
    assert many.relevance.shape == (3, 2, 2, 8, 8)
    assert many.ledger.in_favour.shape == (3, 2)
    for n, k in enumerate((4, 0)):
        torch.testing.assert_close(many.relevance[:, n], explainer.between(x, "zeros", k).relevance)


def test_a_function_of_the_output_that_has_no_rule(net: nn.Module, x: Tensor) -> None:
    """log has none: there the network is captured without a plan."""

    def score(z: Tensor) -> Tensor:
        return z.softmax(1)[:, 1].log()

    b = dt.Explainer(net).between(x, "zeros", score)
    torch.testing.assert_close(b.relevance.flatten(1).sum(1), (score(net(x)) - score(net(0 * x))).detach())


class Product(nn.Module):
    """A product of which neither factor is a gate: no rules, but secants."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x) * self.b(x)).sum(1)


def test_a_network_that_has_no_rules_is_compared_all_the_same() -> None:
    torch.manual_seed(0)
    net, x = Product().double(), torch.rand(2, 3, dtype=torch.float64)
    explainer = dt.Explainer(net)
    for _ in range(2):
        b = explainer.between(x, "zeros")
        torch.testing.assert_close(b.relevance.sum(1), (net(x) - net(0 * x)).detach())
    with pytest.raises(dt.UnsupportedOpError):
        explainer.explain(x)
    with torch.no_grad():
        net.a.weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        explainer.between(x, "zeros")
    after = explainer.refresh().between(x, "zeros")
    torch.testing.assert_close(after.relevance.sum(1), (net(x) - net(0 * x)).detach())


def test_the_final_softmax_is_set_aside_as_in_explain() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double(), torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(net)
    torch.testing.assert_close(explainer.between(x, "zeros", 0).score, explainer.explain(x, 0).score)


def test_the_network_is_not_changed_and_no_gradients_are_left(net: nn.Module, x: Tensor) -> None:
    before = copy.deepcopy(net.state_dict())
    own = x.clone().requires_grad_()
    with torch.no_grad():
        b = dt.Explainer(net).between(own, "zeros")
    assert own.grad is None
    assert all(p.grad is None for p in net.parameters())
    assert not b.relevance.requires_grad
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_within_inference_mode(net: nn.Module, x: Tensor) -> None:
    explainer = dt.Explainer(net)
    wanted = explainer.between(x, "zeros").relevance
    with torch.inference_mode():
        found = explainer.between(x, "zeros").relevance
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32_and_that_is_said(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x = torch.rand(2, 4).to(dtype)
    try:
        explainer = dt.Explainer(net, x)
    except dt.InputError:
        pytest.skip("this processor has no such products")
    b = explainer.between(x, "zeros", 1)
    assert b.relevance.dtype is torch.float32
    assert float(b.ledger.gap.max()) < 1e-6
    assert any("float32" in note for note in b.notes)
    wide = dt.Explainer(net.float()).between(x.float(), "zeros", 1)
    torch.testing.assert_close(b.relevance, wide.relevance)


def test_where_points_are_the_same_nothing_is_shared_out(net: nn.Module, x: Tensor) -> None:
    b = dt.Explainer(net).between(x, x)
    assert not b.relevance.any()
    assert torch.equal(b.score, b.reference_score)


# --- words and pictures -----------------------------------------------------------------------------------------------


def test_it_says_so_in_plain_english() -> None:
    one = torch.ones(1, dtype=torch.float64)
    ledger = BetweenLedger.from_scores(3.2 * one, 0.4 * one, 4.1 * one, 1.3 * one)
    assert ledger.sentence().startswith("score 3.2 = reference's 0.4 + 4.1 for − 1.3 against (residual ")
    assert "NOT" not in ledger.sentence()
    wrong = BetweenLedger.from_scores(3.2 * one, 0.4 * one, 4.1 * one, 1.2 * one)
    assert wrong.sentence().endswith("; NOT accounted for: -0.1")
    assert not bool(wrong.accounted)


def test_how_it_shows_itself(net: nn.Module, x: Tensor) -> None:
    b = dt.Explainer(net).between(x, "zeros", 2)
    assert repr(b).startswith("<Between of class 2: score ")
    assert repr(b).endswith("and 2 more; relevance (3, 2, 8, 8)>")
    assert "add up to the score: yes" in str(b)
    assert str(b).count("= reference's") == 3
    assert "<img" in b._repr_html_()
    again = pickle.loads(pickle.dumps(b))
    with pytest.raises(dt.BoundaryError, match="saved and loaded without its explainer"):
        again.at("0")
    with pytest.raises(dt.BoundaryError, match="saved and loaded without its explainer"):
        again.change_at("0")
    assert torch.equal(again.relevance, b.relevance)
    assert again.ledger.sentence() == b.ledger.sentence()


def test_titles_and_captions_say_what_was_computed(net: nn.Module, x: Tensor) -> None:
    pytest.importorskip("matplotlib")
    b = dt.Explainer(net).between(x, "zeros", 2)
    texts = " ".join(" ".join(t.get_text() for t in b[0].plot().findobj(lambda a: hasattr(a, "get_text"))).split())
    scores = f"score {float(b.score[0]):.4g}, reference {float(b.reference_score[0]):.4g}"
    assert f"Relevance by secants for class 2 ({scores})" in texts
    assert f"Red raised the score by {float(b.ledger.in_favour[0]):.4g} in all" in texts


def test_it_can_ask_the_network_whether_the_map_is_right(net: nn.Module, x: Tensor) -> None:
    assert dt.Explainer(net).between(x, "zeros").check(faithful=True).flipping is not None


def test_a_mean_over_references_is_the_mean_of_maps(net: nn.Module, x: Tensor) -> None:
    explainer = dt.Explainer(net)
    both = explainer.between(x, ["zeros", "blur"], 1)
    each = [explainer.between(x, name, 1) for name in ("zeros", "blur")]
    torch.testing.assert_close(both.relevance, (each[0].relevance + each[1].relevance) / 2)
    torch.testing.assert_close(both.reference_score, (each[0].reference_score + each[1].reference_score) / 2)
    assert "means over 2 references" in both.notes[-1]


# --- inside the network -----------------------------------------------------------------------------------------------


def test_the_relevance_of_a_cut_adds_up_to_the_difference_of_the_scores(net: nn.Module, x: Tensor) -> None:
    b = dt.Explainer(net).between(x, "zeros", 1)
    difference = b.score - b.reference_score
    for layer, side in (("0", "output"), ("1", "output"), ("1", "input"), ("2", "output"), ("4", "input")):
        torch.testing.assert_close(b.at(layer, side).flatten(1).sum(1), difference)  # type: ignore[arg-type]
    torch.testing.assert_close(b.at("0", "input"), b.relevance)
    torch.testing.assert_close(b.at("1", "input"), b.at("0"))


def test_the_change_inside_is_the_difference_of_two_runs(net: nn.Module, x: Tensor) -> None:
    b = dt.Explainer(net).between(x, x.flip(0), 1)
    found = b.change_at("2")
    inside = [net[:3](t).detach() for t in (x, x.flip(0))]  # type: ignore[index]
    torch.testing.assert_close(found.change, inside[0] - inside[1])
    torch.testing.assert_close(found.relevance, found.change * found.multiplier)
    weight = net[4].weight[1].detach().reshape(4, 3, 3)  # type: ignore[index, union-attr]
    torch.testing.assert_close(found.multiplier, weight.expand(3, 4, 3, 3))  # what follows is linear


def test_inside_of_several_references_and_targets(net: nn.Module, x: Tensor) -> None:
    explainer = dt.Explainer(net)
    both = explainer.between(x, ["zeros", x.flip(0)], [1, 3])
    apart = [explainer.between(x, r, [1, 3]).at("1") for r in ("zeros", x.flip(0))]
    assert both.at("1").shape == (3, 2, 4, 6, 6)
    torch.testing.assert_close(both.at("1"), (apart[0] + apart[1]) / 2)
    torch.testing.assert_close(apart[0][:, 1], explainer.between(x, "zeros", 3).at("1"))
    with pytest.raises(dt.InputError, match="There are 2 references"):
        both.change_at("1")


def test_a_part_that_does_not_change_has_no_relevance() -> None:
    class TwoBranches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(2, 3), nn.Linear(2, 3), nn.Tanh()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.act(self.a(x)) * self.act(self.b(y))

    torch.manual_seed(0)
    x, y = torch.rand(2, 2), torch.rand(2, 2)
    b = dt.Explainer(TwoBranches()).between((x, y), (torch.zeros_like(x), None), 0)
    assert float(b.at("b").abs().max()) == 0
    torch.testing.assert_close(b.at("a").sum(1), b.score - b.reference_score)


@pytest.mark.parametrize(
    ("layer", "side", "said"),
    [
        ("9", "output", "There is no node or module '9'"),
        ("layer", "output", "Did you mean 'two.layer', 'one.layer'"),
        ("one.layer", "input", "does not read exactly one tensor; it reads none"),
        ("mask", "output", "does not hold real numbers"),
    ],
)
def test_a_layer_without_a_value(layer: str, side: Any, said: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out

    class Mask(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x > 0.1

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.mask = Block(), Block(), Mask()

        def forward(self, x: Tensor) -> Tensor:
            y = self.two(x)
            return y * self.mask(y) + self.one(torch.ones_like(x))

    b = dt.Explainer(Network()).between(torch.rand(2, 2), "zeros", 0)
    with pytest.raises(dt.BoundaryError, match=said):
        b.at(layer, side)
