"""Which training examples counted: against gradients by autograd, against captum, by hand, and in small batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import deeptaylor as dt
from untouched import snapshot


def network(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, classes)).double().eval()


def data(classes: int = 3, size: int = 30) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.rand(size, 4, generator=random, dtype=torch.float64)
    return x, torch.randint(classes, (size,), generator=random)


def gradients(model: nn.Sequential, x: Tensor, labels: Tensor) -> Tensor:
    """∂loss/∂W of the last layer, one row a sample, by autograd."""
    rows = []
    for one, label in zip(x, labels, strict=True):
        z = model(one[None])
        one_number = z.shape[1] == 1
        loss = 0.5 * (z[0, 0] - label) ** 2 if one_number else nn.functional.cross_entropy(z, label[None])
        rows.append(torch.autograd.grad(loss, model[-1].weight)[0].flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("classes", [3, 1])
def test_gradients_are_those_of_autograd(classes: int) -> None:
    model, (x, labels) = network(classes), data(classes)
    labels = torch.linspace(-1, 1, len(x), dtype=torch.float64) if classes == 1 else labels
    asked, right = x[:4], labels[[3, 2, 1, 0]]
    wanted = gradients(model, asked, right) @ gradients(model, x, labels).T
    found = dt.examples(dt.Explainer(model), asked, (x, labels), target=right, k=30)
    for numbers, values, largest in (
        (found.proponents, found.proponent_values, True), (found.opponents, found.opponent_values, False)
    ):  # fmt: skip
        assert torch.allclose(values, wanted.sort(1, descending=largest).values, rtol=1e-10, atol=1e-15)
        assert torch.allclose(wanted.gather(1, numbers), values, rtol=1e-10, atol=1e-15)


def test_it_says_what_captum_says() -> None:
    fast = pytest.importorskip("captum.influence").TracInCPFast
    model, (x, labels) = network(), data()

    def load(*_: Any) -> float:
        return 1.0

    tracin = fast(
        model, model[-1], TensorDataset(x, labels), ["one"], load, nn.CrossEntropyLoss(reduction="sum"), batch_size=7
    )
    found = dt.examples(dt.Explainer(model), x[:5], (x, labels), target=labels[:5], k=3)
    theirs = tracin.influence((x[:5], labels[:5]), k=3)
    assert torch.equal(found.proponents, theirs.indices)
    assert torch.allclose(found.proponent_values, theirs.influence_scores, rtol=1e-10)


def test_what_a_step_of_training_does() -> None:
    model, (x, labels) = network(), data()
    rate = 1e-6
    found = dt.examples(dt.Explainer(model), x[:1], (x, labels), target=labels[:1], k=1)
    loss = nn.functional.cross_entropy(model(x[:1]), labels[:1])
    first = int(found.proponents[0, 0])
    step = gradients(model, x[first : first + 1], labels[first : first + 1])[0].reshape(3, 6)
    with torch.no_grad():
        model[-1].weight -= rate * step
        lowered = float(loss - nn.functional.cross_entropy(model(x[:1]), labels[:1])) / rate
    assert lowered == pytest.approx(float(found.proponent_values[0, 0]), rel=1e-4)


def test_relevance_in_common_by_hand() -> None:
    # h = x; class 0 weighs (2, 1, −1). Of x = (1, 2, 3) it holds e = (2, 2, 0), in all 4.
    # t0 = (0.5, 4, 0): min(2, 1) + min(2, 4) = 3 of 4; t1 = (3, 0, 9): 2 of 4; t2 = (−1, 0, 0): nothing.
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 1.0, -1.0], [0.0, 0.0, 0.0]]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    others = torch.tensor([[0.5, 4.0, 0.0], [3.0, 0.0, 9.0], [-1.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found = dt.examples(dt.Explainer(model), x, others, by="relevance", target=0, k=4)
    assert found.proponents.tolist() == [[3, 0, 1, 2]]
    assert found.proponent_values.tolist() == [[1.0, 0.75, 0.5, 0.0]]
    assert found.opponents.shape == (1, 0)
    assert "most in common: 3 (100.0 %), 0 (75.0 %), 1 (50.0 %), 2 (0.0 %)" in str(found)


def test_it_is_the_relevance_of_the_z_plus_rule() -> None:
    model, (x, _) = network(), data()
    with torch.no_grad():
        model[-1].bias.zero_()
    explainer = dt.Explainer(model, x[:1], bias="neuron", rules={"*": dt.rules.ZPlus()})
    top = int(model(x[:1]).argmax())
    R = explainer.relevance_at("1", x[:1], top)
    h, others = model[:2](x[:1]), model[:2](x)
    share = (R * (others / h.clamp(min=1e-300)).clamp(0, 1)).sum(1) / R.sum()
    found = dt.examples(explainer, x[:1], x, by="relevance", target=top, k=30)
    assert float(R.sum()) > 0
    assert torch.allclose(found.proponent_values[0], share.sort(descending=True).values, rtol=1e-10)


@pytest.mark.parametrize("by", ["gradients", "relevance"])
def test_data_comes_in_any_form(by: Any) -> None:
    own, (x, labels) = dt.Explainer(network()), data(size=150)
    whole = dt.examples(own, x[:2], (x, labels), by=by)
    loader = DataLoader(TensorDataset(x, labels), batch_size=7)
    for other in (loader, iter(loader), (x.numpy(), labels.numpy()), [(x[:1], labels[:1]), (x[1:], labels[1:])]):
        found = dt.examples(own, x[:2].numpy(), other, by=by)
        assert torch.equal(found.proponents, whole.proponents)
        assert torch.allclose(found.proponent_values, whole.proponent_values)
        assert found.seen == 150


def test_names_a_softmax_and_photographs() -> None:
    model = nn.Sequential(nn.Flatten(), *network(), nn.Softmax(1)).float()
    preparation = dt.Preparation(size=2, resize=2, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    model[1] = nn.Linear(12, 6)
    p = dt.load(model.eval(), preparation=preparation, class_names=["cat", "dog", "sun"])
    photos = [np.full((4, 4, 3), 40 * k, np.uint8) for k in range(5)]
    own = p.explainer()
    found = dt.examples(own, photos[:2], [(photos, [0, 1, 2, 0, 1])], target=["cat", "sun"], k=2)
    assert found.targets.tolist() == [0, 2]
    assert found.proponents.shape == (2, 2)
    assert "input 0 (target 0), of 5 training examples:\n  a step of training on them lowers" in str(found)


def test_the_network_stays_as_it_was() -> None:
    model, (x, labels) = network(), data()
    before = snapshot(model)
    dt.examples(dt.Explainer(model), x[:2], (x, labels))
    assert snapshot(model) == before


def test_what_makes_no_sense_is_refused() -> None:
    own, (x, labels) = dt.Explainer(network()), data()
    for match, call in (
        ("needs the labels", lambda: dt.examples(own, x[:1], x)),
        ("The training data is empty", lambda: dt.examples(own, x[:1], [])),
        ("30 inputs, but 29 labels", lambda: dt.examples(own, x[:1], (x, labels[1:]))),
        ("label is out of range: the network has 3 classes", lambda: dt.examples(own, x[:1], (x, labels + 3))),
        ("There is one target for each input: 1 inputs, 2 targets", lambda: dt.examples(own, x[:1], x, target=[0, 1])),
        ("k=0: a whole number", lambda: dt.examples(own, x[:1], x, k=0)),
        ("as torch's DataLoader is; got int", lambda: dt.examples(own, x[:1], 3)),
        (
            "must be linear",
            lambda: dt.examples(dt.Explainer(nn.Sequential(network(), nn.Tanh())), x[:1], (x, labels)),
        ),
    ):
        with pytest.raises(dt.InputError, match=match):
            call()
    with pytest.raises(dt.PlanError, match="by must be one of 'gradients', 'relevance'"):
        dt.examples(own, x[:1], x, by="luck")  # type: ignore[arg-type]
