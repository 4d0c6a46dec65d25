"""The network that was captured, looked at before every call: refused where it changed, followed where it moved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.engine.captured_network import ModelWatch
from refusals import mlp

X = torch.ones(2, 4)


def watch_of(network: nn.Module) -> ModelWatch:
    return ModelWatch(network, [X], [dt.NonNegative()])


def never(device: torch.device, dtype: torch.dtype) -> None:
    raise AssertionError("it was not moved")


def test_a_network_as_it_was_is_let_through() -> None:
    network = mlp()
    found = watch_of(network)
    found.check_quickly(never)
    look = found.start_check(never)
    assert look is not None
    found.check(look)
    with torch.no_grad():
        network[0].weight.add_(0)  # which torch counts, so that every value was looked at
    assert found.start_check(never) is None
    assert found.start_check(never) is not None


def test_a_changed_network_is_refused_and_its_parts_are_named() -> None:
    network = mlp()
    found = watch_of(network)
    with torch.no_grad():
        network[0].weight.add_(1)
        network[2].bias.add_(1)
    for ask in (lambda: found.check_quickly(never), found.check):
        with pytest.raises(dt.StaleModelError, match=r"2 parts, among them 0\.weight, 2\.bias.*refresh"):
            ask()


def test_a_change_that_torch_does_not_count_is_seen_by_the_whole_look() -> None:
    network = mlp()
    found = watch_of(network)
    network[0].weight.data[1, 1] += 1
    found.check_quickly(never)  # a quick look
    with pytest.raises(dt.StaleModelError, match=r"0\.weight"):
        found.check(found.start_check(never))


def test_where_many_batches_are_explained_values_are_looked_at_by_whoever_asks_for_them() -> None:
    network = mlp()
    found = watch_of(network)
    with found.trust():
        network[0].weight.data[1, 1] += 1
        look = found.start_check(never)
        found.check(look)
        with pytest.raises(dt.StaleModelError, match=r"0\.weight"):
            found.check()
        with torch.no_grad():
            network[0].weight.add_(1)  # torch counts this
        with pytest.raises(dt.StaleModelError, match=r"0\.weight"):
            found.start_check(never)
    again = watch_of(mlp())
    with found.trust():  # which says nothing of others
        again.model[0].weight.data[1, 1] += 1
        with pytest.raises(dt.StaleModelError, match=r"0\.weight"):
            again.check(again.start_check(never))


def test_a_network_that_moved_is_followed_and_one_that_changed_as_well_is_refused() -> None:
    network = mlp()
    found, seen = watch_of(network), list[tuple[torch.device, torch.dtype]]()

    def follow(device: torch.device, dtype: torch.dtype) -> None:
        seen.append((device, dtype))
        found.known = found.now([X.to(dtype)])

    network.double()
    found.check_quickly(follow)
    assert seen == [(torch.device("cpu"), torch.float64)]
    found.check_quickly(never)
    network.float()
    network[0].weight.data.mul_(2)
    with pytest.raises(dt.StaleModelError):
        found.check_quickly(follow)
    assert len(seen) == 1


def test_the_network_is_known_as_it_is_now_when_asked() -> None:
    network = mlp()
    found = watch_of(network)
    with torch.no_grad():
        network[0].bias.sub_(1)
    assert found.known.find_changes() == ["0.bias"]
    assert found.now([X]).find_changes() == []


# --- moved ------------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Of two types, as networks with a table in double precision are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.register_buffer("table", torch.ones(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x) * self.table.to(x.dtype)
        return out


@pytest.mark.parametrize("made", [mlp, Mixed])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_moved_network_is_the_same_one_and_that_is_a_note(made: type[nn.Module], dtype: torch.dtype) -> None:
    network = made()
    explainer = dt.Explainer(network, X, dt.NonNegative())
    wanted = explainer.explain(X, 0)
    network.to(dtype)
    with pytest.warns(dt.DeepTaylorWarning, match=f"moved to cpu as {dtype}"):
        e = explainer.explain(X.to(dtype), 0)
    assert e.notes[0].startswith(f"The network was moved to cpu as {dtype}; its explainer was moved with it")
    torch.testing.assert_close(e.relevance.float(), wanted.relevance, rtol=0.05, atol=0.05)
    assert not explainer.explain(X.to(dtype), 0).notes


def test_a_moved_network_of_which_a_value_was_written_is_refused() -> None:
    network = mlp()
    explainer = dt.Explainer(network, X)
    network.half()
    with torch.no_grad():
        network[2].bias[0] += 1
    with pytest.raises(dt.StaleModelError, match=r"changed.*refresh"):
        explainer.explain(X.half())


def test_a_part_that_was_moved_alone_is_a_change() -> None:
    network = mlp()
    explainer = dt.Explainer(network, X)
    network[0].double()
    with pytest.raises(dt.StaleModelError, match=r"changed.*0\.weight"):
        explainer.explain(X)


def test_a_network_whose_values_are_gone_is_refused_in_a_sentence() -> None:
    network = mlp()
    explainer = dt.Explainer(network, X)
    network.to("meta")
    for ask in (lambda: explainer.explain(X), lambda: explainer(X), lambda: explainer.relevance_at("1", X)):
        with pytest.raises(dt.StaleModelError, match=r"moved to the meta device.*Load its weights again"):
            ask()
