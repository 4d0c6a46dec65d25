"""The captured network is the user's network: compared at one sample, two and the user's own batch, or refused."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import MismatchError
from deeptaylor.graph import agreement

BATCHES = (1, 2, 6)


class Net(nn.Module):
    """Two layers, and whatever a test puts between them."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), nn.Dropout(0.5)
        self.way = way
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def inputs(batch: int) -> Tensor:
    torch.manual_seed(2)
    return torch.rand(batch, 8)


def scores(network: nn.Module, x: Tensor) -> Tensor:
    """Every class's score, by its own explanation."""
    explainer = dt.Explainer(network, x, dt.NonNegative(), bias="neuron")
    return torch.stack([explainer.explain(x, k).score for k in range(3)], 1)


# --- in place -----------------------------------------------------------------------------------------------------


def dropped_alias(net: Any, x: Tensor) -> Tensor:
    y = F.relu(net.a(x))
    h = net.drop(y)
    h += net.b(y)  # in eval mode h IS y
    return net.c(h) + net.c(y)


def of_chunk(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    y.chunk(2, 1)[0].mul_(2.0)
    return net.c(y)


def of_split(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    y.split(4, 1)[1].relu_()
    return net.c(y)


def of_unbind(net: Any, x: Tensor) -> Tensor:
    y = net.a(x).reshape(-1, 2, 4)
    y.unbind(1)[1].add_(1.0)
    return net.c(y.flatten(1))


def of_a_view(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    y.view(-1, 4, 2).mul_(3.0)
    return net.c(y.relu())


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("way", [dropped_alias, of_chunk, of_split, of_unbind, of_a_view])
def test_writes_through_aliases_are_right_or_refused(way: Callable[[Any, Tensor], Tensor], batch: int) -> None:
    network, x = Net(way), inputs(batch)
    try:
        found = scores(network, x)
    except dt.UnsupportedOpError:
        assert way not in (dropped_alias, of_a_view)
        return
    torch.testing.assert_close(found, network(x.clone()).detach())


# --- random numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "named"),
    [
        (lambda net, x: net.c(F.relu(net.a(x) + torch.randn(8))), "randn"),
        (lambda net, x: net.c(F.relu(net.a(x) + torch.rand_like(x))), "rand_like"),
        (lambda net, x: net.c(F.dropout(net.a(x), 0.5)), "dropout"),
        (
            lambda net, x: net.c(
                F.scaled_dot_product_attention(*[net.a(x).reshape(-1, 2, 4)] * 3, dropout_p=0.5).flatten(1)
            ),
            "scaled_dot_product_attention",
        ),
        (lambda net, x: net.c(F.rrelu(net.a(x), training=True)), "rrelu"),
    ],
    ids=["randn", "rand_like", "dropout", "attention", "rrelu"],
)
def test_a_network_that_draws_random_numbers_is_refused(way: Callable[[Any, Tensor], Tensor], named: str) -> None:
    network, x = Net(way), inputs(2)
    before = torch.get_rng_state()
    with pytest.raises(dt.PlanError, match=f"draws random numbers(.|\n)*{named}(.|\n)*What to do"):
        dt.Explainer(network, x, bias="neuron")
    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_that_torch_does_not_see_are_noticed() -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    way = lambda net, x: net.c(net.a(x) + float(generator.normal()))  # noqa: E731
    with pytest.raises(MismatchError, match="another result each time"):
        dt.Explainer(Net(way), inputs(2), bias="neuron")


def _counted(net: Any, x: Tensor) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return net.c(net.a(x)) + net.calls


def _counted_finely(net: Any, x: Tensor) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return net.c(net.a(x)) * (1 + 2e-5 * net.calls)


def _counted_in_a_list(net: Any, x: Tensor) -> Tensor:
    net.__dict__.setdefault("seen", []).append(1)
    return net.c(net.a(x)) * len(net.seen)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("way", [_counted, _counted_finely, _counted_in_a_list])
def test_a_network_that_counts_its_calls_is_refused(way: Callable[[Any, Tensor], Tensor], batch: int) -> None:
    with pytest.raises(MismatchError, match="another result each time"):
        dt.Explainer(Net(way), inputs(batch), bias="neuron")


def test_random_operations_that_are_not_used_are_no_hindrance() -> None:
    network = Net(lambda net, x: (torch.randn(3), net.c(F.relu(net.a(x))))[1])
    torch.testing.assert_close(scores(network, inputs(2)), network(inputs(2)).detach())


# --- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("way", "said"),
    [
        (lambda net, x: net.c(net.a(x)).T, r"\(3, 1\) for 1 sample, \(3, 2\) for 2.*output.movedim\(1, 0\)"),
        (lambda net, x: net.c(net.a(x)).view(-1), r"\(3,\) for 1 sample, \(6,\) for 2.*output.reshape\(batch, -1\)"),
        (lambda net, x: net.c(net.a(x)).sum(0), r"The first axis of the input counts samples.*has no axis for samples"),
    ],
    ids=["classes first", "flat", "summed"],
)
def test_an_output_without_a_sample_axis_is_refused(
    way: Callable[[Any, Tensor], Tensor], said: str, batch: int
) -> None:
    with pytest.raises(dt.DeepTaylorError, match=said):
        dt.Explainer(Net(way), inputs(batch), bias="neuron")


@pytest.mark.parametrize("batch", BATCHES)
def test_squeeze_takes_no_samples_away(batch: int) -> None:
    network, plain = Net(lambda net, x: net.c(F.relu(net.a(x))).squeeze()), Net(lambda net, x: net.c(F.relu(net.a(x))))
    torch.testing.assert_close(scores(network, inputs(batch)), plain(inputs(batch)).detach())


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: net.c(F.relu(net.a(x - x.mean(0)))),
        lambda net, x: net.c(F.relu(net.a(x.roll(1, 0)))),
        lambda net, x: net.c(F.relu(torch.softmax(x @ x.T, -1) @ net.a(x))),
    ],
    ids=["mean", "roll", "graph"],
)
def test_networks_that_mix_samples_are_refused(way: Callable[[Any, Tensor], Tensor], batch: int, same: bool) -> None:
    x = torch.full((batch, 8), 0.5) if same else inputs(batch)  # alike, they would hide it
    with pytest.raises(MismatchError, match="depends on the other samples"):
        dt.Explainer(Net(way), x, bias="neuron")


# --- the size of the batch ----------------------------------------------------------------------------------------


def by_size(net: Any, x: Tensor) -> Tensor:
    return net.c(F.relu(net.a(x)) if x.shape[0] > 4 else torch.tanh(net.a(x)))


@pytest.mark.parametrize("example", BATCHES)
def test_a_branch_on_the_size_of_the_batch_is_followed(example: int) -> None:
    network = Net(by_size)
    explainer = dt.Explainer(network, inputs(example), dt.NonNegative(), bias="neuron")
    for batch in (6, 1, 4, 5, 2, 9):
        found = torch.stack([explainer.explain(inputs(batch), k).score for k in range(3)], 1)
        torch.testing.assert_close(found, network(inputs(batch)).detach())
        torch.testing.assert_close(explainer(inputs(batch), 0)[0], found[:, 0])


def test_another_result_for_a_single_sample_is_refused() -> None:
    network = Net(lambda net, x: net.c(net.a(x)) * (2 if x.shape[0] == 1 else 1))
    with pytest.raises(MismatchError, match=r"something else for 1 sample than for 2.*size of the batch"):
        dt.Explainer(network, inputs(2), bias="neuron")


# --- what was read wrongly ----------------------------------------------------------------------------------------


def test_an_operation_that_is_read_wrongly_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pass goes wrong: here one that turns every ReLU into tanh."""
    from deeptaylor.engine import prepare

    def wrongly(captured: Any) -> None:
        rewrite(captured)
        for node in captured.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.tanh.default

    rewrite = prepare.rewrite
    monkeypatch.setattr(prepare, "rewrite", wrongly)
    with pytest.raises(MismatchError, match=r"captured wrongly.*the captured network gives"):
        dt.Explainer(Net(lambda net, x: net.c(F.relu(net.a(x)))), inputs(2), bias="neuron")


def test_the_users_own_values_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    plain = agreement._run_network

    def watching(model: nn.Module, given: Any, *rest: Any) -> Tensor:
        seen.append(given[0])
        return plain(model, given, *rest)

    monkeypatch.setattr(agreement, "_run_network", watching)
    x = inputs(6)
    dt.Explainer(Net(lambda net, x: net.c(F.relu(net.a(x)))), x, bias="neuron")
    assert [len(t) for t in seen] == [1, 2, 6, 1]  # the first once more: is it answered as before?
    assert all(torch.equal(t, x[: len(t)]) for t in seen)


def test_the_network_is_asked_twice_for_one_sample_alone() -> None:
    asked: list[Tensor] = []

    def forward(net: Any, x: Tensor) -> Tensor:
        if type(x) is Tensor:  # none that only has a shape
            asked.append(x)
        return net.c(F.relu(net.a(x)))

    dt.Explainer(Net(forward), inputs(6), bias="neuron")
    real = [len(x) for x in asked if x.untyped_storage().nbytes() and not torch._is_functional_tensor(x)]
    assert sorted(real) == [1, 1, 2, 6]


# --- types --------------------------------------------------------------------------------------------------------


def inside(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.relu(net.a(x))
    return net.c(y.float())


@pytest.mark.parametrize("way", [inside, lambda net, x: net.c(F.relu(net.a(x)).bfloat16().float())])
def test_narrow_parts_of_a_network_are_explained_with_all_digits_and_noted(way: Any) -> None:
    plain = dt.Explainer(Net(lambda net, x: net.c(F.relu(net.a(x)))), inputs(2), dt.NonNegative(), bias="neuron")
    for k in range(3):
        e = dt.Explainer(Net(way), inputs(2), dt.NonNegative(), bias="neuron").explain(inputs(2), k)
        torch.testing.assert_close(e.relevance, plain.explain(inputs(2), k).relevance)
        assert any("compute in bfloat16" in note for note in e.notes)
        assert "compute in bfloat16" in str(e.check())


class Masked(nn.Module):
    """Attention with the lowest number for a mask, and the softmax in float32: nan where all is masked."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        seen = mask.unsqueeze(1).expand(-1, 3, -1).bool().tril()
        scores = (x @ x.mT).masked_fill(~seen, torch.finfo(x.dtype).min)
        return (scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ x).mean(1)


def test_nan_that_a_network_makes_of_invented_samples_is_no_hindrance() -> None:
    """In another order, the mask hides all that the first token may see."""
    x, mask = torch.randn(1, 3, 4, dtype=torch.float64), torch.tensor([[1, 0, 0]])
    assert Masked()(x, mask.flip(1)).isnan().all()
    b = dt.Explainer(Masked()).between((x, mask), "zeros", 0)
    assert float(b.ledger.gap.max()) < 1e-14


def test_nan_that_a_network_makes_of_the_input_is_told() -> None:
    x, mask = torch.randn(1, 3, 4, dtype=torch.float64), torch.tensor([[0, 1, 1]])
    said = r"itself gives NaN for this input.*converts to torch.float32 on the way.*Explain network.to\(torch.float32\)"
    with pytest.raises(MismatchError, match=said):
        dt.Explainer(Masked()).between((x, mask), "zeros", 0)


def test_autocast_around_a_call_is_set_aside_and_noted() -> None:
    network, x = Net(lambda net, x: net.c(F.relu(net.a(x)))), inputs(2)
    plain = dt.Explainer(network, x, dt.NonNegative(), bias="neuron")
    expected = plain.explain(x, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = dt.Explainer(network, x, dt.NonNegative(), bias="neuron")
        found = [
            within.explain(x, 2),
            plain.explain(x, 2),
            dt.explain(network, x, 2, domain=dt.NonNegative(), bias="neuron"),
        ]
        maps = [within(x, 2)[1], plain.relevance_at("a", x, 2).sum(1)]
    for e in found:
        assert torch.equal(e.relevance, expected.relevance)
        assert "autocast was on" in str(e.check())
    assert torch.equal(maps[0], expected.relevance)
    assert torch.equal(maps[1], plain.relevance_at("a", x, 2).sum(1))


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize(
    "mask",
    [
        lambda z: z.masked_fill(torch.tensor([False, True, False]), -torch.inf),
        lambda z: z + torch.tensor([0.0, -torch.inf, 0.0]),
        lambda z: torch.where(torch.tensor([True, False, True]), z, torch.tensor(-torch.inf)),
    ],
    ids=["masked_fill", "added", "where"],
)
def test_a_class_masked_by_infinity_leaves_the_others_alone(mask: Callable[[Tensor], Tensor], bias: str) -> None:
    plain = dt.Explainer(Net(lambda net, x: net.c(F.relu(net.a(x)))), inputs(2), dt.NonNegative(), bias=bias)
    masked = dt.Explainer(Net(lambda net, x: mask(net.c(F.relu(net.a(x))))), inputs(2), dt.NonNegative(), bias=bias)
    for target in (0, 2, dt.margin(0, 2), dt.margin(2, 0)):
        e, expected = masked.explain(inputs(2), target), plain.explain(inputs(2), target)
        torch.testing.assert_close(e.relevance, expected.relevance)
        torch.testing.assert_close(e.ledger.total, expected.ledger.total)


# --- files --------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.a(x)))


def test_explainers_and_explanations_go_to_files_and_back() -> None:
    x = inputs(3).double()
    explainer = dt.Explainer(Plain().double().eval(), x, dt.NonNegative(), bias="spread").recompute()
    e = explainer.explain(x, 1)
    back = pickle.loads(pickle.dumps(explainer))
    assert torch.equal(back.explain(x, 1).relevance, e.relevance)
    assert str(back.plan) == str(explainer.plan)
    assert all(engine.recomputes for engine in back.captured.engines.values())
    assert pickle.loads(pickle.dumps(explainer.float())).explain(x.float(), 1).relevance.dtype is torch.float32
    read = pickle.loads(pickle.dumps(e))
    assert torch.equal(read.relevance, e.relevance)
    assert str(read.check()) == str(e.check())
    with pytest.raises(dt.BoundaryError, match="without its explainer"):
        read.at("a")


def test_comparing_leaves_no_trace() -> None:
    """A forward pass that counts in a buffer, in place, and keeps what it saw."""

    class Counts(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.last = torch.zeros(8)

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.last = x.detach()[0]
            return super().forward(x)

    network = Counts().eval()
    count, last = network.count, network.last
    version = count._version
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dt.Explainer(network, inputs(2), bias="neuron").explain(inputs(2))
    assert network.count is count
    assert network.last is last
    assert count._version == version
    assert not count.any()


def test_a_tensor_that_torch_cannot_follow_is_no_raw_error() -> None:
    class Writes(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.zeros(8)

        def forward(self, x: Tensor) -> Tensor:
            self.last.copy_(x.detach()[0])
            return super().forward(x)

    with pytest.raises(dt.CaptureError, match=r"cannot be captured: Constant last is mutated.*\n.*What to do"):
        dt.Explainer(Writes().eval(), inputs(2), bias="neuron")


def test_values_that_the_captured_network_does_not_take_are_refused() -> None:
    """The network counts indices that are negative from the end, if there are any; what is captured does not."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if type(x) is Tensor and bool((x < 0).any()):
                x = x % 5
            y: Tensor = self.table(x).sum(1)
            return y

    network = Lookup()
    assert torch.equal(network(torch.tensor([[-1, 0]])), network(torch.tensor([[4, 0]])))
    with pytest.raises(MismatchError, match=r"raises IndexError: index out of range .*such as negative indices"):
        dt.Explainer(network, method="deep-taylor").explain(torch.tensor([[-1, 0]]), 0)
