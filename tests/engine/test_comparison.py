"""Comparisons with references: traced as a flat program, and several references as one batch.

A flat program gives the numbers of the walk step by step, and nothing is traced that depends on values. References of
short inputs that run as one batch give what they give one by one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import comparison
from deeptaylor.engine.comparison import FlatProgram, compare_once


class Reader(nn.Module):
    """Tokens and a mask, attention, a norm and a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, n) for n in (8, 8, 8, 3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.embed(x)
        weights = (self.q(h) @ self.k(h).mT + (1 - mask.to(h.dtype))[:, None, :] * -1e4).softmax(-1)
        return self.out(nn.functional.gelu(self.norm(h + weights @ self.v(h)))).mean(1)


class Masks(nn.Module):
    """A mask that it makes of its tokens by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.embed(x) * (x >= 0).unsqueeze(-1)).tanh().mean(1))


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(1, 20, (2, 5), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def explainer() -> dt.Explainer:
    torch.manual_seed(0)
    return dt.Explainer(Reader().double(), (tokens(), torch.ones(2, 5, dtype=torch.long)))


def flat(explainer: dt.Explainer) -> FlatProgram:
    return FlatProgram(partial(compare_once, explainer.captured.engine), None)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "target", [None, torch.tensor([0, 2]), torch.tensor([[0, 1], [2, 1]]), dt.margin(1, 0)], ids=str
)
def test_a_flat_program_gives_the_same_for_other_values(target: Any, explainer: dt.Explainer) -> None:
    mask, reference = torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
    run = flat(explainer)
    for seed in range(3):
        x = (tokens(seed), mask)
        close(run(x, (reference, mask), target), compare_once(explainer.captured.engine, x, (reference, mask), target))
    assert [program is not None for program in run.programs.values()] == [True]


def test_what_depends_on_values_is_walked() -> None:
    explainer = dt.Explainer(Masks(), tokens())
    run, reference = flat(explainer), torch.zeros(2, 5, dtype=torch.long)
    for seed in range(3):
        close(
            run((tokens(seed),), (reference,), None),
            compare_once(explainer.captured.engine, (tokens(seed),), (reference,), None),
        )
    assert list(run.programs.values()) == [None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_comparisons_add_up() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3))
    x = torch.rand(2, 4)
    eager, compiled = dt.Explainer(net), dt.Explainer(net).compile()
    for shift in (0, 1):  # other values, the same program
        plain, fast = (e.between(x + shift, "zeros", 1) for e in (eager, compiled))
        torch.testing.assert_close(fast.relevance, plain.relevance)
        assert fast.check().accounted
    (run,) = compiled.captured._runs.values()
    assert list(map(callable, run["between"].programs.values())) == [True]


class Normed(nn.Module):
    """x over a root of a mean: of its squares, as RMSNorm has it, or of something else that is called with a 2."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of, self.out = of, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * torch.rsqrt(self.of(x).mean(-1, keepdim=True) + 0.1))


@pytest.mark.parametrize(
    "of",
    [lambda x: x.pow(2), torch.square, lambda x: x.clamp_min(2), lambda x: x.pow(4), lambda x: x.cumsum(1) ** 2],
    ids=["x^2", "square", "clamp", "x^4", "cumsum"],
)
def test_only_a_root_of_the_mean_square_is_taken_for_a_norm(of: Any) -> None:
    torch.manual_seed(0)
    net, x = Normed(of).double(), torch.rand(2, 4, dtype=torch.float64) + 3
    b = dt.Explainer(net, x).between(x, x.flip(0), 1)
    torch.testing.assert_close(b.score, net(x)[:, 1].detach())
    torch.testing.assert_close(b.relevance.sum(1), (net(x) - net(x.flip(0)))[:, 1].detach())


def test_the_way_back_is_traced_in_the_same_thread() -> None:
    """A GPU's own thread would not know that it is traced, and round where a compiler may leave a rounding out."""
    seen: list[bool] = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *ms: Tensor) -> Tensor:
            seen.append(torch._C._is_multithreading_enabled())
            return ms[0]

    def walk(x: Any, x0: Any, target: Any) -> Any:
        leaf = x[0].detach().requires_grad_()
        with torch.enable_grad():
            f = Looks.apply(leaf).sum(1)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(f.sum(), leaf), f.detach(), f.detach(), None

    x = torch.ones(2, 3)
    FlatProgram(walk, None)((x,), (x + 1,), None)
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()


# --- several references at once ---------------------------------------------------------------------------------------


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
    run_at_both_points = comparison.run_at_both_points

    def counted(engine: Any, x: Any, x0: Any) -> Any:
        found.append(len(x[0]))
        return run_at_both_points(engine, x, x0)

    monkeypatch.setattr(comparison, "run_at_both_points", counted)
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
    monkeypatch.setattr(comparison, "_MAX_TOKENS", 0)
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
