"""Slices through maps of three dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.pictures.scale import scale_of
from deeptaylor.pictures.slices import chosen, sheet


class Spot(nn.Module):
    """Counts one voxel of 6 × 8 × 10, whether there are channels or not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)[..., 3, 4, 5].reshape(len(x), -1).sum(1, keepdim=True) * torch.tensor([1.0, 0.5])


def spot(*channels: int) -> tuple[dt.Explanation, Tensor]:
    x = torch.rand(1, *channels, 6, 8, 10) + 0.1
    return dt.explain(Spot(), x, 0, dt.NonNegative()), x


def shown(figure: object) -> dict[str, np.ndarray]:
    axes = [ax for ax in figure.axes if ax.get_images()]  # type: ignore[attr-defined]
    return {ax.get_title(): np.asarray(ax.get_images()[0].get_array()) for ax in axes}


def test_slices_of_one_colour_scale() -> None:
    e, _ = spot(2)
    slices = shown(e.volume(slices=6))
    assert list(slices) == [f"slice {k}" for k in range(6)]
    assert slices["slice 3"][4, 5].tolist() == [150, 0, 16]
    assert all((image == 255).all() for name, image in slices.items() if name != "slice 3")
    assert shown(e.volume(slices=10, along=2))["slice 5"][3, 4].tolist() == [150, 0, 16]
    assert "The voxels account for the whole score." in e.volume().get_supxlabel().replace("\n", " ")
    assert list(shown(e.plot())) == list(shown(e.volume()))


def test_over_what_was_explained_in_grey() -> None:
    e, x = spot(1)
    slices = shown(e.volume(x[0, 0], slices=6, alpha=1.0))
    assert slices["slice 3"][4, 5].tolist() == [150, 0, 16]
    first = slices["slice 0"]
    assert (first[..., 0] == first[..., 2]).all()
    assert len(np.unique(first)) > 10
    with pytest.raises(dt.InputError, match=r"The volume has the shape \(1, 6, 8, 10\), its relevance \(6, 8, 10\)"):
        e.volume(x[0])


def test_without_channels_it_must_be_said() -> None:
    e, _ = spot()
    with pytest.raises(dt.InputError, match=r"this one has the shape \(8, 10\).*say axis=\(\)"):
        e.volume()
    assert shown(e.volume(axis=(), slices=6))["slice 3"][4, 5].tolist() == [150, 0, 16]


def test_what_makes_no_sense() -> None:
    e, _ = spot(1)
    with pytest.raises(dt.InputError, match="along=3: 0, 1 or 2"):
        e.volume(along=3)
    with pytest.raises(dt.InputError, match="slices=0: at least one"):
        e.volume(slices=0)


def test_slices_lie_at_even_distances() -> None:
    assert chosen(9, 9) == list(range(9))
    assert chosen(90, 3) == [15, 45, 75]


def test_a_sheet_of_slices_needs_no_figure() -> None:
    heat = np.zeros((6, 8, 10))
    heat[3, 4, 5] = 1
    picture = sheet(heat, scale_of(heat), 6)
    assert (picture == (150, 0, 16)).all(axis=2).sum() == 26**2  # one voxel, enlarged
    e, _ = spot(1)
    assert e._repr_png_().startswith(b"\x89PNG")
