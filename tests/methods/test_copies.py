"""Maps averaged over copies: the mean of single explanations, books that add up, the same copies every time."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from small_networks import TOP, Net, batch

BOX = dt.Box(0, 1)


def explainer(**settings: Any) -> dt.Explainer:
    return dt.Explainer(Net().double().eval(), batch(), BOX, method="deep-taylor", **settings)


def brighter(x: Tensor, k: int) -> Tensor:
    return (x * (1 - 0.1 * k)).clamp(0, 1)


def test_it_is_the_mean_of_the_single_explanations() -> None:
    own, x = explainer(), batch()
    e = dt.average_copies(own, x, TOP, copies=3, alter=brighter, batch=6)
    single = [own.explain(brighter(x, k), TOP) for k in range(3)]
    wanted = torch.stack([s.relevance for s in single]).mean(0)
    assert float((e.relevance - wanted).abs().max()) <= 1e-14 * float(wanted.max())
    assert torch.allclose(e.score, torch.stack([s.score for s in single]).mean(0), rtol=1e-14)
    assert torch.allclose(e.ledger.entries, torch.stack([s.ledger.entries for s in single]).mean(0), rtol=1e-12)
    assert torch.allclose(e.at("mul"), torch.stack([s.at("mul") for s in single]).mean(0), rtol=1e-12)


@pytest.mark.parametrize("bias", ["returned", "neuron", "spread"])
def test_the_mean_ledger_adds_up_to_the_mean_score(bias: str) -> None:
    e = dt.average_copies(explainer(bias=bias), batch(), TOP, copies=5)
    assert float((e.ledger.total - e.score).abs().max()) <= 1e-12 * float(e.score.max())
    assert e.check().accounted
    assert e.check().conservative == (bias == "spread")
    assert torch.allclose(e.relevance.flatten(1).sum(1), e.ledger.input)


def test_the_same_seed_gives_the_same_map_whatever_the_batch() -> None:
    own, x = explainer(), batch()
    first = dt.average_copies(own, x, TOP, copies=4, batch=1)
    assert torch.allclose(dt.average_copies(own, x, TOP, copies=4, batch=12).relevance, first.relevance, rtol=1e-12)
    assert not torch.allclose(dt.average_copies(own, x, TOP, copies=4, seed=1).relevance, first.relevance, rtol=1e-3)


def test_noise_has_the_size_that_was_asked_for_and_stays_in_the_box() -> None:
    seen: list[Tensor] = []

    class Seen(dt.Explainer):
        def explain(self, x: Any, target: Any = None) -> dt.Explanation:
            seen.append(x)
            return super().explain(x, target)

    x = torch.full((1, 400), 5.0)
    x[0, 0] = 20.0
    dt.average_copies(Seen(nn.Linear(400, 2), x, dt.Box(0, 20)), x, 0, copies=8, noise=0.05)
    noisy = torch.cat(seen[1:])
    assert noisy.shape == (8, 400)
    assert float((noisy[:, 1:] - 5).std()) == pytest.approx(0.05 * 20, rel=0.05)
    assert float(noisy.max()) <= 20
    seen.clear()
    dt.average_copies(Seen(nn.Linear(400, 2), x, dt.NonNegative()), x, 0, copies=8, noise=0.5)
    assert float(torch.cat(seen[1:]).min()) == 0.0  # of the range 5 … 20, with what would be negative set to 0


def test_without_noise_it_is_the_explanation_itself() -> None:
    own = explainer()
    e, plain = dt.average_copies(own, batch(), copies=2, noise=0), own.explain(batch())
    assert torch.allclose(e.relevance, plain.relevance, rtol=1e-12)
    assert torch.equal(e.classes, plain.classes)  # the top class of the input itself


def test_copies_without_a_positive_score_count_as_nothing() -> None:
    # f = x0 − 1 at 3 − 2k: scores 2, 0, −2; the map of the first alone is not empty.
    f = nn.Linear(2, 1)
    with torch.no_grad():
        f.weight.copy_(torch.tensor([[1.0, 0.0]]))
        f.bias.fill_(-1.0)
    x = torch.tensor([[3.0, 1.0]])
    e = dt.average_copies(dt.Explainer(f, x), x, copies=3, alter=lambda t, k: t - torch.tensor([2.0 * k, 0.0]))
    assert e.score.tolist() == pytest.approx([2 / 3])
    assert e.check().accounted
    assert "2 of 3 scores of copies are not positive and count as 0 in the mean." in e.notes
    nothing = dt.average_copies(dt.Explainer(f, x), x, copies=2, alter=lambda t, k: t * 0)
    assert nothing.score.tolist() == [-1.0]
    assert not nothing.relevance.any()


def test_several_targets_and_several_inputs() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a[:, :3] + b

    pair = torch.rand(2, 4), torch.rand(2, 3)
    two = dt.Explainer(Two(), pair, (dt.NonNegative(), BOX))
    e = dt.average_copies(two, pair, torch.tensor([[0, 1], [1, 2]]), copies=3)
    assert [tuple(R.shape) for R in e.relevance] == [(2, 2, 4), (2, 2, 3)]
    assert float((e.ledger.total - e.score).abs().max()) < 1e-5
    one_by_one = dt.average_copies(two, pair, torch.tensor([[0, 1], [1, 2]]), copies=3, batch=1)
    assert torch.allclose(e.score, one_by_one.score)
    margins = dt.average_copies(two, pair, dt.margin(torch.tensor([0, 1]), 2), copies=3)
    assert margins.relevance[0].shape == (2, 4)


def test_it_says_what_it_is_and_can_be_saved() -> None:
    e = dt.average_copies(explainer(), batch(1), TOP, copies=3)
    assert "Map, score and ledger are means over 3 noisy copies of the input." in str(e)
    assert "mean of 3 noisy copies" in repr(e)
    assert "the mean of 3 noisy copies" in e._repr_html_()
    assert re.search(r"^Relevance for class 7 \(mean score of 3 noisy copies [\d.]+\)$", e.plot(size=6).get_suptitle())
    again = pickle.loads(pickle.dumps(e))
    assert again.mean_of == "3 noisy copies"
    assert e.check(faithful=True).flipping is not None  # asked of the input itself


def test_what_makes_no_sense_is_refused() -> None:
    own, x = explainer(), batch()
    with pytest.raises(dt.InputError, match="copies=0: it must be a whole number, at least 1"):
        dt.average_copies(own, x, copies=0)
    with pytest.raises(dt.InputError, match="noise=-1"):
        dt.average_copies(own, x, noise=-1)
    with pytest.raises(dt.InputError, match="shaped like the inputs"):
        dt.average_copies(own, x, alter=lambda t, k: t[:1])
    tokens = dt.Explainer(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), torch.tensor([[1, 2]]))
    with pytest.raises(dt.InputError, match="integers, to which noise cannot be added"):
        dt.average_copies(tokens, torch.tensor([[1, 2]]))
