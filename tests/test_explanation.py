"""What an explanation holds: a ledger that closes, inner relevance, what it says about itself, pictures."""

from __future__ import annotations

import dataclasses
import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor.formatting import format_percent
from deeptaylor.ledger import make_residual_ledger
from deeptaylor.viz import heatmap
from small_networks import LEDGER_GAP, TOP, attention, batch, close, mlp, net

# --- the ledger ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("kind", ["convolutional", "attention"])
@pytest.mark.parametrize("many", [False, True])
def test_every_row_of_the_ledger_closes(kind: str, bias: str, many: bool) -> None:
    if kind == "convolutional":
        (model, explainer), x = net(bias), batch()
    else:
        (model, explainer), x = attention(bias), torch.rand(3, 3, 4, dtype=torch.float64)
    target = model(x).topk(2).indices if many else None
    e = explainer.explain(x, target)
    scale = float(e.score.max())
    entries = e.ledger.entries if many else e.ledger.entries[None]
    arrived, on, bias_taken, dropped = entries.unbind(2)  # (K, steps, batch) each
    assert entries.shape[1] == len(e.ledger.rows) == len(explainer.plan.rows)
    assert float((arrived - on - bias_taken - dropped).abs().max()) <= LEDGER_GAP * scale
    score = e.score if many else e.score[:, None]
    close(arrived[:, 0], score.clamp(min=0).T)
    total = e.ledger.total if many else e.ledger.total[:, None]
    close(total, score.clamp(min=0), 1e-10)
    relevance = e.relevance.flatten(2).sum(2) if many else e.relevance.flatten(1).sum(1)
    close(e.ledger.input, relevance)
    for name, column in (("bias", bias_taken), ("dropped", dropped)):
        booked = getattr(e.ledger, name) if many else getattr(e.ledger, name)[:, None]
        assert float((booked - column.sum(1).T).abs().max()) <= LEDGER_GAP * scale, name
    assert float(e.relevance.min()) >= 0


def test_what_one_row_hands_on_arrives_in_another() -> None:
    # Every boundary's arrivals are what the steps above it handed to it: nothing is made between two rows.
    _, explainer = net()
    e = explainer.explain(batch())
    arrived, on = e.ledger.entries[:, 0], e.ledger.entries[:, 1]
    close(on.sum(0), arrived[1:].sum(0) + e.ledger.input, 1e-10)


def test_the_ledgers_table_names_nodes_and_numbers() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), 4)
    table = e.ledger.table(sample=1)
    lines = table.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        "node",
        "module",
        "op",
        "rule",
        "arrived",
        "went on",
        "bias",
        "dropped",
    ]
    assert len(lines) == 2 + len(explainer.plan.rows) + 1
    assert lines[2].startswith(explainer.plan.rows[0].node)
    assert f"{float(e.score[1].clamp(min=0)):.6g}" in lines[2]
    assert lines[-1].startswith("f = ")
    assert "input" in lines[-1]
    many = explainer.explain(batch(), torch.tensor([[4, 7]] * 3))
    assert many.ledger.table(1, 0) == table
    assert many.ledger.table(1, 1) == explainer.explain(batch(), 7).ledger.table(1)


# --- inner relevance ----------------------------------------------------------------------------------------------


def test_inner_relevance_by_module_path_and_node_name() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    by_path, by_node = e.at("pool"), e.at(next(r.node for r in explainer.plan.rows if r.module == "pool"))
    assert by_path.shape == (3, 6, 3, 3)
    assert torch.equal(by_path, by_node)
    # What arrives at a row of the ledger is the relevance at its node.
    for row, arrived in zip(e.ledger.rows[1:], e.ledger.entries[1:, 0], strict=True):
        close(e.at(row[0]).flatten(1).sum(1), arrived, 1e-10)


def test_inner_relevance_at_the_input_is_the_relevance() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), TOP)
    assert torch.equal(e.at("x"), e.relevance)


def test_inner_relevance_of_many_targets() -> None:
    model, explainer = net()
    target = model(batch()).topk(2).indices
    e = explainer.explain(batch(), target)
    assert e.at("pool").shape == (3, 2, 6, 3, 3)
    close(e.at("pool")[:, 1], explainer.explain(batch(), target[:, 1]).at("pool"), 1e-10)


def test_inside_a_block_the_boundaries_to_ask_are_named() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for name in ("conv2", "bn2", "head", "conv1"):
        with pytest.raises(dt.BoundaryError) as info:
            e.at(name)
        text = str(info.value)
        assert name in text
        assert "no relevance of its own" in text
        assert "Ask for" in text
        offered = re.findall(r"'([^']+)'", text.split("Ask for")[1])
        assert offered, text
        for other in offered:
            assert e.at(other).shape[0] == 3


def test_a_gate_says_that_it_carries_none() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for name in ("excite", "squeeze", "sigmoid"):
        with pytest.raises(dt.BoundaryError, match=f"'{name}'.*carries no relevance.*gate"):
            e.at(name)


def test_an_unknown_name_offers_similar_ones() -> None:
    _, explainer = net()
    with pytest.raises(dt.BoundaryError, match=r"no node or module 'pol'.*Did you mean.*'pool'"):
        explainer.explain(batch()).at("pol")
    with pytest.raises(KeyError):  # as a dictionary would
        explainer.explain(batch()).at("")


def test_an_explanation_is_about_the_input_it_was_made_of() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    e = dt.Explainer(mlp(), x, dt.NonNegative(), bias="neuron").explain(x, dt.margin())
    before = e.at("1").clone()
    x.zero_()
    assert torch.equal(e.at("1"), before)


def test_an_explanation_is_about_the_network_it_was_made_of() -> None:
    model, x = mlp(), torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(model, x, dt.NonNegative(), bias="neuron")
    e = explainer.explain(x, dt.margin())
    before = e.at("1").clone()
    with torch.no_grad():
        model[2].weight.mul_(3)
    explainer.refresh()
    try:
        after = e.at("1")
    except dt.StaleModelError:
        return  # refusing is as good as remembering
    assert torch.equal(after, before)


# --- what it says about itself ------------------------------------------------------------------------------------


def with_bias(share: float) -> nn.Module:
    """f = Σ x + b with a bias that takes `share` of the score of x = (1, 1)."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(2 * share / (1 - share))
    return layer.eval()


def test_the_check_begins_with_a_small_share_of_the_input() -> None:
    e = dt.explain(with_bias(0.75), torch.ones(2, 2), domain=dt.NonNegative(), bias="neuron")
    first, *rest = str(e.check()).splitlines()
    wanted = (
        "The input accounts for only 25.0 % of the score in the worst of the 2 scores; biases absorbed at most 75.0 %."
    )
    assert first == wanted
    assert [line.split()[0] for line in rest] == ["Conservative:", "Positive:", "Consistent", "Accounted"]
    assert str(e).startswith("The input accounts for only")
    assert "The input accounts for only" in e._repr_html_()


def test_the_check_begins_so_even_where_other_samples_are_empty() -> None:
    x = torch.tensor([[1.0, 1.0], [-9.0, -9.0]])
    e = dt.explain(with_bias(0.75), x, domain=dt.Real(), first=dt.rules.ZPlus(), bias="neuron")
    assert e.score.tolist() == [8.0, -12.0]
    assert str(e.check()).startswith("The input accounts for only 25.0 %")
    assert "1 of 2 scores are negative" in str(e.check())


def test_the_check_measures_the_gaps() -> None:
    check = dt.explain(with_bias(0.25), torch.ones(2, 2), domain=dt.NonNegative(), bias="neuron").check()
    assert not str(check).startswith("The input accounts for only")
    assert (check.conservative, check.positive, check.consistent, check.accounted) == (False, True, False, True)
    assert check.conservation_gap == pytest.approx(0.25)
    assert check.accounting_gap <= 1e-6
    assert check.input_share == pytest.approx(0.75)
    lines = str(check).splitlines()
    assert lines[0] == "The input accounts for at least 75.0 % of the score; biases absorbed at most 25.0 %."
    assert lines[1] == "Conservative: no (the sum differs from the score by at most 25.0 % of it)."
    assert "Consistent (conservative and positive): no." in lines
    assert "NO" not in str(check)
    spread = dt.explain(with_bias(0.25), torch.ones(2, 2), domain=dt.NonNegative(), bias="spread").check()
    assert spread.consistent
    assert spread.conservation_gap <= 1e-6


def test_negative_relevance_is_not_positive() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    check = dt.explain(
        mlp(bias=False), x, dt.margin(), dt.NonNegative(), rules={"linear*": dt.rules.Z()}, bias="neuron"
    ).check()
    assert (check.conservative, check.positive, check.consistent) == (True, False, False)
    assert check.most_negative < 0
    assert "Positive: no (the smallest value is -" in str(check)


def test_the_check_catches_a_map_that_was_tampered_with() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), dt.margin())
    assert e.check().accounted
    ledger = dataclasses.replace(e.ledger, bias=e.ledger.bias * 1.01 + 1e-3)
    tampered = dataclasses.replace(e, ledger=ledger).check()
    assert not tampered.accounted
    assert "Accounted for: NO (input, biases and what was dropped differ from the score by at most " in str(tampered)
    assert not dataclasses.replace(e, relevance=e.relevance - 1e-3).check().positive


# --- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "heat"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (3, 4, 4), (4, 4)),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (2, 2, 3, 4), (2, 3, 4)),
        (nn.Linear(5, 2), (5,), (5,)),
    ],
)
def test_heatmaps_sum_over_channels(model: nn.Module, shape: tuple[int, ...], heat: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape)
    explainer = dt.Explainer(model.eval(), x, dt.Box(0, 1), bias="neuron")
    e = explainer.explain(x, dt.margin())
    assert e.heatmap().shape == (2, *heat)
    assert torch.allclose(e.heatmap().flatten(1).sum(1), e.ledger.input)
    assert explainer.explain(x, torch.tensor([[0, 1, 1]] * 2)).heatmap().shape == (2, 3, *heat)


def test_inputs_of_two_axes_say_which_one_is_summed_over() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval()
    explainer = dt.Explainer(model, torch.rand(2, 3, 4), dt.Box(0, 1))
    e = explainer.explain(torch.rand(2, 3, 4), dt.margin())
    with pytest.raises(dt.InputError, match="which does not say what to sum over"):
        e.heatmap()
    assert torch.equal(e.heatmap(axis=1), e.relevance.sum(1))
    assert torch.equal(e.heatmap(axis=2), e.relevance.sum(2))
    assert torch.equal(e.heatmap(axis=()), e.relevance)
    many = explainer.explain(torch.rand(2, 3, 4), torch.tensor([[0, 1, 1]] * 2))
    assert many.heatmap(axis=2).shape == (2, 3, 3)
    assert many.heatmap(axis=1).shape == (2, 3, 4)


class Both(nn.Module):
    """A picture and a vector."""

    def forward(self, picture: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return torch.relu(picture).flatten(1).sum(1, keepdim=True) + torch.relu(vector).sum(1, keepdim=True)


def test_a_second_input_is_drawn_too(tmp_path: Path) -> None:
    inputs = (torch.ones(1, 1, 8, 8), torch.tensor([[0.0, 3.0]]))
    e = dt.Explainer(Both(), inputs, dt.NonNegative()).explain(inputs)
    assert e._repr_html_().count("<img") == 2
    assert "heatmap of sample 0, input 1" in e._repr_html_()
    assert e.bars(["a", "b"], which=1).values == pytest.approx((3, 0))
    assert e.plot().get_supxlabel() == "The inputs account for the whole score."  # both of them, not the pixels alone
    assert len(e.plot(which=1).axes[0].lines) == 1
    first, second = (e.save(tmp_path / f"{k}.png", which=k).read_bytes() for k in (0, 1))
    assert first != second
    with pytest.raises(dt.InputError, match="which=2: this explanation has 2 inputs"):
        e.heatmap(2)


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.png", b"\x89PNG"), ("a.JPG", b"\xff\xd8"), ("a.jpeg", b"\xff\xd8"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")],
)
def test_save_writes_what_the_ending_says(name: str, start: bytes, tmp_path: Path) -> None:
    _, explainer = net()
    path = explainer.explain(batch()).save(tmp_path / name)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_save_rejects_other_endings_and_overlays_of_nothing(tmp_path: Path) -> None:
    e = dt.explain(nn.Flatten(), torch.rand(2, 2, 8, 8), 0, dt.NonNegative())
    with pytest.raises(dt.InputError, match=r"ends in .bmp; the ending says .* \.png, \.jpg, \.jpeg, \.pdf, \.svg"):
        e.save(tmp_path / "a.bmp")
    for name in ("a.png", "a.pdf"):
        with pytest.raises(dt.InputError, match="has no photograph, and its input is not a picture"):
            e.save(tmp_path / name, overlay=True)
    assert not list(tmp_path.iterdir())


def test_save_writes_the_picture_of_one_sample_and_target(tmp_path: Path) -> None:
    model, explainer = net()
    e = explainer.explain(batch(), model(batch()).topk(2).indices)
    path = e.save(tmp_path / "heatmap.png", sample=1, target=1)
    assert path == tmp_path / "heatmap.png"
    large = np.asarray(Image.open(path).convert("RGB"))
    assert large.shape == (258, 258, 3)  # enlarged 43 times, without blur
    picture = large[::43, ::43]
    assert (picture.repeat(43, axis=0).repeat(43, axis=1) == large).all()
    heat = e.heatmap()[1, 1]
    hottest = np.unravel_index(int(heat.argmax()), (6, 6))
    assert picture[hottest][0] > picture[hottest][2], "red where it speaks for the decision"
    other = e.save(str(tmp_path / "other.png"), sample=0)
    assert not np.array_equal(np.asarray(Image.open(other).convert("RGB")), large)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heatmap.png", "other.png"]


def test_it_shows_itself_in_a_notebook() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), dt.margin())
    assert Image.open(io.BytesIO(e._repr_png_())).size == (258, 258)
    html = e._repr_html_()
    assert html.count("<img") == 3
    assert html.count("data:image/png;base64,") == 3
    assert "conservative" in html
    assert f"{float(e.score[0]):.4g}" in html


def test_an_empty_map_is_white() -> None:
    x = torch.zeros(1, 2)
    e = dt.explain(nn.Linear(2, 1, bias=False).eval(), x, domain=dt.NonNegative(), bias="neuron")
    picture = np.asarray(Image.open(io.BytesIO(e._repr_png_())).convert("RGB"))
    assert picture.min() == 255
    assert "no evidence" in e._repr_html_()


# --- what sets a class apart ----------------------------------------------------------------------------------------


class Sides(nn.Module):
    """Both classes read the whole picture; the second a little less on the left, by this much."""

    def __init__(self, less: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 1, 6, 6, dtype=torch.float64))
        with torch.no_grad():
            self.w[1, :, :, :3] -= less

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).flatten(1) @ self.w.flatten(1).T


def sides(less: float) -> dt.Contrast:
    x = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    return dt.Explainer(Sides(less), x, dt.NonNegative()).contrast(x, 0)


def test_a_tiny_difference_is_never_shown_in_full_colour() -> None:
    c = sides(0.02)
    # The class has half of its relevance on each side, its rival .98 / 1.98 and 1 / 1.98 of it.
    assert c.apart is not None
    assert float(c.apart) == pytest.approx(0.5 - 0.98 / 1.98)
    assert c.apart_text() == "0.5 % of the map is specific to class 0; it shares the rest with its rival"
    assert c.difference_picture().min() > 245  # nearly white everywhere
    own = np.asarray(c.difference[0, 0])
    assert c.difference_picture().tolist() == heatmap.render(own, scale=1.0).tolist()
    assert heatmap.render(own).min() < 20  # by its own scale it would be all in full colour


def test_a_large_difference_is_red_for_the_class_and_blue_for_its_rivals() -> None:
    c = sides(0.9)
    assert (
        c.apart_text()
        == f"{format_percent(0.5 - 0.1 / 1.1)} of the map is specific to class 0; it shares the rest with its rival"
    )
    left, right = (c.difference_picture()[0, k].astype(int) for k in (0, 5))
    assert left[0] > left[2] + 50
    assert right[2] > right[0] + 50
    assert "for the class red, for its rivals blue" in c._repr_html_()


def test_the_difference_over_its_photograph_and_of_several_classes() -> None:
    c = sides(0.9)
    photo = np.full((6, 6, 3), 255, dtype=np.uint8)
    over = dataclasses.replace(c, photos=(photo,)).difference_picture()
    assert over.tolist() == heatmap.overlay(photo, np.asarray(c.difference[0, 0]), scale=1.0).tolist()
    x = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    many = dt.Explainer(Sides(0.9), x, dt.NonNegative()).contrast(x, torch.tensor([[0, 1]]))
    assert many.apart_text(target=0) == c.apart_text()
    assert many.difference_picture(target=0).tolist() == c.difference_picture().tolist()
    assert many.difference_picture(target=1)[0, 0, 2] > many.difference_picture(target=1)[0, 0, 0]  # the other way


# --- files ------------------------------------------------------------------------------------------------------------


def _half(out: torch.Tensor) -> torch.Tensor:
    return out[:, 0] / 2


@pytest.mark.parametrize(
    ("target", "kept"),
    [([0, 1], True), (dt.margin(0, 1), True), (_half, True), (lambda out: out[:, 0], False)],
    ids=["two classes", "margin", "function", "nameless function"],
)
def test_explanations_go_to_a_file_and_come_back(target: object, kept: bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    e = dt.explain(network, torch.rand(2, 4), target, dt.NonNegative())
    back = pickle.loads(pickle.dumps(e))
    assert torch.equal(back.relevance, e.relevance)
    assert torch.equal(back.ledger.entries, e.ledger.entries)
    assert str(back) == str(e)
    if kept:
        assert str(back.target) == str(e.target)
    else:
        assert back.target.startswith("a function that could not be saved: ")
    with pytest.raises(dt.BoundaryError, match="saved and loaded without its explainer"):
        back.at("1")
    with pytest.raises(dt.InputError, match="cannot call its network"):
        back.check(faithful=True)


def test_contrasts_with_photographs_go_to_a_file_and_come_back() -> None:
    torch.manual_seed(0)
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    nn.init.constant_(network[3].bias, 1.0)
    p = dt.Pretrained(network, ("cat", "dog"), preparation)
    photo = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    c = p.explainer().contrast([photo, photo], ["cat", "dog"])
    back = pickle.loads(pickle.dumps(c))
    assert isinstance(back, dt.Contrast)
    assert back.titles == (("cat", "dog"), ("cat", "dog"))
    assert back.rivals == c.rivals
    for name in ("relevance", "shared", "difference", "apart"):
        assert torch.equal(getattr(back, name), getattr(c, name))
    assert np.array_equal(back.photos[1], photo)
    assert np.array_equal(back.overlay(1, 1), c.overlay(1, 1))
    assert str(back.check()) == str(c.check())
    with pytest.raises(dt.BoundaryError, match="saved and loaded without its explainer"):
        back.at("1")


# --- one sample of several ----------------------------------------------------------------------------------------


def test_one_sample_of_a_batch_is_the_explanation_of_that_sample_alone() -> None:
    model, explainer = net("returned")
    classes = model(batch()).argmax(1)
    e = explainer.explain(batch(), classes)
    assert len(e) == 3
    for k in range(3):
        one, alone = e[k], explainer.explain(batch()[k : k + 1], classes[k : k + 1])
        close(one.relevance, alone.relevance)
        close(one.score, alone.score)
        close(one.ledger.entries, alone.ledger.entries)
        close(one.ledger.returned, alone.ledger.returned)
        close(one.at("relu"), alone.at("relu"))
        close(one.overlap(), alone.overlap())
        close(one.channels("relu").maps([2])[0].relevance, alone.channels("relu").maps([2])[0].relevance)
        past, wanted = (e.channels("relu").past_map().relevance for e in (one, alone))
        assert torch.allclose(past, wanted)
        assert one.check(faithful=True).flipping == pytest.approx(alone.check(faithful=True).flipping)
        assert repr(one) == repr(alone)


def test_samples_are_selected_as_from_a_list() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), [0, 1])
    assert torch.equal(e[-1].relevance, e.relevance[2:])
    assert torch.equal(e[:2].relevance, e.relevance[:2])
    assert [len(one) for one in e] == [1, 1, 1]
    assert torch.equal(e[1:][1].relevance, e[2].relevance)
    assert e[2].ledger.table(target=1) == e.ledger.table(sample=2, target=1)
    for k in (3, -4):
        with pytest.raises(IndexError, match=f"This explanation has 3 samples, from 0 on; got {k}"):
            e[k]


def test_one_sample_of_a_contrast_and_of_a_comparison() -> None:
    _, explainer = net()
    c = explainer.contrast(batch(), [0, 1], power=2)
    assert c[1].rivals == c.rivals[2:4]
    for name in ("relevance", "shared", "difference", "apart"):
        assert torch.equal(getattr(c[1], name)[0], getattr(c, name)[1])
    assert c[1].apart_text(0, 1) == c.apart_text(1, 1)
    b = explainer.between(batch(), "zeros", torch.tensor([0, 1, 2]))
    assert torch.equal(b[2].reference_score, b.reference_score[2:])
    assert b[2].ledger.sentence() == b.ledger.sentence(2)
    assert b[2].label() == "class 2"
    assert torch.equal(b[2].at("relu"), b.at("relu")[2:])
    assert torch.equal(b[2].change_at("relu").change, b.change_at("relu").change[2:])


def test_a_smooth_map_has_the_same_sum_and_no_single_dots(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 2)).eval()
    nn.init.constant_(network[0].weight, 1.0)
    nn.init.constant_(network[3].weight, 1.0)
    e = dt.explain(network, torch.rand(1, 1, 64, 64), None, dt.NonNegative(), bias="neuron")
    smooth = e.smooth()
    assert (e.heatmap()[0, 1::4] == 0).all()  # the stride leaves dots
    assert (smooth.heatmap()[0, 1::4] > 0).float().mean() > 0.9
    close(smooth.relevance.sum(), e.relevance.sum(), 1e-4)
    assert smooth.notes[0] == "smoothed for the picture (standard deviation 1 px): the sum of the map is unchanged"
    assert e.smooth(4).relevance.max() < smooth.relevance.max()
    for name, options in {"map": {}, "over": {"overlay": True}}.items():
        saved = e.save(tmp_path / f"{name}.png", smooth=True, **options)
        assert saved.read_bytes() == smooth.save(tmp_path / "same.png", **options).read_bytes()
        assert saved.read_bytes() != e.save(tmp_path / "rough.png", **options).read_bytes()
    c = dt.Explainer(network, method="deep-taylor").contrast(torch.rand(1, 1, 64, 64)).smooth()
    close((c.relevance + c.shared).sum(), c.ledger.input_total.sum(), 1e-4)
    with pytest.raises(
        dt.InputError, match=r"Only maps of pictures can be smoothed; this relevance has the shape \(1, 2\)"
    ):
        dt.explain(nn.Linear(2, 2), torch.rand(1, 2), 0).smooth()


def test_a_former_name_of_the_ledger_warns() -> None:
    ledger = make_residual_ledger(torch.ones(1, 2), torch.ones(1))
    with pytest.warns(DeprecationWarning, match="input_total"):
        assert ledger.held is ledger.input
