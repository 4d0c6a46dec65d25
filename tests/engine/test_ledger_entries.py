"""What ledger entries hold, and that recording them does not cost a second explanation."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import deeptaylor as dt
from deeptaylor.engine.ledger_entries import LedgerRow
from deeptaylor.engine.sample_layout import Layout
from deeptaylor.ledger import Ledger
from deeptaylor.rules.steps import LocalStep
from random_networks import build, package_domain


class Residual(nn.Module):
    """Branches, biases of both signs and pooling; somewhere in every window there is a positive number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 1)
        self.last = nn.Linear(64 * 16, 5)
        nn.init.constant_(self.first.bias, 1.0)  # type: ignore[arg-type]
        nn.init.eye_(self.inner.weight.data[:, :, 0, 0])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        h = (h + self.inner(h)).relu()
        return self.last(nn.functional.max_pool2d(h, 2).flatten(1))


class Written(TorchDispatchMode):
    """Counts the elements of all tensors that operations make."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not func.is_view:
            self.elements += made.numel()
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # their convolutions lay channels out differently
def test_books_make_hardly_any_tensors(dtype: torch.dtype) -> None:
    net, x = Residual().eval().to(dtype), torch.rand(4, 3, 8, 8, dtype=dtype)
    engine = dt.Explainer(net, x, dt.NonNegative(), bias="neuron").captured.engine
    counted = []
    with torch.no_grad():
        for detail in (None, "by step"):
            with Written() as written:
                engine.run([x], 0, detail)
            counted.append(written.elements)
    plain, recorded = counted
    assert recorded <= 1.1 * plain


class Forked(nn.Module):
    """A tensor that two blocks read, each of which hands it relevance."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.one, self.other = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.last = nn.Linear(8 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last(torch.cat([self.one(h).relu(), self.other(h).relu()], 1).flatten(1))


@pytest.mark.parametrize("network", [Residual, Forked])
def test_what_arrived_is_what_is_there(network: type[nn.Module]) -> None:
    net, x = network().eval().double(), torch.rand(4, 3, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    ledger = explainer.explain(x, 0).ledger
    for row, (arrived, on, bias, dropped) in zip(ledger.rows[1:], ledger.entries[1:], strict=True):
        there = explainer.relevance_at(row[0], x, 0).flatten(1).sum(1)
        assert torch.allclose(arrived, there, rtol=1e-12)
        assert torch.allclose(arrived, on + bias + dropped, rtol=1e-12)
    assert float(ledger.bias.min()) > 0


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_dropped_by_a_block_that_drops_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(seed)
    sure, seen = [], LedgerRow.undivided

    def undivided(row: LedgerRow, R: Tensor, Z: Tensor) -> None:
        if row.drops_nothing:
            sure.append(R)
            assert not bool(R[torch.finfo(Z.dtype).tiny >= Z].any())
        seen(row, R, Z)

    monkeypatch.setattr(LedgerRow, "undivided", undivided)
    explainer = dt.Explainer(network.model, network.example, package_domain(network.domain), bias="neuron")
    explainer.explain(network.example)
    by_unit = [step for step in explainer.captured.engine.planned.steps if not isinstance(step, LocalStep)]
    assert len(sure) == sum(step.drops_nothing for step in by_unit)


def test_blocks_drop_nothing_unless_zeros_get_relevance() -> None:
    net = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
    )  # fmt: skip
    x = torch.rand(2, 4)

    def sure_blocks(**settings: Any) -> list[str]:
        steps = dt.Explainer(net.eval(), x, dt.NonNegative(), **settings).captured.engine.planned.steps
        return [step.node for step in steps if step.drops_nothing]

    assert sure_blocks() == ["linear_1", "linear"]  # not the third, read by tanh; the last is the score's
    assert sure_blocks(rules={"2": dt.rules.Flat()}) == []  # it has another rule, and passes relevance to zeros
    assert sure_blocks(rules={"4": dt.rules.Epsilon(0.1)}) == ["linear"]  # which may do so too
    assert sure_blocks(bias="spread") == []


@pytest.mark.parametrize("target", [0, torch.tensor([[0, 1, 2]] * 4)])
def test_books_in_total_are_those_of_every_step(target: Any) -> None:
    net, x = Residual().eval().double(), torch.rand(4, 3, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    with torch.no_grad():
        steps, total = (explainer.captured.engine.run([x], target, kept) for kept in ("by step", "in total"))
    assert steps.entries is not None
    assert total.entries is not None
    arrived, on, bias, dropped = total.entries.unbind(-2)
    score = steps.score.movedim(0, -1).unsqueeze(-2)
    assert torch.equal(arrived, score)
    assert torch.allclose(on + bias + dropped, score, rtol=1e-12)
    for found, expected in ((bias, steps.entries[..., 2, :]), (dropped, steps.entries[..., 3, :])):
        assert torch.allclose(found, expected.sum(-2, keepdim=True), rtol=1e-12)
    late = Ledger.from_result(total, explainer.plan, lambda: cast("Tensor", steps.entries))
    at_once = Ledger.from_result(steps, explainer.plan, lambda: torch.empty(0))
    assert torch.equal(late.entries, at_once.entries)
    for name in ("input", "bias", "dropped", "score"):
        assert torch.allclose(getattr(late, name), getattr(at_once, name), rtol=1e-12)
    assert torch.equal(pickle.loads(pickle.dumps(late)).entries, at_once.entries)


def test_totals_are_saved_though_the_network_changed_since() -> None:
    net, x = Residual().eval().double(), torch.rand(4, 3, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    with torch.no_grad():
        total = explainer.captured.engine.run([x], 0, "in total")

    def changed() -> Tensor:
        raise dt.StaleModelError("it changed")

    loaded = pickle.loads(pickle.dumps(Ledger.from_result(total, explainer.plan, changed)))
    assert torch.allclose(loaded.total, loaded.score)
    with pytest.raises(dt.BoundaryError, match="only the totals"):
        loaded.table()


class Along(nn.Module):
    """Biases along the last of four axes, as long as the second; `turned`: with the samples second."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.turned, self.first, self.second = turned, nn.Linear(5, 5), nn.Linear(5, 5)
        self.last = nn.Linear(5 * 3 * 5, 4)
        nn.init.uniform_(self.first.bias)
        nn.init.uniform_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1) if self.turned else x
        h = self.second(self.first(h).relu()).relu()
        return self.last((h.transpose(0, 1) if self.turned else h).flatten(1))


@pytest.mark.parametrize("turned", [False, True])
def test_biases_are_summed_along_their_own_axis(turned: bool) -> None:
    net, x = Along(turned).eval().double(), torch.rand(5, 5, 3, 5, dtype=torch.float64)
    engine = dt.Explainer(net, x, dt.NonNegative(), bias="neuron").captured.engine
    with torch.no_grad():
        steps, total = (engine.run([x], 0, kept).entries for kept in ("by step", "in total"))
    assert steps is not None
    assert total is not None
    assert float(steps[:, 2].sum()) > 0
    assert torch.allclose(total[0, 2], steps[:, 2].sum(0), rtol=1e-12)


def test_what_is_dropped_is_seen_though_hardly_ever_looked_for() -> None:
    """Two of three inputs have a weight, and the picture has only the third: all that arrives at the first layer."""
    first, last = nn.Linear(3, 2), nn.Linear(2, 1)
    for layer, weight, bias in ((first, [[1.0, 0, 0], [0, 1.0, 0]], [0.5, 0.0]), (last, [[1.0, 1.0]], [0.0])):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    net = nn.Sequential(first, nn.ReLU(), last).eval()
    flat = dt.Explainer(net, torch.ones(1, 3), dt.NonNegative(), rules={"2": dt.rules.Flat()}, bias="neuron")
    x = torch.tensor([[0.0, 0, 1], [0.0, 2, 1]])
    ledger = flat.explain(x, 0).ledger
    # f = 0.5 and 2.5, half of it to each unit: the first is its bias's, the second has no input in the first sample.
    assert ledger.dropped.tolist() == [0.25, 0.0]
    assert ledger.bias.tolist() == [0.25, 1.25]
    assert ledger.input.tolist() == [0.0, 1.25]
    with torch.no_grad():
        total = flat.captured.engine.run([x], 0, "in total").entries
    assert total is not None
    assert total[0, 3].tolist() == [0.25, 0.0]
    both = flat.explain(x, torch.tensor([[0, 0], [0, 0]])).ledger  # by vmap, where nothing can be looked at
    assert torch.equal(both.dropped, torch.stack([ledger.dropped, ledger.dropped], 1))


@pytest.mark.parametrize(
    ("layout", "weight"),
    [
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), (6, 1, 1)),
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), (1, 6, 1, 1)),
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), (5,)),
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), ()),
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), (6, 3, 5)),
        (Layout(((1, True), (6, False), (3, False), (5, False)), 0), (4, 1, 1, 1)),
        (Layout(((7, False), (1, True), (6, False)), 1), (6,)),
        (Layout(((7, False), (1, True), (6, False)), 1), (7, 1, 1)),
        (Layout(((70, False), (6, False), (1, True)), 2), (6, 1)),
        (Layout(((1, True), (6, False)), 0), (6,)),
        (Layout(((1, True),), 0), ()),
        (Layout(((3, True), (6, False)), 0, 1, 3), (6,)),
        (Layout(((3, True), (6, False)), 0, 3, 1), (6,)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_weighted_sum_is_the_sum_of_the_products(layout: Layout, weight: tuple[int, ...], last: bool) -> None:
    shape = layout.shape(4)
    t, w = torch.rand(shape, dtype=torch.float64), torch.rand(weight, dtype=torch.float64)
    if last and len(shape) > 2:
        t = t.movedim(1, -1).contiguous().movedim(-1, 1)
    expected = layout.sum_per_sample(t * w, 4)
    assert expected.shape == (4,)
    assert torch.allclose(layout.sum_weighted(t, w, 4).reshape(4, -1).sum(1), expected, rtol=1e-12)
    assert torch.allclose(layout.sum_partly(t * w, 4).reshape(4, -1).sum(1), expected, rtol=1e-12)


def test_a_large_quotient_with_no_bias_is_no_bias() -> None:
    """Summed before it is weighted it would be infinite, and infinity times zero is no number."""
    layout = Layout(((1, True), (2, False), (3, False)), 0)
    huge = torch.full((1, 2, 3), 3e38)
    for t in (huge, huge.movedim(1, -1).contiguous().movedim(-1, 1)):
        assert layout.sum_weighted(t, torch.tensor([[0.0], [1e-38]]), 1).flatten(1).sum(1).tolist() == pytest.approx(
            [9.0]
        )
