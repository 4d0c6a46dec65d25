"""Inputs and outputs of every number and shape: several, tokens, other sizes, and where the samples are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from small_networks import Net, batch, close, mlp


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Conv2d(3, 5, 6), nn.Linear(5, 3)

    def forward(self, vector: Tensor, picture: Tensor) -> Tensor:
        return self.c(F.relu(self.a(vector) + self.b(picture).flatten(1)))


def test_several_inputs_each_have_their_relevance() -> None:
    model, inputs = TwoInputs().eval().double(), (torch.rand(3, 4, dtype=torch.float64), batch())
    explainer = dt.Explainer(model, inputs, (dt.NonNegative(), dt.Box(0, 1)), bias="neuron")
    e = explainer.explain(inputs, dt.margin())
    assert isinstance(e.relevance, tuple)
    assert [r.shape for r in e.relevance] == [x.shape for x in inputs]
    assert all(float(r.sum()) > 0 for r in e.relevance)
    close(e.ledger.input, sum(r.flatten(1).sum(1) for r in e.relevance))
    assert e.check().accounted
    assert [e.heatmap(k).shape for k in (0, 1)] == [(3, 4), (3, 6, 6)]
    many = explainer.explain(inputs, torch.tensor([[0, 1]] * 3))
    assert [r.shape for r in many.relevance] == [(3, 2, 4), (3, 2, 3, 6, 6)]


def test_an_input_that_does_not_matter_is_noted() -> None:
    class Ignores(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return 2 * a

    inputs = (torch.rand(2, 3), torch.rand(2, 3))
    e = dt.explain(Ignores(), inputs, domain=dt.NonNegative(), bias="neuron")
    assert any("'b'" in n and "does not reach" in n for n in e.notes)
    assert not e.relevance[1].any()
    assert e.check().accounted


class Several(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.form = mlp(4), form

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return self.form(y, 2 * y + 1)


FORMS: list[tuple[Callable[[Tensor, Tensor], Any], Any]] = [
    (lambda y, z: (y, z), 1),
    (lambda y, z: [y, z], 1),
    (lambda y, z: {"logits": y, "other": z}, "other"),
    (lambda y, z: {"logits": y, "other": z}, 1),
    (lambda y, z: ((y, z), y), 1),
]


@pytest.mark.parametrize(("form", "output"), FORMS, ids=["tuple", "list", "dict by name", "dict by number", "nested"])
@pytest.mark.parametrize("callable_target", [False, True])
def test_one_of_several_outputs(form: Any, output: Any, callable_target: bool) -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(Several(form).eval(), x, dt.NonNegative(), output=output, bias="neuron")
    e = explainer.explain(x, (lambda out: out[:, 2]) if callable_target else 2)
    close(e.score, 2 * mlp(4)(x)[:, 2].detach() + 1)
    assert e.check().accounted


def test_tokens_have_one_relevance_each() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.norm, self.head = nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(F.relu(self.embed(ids))).mean(1))

    ids = torch.tensor([[0, 3, 6, 3], [1, 1, 2, 5]])
    explainer = dt.Explainer(Words().eval().double(), ids, bias="neuron")
    e = explainer.explain(ids, dt.margin())
    assert e.relevance.shape == ids.shape
    assert e.relevance.is_floating_point()
    assert e.heatmap().shape == ids.shape
    assert e.check().accounted
    close(e.relevance, e.at("embed").sum(-1))
    close(e.relevance[0, 1], e.relevance[0, 3])  # the same word in a network that does not know positions
    longer = explainer.explain(torch.tensor([[0, 3, 6, 3, 2, 2]]))
    assert longer.relevance.shape == (1, 6)


def test_the_batch_size_is_free_after_a_capture_with_one(captures: list[Any]) -> None:
    explainer = dt.Explainer(Net().eval().double(), batch(1), dt.Box(0, 1), bias="neuron")
    whole = explainer.explain(batch(5))
    for k in range(5):
        one = explainer.explain(batch(5)[k : k + 1])
        close(one.relevance[0], whole.relevance[k], 1e-10)
    assert len(captures) == 1
    assert not [n for n in explainer.plan.notes if "batch" in n]


def test_another_size_is_captured_anew_and_remembered(captures: list[Any]) -> None:
    explainer = dt.Explainer(Net().eval().double(), batch(1), dt.Box(0, 1), bias="neuron")
    large = explainer.explain(batch(2, side=8))
    assert large.relevance.shape == (2, 3, 8, 8)
    assert large.check().accounted
    assert large.at("pool").shape == (2, 6, 4, 4)
    assert [shape[0][2:] for shape in captures] == [(6, 6), (8, 8)]
    explainer.explain(batch(4, side=8))
    explainer.explain(batch(4))
    assert len(captures) == 2
    close(
        large.relevance,
        dt.explain(Net().eval().double(), batch(2, side=8), domain=dt.Box(0, 1), bias="neuron").relevance,
    )


def test_vectors_picked_by_positions_are_constants() -> None:
    class Positions(nn.Module):
        """Positions counted from the tokens, as RoBERTa does."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(7, 4), nn.Embedding(9, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            positions = torch.cumsum((tokens != 0).long(), 1) + 1
            return self.head(torch.relu(self.words(tokens) + self.places(positions)).mean(1))

    net, tokens = Positions().double(), torch.tensor([[1, 2, 0, 4], [5, 3, 6, 1]])
    e = dt.explain(net, tokens, dt.margin(), bias="neuron")
    assert e.relevance.shape == tokens.shape
    assert float(e.relevance.min()) >= 0
    assert torch.allclose(e.ledger.total, e.score, atol=0, rtol=1e-12)
    assert float(e.ledger.bias.min()) > 0


class Sideways(nn.Module):
    """A network that works on (length, batch, features), and may insist on its batch size."""

    def __init__(self, fixed: int | None) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.fixed = nn.Linear(4, 6), nn.Linear(6, 2), fixed
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        if self.fixed is not None:
            turned = turned.reshape(3, self.fixed, 4)
        hidden = torch.relu(self.first(turned))
        return self.second(hidden.reshape(3, -1, 6).mean(0))


@pytest.mark.parametrize("fixed", [1, 2, 3])
def test_a_fixed_batch_that_is_not_the_first_axis(fixed: int) -> None:
    x = torch.rand(fixed, 3, 4, dtype=torch.float64)
    target = torch.tensor([[1, 0]] * fixed)
    e = dt.explain(Sideways(fixed), x, target, dt.NonNegative(), bias="neuron")
    expected = dt.explain(Sideways(None), x, target, dt.NonNegative(), bias="neuron")
    assert expected.relevance.any()
    close(e.relevance, expected.relevance)
    close(e.ledger.bias, expected.ledger.bias)
    close(e.ledger.input + e.ledger.bias + e.ledger.dropped, e.score.clamp(min=0))
