"""Networks and callable targets that mix the samples of a batch are rejected; harmless look-alikes are not.

A sample's explanation must not depend on which other samples lie in its batch. The ways to mix are tried in the input,
in a hidden layer and in the output of a network, for `explain` and `between`, and as callable targets.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.sample_layout import check_mixing
from deeptaylor.errors import MismatchError
from deeptaylor.graph.capture import capture

Way = Callable[[Tensor], Tensor]
SIZE = 6
MIXED = "depends on the other samples"


class Net(nn.Module):
    """Two layers; a function is applied to the input, to the hidden layer or to the output."""

    def __init__(self, way: Way, place: str = "input") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.way, self.place = way, place
        self.eval()

    def forward(self, v: Tensor) -> Tensor:
        v = self.way(v) if self.place == "input" else v
        h = F.relu(self.a(v))
        h = self.way(h) if self.place == "hidden" else h
        out = self.b(h)
        return self.way(out) if self.place == "output" else out


def values(batch: int, *shape: int) -> Tensor:
    torch.manual_seed(batch)
    return torch.rand(batch, *(shape or (SIZE,)))


# --- ways to mix ------------------------------------------------------------------------------------------------------

MIXING: dict[str, Way] = {
    # reduced over the whole batch
    "abs max": lambda v: v / v.abs().max(),
    "max": lambda v: v / (1 + v.max()),
    "min": lambda v: v - v.min(),
    "amax of all axes": lambda v: v / (1 + v.amax((0, 1))),
    "min-max scaling": lambda v: (v - v.min()) / (v.max() - v.min() + 1e-3),
    "norm": lambda v: v / v.norm(),
    "linalg norm": lambda v: v / torch.linalg.vector_norm(v),
    "sum": lambda v: v / (1 + v.abs().sum()),
    "mean": lambda v: v - v.mean(),
    "std": lambda v: v / v.std(),
    "var": lambda v: v / (1 + v.var()),
    "median": lambda v: v - v.median(),
    "quantile": lambda v: v - v.quantile(0.5),
    "logsumexp": lambda v: v - v.logsumexp((0, 1)),
    "stable softmax by the batch's max": lambda v: (v - v.max()).exp() / (v - v.max()).exp().sum(1, keepdim=True),
    "mean square": lambda v: v * torch.rsqrt(v.pow(2).mean() + 1e-3),
    "softmax of all": lambda v: v * v.flatten().softmax(0).view(v.shape),
    "layer norm of the batch's mean": lambda v: v + F.layer_norm(v.mean(0), (SIZE,)),
    # over the sample axis
    "batch mean": lambda v: v - v.mean(0),
    "batch mean kept": lambda v: v - v.mean(0, keepdim=True),
    "batch statistics": lambda v: (v - v.mean(0)) / (v.var(0) + 1e-3).sqrt(),
    "batch norm in training mode": lambda v: F.batch_norm(v, None, None, training=True),
    "batch max": lambda v: v - v.amax(0),
    "normalize over samples": lambda v: F.normalize(v, dim=0),
    "softmax over samples": lambda v: v * v.softmax(0),
    "cumulative sum": lambda v: v * v.cumsum(0).sigmoid(),
    "cumulative max": lambda v: v * v.cummax(0).values.sigmoid(),
    "sorted": lambda v: v * v.sort(0).values.sigmoid(),
    "rank": lambda v: v * v.argsort(0).argsort(0).to(v.dtype),
    "top k": lambda v: v + v.topk(1, 0).values,
    "flipped": lambda v: v.flip(0),
    "flipped twice, once added": lambda v: (v + v.flip(0)).flip(0),
    "rolled": lambda v: v + v.roll(1, 0),
    "rolled by two": lambda v: v + v.roll(2, 0),
    "rolled without an axis": lambda v: v + v.roll(1),
    "difference to the one before": lambda v: v + F.pad(v[1:] - v[:-1], (0, 0, 1, 0)),
    "shifted by cat": lambda v: v + torch.cat([torch.zeros_like(v[:1]), v[:-1]]),
    # one sample picked out
    "first as gate": lambda v: v * v[:1].sigmoid(),
    "first added": lambda v: v + v[:1],
    "first selected": lambda v: v + v[0],
    "last added": lambda v: v + v[-1:],
    "first in cat": lambda v: torch.cat([v, v[:1].expand_as(v)], 1)[:, 1 : SIZE + 1],
    "first by index": lambda v: v + v[torch.zeros(v.shape[0], dtype=torch.long)],
    "first by index_select": lambda v: v + v.index_select(0, torch.tensor([0])),
    "first by gather": lambda v: v + v.gather(0, torch.zeros((v.shape[0], SIZE), dtype=torch.long)),
    "others by index": lambda v: v + v[torch.arange(v.shape[0] - 1, -1, -1)],
    "first by narrow": lambda v: v * torch.sigmoid(v.narrow(0, 0, 1)),
    "first by where": lambda v: v + torch.where(torch.arange(v.shape[0])[:, None] == 0, v, 0.0).sum(0),
    # comparisons and booleans
    "where by the first": lambda v: torch.where(v[:1] > 0.5, v, v * 0.5),
    "above the batch's mean": lambda v: v * (v > v.mean(0)),
    "above the mean of all": lambda v: v * (v > v.mean()),
    "is the largest": lambda v: v * (v == v.amax(0)),
    "any above": lambda v: v * (v > 0.9).any(),
    "all above": lambda v: v * (1 + (v > 0.1).all()),
    "count above": lambda v: v * (v > 0.5).sum(),
    "masked by the first": lambda v: v.masked_fill(v[:1] > 0.5, 0.0),
    "arg max over samples": lambda v: v * (1 + v.argmax(0)),
    "clamped to the batch's range": lambda v: v.clamp(max=v.mean(0)),
    # products
    "gram matrix": lambda v: (v @ v.T).softmax(1) @ v,
    "covariance": lambda v: v @ (v.T @ v),
    "attention over samples": lambda v: F.scaled_dot_product_attention(v[None], v[None], v[None])[0],
    "distances": lambda v: v * torch.cdist(v, v).mean(1, keepdim=True),
    "pairwise differences": lambda v: v + (v[:, None] - v[None]).abs().mean(1),
    "einsum over samples": lambda v: v * torch.einsum("bi,bj->ij", v, v).sum(0),
    "ones times batch": lambda v: v + torch.ones(v.shape[0], v.shape[0]) @ v,
    "outer with transposed": lambda v: v * torch.einsum("bi,ci->bc", v, v).mean(1, keepdim=True),
    # merged with another axis
    "softmax of a merged axis": lambda v: v * v.reshape(-1, 2).softmax(0).reshape(-1, SIZE),
    "rolled along a merged axis": lambda v: v + v.reshape(-1, 2).roll(1, 0).reshape(-1, SIZE),
    "convolved along the samples": lambda v: v + F.avg_pool1d(v.T[None], 3, 1, 1)[0].T,
    "summed after a transpose": lambda v: v / (1 + v.abs().T.sum(1)),
    "scrambled by a reshape": lambda v: v + v.T.reshape(-1, SIZE),
    "mean of the merged axis": lambda v: v - v.reshape(-1).mean(),
}
PLACES = ("input", "hidden", "output")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MIXING)
def test_a_network_that_mixes_samples_is_not_explained(name: str, place: str) -> None:
    network, x = Net(MIXING[name], place), values(3)
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        dt.explain(network, x, 1, bias="neuron")
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        dt.Explainer(network).between(x, values(4)[:3], 1)


@pytest.mark.parametrize("name", MIXING)
def test_a_single_sample_does_not_hide_that_a_network_mixes(name: str) -> None:
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        dt.explain(Net(MIXING[name], "hidden"), values(1), 1, bias="neuron")


@pytest.mark.parametrize("name", MIXING)
def test_a_fixed_batch_size_does_not_hide_that_a_network_mixes(name: str) -> None:
    network = Net(lambda v: MIXING[name](v.view(3, SIZE)))  # the size of the batch cannot be left free
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        dt.explain(network, values(3), 1, bias="neuron")


def test_the_error_names_the_line_and_what_to_do() -> None:
    class Scaled(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v / v.abs().max()

    with pytest.raises(MismatchError) as info:
        dt.explain(nn.Sequential(Scaled(), nn.Linear(SIZE, 2)), values(3))
    for said in ("max computes across the samples", "module '0'", "v / v.abs().max()", "amax((1, 2, 3), keepdim=True)"):
        assert said in str(info.value)


@pytest.mark.parametrize("name", MIXING)
def test_a_callable_that_mixes_samples_is_rejected(name: str) -> None:
    explainer, x, weights = dt.Explainer(Net(lambda v: v), bias="neuron"), values(5), torch.arange(1.0, SIZE + 1)
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        explainer.explain(x, lambda o: (MIXING[name](o) * weights).sum(1))
    with pytest.raises(dt.DeepTaylorError, match=MIXED):
        explainer.between(x, values(7)[:5], lambda o: (MIXING[name](o) * weights).sum(1))


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize(
    "score",
    [
        lambda o: o[:, 1] * o.max().item(),
        lambda o: o[:, 1] * float(o.abs().sum()),
        lambda o: o[:, 1] * float(o.detach().numpy().max()),
        lambda o: o[:, 1] - o[:, 1].mean(),
        lambda o: o[:, 1] * (o[:, 1] > o[:1, 1] - 0.01),
        lambda o: o[:, 1] if o.sum() > 2 else o[:, 2],
        lambda o: torch.tensor([float(o.sum())] * len(o)),
    ],
    ids=["item", "float", "numpy", "mean", "gate", "branch", "list"],
)
def test_a_callable_that_reads_numbers_of_other_samples_is_rejected(score: Any, batch: int) -> None:
    with pytest.raises(dt.DeepTaylorError):
        dt.explain(Net(lambda v: v), values(batch), score, bias="neuron")


@pytest.mark.parametrize(
    "score",
    [
        lambda o: o[:, 1] * torch.rand(1),
        lambda o: o[:, 1] + torch.randn(len(o)),
        lambda o: o[:, 1] * random.random(),
        lambda o: F.dropout(o, 0.5)[:, 1],
        lambda o: (o * torch.bernoulli(torch.full_like(o, 0.5))).sum(1),
        lambda o: o[:, int(torch.randint(6, ()))].exp(),
        lambda o: o[torch.arange(len(o)), torch.randperm(6)[0]],
        lambda o: o[:, 1] * torch.randn_like(o[:, 1]).sigmoid(),
    ],
    ids=["rand", "randn", "random", "dropout", "bernoulli", "randint", "randperm", "gate"],
)
def test_a_callable_that_draws_random_numbers_is_rejected(score: Any) -> None:
    network, x = Net(lambda v: v), values(3)
    before = torch.get_rng_state()
    with pytest.raises(dt.TargetError, match="another result each time"):
        dt.explain(network, x, score, bias="neuron")
    assert torch.equal(torch.get_rng_state(), before)


# --- harmless look-alikes ---------------------------------------------------------------------------------------------

CONSTANT, MATRIX = torch.linspace(0.5, 1.5, SIZE), torch.eye(SIZE) + 0.1
TABLE = torch.arange(24.0).reshape(4, SIZE) / 24


def heads(v: Tensor) -> Tensor:
    """Attention of two heads, merged with the samples."""
    q = v.reshape(-1, 3, 2).transpose(0, 1).reshape(3, -1, 1).transpose(0, 1)  # (samples · heads, 3, 1)
    a = torch.bmm(q, q.transpose(1, 2)).softmax(-1)
    return torch.bmm(a, q).transpose(0, 1).reshape(3, -1, 2).transpose(0, 1).reshape(-1, SIZE)


def windows(v: Tensor) -> Tensor:
    """Windows of 1 × 3 of a picture of 2 × 3, merged with the samples, each normalised."""
    w = v.view(-1, 2, 1, 1, 3).permute(0, 1, 3, 2, 4).reshape(-1, 3)
    w = w / (1 + w.abs().amax(1, keepdim=True))
    return w.view(-1, 2, 1, 1, 3).permute(0, 1, 3, 2, 4).reshape(-1, SIZE)


HARMLESS: dict[str, Way] = {
    # for each sample
    "abs max": lambda v: v / (1 + v.abs().amax(1, keepdim=True)),
    "max": lambda v: v / (1 + v.max(1, keepdim=True).values),
    "scaling": lambda v: (v - v.mean(1, keepdim=True)) / (1 + v.amax(1, keepdim=True)),
    "norm": lambda v: v / (1 + v.norm(dim=1, keepdim=True)),
    "normalize": lambda v: F.normalize(v, dim=1),
    "sum": lambda v: v / (1 + v.abs().sum(1, keepdim=True)),
    "centred": lambda v: v - v.mean(1, keepdim=True),
    "std": lambda v: v / (1 + v.std(1, keepdim=True)),
    "softmax gate": lambda v: v * v.softmax(1),
    "layer norm": lambda v: F.layer_norm(v, (SIZE,)),
    "group norm": lambda v: F.group_norm(v, 2),
    "batch norm in eval mode": lambda v: F.batch_norm(v, CONSTANT, CONSTANT),
    "rms norm": lambda v: F.rms_norm(v, (SIZE,)),
    "cumulative gate": lambda v: v * v.cumsum(1).sigmoid(),
    "flipped features": lambda v: v + v.flip(1),
    "rolled features": lambda v: v + v.roll(1, 1),
    "sorted gate": lambda v: v * v.sort(1).values.sigmoid(),
    "first feature": lambda v: v + v[:, :1],
    "selected feature as gate": lambda v: v * v[:, 0].sigmoid()[:, None],
    "above own mean": lambda v: v * (v > v.mean(1, keepdim=True)),
    "any above": lambda v: v * (1 + (v > 0.9).any(1, keepdim=True)),
    "where": lambda v: torch.where(v[:, :1] > 0.5, v, v * 0.5),
    "by an index": lambda v: v + v[:, torch.tensor([1, 0, 3, 2, 5, 4])],
    "by a gather": lambda v: v * v.gather(1, v.argmax(1, keepdim=True)).sigmoid(),
    "by sample numbers": lambda v: v * v[torch.arange(v.shape[0]), v.argmax(1)].sigmoid()[:, None],
    # constants and shapes
    "ones of the batch": lambda v: v + torch.ones(v.shape[0], SIZE),
    "ones like": lambda v: v + torch.ones_like(v),
    "zeros of one sample": lambda v: v + torch.zeros_like(v[:1]),
    "broadcast constant": lambda v: v * CONSTANT + CONSTANT[None],
    "positions": lambda v: v + torch.arange(SIZE, dtype=v.dtype),
    "learned token, expanded": lambda v: torch.cat([CONSTANT[None, :2].expand(v.shape[0], -1), v[:, 2:]], 1),
    "table by constant numbers": lambda v: v + TABLE[torch.zeros(v.shape[0], dtype=torch.long)],
    "divided by a size": lambda v: v / v.shape[1],
    "matrix": lambda v: v @ MATRIX,
    "matrix from the left": lambda v: (MATRIX @ v.T).T,
    "einsum with a matrix": lambda v: torch.einsum("bi,ij->bj", v, MATRIX),
    "einsum of each sample": lambda v: v * torch.einsum("bi,bi->b", v, v).sigmoid()[:, None],
    "constant buffer's maximum": lambda v: v / CONSTANT.max(),
    "identity of the batch": lambda v: torch.eye(v.shape[0]) @ v,
    # other shapes
    "transposed and back": lambda v: (v.T * 2).T,
    "squeezed": lambda v: v.unsqueeze(1).squeeze(1) + v.unsqueeze(0).squeeze(0),
    "unsqueezed in front": lambda v: (v[None] * 2)[0],
    "features stacked": lambda v: torch.stack([v, 2 * v], 1).mean(1),
    "features stacked in front": lambda v: torch.stack([v, 2 * v]).mean(0),
    "cat of features": lambda v: torch.cat([v[:, 3:], v[:, :3]], 1),
    "chunks": lambda v: torch.cat(v.chunk(2, 1)[::-1], 1),
    "time folded into the batch": lambda v: (v.reshape(-1, 2) @ torch.ones(2, 2)).reshape(-1, SIZE),
    "softmax within a folded axis": lambda v: v * v.reshape(-1, 2).softmax(1).reshape(-1, SIZE),
    "folded, samples last": lambda v: v.T.reshape(-1)[:, None].mul(2).reshape(SIZE, -1).T,
    "repeated and averaged": lambda v: v.repeat(2, 1).view(2, -1, SIZE).mean(0),
    "repeated each": lambda v: v.repeat_interleave(2, 0).view(-1, 2, SIZE).mean(1),
    "windows": windows,
    "heads merged with samples": heads,
    "attention": lambda v: F.scaled_dot_product_attention(*[v.view(-1, 3, 2)] * 3).flatten(1),
    "attention, samples second": lambda v: F.scaled_dot_product_attention(
        *[v.view(-1, 3, 2).transpose(0, 1).transpose(0, 1)] * 3
    ).flatten(1),
    "own product": lambda v: v * (v[:, None] @ v[:, :, None])[:, 0].sigmoid(),
    "full slice": lambda v: v[:] + v[:, :],
    "convolution": lambda v: F.conv1d(v[:, None], torch.ones(1, 1, 3), padding=1)[:, 0],
    "pooling": lambda v: v + F.avg_pool1d(v[:, None], 3, 1, 1)[:, 0],
    "picture": lambda v: F.interpolate(v.view(-1, 1, 2, 3), scale_factor=2.0).mean((1, 2)),
    "no random numbers": lambda v: F.dropout(v, 0.5, training=False),
}


@pytest.mark.parametrize("place", ["input", "hidden"])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_network_is_explained_as_for_one_sample(name: str, place: str) -> None:
    network, x = Net(HARMLESS[name], place), values(3)
    explainer = dt.Explainer(network, bias="neuron")
    together, alone = explainer.explain(x, dt.margin(1, 2)), explainer.explain(x[:1], dt.margin(1, 2))
    torch.testing.assert_close(together.relevance[:1], alone.relevance)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_network_of_a_fixed_batch_size_is_explained(name: str) -> None:
    network = Net(lambda v: HARMLESS[name](v.view(3, SIZE)))
    assert dt.explain(network, values(3), dt.margin(1, 2), bias="neuron").relevance.isfinite().all()


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_network_is_known_to_be(name: str) -> None:
    """The structure tells without probing the whole network."""
    with torch.no_grad():
        assert check_mixing(capture(Net(HARMLESS[name]), [values(2)]))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_callable_is_taken(name: str) -> None:
    weights = torch.arange(1.0, SIZE + 1)
    found = dt.explain(Net(lambda v: v), values(3), lambda o: (HARMLESS[name](o) * weights).sum(1), bias="neuron")
    assert found.relevance.isfinite().all()
