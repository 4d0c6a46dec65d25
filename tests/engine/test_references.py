"""What x is compared with: by name, as tensors, of several inputs, of tokens; and what is no reference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.references import NAMED


@pytest.fixture(scope="module")
def pictures() -> dt.Explainer:
    torch.manual_seed(0)
    return dt.Explainer(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 4)))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))


class Text(nn.Module):
    """Tokens with a mask: the mean of those that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.out = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = torch.tanh(self.layer(self.embed(ids))) * mask.unsqueeze(-1)
        return self.out(h.sum(1) / mask.sum(1, keepdim=True))


@pytest.fixture(scope="module")
def text() -> dt.Explainer:
    torch.manual_seed(0)
    return dt.Explainer(Text())


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
MASK = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]])
OTHER = torch.tensor([[9, 9, 9, 4], [9, 9, 9, 0]])


# --- what is taken ----------------------------------------------------------------------------------------------------


def test_names() -> None:
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    assert not NAMED["zeros"](x).any()
    torch.testing.assert_close(NAMED["mean"](x)[:, :, 5, 7], x.mean((2, 3)))
    blurred = NAMED["blur"](x)
    assert blurred.shape == x.shape
    assert float(blurred.std()) < 0.3 * float(x.std())
    even = torch.full_like(x, 0.7)
    torch.testing.assert_close(NAMED["blur"](even), even)


def test_one_for_all_is_the_same_as_one_each(pictures: dt.Explainer, x: Tensor) -> None:
    r = torch.rand(2, 8, 8)
    wanted = pictures.between(x, r.expand(3, 2, 8, 8), 0).relevance
    for given in (r, r.unsqueeze(0), r.numpy()[None], r.unsqueeze(0).tolist()):
        torch.testing.assert_close(pictures.between(x, given, 0).relevance, wanted)


def test_several_along_an_axis_or_in_a_list(pictures: dt.Explainer, x: Tensor) -> None:
    r = torch.rand(2, 1, 2, 8, 8)
    wanted = (pictures.between(x, r[0], 0).relevance + pictures.between(x, r[1], 0).relevance) / 2
    for given in (r, [r[0], r[1, 0]], r.expand(2, 3, 2, 8, 8)):
        torch.testing.assert_close(pictures.between(x, given, 0).relevance, wanted)


def test_other_tokens_with_the_mask_as_it_is(text: dt.Explainer) -> None:
    wanted = text.between((IDS, MASK), (OTHER, MASK), 0)
    assert wanted.relevance[0].shape == (2, 4)
    assert not wanted.relevance[1].any()
    same = IDS == OTHER
    assert not wanted.relevance[0][same].any()
    for given in (OTHER, (OTHER, None), {"ids": OTHER}):
        torch.testing.assert_close(text.between((IDS, MASK), given, 0).relevance[0], wanted.relevance[0])


def test_tokens_against_vectors(text: dt.Explainer) -> None:
    """The vectors of other tokens are those tokens; and their mean is none."""
    net = text.model
    assert isinstance(net, Text)
    vectors = net.embed(OTHER).detach()
    wanted = text.between((IDS, MASK), OTHER, 0).relevance[0]
    torch.testing.assert_close(text.between((IDS, MASK), vectors, 0).relevance[0], wanted)
    mean = net.embed.weight.detach().mean(0).expand(1, 4, 6)
    b = text.between((IDS, MASK), mean, 0)
    torch.testing.assert_close(b.relevance[0].sum(1) + b.reference_score, b.score)


class Shifted(Text):
    """Tokens beside the tokens before them, read at the token 4: so BART and T5 classify."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        before = ids.new_zeros(ids.shape)
        before[:, 1:] = ids[:, :-1].clone()
        before[:, 0] = 1
        h = self.embed(ids) * self.embed(before) * mask.unsqueeze(-1)
        h = torch.tanh(self.layer(h)).cumsum(1)
        return self.out(h[ids == 4].reshape(ids.shape[0], -1, 6)[:, -1])


def test_tokens_that_are_shifted_and_the_one_that_is_read() -> None:
    torch.manual_seed(0)
    net = Shifted().double()
    ids, other = torch.tensor([[1, 2, 3, 4], [5, 6, 4, 7]]), torch.tensor([[9, 2, 8, 4], [9, 9, 4, 0]])
    mask = MASK.double()
    b = dt.Explainer(net).between((ids, mask), (other, mask), 0)
    torch.testing.assert_close(b.score - b.reference_score, (net(ids, mask) - net(other, mask))[:, 0].detach())
    torch.testing.assert_close(b.relevance[0].sum(1), b.score - b.reference_score)
    assert (b.relevance[0] != 0).tolist() == [[True, False, True, False], [True, True, False, False]]
    with pytest.raises(dt.UnsupportedOpError, match="its integer arguments differ"):
        dt.Explainer(net).between((ids, mask), (other.roll(1, 1), mask), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_vectors_of_a_narrow_network_are_computed_in_float32(text: dt.Explainer, dtype: torch.dtype) -> None:
    net, mask = copy.deepcopy(text.model), MASK.to(dtype)
    assert isinstance(net, Text)
    net.layer = nn.Sequential(nn.LayerNorm(6), net.layer)  # type: ignore[assignment]
    net.to(dtype)
    vectors = net.embed(OTHER).detach().mean(1, keepdim=True).expand(-1, 4, -1)
    b = dt.Explainer(net, example=(IDS, mask)).between((IDS, mask), vectors, 0)
    assert b.relevance[0].dtype is torch.float32
    assert float(b.ledger.gap.max()) < 1e-6


class Weighed(Text):
    """The same by a product of matrices, with weights made of whole numbers."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = torch.tanh(self.layer(self.embed(ids)))
        return self.out(torch.einsum("bnd,bn->bd", h, mask.to(h.dtype) / mask.sum(1, keepdim=True).to(h.dtype)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_to_a_narrow_type_are_left_out(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, mask = Weighed().to(dtype), MASK.long()
    b = dt.Explainer(net).between((IDS, mask), OTHER, 0)
    assert float(b.ledger.gap.max()) < 1e-6
    wide = dt.Explainer(net.float()).between((IDS, mask), OTHER, 0)
    torch.testing.assert_close(b.relevance[0], wide.relevance[0])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("grey", "one of 'zeros', 'mean', 'blur'; got 'grey'"),
        (torch.zeros(3, 2, 8, 9), "has shape (3, 2, 8, 9); the input has (3, 2, 8, 8)"),
        (torch.zeros(2, 2, 8, 8), "has shape (2, 2, 8, 8)"),
        (torch.zeros(0, 3, 2, 8, 8), "the tensor is empty"),
        ([], "the list is empty"),
        (torch.full((2, 8, 8), torch.nan), "has values that are NaN or infinite"),
        (torch.zeros(2, 8, 8, dtype=torch.float64), "is torch.float64, the input torch.float32"),
        (torch.zeros(2, 8, 8, dtype=torch.int64), "is torch.int64, the input torch.float32"),
        (object(), "A reference must be a tensor, an array, or one of zeros, mean, blur; got object"),
        (None, "got NoneType"),
        ((torch.zeros(2, 8, 8), None), "the network has 1, the tuple 2. Give several references as a list"),
        ({"picture": torch.zeros(2, 8, 8)}, "names the input 'picture'; the network has input"),
    ],
)
def test_bad_references_of_pictures(pictures: dt.Explainer, x: Tensor, given: Any, said: str) -> None:
    with pytest.raises(dt.InputError) as error:
        pictures.between(x, given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("zeros", "score of the reference is NaN or infinite"),  # of the mask, too: 0 / 0
        (torch.full((2, 4), 20), "holds the token 20; the network knows 20 tokens"),
        (torch.zeros(2, 5, dtype=torch.int64), "has shape (2, 5)"),
        (torch.zeros(2, 4, dtype=torch.bool), "is torch.bool"),
        ((torch.zeros(3, 2, 4, dtype=torch.int64), None), "a list of tuples"),
        ("blur", "is for pictures"),
    ],
)
def test_bad_references_of_tokens(text: dt.Explainer, given: Any, said: str) -> None:
    with pytest.raises(dt.InputError) as error:
        text.between((IDS, MASK), given)
    assert said in str(error.value)


def test_tokens_alone_have_no_zero() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(dt.InputError, match="Tokens have no 'zeros'"):
        dt.Explainer(net).between(IDS, "zeros")


def test_vectors_of_another_width_are_refused(text: dt.Explainer) -> None:
    with pytest.raises(
        dt.UnsupportedOpError, match=r"vectors have shape \(2, 4, 6\), those of the reference \(2, 4, 5\)"
    ):
        text.between((IDS, MASK), torch.zeros(2, 4, 5))


class Sorted(nn.Module):
    """What follows the order of the values."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1).values * torch.arange(3.0)


class Bessel(nn.Module):
    """An operation that has no split."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x).sum(1)


@pytest.mark.parametrize(
    ("net", "said"),
    [(Sorted(), "sort: the sorted order differs"), (Bessel(), "special_bessel_j0: no rule is")],
)
def test_what_has_no_secant_is_refused_by_name(net: nn.Module, said: str) -> None:
    with pytest.raises(dt.UnsupportedOpError, match=f"There is no secant through {said}") as error:
        dt.Explainer(net).between(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, 1.0]]))
    assert "test_references.py" in str(error.value)


def test_arrays_are_taken(pictures: dt.Explainer, x: Tensor) -> None:
    wanted = pictures.between(x, "zeros", 0).relevance
    torch.testing.assert_close(pictures.between(x.numpy(), np.zeros((3, 2, 8, 8)), 0).relevance, wanted)
