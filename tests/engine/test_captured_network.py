"""One explainer for many inputs: captured with the first of them, and with what its network was loaded with."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from cli_model import flower_net, pixels
from deeptaylor.engine.captured_network import CapturedNetwork
from refusals import mlp, says

NAMES = ("daisy", "rose", "tulip")


def flowers(names: tuple[str, ...] | None = NAMES) -> dt.Pretrained:
    torch.manual_seed(0)
    network = flower_net()
    nn.init.constant_(network[7].bias, 0.5)
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=0.5, std=0.25, interpolation="bilinear"
    )
    return dt.Pretrained(network, names, preparation)


def same(a: dt.Explanation, b: dt.Explanation) -> None:
    assert torch.equal(a.relevance, b.relevance)
    assert torch.equal(a.score, b.score)
    assert (a.titles, a.target is None) == (b.titles, b.target is None)
    assert all(np.array_equal(p, q) for p, q in zip(a.photos, b.photos, strict=True))


# --- the first capture ------------------------------------------------------------------------------------------------


def test_without_an_example_the_first_input_is_captured(captures: list[Any]) -> None:
    explainer = dt.Explainer(mlp(), domain=dt.NonNegative(), bias="neuron")
    assert isinstance(explainer.captured, CapturedNetwork)
    assert not explainer.captured.is_captured
    assert captures == []
    x = torch.rand(2, 4)
    e = explainer.explain(x)
    assert explainer.captured.is_captured
    assert torch.equal(e.relevance, dt.Explainer(mlp(), x, dt.NonNegative(), bias="neuron").explain(x).relevance)
    explainer.explain(torch.rand(5, 4))
    assert len(captures) == 2  # one of each explainer


@pytest.mark.parametrize("ask", ["forward", "contrast", "relevance_at"])
def test_every_way_to_ask_begins_it(ask: str) -> None:
    explainer, x = dt.Explainer(mlp(), domain=dt.NonNegative()), torch.rand(2, 4)
    found = explainer.relevance_at("1", x, 0) if ask == "relevance_at" else getattr(explainer, ask)(x, 0)
    assert explainer.captured.is_captured
    assert found is not None


def test_asked_about_its_plan_before_any_input_it_says_what_to_do() -> None:
    explainer = dt.Explainer(mlp())
    for ask in (lambda: explainer.plan, explainer.double):
        with pytest.raises(dt.InputError, match=r"Nothing was captured yet.*dt\.Explainer\(model, example\)"):
            ask()
    assert explainer.refresh() is explainer


def test_where_photographs_have_a_size_the_plan_is_known_before_any() -> None:
    explainer = flowers().explainer()
    assert explainer.plan.rows
    assert explainer.captured.example[0].shape == (1, 3, 24, 24)
    same(explainer.explain(pixels()), dt.explain(flowers(), pixels()))


def test_an_input_that_is_refused_leaves_it_as_it_was() -> None:
    explainer = dt.Explainer(mlp(), domain=dt.NonNegative())
    with pytest.raises(dt.InputError, match="declared non-negative"):
        explainer.explain(-torch.ones(1, 4))
    with pytest.raises(dt.InputError, match="does not take"):
        explainer.explain(torch.ones(1, 5))
    assert not explainer.captured.is_captured
    assert explainer.explain(torch.ones(1, 4)).relevance.shape == (1, 4)


def test_copied_and_saved_before_and_after_the_first_input() -> None:
    explainer, x = flowers().explainer(bias="spread"), pixels()
    before = [copy.deepcopy(explainer), pickle.loads(pickle.dumps(explainer))]
    wanted = explainer.explain(x, "rose")
    after = [copy.deepcopy(explainer), pickle.loads(pickle.dumps(explainer))]
    assert [other.captured.is_captured for other in (*before, *after)] == [False, False, True, True]
    for other in (*before, *after):
        same(other.explain(x, "rose"), wanted)


# --- what a network was loaded with -----------------------------------------------------------------------------------


def test_one_explainer_for_many_photographs(tmp_path: Path, captures: list[Any]) -> None:
    p = flowers()
    explainer = p.explainer(bias="neuron")
    Image.fromarray(pixels(1)).save(tmp_path / "a.png")
    for photo in (pixels(0), tmp_path / "a.png", [pixels(2), Image.fromarray(pixels(3))]):
        for target in (None, "rose", ["tulip", "daisy"], dt.margin("rose", "tulip")):
            same(explainer.explain(photo, target), dt.explain(p, photo, target, bias="neuron"))
        c, wanted = explainer.contrast(photo, "rose", "daisy"), dt.contrast(p, photo, "rose", "daisy", bias="neuron")
        same(c, wanted)
        assert c.rivals == wanted.rivals
    assert len(captures) == 2  # its own, and the one that dt.explain and dt.contrast keep


@pytest.mark.parametrize("example", [None, "photo", "tensor"])
def test_an_explainer_of_what_was_loaded(example: str | None) -> None:
    p = flowers()
    given = {None: None, "photo": pixels(5), "tensor": p.preprocess(Image.fromarray(pixels(5)))[0]}[example]
    explainer = dt.Explainer(p, given, bias="neuron")
    assert explainer.captured.is_captured == (example is not None)
    same(explainer.explain(pixels(), "tulip"), dt.explain(p, pixels(), "tulip", bias="neuron"))


def test_an_array_of_photographs_is_a_batch_and_one_of_real_numbers_is_prepared() -> None:
    explainer = flowers().explainer(bias="neuron")
    both = explainer.explain(np.stack([pixels(0), pixels(1)]), "rose")
    assert len(both.photos) == 2
    x = torch.cat([flowers().preprocess(Image.fromarray(pixels(k)))[0] for k in (0, 1)])
    for prepared in (x, x.numpy(), [x[:1], x[1:]]):
        e = explainer.explain(prepared, "rose")
        assert torch.equal(e.relevance, both.relevance)
        assert e.photos == ()
    with pytest.raises(dt.InputError, match=r"one shape; these have \(3, 24, 24\), \(3, 20, 24\)"):
        explainer.explain([x[:1], x[1:, :, :20]])


def test_photographs_follow_a_network_that_moved_and_that_is_noted() -> None:
    p = flowers()
    explainer = p.explainer(bias="neuron")
    explainer.explain(pixels())
    p.network.double()
    with pytest.warns(dt.DeepTaylorWarning, match="was moved to cpu as torch.float64"):
        e = explainer.explain(pixels(), "rose")
    assert e.relevance.dtype is torch.float64
    assert any("its explainer was moved with it" in note for note in e.notes)
    assert not explainer.explain(pixels(), "rose").notes


def test_the_domain_is_not_given_twice() -> None:
    with pytest.raises(dt.InputError, match="already has a domain"):
        dt.Explainer(flowers(), domain=dt.Real())
    with pytest.raises(dt.PlanError, match=r"or what dt\.load returns; got the str"):
        dt.Explainer("squeezenet1_1")  # type: ignore[arg-type]


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("rose", 1),
        (np.int64(1), 1),
        (np.array([1, 2]), torch.tensor([1, 2])),
        (["rose", "daisy"], torch.tensor([[1, 0], [1, 0]])),
        ([1, np.int32(0)], torch.tensor([[1, 0], [1, 0]])),
        ([["rose"], ["tulip"]], torch.tensor([[1], [2]])),
        (np.array(["rose", "daisy"]), torch.tensor([[1, 0], [1, 0]])),
        (np.array([[1, 0], [2, 0]]), torch.tensor([[1, 0], [2, 0]])),
        (np.array([[1.0, 0, 0], [0, -1, 0]]), torch.tensor([[1.0, 0, 0], [0, -1, 0]])),
        (dt.margin("rose", "tulip"), dt.margin(1, 2)),
        (dt.margin(np.array([1, 0]), "tulip"), dt.margin(torch.tensor([1, 0]), 2)),
    ],
    ids=str,
)
def test_targets_as_users_write_them(target: Any, plain: Any) -> None:
    explainer, x = flowers().explainer(bias="neuron"), [pixels(0), pixels(1)]
    found, wanted = explainer.explain(x, target), explainer.explain(x, plain)
    same(found, wanted)
    assert torch.equal(explainer(flowers().read(x)[0], target)[1], wanted.relevance)


def test_the_titles_say_what_was_asked() -> None:
    explainer = flowers().explainer(bias="neuron")
    assert explainer.explain([pixels(0), pixels(1)], ["rose", 0]).titles == (("rose", "daisy"), ("rose", "daisy"))
    assert explainer.explain(pixels(), dt.margin("rose", "tulip")).titles == (("rose rather than tulip",),)
    assert explainer.explain(pixels(), dt.margin("rose")).titles == ()
    assert explainer.explain(pixels(), lambda out: out[:, 0]).titles == ()


@pytest.mark.parametrize("against", ["daisy", ["daisy"], {"daisy": 2.0}, np.array([0]), torch.tensor([0])], ids=str)
def test_rivals_as_users_write_them(against: Any) -> None:
    explainer = flowers().explainer(bias="neuron")
    found, wanted = explainer.contrast(pixels(), "rose", against), explainer.contrast(pixels(), 1, 0)
    same(found, wanted)
    assert found.rivals == wanted.rivals


def test_names_that_do_not_exist_are_refused_before_anything_is_captured(captures: list[Any]) -> None:
    explainer = flowers().explainer()
    for target in ("ros", ["rose", "ros"], dt.margin("rose", "ros")):
        with pytest.raises(dt.TargetError, match=r"No class is called 'ros'\. Names like it:\n  1  rose"):
            explainer.explain(pixels(), target)
    with pytest.raises(dt.TargetError, match="have no names; give the number"):
        flowers(None).explainer().explain(pixels(), "rose")
    with pytest.raises(dt.TargetError) as info:
        dt.explain(mlp(), torch.rand(1, 4), dt.margin(0, "rose"))
    says(info.value, "'rose' is given by name", "has no class names", "dt.load(network, class_names=")
    assert captures == []


def test_classes_by_name_are_judged() -> None:
    p = flowers()
    x = torch.cat([p.preprocess(Image.fromarray(pixels(k)))[0] for k in range(3)])
    names = ["rose", "daisy", "tulip"]
    found = dt.evaluate(p, x, "random", classes=names).of("flipping", "random").values
    wanted = dt.evaluate(p, x, "random", classes=torch.tensor([1, 0, 2])).of("flipping", "random").values
    assert np.array_equal(found, wanted)
    assert not np.array_equal(found, dt.evaluate(p, x, "random", classes=[0, 1, 0]).of("flipping", "random").values)


# --- how they show themselves -----------------------------------------------------------------------------------------


def test_everything_a_user_holds_shows_itself_in_few_lines() -> None:
    p = flowers()
    explainer = p.explainer(rules={"0": dt.rules.Flat()})
    unbegun = repr(explainer)
    e, c = explainer.explain([pixels(k) for k in range(6)]), explainer.contrast(pixels())
    root = dt.nearest_root(lambda x: x.sum(1) - 1, torch.ones(1, 3), domain=dt.Real())
    found = dt.evaluate(p, p.read(pixels())[0], ["random"])
    held = (p, explainer, e, c, e.ledger, e.check(), explainer.plan, p.preparation, p.domain, found, root)
    for thing in held:
        assert repr(thing).count("\n") < 3, thing
        assert len(repr(thing)) < 400, thing
    assert unbegun == "<Explainer of Sequential, not captured yet: bias='returned', 1 rule(s) of your own>"
    assert "captured for samples of shape (3, 24, 24)" in repr(explainer)
    assert "3 classes" in repr(p)
    assert repr(e).startswith("<Explanation of ")
    assert "relevance (6, 3, 24, 24), f = " in repr(e)
    assert repr(c).startswith("<Contrast of ")
    assert "Ledger of 6 sample(s): f = " in repr(e.ledger)
    assert "6 score(s): not conservative" in repr(e.check())
    assert repr(explainer.plan).startswith(f"<Plan of {len(explainer.plan.rows)} steps: ")
    assert "by flipping: random" in repr(found)
    assert repr(dt.Box(torch.zeros(3, 8, 8), 1.0)) == "Box(low=<0 to 0, shape (3, 8, 8)>, high=1.0)"
