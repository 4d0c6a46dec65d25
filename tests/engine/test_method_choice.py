"""Which method answers, what secants explain then, and that every way of calling says the same."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.method_choice import Choice, choose_by_test, pick_better
from deeptaylor.engine.spatial import smooth

SIDE = 24


def pictures(count: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(count, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cnn(activation: type[nn.Module], *end: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 8, 3, 2), activation(), nn.Conv2d(8, 8, 3, 2), activation()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), *end).double().eval()


class Recogniser(nn.Module):
    """Five classes at each of six steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.features, self.layer = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.gelu(self.features(x))
        return self.layer(torch.nn.functional.adaptive_avg_pool2d(y, (1, 6)).flatten(2).mT)


class OneStep(nn.Module):
    def __init__(self, network: nn.Module, step: int) -> None:
        super().__init__()
        self.network, self.step = network, step

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out[:, self.step]


def odds(z: Tensor, c: Tensor) -> Tensor:
    p = z.softmax(1).gather(1, c[:, None])[:, 0]
    return (p / (1 - p)).log()


def against(z: Tensor, c: Tensor, rivals: Tensor) -> Tensor:
    """The logit of c minus the mean logit of the others, weighted by their softmax in `rivals`."""
    others = rivals.scatter(1, c[:, None], float("-inf")).softmax(1)
    return z.gather(1, c[:, None])[:, 0] - (others * z).sum(1)


# --- the choice -------------------------------------------------------------------------------------------------------


def test_rectified_detectors_and_pooling_are_for_deep_taylor() -> None:
    explainer = dt.Explainer(cnn(nn.ReLU), pictures(), dt.Box(0.0, 1.0))
    e = explainer.explain(pictures())
    assert e.method == "deep Taylor"
    assert "rectified detectors and pooling" in e.reason
    assert explainer.choice is not None
    assert not explainer.choice.areas


def test_any_other_network_is_tested_once_on_the_first_inputs() -> None:
    x = pictures()
    explainers = [dt.Explainer(cnn(nn.GELU), x, dt.Box(0.0, 1.0)) for _ in range(2)]
    assert explainers[0].choice is None
    one, two = (e.explain(x) for e in explainers)
    first, second = (e.choice for e in explainers)
    assert first is not None
    assert first == second
    assert set(first.areas) == {"deep-taylor", "secant"}
    assert first.method == pick_better(first.areas)
    assert torch.equal(one.relevance, two.relevance)
    assert "gelu" in one.reason
    assert f"{first.areas['secant']:.2f} by secant" in one.reason
    explainers[0].explain(pictures(seed=5))
    assert explainers[0].choice is first
    named = dt.Explainer(cnn(nn.GELU), x, dt.Box(0.0, 1.0), method=first.method).explain(x)
    torch.testing.assert_close(named.relevance, one.relevance, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("by_rules", "by_secants", "method"),
    [
        (1.0, 0.6, "deep-taylor"),
        (1.0, 0.7, "secant"),
        (0.2, -1.0, "deep-taylor"),
        (0.0, -1.0, "secant"),
        (0, 0, "secant"),
    ],
)
def test_deep_taylor_has_to_be_clearly_ahead(by_rules: float, by_secants: float, method: str) -> None:
    assert pick_better({"deep-taylor": by_rules, "secant": by_secants}) == method


def test_where_deep_taylor_is_blind_to_the_class_secants_answer() -> None:
    torch.manual_seed(0)
    mixing = [nn.Flatten(), nn.Linear(2 * SIDE**2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)]
    network = nn.Sequential(*mixing).double().eval()
    with torch.no_grad():
        for layer in (network[1], network[3], network[5]):
            layer.weight.abs_()
    explainer = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0))
    assert explainer.explain(pictures(1)).method == "secants"  # one input is enough
    choice = explainer.choice
    assert choice is not None
    assert not choice.areas
    by_rules = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), method="deep-taylor")
    share = float(by_rules.explain(pictures(1)).overlap()[0])
    assert share > 0.8
    assert "hardly depends on the class" in choice.reason


def count_tests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of samples of every self-test."""
    tested: list[int] = []

    def counted(*args: Any) -> Choice:
        tested.append(len(args[1]))
        return choose_by_test(*args)

    monkeypatch.setattr("deeptaylor.explainer.choose_by_test", counted)
    return tested


def test_threads_that_share_a_new_explainer_wait_for_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, explainer = count_tests(monkeypatch), dt.Explainer(cnn(nn.GELU))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: explainer.explain(pictures(seed=seed)), range(4)))
    assert tested == [3]
    assert len({e.reason for e in answers}) == 1


def test_functions_of_the_output_need_one_test_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, explainer = count_tests(monkeypatch), dt.Explainer(cnn(nn.GELU))
    for target in (lambda o: o[:, 0] ** 2, lambda o: o[:, 1] ** 2, dt.probability(1), 3):
        explainer.explain(pictures(), target)
    assert tested == [3]


def test_a_unit_decides_nothing_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, explainer = count_tests(monkeypatch), dt.Explainer(cnn(nn.GELU))
    assert "the output has positions" in explainer.explain(pictures(), dt.unit("2", 1)).reason
    assert "both methods were tested" in explainer.explain(pictures(), 1).reason
    assert tested == [3]


def test_after_a_refresh_the_method_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    network, tested = cnn(nn.GELU), count_tests(monkeypatch)
    explainer = dt.Explainer(network)
    explainer.explain(pictures())
    before = explainer.choice
    with torch.no_grad():
        network[0].weight.mul_(-1.5)
    explainer.refresh().explain(pictures())
    assert tested == [3, 3]
    again = dt.Explainer(network)
    again.explain(pictures())
    assert explainer.choice == again.choice != before


def test_an_even_picture_decides_nothing_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, explainer, even = count_tests(monkeypatch), dt.Explainer(cnn(nn.GELU)), torch.ones_like(pictures())
    assert "does not show which is better" in explainer.explain(even).reason
    wanted = dt.Explainer(cnn(nn.GELU))
    wanted.explain(pictures())
    for _ in range(2):
        explainer.explain(pictures())
        assert explainer.choice == wanted.choice
    assert tested == [3, 3, 3]  # of the even picture, of `wanted`, and once more


def test_three_ties_end_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, explainer, even = count_tests(monkeypatch), dt.Explainer(cnn(nn.GELU)), torch.ones_like(pictures())
    reasons = [explainer.explain(even).reason for _ in range(5)]
    assert tested == [3, 3, 3]
    assert ["tested again" in reason for reason in reasons] == [True, True, False, False, False]
    assert explainer.explain(pictures()).reason == reasons[-1]


def test_an_output_with_steps_is_for_deep_taylor() -> None:
    e = dt.Explainer(Recogniser().double(), pictures(), dt.Box(0.0, 1.0)).explain(pictures(), dt.at_step(2))
    assert e.method == "deep Taylor"
    assert "the output has positions" in e.reason


def test_log_odds_are_for_secants() -> None:
    explainer = dt.Explainer(cnn(nn.ReLU), pictures(), dt.Box(0.0, 1.0))
    assert explainer.explain(pictures(), dt.log_odds(1)).method == "secants"
    assert explainer.explain(pictures(), 1).method == "deep Taylor"
    with pytest.raises(dt.TargetError, match="explained by secants"):
        dt.Explainer(cnn(nn.ReLU), pictures(), method="deep-taylor").explain(pictures(), dt.log_odds(1))


# --- what secants explain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, 3, [0, 4], torch.tensor([1, 2, 0])], ids=["top", "one", "several", "each"])
@pytest.mark.parametrize("by_odds", [False, True], ids=["class", "log-odds"])
def test_a_class_of_a_picture_means_against_its_rivals(target: Any, by_odds: bool) -> None:
    network, x = cnn(nn.GELU), pictures()
    with torch.no_grad():
        z, z0 = network(x), network(x.mean((2, 3), keepdim=True).expand_as(x))
    e = dt.Explainer(network, x, method="secant").explain(x, dt.log_odds(target) if by_odds else target)
    if isinstance(target, Tensor):
        classes = target[:, None]
    else:
        classes = z.argmax(1, keepdim=True) if target is None else torch.tensor([target]).reshape(1, -1).expand(3, -1)
    wanted = torch.stack([odds(z, c) if by_odds else against(z, c, z) for c in classes.T], 1)
    before = torch.stack([odds(z0, c) if by_odds else against(z0, c, z) for c in classes.T], 1)
    score, total = e.score.reshape(len(x), -1), e.relevance.flatten(-3).sum(-1).reshape(len(x), -1)
    torch.testing.assert_close(score, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(total, wanted - before, rtol=1e-9, atol=1e-12)
    assert any(("log-odds" if by_odds else "minus the mean logit of its rivals") in note for note in e.notes)


def test_two_classes_are_the_difference_of_their_logits() -> None:
    network, x = nn.Sequential(cnn(nn.GELU), nn.Linear(5, 2).double()), pictures()
    explainer = dt.Explainer(network, x)
    by_odds = explainer.between(x, "mean", dt.log_odds(1)).relevance
    torch.testing.assert_close(by_odds, explainer.between(x, "mean", dt.margin(1, 0)).relevance)


def test_a_logit_is_asked_by_name() -> None:
    network, x = cnn(nn.GELU), pictures()
    explainer = dt.Explainer(network, x, method="secant")
    plain = explainer.between(x, "mean", 2).relevance
    width = SIDE / 16
    asked = explainer.explain(x, dt.logit(2))
    torch.testing.assert_close(asked.relevance, smooth(plain, width, 2))
    with torch.no_grad():
        torch.testing.assert_close(asked.score, network(x)[:, 2])


@pytest.mark.parametrize("end", [(), (nn.Softmax(1),), (nn.LogSoftmax(1),)], ids=["logits", "softmax", "log-softmax"])
@pytest.mark.parametrize("target", [None, 3, [0, 4]], ids=["top", "one", "several"])
def test_a_probability_is_not_set_against_rivals(end: tuple[nn.Module, ...], target: Any) -> None:
    network, x = cnn(nn.GELU, *end), pictures()
    with torch.no_grad():
        p, p0 = (cnn(nn.GELU)(some).softmax(1) for some in (x, x.mean((2, 3), keepdim=True).expand_as(x)))
    classes = p.argmax(1, keepdim=True) if target is None else torch.tensor([target]).reshape(1, -1).expand(3, -1)
    e = dt.Explainer(network, x, method="secant").explain(x, dt.probability(target))
    torch.testing.assert_close(e.score.reshape(3, -1), p.gather(1, classes))
    total = e.relevance.flatten(-3).sum(-1).reshape(3, -1)
    torch.testing.assert_close(total, (p - p0).gather(1, classes), rtol=1e-9, atol=1e-12)
    assert not any("rivals" in note for note in e.notes)


def test_log_odds_are_of_a_softmax() -> None:
    explainer, x = dt.Explainer(cnn(nn.GELU, nn.Sigmoid())), pictures()
    with pytest.raises(dt.TargetError, match=r"ends in sigmoid.*dt\.logit\(c\)"):
        explainer.explain(x, dt.log_odds(1))
    with pytest.raises(dt.TargetError, match="ends in sigmoid"):
        explainer.between(x, "mean", dt.log_odds(1))


def test_after_a_sigmoid_classes_do_not_compete() -> None:
    network, x = cnn(nn.GELU, nn.Sigmoid()), pictures()
    e = dt.Explainer(network, x, method="secant").explain(x, 2)
    with torch.no_grad():
        torch.testing.assert_close(e.score, network(x)[:, 2].logit())


def test_smoothing_is_a_gaussian_that_keeps_the_sum() -> None:
    R = pictures(1)[0] - 0.5
    wide = smooth(R, 1.5, 2)
    wanted = torch.zeros_like(R)
    for i in range(SIDE):
        for j in range(SIDE):
            bell = torch.tensor(
                [[math.exp(-((i - a) ** 2 + (j - b) ** 2) / 4.5) for b in range(SIDE)] for a in range(SIDE)],
                dtype=torch.float64,
            )
            wanted += R[:, i, j, None, None] * bell / bell.sum()
    torch.testing.assert_close(wide, wanted)
    torch.testing.assert_close(wide.sum((1, 2)), R.sum((1, 2)))


def test_a_contrast_is_the_class_minus_its_rivals() -> None:
    network, x = cnn(nn.GELU), pictures()
    with torch.no_grad():
        z, z0 = network(x), network(x.mean((2, 3), keepdim=True).expand_as(x))
    explainer = dt.Explainer(network, x, method="secant")
    for against, q in (
        (None, z.clone().index_fill_(1, torch.tensor(2), float("-inf")).softmax(1)),
        ({0: 3.0, 4: 1.0}, torch.tensor([0.75, 0, 0, 0, 0.25]).double().expand(3, -1)),
    ):
        c = explainer.contrast(x, 2, against)
        torch.testing.assert_close(c.score, z[:, 2] - (q * z).sum(1))
        torch.testing.assert_close(c.relevance.flatten(1).sum(1), c.score - (z0[:, 2] - (q * z0).sum(1)))
        weights = -q.clone()
        weights[:, 2] = 1
        plain = explainer.between(x, "mean", weights).relevance
        torch.testing.assert_close(c.relevance, smooth(plain, SIDE / 10, 2))
        assert "secants" in c.reason
        assert f"weighted by {'their softmax' if against is None else 'the numbers in against='}" in c.notes[0]


@pytest.mark.parametrize("method", ["deep-taylor", "secant"])
def test_a_step_of_a_sequence_is_as_a_network_of_that_step(method: str) -> None:
    network, x = Recogniser().double().eval(), pictures()
    whole = dt.Explainer(network, x, dt.Box(0.0, 1.0), method=method)
    alone = dt.Explainer(OneStep(network, 4), x, dt.Box(0.0, 1.0), method=method, local=None)
    for target, steps in ((None, 4), (3, 4), ([0, 1], 4), (2, torch.tensor([4, 4, 4]))):
        for ask in ("explain", "contrast"):
            one, two = getattr(whole, ask)(x, dt.at_step(steps, target)), getattr(alone, ask)(x, target)
            torch.testing.assert_close(one.score, two.score)
            if method == "secant" or ask == "contrast":
                torch.testing.assert_close(one.relevance.sum((-3, -2, -1)), two.relevance.sum((-3, -2, -1)))
            torch.testing.assert_close(one.relevance, two.relevance)


def test_a_class_is_not_its_own_rival() -> None:
    explainer, x = dt.Explainer(cnn(nn.GELU), pictures(), method="secant"), pictures()
    with pytest.raises(dt.TargetError, match="only rival of class 1 is the class itself"):
        explainer.contrast(x, 1, {1: 1.0})
    explainer.contrast(x, 1, {1: 1.0, 2: 1.0})


def test_after_a_sigmoid_the_test_watches_the_class_alone() -> None:
    def output(some: Tensor) -> Tensor:  # the second class grows with the first
        total = some.sum((1, 2, 3))
        return torch.stack([total, 9 * total], 1)

    x = pictures(1).square()
    maps = {"deep-taylor": x.sum(1), "secant": -x.sum(1)}
    v = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    alone, competing = (choose_by_test(output, x / 90, v, maps, "gelu", flag).areas for flag in (False, True))
    assert alone["deep-taylor"] > 0 > competing["deep-taylor"]


def test_a_step_that_does_not_exist_is_named() -> None:
    explainer, x = dt.Explainer(Recogniser().double().eval(), pictures(), dt.Box(0.0, 1.0)), pictures()
    for target, said in (
        (dt.at_step(6, 0), "6 is out of range: the output has 6 steps"),
        (dt.at_step(0, 5), "5 classes"),
        (dt.at_step(0, lambda o: o), "takes a class"),
        (dt.at_step(torch.tensor([0, 1]), 0), r"integer tensor of shape \(3,\)"),
    ):
        with pytest.raises(dt.TargetError, match=said):
            explainer.explain(x, target)
    with pytest.raises(dt.TargetError, match=r"dt\.at_step"):
        explainer.contrast(x, 0)
    with pytest.raises(dt.TargetError, match=r"\(batch, steps, classes\)"):
        dt.Explainer(cnn(nn.ReLU), x).explain(x, dt.at_step(0, 1))


class ChannelsLast(nn.Module):
    """A network for (batch, …, channels)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x.movedim(-1, 1))
        return out


def signals() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv1d(2, 8, 5, 2), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("ask", [None, [0, 2], dt.probability(1)], ids=["top", "several", "probability"])
@pytest.mark.parametrize("kind", ["picture", "signal"])
def test_channels_may_be_the_last_axis(kind: str, ask: Any) -> None:
    network, x = (cnn(nn.GELU), pictures()) if kind == "picture" else (signals(), pictures()[..., 0])
    first, last = (dt.Explainer(n, domain=dt.Box(0.0, 1.0)) for n in (network, ChannelsLast(network)))
    one, two = first.explain(x, ask), last.explain(x.movedim(1, -1), ask)
    assert one.method == two.method == "secants"
    lead = one.score.ndim
    torch.testing.assert_close(two.relevance.movedim(-1, lead), one.relevance)
    assert first.choice is not None
    assert last.choice is not None
    assert last.choice.areas["secant"] == pytest.approx(first.choice.areas["secant"])
    named = [e.between(part, "blur", 1).relevance for e, part in ((first, x), (last, x.movedim(1, -1)))]
    torch.testing.assert_close(named[1].movedim(-1, 1), named[0])


@pytest.mark.parametrize(
    "permute",
    [
        lambda x: x.permute(0, 3, 1, 2),
        lambda x: x.movedim(-1, 1),
        lambda x: x.transpose(1, 3).transpose(2, 3),
        lambda x: x.swapaxes(1, 3).mT,
    ],
    ids=["permute", "movedim", "transpose", "mT"],
)
def test_the_axis_of_channels_is_read_behind_any_permutation(permute: Any) -> None:
    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = cnn(nn.GELU)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.network(permute(x))
            return out

    x = pictures().permute(0, 2, 3, 1)
    assert dt.Explainer(Permuted(), x).captured.engine.channel_axis == 3
    assert dt.Explainer(cnn(nn.GELU), pictures()).captured.engine.channel_axis == 1


def test_sequences_of_vectors_have_no_usual_reference() -> None:
    network, x = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Flatten(), nn.Linear(20, 3)), torch.rand(2, 5, 6)
    assert "not a picture, nor a signal" in dt.Explainer(network).explain(x).reason
    with pytest.raises(dt.InputError, match=r"none is known for inputs of shape \(2, 5, 6\)"):
        dt.Explainer(network, method="secant").explain(x)


# --- without a rule for an operation ----------------------------------------------------------------------------------


class Tokens(nn.Module):
    """Reads token numbers; logsumexp has no rule of deep Taylor."""

    def __init__(self, end: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.read, self.end = nn.Embedding(20, 6), nn.Linear(6, 3), end

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(ids)
        h = h + h.logsumexp(2, keepdim=True)
        if mask is not None:
            h = h * mask.unsqueeze(-1)
        if self.end is None:
            out: Tensor = self.read(h).sum(1)
            return out
        at = (ids == self.end).int().argmax(1)
        chosen: Tensor = self.read(h.gather(1, at[:, None, None].expand(-1, 1, 6))[:, 0] + h.mean(1))
        return chosen


IDS = torch.tensor([[3, 4, 5, 2, 7], [8, 2, 9, 10, 11]])


def test_tokens_of_a_network_without_rules_are_compared_with_the_mean_embedding() -> None:
    network = Tokens()
    explainer = dt.Explainer(network)
    e = explainer.explain(IDS, 1)
    said = "the mean of the 20 embeddings in place of every token"
    assert "deep Taylor has no rule for logsumexp" in e.reason
    assert said in e.reason
    assert "secants" in e.reason
    assert f"compared with {said}" in e.notes
    vectors = network.embed.weight.detach().mean(0).expand(2, 5, 6)
    torch.testing.assert_close(e.relevance, dt.Explainer(network).between(IDS, vectors, 1).relevance)
    assert dt.Explainer(network, IDS).explain(IDS, 1).reason == e.reason  # captured with an example
    assert dt.Explainer(network, method="secant").explain(IDS, 1).notes[0] == f"compared with {said}"
    assert explainer.explain(IDS[:, :4], 1).reason == e.reason  # of another length
    with pytest.raises(dt.UnsupportedOpError, match="logsumexp"):
        explainer.relevance_at("embed", IDS, 1)
    with pytest.raises(dt.UnsupportedOpError, match="method='secant'"):
        dt.explain(network, IDS, target=1, method="deep-taylor")


def test_what_neither_method_supports_names_no_other() -> None:
    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumprod(2).sum((2, 3))

    with pytest.raises(dt.UnsupportedOpError, match="Secants: There is no secant through cumprod") as info:
        dt.explain(Network(), pictures())
    assert "Deep Taylor may support it" not in str(info.value)
    assert "needs no reference" not in str(info.value)


def test_tokens_that_are_looked_for_by_number_stay() -> None:
    network = Tokens(end=2)
    e = dt.explain(network, IDS, target=1)
    table = network.embed.weight.detach()
    nearest = int((table - table.mean(0)).norm(dim=1).argmin())
    assert f"compare with token {nearest}, whose embedding is next to the mean of all 20" in e.reason
    assert "but 2, which the network looks for by number" in e.reason
    reference = torch.where(IDS == 2, IDS, nearest)
    torch.testing.assert_close(e.relevance, dt.Explainer(network).between(IDS, reference, 1).relevance)
    assert bool((e.relevance[IDS == 2] == 0).all())


def test_masks_stay_in_the_default_reference() -> None:
    mask = torch.ones_like(IDS)
    mask[0, 3:] = 0
    e = dt.explain(Tokens(), (IDS, mask), target=1)
    assert "in place of every token (ids); mask as in the input" in e.reason
    assert bool((e.relevance[0][0, 3:] == 0).all())
    assert bool((e.relevance[1] == 0).all())


def test_without_a_rule_and_a_reference_the_error_says_what_to_give() -> None:
    class Table(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.logsumexp(1, keepdim=True) * torch.ones(2)

    for ask in (lambda: dt.Explainer(Table(), torch.rand(2, 4)), lambda: dt.explain(Table(), torch.rand(2, 4), 0)):
        with pytest.raises(dt.UnsupportedOpError, match=r"logsumexp[\s\S]*method='secant', reference=…"):
            ask()
    assert dt.explain(Table(), torch.rand(2, 4), 0, background=torch.zeros(3, 4)).relevance.shape == (2, 4)


def test_a_network_without_rules_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = torch.export.export

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", count)
    dt.Explainer(Tokens()).explain(IDS, 1)
    once = len(calls)
    calls.clear()
    dt.Explainer(Tokens(), method="secant").explain(IDS, 1)
    assert once == len(calls) > 0


# --- other ways to run ------------------------------------------------------------------------------------------------


def test_deep_taylor_alone_can_be_exported() -> None:
    x = pictures()
    for method, said in (("auto", "no method was chosen"), ("secant", "uses 'secant'"), ("attnlrp", "uses 'attnlrp'")):
        with pytest.raises(dt.InputError, match=f"{said}.*method='deep-taylor'"):
            torch.export.export(dt.Explainer(cnn(nn.GELU), x, method=method), (x,))
    explainer = dt.Explainer(cnn(nn.GELU), x, method="deep-taylor")
    torch.testing.assert_close(torch.export.export(explainer, (x,)).module()(x)[1], explainer(x)[1])


def test_a_plain_call_and_a_copy_answer_by_the_same_method() -> None:
    x = pictures()
    explainer = dt.Explainer(cnn(nn.GELU), x, method="secant")
    wanted = explainer.explain(x, 1)
    score, relevance = explainer(x, 1)
    assert torch.equal(score, wanted.score)
    assert torch.equal(relevance, wanted.relevance)
    again = pickle.loads(pickle.dumps(explainer))
    torch.testing.assert_close(again.explain(x, 1).relevance, wanted.relevance)
    with torch.no_grad():
        explainer.model[0].weight.mul_(1.5)
    explainer.refresh()
    assert float((explainer.explain(x, 1).relevance - wanted.relevance).abs().max()) > 1e-6


@pytest.mark.parametrize("method", ["auto", "secant"])
def test_a_network_may_be_captured_in_inference_mode(method: str) -> None:
    torch.manual_seed(6)
    network, x = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), cnn(nn.GELU)).double().eval(), pictures()
    wanted = dt.Explainer(network, x, method=method).explain(x, 1).relevance
    with torch.inference_mode():
        explainer = dt.Explainer(network, method=method)
        inside = explainer.explain(x, 1).relevance
    for found in (inside, explainer.explain(x, 1).relevance):
        torch.testing.assert_close(found, wanted)
