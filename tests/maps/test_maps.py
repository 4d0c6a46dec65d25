"""Every module of maps by itself: quotients by hand, maps against torch, transposes against matrices written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from counting_ledger import CountingLedger
from deeptaylor.maps import convolution, division, linear_map, ops, structural
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.block import Block
from graphs import Values


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def is_transpose(
    built: linear_map.LinearMap, x: Tensor, values: dict[str, Tensor], reading: linear_map.Reading
) -> bool:
    """⟨W x, s⟩ = ⟨x, Wᵀ s⟩, both of which hold something."""
    run = Values(values)
    y = built.map(reading, [x], run)
    assert y is not None
    s = torch.rand(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1
    (back,) = built.transpose(reading, s, run)
    assert back is not None
    assert back.shape == x.shape
    assert bool(back.any())
    return bool(torch.isclose((y * s).sum(), (x * back).sum()))


def test_division_drops_what_has_no_denominator_and_tells_how_much() -> None:
    a, b = torch.tensor([6.0, 5.0, -4.0]), torch.tensor([3.0, 0.0, 2.0])
    assert division.divide(a, b).tolist() == [2, 0, -2]
    assert division.undivided(a, b).tolist() == [0, 5, 0]
    ledger, stabilised = CountingLedger(), CountingLedger()
    assert division.divide_signed(a, -b, ledger).tolist() == [-2, 0, 2]
    assert division.divide(a, b, ledger).tolist() == [2, 0, -2]
    assert ledger.lost == 5 + 5
    assert division.divide_signed(a, b, stabilised, torch.ones(3)).tolist() == pytest.approx([1.5, 5, -4 / 3])
    assert stabilised.lost == pytest.approx(1.5 + 5 - 4 / 3)
    assert division.weigh(torch.tensor([0.0, 2.0]), torch.tensor([-torch.inf, 3.0])).tolist() == [0, 6]


@pytest.mark.parametrize(
    ("built", "computed"),
    [
        (structural.Permute("y", ["x"], [0, 2, 1]), lambda x: x.mT),
        (structural.Flip("y", ["x"], [1]), lambda x: x.flip(1)),
        (structural.Slice("y", ["x"], 2, 1, 4, 2, drop=False), lambda x: x[:, :, 1:4:2]),
        (structural.IndexAlong("y", ["x"], [(2, 1, torch.tensor([3, 0, 3]))]), lambda x: x[:, :, [3, 0, 3]]),
    ],
    ids=["permute", "flip", "slice", "index"],
)
def test_structural_maps_copy_elements_in_every_reading_but_the_negative(
    built: structural.Structural, computed: Callable[[Tensor], Tensor]
) -> None:
    x = drawn(2, 3, 4)
    y = computed(x)
    values = {"x": x, "y": y}
    for reading in ("signed", "positive", "squared", "flat"):
        assert torch.equal(built.map(reading, [x], Values(values)), y)
        assert is_transpose(built, x, values, reading)
    assert built.map("negative", [x], Values(values)) is None
    assert built.transpose("negative", y, Values(values)) == [None]


def test_a_step_of_each_sample_is_taken_and_given_back() -> None:
    built, x, steps = structural.TakeStep("y", ["x"], "steps"), drawn(2, 3, 4), torch.tensor([2, -2])
    values = {"x": x, "steps": steps, "y": x[[0, 1], [2, 1]]}
    assert torch.equal(built.map("signed", [x], Values(values)), values["y"])
    assert is_transpose(built, x, values, "signed")
    back = built.transpose("signed", torch.ones(2, 4), Values(values))[0]
    assert back.flatten(2).sum(2).tolist() == [[0, 0, 4], [0, 4, 0]]


def test_an_element_that_is_picked_twice_gets_both_shares_back() -> None:
    built = structural.IndexAlong("y", ["x"], [(1, 1, torch.tensor([2, 2]))])
    run = Values({"x": torch.zeros(1, 3), "y": torch.zeros(1, 2)})
    assert [t.tolist() for t in built.transpose("signed", torch.tensor([[5.0, 7.0]]), run)] == [[[0, 0, 12]]]


@pytest.mark.parametrize("reading", ["signed", "positive", "negative", "magnitude", "squared", "flat"])
def test_contractions_read_the_fixed_factor_as_weights(reading: linear_map.Reading) -> None:
    x, gate = drawn(2, 3, 4), drawn(2, 5, 3)
    weight = linear_map.read_weight(gate, reading)
    matmul = linear_map.MatMul("y", ["x"], "gate", fixed_first=True, non_negative=False)
    einsum = linear_map.Einsum("y", ["x"], "gate", ("bjc", "bij", "bic"), non_negative=False)
    values = {"x": x, "gate": gate}
    for built in (matmul, einsum):
        torch.testing.assert_close(built.map(reading, [x], Values(values)), weight @ x)
        assert is_transpose(built, x, values, reading)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [([2, 2], [1, 1], [1, 1]), ([1, 1], [0, 0], [2, 2]), ([2, 3], [0, 0], [1, 1])],
    ids=["padded", "dilated", "side by side"],
)
def test_convolution_in_whatever_form_is_torchs_own(stride: list[int], padding: list[int], dilation: list[int]) -> None:
    x, weight = drawn(2, 3, 5, 6), drawn(4, 3, 2, 3)
    built = convolution.Convolution("y", ["x"], "w", weight, None, stride, padding, dilation, 1, False, [0, 0])
    values = {"x": x, "w": weight, "y": F.conv2d(x, weight, None, stride, padding, dilation)}
    for reading in ("signed", "positive", "negative", "magnitude", "squared"):
        expected = F.conv2d(x, linear_map.read_weight(weight, reading), None, stride, padding, dilation)
        torch.testing.assert_close(built.map(reading, [x], Values(values)), expected)
        assert is_transpose(built, x, values, reading)


def test_a_block_is_one_affine_map_of_all_its_leaves() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) + self.b(y)

    torch.manual_seed(0)
    network, x, y = Two().double(), drawn(2, 3), drawn(2, 3) + 1
    (engine,) = dt.Explainer(network, (x, y), bias="neuron").captured.engines.values()
    block = engine.score.block
    assert isinstance(block, Block)
    assert len(block.leaves) == 2
    with torch.no_grad():
        affine = AffineMap(
            block, engine.forward_pass([x, y]), [False, False], [None, None], rectified=False, spread=False
        )
        z = affine.map("signed", affine.x)
        torch.testing.assert_close(z + affine.b, network(x, y))
        s = torch.ones(2, 4, dtype=torch.float64)
        back = affine.transpose("signed", s)
        for given, layer in zip(back, (network.a, network.b), strict=True):
            torch.testing.assert_close(given, s @ layer.weight)
        p, n = affine.parts()
        assert all(torch.equal(pi - ni, xi) for pi, ni, xi in zip(p, n, affine.x, strict=True))


def test_operations_of_ones_own_compute_what_torch_computes() -> None:
    x = drawn(2, 6, 4)
    torch.testing.assert_close(
        ops.centre(ops.divide_by_std(x, 1e-5, 1, 0), None, None, 1, 0), F.layer_norm(x, (4,), eps=1e-5)
    )
    torch.testing.assert_close(ops.lp_pool(x.abs(), 3.0, [2], [2], False), F.lp_pool1d(x.abs(), 3.0, 2))
    q = drawn(2, 1, 3, 4)
    weights = ops.attention_weights(q, q + 1, None, False, None, False)
    torch.testing.assert_close(weights @ q, F.scaled_dot_product_attention(q, q + 1, q))
