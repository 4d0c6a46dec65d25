"""What is explained: the top class, a class, several, weights, a margin, a function of the output."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import target as targets
from small_networks import attention, batch, close, mlp, net


def test_no_target_is_the_top_class() -> None:
    model, explainer = net()
    top = model(batch()).argmax(1)
    e = explainer.explain(batch())
    close(e.score, model(batch()).max(1).values.detach())
    assert torch.equal(e.relevance, explainer.explain(batch(), top).relevance)


def test_an_int_is_one_class_for_all() -> None:
    _, explainer = net()
    a = explainer.explain(batch(), 4)
    for same in (torch.tensor(4), torch.full((3,), 4), torch.full((3,), 4, dtype=torch.int32)):
        assert torch.equal(a.relevance, explainer.explain(batch(), same).relevance)


@pytest.mark.parametrize(
    "kind", ["convolutional-neuron", "convolutional-spread", "attention-neuron", "attention-spread"]
)
def test_many_targets_are_the_same_as_separate_calls(kind: str) -> None:
    network, bias = kind.split("-")
    if network == "convolutional":
        (_, explainer), x = net(bias), batch(2)
    else:
        (_, explainer), x = attention(bias), torch.rand(2, 3, 4, dtype=torch.float64)
    order = torch.stack([torch.arange(10), torch.arange(10).flip(0)])
    e = explainer.explain(x, order)
    assert e.relevance.shape == (2, 10, *x.shape[1:])
    assert e.score.shape == e.ledger.input.shape == (2, 10)
    assert float(e.relevance.max()) > 0
    for k in range(10):
        one = explainer.explain(x, order[:, k])
        scale = float(one.score.abs().max())
        assert float((e.relevance[:, k] - one.relevance).abs().max()) <= 1e-12 * scale
        assert float((e.score[:, k] - one.score).abs().max()) <= 1e-12 * scale
        for name in ("input", "bias", "dropped"):
            assert float((getattr(e.ledger, name)[:, k] - getattr(one.ledger, name)).abs().max()) <= 1e-12 * scale


def test_weights_over_the_output() -> None:
    model, explainer = net()
    v = torch.rand(3, 10, dtype=torch.float64) - 0.3
    e = explainer.explain(batch(), v)
    close(e.score, (v * model(batch()).detach()).sum(1))
    hot = F.one_hot(torch.tensor([4, 7, 9]), 10).double()
    assert torch.equal(
        explainer.explain(batch(), hot).relevance, explainer.explain(batch(), torch.tensor([4, 7, 9])).relevance
    )


def test_a_margin_is_a_difference_of_logits() -> None:
    model, explainer = net()
    out = model(batch()).detach()
    e = explainer.explain(batch(), dt.margin(7, 2))
    close(e.score, out[:, 7] - out[:, 2])
    v = torch.zeros(3, 10, dtype=torch.float64)
    v[:, 7], v[:, 2] = 1, -1
    close(e.relevance, explainer.explain(batch(), v).relevance)
    top = out.topk(2).values
    close(explainer.explain(batch(), dt.margin()).score, top[:, 0] - top[:, 1])
    close(explainer.explain(batch(), dt.margin(torch.tensor([0, 1, 2]), 9)).score, out[range(3), range(3)] - out[:, 9])


def test_a_callable_target_scores_what_it_returns() -> None:
    model, explainer = net()
    out = model(batch()).detach()
    for a, b in ((1, 0), (0, 1)):  # one of the two differences is positive
        e = explainer.explain(batch(), lambda out, a=a, b=b: out[:, a] - out[:, b])
        close(e.score, out[:, a] - out[:, b])
        assert e.check().accounted
        assert float(e.relevance.min()) >= 0


def test_a_callable_that_picks_a_class_is_that_class() -> None:
    model, explainer = net()
    top = int(model(batch()).min(0).values.argmax())
    e, expected = explainer.explain(batch(), lambda out: out[:, top]), explainer.explain(batch(), top)
    assert float(expected.score.min()) > 0
    close(e.relevance, expected.relevance)
    close(e.ledger.bias, expected.ledger.bias)
    score, relevance = explainer(batch(), lambda out: out[:, top])
    assert torch.equal(score, e.score)
    assert torch.equal(relevance, e.relevance)


def test_a_callable_target_may_be_nonlinear_and_of_one_column() -> None:
    model, explainer = net()
    e = explainer.explain(batch(), lambda out: F.relu(out[:, :3]).sum(1, keepdim=True))
    close(e.score, F.relu(model(batch())[:, :3]).sum(1).detach())
    assert e.check().accounted


def test_a_callable_target_is_captured_once(captures: list[Any]) -> None:
    explainer = dt.Explainer(mlp(), torch.rand(1, 4, dtype=torch.float64), bias="neuron")

    def largest(out: Tensor) -> Tensor:
        return out.amax(1)

    assert len(captures) == 1
    first = explainer.explain(torch.rand(2, 4, dtype=torch.float64), largest)
    assert len(captures) == 2
    explainer.explain(torch.rand(5, 4, dtype=torch.float64), lambda out: out.amax(1))
    explainer(torch.rand(2, 4, dtype=torch.float64), largest)
    first.at("relu")
    assert len(captures) == 2
    explainer.explain(torch.rand(2, 4, dtype=torch.float64), lambda out: out[:, 2].exp())
    assert len(captures) == 3


def test_a_linear_callable_is_the_weights_that_it_stands_for(captures: list[Any]) -> None:
    """Its last steps and the last layer are one unit, as with weights or a margin; nothing is captured for it."""
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer, w = dt.Explainer(mlp(), x, bias="neuron"), mlp()(x)[0].detach()
    order = w.argsort(descending=True)
    top, low, sign = int(order[0]), int(order[-1]), float(w.sum().sign())
    for score, same in [
        (lambda out: out[:, top] - out[:, low], dt.margin(top, low)),
        (lambda out: sign * out.sum(1), sign * torch.ones(3, 3, dtype=torch.float64)),
        (lambda out: (out @ w).unsqueeze(1), w.expand(3, 3)),
        (lambda out: 2 * out[torch.arange(3), torch.tensor([top] * 3)] / 2, torch.tensor([top] * 3)),
    ]:
        e, expected = explainer.explain(x, score), explainer.explain(x, same)
        close(e.relevance, expected.relevance)
        close(e.score, expected.score)
        close(e.at("relu"), expected.at("relu"))
        close(explainer(x, score)[1], expected.relevance)
    assert len(captures) == 1


def test_a_callable_target_is_looked_at_anew(captures: list[Any]) -> None:
    """A class, a tensor or a branch that it closes over may change between two calls of the very same function."""
    x, chosen = torch.rand(2, 4, dtype=torch.float64), {"k": 0, "squared": False}
    weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, bias="neuron")

    def score(out: Tensor) -> Tensor:
        picked = (out * weights).sum(1) + out[:, chosen["k"]]
        return picked**2 if chosen["squared"] else picked

    def expected() -> Tensor:
        return score(mlp()(x)).detach()

    for change in ({"k": 1}, {"squared": True}, {"k": 2}):
        chosen.update(change)
        close(explainer.explain(x, score).score, expected())
        weights.copy_(weights.roll(1) * 2)
        close(explainer.explain(x, score).score, expected())
        close(explainer(x, score)[0], expected())


@pytest.mark.slow
def test_functions_and_shapes_are_forgotten_after_some() -> None:
    x = torch.rand(1, 2, 6, 6)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    explainer = dt.Explainer(network, x, bias="neuron")
    first = explainer.explain(torch.rand(1, 2, 7, 7))
    for k in range(12):
        explainer.explain(x, lambda out, k=k: out.exp().sum(1) * k)
        explainer.explain(torch.rand(1, 2, 8 + k, 8))
    assert len(explainer._variants) <= 5
    assert len(explainer.captured.engines) <= 9
    assert "2x6x6f" in explainer.captured.engines
    assert first.at("1").shape == (1, 3, 5, 5)  # captured once more


def test_a_callable_that_mixes_samples_is_refused() -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, bias="neuron")
    with pytest.raises(dt.TargetError, match="mixes samples"):
        explainer.explain(x, lambda out: out[:, 0] - out[:, 0].mean())
    with pytest.raises(dt.DeepTaylorError, match="depends on the other samples"):
        explainer.explain(x, lambda out: out[:, 0].softmax(0))
    with pytest.raises(dt.TargetError, match=r"returned shape \(3, 3\)"):
        explainer.explain(x, lambda out: out)


def test_a_callable_target_follows_the_explainer_to_another_type(captures: list[Any]) -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer, score = dt.Explainer(mlp(), x, bias="neuron"), lambda out: out.amax(1)
    before = explainer.explain(x, score)
    after = explainer.float().explain(x.float(), score)
    assert after.score.dtype is torch.float32
    torch.testing.assert_close(after.relevance.double(), before.relevance, rtol=0, atol=1e-6)
    assert len(captures) == 2


def test_a_copy_has_callable_targets_of_its_own() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, bias="neuron")
    explainer.explain(x, lambda out: out.amax(1))
    assert not copy.deepcopy(explainer)._variants
    assert len(explainer._variants) == 1


def test_rules_and_names_hold_for_a_callable_target() -> None:
    model, x = mlp(), torch.rand(2, 4, dtype=torch.float64)
    nn.init.uniform_(model[2].weight)
    explainer = dt.Explainer(model, x, dt.NonNegative(), rules={"0": dt.rules.Flat()}, bias="neuron")
    e, expected = explainer.explain(x, lambda out: out[:, 1]), explainer.explain(x, 1)
    assert float(expected.score.min()) > 0
    close(e.relevance, expected.relevance)
    close(e.at("1"), expected.at("1"))


@pytest.mark.parametrize(
    "last",
    [
        nn.Softmax(1),
        nn.LogSoftmax(1),
        nn.Sigmoid(),
        nn.Sequential(nn.Identity(), nn.Softmax(-1)),
        nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), nn.Softmax(1), nn.Flatten()),  # as many files have it
    ],
)
def test_the_final_activation_is_set_aside(last: nn.Module) -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    bare, explainer = mlp(), dt.Explainer(nn.Sequential(mlp(), last), x, dt.NonNegative(), bias="neuron")
    e, expected = explainer.explain(x), dt.explain(bare, x, domain=dt.NonNegative(), bias="neuron")
    assert torch.equal(e.relevance, expected.relevance)
    close(e.score, bare(x).max(1).values.detach())
    said = [n for n in explainer.plan.notes if "set aside" in n and "logit" in n]
    assert len(said) == 1
    assert said[0] in str(explainer.plan)
    assert said[0] in str(e.check())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_classes_come_in_every_type_of_integer(dtype: torch.dtype) -> None:
    explainer, x = dt.Explainer(nn.Linear(4, 300), torch.rand(2, 4), dt.NonNegative(), bias="neuron"), torch.rand(2, 4)
    for target in (torch.tensor([3, 100]), torch.tensor([[3, 4], [100, 1]])):
        assert torch.equal(explainer(x, target.to(dtype))[1], explainer(x, target)[1])


def test_a_class_that_does_not_exist_has_no_score() -> None:
    """Where nobody looks, as in exported explainers and on GPUs: not a number, instead of an empty map."""
    v, _ = targets.output_weights(torch.tensor([[1, 3], [-1, 2]]), torch.rand(2, 3))
    assert v.isnan().all(-1).tolist() == [[False, True], [True, False]]
    assert v[0, 0].tolist() == [0, 1, 0]
    assert v[1, 1].tolist() == [0, 0, 1]


# --- the other sign ---------------------------------------------------------------------------------------------------


def one_logit(shape: tuple[int, ...], inner: int = 5) -> tuple[nn.Module, Tensor]:
    """A classifier with one output that is negative for every sample, and the samples."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, inner), nn.ReLU(), nn.Linear(inner, 1)).double()
    if shape == ():
        model = nn.Sequential(model, nn.Flatten(0))
    x = torch.rand(6, 4, dtype=torch.float64)
    with torch.no_grad():
        model.get_parameter("0.2.bias" if shape == () else "2.bias").sub_(model(x).max() + 1)
    return model, x


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("bias", ["neuron", "spread", "returned"])
def test_the_negative_of_one_output_is_explained(shape: tuple[int, ...], bias: str) -> None:
    model, x = one_logit(shape)
    explainer = dt.Explainer(model, x, dt.Box(0, 1), bias=bias)
    assert explainer.explain(x).check().negative == 6
    e = explainer.explain(x, dt.negative())
    close(e.score, -model(x).detach().reshape(-1))
    turned = copy.deepcopy(model)
    last = [m for m in turned.modules() if isinstance(m, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.neg_()
        last.bias.neg_()
    close(e.relevance, dt.Explainer(turned, x, dt.Box(0, 1), bias=bias).explain(x).relevance)
    assert e.check().accounted
    close(explainer.between(x, "zeros", dt.negative()).relevance, -explainer.between(x, "zeros", 0).relevance)
    close(dt.sensitivity(model, x, dt.negative()).relevance, dt.sensitivity(model, x).relevance)
    assert torch.equal(torch.compile(explainer, backend="eager")(x, dt.negative())[0], e.score)


def test_the_negative_of_a_class() -> None:
    model, explainer = net()
    x, classes = batch(), torch.tensor([0, 4, 2])
    e = explainer.explain(x, dt.negative(classes))
    close(e.score, -model(x).detach().gather(1, classes[:, None])[:, 0])
    v = -torch.eye(model(x).shape[1])[classes]
    close(e.relevance, explainer.explain(x, v.to(x)).relevance)
    assert "the negative of class 4" in repr(e)
    p = dt.Pretrained(model, tuple("abcdefghij"[: v.shape[1]]), None, domain=dt.Real())
    named = p.explainer().explain(x, dt.negative("c"))
    assert named.titles == (("the negative of c",),) * 3
    for wrong in (dt.negative(None), dt.negative([0, 1]), dt.negative(0.5), dt.negative(torch.tensor([[0], [1], [2]]))):
        with pytest.raises(dt.TargetError, match=r"dt.negative\(target\) takes one class"):
            explainer.explain(x, wrong)
    with pytest.raises(dt.TargetError, match="out of range"):
        explainer.explain(x, dt.negative(99))
    with pytest.raises(dt.TargetError, match="A contrast compares a class with others"):
        explainer.contrast(x, dt.negative(1))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_negative_output_is_sent_to_what_explains_it(shape: tuple[int, ...]) -> None:
    model, x = one_logit(shape)
    explainer = dt.Explainer(model, x, dt.Box(0, 1))
    text = str(explainer.explain(x).check())
    assert "The network has one output: target=dt.negative() explains it where it is negative" in text
    assert "dt.margin" not in text
    assert "negative" not in str(explainer.explain(x, dt.negative()).check())
    function = explainer.explain(x, lambda z: -z.reshape(-1).square()).check()  # a function has no output to turn
    assert "The network has one output" not in str(function)
    many = nn.Sequential(nn.Linear(4, 2), nn.Flatten()).double()
    assert "dt.negative" not in str(dt.Explainer(many, x, dt.Box(0, 1)).explain(x, dt.margin(0, 1)).check())
    outside = str(dt.sensitivity(model, x).check())
    assert "dt.margin" not in outside


def test_a_margin_of_a_class_and_itself_is_refused() -> None:
    with pytest.raises(dt.TargetError, match="both are class 1"):
        dt.explain(torch.nn.Linear(2, 3), torch.rand(2, 2), dt.margin(1, 1), dt.Box(0, 1))
