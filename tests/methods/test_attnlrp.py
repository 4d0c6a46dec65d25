"""AttnLRP: against the paper's formulas written out, against a gradient with other slopes, and in its account."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
import lxt_here
from deeptaylor.methods.attnlrp import AttnLRP, attnlrp, depends_on_input, find_step
from deeptaylor.operations.table import TABLE, secant_of
from lxt_here import FAMILIES, skip_without

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import text_rivals
from text_network import Llama, LlamaShape, Sentiment, Shape

F64 = torch.float64
Array = npt.NDArray[np.float64]
aten = torch.ops.aten


def explained(network: nn.Module, x: Any, target: Any = None) -> AttnLRP:
    return attnlrp(dt.Explainer(network).make_unplanned(), x, target)


def drawn(network: Any) -> Any:
    """Random weights far from zero, in float64."""
    torch.manual_seed(0)
    for name, p in network.named_parameters():
        nn.init.normal_(p, 1.0 if name.lower().endswith("norm.weight") else 0.0, 0.4)
    return network.to(F64).eval().requires_grad_(False)


# --- the formulas, written out ----------------------------------------------------------------------------------------


class Block(nn.Module):
    """One head of attention, a linear layer behind it, and the mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))).mean(1)
        return found


def _layer(x: Array, layer: nn.Linear) -> tuple[Array, Array, Array]:
    W, b = layer.weight.numpy(), layer.bias.numpy()
    return x @ W.T + b, W, b


def _back(R: Array, x: Array, z: Array, W: Array, b: Array) -> tuple[Array, float]:
    """The ε rule with ε = 0: to x_i its part of z_j, and to the bias its own."""
    into = np.zeros_like(x)
    for t in range(x.shape[0]):
        for j in range(z.shape[1]):
            for i in range(x.shape[1]):
                into[t, i] += x[t, i] * W[j, i] / z[t, j] * R[t, j]
    return into, float((b / z * R).sum())


def written_out(block: Block, x: Array, target: int) -> tuple[Array, float, float]:
    """Relevance of x (tokens, 3), what biases keep, what the softmax leaves out: in relevance, with no gradient."""
    (q, Wq, bq), (k, Wk, bk), (v, Wv, bv) = (_layer(x, layer) for layer in (block.q, block.k, block.v))
    tokens, width = x.shape
    s = q @ k.T / np.sqrt(width)
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    a = p @ v
    z, Wo, bo = _layer(a, block.o)
    R = np.zeros_like(z)
    R[:, target] = z[:, target] / tokens
    Ra, bias = _back(R, a, z, Wo, bo)
    Rp, Rv = np.zeros_like(p), np.zeros_like(v)
    for t in range(tokens):
        for u in range(tokens):
            for d in range(width):
                half = 0.5 * p[t, u] * v[u, d] / a[t, d] * Ra[t, d]
                Rp[t, u] += half
                Rv[u, d] += half
    Rs = s * (Rp - p * Rp.sum(1, keepdims=True))
    Rq, Rk = np.zeros_like(q), np.zeros_like(k)
    for t in range(tokens):
        for u in range(tokens):
            for d in range(width):
                half = 0.5 * q[t, d] * k[u, d] / np.sqrt(width) / s[t, u] * Rs[t, u]
                Rq[t, d] += half
                Rk[u, d] += half
    into = np.zeros_like(x)
    for Rz, z_, W, b in ((Rq, q, Wq, bq), (Rk, k, Wk, bk), (Rv, v, Wv, bv)):
        part, own = _back(Rz, x, z_, W, b)
        into, bias = into + part, bias + own
    return into, bias, float(Rp.sum() - Rs.sum())


def test_a_block_of_attention_is_what_the_formulas_say() -> None:
    block, x = drawn(Block()), torch.randn(2, 4, 3, dtype=F64)
    e = explained(block, x, 1)
    for n in range(2):
        R, bias, left = written_out(block, x[n].numpy(), 1)
        assert np.allclose(e.relevance[n].numpy(), R, rtol=1e-9, atol=1e-12)
        assert float(e.ledger.bias[n]) == pytest.approx(bias, rel=1e-9)
        assert float(e.ledger.residual[n]) == pytest.approx(left, rel=1e-9)
        assert R.sum() + bias + left == pytest.approx(float(e.score[n]), rel=1e-9)
        assert abs(left) > 1e-3  # there is something to leave out


# --- whole networks, by a gradient with other slopes -----------------------------------------------------------------


def test_an_encoder_has_the_map_of_the_rules_as_gradients() -> None:
    network = drawn(Sentiment(Shape(vocabulary=60, width=24, layers=2, heads=4, inner=48, positions=16)))
    tokens = torch.randint(1, 60, (3, 7))
    mask = torch.ones_like(tokens)
    mask[0, 5:] = 0
    e = explained(network, (tokens, mask), [1, 0])
    vectors = network.bert.embeddings.word_embeddings(tokens)
    for k, answer in enumerate((1, 0)):

        def score(v: Tensor, answer: int = answer) -> Tensor:
            found: Tensor = network(v, mask)[:, answer]
            return found

        wanted = text_rivals.lrp(score, vectors, text_rivals.ATTN)
        assert torch.allclose(e.relevance[0][:, k], wanted, atol=1e-7)
    assert float(e.ledger.gap.max()) < 1e-12
    assert not bool(e.relevance[0][0, :, 5:].any())  # what the mask hides has no part


def test_a_language_model_has_the_map_of_the_rules_as_gradients() -> None:
    network = drawn(Llama(LlamaShape(60, 24, 2, 6, 2, 48)))
    tokens = torch.randint(0, 60, (2, 6))
    all_shown = torch.ones_like(tokens)
    e = explained(network, (tokens, all_shown), 3)
    wanted = text_rivals.lrp(lambda v: network(v, all_shown)[:, 3], network.embed_tokens(tokens), text_rivals.ATTN)
    assert torch.allclose(e.relevance[0], wanted, atol=1e-7)
    assert float(e.ledger.gap.max()) < 1e-12
    assert not bool(e.ledger.bias.any())  # a Llama has none


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "rules"),
    [*((family, "attnLRP") for family in FAMILIES), *((family, "cp_LRP") for family in FAMILIES if family != "bert")],
)
def test_it_is_that_of_lxt(family: str, rules: str) -> None:
    """AttnLRP and CP-LRP as their authors have them, where lxt is installed; BERT has no CP-LRP there."""
    skip_without()
    program = [sys.executable, "-W", "ignore", str(Path(lxt_here.__file__)), family, rules]
    subprocess.run(program, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


class WrittenOut(nn.Module):
    """GELU as GPT-2 has it: by a tanh, in operations of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def test_an_activation_that_is_written_out_hands_on_all_it_gets() -> None:
    first, usual, last = drawn(nn.Sequential(nn.Linear(4, 6), nn.GELU(approximate="tanh"), nn.Linear(6, 3)))
    networks = [nn.Sequential(first, act, last).eval() for act in (WrittenOut(), usual)]
    own, usual = (explained(network, values(2, 4), 1) for network in networks)
    assert torch.allclose(own.relevance, usual.relevance, rtol=1e-12)
    assert torch.allclose(own.ledger.bias, usual.ledger.bias, rtol=1e-12)


# --- operations -------------------------------------------------------------------------------------------------------


def accounted(target: Any, *args: Any, **kwargs: Any) -> float:
    """Of a random sum of y: how far relevance and what was recorded are from it, relative to its size."""
    step = find_step(target)
    assert step is not None
    recorded: list[Tensor] = []

    def record(who: str, y: Tensor, part: Tensor) -> None:
        y.register_hook(lambda m: recorded.append(torch.where(m == 0, 0, m * part).sum()))

    y = step(target, args, kwargs, record)
    y = y if isinstance(y, Tensor) else y[0]
    torch.testing.assert_close(y.detach(), _first(target(*args, **kwargs)).detach(), rtol=1e-12, atol=1e-12)
    v = torch.randn(y.shape, dtype=F64, generator=torch.Generator().manual_seed(9))
    leaves = [t for a in args for t in (a if isinstance(a, list) else [a]) if depends_on_input(t)]
    ms = torch.autograd.grad((v * y).sum(), leaves)
    held = sum(float((m * t.detach()).sum()) for m, t in zip(ms, leaves, strict=True)) + float(sum(recorded))
    wanted = v * y.detach()
    return abs(held - float(wanted.sum())) / float(wanted.abs().sum())


def _first(found: Any) -> Tensor:
    return found if isinstance(found, Tensor) else found[0]


def values(*shape: int, seed: int = 0) -> Tensor:
    made = torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    made.flatten()[0] = 0.0
    return made.requires_grad_()


a, b, c = values(3, 4), values(3, 4, seed=1), torch.randn(3, 4, dtype=F64)
CASES: list[tuple[Any, ...]] = [
    (aten.add.Tensor, a, b), (aten.add.Tensor, a, c), (aten.sub.Tensor, c, a), (aten.mul.Tensor, a, b),
    (aten.mul.Tensor, a, c), (aten.matmul.default, a, values(4, 5)), (aten.div.Tensor, a, b.detach() + 3),
    (aten.linear.default, a, torch.randn(5, 4, dtype=F64), torch.randn(5, dtype=F64)),
    (aten.addmm.default, c[:, :2], a, values(4, 2)), (aten.addmm.default, values(3, 2), a, torch.ones(4, 2, dtype=F64)),
    (aten.einsum.default, "ij,ij,jk->ik", [a, b, values(4, 2)]), (aten.gelu.default, a), (aten.sigmoid.default, a),
    (aten.silu.default, a), (aten.cos.default, a), (aten.pow.Tensor_Scalar, a, 3), (aten.softmax.int, a, -1),
    (aten.log_softmax.int, a, 0), (aten.logsumexp.default, a, [1]), (aten.logsumexp.default, a, [1], True),
    (aten.logaddexp.default, a, b), (aten.logaddexp.default, a, c),
    (aten.masked_fill.Scalar, a, c > 0, 2.0), (aten.where.self, c > 0, a, c), (aten.maximum.default, a, c),
    (aten.minimum.default, a, b), (aten.amax.default, a, [1]), (aten.cat.default, [a, c]), (aten.topk.default, a, 2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_what_goes_on_and_what_is_booked_is_all_of_it(case: tuple[Any, ...]) -> None:
    assert accounted(*case) < 1e-12


def test_attention_with_masks_adds_up() -> None:
    q, k = values(2, 4, 3, 5), values(2, 2, 3, 5, seed=1)
    hidden = torch.zeros(3, 3, dtype=torch.bool).fill_diagonal_(True)
    hidden[2] = False  # a row that attends to nothing
    bias = torch.randn(3, 3, dtype=F64)
    for mask, causal, grouped in ((None, True, True), (hidden, False, True), (bias, False, True)):
        from deeptaylor.maps import ops

        assert accounted(ops.attention_weights, q, k, mask, causal, None, grouped) < 1e-12


def test_divisors_and_deviations_are_constants() -> None:
    for operation in (aten.rsqrt.default, aten.reciprocal.default, aten.std.correction):
        step = find_step(operation)
        assert step is not None
        assert not depends_on_input(step(operation, (a,), {}, lambda *_: None))


def test_what_has_a_secant_has_a_step() -> None:
    """Except masks that differ between two points, and tokens, of which there are none here."""
    packets = {getattr(op, "overloadpacket", op) for op in TABLE}
    missing = {str(op) for op in packets if secant_of(op) is not None and find_step(op) is None}
    assert missing == {
        f"aten.{name}"
        for name in (
            "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "bitwise_not", "logical_and", "bitwise_and", "__and__",
            "logical_or", "bitwise_or", "__or__", "embedding",
        )
    }  # fmt: skip


# --- the answer -------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.det(x).unsqueeze(1)


def test_what_has_no_rule_is_refused_by_name() -> None:
    with pytest.raises(dt.UnsupportedOpError, match=r"AttnLRP has no rule for .*det: the operation is unknown"):
        explained(Odd(), torch.eye(3).expand(2, 3, 3).clone())


def test_scores_below_zero_are_explained_and_samples_are_apart() -> None:
    block, x = drawn(Block()), torch.randn(3, 4, 3, dtype=F64)
    both = explained(block, x, dt.margin(0, 1))
    turned = explained(block, x, dt.margin(1, 0))
    assert torch.allclose(both.relevance, -turned.relevance)
    assert bool((both.score < 0).any() | (turned.score < 0).any())
    assert torch.allclose(explained(block, x[1:2], dt.margin(0, 1)).relevance[0], both.relevance[1])
    top = explained(block, x)
    assert top.classes is not None
    assert torch.equal(top.classes, block(x).argmax(1))


def test_it_says_what_it_leaves_out() -> None:
    e = explained(drawn(Block()), torch.randn(1, 4, 3, dtype=F64), 1)
    assert "left out by softmax" in repr(e.ledger)
    check = e.check()
    assert check.accounted
    assert not check.conservative
    assert "what softmax leaves out add up to the score: yes" in str(check)
    assert "The relevance alone adds up to the score: no" in str(check)
    with pytest.raises(dt.BoundaryError, match="only at the input"):
        e.at("v")
