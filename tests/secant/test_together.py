"""References of short inputs go through the network as one batch, and say what they say alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.secant import compare, together


class Reads(nn.Module):
    """Tokens and a mask to two scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(torch.tanh((self.words(tokens) * mask.unsqueeze(-1)).sum(1)))


X = (torch.arange(12).reshape(3, 4), torch.ones(3, 4))
REFERENCES = [(X[0].roll(1), None), (X[0].roll(2), None), (None, torch.tensor([1.0, 0, 1, 0])), (X[0].roll(3), None)]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each walk had."""
    found: list[int] = []
    walked = compare.walked

    def counted(engine: Any, x: Any, x0: Any) -> Any:
        found.append(len(x[0]))
        return walked(engine, x, x0)

    monkeypatch.setattr(compare, "walked", counted)
    return found


@pytest.mark.parametrize(
    "target",
    [None, 1, torch.tensor([0, 1, 0]), [[0, 1]] * 3, dt.margin(1, 0), torch.tensor([[0.2, 0.8], [1, 0], [0.5, 0.1]])],
    ids=["answer", "one", "each", "two each", "margin", "weights"],
)
def test_together_they_say_what_they_say_alone(target: Any, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = dt.Explainer(Reads())
    found = explainer.between(X, REFERENCES, target)
    assert passes == [12]
    monkeypatch.setattr(together, "_MOST", 0)
    alone = explainer.between(X, REFERENCES, target)
    assert passes[1:] == [3, 3, 3, 3]
    for a, b in zip(found.relevance, alone.relevance, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.reference_score, alone.reference_score)
    torch.testing.assert_close(found.score, alone.score)


def test_large_inputs_go_one_after_the_other(passes: list[int]) -> None:
    long = (torch.arange(4000).reshape(1, -1) % 20, torch.ones(1, 4000))
    dt.Explainer(Reads()).between(long, [(long[0].roll(k), None) for k in (1, 2)], 0)
    assert passes == [1, 1]


class Threefold(nn.Module):
    """A sum of products of three words, of which one may change at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.eye(4, dtype=torch.float64)[:, :3] + 1)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.einsum("bti,bti,bti->b", *map(self.words, (a, b, c))).unsqueeze(1)


def test_changes_that_may_not_meet_go_one_after_the_other(passes: list[int]) -> None:
    explainer, x = dt.Explainer(Threefold()), tuple(torch.tensor([[k]]) for k in range(3))
    references = [tuple(torch.tensor([[3]]) if k == one else None for k in range(3)) for one in (0, 1, 2, 0)]
    found = explainer.between(x, references, 0)
    assert passes == [4, 2, 1, 1]
    alone = [explainer.between(x, [reference], 0) for reference in references]
    for k, R in enumerate(found.relevance):
        torch.testing.assert_close(R, torch.stack([e.relevance[k] for e in alone]).mean(0), atol=1e-14, rtol=1e-12)
        assert bool(R != 0)


def test_what_has_no_split_at_all_is_refused() -> None:
    x = tuple(torch.tensor([[k]]) for k in range(3))
    with pytest.raises(dt.UnsupportedOpError, match="more than two tensors"):
        dt.Explainer(Threefold()).between(x, [tuple(torch.full_like(t, 3) for t in x)] * 2, 0)
