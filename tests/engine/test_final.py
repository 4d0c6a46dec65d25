"""A final softmax or sigmoid: one rule for `explain` and `between`, and targets that name the other question."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.target import Logit, Probability, Target

FINAL = {"softmax": (nn.Softmax(1), 3), "log_softmax": (nn.LogSoftmax(1), 3), "sigmoid": (nn.Sigmoid(), 3)}
FINAL["one sigmoid"] = (nn.Sigmoid(), 1)
FINAL["reshaped"] = (nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), nn.Softmax(1), nn.Flatten()), 3)


def network(final: nn.Module | None, classes: int = 3) -> tuple[nn.Module, nn.Module, Tensor]:
    """A network, the same without its last module, and samples."""
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes)).double()
    with torch.no_grad():
        bare[2].weight.mul_(8)
    return (bare if final is None else nn.Sequential(bare, final)), bare, torch.rand(3, 4, dtype=torch.float64)


def difference(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x) - net(0 * x)


@pytest.mark.parametrize("kind", FINAL)
def test_a_class_is_the_logit_in_both_methods_and_both_say_so(kind: str) -> None:
    net, bare, x = network(*FINAL[kind])
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    b, e = explainer.between(x, "zeros", 0), explainer.explain(x, 0)
    torch.testing.assert_close(b.score, e.score)
    torch.testing.assert_close(b.relevance.sum(1), difference(bare, x)[:, 0])
    torch.testing.assert_close(b.score - b.reference_score, b.relevance.sum(1))
    (said,) = [n for n in b.notes if "set aside" in n]
    assert "logit" in said
    assert "dt.probability" in said
    assert said in str(b.check())
    assert any("set aside" in n for n in e.notes)


@pytest.mark.parametrize("kind", FINAL)
def test_a_logit_asks_the_same_by_name(kind: str) -> None:
    net, _, x = network(*FINAL[kind])
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    for ask in (explainer.explain, lambda x, t: explainer.between(x, "zeros", t)):
        assert torch.equal(ask(x, dt.logit(0)).relevance, ask(x, 0).relevance)
    assert torch.equal(explainer(x, dt.logit(0))[1], explainer(x, 0)[1])
    e, plain = explainer.explain(x, dt.logit(0)), explainer.explain(x, 0)
    assert torch.equal(e.at("0.1"), plain.at("0.1"))
    assert repr(e) == repr(plain)


def test_of_a_network_that_ends_in_logits_a_logit_is_the_output() -> None:
    net, _, x = network(None)
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    for ask in (explainer.explain, lambda x, t: explainer.between(x, "zeros", t)):
        assert torch.equal(ask(x, dt.logit(0)).relevance, ask(x, 0).relevance)
    assert not any("set aside" in n for n in explainer.between(x, "zeros", 0).notes)


@pytest.mark.parametrize("kind", FINAL)
def test_a_probability_is_exact_between_two_points(kind: str) -> None:
    net, _, x = network(*FINAL[kind])
    b = dt.Explainer(net).between(x, "zeros", dt.probability(0))
    p, p0 = ((net(t).exp() if kind == "log_softmax" else net(t)).detach()[:, 0] for t in (x, 0 * x))
    torch.testing.assert_close(b.score, p)
    torch.testing.assert_close(b.reference_score, p0)
    torch.testing.assert_close(b.relevance.sum(1), p - p0)
    assert any("probability" in n for n in b.notes)
    assert not any("set aside" in n for n in b.notes)


@pytest.mark.parametrize("classes", [1, 3])
def test_logits_become_probabilities_where_they_are_asked_for(classes: int) -> None:
    net, _, x = network(None, classes)
    b = dt.Explainer(net).between(x, "zeros", dt.probability(0))
    p, p0 = ((net(t).softmax(1) if classes > 1 else net(t).sigmoid()).detach()[:, 0] for t in (x, 0 * x))
    torch.testing.assert_close(b.score, p)
    torch.testing.assert_close(b.relevance.sum(1), p - p0)


def test_a_network_with_one_number_a_sample_has_a_probability() -> None:
    net, _, x = network(nn.Flatten(0), 1)
    b = dt.Explainer(net).between(x, "zeros", dt.probability())
    torch.testing.assert_close(b.relevance.sum(1), (net(x).sigmoid() - net(0 * x).sigmoid()).detach())


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_probabilities_take_the_top_class_several_and_one_per_sample(kind: str) -> None:
    net, _, x = network(*FINAL[kind])
    explainer, change = dt.Explainer(net), difference(net, x)
    top = explainer.between(x, "zeros", dt.probability())
    torch.testing.assert_close(top.relevance.sum(1), change.gather(1, net(x).argmax(1, keepdim=True))[:, 0])
    several = explainer.between(x, "zeros", dt.probability([0, 2]))
    torch.testing.assert_close(several.relevance.sum(2), change[:, [0, 2]])
    each = explainer.between(x, "zeros", dt.probability(torch.tensor([2, 0, 1])))
    torch.testing.assert_close(each.relevance.sum(1), change[torch.arange(3), torch.tensor([2, 0, 1])])


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_deep_taylor_explains_a_probability_as_it_does_a_function(kind: str) -> None:
    net, bare, x = network(*FINAL[kind])
    top = int(bare(x).sum(0).argmax())
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    e, wanted = explainer.explain(x, dt.probability(top)), explainer.explain(x, lambda o: o[:, top])
    torch.testing.assert_close(e.relevance, wanted.relevance)
    torch.testing.assert_close(e.score, net(x)[:, top].detach())
    torch.testing.assert_close(explainer(x, dt.probability(top))[1], wanted.relevance)
    assert any("probability" in n for n in e.notes)
    assert bool((e.at("0.1") != 0).any())


@pytest.mark.parametrize("function", [lambda o: o[:, 0], lambda o: o.squeeze(1), lambda o: o.reshape(-1)])
def test_a_function_is_of_the_networks_own_output_however_it_is_written(function: Target) -> None:
    net, _, x = network(*FINAL["one sigmoid"])
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    b = explainer.between(x, "zeros", function)
    torch.testing.assert_close(b.relevance.sum(1), difference(net, x)[:, 0])
    torch.testing.assert_close(explainer.explain(x, function).score, net(x)[:, 0].detach())


def test_names_stand_for_classes_and_bad_classes_are_refused() -> None:
    net, _, x = network(nn.Softmax(1))
    named = dt.load(net, class_names=["cat", "dog", "eel"], domain=dt.NonNegative())
    explainer = dt.Explainer(named)
    b = explainer.between(x, "zeros", dt.probability("dog"))
    torch.testing.assert_close(b.relevance.sum(1), difference(net, x)[:, 1])
    assert torch.equal(explainer.explain(x, dt.logit("dog")).relevance, explainer.explain(x, 1).relevance)
    assert "dog" in repr(b)
    for bad in (dt.probability(3), dt.logit(-1), dt.probability(dt.margin(0, 1)), dt.logit(lambda o: o[:, 0])):
        for ask in (explainer.explain, lambda x, t: explainer.between(x, "zeros", t)):
            with pytest.raises(dt.TargetError):
                ask(x, bad)
    assert dt.logit("dog") == Logit("dog")
    assert dt.probability() == Probability(None)


def test_the_check_can_still_ask_the_network() -> None:
    net, _, x = network(nn.Softmax(1))
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    plain = explainer.explain(x, 0)
    assert explainer.explain(x, dt.logit(0)).check(faithful=True).flipping == plain.check(faithful=True).flipping
    assert explainer.between(x, "zeros", dt.probability(0)).check(faithful=True).flipping is not None


def test_a_probability_without_a_rule_says_what_to_ask() -> None:
    net, _, x = network(nn.LogSoftmax(1))
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    for ask in (explainer.explain, explainer):
        with pytest.raises(dt.UnsupportedOpError, match=r"explainer\.between\(x, reference, dt\.probability\(c\)\)"):
            ask(x, dt.probability(0))


@pytest.mark.parametrize("target", [dt.logit(0), dt.probability(0)])
def test_methods_that_see_a_function_from_outside_refuse_them(target: Target) -> None:
    net, _, x = network(nn.Softmax(1))
    with pytest.raises(dt.TargetError, match="lambda"):
        dt.sensitivity(net, x, target)
