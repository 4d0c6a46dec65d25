"""The activation of one inner unit as the score: the same map as of the network that was really cut there."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.target import Unit, find_channel_axis
from reference import Domain, Graph
from small_networks import Attention, Net, batch, close, mlp, small_cnn

PICTURES = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
TOKENS = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
BOX = dt.Box(0, 1)


@functools.cache
def sequence(bias: str = "returned") -> tuple[nn.Sequential, dt.Explainer]:
    """A network with its explainer, shared by tests that change neither."""
    model = small_cnn().double()
    return model, dt.Explainer(model, PICTURES, BOX, bias=bias)


class Cut(nn.Module):
    """A network that really ends at an inner tensor."""

    def __init__(self, model: nn.Module, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.model, x)


def residual(model: Net, x: Tensor) -> Tensor:
    """Net up to its second ReLU, after the sum with the skip connection."""
    h = F.relu(model.bn1(model.conv1(x)))
    gate = torch.sigmoid(model.excite(F.relu(model.squeeze(h.mean((2, 3), keepdim=True)))))
    return F.relu(model.bn2(model.conv2(h * gate)) + h)


def attended(model: Attention, x: Tensor) -> Tensor:
    """Attention up to its GELU, of all tokens."""
    h = torch.cat([model.token.expand(x.shape[0], -1, -1), model.embed(x)], 1)
    n = model.norm(h)
    return F.gelu(h + model.attend(n, n, n, need_weights=False)[0])


def at(output: Tensor, channel: int, axis: int, place: object) -> Tensor:
    """Weights over an output, written out."""
    v = torch.zeros_like(output)
    for k in range(len(output)):
        own = output[k].movedim(axis - 1, 0)[channel]
        if place is None:
            chosen = torch.ones_like(own)
        elif place == "max":
            chosen = (own == own.max()).to(own.dtype)
        else:
            chosen = torch.zeros_like(own)
            chosen[place] = 1
        v[k].movedim(axis - 1, 0)[channel] = chosen
    return v


def really_cut(module: nn.Module, x: Tensor, domain: dt.Domain, bias: str, weights: Tensor) -> dt.Explanation:
    return dt.Explainer(module.eval(), x, domain, bias=bias).explain(x, weights)


def same(e: dt.Explanation, wanted: dt.Explanation) -> None:
    close(e.score, wanted.score)
    close(e.relevance, wanted.relevance)
    assert e.check().accounted


@pytest.mark.parametrize("bias", ["neuron", "returned", "spread"])
@pytest.mark.parametrize("place", [None, "max", (1, 2)])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_unit_of_a_sequence_is_that_of_its_slice(layer: int, place: Any, bias: str) -> None:
    model, explainer = sequence(bias)
    e = explainer.explain(PICTURES, dt.unit(str(layer), 2, place))
    part = model[: layer + 1]
    same(e, really_cut(part, PICTURES, BOX, bias, at(part(PICTURES), 2, 1, place)))


@pytest.mark.parametrize("bias", ["neuron", "returned", "spread"])
@pytest.mark.parametrize("place", [None, "max", (3, 4)])
def test_a_unit_behind_a_skip_connection(place: Any, bias: str) -> None:
    model, x = Net().eval().double(), batch(3)
    e = dt.Explainer(model, x, BOX, bias=bias).explain(x, dt.unit("relu_2", 4, place))
    part = Cut(model, residual)
    same(e, really_cut(part, x, BOX, bias, at(part(x).detach(), 4, 1, place)))


@pytest.mark.parametrize("place", [None, 1])
def test_a_feature_of_tokens_in_a_transformer(place: int | None) -> None:
    model = Attention().eval().double()
    e = dt.Explainer(model, TOKENS).explain(TOKENS, dt.unit("gelu", 5, place, axis=2))
    part = Cut(model, attended)
    wanted = at(part(TOKENS).detach(), 5, 2, place if place is None else (place,))
    same(e, really_cut(part, TOKENS, dt.Real(), "returned", wanted))


def test_a_unit_by_hand() -> None:
    # h = (x1, x1 + x2 + 4); at x = (1, 3) h2 = 8, of which x1 has 1, x2 has 3 and the bias 4
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 4.0]))
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    paper = dt.explain(model, x, dt.unit("1", 1), dt.NonNegative(), bias="neuron")
    assert paper.score.tolist() == [8]
    assert paper.relevance.tolist() == [[1, 3]]
    assert paper.ledger.bias.tolist() == [4]
    assert dt.explain(model, x, dt.unit("1", 1), dt.NonNegative()).relevance.tolist() == [[1, 3]]


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_a_unit_against_the_dense_reference(bias: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    model, x = model.double().eval(), PICTURES[:, :, :6, :6]
    g = Graph()
    g.input("x", Domain("box", 0.0, 1.0))
    g.affine("a", model[0], "x", kind="convolution")
    g.activation("b", torch.relu, "a", rectifier=True)
    g.affine("c", model[2], "b", kind="convolution")
    g.activation("d", torch.relu, "c", rectifier=True)
    wanted = g.explain(x, at(model[:4](x).detach(), 3, 1, None).numpy(), bias=bias)
    e = dt.explain(model, x, dt.unit("3", 3), BOX, bias=bias)
    close(e.relevance, torch.as_tensor(wanted.at["x"]))
    close(e.ledger.bias + e.ledger.input, torch.as_tensor(wanted.score))


# --- several channels, other ways to ask ------------------------------------------------------------------------------


def test_several_channels_are_one_map_each() -> None:
    _, explainer = sequence()
    e = explainer.explain(PICTURES, dt.unit("3", [0, 2], "max"))
    assert e.relevance.shape == (2, 2, 1, 8, 8)
    for k, channel in enumerate((0, 2)):
        one = explainer.explain(PICTURES, dt.unit("3", channel, "max"))
        close(e.relevance[:, k], one.relevance)
    assert "each of 2 channels of 3 at its most active place" in str(e.ledger)


def test_the_call_and_inner_layers_answer_for_a_unit_too() -> None:
    _, explainer = sequence()
    asked = dt.unit("3", 2)
    e = explainer.explain(PICTURES, asked)
    score, relevance = explainer(PICTURES, asked)
    close(score, e.score)
    close(relevance, e.relevance)
    close(explainer.relevance_at("2", PICTURES, asked).flatten(1).sum(1), e.score)
    close(e.at("2"), explainer.relevance_at("2", PICTURES, asked))
    assert explainer.cut_at("3") is explainer.cut_at("3"), "captured once"


def test_activations_are_what_the_layer_gives() -> None:
    model, explainer = sequence()
    found = explainer.activations("3", PICTURES)
    close(found, model[:4](PICTURES).detach())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_a_compiled_explainer_takes_a_unit() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4).double(), dt.NonNegative())
    x = torch.rand(3, 4, dtype=torch.float64)
    plain = explainer.explain(x, dt.unit("1", 2))
    close(explainer.compile().explain(x, dt.unit("1", 2)).relevance, plain.relevance)


def test_rules_for_what_comes_after_the_layer_do_not_stand_in_the_way() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4).double(), rules={"2": dt.rules.Epsilon()})
    assert explainer.explain(torch.rand(1, 4).double(), dt.unit("1", 0)).check().accounted


def test_an_explanation_of_a_unit_goes_to_a_file_and_back() -> None:
    e = sequence()[1].explain(PICTURES, dt.unit("2", 1))
    again = pickle.loads(pickle.dumps(e))
    assert again.target == Unit("2", 1)
    assert str(again.ledger) == str(e.ledger)


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dt.unit("2", 1), "Score: activation of channel 1 of 2, summed over its places."),
        (dt.unit("2", 1, "max"), "Score: activation of channel 1 of 2 at its most active place."),
        (dt.unit("2", 1, (3, 4)), "Score: activation of channel 1 of 2 at place 3, 4."),
        (dt.unit("7", 0), "Score: activation of channel 0 of 7."),
    ],
)
def test_the_ledger_says_what_the_score_is(asked: Unit, said: str) -> None:
    e = sequence()[1].explain(PICTURES, asked)
    assert str(e.ledger).splitlines()[0] == said
    assert asked.names[0] in repr(e)


def test_a_ledger_of_a_class_says_nothing_of_it() -> None:
    e = sequence()[1].explain(PICTURES)
    assert str(e.ledger).startswith("sample 0: ")


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dt.unit("33", 0), r"^There is no node or module '33'. Did you mean '3'\?$"),
        (dt.unit("features", 0), r"^There is no node or module 'features'. There are '0', '1', '2', '3', …$"),
        (dt.unit("3", 4), r"^The channel 4 is out of range: the layer '3' has 4 channels, 0 to 3.$"),
        (dt.unit("3", -1), r"^The channel -1 is out of range"),
        (dt.unit("3", [0, 9]), r"^The channel 9 is out of range"),
        (dt.unit("3", 0, (0, 4)), r"^The place \(0, 4\) is out of range: the layer '3' has \(4, 4\) places"),
        (
            dt.unit("3", 0, 1),
            r"^place must be 2 indices, each smaller than the layer's size \(4, 4\); got \(1,\).$",
        ),
        (dt.unit("7", 0, 1), r"^The layer '7' has one number per channel and no places; leave place out.$"),
        (dt.unit("3", 0, axis=4), r"^axis=4: the channel axis of '3' must be 1 to 3"),
    ],
)
def test_a_unit_that_there_is_not_is_refused(asked: Unit, said: str) -> None:
    _, explainer = sequence()
    with pytest.raises((dt.TargetError, dt.BoundaryError), match=said):
        explainer.explain(PICTURES, asked)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, 0), "A layer is given by its name"),
        (("3", "5"), "The channel of a unit must be a whole number, or several; got '5'"),
        (("3", []), "The channel of a unit"),
        (("3", 1.0), "The channel of a unit"),
        (("3", 0, "mean"), "The place of a unit must be None, 'max' or numbers"),
        (("3", 0, (0.5, 1)), "The place of a unit must be a whole number"),
    ],
)
def test_a_unit_written_wrongly_is_refused_at_once(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(dt.TargetError, match=said):
        dt.unit(*arguments)


def test_layers_without_channels_and_of_two_axes() -> None:
    with pytest.raises(dt.TargetError, match="gives one number per sample and has no channels: name another layer"):
        find_channel_axis("score", (2,), None)
    with pytest.raises(dt.TargetError, match="give axis=1 if the channels are along the first"):
        find_channel_axis("tokens", (2, 5, 8), None)
    assert [find_channel_axis("x", (2, 5, 8), axis) for axis in (1, 2, -1)] == [1, 2, 2]


@pytest.mark.parametrize("method", [dt.sensitivity, dt.taylor])
def test_methods_from_outside_refuse_a_unit(method: Any) -> None:
    more = {"root": torch.zeros(1, 4).double()} if method is dt.taylor else {}
    with pytest.raises(dt.TargetError, match="An inner unit is explained by"):
        method(mlp(), torch.rand(1, 4).double(), dt.unit("1", 0), **more)
