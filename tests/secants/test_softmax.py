"""Attention in one piece: the same as step by step, part by part, and found however it is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.secant_walk import list_steps
from deeptaylor.secants import softmax
from deeptaylor.secants.pair import Pair

TEXTS, HEADS, ROWS, TOKENS, WIDTH = 2, 3, 5, 6, 4
MASKS = ("none", "added", "row", "head", "dead")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pairs(heads: bool) -> list[Pair]:
    """Queries, turned keys, and values."""
    lead = (TEXTS, HEADS) if heads else (TEXTS,)
    shapes = ((ROWS, WIDTH), (WIDTH, TOKENS), (TOKENS, 7))
    return [Pair(draw(*lead, *s, seed=k).requires_grad_(), draw(*lead, *s, seed=k + 10)) for k, s in enumerate(shapes)]


def mask_of(name: str, heads: bool) -> Tensor | None:
    lead = (TEXTS, 1) if heads else (TEXTS,)
    if name == "none":
        return None
    if name == "row":
        return draw(ROWS, TOKENS, seed=5)
    if name == "head":
        return draw(*((1, HEADS) if heads else (1,)), ROWS, TOKENS, seed=6)
    added = torch.zeros(*lead, 1, TOKENS, dtype=torch.float64)
    added[0, ..., 2:] = -1e4 if name == "added" else float("-inf")
    if name == "dead":
        added[1] = float("-inf")
    return added


def back(found: Pair, read: list[Pair]) -> list[Tensor]:
    return list(torch.autograd.grad((found.x * draw(*found.x.shape, seed=9)).sum(), [p.x for p in read]))


@pytest.mark.parametrize("most", [2**26, 2 * ROWS * TOKENS, 2 * TOKENS, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [True, False])
def test_the_same_as_step_by_step(
    most: int, causal: bool, name: str, heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "MAX_WEIGHTS", most)
    read, mask = pairs(heads), mask_of(name, heads)
    whole = softmax.attend(*read, 0.5, mask, causal, None)
    wanted = softmax._attend_by_steps(*read, 0.5, mask, causal)
    for a, b in zip((whole.x, whole.x0, *back(whole, read)), (wanted.x, wanted.x0, *back(wanted, read)), strict=True):
        assert bool(torch.isfinite(a).all())
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_what_is_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MAX_WEIGHTS", TOKENS)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        read = [Pair(torch.rand(1, 2, 50, 3).requires_grad_(), torch.rand(1, 2, 50, 3)) for _ in range(3)]
        keys = Pair(read[1].x.mT, read[1].x0.mT)
        softmax.attend(read[0], keys, read[2], None, None, False, None)
    assert max(kept) < 2 * 50 * 50


# --- found ------------------------------------------------------------------------------------------------------------


class Written(nn.Module):
    """Attention written out, in several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.q, self.k, self.v, self.out = (nn.Linear(4, n) for n in (4, 4, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.way == "torch's":
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)).mean(1)
        scores = q @ k.mT
        if "scaled" in self.way:
            scores = scores * 0.5
        if "masked" in self.way:
            scores = scores + torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1) * -9.0
        if "of its own" in self.way:
            scores = scores + x.sum(-1).unsqueeze(1)
        weights = scores.softmax(-1)
        read = weights[:, 0, :3] if "read" in self.way else 0
        return self.out(weights @ v).mean(1) + read


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("torch's", True), ("plain", True), ("scaled", True), ("masked", True), ("scaled and masked", True),
        ("scaled, with a mask of its own", True), ("read twice", False),
    ],
)  # fmt: skip
def test_it_is_found_however_it_is_written(way: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Written(way).double()
    x, x0 = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    explainer = dt.Explainer(net).make_unplanned()
    b = explainer.between(x, x0, 1)
    ops = {step.op for step in list_steps(explainer.captured.open(x)[0])}
    assert bool(ops & {softmax.attend, softmax.attend_to_keys}) == found
    torch.testing.assert_close(b.relevance.sum((1, 2)), (net(x) - net(x0))[:, 1], rtol=1e-11, atol=1e-12)
    monkeypatch.setattr("deeptaylor.engine.secant_walk.find_attention", lambda *_: None)
    apart = dt.Explainer(net).make_unplanned().between(x, x0, 1)
    torch.testing.assert_close(b.relevance, apart.relevance, rtol=1e-10, atol=1e-12)


def test_masks_are_not_kept_and_changed_ones_are_read_anew() -> None:
    import gc
    import weakref

    like = torch.zeros(1)
    mask = torch.zeros(2, 2)
    assert softmax._make_bias(mask, False, 2, 2, like)[1] is None
    mask[0] = float("-inf")
    bias, alive = softmax._make_bias(mask, False, 2, 2, like)
    assert alive is not None
    assert alive.tolist() == [[0.0], [1.0]]
    assert bias is not None
    assert bias[0].tolist() == [0.0, 0.0]
    kept = weakref.ref(mask)
    del mask, bias
    gc.collect()
    assert kept() is None
