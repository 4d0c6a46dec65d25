"""What captum answers: exact sums and Shapley values by their definition; training examples against autograd."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import deeptaylor as dt
from deeptaylor.support.optional import MissingPackageError
from untouched import snapshot

pytest.importorskip("captum")

# --- Shapley values ---------------------------------------------------------------------------------------------------


def jump(rows: Any) -> Any:
    """Return numbers without a gradient: products, a step, a maximum."""
    return rows[:, 0] * rows[:, 1] - 2.0 * (rows[:, 2] > 0.5) + rows.max(1) * rows[:, 3]


def by_definition(f: Any, x: np.ndarray, x0: np.ndarray) -> list[float]:
    """Return the mean over all orders."""
    n, total = len(x), np.zeros(len(x))
    for order in itertools.permutations(range(n)):
        now = x0.copy()
        for k in order:
            before = f(now[None])[0]
            now[k] = x[k]
            total[k] += f(now[None])[0] - before
    return list(total / math.factorial(n))


X = np.array([[2.0, -1.0, 0.7, 0.5], [0.1, 0.2, 0.3, 0.4]])
X0 = np.array([0.5, 0.3, 0.1, -0.2])


@pytest.mark.parametrize("inputs", [3, 5, 6])
def test_a_small_network_gets_its_exact_values(inputs: int) -> None:
    torch.manual_seed(inputs)
    network = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x, x0 = torch.randn(2, inputs, dtype=torch.float64), torch.randn(inputs, dtype=torch.float64)
    b = dt.shapley(network, x, x0, target=1, orders=math.factorial(inputs), batch=64)

    def f(rows: np.ndarray) -> np.ndarray:
        values: np.ndarray = network(torch.from_numpy(rows)).detach().numpy()[:, 1]
        return values

    for k in range(2):
        np.testing.assert_allclose(b.relevance[k].numpy(), by_definition(f, x[k].numpy(), x0.numpy()), atol=2e-6)
    assert f"all {math.factorial(inputs)} orders" in b.notes[0]


def test_with_all_orders_they_are_the_definitions() -> None:
    b = dt.shapley(jump, X, X0)
    for k in range(2):
        np.testing.assert_allclose(b.relevance[k].numpy(), by_definition(jump, X[k], X0), atol=2e-6)
    sampled = dt.shapley(jump, X, X0, orders=23)
    assert not torch.allclose(sampled.relevance, b.relevance, atol=1e-4)


@pytest.mark.parametrize("orders", [1, 2, 7])
def test_the_sum_is_exact_for_any_number_of_orders(orders: int) -> None:
    b = dt.shapley(jump, X, X0, orders=orders, batch=6)
    np.testing.assert_allclose(b.relevance.sum(1).numpy(), jump(X) - jump(X0[None]), atol=1e-6)
    assert b.check().accounted
    assert b.reference_score.tolist() == pytest.approx([jump(X0[None])[0]] * 2)
    state = torch.random.get_rng_state()
    again = dt.shapley(jump, X, X0, orders=orders).relevance
    torch.testing.assert_close(b.relevance, again, rtol=0, atol=1e-6)  # by the seed, whatever the batch
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(b.relevance, dt.shapley(jump, X, X0, orders=orders, seed=1).relevance)


def test_a_forest_by_its_classes() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    random = np.random.default_rng(0)
    rows = random.random((60, 3))
    forest = ensemble.RandomForestClassifier(5, random_state=0).fit(rows, rows[:, 1] > 0.5)
    b = dt.shapley(forest.predict_proba, rows[:4], rows.mean(0))
    top = forest.predict_proba(rows[:4]).max(1)
    np.testing.assert_allclose(b.score.numpy(), top, atol=1e-6)
    assert b.check().accounted
    every = dt.shapley(forest.predict_proba, rows, rows.mean(0))
    assert int(every.relevance.abs().mean(0).argmax()) == 1  # the column that it learned from
    assert float(dt.shapley(forest.predict_proba, rows[:1], rows.mean(0), target=0).score) == pytest.approx(
        forest.predict_proba(rows[:1])[0, 0]
    )


def test_tensors_stay_tensors() -> None:
    seen: list[type] = []

    def f(points: torch.Tensor) -> torch.Tensor:
        seen.append(type(points))
        return points.flatten(1).sum(1)

    b = dt.shapley(f, torch.ones(1, 2, 2), torch.zeros(2, 2))
    assert set(seen) == {torch.Tensor}
    assert b.relevance.tolist() == [[[1.0, 1.0], [1.0, 1.0]]]
    with pytest.raises(dt.BoundaryError, match="no relevance at 'conv'"):
        b.at("conv")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"orders": 0}, "at least one order"),
        ({"x": np.ones(3)}, "samples along its first axis"),
        ({"reference": np.ones(3)}, "The reference has shape"),
        ({"reference": np.full(4, np.nan)}, "NaN or infinite"),
        ({"x": [["a", "b"]]}, "other than numbers"),
        ({"target": 4}, "returns 1 number"),
        ({"f": lambda rows: 1.0}, "one number or one row per point"),
    ],
)
def test_wrong_arguments_raise(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(dt.DeepTaylorError, match=words):
        dt.shapley(**({"f": jump, "x": X, "reference": X0} | changed))


def test_without_captum_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "captum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    for call in (
        lambda: dt.shapley(jump, X, X0),
        lambda: dt.examples(dt.Explainer(nn.Linear(2, 2)), torch.ones(1, 2), (torch.ones(1, 2), [0])),
    ):
        with pytest.raises(MissingPackageError, match=r"captum is not installed.*evaluation"):
            call()


# --- training examples ------------------------------------------------------------------------------------------------


def network(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, classes)).double().eval()


def data(classes: int = 3, size: int = 30) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.rand(size, 4, generator=random, dtype=torch.float64)
    return x, torch.randint(classes, (size,), generator=random)


def gradients(model: nn.Sequential, x: Tensor, labels: Tensor) -> Tensor:
    """Return ∂loss/∂W of the last layer, one row a sample, by autograd."""
    rows = []
    for one, label in zip(x, labels, strict=True):
        z = model(one[None])
        has_one_output = z.shape[1] == 1
        loss = (z[0, 0] - label) ** 2 if has_one_output else nn.functional.cross_entropy(z, label[None])
        rows.append(torch.autograd.grad(loss, model[-1].weight)[0].flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("classes", [3, 1])
def test_gradients_are_those_of_autograd(classes: int) -> None:
    model, (x, labels) = network(classes), data(classes)
    labels = torch.linspace(-1, 1, len(x), dtype=torch.float64) if classes == 1 else labels
    some, right = x[:4], labels[[3, 2, 1, 0]]
    wanted = gradients(model, some, right) @ gradients(model, x, labels).T
    found = dt.examples(dt.Explainer(model), some, (x, labels), target=right, k=30)
    for positions, values, is_descending in (
        (found.proponents, found.proponent_values, True), (found.opponents, found.opponent_values, False)
    ):  # fmt: skip
        assert torch.allclose(values, wanted.sort(1, descending=is_descending).values, rtol=1e-6, atol=1e-9)
        assert torch.allclose(wanted.gather(1, positions), values, rtol=1e-6, atol=1e-9)


def test_it_is_what_captum_says() -> None:
    fast = pytest.importorskip("captum.influence").TracInCPFast
    model, (x, labels) = network(), data()
    tracin = fast(
        model, model[-1], TensorDataset(x, labels), ["one"], lambda *_: 1.0, nn.CrossEntropyLoss(reduction="sum"),
        batch_size=7,
    )  # fmt: skip
    found = dt.examples(dt.Explainer(model), x[:5], (x, labels), target=labels[:5], k=3)
    theirs = tracin.influence((x[:5], labels[:5]), k=3)
    assert torch.equal(found.proponents, theirs.indices)
    assert torch.allclose(found.proponent_values, theirs.influence_scores, rtol=1e-10)


def test_a_step_of_training_lowers_the_loss_by_the_value() -> None:
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


def test_arrays_and_loaders_give_the_same() -> None:
    explainer, (x, labels) = dt.Explainer(network()), data(size=150)
    expected = dt.examples(explainer, x[:2], (x, labels))
    loader = DataLoader(TensorDataset(x, labels), batch_size=7)
    for other in (loader, (x.numpy(), labels.numpy())):
        found = dt.examples(explainer, x[:2].numpy(), other)
        assert torch.equal(found.proponents, expected.proponents)
        assert torch.allclose(found.proponent_values, expected.proponent_values)


def test_class_names_a_softmax_and_photographs() -> None:
    model = nn.Sequential(nn.Flatten(), *network(), nn.Softmax(1)).float()
    preparation = dt.Preparation(size=2, resize=2, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    model[1] = nn.Linear(12, 6)
    p = dt.load(model.eval(), preparation=preparation, class_names=["cat", "dog", "sun"])
    photos = [np.full((4, 4, 3), 40 * k, np.uint8) for k in range(5)]
    explainer = p.explainer()
    found = dt.examples(explainer, photos[:2], (photos, [0, 1, 2, 0, 1]), target=["cat", "sun"], k=2)
    assert found.targets.tolist() == [0, 2]
    assert found.proponents.shape == (2, 2)
    assert "input 0 (target 0):\n  a step of training on them lowers" in str(found)


def test_the_network_stays_as_it_was() -> None:
    model, (x, labels) = network(), data()
    before = snapshot(model)
    dt.examples(dt.Explainer(model), x[:2], (x, labels))
    assert snapshot(model) == before


def test_wrong_training_data_raises() -> None:
    explainer, (x, labels) = dt.Explainer(network()), data()
    for match, call in (
        ("got Tensor", lambda: dt.examples(explainer, x[:1], x)),
        ("got int", lambda: dt.examples(explainer, x[:1], 3)),
        ("The training data is empty", lambda: dt.examples(explainer, x[:1], (x[:0], labels[:0]))),
        ("30 inputs, 29 labels", lambda: dt.examples(explainer, x[:1], (x, labels[1:]))),
        ("label is out of range: the network has 3", lambda: dt.examples(explainer, x[:1], (x, labels + 3))),
        ("1 inputs, 2 targets", lambda: dt.examples(explainer, x[:1], (x, labels), target=[0, 1])),
        ("k=0: it must be a whole number", lambda: dt.examples(explainer, x[:1], (x, labels), k=0)),
        (
            "must be nn.Linear",
            lambda: dt.examples(dt.Explainer(nn.Sequential(network(), nn.Tanh())), x[:1], (x, labels)),
        ),
    ):
        with pytest.raises(dt.InputError, match=match):
            call()
