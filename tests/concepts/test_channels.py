"""Relevance by channel of a layer, and the parts of the map: exact, and together the whole."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.concepts.channels import Channels, ExampleSearch, channel_examples
from deeptaylor.engine import layer_relevance
from small_networks import TOP, Attention, Net, batch, close, small_cnn

BIASES = ("neuron", "returned", "spread")
PICTURES = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
TOKENS = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
BOX = dt.Box(0, 1)


@functools.cache
def explained(name: str, bias: str) -> dt.Explanation:
    if name == "sequence":
        return dt.explain(small_cnn().double(), PICTURES, None, BOX, bias=bias)
    if name == "skip":
        return dt.explain(Net().eval().double(), batch(3), TOP, BOX, bias=bias)
    return dt.explain(Attention().eval().double(), TOKENS, bias=bias)


PLACES = [("sequence", "2", None), ("sequence", "3", None), ("sequence", "5", None), ("skip", "relu", None),
          ("skip", "mul", None), ("skip", "pool", None), ("attention", "gelu", 2)]  # fmt: skip


def parts(c: Channels[dt.Explanation]) -> list[dt.Explanation]:
    return c.maps(range(c.at.shape[1]))


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize(("name", "layer", "axis"), PLACES)
def test_channels_add_up_to_the_score_and_their_maps_to_the_map(
    name: str, layer: str, axis: int | None, bias: str
) -> None:
    e = explained(name, bias)
    c = e.channels(layer, axis)
    close(c.total, e.score.clamp(min=0))
    close(c.at, e.at(layer).movedim(1 if axis is None else axis, 1))
    every = parts(c)
    close(torch.stack([p.relevance for p in every]).sum(0) + c.past_map().relevance, e.relevance)
    assert all(p.check().accounted for p in every)
    assert c.past_map().check().accounted


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_a_part_begins_with_the_relevance_of_its_channel(bias: str) -> None:
    c = explained("skip", bias).channels("mul")
    for k, part in enumerate(parts(c)):
        assert torch.allclose(part.score, c.relevance[:, k], rtol=1e-12)
        assert torch.allclose(part.ledger.total, part.score, rtol=1e-12)
    assert bool(c.relevance[:, 0].all())


def test_what_biases_handed_back_enlarges_every_part_by_the_same_factor() -> None:
    whole, paper = explained("skip", "returned"), explained("skip", "neuron")
    factor = whole.relevance / paper.relevance
    for after, before in zip(parts(whole.channels("mul")), parts(paper.channels("mul")), strict=True):
        assert torch.allclose(after.relevance, before.relevance * factor, rtol=1e-10, atol=1e-15)
        assert after.ledger.own is not None
        assert torch.allclose(after.ledger.own, before.ledger.input, rtol=1e-10)


def test_what_goes_past_a_layer_is_a_part_of_its_own() -> None:
    by_a_skip, through_it = explained("skip", "neuron").channels("mul"), explained("skip", "neuron").channels("relu")
    assert bool((by_a_skip.past > 0).all())
    assert bool((by_a_skip.past_map().relevance.flatten(1).sum(1) > 0).all())
    assert not bool(through_it.past.any())
    assert not bool(through_it.past_map().relevance.any())


def hand() -> tuple[nn.Sequential, Tensor]:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 4.0]))
        model[2].weight.copy_(torch.tensor([[2.0, 1.0]]))
        model[2].bias.copy_(torch.tensor([5.0]))
    return model, torch.tensor([[1.0, 3.0]], dtype=torch.float64)


def test_by_hand() -> None:
    # h = (1, 8), f = 2·1 + 8 + 5 = 15: channels have 2 and 8, the bias 5. Through channel 0 goes 2 to x1; of the 8 of
    # channel 1, x1 has 1, x2 has 3 and the bias 4.
    model, x = hand()
    c = dt.explain(model, x, None, dt.NonNegative(), bias="neuron").channels("1")
    assert c.relevance.tolist() == [[2, 8]]
    assert (c.bias.tolist(), c.past.tolist(), c.total.tolist()) == ([5], [0], [15])
    first, second = c.maps([0, 1])
    assert first.relevance.tolist() == [[2, 0]]
    assert second.relevance.tolist() == [[1, 3]]
    assert (second.score.tolist(), second.ledger.bias.tolist()) == ([8], [4])
    # A network without a feature map has no places to redistribute by: the default is the same.
    default = dt.explain(model, x, None, dt.NonNegative()).channels("1").maps([0, 1])
    assert [p.relevance.tolist() for p in default] == [[[2, 0]], [[1, 3]]]


def test_channels_of_a_unit_and_of_a_function() -> None:
    explainer = dt.Explainer(small_cnn().double(), PICTURES, BOX, method="deep-taylor")
    for target in (dt.unit("3", 2, "max"), lambda out: torch.relu(out + 1).sum(1)):
        e = explainer.explain(PICTURES, target)
        c = e.channels("2")
        close(c.total, e.score)
        close(torch.stack([p.relevance for p in parts(c)]).sum(0) + c.past_map().relevance, e.relevance)


def test_many_channels_are_computed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    c = explained("sequence", "returned").channels("2")
    together = [p.relevance for p in parts(c)]
    monkeypatch.setattr(layer_relevance, "_MAX_ELEMENTS", 1)
    for one, other in zip(parts(c), together, strict=True):
        assert torch.equal(one.relevance, other)


def test_float32_stays_within_its_rounding() -> None:
    e = dt.explain(Net().eval(), batch(2).float(), TOP, BOX, method="deep-taylor")
    c = e.channels("mul")
    gap = torch.stack([p.relevance for p in parts(c)]).sum(0) + c.past_map().relevance - e.relevance
    assert float(gap.abs().max()) <= 1e-5 * float(e.relevance.abs().max())


def test_a_tiny_score_is_lifted_and_lowered_again() -> None:
    model, x = hand()
    model = model.float()
    with torch.no_grad():
        model[2].weight.mul_(1e-38)
        model[2].bias.mul_(1e-38)
    part = dt.explain(model, x.float(), None, dt.NonNegative(), bias="neuron").channels("1").map(1)
    assert part.relevance[0].tolist() == pytest.approx([1e-38, 3e-38], rel=1e-5)


# --- how it shows itself ----------------------------------------------------------------------------------------------


def test_the_table() -> None:
    model, x = hand()
    c = dt.explain(model, x, None, dt.NonNegative()).channels("1")
    assert str(c).splitlines() == [
        "Relevance of the 2 channels of 1, sample 0",
        f"channel 1              8  53.3 %  {'█' * 24}",
        f"channel 0              2  13.3 %  {'█' * 6}",
        "past the layer         0     0 %",
        "biases outside of it   5  33.3 %",
        "score                 15   100 %",
    ]
    assert c.top(1) == [(1, 8.0)]
    assert "1 other channels" in c.table(count=1)
    assert repr(c) == "<Channels of 1: 2 channels, 1 sample(s); print it for the table>"


def test_a_part_says_what_it_is() -> None:
    part = explained("sequence", "returned").channels("2").map(3)
    assert "of class 1 through channel 3 of 2, class 1 through channel 3 of 2: relevance (2, 1, 8, 8)" in repr(part)
    assert str(part.ledger).startswith("Score: the part of the score that went through channel 3 of 2.")
    paper = explained("sequence", "neuron").channels("2").map(3)
    assert str(paper.ledger).startswith("Score: the relevance that goes through channel 3 of 2.")
    assert "through channel 3 of 2" in paper.ledger.table()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "axis", "said"),
    [
        ("33", None, r"There is no node or module '33'. Did you mean '3'\?"),
        ("0", None, "lies inside the detection block that ends in '1'"),
        ("input_1", None, "'input_1' is an input of the network"),
        ("3", 7, "axis=7: the channel axis of '3' must be 1 to 3"),
    ],
)
def test_layers_that_cannot_be_asked(layer: str, axis: int | None, said: str) -> None:
    with pytest.raises((dt.BoundaryError, dt.TargetError), match=said):
        explained("sequence", "returned").channels(layer, axis)


def test_a_channel_that_there_is_not() -> None:
    with pytest.raises(dt.TargetError, match="The channel 4 is out of range: the layer '2' has 4 channels, 0 to 3"):
        explained("sequence", "returned").channels("2").map(4)


def test_tokens_must_be_told_from_features() -> None:
    with pytest.raises(dt.TargetError, match="give axis=1 if the channels are along the first"):
        explained("attention", "returned").channels("gelu")


def _of_several(explainer: dt.Explainer) -> dt.Explanation:
    return explainer.explain(PICTURES, [0, 1])


def _of_a_file(explainer: dt.Explainer) -> dt.Explanation:
    return pickle.loads(pickle.dumps(explainer.explain(PICTURES)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (_of_several, "for one class .* at a time"),
        (_of_a_file, "cannot measure channels of its network"),
        (lambda explainer: explainer.contrast(PICTURES, 0, 1), "A contrast has no channels"),
        (lambda explainer: explainer.explain(PICTURES).channels("2").map(0), "cannot measure channels"),
    ],
)
def test_explanations_that_cannot_tell(made: Any, said: str) -> None:
    model = small_cnn().double()
    with torch.no_grad():
        model[8].bias.add_(1)
    with pytest.raises((dt.InputError, dt.TargetError), match=said):
        made(dt.Explainer(model, PICTURES, BOX, method="deep-taylor")).channels("2")


def test_a_part_has_no_inner_relevance_of_its_own() -> None:
    with pytest.raises(dt.BoundaryError, match="a part of an explanation"):
        explained("sequence", "returned").channels("2").map(0).at("1")


@pytest.mark.parametrize("bias", ["neuron", "returned"])
def test_a_network_that_changed_is_refused(bias: str) -> None:
    model = small_cnn().double()
    c = dt.explain(model, PICTURES, None, BOX, bias=bias).channels("2")
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        c.map(0)


X = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(5))
UNIT_BOX = dt.Box(0, 1)
BATCHES = (X[:4], X[4:5], X[5:])


@functools.cache
def explainer() -> dt.Explainer:
    model = small_cnn()
    with torch.no_grad():
        model[8].bias.add_(1)  # so that every score is positive
    return dt.Explainer(model, X, UNIT_BOX, method="deep-taylor")


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
    with pytest.raises(dt.TargetError, match="one class per sample"):
        ExampleSearch(explainer(), "2").update(X, dt.margin(0, 1))
    with pytest.raises(dt.TargetError, match="The channel 2 was not searched for: there are 0, 1"):
        channel_examples(explainer(), BATCHES, "2", [0, 1]).of(2)


def test_signals_have_no_crops() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.constant_(model[0].weight, 1.0)  # type: ignore[arg-type]
    x = torch.rand(3, 4)
    found = channel_examples(dt.Explainer(model, x, dt.NonNegative()), [x.tolist()], "1", by="activation")
    best = next(c for c in range(3) if found.of(c))
    with pytest.raises(dt.InputError, match="Crops are cut from pictures"):
        found.crops(best)
