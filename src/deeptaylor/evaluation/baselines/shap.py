"""Expected gradients (Erion et al., 2021) by the package shap.

Its GradientExplainer takes gradients only, and so knows every network; its DeepExplainer hooks modules, and refuses
some.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.evaluation.baselines.calling import ROWS, SEED, ignore_warnings, select_scores, use_copy
from deeptaylor.support.optional import optional_package

__all__ = ["SAMPLES", "expected_gradients", "load_shap"]

SAMPLES = 32
BLUR = 16  # a picture is made so many times smaller, and large again


def load_shap() -> Any:
    """The package."""
    with ignore_warnings("The set_(bad|under|over) function"):  # of matplotlib's colormaps, while shap is imported
        return optional_package("shap", "This method is shap's", "evaluation")


class _OneScore(nn.Module):
    """The score of one class, (B, 1)."""

    def __init__(self, network: nn.Module, index: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.index, self.dtype = network, index, dtype

    def forward(self, x: Tensor) -> Tensor:
        # shap makes its samples in float32, whatever the network takes.
        return select_scores(self.network(x.to(self.dtype)), self.index.expand(len(x))).unsqueeze(1)


@use_copy
def expected_gradients(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """The mean of (x − x′) ∂f/∂x at random places between x and x′, which is the zero input or x blurred."""
    of_network = load_shap().GradientExplainer
    maps = []
    for k in range(len(x)):
        sample = x[k : k + 1]
        explainer = of_network(_OneScore(network, classes[k], x.dtype), _background(sample), batch_size=ROWS)
        with _numpy_as_it_was():
            values = explainer.shap_values(sample, nsamples=SAMPLES, rseed=SEED)
        maps.append(torch.as_tensor(values[..., 0], dtype=x.dtype, device=x.device))
    return torch.cat(maps)


def _background(sample: Tensor) -> Tensor:
    """What a sample is compared with: zeros, and of a picture also a blurred one."""
    nothing = torch.zeros_like(sample)
    if sample.ndim != 4:
        return nothing
    height, width = (max(1, side // BLUR) for side in sample.shape[2:])
    small = F.adaptive_avg_pool2d(sample, (height, width))
    return torch.cat([nothing, F.interpolate(small, sample.shape[2:], mode="bilinear", align_corners=False)])


@contextlib.contextmanager
def _numpy_as_it_was() -> Iterator[None]:
    """shap seeds numpy's own generator; others may be in the middle of its numbers."""
    state = np.random.get_state()  # noqa: NPY002 - the state itself is meant
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
