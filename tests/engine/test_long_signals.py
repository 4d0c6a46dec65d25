"""Memory grows with the length of a signal and with the area of a picture, and not with the square of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.bias_redistribution import FeatureMap, _find_overlap, _give_to_pixels, _has_arrived
from deeptaylor.maps.linear_map import Separable
from live_memory import peak_of

WIDTH = 4  # channels
MOST = 300e6  # bytes above those of the network, at 60,000 samples


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def behind(*layers: nn.Module | Callable[[Tensor], Tensor], channels: int = WIDTH) -> nn.Module:
    """Layers between two convolutions, and an average over the whole signal."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(1, WIDTH, 7, padding=3), nn.ReLU(),
        *[layer if isinstance(layer, nn.Module) else Apply(layer) for layer in layers],
        nn.Conv1d(channels, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(WIDTH, 3),
    ).eval()  # fmt: skip


def wrapped(mode: str) -> nn.Module:
    return nn.Conv1d(WIDTH, WIDTH, 5, padding=2, padding_mode=mode)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "average over all": behind,
    "average of 4": lambda: behind(nn.AvgPool1d(4)),
    "average of 25 at every sample": lambda: behind(nn.AvgPool1d(25, 1, 12)),
    "average of 5, padding left out": lambda: behind(nn.AvgPool1d(5, 2, 2, True, False)),
    "adaptive average": lambda: behind(lambda x: F.adaptive_avg_pool1d(x, x.shape[-1] // 3)),
    "adaptive average of 7": lambda: behind(nn.AdaptiveAvgPool1d(7)),
    "maximum of 4": lambda: behind(nn.MaxPool1d(4)),
    "maximum of 3, overlapping": lambda: behind(nn.MaxPool1d(3, 2, 1)),
    "maximum, dilated": lambda: behind(nn.MaxPool1d(3, 2, 1, dilation=2)),
    "adaptive maximum": lambda: behind(lambda x: F.adaptive_max_pool1d(x, x.shape[-1] // 3)),
    "adaptive maximum of 7": lambda: behind(nn.AdaptiveMaxPool1d(7)),
    "L2 norm of 4": lambda: behind(nn.LPPool1d(2, 4)),
    "nearest": lambda: behind(nn.Upsample(scale_factor=2)),
    "nearest-exact, shortened": lambda: behind(nn.Upsample(scale_factor=0.3, mode="nearest-exact")),
    "linear": lambda: behind(nn.Upsample(scale_factor=2, mode="linear")),
    "linear, corners": lambda: behind(nn.Upsample(scale_factor=1.5, mode="linear", align_corners=True)),
    "linear, shortened": lambda: behind(nn.Upsample(scale_factor=0.5, mode="linear")),
    "transposed convolution": lambda: behind(nn.ConvTranspose1d(WIDTH, WIDTH, 4, 2), nn.ReLU()),
    "strided and dilated": lambda: behind(nn.Conv1d(WIDTH, WIDTH, 4, 2, dilation=3), nn.ReLU()),
    "group norm": lambda: behind(nn.GroupNorm(2, WIDTH)),
    "layer norm": lambda: behind(lambda x: F.layer_norm(x, x.shape[-1:])),
    "batch norm": lambda: behind(nn.BatchNorm1d(WIDTH)),
    "reflect": lambda: behind(wrapped("reflect")),
    "circular": lambda: behind(wrapped("circular")),
    "replicate": lambda: behind(wrapped("replicate")),
    "frames": lambda: behind(lambda x: x[..., : x.shape[-1] // 8 * 8].unflatten(-1, (-1, 8)).mean(-1)),
    "every third": lambda: behind(lambda x: x[..., torch.arange(0, x.shape[-1], 3)]),
    "repeated": lambda: behind(lambda x: x.repeat_interleave(2, -1)),
    "squeeze and excite": lambda: behind(lambda x: x * x.mean(-1, keepdim=True).sigmoid()),
    "joined": lambda: behind(lambda x: torch.cat([x, x.flip(-1)], 1), channels=2 * WIDTH),
    "weighted average": lambda: behind(lambda x: x * x.softmax(-1)),
}


def everything(network: nn.Module, x: Tensor) -> None:
    """All that the user may call, the capture included."""
    explainer = dt.Explainer(network, domain=dt.NonNegative())
    explainer.explain(x, 0)
    explainer(x, 0)
    explainer.contrast(x, 0)
    explainer.between(x, "zeros", 0)


def above(network: nn.Module, *shape: int) -> int:
    """The most bytes that tensors take at once beyond those of the network's own forward pass."""
    x = torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = peak_of(lambda: network(x))
    return peak_of(lambda: everything(network, x)) - own


@pytest.mark.parametrize("name", NETWORKS)
def test_memory_is_linear_in_the_length(name: str) -> None:
    network = NETWORKS[name]()
    assert above(network, 16_000) <= 6 * above(network, 4_000)  # 4 times the length; squared 16


@pytest.mark.parametrize("name", ["average over all", "average of 4", "maximum of 4"])
def test_a_signal_of_60000_samples_needs_little(name: str) -> None:
    assert above(NETWORKS[name](), 60_000) <= MOST


@pytest.mark.parametrize(
    "pool",
    [nn.Identity(), nn.AvgPool2d(2), nn.MaxPool2d(3, 2), nn.AdaptiveMaxPool2d(100), nn.Upsample(scale_factor=2)],
    ids=lambda pool: type(pool).__name__,
)
def test_memory_is_linear_in_the_area_of_a_picture(pool: nn.Module) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), pool, nn.Conv2d(2, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2, 3),
    ).eval()  # fmt: skip
    assert above(network, 512, 512) <= 24 * above(network, 128, 128)  # 16 times the area; squared 256


# --- large matrices of averages and of interpolation ------------------------------------------------------------------

LONG = 700
RESIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "average": lambda x: F.avg_pool1d(x, 3, 1, 1),
    "average, uneven": lambda x: F.avg_pool1d(x, 6, 1, 3, True, False),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x, 411),
    "adaptive, longer": lambda x: F.adaptive_avg_pool1d(x, 999),
    "nearest": lambda x: F.interpolate(x, 1900),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=0.7, mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x, scale_factor=2.3, mode="linear"),
    "linear, corners": lambda x: F.interpolate(x, 401, mode="linear", align_corners=True),
}
READINGS: dict[Any, Callable[[Tensor], Tensor]] = {
    "signed": lambda W: W,
    "squared": lambda W: W * W,
    "flat": lambda W: (W != 0).to(W.dtype),
}


@pytest.mark.parametrize("name", RESIZED)
def test_large_matrices_are_those_of_the_operation_in_every_reading(name: str) -> None:
    network = nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU(), Apply(RESIZED[name]), nn.Flatten()).double()
    explainer = dt.Explainer(network, torch.rand(1, 1, LONG, dtype=torch.float64), dt.NonNegative())
    built = next(module for module in explainer.modules() if isinstance(module, Separable))
    assert not any(isinstance(matrix, Tensor) and len(matrix) > 1 for matrix in built.matrices)
    W = RESIZED[name](torch.eye(LONG, dtype=torch.float64).unsqueeze(0))[0].T
    x, s = torch.rand(2, 3, LONG, dtype=torch.float64), torch.rand(2, 3, len(W), dtype=torch.float64)
    for reading, read in READINGS.items():
        y, back = built.map(reading, [x], None), built.transpose(reading, s, None)[0]  # type: ignore[arg-type]
        assert y is not None
        assert back is not None
        torch.testing.assert_close(y, x @ read(W).T, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(back, s @ read(W), rtol=1e-12, atol=1e-12)


# --- places and the pixels under them ---------------------------------------------------------------------------------


def dense(places: int, pixels: int) -> Tensor:
    """(pixels, places): linear interpolation between the centres of places."""
    at = (torch.arange(pixels, dtype=torch.float64) + 0.5) * (places / pixels) - 0.5
    return (1 - (at.clamp(0, places - 1)[:, None] - torch.arange(places)).abs()).clamp(min=0)


@pytest.mark.parametrize("places", [1, 2, 3, 7, 14, 99, 224])
@pytest.mark.parametrize("pixels", [1, 2, 7, 28, 100, 224, 225])
def test_shares_of_places_are_those_of_a_dense_matrix(places: int, pixels: int) -> None:
    generator = torch.Generator().manual_seed(places)
    R = torch.rand(2, pixels, 9, dtype=torch.float64, generator=generator)
    R[0, : pixels // 2] = 0
    P = torch.rand(2, places, 4, dtype=torch.float64, generator=generator)
    B, C = dense(places, pixels), dense(4, 9)
    r = torch.einsum("bxy,xp,yq->bpq", R, B, C)
    absorbed = 3 + torch.rand(2, dtype=torch.float64, generator=generator) * pixels
    total = P.flatten(1).sum(1)
    above = (R.flatten(1).sum(1) + absorbed - total).clamp(min=0)
    w = (P - r).clamp(min=0) + (above / total).reshape(-1, 1, 1) * P
    G = w * (absorbed / w.flatten(1).sum(1)).reshape(-1, 1, 1)
    some = _has_arrived(r, P)
    factor = 1 + torch.einsum("bpq,xp,yq->bxy", torch.where(some, G / torch.where(some, r, 1), 0), B, C)
    (found,), given = _give_to_pixels((R.unsqueeze(1),), (P,), absorbed, 1, FeatureMap({}, frozenset()))
    torch.testing.assert_close(found[:, 0], R * factor, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(given, torch.where(some, G, 0).flatten(1).sum(1), rtol=1e-11, atol=1e-12)


def test_shares_along_a_long_signal_keep_their_digits() -> None:
    (_, by_place), (_, by_pixel) = (
        [part.double() for part in parts] for parts in _find_overlap(59_998, 60_000, torch.zeros(1))
    )
    (_, exact_place), (_, exact_pixel) = _find_overlap(59_998, 60_000, torch.zeros(1, dtype=torch.float64))
    assert float((by_place - exact_place).abs().max()) < 1e-7
    assert float((by_pixel - exact_pixel).abs().max()) < 1e-7
    assert float((exact_pixel.sum(1) - 1).abs().max()) < 1e-15


# --- exported ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["average of 25 at every sample", "adaptive maximum", "linear"])
def test_a_long_signal_exports_with_a_free_batch_size(name: str) -> None:
    explainer = dt.Explainer(NETWORKS[name](), torch.rand(1, 1, 1200), dt.NonNegative())
    free = {0: torch.export.Dim("b")}
    x = torch.rand(2, 1, 1200)
    program = torch.export.export(explainer, (x, 0), dynamic_shapes=(free, None), strict=False)
    for batch in (x, torch.rand(3, 1, 1200)):
        score, relevance = program.module()(batch, 0)
        e = explainer.explain(batch, 0)
        torch.testing.assert_close(score, e.score)
        torch.testing.assert_close(relevance, e.relevance)


@pytest.mark.slow
def test_a_long_signal_compiles_in_one_graph() -> None:
    torch._dynamo.reset()
    explainer = dt.Explainer(
        NETWORKS["adaptive maximum"](), torch.rand(1, 1, 1200), dt.NonNegative(), method="deep-taylor"
    )
    x = torch.rand(2, 1, 1200)
    score, relevance = torch.compile(explainer, fullgraph=True, backend="aot_eager")(x, 0)
    e = explainer.explain(x, 0)
    torch.testing.assert_close(score, e.score)
    torch.testing.assert_close(relevance, e.relevance)


def test_shares_of_places_are_differentiable() -> None:
    R = torch.rand(1, 9, dtype=torch.float64, requires_grad=True)
    P = torch.rand(1, 4, dtype=torch.float64, requires_grad=True)
    absorbed = torch.tensor([5.0], dtype=torch.float64)
    found = FeatureMap({}, frozenset())
    assert torch.autograd.gradcheck(
        lambda R, P: _give_to_pixels((R.unsqueeze(1),), (P,), absorbed, 1, found)[0][0], (R, P)
    )
