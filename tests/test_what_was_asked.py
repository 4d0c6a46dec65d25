"""What an explanation says of itself: which class, against whom, and how much biases took."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.engine.engine import Engine

NAMES = ["cat", "dog", "bird"]


def network(biases: tuple[float, ...] = (1.0, 2.0, 0.5)) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        made[1].weight.abs_()
        made[1].bias.copy_(torch.tensor(biases))
    return made


X = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def test_the_class_is_said_where_the_answer_was_asked_for() -> None:
    model = network()
    e = dt.Explainer(model, X, dt.Box(0, 1)).explain(X)
    with torch.no_grad():
        answer = model(X).argmax(1)
    assert e.classes is not None
    assert e.classes.tolist() == answer.tolist()
    assert f"<Explanation of class {answer[0]}, class {answer[1]}: " in repr(e)
    assert f"class {answer[1]}: f = " in e._repr_html_()
    assert e.drawing(0, 0, 0, None).title.startswith(f"Relevance for class {answer[0]} (score ")


def test_in_parts_the_classes_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network((1.0, 1.0, 1.0))
    x = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    explainer = dt.Explainer(model, x, dt.Box(0, 1))
    run = Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if len(inputs[0]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)
    with pytest.warns(dt.DeepTaylorWarning, match="explained 1 at a time"):
        e = explainer.explain(x)
    with torch.no_grad():
        answer = model(x).argmax(1).tolist()
    assert e.classes is not None
    assert e.classes.tolist() == answer
    assert len(set(answer)) > 1  # so that an order that was lost would be seen


def test_a_difference_names_both() -> None:
    e = dt.Explainer(network(), X, dt.Box(0, 1)).explain(X, dt.margin(1, 2))
    assert e.drawing(0, 0, 0, None).title.startswith("Relevance for class 1 rather than class 2 (score ")


def test_names_are_used_without_photographs() -> None:
    p = dt.load(network(), domain=dt.Box(0, 1), class_names=NAMES)
    e = p.explainer().explain(X, "bird")
    assert e.titles == (("bird",), ("bird",))
    assert p.explainer().contrast(X, "dog", against="cat").class_names == tuple(NAMES)


def test_names_that_do_not_fit_the_output_are_refused_every_time() -> None:
    explainer = dt.load(network(), domain=dt.Box(0, 1), class_names=["cat", "dog"]).explainer()
    for _ in range(2):
        with pytest.raises(dt.InputError, match="The network has 3 outputs, but there are 2 class names"):
            explainer.explain(X, "dog")


def test_without_rivals_all_of_it_is_the_classes_own() -> None:
    c = dt.Explainer(network((1.0, -50.0, -50.0)), X, dt.Box(0, 1)).contrast(X, 0)
    assert c.apart is not None
    assert c.apart.tolist() == [1.0, 1.0]
    assert c.rivals == ((), ())
    d = c.drawing(0, 0, 0, None)
    assert d.difference is None
    assert not any("rivals" in sentence for sentence in d.caption)


def test_a_batch_says_what_biases_absorbed() -> None:
    explainer = dt.Explainer(network((0.2, 0.2, 0.2)), X, dt.Box(0, 1))
    one, both = explainer.explain(X[:1], 0).check(), explainer.explain(X, 0).check()
    assert re.match(r"The input accounts for [\d.]+ % of the score; biases absorbed [\d.]+ %\.", str(one))
    assert re.match(r"The input accounts for at least [\d.]+ % of the score; biases absorbed at most ", str(both))
    little = dt.Explainer(network((50.0, 50.0, 50.0)), X, dt.Box(0, 1)).explain(X, 0).check()
    assert "% of the score in the worst of the 2 scores; biases absorbed at most" in str(little)


def test_a_negative_score_is_not_called_zero() -> None:
    e = dt.Explainer(network((-50.0, 1.0, 1.0)), X, dt.Box(0, 1)).explain(X, 0)
    assert str(e.ledger).startswith("sample 0: max(0, f) = 0 = input 0 ")
    assert "there is no evidence for this answer" in str(e.check())


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (torch.rand(3, 2, 2), "Add a batch dimension: x.unsqueeze(0)."),
        (torch.rand(5, 2, 2), "Add a channel dimension: x.unsqueeze(1)."),
        (torch.rand(5, 2, 2, 3), "Channels come before rows and columns: x.permute(0, 3, 1, 2)."),
    ],
)
def test_advice_for_a_missing_axis(x: torch.Tensor, advice: str) -> None:
    with pytest.raises(dt.InputError) as caught:
        dt.Explainer(network(), X, dt.Box(0, 1)).explain(x)
    assert advice in str(caught.value)


def test_a_network_in_memory_is_called_model() -> None:
    with pytest.raises(dt.DeepTaylorError, match=r"dt\.load\(model,"):
        dt.load(network())
