"""Channels over a data set: columns and best items are those of every item by itself, however it is cut into shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.datasets.concepts import ChannelTable, Concepts, merge_tables
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.errors import InputError, TargetError

LAYER, CHANNELS = "3", 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, CHANNELS, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(CHANNELS, 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def explainer() -> dt.Explainer:
    return dt.Explainer(network(), torch.rand(1, 1, 10, 10), dt.Box(0, 1))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(24, 1, 10, 10, generator=torch.Generator().manual_seed(1))


def shards(explainer: dt.Explainer, x: Tensor, size: int, how: Concepts, bad: int = -1) -> list[Mapping[str, Any]]:
    explainer.watch(how.layers)
    made = []
    for first in range(0, len(x), size):
        numbers = np.arange(first, min(first + size, len(x)))
        halves = np.array_split(numbers, 2)
        given = [(np.where(n == bad, -1, n), x[n[0] : n[-1] + 1]) for n in halves if len(n)]
        made.append(how.shard([how.batch(n, part, explainer.explain(part)) for n, part in given]))
    return made


def slowly(explainer: dt.Explainer, x: Tensor) -> tuple[Any, Any]:
    R = explainer.explain(x).channels(LAYER).relevance
    return R.numpy(), explainer.activations(LAYER, x).flatten(2).amax(2).numpy()


@pytest.mark.parametrize("size", [24, 10, 4])
def test_columns_and_best_items(explainer: dt.Explainer, x: Tensor, size: int) -> None:
    table = merge_tables(LAYER, shards(explainer, x, size, Concepts(LAYER, top=6)))
    R, a = slowly(explainer, x)
    assert table.numbers.tolist() == list(range(24))
    assert np.allclose(table.relevance, R, atol=1e-6)
    assert np.allclose(table.activation, a, atol=1e-6)
    for by, column in (("relevance", R), ("activation", a)):
        for channel in range(CHANNELS):
            order = [k for k in np.argsort(-column[:, channel], kind="stable")[:6] if column[k, channel] > 0]
            assert [k for k, _ in table.top(channel, by)] == order  # type: ignore[arg-type]
    assert table.strongest(2)[0][0] == R.mean(0).argmax()


def test_shards_in_any_order_and_of_a_run_that_was_broken_off(explainer: dt.Explainer, x: Tensor) -> None:
    made = shards(explainer, x, 4, Concepts(LAYER))
    a, b = merge_tables(LAYER, made), merge_tables(LAYER, made[3:] + made[:3])
    assert np.array_equal(a.relevance, b.relevance)
    assert all(np.array_equal(p, q) for by in a.best for p, q in zip(a.best[by], b.best[by], strict=True))
    half = merge_tables(LAYER, made[:3])
    assert half.numbers.tolist() == list(range(12))


def test_items_that_could_not_be_explained_are_left_out(explainer: dt.Explainer, x: Tensor) -> None:
    table = merge_tables(LAYER, shards(explainer, x, 10, Concepts(LAYER, top=30), bad=7))
    assert 7 not in table.numbers
    assert len(table.relevance) == 23
    assert all(7 not in dict(table.top(c)) for c in range(CHANNELS))


def test_the_best_alone(explainer: dt.Explainer, x: Tensor) -> None:
    made = shards(explainer, x, 10, Concepts(LAYER, columns=False))
    assert "relevance" not in made[0]
    table = merge_tables(LAYER, made)
    assert table.relevance is None
    assert table.top(0)
    with pytest.raises(InputError, match="columns=False"):
        table.strongest()


def test_maps_through_the_channels_sum_to_the_map(explainer: dt.Explainer, x: Tensor) -> None:
    e = explainer.explain(x)
    channels = e.channels(LAYER)
    total = sum(part.relevance for part in channels.maps(range(CHANNELS))) + channels.past_map().relevance
    assert float((total - e.relevance).abs().max()) <= 1e-5 * float(e.relevance.abs().max())


def test_examples_are_cut_and_drawn(explainer: dt.Explainer, x: Tensor, tmp_path: Path) -> None:
    table = merge_tables(LAYER, shards(explainer, x, 10, Concepts(LAYER)))
    channel = table.strongest(1)[0][0]
    found = table.examples(explainer, lambda k: x[k : k + 1], [channel], count=3)
    assert [e.number for e in found.of(channel)] == [k for k, _ in table.top(channel)[:3]]
    crops = found.crops(channel)
    assert len(crops) == 3
    value = float(explainer.explain(x[found.of(channel)[0].number :][:1]).channels(LAYER).relevance[0, channel])
    assert found.of(channel)[0].value == pytest.approx(value, rel=1e-5)
    assert found.save(channel, tmp_path / "channel.png").stat().st_size > 1000


def test_refusals(explainer: dt.Explainer, x: Tensor) -> None:
    table: ChannelTable = merge_tables(LAYER, shards(explainer, x, 24, Concepts(LAYER)))
    with pytest.raises(TargetError, match="channel 9 is out of range"):
        table.top(9)
    with pytest.raises(InputError, match="by='size'"):
        table.top(0, "size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one"):
        Concepts(LAYER, top=0)
    with pytest.raises(InputError, match="no shard is finished"):
        merge_tables(LAYER, [])
    with pytest.raises(InputError, match=r"was not watched: explainer.watch"):
        Concepts("1").batch(np.arange(2), x[:2], explainer.explain(x[:2]))


def test_a_run_that_is_watched(explainer: dt.Explainer, x: Tensor, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    done = dt.explain_dataset(list(x), explainer, tmp_path / "store", also=[Concepts(LAYER)], shard=10, batch=4)
    table = done.channels(LAYER)
    R, a = slowly(explainer, x)
    assert np.allclose(table.relevance, R, atol=1e-6)
    assert np.allclose(table.activation, a, atol=1e-6)
    with pytest.raises(InputError, match=r"did not watch the layer '1'\. Watched: concepts-3"):
        done.channels("1")


def test_a_layer_that_is_not_there_leaves_no_store(explainer: dt.Explainer, x: Tensor, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    for wrong in (Concepts("nope"), Concepts(LAYER, axis=9)):
        with pytest.raises(dt.DeepTaylorError, match=r"nope|axis"):
            dt.explain_dataset(list(x), explainer, tmp_path / "store", also=[wrong])
    assert dt.explain_dataset(list(x), explainer, tmp_path / "store", also=[Concepts(LAYER)]).complete


@pytest.mark.parametrize("other", [{"top": 2}, {"columns": False}, {"axis": 2}])
def test_a_run_does_not_go_on_with_other_settings(
    explainer: dt.Explainer, x: Tensor, tmp_path: Path, other: dict[str, Any]
) -> None:
    pytest.importorskip("zarr")
    for first, second in (({}, other), (other, {})):
        store = tmp_path / f"{len(first)}"
        dt.explain_dataset(list(x), explainer, store, also=[Concepts(LAYER, **first)])
        with pytest.raises(ChangedError, match=r"another plan.*differ in: also"):
            dt.explain_dataset(list(x), explainer, store, also=[Concepts(LAYER, **second)])
        again = dt.explain_dataset(list(x), explainer, store, also=[Concepts(LAYER, **first)])
        assert len(again.channels(LAYER).numbers) == len(x)
        assert again.manifest["also"] == ["concepts-3"]


def test_a_layer_is_watched_once(explainer: dt.Explainer, x: Tensor, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    with pytest.raises(InputError, match=r"2 of the observers .* are called concepts-3"):
        dt.explain_dataset(list(x), explainer, tmp_path / "store", also=[Concepts(LAYER), Concepts(LAYER, top=3)])
