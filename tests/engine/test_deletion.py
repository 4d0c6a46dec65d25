"""What a metric is given: maps without channels, answers in batches, networks of one number, compiled ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import (
    Case,
    Flipping,
    flatten_map,
    gives_probabilities,
    list_further_maps,
    run_answers,
    run_verdicts,
)
from deeptaylor.errors import InputError
from known_truth import Quarters, case, true_maps


def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def whole(given: Case) -> tuple[Tensor, Tensor]:
    """The case's own inputs, one after the other."""
    return run_verdicts(given, len(given.x), lambda numbers: (given.x[numbers], given.classes[numbers]))


# --- maps -----------------------------------------------------------------------------------------------------------


def test_maps_lose_their_channels() -> None:
    x, R = drawn(2, 3, 4, 5), drawn(2, 3, 4, 5) - 0.5
    found, finite = flatten_map(R, x)
    assert torch.allclose(found, R.sum(1))
    assert finite.tolist() == [True, True]
    assert torch.equal(flatten_map(R[:, 0], x)[0], R[:, 0])  # these have none
    assert torch.equal(flatten_map(drawn(2, 7), drawn(2, 7))[0], drawn(2, 7))  # nor has a vector
    assert torch.equal(flatten_map(drawn(2, 3, 7), drawn(2, 3, 7))[0], drawn(2, 3, 7))  # nor has a grey picture
    assert flatten_map(drawn(2, 7), drawn(2, 3, 7))[0].shape == (2, 7)  # of a signal, summed over channels already


def test_maps_that_are_no_numbers_are_empty_and_named() -> None:
    R = drawn(3, 1, 4, 4)
    R[0, 0, 1, 1], R[2, 0, 0, 0] = torch.nan, -torch.inf
    found, finite = flatten_map(R, drawn(3, 1, 4, 4))
    assert finite.tolist() == [False, True, False]
    assert found.isfinite().all()
    assert not found[0].any()
    assert torch.equal(found[1], R[1, 0])


def test_maps_are_at_least_float32_and_without_a_gradient() -> None:
    x = drawn(1, 1, 3, 3)
    found, _ = flatten_map(x.to(torch.bfloat16).requires_grad_(), x)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert flatten_map(x.double(), x)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("maps", "inputs", "expected"),
    [
        ((2, 1, 4, 5), (2, 3, 4, 5), "(2, 3, 4, 5) or (2, 4, 5)"),
        ((2, 5, 4), (2, 3, 4, 5), "(2, 3, 4, 5) or (2, 4, 5)"),
        ((1, 3, 4, 5), (2, 3, 4, 5), "(2, 3, 4, 5) or (2, 4, 5)"),
        ((2, 4), (2, 3, 5), "(2, 3, 5) or (2, 5)"),
        ((2,), (2, 7), "(2, 7)"),
    ],
)
def test_maps_of_another_shape_are_refused(maps: tuple[int, ...], inputs: tuple[int, ...], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        flatten_map(drawn(*maps), drawn(*inputs))
    assert str(caught.value) == f"the method's maps have shape {maps}; expected {expected}"


def test_further_maps_come_as_many_at_a_time_as_the_case_has_samples() -> None:
    given, asked = case(), list[int]()

    def method(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.append(len(x))
        R = true_maps(net, x, classes)
        R[0, 0, 0, 0] = torch.nan
        return R

    x, classes = given.x.repeat(3, 1, 1, 1)[:15], given.classes.repeat(3)[:15]
    found = list_further_maps(given, method, given.network, x, classes)
    assert asked == [6, 6, 3]
    bad = found.flatten(1).isnan().all(1)
    assert bad.nonzero().flatten().tolist() == [0, 6, 12]
    assert torch.equal(found[~bad], true_maps(given.network, x, classes)[:, 0][~bad])


# --- answers ----------------------------------------------------------------------------------------------------------


def test_answers_are_probabilities_of_the_class_and_first_says_whether_it_wins() -> None:
    given = case()
    given = replace(given, classes=torch.tensor([0, 1, 2, 3, 2, 3]))  # of the last two another than the true one
    found, first = whole(given)
    wanted = given.network(given.x).softmax(1)
    assert torch.allclose(found, wanted[range(6), given.classes])
    assert first.tolist() == [True] * 4 + [False] * 2
    assert torch.allclose(whole(replace(given, softmax=False))[0], given.network(given.x)[range(6), given.classes])
    assert torch.equal(run_answers(given, 6, lambda n: (given.x[n], given.classes[n])), found)
    assert not found.requires_grad


def test_the_network_is_asked_a_batch_at_a_time() -> None:
    given = case(batch=4)
    assert isinstance(given.network, Quarters)
    whole(given)
    assert given.network.passes == [4, 2]


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_networks_of_one_number(shape: tuple[int, ...]) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).sum(1).reshape(shape)

    x = drawn(3, 1, 4, 4)
    given = Case(Sum(), x, torch.zeros(3, dtype=torch.int64), softmax=False)
    assert torch.equal(whole(given)[0], x.flatten(1).sum(1))
    assert float(Flipping(patch=2, fill="zero").measure(given, x[:, 0]).values.min()) > 0


def test_a_compiled_network_is_asked_full_batches_alone() -> None:
    given, asked = case(batch=4), list[int]()

    def compiled(x: Tensor) -> Tensor:
        assert len(x) == 4, "another size would be compiled anew"
        asked.append(len(x))
        return given.network(x)

    fast = replace(given, compiled=compiled)
    assert torch.allclose(whole(fast)[0], whole(given)[0])
    assert asked == [4, 4]
    R = true_maps(given.network, given.x, given.classes)[:, 0]
    assert torch.allclose(
        Flipping(patch=3).measure(fast, R).values, Flipping(patch=3).measure(given, R).values, atol=1e-12
    )


def test_which_networks_give_probabilities() -> None:
    net, x = Quarters(), case().x
    assert not gives_probabilities(net, x)
    assert gives_probabilities(nn.Sequential(net, nn.Softmax(1)), x)
    assert not gives_probabilities(nn.Sequential(net, nn.ReLU()), x)
    assert not gives_probabilities(nn.Sequential(net, nn.Sigmoid()), x)


def test_numbers_below_zero_are_no_probabilities_though_they_sum_to_one() -> None:
    assert gives_probabilities(nn.Identity(), torch.tensor([[0.5, 0.5]]))
    assert not gives_probabilities(nn.Identity(), torch.tensor([[1.5, -0.5]]))
