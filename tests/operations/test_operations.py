"""Every operation of the list on the path of relevance: the ledger closes, R ≥ 0, samples do not touch each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.maps import ops
from operation_cases import (
    ATTENTION,
    BATCH,
    BY_NAME,
    FEATURES,
    NETWORKS,
    POOLING,
    REDUCTIONS,
    Attention,
    close,
    explainer_of,
    network_of,
    sdpa,
)

pytestmark = pytest.mark.usefixtures("export_once")


def check_explanation(explainer: dt.Explainer, x: Tensor, score: Tensor, bias: str, constants: bool) -> dt.Explanation:
    """The ledger closes at every step, R ≥ 0, nothing is dropped, and each sample is explained as if it were alone."""
    e = explainer.explain(x)
    f = e.score
    assert close(f, score, f), "the rewritten network computes something else"
    assert float(f.min()) >= 0
    assert float(f.max()) > 0
    assert close(e.ledger.total, f, f), e.ledger.table()
    arrived, went_on, taken, dropped = e.ledger.entries.unbind(1)
    assert close(arrived, went_on + taken + dropped, f), e.ledger.table()
    assert float(dropped.abs().max()) <= 1e-9 * float(f.max()), e.ledger.table()
    assert float(taken.min()) >= 0, e.ledger.table()
    assert float(e.relevance.min()) >= 0
    if bias == "spread" and not constants:
        assert close(e.ledger.input, f, f), e.ledger.table()
    for k in range(len(x)):
        alone = explainer.explain(x[k : k + 1])
        assert close(alone.relevance[0], e.relevance[k], f)
        assert close(alone.ledger.bias[0], e.ledger.bias[k], f)
    return e


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize(("name", "signed"), NETWORKS, ids=lambda v: {True: "real", False: "x>=0"}.get(v, v))
def test_relevance_through(name: str, signed: bool, bias: str) -> None:
    network, explainer = network_of(name, signed), explainer_of(name, signed, bias)
    x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        score = network(x).amax(1)
    check_explanation(explainer, x, score, bias, BY_NAME[name].constants)


@pytest.mark.parametrize("bias", ["neuron", pytest.param("spread", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(BY_NAME))
def test_negative_relevance_through(name: str, bias: str) -> None:
    """Below an ε rule relevance has both signs, and the ledger closes at every step all the same."""
    x = torch.randn(16, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    explainer = dt.Explainer(network_of(name, True), x[:1], bias=bias, rules={"head": dt.rules.Epsilon(1e-3)})
    e = explainer.explain(x)
    if bias == "neuron":  # a few operations have units of one sign where the bias is spread
        assert any(float(explainer.relevance_at(row[0], x).min()) < 0 for row in e.ledger.rows[1:])
    arrived, went_on, taken, dropped = e.ledger.entries.unbind(1)
    assert close(arrived, went_on + taken + dropped, arrived), e.ledger.table()


@pytest.mark.parametrize("name", [case.name for case in ATTENTION if "scaled" in case.name])
def test_attention_in_whole_units_of_memory_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU rows of attention are made longer, and read as if they were not."""
    x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain = explainer_of(name, True, "neuron").explain(x)
    monkeypatch.setattr(ops, "spare_columns", lambda k: 5)
    wide = dt.Explainer(network_of(name, True), x[:1], bias="neuron").explain(x)
    assert close(wide.score, plain.score, plain.score)
    assert close(wide.relevance, plain.relevance, plain.score)


def shares_of(values: Tensor, is_max: bool, bias: str, winner: bool) -> Tensor:
    """What each member of one window takes of its relevance (docs/theory.md, section 6)."""
    if not is_max:
        return values.abs()
    if not winner and float(values.max()) > 0:
        return values.clamp(min=0)
    if not winner and float(values.max()) == 0 and bias == "spread":
        return torch.ones_like(values)
    return F.one_hot(values.argmax(), len(values)).double()


WINDOWS = [c.name for c in [*POOLING, *REDUCTIONS] if "max" in c.name or ("lp" in c.name and "order" not in c.name)]


@pytest.mark.parametrize("mode", ["neuron", "spread", "winner"])
@pytest.mark.parametrize("name", WINDOWS)
def test_pooling_shares_within_each_window(name: str, mode: str) -> None:
    """Window by window; the members of a window are the elements that alone make its output 1."""
    bias, winner = ("neuron", True) if mode == "winner" else (mode, False)
    for signed in (True, False) if (name, False) in NETWORKS else (True,):
        network = network_of(name, signed)
        explainer = explainer_of(name, signed, bias, "winner" if winner else "proportional")
        x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            a = network.activation(network.stem(x))
            member = network.op(torch.eye(a.shape[1], dtype=a.dtype).unflatten(1, network.shape)).flatten(1) > 0
        R = explainer.relevance_at("op", x).flatten(1)
        expected = torch.zeros_like(a)
        for k in range(BATCH):
            for j in range(R.shape[1]):
                inside = member[:, j]
                shares = shares_of(a[k, inside], "max" in name, bias, winner)
                expected[k, inside] += R[k, j] * shares / shares.sum().clamp(min=1e-300)
        assert float(R.sum()) > 0
        torch.testing.assert_close(explainer.relevance_at("activation", x), expected, rtol=0, atol=1e-12)


class Tokens(nn.Module):
    """Embeddings, positions and one layer of attention; the mean over the tokens is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(5, 4)
        self.attention = Attention(4, 2, sdpa)
        self.head = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.head.weight[1] = -self.head.weight[0]

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head((h + self.attention(h)).mean(1))


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_relevance_through_embedding(bias: str) -> None:
    torch.manual_seed(0)
    network = Tokens().double().eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 6, 1, 0, 0], [0, 3, 3, 3, 2]])
    explainer = dt.Explainer(network, tokens[:1], bias=bias)
    with torch.no_grad():
        score = network(tokens).amax(1)
    e = check_explanation(explainer, tokens, score, bias, constants=True)
    assert e.relevance.shape == tokens.shape
    assert float(e.relevance.sum()) > 0
    # A token's relevance is the sum over its vector.
    assert close(e.at("embedding").sum(-1), e.relevance, e.score)


# --- tokens and casts -----------------------------------------------------------------------------------------------


class Picked(nn.Module):
    """An embedding of tokens on which something was done first."""

    def __init__(self, first: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.hidden, self.out = nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 2)
        self.double()
        self.first = first

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.embedding(self.first(tokens)))).mean(1))


SOME_TOKENS = torch.tensor([[1, 2, 3], [8, 0, 5]])


@pytest.mark.parametrize(
    "first",
    [lambda t: t.long(), lambda t: t.to(torch.int64), lambda t: t.to(t.device), lambda t: t.reshape(-1, 3).clone()],
    ids=["long", "to", "device", "reshape"],
)
def test_tokens_that_are_cast_or_rearranged_are_still_the_tokens(first: Callable[[Tensor], Tensor]) -> None:
    plain = dt.explain(Picked(lambda t: t), SOME_TOKENS, target=dt.margin(), bias="neuron")
    assert (plain.ledger.input > 0).any()
    e = dt.explain(Picked(first), SOME_TOKENS, target=dt.margin(), bias="neuron")
    assert torch.equal(e.relevance, plain.relevance)


def test_relevance_reaches_the_tokens_that_were_sliced() -> None:
    e = dt.explain(Picked(lambda t: t[:, 1:]), SOME_TOKENS, target=dt.margin(), bias="neuron")
    alone = dt.explain(Picked(lambda t: t), SOME_TOKENS[:, 1:], target=dt.margin(), bias="neuron")
    assert not e.relevance[:, 0].any()
    assert torch.equal(e.relevance[:, 1:], alone.relevance)


@pytest.mark.parametrize("first", [lambda t: t + 0, lambda t: t.abs(), lambda t: t % 9], ids=["+ 0", "abs", "%"])
def test_an_embedding_of_computed_numbers_is_refused(first: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(dt.UnsupportedOpError, match="an embedding of numbers computed from the input, not of"):
        dt.explain(Picked(first), SOME_TOKENS, target=dt.margin(), bias="neuron")


def test_a_cast_that_does_nothing_changes_nothing() -> None:
    class Cast(nn.Module):
        def __init__(self, cast: bool) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.norm, self.hidden, self.out, self.cast = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 2), cast

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return self.out(torch.relu(self.hidden(y.float().to(y.device) if self.cast else y)))

    x = torch.linspace(-1, 2, 8).reshape(2, 4)
    plain, cast = (dt.explain(Cast(c), x, target=dt.margin(), bias="neuron").relevance for c in (False, True))
    assert plain.any()
    assert torch.equal(plain, cast)
