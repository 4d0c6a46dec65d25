"""A comparison as a flat program: the same numbers as step by step, and nothing is traced that depends on values."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.secant.compare import one
from deeptaylor.secant.traced import Traced


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


def flat(explainer: dt.Explainer) -> Traced:
    return Traced(partial(one, explainer.engine), None)


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
        close(run(x, (reference, mask), target), one(explainer.engine, x, (reference, mask), target))
    assert [program is not None for program in run.programs.values()] == [True]


def test_what_depends_on_values_is_walked() -> None:
    explainer = dt.Explainer(Masks(), tokens())
    run, reference = flat(explainer), torch.zeros(2, 5, dtype=torch.long)
    for seed in range(3):
        close(run((tokens(seed),), (reference,), None), one(explainer.engine, (tokens(seed),), (reference,), None))
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
    (run,) = compiled._runs.values()
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
    Traced(walk, None)((x,), (x + 1,), None)
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()
