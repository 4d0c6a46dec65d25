"""What sets a class apart: both parts are never negative, add up to the map, and are what the definition says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import contrast as contrasts
from deeptaylor.engine.target import RIVALS, Against
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.rules.base import SameSignInputs

CLASSES = 12


class Pictures(nn.Module):
    """Two convolutions, an average and a linear layer; most scores are positive."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.last = nn.Linear(16, classes)
        with torch.no_grad():
            self.last.weight *= 20
            self.last.bias += 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(h.mean((2, 3)))


def pictures(batch: int = 3) -> Tensor:
    return torch.rand(batch, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def explainer_of(bias: str = "neuron") -> dt.Explainer:
    return dt.Explainer(Pictures().double(), pictures(), dt.Box(0.0, 1.0), bias=bias)


def rivals_by_hand(z: Tensor, c: int) -> dict[int, float]:
    """The eight largest of the others that are positive, by softmax."""
    others = sorted((k for k in range(len(z)) if k != c and z[k] > 0), key=lambda k: -float(z[k]))[:RIVALS]
    q = torch.softmax(z[others], 0)
    return dict(zip(others, q.tolist(), strict=True))


def by_definition(explainer: dt.Explainer, x: Tensor, c: int, q: dict[int, float], power: float) -> Tensor:
    """The distinctive part of one sample: every rival's map by itself."""
    own = explainer.explain(x, c)
    mixture = sum(w * (e := explainer.explain(x, k)).relevance[0] / e.score[0] for k, w in q.items())
    assert isinstance(mixture, Tensor)
    a, b = (t.sum(0) / t.sum() for t in (own.relevance[0], mixture))
    share = (1 - b / a).clamp(min=0) if power == dt.HARD else (a / (a + b)) ** power
    return own.relevance[0] * share


@pytest.mark.parametrize("power", [1.0, 3.0, dt.HARD])
@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_it_is_what_the_definition_says(bias: str, power: float) -> None:
    explainer, x = explainer_of(bias), pictures()
    c = explainer.contrast(x, power=power)
    with torch.no_grad():
        z = Pictures().double()(x)
    for k in range(len(x)):
        top = int(z[k].argmax())
        q = rivals_by_hand(z[k], top)
        assert dict(c.rivals[k]) == pytest.approx(q, abs=1e-6)
        wanted = by_definition(explainer, x[k : k + 1], top, q, power)
        torch.testing.assert_close(c.relevance[k], wanted, rtol=1e-6, atol=1e-12)


def test_rows_of_a_grey_picture_are_no_channels() -> None:
    """A sample (height, width) without channels: every pixel has its own posterior, as in (1, height, width)."""
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 4)), torch.rand(2, 5, 6)
    with torch.no_grad():
        network[3].bias += 1
    grey = dt.Explainer(network, x, dt.Box(0.0, 1.0)).contrast(x)
    one_channel = dt.Explainer(network, x[:, None], dt.Box(0.0, 1.0)).contrast(x[:, None])
    torch.testing.assert_close(grey.relevance, one_channel.relevance[:, 0])


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_both_parts_are_never_negative_and_add_up(bias: str) -> None:
    explainer, x = explainer_of(bias), pictures()
    plain, c = explainer.explain(x), explainer.contrast(x)
    assert float(c.relevance.min()) >= 0
    assert float(c.shared.min()) >= 0
    assert float(c.relevance.sum()) > 0
    assert float(c.shared.sum()) > 0
    torch.testing.assert_close(c.relevance + c.shared, plain.relevance, rtol=1e-12, atol=1e-15)
    ledger = c.ledger
    assert ledger.shared is not None
    torch.testing.assert_close(ledger.input + ledger.shared + ledger.bias + ledger.dropped, c.score, rtol=1e-12, atol=0)
    assert "distinctive" in str(ledger)
    assert "shared" in str(ledger)
    assert c.check().accounted
    assert ledger.entries.shape == plain.ledger.entries.shape


def test_several_targets_at_once_are_those_one_by_one() -> None:
    explainer, x = explainer_of(), pictures()
    classes = torch.tensor([[0, 2], [5, 9], [0, 5]])
    both = explainer.contrast(x, classes)
    assert both.relevance.shape == (3, 2, 3, 8, 8)
    for k in range(2):
        one = explainer.contrast(x, classes[:, k])
        torch.testing.assert_close(both.relevance[:, k], one.relevance, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(both.shared[:, k], one.shared, rtol=1e-12, atol=1e-15)


def positive_everywhere() -> list[int]:
    with torch.no_grad():
        z = Pictures().double()(pictures())
    top = set(z.argmax(1).tolist())
    return [k for k in range(CLASSES) if bool((z[:, k] > 0).all()) and k not in top]


@pytest.mark.parametrize("form", ["one", "list", "weights", "tensor"])
def test_rivals_that_the_user_names(form: str) -> None:
    a, b = positive_everywhere()[:2]
    q = {"one": {a: 1.0}, "list": {a: 0.5, b: 0.5}, "weights": {a: 0.25, b: 0.75}, "tensor": {a: 0.25, b: 0.75}}[form]
    given: Any = {"one": a, "list": [a, b], "weights": {a: 1.0, b: 3.0}, "tensor": torch.zeros(CLASSES)}[form]
    if form == "tensor":
        given[[a, b]] = torch.tensor([1.0, 3.0])
    explainer, x = explainer_of(), pictures()
    c = explainer.contrast(x, against=given)
    assert dict(c.rivals[0]) == pytest.approx(q)
    top = int(Pictures().double()(x[:1]).argmax())
    torch.testing.assert_close(
        c.relevance[0], by_definition(explainer, x[:1], top, q, contrasts.POWER), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize(
    ("against", "said"),
    [
        (99, "out of range: the network has 12 classes"),
        ("dog", "'dog' is given by name, but this network has no class names"),
        ([], "several classes"),
        ({1: -1.0}, "not all zero"),
        ({1: 0.0}, "not all zero"),
        (torch.rand(5), "one number per class, here 12"),
        ([True], "by number"),
    ],
)
def test_rivals_that_make_no_sense_are_refused(against: Any, said: str) -> None:
    with pytest.raises(dt.TargetError, match=said):
        explainer_of().contrast(pictures(), against=against)


def test_a_rival_without_a_positive_score_has_no_map_to_be_set_against() -> None:
    with torch.no_grad():
        z = Pictures().double()(pictures())
    below = int((z[0] < 0).nonzero()[0])
    with pytest.raises(dt.TargetError, match=rf"Class {below} has the score -.*dt.margin"):
        explainer_of().contrast(pictures(), against=below)


def test_no_class_is_its_own_rival() -> None:
    top = int(Pictures().double()(pictures()).argmax(1)[0])
    with pytest.raises(dt.TargetError, match="the only rival is the class itself"):
        explainer_of().contrast(pictures(1), against=top)


@pytest.mark.parametrize("power", [0.0, -1.0, float("nan")])
def test_a_power_that_is_none(power: float) -> None:
    with pytest.raises(dt.TargetError, match="power must be a positive number"):
        explainer_of().contrast(pictures(), power=power)


def test_weights_and_functions_are_no_classes() -> None:
    with pytest.raises(dt.TargetError, match="compares a class with others"):
        explainer_of().contrast(pictures(), target=torch.rand(3, CLASSES))


def test_one_number_a_sample_has_no_rivals() -> None:
    explainer = dt.Explainer(Pictures(1).double(), pictures(), dt.Box(0.0, 1.0), bias="neuron")
    with pytest.raises(dt.TargetError, match=r"needs rivals.*explain\(x\)"):
        explainer.contrast(pictures())


def test_without_a_positive_rival_nothing_is_shared_and_that_is_said() -> None:
    network = Pictures().double()
    with torch.no_grad():
        network.last.bias -= 20
        network.last.bias[4] += 40
    explainer, x = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), bias="neuron"), pictures()
    c = explainer.contrast(x)
    assert any("no other class has a positive score (sample 0, 1, 2)" in note for note in c.notes)
    assert not c.shared.any()
    assert torch.equal(c.relevance, explainer.explain(x).relevance)


def test_the_difference_is_signed_and_its_size_is_told() -> None:
    explainer, x = explainer_of(), pictures()
    plain, c = explainer.explain(x), explainer.contrast(x)
    assert float(c.difference.min()) < 0 < float(c.difference.max())
    assert float(c.difference.flatten(1).sum(1).abs().max()) < 1e-12
    assert c.apart is not None
    held = plain.relevance.flatten(1).sum(1)
    torch.testing.assert_close(c.difference.abs().flatten(1).sum(1) / 2 / held, c.apart)
    assert bool(((c.apart > 0) & (c.apart < 1)).all())


def test_recomputed_and_copied_it_is_the_same() -> None:
    explainer, x = explainer_of(), pictures()
    c = explainer.contrast(x)
    explainer.recompute()
    again = explainer.contrast(x)
    assert torch.equal(again.relevance, c.relevance)
    twin = copy.deepcopy(explainer).contrast(x)
    assert torch.equal(twin.shared, c.shared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_it_is_the_same() -> None:
    explainer, x = explainer_of(), pictures()
    c, compiled = explainer.contrast(x), explainer.compile().contrast(x)
    # Weights of rivals are those of a softmax in float32.
    torch.testing.assert_close(compiled.relevance, c.relevance, rtol=1e-6, atol=1e-11)
    assert [k for k, _ in compiled.rivals[0]] == [k for k, _ in c.rivals[0]]


def test_what_exports_is_the_distinctive_part() -> None:
    explainer, x = explainer_of(), pictures()
    program = torch.export.export(explainer, (x, Against()))
    score, relevance = program.module()(x, Against())
    c = explainer.contrast(x)
    torch.testing.assert_close(relevance, c.relevance, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(score, c.score)


def test_parts_of_a_batch_are_joined() -> None:
    explainer, x = explainer_of(), pictures(4)
    whole = explainer.contrast(x)
    halves = [explainer.contrast(part) for part in (x[:2], x[2:])]
    torch.testing.assert_close(whole.relevance, torch.cat([h.relevance for h in halves]), rtol=1e-12, atol=1e-15)
    assert [r[0][0] for r in whole.rivals] == [r[0][0] for h in halves for r in h.rivals]


def test_in_bfloat16_it_is_close() -> None:
    x = pictures().float()
    explainer = dt.Explainer(Pictures(), x, dt.Box(0.0, 1.0), bias="spread")
    c = explainer.contrast(x)
    coarse = explainer.to(torch.bfloat16).contrast(x.bfloat16())
    # A map is off by a few per cent; p³ R by what R, three times N_c and three times N_q are off.
    assert float((coarse.relevance.float() - c.relevance).abs().sum() / c.relevance.sum()) < 7 * 0.03
    assert float(coarse.relevance.min()) >= 0


def test_autocast_is_switched_off_and_that_is_said() -> None:
    x = pictures().float()
    explainer = dt.Explainer(Pictures(), x, dt.Box(0.0, 1.0), bias="neuron")
    plain = explainer.contrast(x)
    with torch.autocast("cpu", torch.bfloat16):
        c = explainer.contrast(x)
    assert torch.equal(c.relevance, plain.relevance)
    assert len(c.notes) == len(plain.notes) + 1


def test_an_empty_pixel_is_no_ones() -> None:
    """Where a map is zero so are both of its parts, whatever the rivals have there."""
    own, others = torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[2.0, 0.0, 2.0]])
    rivals = contrasts.Rivals(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), (others,), torch.ones(1))
    result = contrasts.Result(torch.tensor([4.0]), (own,), None, {}, None, rivals)
    # N_c = (0, ¼, ¾), N_q = (½, 0, ½): p = 0, 1, 3/5.
    (distinctive,), (shared,) = contrasts.split_map(result, 1.0)
    torch.testing.assert_close(distinctive, torch.tensor([[0.0, 1.0, 1.8]]))
    torch.testing.assert_close(shared, torch.tensor([[0.0, 0.0, 1.2]]))
    (hard,), _ = contrasts.split_map(result, dt.HARD)
    # 1 − N_q/N_c at the last: 1 − ½/¾ = 1/3 of 3.
    torch.testing.assert_close(hard, torch.tensor([[0.0, 1.0, 1.0]]))


def test_rivals_share_the_denominators_of_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []
    total = SameSignInputs.total

    def count(q: SameSignInputs, R: Tensor) -> Tensor:
        if type(q.W) is AffineMap:  # not that of the score, which is one for each rival
            heads.append(q.W.block.head)
        return total(q, R)

    monkeypatch.setattr(SameSignInputs, "total", count)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    explainer = dt.Explainer(network, domain=dt.NonNegative(), method="deep-taylor")
    explainer.contrast(torch.rand(2, 4), 0)
    assert len(heads) == len(set(heads)) == 2
