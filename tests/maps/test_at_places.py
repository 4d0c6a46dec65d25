"""Local evidence inside a network: a layer behind an average detects at every place, by hand and in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.maps.affine_map import LocalMap
from deeptaylor.maps.at_places import PlacesAsSamples, find_averaged_axes
from deeptaylor.maps.block import Block
from deeptaylor.maps.linear_map import Linear, Reduce, Separable
from deeptaylor.rules.steps import BlockStep, LocalScoreStep, LocalStep
from graphs import Function, Values
from reference import Domain, Graph

PLACES = torch.tensor([[[4.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)  # (1, two channels, two places)


def hidden(
    pool: Callable[[Tensor], Tensor], weight: list[float], bias: float, act: Callable[[Tensor], Tensor] = torch.relu
) -> nn.Module:
    """Two channels, an average, a hidden unit, an activation, and three times that as the score."""
    layer, last = nn.Linear(2, 1), nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weight]))
        layer.bias.fill_(bias)
        last.weight.copy_(torch.tensor([[3.0], [0.0]]))
    network = Function(lambda s, x: s.last(act(s.layer(pool(x)))), layer=layer, last=last)
    return network.double().eval()


def mean(x: Tensor) -> Tensor:
    return x.mean(2)


def explained(network: nn.Module, x: Tensor = PLACES, **settings: object) -> dt.Explanation:
    return dt.Explainer(network, x, dt.NonNegative(), **{"bias": "neuron", **settings}).explain(x, 0)


def local_steps(explainer: dt.Explainer) -> list[LocalStep]:
    return [s for s in explainer.captured.engine.planned.steps if isinstance(s, LocalStep)]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_place_gets_what_it_detects_by_hand() -> None:
    # t = 4 − 1 and 2 − 1, z = 2, f = 6: 3/4 and 1/4 of it. By the average of the first channel it is 4/6 and 2/6.
    e = explained(hidden(mean, [1.0, -1.0], 0.0))
    torch.testing.assert_close(e.relevance, torch.tensor([[[4.5, 1.5], [0, 0]]], dtype=torch.float64))
    e = explained(hidden(mean, [1.0, -1.0], 0.0), local=False)
    torch.testing.assert_close(e.relevance, torch.tensor([[[4.0, 2.0], [0, 0]]], dtype=torch.float64))


def test_a_bias_is_at_every_place_by_hand() -> None:
    # t = 4 and 2, z = 3, f = 9: 6 and 3. Of these 4/5 and 2/3 are the first channel's, the rest is the bias's.
    network = hidden(mean, [1.0, -1.0], 1.0)
    e = explained(network)
    torch.testing.assert_close(e.relevance, torch.tensor([[[4.8, 2.0], [0, 0]]], dtype=torch.float64))
    assert float(e.ledger.bias) == pytest.approx(1.2 + 1)
    assert float(e.ledger.dropped) == 0
    e = explained(network, bias="spread")
    torch.testing.assert_close(e.relevance, torch.tensor([[[6.0, 3.0], [0, 0]]], dtype=torch.float64))


def test_a_unit_below_zero_is_detected_by_what_is_below_zero_by_hand() -> None:
    # φ(z) = −z, z = −1: t = −2 and 0. The first place has it all, of its first channel (2 of 4 − 2).
    x = torch.tensor([[[2.0, 2.0], [0.0, 2.0]]], dtype=torch.float64)
    network = hidden(mean, [-1.0, 1.0], 0.0, lambda z: F.leaky_relu(z, -1.0))
    e = explained(network, x)
    torch.testing.assert_close(e.relevance, torch.tensor([[[3.0, 0.0], [0.0, 0.0]]], dtype=torch.float64))


def test_where_no_place_detects_all_have_the_same() -> None:
    """Relevance that no share in proportion gave to a unit that is silent: by w², of a rule that the user chose."""
    x = torch.tensor([[[1.0, 3.0], [2.0, 4.0]]], dtype=torch.float64)
    network = hidden(mean, [1.0, -1.0], -1.0)
    with torch.no_grad():
        network.last.bias = nn.Parameter(torch.tensor([2.0, 0.0], dtype=torch.float64))
    # t = −2 and −2, f = 2: w² gives all of it to the unit, which hands half to each place, and z⁺ to the first channel.
    e = explained(network, x, rules={"last": dt.rules.WSquare()})
    torch.testing.assert_close(e.relevance, torch.tensor([[[1.0, 1.0], [0.0, 0.0]]], dtype=torch.float64))


def test_units_at_places_average_to_the_unit() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4, 2, 5), torch.randn(6, 4), torch.randn(6)
    for built, y, count in (
        (Reduce("y", ["x"], [2, 3], mean=True), x.mean((2, 3)), 1.0),
        (Reduce("y", ["x"], [2, 3], mean=False), x.sum((2, 3)), 10.0),
        (Separable("y", ["x"], [torch.full((1, 2), 0.25), torch.full((1, 5), 0.2)]), x.mean((2, 3)) / 2, 0.5),
    ):
        z = F.linear(y.flatten(1), weight, bias)
        block = Block("z", [PlacesAsSamples(built, (2, 3)), Linear("z", ["y"], "w", weight, "b")], ["x"])
        run = Values({"x": x, "y": y.flatten(1), "z": z, "w": weight, "b": bias})
        W = LocalMap(block, run, [False], [None], rectified=False, spread=False)
        assert W.z.shape == (30, 6)
        torch.testing.assert_close(W.split_places(W.z).mean(1) * count, z)
        torch.testing.assert_close(W.shares().sum(1), torch.ones(3, 6))
        assert bool(((W.split_places(W.z) * z.unsqueeze(1))[W.shares() > 0] > 0).all())


def test_taken_apart_and_put_together_again() -> None:
    x = torch.randn(2, 3, 4, 5, 6)
    apart = PlacesAsSamples(Reduce("y", ["x"], [1, 3], mean=True), (1, 3))
    run = Values({"x": x, "y": torch.empty(2 * 3 * 5, 4, 6)})
    (y,) = [apart.carry([x], run)]
    assert torch.equal(y[5 + 1], x[0, 1, :, 1])
    (back,) = apart.carry_back(y, run)
    assert torch.equal(back, x)


# --- which averages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("built", "axes"),
    [
        (Reduce("y", ["x"], [-1, 2], mean=True), (2, 3)),
        (Reduce("y", ["x"], [1], mean=False), (1,)),
        (Separable("y", ["x"], [torch.full((1, 4), 0.25)] * 2), (2, 3)),
        (Separable("y", ["x"], [torch.full((2, 4), 0.25)] * 2), ()),
        (Separable("y", ["x"], [torch.tensor([[0.0, 0.5, 0.5, 0.0]])] * 2), ()),  # interpolated to one pixel
        (Linear("y", ["x"], "w", torch.ones(1, 4), None), ()),
        (None, ()),
    ],
)
def test_an_average_has_one_weight_for_whole_axes(built: Reduce | Separable | None, axes: tuple[int, ...]) -> None:
    assert find_averaged_axes(built, 4) == axes


class Inside(nn.Module):
    """Two convolutions, a layer behind an average of what they find, an activation, and classes."""

    def __init__(self, body: Callable[[Inside, Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
        self.layer, self.point, self.last = nn.Linear(8, 8, bias), nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self, F.silu(self.second(torch.relu(self.first(x))))))


def _attention(h: Tensor) -> Tensor:
    return torch.softmax(h.flatten(2) @ h.flatten(2).mT, -1)


APPLIES: dict[str, Callable[[Inside, Tensor], Tensor]] = {
    "mobilenet": lambda s, a: F.hardswish(s.layer(F.adaptive_avg_pool2d(a, 1).flatten(1))),
    "rectified": lambda s, a: torch.relu(s.layer(a.mean((2, 3)))),
    "sum": lambda s, a: F.gelu(s.layer(a.sum((2, 3)) / 10)),
    "pointwise": lambda s, a: F.hardswish(s.point(F.avg_pool2d(a, 4))).flatten(1),
    "context": lambda s, a: (a + F.gelu(s.point(a.mean((2, 3), keepdim=True)))).amax((2, 3)),
}
LEFT: dict[str, Callable[[Inside, Tensor], Tensor]] = {
    "a gate": lambda s, a: (a * torch.sigmoid(s.point(a.mean((2, 3), keepdim=True)))).mean((2, 3)),
    "read twice": lambda s, a: torch.relu(s.layer(m := a.mean((2, 3)))) + m,
    "two averages": lambda s, a: torch.relu(s.layer(a.mean((2, 3))) + s.layer(a.square().mean((2, 3)))),
    "some places": lambda s, a: torch.relu(s.layer(F.adaptive_avg_pool2d(a, 2).flatten(2).mT)).mean(1),
    "repeated": lambda s, a: torch.relu(s.point(a.mean((2, 3), keepdim=True)).expand(a.shape)).mean((2, 3)),
    "rows": lambda s, a: torch.tanh(s.layer(a.mean(3).transpose(1, 2))).mean(1),
    "windows": lambda s, a: torch.relu(s.point(a.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5)))).amax((2, 3)),
    "weights of a sample": lambda s, a: torch.relu((a.mean((2, 3)).unsqueeze(1) @ _attention(s.point(a))).squeeze(1)),
    "groups of neurons": lambda s, a: torch.relu(
        s.layer(a[:, :, 0, 0].repeat(1, 4).relu().unflatten(1, (a.shape[1], 4)).sum(2))
    ),
    "no average": lambda s, a: torch.relu(s.layer(a.amax((2, 3)))),
}


def pictures(batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def explainer_of(body: Callable[[Inside, Tensor], Tensor], **settings: object) -> dt.Explainer:
    return dt.Explainer(Inside(body).double().eval(), pictures(), dt.Box(0.0, 1.0), **settings)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("name", APPLIES)
def test_every_layer_behind_an_average_detects_at_every_place(name: str, bias: str) -> None:
    explainer = explainer_of(APPLIES[name], bias=bias)
    (step,) = local_steps(explainer)
    (row,) = [r for r in explainer.plan.rows if r.node == step.node]
    assert row.why.endswith("each unit at every place.")
    assert row.op.split(" + ")[0] in ("mean", "sum", "avg_pool2d", "adaptive_avg_pool2d")
    e = explainer.explain(pictures())
    assert bool((e.score > 0).all())
    assert float(e.relevance.min()) >= 0
    total = e.relevance.flatten(1).sum(1) + e.ledger.bias + e.ledger.dropped
    torch.testing.assert_close(total, e.score, rtol=1e-12, atol=0)
    assert float(e.ledger.dropped.max()) == 0
    assert bias == "neuron" or float(e.ledger.bias.max()) == 0
    before = explainer_of(APPLIES[name], bias=bias, local=False)
    assert not local_steps(before)
    assert float((before.explain(pictures()).relevance - e.relevance).abs().max()) > 1e-6


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_such_layer_is_left_as_it_is(name: str) -> None:
    assert not local_steps(explainer_of(LEFT[name]))


def films() -> Tensor:
    return torch.rand(2, 3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_frames_of_films_have_places_each() -> None:
    """Samples and frames share an axis there: a hidden layer detects at every place of each frame."""
    network = Inside(lambda s, a: torch.relu(s.layer(a.mean((2, 3)))).unflatten(0, (-1, 3)).amax(1)).double()
    explainer = dt.Explainer(
        Function(lambda s, x: s.network(x.flatten(0, 1)), network=network).eval(),
        films(),
        dt.Box(0.0, 1.0),
        bias="neuron",
    )
    assert len(local_steps(explainer)) == 1
    e = explainer.explain(films())
    torch.testing.assert_close(explainer.explain(films()[1:]).relevance, e.relevance[1:])
    assert e.check().accounted


def test_a_score_of_all_frames_reads_their_averages() -> None:
    """One unit has places of several frames, which the score's block does not tell apart: it is left as it is."""
    network = Function(
        lambda s, x: s.last(torch.relu(s.body(x.flatten(0, 1))).mean((2, 3)).unflatten(0, (-1, 3)).flatten(1)),
        body=nn.Conv2d(3, 4, 3),
        last=nn.Linear(12, 5),
    )
    explainer = dt.Explainer(network.double().eval(), films(), dt.Box(0.0, 1.0), bias="neuron")
    assert not isinstance(explainer.captured.engine.planned.steps[0], LocalScoreStep)
    e = explainer.explain(films())
    torch.testing.assert_close(explainer.explain(films()[1:]).relevance, e.relevance[1:])
    assert e.check().accounted


def test_samples_stay_the_first_axis() -> None:
    """Of one sample and one token, sizes do not tell which axis is which."""
    network = Function(
        lambda s, x: s.last(torch.relu(s.layer(x.reshape(1, 4, 3).mean(1, keepdim=True).transpose(0, 1)))[0]),
        layer=nn.Linear(3, 4),
        last=nn.Linear(4, 2),
    )
    x = torch.rand(1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    explainer = dt.Explainer(network.double().eval(), x, dt.Box(0.0, 1.0), bias="neuron")
    assert explainer.explain(x).check().accounted
    assert not local_steps(explainer)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("act", [torch.relu, F.hardswish, torch.sigmoid], ids=["relu", "hardswish", "sigmoid"])
def test_the_order_of_a_layer_and_an_average_does_not_matter(act: Callable[[Tensor], Tensor], bias: str) -> None:
    first = explainer_of(lambda s, a: act(s.point(F.adaptive_avg_pool2d(a, 1))).flatten(1), bias=bias)
    then = explainer_of(lambda s, a: act(F.adaptive_avg_pool2d(s.point(a), 1)).flatten(1), bias=bias)
    assert len(local_steps(first)) == 1
    assert not local_steps(then)
    a, b = first.explain(pictures()), then.explain(pictures())
    torch.testing.assert_close(a.relevance, b.relevance, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(a.ledger.bias, b.ledger.bias, rtol=1e-10, atol=1e-14)


def test_an_average_with_uneven_weights_is_left_as_it_is() -> None:
    """Of a picture interpolated to one pixel: most places have no weight, and would take the bias's share with them."""
    network = Function(lambda s, x: s.last(F.interpolate(x, size=(1, 1), mode="bilinear").flatten(1)) + 1,
                       last=nn.Linear(3, 4)).double().eval()  # fmt: skip
    explainer = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), bias="spread")
    assert not isinstance(explainer.captured.engine.planned.steps[0], LocalScoreStep)
    torch.testing.assert_close((e := explainer.explain(pictures())).ledger.input, e.score)


def test_a_rule_for_the_average_alone_is_heeded() -> None:
    name, network = "pool", Inside(lambda s, a: F.hardswish(s.layer(s.pool(a).flatten(1)))).double().eval()
    network.add_module(name, nn.AdaptiveAvgPool2d(1))
    explainer = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), rules={name: dt.rules.Flat()}, bias="neuron")
    assert not local_steps(explainer)
    both = {name: dt.rules.Epsilon(0.01), "layer": dt.rules.Epsilon(0.01)}
    (step,) = local_steps(dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), rules=both, bias="neuron"))
    assert isinstance(step, BlockStep)
    assert isinstance(step.rule, dt.rules.Epsilon)


# --- behind a norm ----------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    """A convolution, a norm of its average over places, and classes; or a hidden layer before the classes."""

    def __init__(self, body: Callable[[Normed, Tensor], Tensor], inside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.inside = body, inside
        self.first, self.layer, self.last = nn.Conv2d(3, 6, 3), nn.Linear(6, 7), nn.Linear(7, 5)
        self.norm, self.rms, self.group = nn.LayerNorm(6, 1e-3), nn.RMSNorm(6, 1e-3), nn.GroupNorm(1, 6, 1e-3)
        self.batch = nn.BatchNorm1d(6)
        self.point, self.two = nn.Conv2d(6, 7, 1), nn.GroupNorm(2, 6, 1e-3)
        with torch.no_grad():
            for norm in (self.norm, self.rms):
                norm.weight.copy_(1 + torch.randn(6) / 2)
            for target, source in ((self.norm.bias, 0.3 * torch.randn(6)), (self.batch.running_mean, torch.rand(6))):
                target.copy_(source)
            self.group.load_state_dict(self.norm.state_dict())
            self.point.weight.copy_(self.layer.weight[:, :, None, None])
            self.point.bias.copy_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self, torch.relu(self.first(x)))
        return self.last(F.gelu(y)) if self.inside else y


def _by_squares(s: Normed, m: Tensor) -> Tensor:
    c = m - m.mean(-1, keepdim=True)
    return s.layer(c * torch.rsqrt(c.pow(2).mean(-1, keepdim=True) + s.norm.eps) * s.norm.weight + s.norm.bias)


def _deviation(s: Normed, m: Tensor) -> Tensor:
    return torch.sqrt(m.var(-1, unbiased=False, keepdim=True) + s.norm.eps)


LAYER_NORMS: dict[str, Callable[[Normed, Tensor], Tensor]] = {
    "means": lambda s, a: s.layer(s.norm(a.mean((2, 3)))),
    "convnext": lambda s, a: s.layer(
        s.norm(F.adaptive_avg_pool2d(a, 1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).flatten(1)
    ),
    "tokens": lambda s, a: s.layer(s.norm(a.flatten(2).mT.mean(1))),
    "one token": lambda s, a: s.layer(s.norm(a.flatten(2).mT.mean(1, keepdim=True))).squeeze(1),
    "one group": lambda s, a: s.layer(s.group(a.mean((2, 3)))),
    "one group of maps": lambda s, a: s.layer(s.group(F.adaptive_avg_pool2d(a, 1)).flatten(1)),
    "one group, pointwise": lambda s, a: s.point(s.group(F.avg_pool2d(a, a.shape[-1]))).flatten(1),
    "by hand": lambda s, a: s.layer(
        ((m := a.mean((2, 3))) - m.mean(-1, keepdim=True)) / _deviation(s, m) * s.norm.weight + s.norm.bias
    ),
    "by squares": lambda s, a: _by_squares(s, a.mean((2, 3))),
    "a sum": lambda s, a: s.layer(s.norm(a.sum((2, 3)) / a.shape[-1] ** 2)),
}
RMS_NORMS: dict[str, Callable[[Normed, Tensor], Tensor]] = {
    "module": lambda s, a: s.layer(s.rms(a.mean((2, 3)))),
    "by hand": lambda s, a: s.layer(
        (m := a.mean((2, 3))) * torch.rsqrt(m.pow(2).mean(-1, keepdim=True) + s.rms.eps) * s.rms.weight
    ),
    "by division": lambda s, a: s.layer(
        (m := a.mean((2, 3))) / torch.sqrt((m * m).mean(-1, keepdim=True) + s.rms.eps) * s.rms.weight
    ),
}
NORMS = {f"{kind}: {name}": (kind, body) for kind, bodies in (("layer", LAYER_NORMS), ("rms", RMS_NORMS))
         for name, body in bodies.items()}  # fmt: skip


def normed(body: Callable[[Normed, Tensor], Tensor], inside: bool, **settings: object) -> dt.Explainer:
    network = Normed(body, inside).double().eval()
    return dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), method="deep-taylor", **settings)


def frozen_weights(s: Normed, m: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """W diag(γ) C / σ and W β + b of one sample's average, σ at its value."""
    if kind == "rms":
        return s.layer.weight * s.rms.weight / (m.square().mean() + s.rms.eps).sqrt(), s.layer.bias
    centring = torch.eye(len(m), dtype=m.dtype) - 1 / len(m)
    W = s.layer.weight * s.norm.weight @ centring / (m.var(correction=0) + s.norm.eps).sqrt()
    return W, s.layer.weight @ s.norm.bias + s.layer.bias


def place_by_place(s: Normed, a: Tensor, R: Tensor, units: Tensor, kind: str) -> tuple[Tensor, float]:
    """Section 8 as it stands, for one sample: the relevance of its features, and what the bias neurons absorb."""
    m = a.mean((1, 2))
    W, b = frozen_weights(s, m, kind)
    W, b = units @ W, units @ b
    places = [(i, j) for i in range(a.shape[1]) for j in range(a.shape[2])]
    found, bias = torch.zeros_like(a), 0.0
    for k in range(len(W)):
        t = torch.stack([W[k] @ a[:, i, j] + b[k] for i, j in places])
        sign = 1.0 if t.sum() >= 0 else -1.0
        here = (sign * t).clamp(min=0)
        for share, (i, j) in zip(here / here.sum(), places, strict=True):
            q, beta = (sign * W[k] * a[:, i, j]).clamp(min=0), (sign * b[k]).clamp(min=0)
            if share > 0:
                found[:, i, j] += R[k] * share * q / (q.sum() + beta)
                bias += float(R[k] * share * beta / (q.sum() + beta))
    return found, bias


@pytest.mark.parametrize("inside", [False, True], ids=["score", "inside"])
@pytest.mark.parametrize("name", NORMS)
def test_behind_a_norm_each_place_detects_as_the_definition_says(name: str, inside: bool) -> None:
    kind, body = NORMS[name]
    explainer, x = normed(body, inside, bias="neuron"), pictures()
    s = explainer.model
    step = explainer.captured.engine.planned.steps[0]
    assert len(local_steps(explainer)) == 1 if inside else isinstance(step, LocalScoreStep)
    e = explainer.explain(x)
    with torch.no_grad():
        torch.testing.assert_close(e.score, s(x).amax(1), rtol=1e-12, atol=0)
    found = e.at("relu").detach()
    with torch.no_grad():
        a, target = torch.relu(s.first(x)), s(x).argmax(1)
        for n in range(len(x)):
            units, above = torch.eye(7, dtype=x.dtype), 0.0
            if inside:
                W, b = frozen_weights(s, a[n].mean((1, 2)), kind)
                h = F.gelu(W @ a[n].mean((1, 2)) + b)
                q = (s.last.weight[target[n]] * h).clamp(min=0)
                beta = s.last.bias[target[n]].clamp(min=0)
                R, above = e.score[n] * q / (q.sum() + beta), float(e.score[n] * beta / (q.sum() + beta))
            else:
                units, R = units[target[n]][None], e.score[n][None]
            wanted, bias = place_by_place(s, a[n], R, units, kind)
            torch.testing.assert_close(found[n], wanted, rtol=1e-10, atol=1e-12)
            assert float(found[n].sum()) + bias + above == pytest.approx(float(e.score[n]), rel=1e-10)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("inside", [False, True], ids=["score", "inside"])
@pytest.mark.parametrize("name", NORMS)
def test_behind_a_norm_all_formulations_are_the_same_and_the_ledger_closes(name: str, inside: bool, bias: str) -> None:
    kind, body = NORMS[name]
    usual = LAYER_NORMS["means"] if kind == "layer" else RMS_NORMS["module"]
    for local in (True, False):
        explainer, x = normed(body, inside, bias=bias, local=local), pictures()
        e, first = explainer.explain(x), normed(usual, inside, bias=bias, local=local).explain(x)
        torch.testing.assert_close(e.relevance, first.relevance, rtol=1e-9, atol=1e-12)
        assert float(e.relevance.min()) >= 0
        assert float(e.ledger.dropped.max()) == 0
        total = e.relevance.flatten(1).sum(1) + e.ledger.bias + e.ledger.dropped
        torch.testing.assert_close(total, e.score, rtol=1e-12, atol=0)
        if local:
            relevance = e.relevance
    assert float((relevance - e.relevance).abs().max()) > 1e-6


LEFT_NORMS: dict[str, Callable[[Normed, Tensor], Tensor]] = {
    "several groups": lambda s, a: s.layer(s.two(a.mean((2, 3)))),
    "read twice": lambda s, a: s.layer(s.norm(m := a.mean((2, 3)))) + m.sum(1, keepdim=True),
    "a norm at every place": lambda s, a: s.layer(s.norm(a.movedim(1, -1)).amax((1, 2))),
    "a norm of windows": lambda s, a: s.layer(s.norm(F.adaptive_avg_pool2d(a, 2).flatten(2).mT)).amax(1),
    "a gate per feature": lambda s, a: s.layer((m := a.mean((2, 3))) * torch.sigmoid(m)),
}


@pytest.mark.parametrize("inside", [False, True], ids=["score", "inside"])
@pytest.mark.parametrize("name", LEFT_NORMS)
def test_what_is_no_norm_of_an_average_is_left_as_it_is(name: str, inside: bool) -> None:
    explainer = normed(LEFT_NORMS[name], inside, bias="neuron")
    assert not any(isinstance(s, (LocalScoreStep, LocalStep)) for s in explainer.captured.engine.planned.steps)


def test_a_rule_for_the_average_below_a_norm_is_heeded() -> None:
    body = lambda s, a: s.layer(s.norm(s.pool(a).flatten(1)))  # noqa: E731
    network = Normed(body).double().eval()
    network.add_module("pool", nn.AdaptiveAvgPool2d(1))
    explainer = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), rules={"pool": dt.rules.Flat()}, bias="neuron")
    assert not isinstance(explainer.captured.engine.planned.steps[0], LocalScoreStep)
    explainer = dt.Explainer(network, pictures(), dt.Box(0.0, 1.0), bias="neuron")
    assert isinstance(explainer.captured.engine.planned.steps[0], LocalScoreStep)


def test_behind_a_batch_norm_it_was_local_before() -> None:
    explainer = normed(lambda s, a: s.layer(s.batch(a.mean((2, 3)))), False, bias="neuron")
    assert isinstance(explainer.captured.engine.planned.steps[0], LocalScoreStep)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("inside", [False, True], ids=["score", "inside"])
def test_behind_a_norm_the_reference_agrees(inside: bool, bias: str) -> None:
    explainer, x = normed(LAYER_NORMS["means"], inside, bias=bias), pictures()
    s, graph = explainer.model, Graph()
    h = graph.input("input", Domain("box", 0.0, 1.0))
    h = graph.affine("first", s.first, h, kind="convolution")
    h = graph.activation("relu", torch.relu, h, rectifier=True)
    h = graph.affine("mean", lambda t: t.mean((2, 3)), h, kind="average")
    h = graph.norm("norm", h, 1, s.norm.weight, s.norm.bias, s.norm.eps, kind="layer_norm")
    h = graph.affine("layer", s.layer, h, kind="linear")
    if inside:
        h = graph.activation("gelu", F.gelu, h)
        graph.affine("last", s.last, h, kind="linear")
    wanted, e = graph.explain(x, bias=bias), explainer.explain(x)
    torch.testing.assert_close(e.relevance, torch.from_numpy(wanted.at["input"]), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(e.ledger.bias, torch.from_numpy(wanted.bias), rtol=1e-9, atol=1e-11)
    other = graph.explain(x, bias=bias, local=False)
    assert abs(other.at["input"] - wanted.at["input"]).max() > 1e-6


# --- in every way of running ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True], ids=["score", "inside"])
def test_behind_a_norm_every_way_of_running_is_the_same(inside: bool) -> None:
    explainer, x = normed(LAYER_NORMS["convnext"], inside), pictures()
    before = explainer.explain(x).relevance
    torch.testing.assert_close(explainer.explain(x[1:]).relevance, before[1:], rtol=1e-12, atol=1e-15)
    classes = torch.tensor([[0, 2], [3, 4]])
    both = explainer.explain(x, classes).relevance
    for k in range(2):
        torch.testing.assert_close(both[:, k], explainer.explain(x, classes[:, k]).relevance, rtol=1e-12, atol=1e-15)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(explainer, (x,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(program(pictures(5))[1], explainer(pictures(5))[1], rtol=1e-10, atol=1e-13)
    explainer.recompute()
    assert torch.equal(explainer.explain(x).relevance, before)
    coarse = explainer.to(torch.bfloat16).explain(x.bfloat16()).relevance
    assert float((coarse.double() - before).abs().sum() / before.sum()) < 0.1


def test_several_targets_at_once_are_those_one_by_one() -> None:
    explainer, x = explainer_of(APPLIES["mobilenet"]), pictures()
    classes = torch.tensor([[0, 2], [3, 4]])
    both = explainer.explain(x, classes).relevance
    for k in range(2):
        torch.testing.assert_close(both[:, k], explainer.explain(x, classes[:, k]).relevance, rtol=1e-12, atol=1e-15)


def test_recomputed_it_is_the_same() -> None:
    explainer, x = explainer_of(APPLIES["mobilenet"]), pictures()
    before = explainer.explain(x).relevance
    explainer.recompute()
    assert torch.equal(explainer.explain(x).relevance, before)


def test_exported_for_any_batch_it_is_the_same() -> None:
    explainer, x = explainer_of(APPLIES["mobilenet"], method="deep-taylor"), pictures()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(explainer, (x,), dynamic_shapes=({0: batch},)).module()
    x = pictures(5)
    torch.testing.assert_close(program(x)[1], explainer(x)[1], rtol=1e-10, atol=1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_compiled_it_is_the_same(bias: str) -> None:
    explainer, x = explainer_of(APPLIES["mobilenet"], bias=bias), pictures()
    before = explainer.explain(x).relevance
    torch.testing.assert_close(explainer.compile().explain(x).relevance, before, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_in_few_digits_it_is_close(bias: str, dtype: torch.dtype) -> None:
    explainer, x = explainer_of(APPLIES["mobilenet"], bias=bias), pictures()
    before = explainer.explain(x, 0).relevance
    coarse = explainer.to(dtype).explain(x.to(dtype), 0).relevance
    assert coarse.dtype is dtype
    assert float(coarse.min()) >= 0
    assert float((coarse.double() - before).abs().sum() / before.sum()) < 16 * torch.finfo(dtype).eps
