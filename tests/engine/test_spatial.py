"""Networks for (batch, …, channels) have the maps of their twins with channels first, in every way to ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.spatial import find_places, read_channels

BOX = dt.Box(0.0, 1.0)


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


PICTURES = drawn(3, 2, 12, 16)


def cnn(act: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Biases take most of the score."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(2, 6, 3), act(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), act(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    nn.init.uniform_(made[0].bias, 0.5, 1.0)
    nn.init.uniform_(made[3].bias, 0.5, 1.0)
    nn.init.uniform_(made[7].bias, 1.0, 2.0)
    return made.double().eval()


class ChannelsLast(nn.Module):
    """A network for (batch, …, channels)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x.movedim(-1, 1))
        return out


def last(t: Tensor) -> Tensor:
    return t.movedim(1, -1).contiguous()


def twins(act: type[nn.Module] = nn.ReLU, **settings: Any) -> tuple[dt.Explainer, dt.Explainer]:
    network = cnn(act)
    return (
        dt.Explainer(network, PICTURES, BOX, **settings),
        dt.Explainer(ChannelsLast(network), last(PICTURES), BOX, **settings),
    )


# --- maps of twins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0, [0, 2]], ids=["one", "several"])
@pytest.mark.parametrize("bias", [None, "neuron", "spread"])
def test_maps_do_not_depend_on_the_axis_of_channels(bias: str | None, target: Any) -> None:
    one, two = twins(bias=bias)
    a, b = one.explain(PICTURES, target), two.explain(last(PICTURES), target)
    assert a.method == b.method == "deep Taylor"
    torch.testing.assert_close(b.relevance.movedim(-1, a.score.ndim), a.relevance)
    torch.testing.assert_close(b.ledger.input, a.ledger.input)


@pytest.mark.parametrize("target", [1, [1, 3]], ids=["one", "several"])
def test_contrasts_do_not_depend_on_the_axis_of_channels(target: Any) -> None:
    one, two = twins()
    a, b = one.contrast(PICTURES, target), two.contrast(last(PICTURES), target)
    for name in ("relevance", "shared", "difference"):
        torch.testing.assert_close(getattr(b, name).movedim(-1, a.score.ndim), getattr(a, name))
    torch.testing.assert_close(b.heatmap(), a.heatmap())
    np.testing.assert_allclose(b.difference_picture(), a.difference_picture())


def test_overlaps_do_not_depend_on_the_axis_of_channels() -> None:
    one, two = twins()
    torch.testing.assert_close(two.explain(last(PICTURES), 0).overlap(), one.explain(PICTURES, 0).overlap())


@pytest.mark.parametrize("kind", ["picture", "signal"])
def test_signals_and_pictures_are_redistributed_alike(kind: str) -> None:
    network, x = cnn(), PICTURES
    if kind == "signal":
        torch.manual_seed(2)
        network, x = (
            nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3)).double(),
            drawn(2, 2, 12),
        )
        nn.init.uniform_(network[0].bias, 0.5, 1.0)
    a = dt.Explainer(network, x, BOX).explain(x, 0)
    b = dt.Explainer(ChannelsLast(network), last(x), BOX).explain(last(x), 0)
    assert a.ledger.returned is not None
    assert float(a.ledger.returned.min()) > 0
    torch.testing.assert_close(b.relevance.movedim(-1, 1), a.relevance)


@pytest.mark.parametrize("method", ["auto", "deep-taylor", "secant", "attnlrp", "sensitivity"])
def test_heatmaps_are_summed_over_channels(method: str) -> None:
    one, two = twins(nn.GELU, method=method)
    a, b = one.explain(PICTURES, 0), two.explain(last(PICTURES), 0)
    assert b.heatmap().shape == (3, 12, 16)
    torch.testing.assert_close(b.heatmap(), a.heatmap())


def test_the_choice_reads_the_axis_of_channels() -> None:
    """Also the share of deep Taylor's map that is the same for an unlikely class."""
    network = cnn(nn.GELU)
    nn.init.uniform_(network[7].weight, 0.9, 1.0)  # classes that hardly differ
    one, two = (dt.Explainer(n, domain=BOX) for n in (network, ChannelsLast(network)))
    for explainer, x in ((one, PICTURES), (two, last(PICTURES))):
        explainer.explain(x)
    assert one.choice is not None
    assert "hardly depends on the class" in one.choice.reason
    assert two.choice == one.choice


def test_pictures_are_drawn_alike(tmp_path: Path) -> None:
    files = []
    for k, (explainer, x) in enumerate(zip(twins(), (PICTURES, last(PICTURES)), strict=True)):
        e = explainer.explain(x, 0)
        files.append(e.save(tmp_path / f"{k}.png", sample=1).read_bytes())
        assert e.drawing(0, 0).heat.shape == (12, 16)
    assert files[0] == files[1]


def test_asking_the_network_hides_the_same_patches() -> None:
    one, two = twins()
    a, b = (e.explain(x, 0).check(faithful=True) for e, x in ((one, PICTURES), (two, last(PICTURES))))
    assert a.flipping is not None
    torch.testing.assert_close(b.flipping, a.flipping)


def test_evaluation_hides_and_fills_the_same_places() -> None:
    network = cnn()
    methods, metrics = ("deep Taylor", "gradient x input", "sensitivity"), ("flipping", "deletion")
    masks = torch.zeros(3, 12, 16, dtype=torch.bool)
    masks[:, :6] = True
    found = [
        dt.evaluate(n, x, methods, (*metrics, "inside"), domain=box, masks=masks)
        for n, x, box in (
            (network, PICTURES, dt.Box(torch.zeros(2, 1, 1), torch.tensor([1.0, 2.0]).reshape(2, 1, 1))),
            (ChannelsLast(network), last(PICTURES), dt.Box(torch.zeros(1, 1, 2), torch.tensor([[[1.0, 2.0]]]))),
        )
    ]
    assert not found[1].failed
    for a, b in zip(found[0].scores, found[1].scores, strict=True):
        assert (a.method, a.metric) == (b.method, b.metric)
        np.testing.assert_allclose(b.values, a.values, rtol=1e-5)


# --- tensors inside the network ---------------------------------------------------------------------------------------


class Inner(nn.Module):
    """Convolution, then a layer at every place, in (batch, rows, columns, channels) or with channels in front."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer, self.head = nn.Conv2d(2, 5, 3, 2), nn.Linear(5, 7), nn.Linear(7, 3)
        nn.init.uniform_(self.layer.bias, 0.5, 1.0)
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.layer(torch.relu(self.first(x)).permute(0, 2, 3, 1)))
        mean = a.mean((1, 2)) if self.channels_last else a.permute(0, 3, 1, 2).mean((2, 3))
        out: Tensor = self.head(mean)
        return out


def test_feature_maps_may_have_their_channels_last() -> None:
    a, b = (dt.Explainer(Inner(k).double(), PICTURES, BOX).explain(PICTURES, 0) for k in (False, True))
    assert a.ledger.returned is not None
    torch.testing.assert_close(b.relevance, a.relevance)
    torch.testing.assert_close(b.ledger.returned, a.ledger.returned)


class Heads(nn.Module):
    """Patches as tokens, one attention of two heads, a mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.qkv, self.head = nn.Conv2d(2, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        out: Tensor = self.head(torch.relu(mixed.transpose(1, 2).flatten(2)).mean(1))
        return out


def test_heads_and_tokens_are_not_rows_and_columns() -> None:
    """(batch, heads, tokens, features) has four axes, as pictures have; the patches in front of it have places."""
    explainer = dt.Explainer(Heads().double(), PICTURES, BOX)
    assert explainer.captured.engine.feature_map is not None
    assert explainer.captured.engine.feature_map.nodes == {"conv2d": (2, 3)}
    assert explainer.captured.engine.feature_map.patches == (4, 4)
    neuron, returned = (
        dt.Explainer(Heads().double(), PICTURES, BOX, bias=bias).explain(PICTURES, 0) for bias in ("neuron", "returned")
    )
    held = [e.heatmap().unflatten(1, (3, 4)).unflatten(3, (4, 4)).sum((2, 4)) for e in (neuron, returned)]
    times = (held[1] / held[0]).nan_to_num(0)  # within a patch, one factor for all pixels
    factor = times.repeat_interleave(4, 1).repeat_interleave(4, 2).unsqueeze(1)
    torch.testing.assert_close(returned.relevance, neuron.relevance * factor)


def seen(function: Callable[[Tensor], Tensor], x: Tensor, channels: int = 1) -> tuple[int, ...] | None:
    """The axes of places of what a function gives; a network behind it reads all of it."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(function(x).flatten(1).shape[1], 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.relu(function(x)).flatten(1))
            return out

    engine = dt.Explainer(Network(), x, method="secant").captured.engine
    relu = next(n for n in engine.captured.graph.nodes if "relu" in n.name)
    return find_places(engine.captured, engine.layout, channels).get(relu.name)


@pytest.mark.parametrize(
    ("function", "places"),
    [
        (lambda x: x * 2, (2, 3)),
        (lambda x: x.transpose(2, 3), (3, 2)),
        (lambda x: x.permute(0, 2, 3, 1), (1, 2)),
        (lambda x: x[:, :, ::2, 1:], (2, 3)),
        (lambda x: torch.nn.functional.max_pool2d(x, 2), (2, 3)),
        (lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1), (2, 3)),
        (lambda x: torch.nn.functional.group_norm(x, 3), (2, 3)),
        (lambda x: torch.nn.functional.layer_norm(x, (8,)), (2, 3)),
        (lambda x: x @ torch.ones(8, 8), ()),
        (lambda x: torch.cat([x, x], 1), (2, 3)),
        (lambda x: x.unsqueeze(1), (3, 4)),
        (lambda x: x.sum(1), (1, 2)),
        (lambda x: x.flatten(2).transpose(1, 2).reshape(-1, 6, 8, 3), (1, 2)),
        (lambda x: x.flatten(2).reshape(-1, 3, 8, 6), ()),  # other rows
        (lambda x: x.flatten(2), ()),
        (lambda x: x.mean(2), ()),
        (lambda x: x.reshape(-1, 3, 2, 3, 8), ()),  # parts of rows
        (lambda x: torch.cat([x.flatten(2)[:, :, :1], x.flatten(2)], 2), ()),  # one token more
    ],
)  # fmt: skip
def test_axes_of_places_are_followed(function: Callable[[Tensor], Tensor], places: tuple[int, ...]) -> None:
    assert seen(function, torch.rand(2, 3, 6, 8)) == places


def test_the_axis_of_channels_is_the_one_that_a_convolution_reads() -> None:
    one, two = twins()
    assert [read_channels(e.captured.engine.captured.inputs[0], 4) for e in (one, two)] == [1, 3]
    linear = dt.Explainer(nn.Linear(3, 2), torch.rand(2, 3))
    assert read_channels(linear.captured.engine.captured.inputs[0], 2) is None
