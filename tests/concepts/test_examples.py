"""The inputs in which a channel counted most, batch by batch."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.concepts.examples import ExampleSearch, channel_examples
from small_networks import small_cnn

X = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(5))
BOX = dt.Box(0, 1)
BATCHES = (X[:4], X[4:5], X[5:])


@functools.cache
def explainer() -> dt.Explainer:
    model = small_cnn()
    with torch.no_grad():
        model[8].bias.add_(1)  # so that every score is positive
    return dt.Explainer(model, X, BOX, method="deep-taylor")


def wanted(values: Tensor, top: int) -> list[list[int]]:
    """Of each channel the numbers of the best, by sorting all at once."""
    rows = []
    for channel in values.T.tolist():
        order = sorted(range(len(channel)), key=lambda k: -channel[k])
        rows.append([k for k in order if channel[k] > 0][:top])
    return rows


@pytest.mark.parametrize("top", [1, 3, 20])
def test_batches_give_what_all_at_once_would(top: int) -> None:
    found = channel_examples(explainer(), BATCHES, "2", top=top)
    values = explainer().explain(X).channels("2").relevance
    assert [[e.number for e in found.of(c)] for c in range(4)] == wanted(values, top)
    assert found.seen == 9
    for c in range(4):
        assert [e.value for e in found.of(c)] == pytest.approx([float(values[e.number, c]) for e in found.of(c)])


def test_by_activation() -> None:
    found = channel_examples(explainer(), BATCHES, "2", by="activation", top=4)
    values = explainer().activations("2", X).amax((2, 3))
    assert [[e.number for e in found.of(c)] for c in range(4)] == wanted(values, 4)


def test_what_is_kept_does_not_grow() -> None:
    search = ExampleSearch(explainer(), "2", [1], top=2)
    for k in range(9):
        search.update(X[k : k + 1])
        assert len(search._kept) <= 2
    kept = search.result().of(1)
    assert all(torch.equal(e.input, X[e.number : e.number + 1]) for e in kept)


def test_targets_are_kept_with_their_inputs() -> None:
    search = ExampleSearch(explainer(), "2", [0]).update(X[:2], 1).update(X[2:5], torch.tensor([0, 1, 2]))
    search.update(X[5:])
    for e in search.result().of(0):
        asked = 1 if e.number < 2 else e.number - 2 if e.number < 5 else None
        if asked is not None:
            assert (e.target, e.title) == (asked, f"class {asked}")
        again = explainer().explain(e.input, e.target).channels("2").relevance[0, 0]
        assert float(again) == pytest.approx(e.value, rel=1e-5)


def test_crops_lie_where_the_part_of_the_channel_is_strongest() -> None:
    found = channel_examples(explainer(), BATCHES, "2", [3], top=3)
    for crop, example in zip(found.crops(3, 0.5), found.of(3), strict=True):
        e = explainer().explain(example.input, example.target)
        heat = e.channels("2").map(3).heatmap()[0]
        left, top, right, bottom = crop.box
        best = heat.unfold(0, 4, 1).unfold(1, 4, 1).sum((2, 3)).max()
        assert float(heat[top:bottom, left:right].sum()) == pytest.approx(float(best), rel=1e-5)


@pytest.mark.parametrize(
    ("by", "title"),
    [
        ("relevance", "Channel 3 of 2: the 3 of 9 inputs in which it counted most"),
        ("activation", "Channel 3 of 2: the 3 of 9 inputs in which it was most active"),
    ],
)
def test_the_figure(by: str, title: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = channel_examples(explainer(), BATCHES, "2", [3], by, top=3)  # type: ignore[arg-type]
    figure = found.figure(3)
    assert figure.get_suptitle().replace("\n", " ") == title
    assert sum(bool(ax.images) for ax in figure.axes) == 6
    assert found.save(3, tmp_path / "channel.png").read_bytes().startswith(b"\x89PNG")


def test_photographs_are_kept_by_their_names(tmp_path: Path) -> None:
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        made[4].bias.add_(2)
    prepared = dt.Preparation(
        size=16, resize=16, channels="RGB", white=1, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation="bilinear"
    )
    p = dt.load(made, preparation=prepared, class_names=["cat", "dog"])
    files = [tmp_path / f"{k}.png" for k in range(3)]
    for k, path in enumerate(files):
        Image.fromarray(np.random.default_rng(k).integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(path)
    found = channel_examples(p.explainer(), [files[:2], files[2]], "1", top=2, target="dog")
    best = next(c for c in range(4) if found.of(c))
    assert all(e.input == files[e.number] and e.title == "dog" for e in found.of(best))
    assert found.crops(best)[0].picture.shape == (6, 6, 3)


def test_it_prints_itself() -> None:
    found = channel_examples(explainer(), BATCHES, "2", [0, 3], top=2)
    lines = str(found).splitlines()
    assert lines[0] == "2: the inputs of 9 with the greatest relevance of each channel"
    assert lines[1].startswith("channel 0: ")
    assert repr(found) == "<ChannelExamples of 2 channels of 2, from 9 inputs>"


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(dt.InputError, match="by='size': there are 'relevance' and 'activation'"):
        ExampleSearch(explainer(), "2", by="size")  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match="top=0: at least one"):
        ExampleSearch(explainer(), "2", top=0)
    with pytest.raises(dt.InputError, match="Nothing was searched yet"):
        ExampleSearch(explainer(), "2").result()
    with pytest.raises(dt.TargetError, match="The channel 9 is out of range"):
        ExampleSearch(explainer(), "2", [9]).update(X)
    with pytest.raises(dt.TargetError, match="An activation belongs to no class"):
        ExampleSearch(explainer(), "2", by="activation").update(X, 1)
    with pytest.raises(dt.TargetError, match="of one class a sample"):
        ExampleSearch(explainer(), "2").update(X, dt.margin(0, 1))
    with pytest.raises(dt.TargetError, match="The channel 2 was not searched for: there are 0, 1"):
        channel_examples(explainer(), BATCHES, "2", [0, 1]).of(2)


def test_signals_have_no_crops() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.rand(3, 4)
    found = channel_examples(dt.Explainer(model, x, dt.NonNegative()), [x.tolist()], "1", by="activation")
    best = next(c for c in range(3) if found.of(c))
    with pytest.raises(dt.InputError, match="Crops are cut from pictures"):
        found.crops(best)
