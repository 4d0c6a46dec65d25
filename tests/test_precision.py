"""Every type against float64, on trained networks, within the documented bounds; what a type cannot do is refused."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.inputs import _survives_bfloat16
from deeptaylor.precision import BOUND

NETWORKS = ("squeezenet1_1", "efficientnet-lite0", "mobilenet_v2")
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def network(name: str) -> tuple[dt.Pretrained, Tensor, Tensor]:
    """A trained network, two pictures of soft coloured blobs, and the classes it sees in them; in float64."""
    known = dt.load(name)
    torch.manual_seed(0)
    known.network.double()
    low, high = (
        torch.as_tensor(b, dtype=torch.float64).reshape(-1, 1, 1) for b in (known.domain.low, known.domain.high)
    )
    blobs = torch.nn.functional.interpolate(
        torch.rand(2, 3, 8, 8).double(), known.preparation.shape[1:], mode="bicubic"
    )
    x = low + blobs.clamp(0, 1) * (high - low)
    with torch.no_grad():
        return known, x, known.network(x).argmax(1)


@functools.cache
def exact(name: str, bias: str) -> Tensor:
    known, x, target = network(name)
    relevance: Tensor = dt.Explainer(known.network, x, known.domain, bias=bias)(x, target)[1]
    return relevance


def off(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).abs().sum() / truth.abs().sum())


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_type_is_within_its_bound_or_refused(name: str, dtype: torch.dtype, bias: str) -> None:
    if dtype is torch.bfloat16 and not _survives_bfloat16():
        pytest.skip("this processor dies of matrix products in bfloat16")
    known, x, target = network(name)
    explainer = dt.Explainer(known.network, x, known.domain, bias=bias).to(dtype=dtype)
    truth = exact(name, bias)
    share = float(truth.sum() / known.network(x).detach().gather(1, target[:, None]).sum())
    if dtype is torch.float16 and share < 1e-3:
        with pytest.raises(dt.InputError, match="float16 cannot hold relevances this small"):
            explainer(x.to(dtype), target)
        with pytest.warns(dt.errors.DeepTaylorWarning, match="computed again in float32"):
            found = explainer.explain(x.to(dtype), target)
        assert any("float16" in note for note in found.notes)
        assert off(found.relevance, truth) < 5e-2  # the picture itself was rounded to float16
        return
    assert off(explainer(x.to(dtype), target)[1], truth) <= BOUND[dtype]


def test_the_bounds_are_in_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()
    for dtype, bound in BOUND.items():
        assert f"{str(dtype)[6:]} | {bound:g}" in text
