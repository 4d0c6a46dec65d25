"""`dt.load` of a module: what must be said beside it, and what is said when it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor import assets
from loading import NAMES, PREPARATION, SAID, explained, refused, small
from untouched import changes, snapshot


def test_a_module_in_memory() -> None:
    network = small().train()
    before = snapshot(network)
    with pytest.warns(dt.DeepTaylorWarning, match="training mode"):
        model = dt.load(network, **SAID)
    assert model.network is network
    assert changes(network, before) == []
    assert model.class_names == NAMES
    assert model.preparation is PREPARATION
    explained(dt.load(small(), **SAID))


def test_what_is_unknown_must_be_given_and_the_error_shows_how() -> None:
    both = refused("Sequential does not say how photographs are prepared, nor what its classes are called.", small())
    assert "A wrong guess would not be noticed, so nothing is guessed" in both
    assert 'preparation=dt.Preparation(size=224, resize=256, channels="RGB", white=1,' in both
    assert 'class_names=["cat", "dog", "fish"]' in both
    one = refused("Sequential does not say what its classes are called.", small(), preparation=PREPARATION)
    assert "dt.Preparation(" not in one
    one = refused("Sequential does not say how photographs are prepared.", small(), class_names=None)
    assert "class_names=" not in one
    assert "domain=dt.Real()" in one


def test_the_example_in_the_error_is_code_that_runs() -> None:
    message = refused("does not say", small())
    example = message.split("\n\n")[1].replace("size=224, resize=256", "size=16, resize=16")
    assert eval(example, {"dt": dt, "model": small()}).class_names == ("cat", "dog", "fish")


def test_a_domain_in_place_of_a_preparation() -> None:
    model = dt.load(nn.Linear(3, 2), domain=dt.NonNegative(), class_names=None)
    assert model.domain == dt.NonNegative()
    assert model.preparation is None
    refused("give a preparation or a domain, not both", small(), domain=dt.Real(), **SAID)


def test_class_names() -> None:
    assert dt.load(small(), preparation=PREPARATION, class_names=None).class_names is None
    refused(
        "Sequential has 3 outputs, but there are 2 class names.",
        small(),
        preparation=PREPARATION,
        class_names=["a", "b"],
    )
    refused(
        "class_names is 'cats', and must be a list of names, None or 'imagenet'.",
        small(),
        preparation=PREPARATION,
        class_names="cats",
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"class_names": {"a": 0, "b": 1, "c": 2}}, "class_names is a dict; it must be a list of names, in order."),
        ({"class_names": {"a", "b", "c"}}, "class_names is a set; it must be a list of names, in order."),
        ({"class_names": [1, 2, 3]}, "class_names must be text, each of them."),
        ({"preparation": {"size": 16}}, "preparation is a dict; it must be a dt.Preparation."),
        ({"preparation": None, "domain": (0, 1)}, "domain is a tuple; it must be a domain, such as dt.Box(0, 1)."),
        ({"output": "logits"}, "an output is chosen in an ONNX or Caffe file; Sequential is not one."),
    ],
)
def test_what_is_said_in_another_type(said: dict[str, Any], message: str) -> None:
    refused(message, small(), **SAID | said)


def test_a_source_of_another_type() -> None:
    refused("source is a OrderedDict; it must be a name, a file or a torch.nn.Module.", small().state_dict(), **SAID)


def test_a_network_that_gives_no_numbers() -> None:
    network = small()
    network[0].weight.data[0, 0, 0, 0] = torch.nan
    refused("Sequential gives nan, nan, nan, … for a gray picture: its weights are damaged", network, **SAID)
    refused("Sequential has no weights yet: they are on the device 'meta'.", small().to("meta"), **SAID)
    refused("It computes in torch.float64; convert it: network.float()", small().double(), **SAID)


@pytest.mark.skipif(
    assets._find_installed(assets.ASSETS["imagenet-names"]) is None, reason="the demo extra is not installed"
)
def test_the_thousand_classes_by_one_word() -> None:
    model = dt.load(small(1000), preparation=PREPARATION, class_names="imagenet")
    assert model.class_names is not None
    assert model.class_names[285] == "Egyptian cat"


def test_what_is_said_is_tried_with_a_gray_picture() -> None:
    gray = dt.Preparation(size=16, resize=16, channels="L", white=1, mean=0, std=1, interpolation="box")
    refused(
        "Sequential does not take an input of shape (1, 1, 16, 16), as it is prepared: ",
        small(),
        preparation=gray,
        class_names=None,
    )
    larger = dt.Preparation(size=24, resize=24, channels="RGB", white=1, mean=0, std=1, interpolation="box")
    refused("Sequential does not take an input of shape (1, 3, 24, 24)", small(), preparation=larger, class_names=None)
