"""Things that are not networks, networks that fail, and networks with odd parts: each works, or the error says why."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph.failure import describe_failure, is_input_rejected, summarise_error
from refusals import mlp, says

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit:DeprecationWarning", "ignore:Initializing zero-element tensors is a no-op:UserWarning"
)
X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """A function of a small network and its input."""

    def __init__(self, f: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.f = mlp(), f

    def forward(self, x: Tensor) -> Any:
        return self.f(self.net, x)


def explained(f: Callable[[nn.Module, Tensor], Any], x: Tensor = X) -> dt.Explanation:
    network = Of(f).eval()
    found = dt.explain(network, x, 0, bias="neuron")
    torch.testing.assert_close(found.score, network(x)[:, 0])
    return found


# --- not a network ----------------------------------------------------------------------------------------------------


def _forest() -> Any:
    ensemble = pytest.importorskip("sklearn.ensemble")
    return ensemble.RandomForestClassifier(2).fit(np.eye(4), [0, 1, 0, 1])


NOT_NETWORKS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "script": (lambda: torch.jit.script(mlp()), ("TorchScript", "load_state_dict")),
    "trace": (lambda: torch.jit.trace(mlp(), X), ("TorchScript",)),
    "a scripted part": (lambda: nn.Sequential(torch.jit.script(mlp()), nn.ReLU()), ("module '0'", "TorchScript")),
    "lambda": (lambda: lambda v: v, ("function", "torch.nn.Module", "forward")),
    "function": (lambda: F.relu, ("function", "forward")),
    "partial": (lambda: functools.partial(F.linear, weight=torch.ones(3, 4)), ("partial", "forward")),
    "method": (lambda: mlp().forward, ("method", "forward")),
    "class": (lambda: Of, ("the class Of", "Of(…)")),
    "torch's class": (lambda: nn.Linear, ("the class Linear", "Linear(…)")),
    "array": (lambda: np.zeros(3), ("ndarray",)),
    "tensor": (lambda: X, ("Tensor",)),
    "None": (lambda: None, ("NoneType",)),
    "path": (lambda: "/nowhere/network.pt", ("/nowhere/network.pt", "dt.load")),
    "weights": (lambda: mlp().state_dict(), ("Weights alone", "load_state_dict")),
    "program": (lambda: torch.export.export(mlp(), (X,)), ("program.module()",)),
    "list": (lambda: [mlp()], ("list",)),
    "ModuleList": (lambda: nn.ModuleList([mlp()]), ("ModuleList has no forward",)),
    "ModuleDict": (lambda: nn.ModuleDict({"a": mlp()}), ("ModuleDict has no forward",)),
    "explainer": (lambda: dt.Explainer(mlp()), ("explainer already",)),
}


@pytest.mark.parametrize("kind", NOT_NETWORKS)
def test_what_is_not_a_network_is_named_with_what_to_give(kind: str) -> None:
    make, words = NOT_NETWORKS[kind]
    for ask in (lambda m: dt.explain(m, X), lambda m: dt.contrast(m, X), lambda m: dt.Explainer(m, X)):
        with pytest.raises(dt.PlanError) as info:
            ask(make())
        says(info.value, *words)


def test_a_forest_is_explained_in_one_call_alone() -> None:
    forest = _forest()
    for ask in (lambda m: dt.contrast(m, X), lambda m: dt.Explainer(m, X)):
        with pytest.raises(dt.PlanError) as info:
            ask(forest)
        says(info.value, "RandomForestClassifier", "scikit-learn", "dt.explain(model, rows, background=X_train)")
    with pytest.raises(dt.InputError, match="give background=X_train"):
        dt.explain(forest, torch.rand(2, 4))
    assert dt.explain(forest, torch.rand(2, 4), background=np.eye(4)).check().accounted


def test_as_taken_wants_a_network_that_runs() -> None:
    with pytest.raises(dt.InputError, match=r"torch\.nn\.Module; got function"):
        dt.as_taken(lambda v: v, X)  # type: ignore[arg-type]
    with pytest.raises(dt.CaptureError, match=r"raises ZeroDivisionError: division by zero, at .*test_odd_networks"):
        dt.as_taken(Of(lambda n, v: n(v) * (1 / 0)), X)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))])
def test_lazy_layers_have_weights_only_after_a_call(lazy: nn.Module) -> None:
    with pytest.raises(dt.PlanError, match=r"lazy and has no weights yet. Call the network once, model\(x\)"):
        dt.explain(lazy, X)
    lazy(X)
    assert dt.explain(lazy, X).relevance.shape == X.shape


# --- errors of the network's own --------------------------------------------------------------------------------------


def _deep(levels: int, f: Callable[[], Any]) -> Any:
    return f() if levels == 0 else _deep(levels - 1, f)


class _UnusualError(Exception):
    """An error of the user's own."""


def _raise(error: Exception) -> Any:
    raise error


OWN: dict[str, tuple[Callable[[], Any], str]] = {
    "NameError": (lambda: not_defined, "name 'not_defined' is not defined"),  # type: ignore[name-defined]  # noqa: F821
    "ZeroDivisionError": (lambda: 1 / 0, "division by zero"),
    "KeyError": (lambda: {"a": 1}["b"], "'b'"),
    "IndexError": (lambda: list(range(2))[7], "list index out of range"),
    "AttributeError": (lambda: nn.ReLU().nothing, "'ReLU' object has no attribute 'nothing'"),
    "TypeError": (lambda: mlp()(X, X), "Sequential.forward() takes 2 positional arguments but 3 were given"),
    "ValueError": (lambda: int("seven"), "invalid literal for int()"),
    "AssertionError": (lambda: _raise(AssertionError()), ""),
    "RuntimeError": (lambda: _raise(RuntimeError("no weights were loaded")), "no weights were loaded"),
    "FileNotFoundError": (lambda: open("/nowhere/at/all"), "[Errno 2] No such file or directory"),  # noqa: PTH123, SIM115
    "_UnusualError": (lambda: _raise(_UnusualError("mine")), "mine"),
}


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("kind", OWN)
def test_an_error_in_the_users_code_is_named_with_its_line(kind: str, depth: int) -> None:
    fails, message = OWN[kind]
    wrong = [
        (dt.CaptureError, "own forward pass raises", lambda: dt.explain(Of(lambda n, v: _deep(depth, fails)), X)),
        (dt.TargetError, "callable target raises", lambda: dt.explain(mlp(), X, lambda o: _deep(depth, fails))),
    ]
    for expected, words, ask in wrong:
        with pytest.raises(expected) as info:
            ask()
        says(info.value, words, f"{kind}: {message}" if message else kind, "test_odd_networks.py:")
        assert "does not take" not in str(info.value)
        assert type(info.value.__cause__).__name__ == kind


@pytest.mark.parametrize("kind", OWN)
def test_loading_names_the_error_too(kind: str) -> None:
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    with pytest.raises(dt.LoadError) as info:
        dt.load(Of(lambda n, v: OWN[kind][0]()).eval(), preparation=preparation, class_names=None)
    says(info.value, "own forward pass raises", kind, "test_odd_networks.py:")


def test_what_torch_rejects_is_about_the_input() -> None:
    for f in (lambda n, v: n(v[:, :3]), lambda n, v: v @ torch.ones(7, 2)):
        with pytest.raises(dt.InputError, match=r"does not take an input of shape \(3, 4\)"):
            dt.explain(Of(f), X)


def test_an_error_of_ours_stays_itself() -> None:
    error = dt.TargetError("so")
    assert describe_failure(mlp(), [X], error) is error
    assert summarise_error(ValueError("so.")) == "ValueError: so"
    with pytest.raises(RuntimeError) as info:
        torch.ones(2) @ torch.ones(3)
    assert is_input_rejected(info.value)


# --- targets and outputs that are not real numbers --------------------------------------------------------------------


COMPLEX: list[Callable[[Tensor], Tensor]] = [
    lambda o: o[:, 0] * 1j,
    lambda o: o[:, 0] + 1j,
    lambda o: o[:, 0] * torch.tensor(1j),
    lambda o: o[:, 0].to(torch.complex64),
    lambda o: torch.complex(o[:, 0], o[:, 1]),
    lambda o: torch.view_as_complex(o[:, :2].contiguous()),
    lambda o: torch.fft.fft(o)[:, 0],
]


@pytest.mark.parametrize("score", COMPLEX)
def test_a_complex_score_is_refused(score: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(dt.TargetError, match="real numbers; it returned complex numbers"):
        dt.explain(mlp(), X, score)
    with pytest.raises(dt.PlanError, match="output holds complex numbers"):
        dt.explain(Of(lambda n, v: score(n(v)).unsqueeze(1)), X)


@pytest.mark.parametrize("score", [lambda o: o[:, 0].long(), lambda o: o[:, 0] > 0, lambda o: o.argmax(1)])
def test_whole_numbers_and_booleans_are_no_scores(score: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(dt.TargetError, match="must return real numbers"):
        dt.explain(mlp(), X, score)
    with pytest.raises(dt.PlanError, match="a score must be a real number"):
        dt.explain(Of(lambda n, v: score(n(v)).unsqueeze(1)), X)


@pytest.mark.parametrize("nothing", [None, 1.0, "words", [], {}])
def test_a_network_that_returns_no_tensor(nothing: Any) -> None:
    with pytest.raises(dt.PlanError, match="returns no tensor, but"):
        dt.explain(Of(lambda n, v: nothing), X)


# --- empty axes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0, 5), (2, 0, 4)])
def test_an_input_with_an_axis_of_length_zero(shape: tuple[int, ...]) -> None:
    with pytest.raises(dt.InputError, match="an axis of length 0 holds no values"):
        dt.explain(nn.Linear(shape[-1], 4), torch.rand(shape))


@pytest.mark.parametrize(
    "f",
    [
        lambda n, v: n(v) + F.linear(v[:, :0], torch.zeros(3, 0)),
        lambda n, v: n(v) + v[:, 4:] @ torch.zeros(0, 3),
        lambda n, v: n(v) + F.linear(n(v)[:, 3:], torch.zeros(3, 0), torch.ones(3)),
    ],
)
def test_a_layer_without_inputs_is_named(f: Callable[[nn.Module, Tensor], Tensor]) -> None:
    with pytest.raises(dt.PlanError, match="A layer has no inputs: its weights have shape"):
        explained(f)


def test_a_hidden_layer_of_no_units_and_an_output_of_none() -> None:
    with pytest.raises(dt.PlanError, match=r"A layer has no inputs: its weights have shape \(2, 0\)"):
        dt.explain(nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 2)), X)
    for empty in (nn.Linear(4, 0), Of(lambda n, v: n(v)[:, 3:]), Of(lambda n, v: n(v[:0]))):
        with pytest.raises(dt.PlanError, match="it is empty, and there is no score"):
            dt.explain(empty, X)


@pytest.mark.parametrize(
    "f",
    [
        lambda n, v: n(torch.cat([torch.zeros(0), v], 1)),
        lambda n, v: torch.cat([n(v), torch.tensor([])], 1),
        lambda n, v: torch.cat([torch.zeros(0), n(v), torch.zeros(0), n(v)], -1),
        lambda n, v: n(torch.cat([torch.zeros(0, dtype=torch.long), v], 1)),
        lambda n, v: n(torch.concat((v.new_zeros(0), v), dim=1)),
        lambda n, v: n(torch.cat([v[:, :0], v], 1)),
        lambda n, v: n(torch.cat([torch.zeros(0), v])),
    ],
)
def test_empty_parts_of_a_concatenation_are_left_out(f: Callable[[nn.Module, Tensor], Tensor]) -> None:
    expected = dt.explain(mlp(), X, 0, bias="neuron")
    torch.testing.assert_close(explained(f).relevance, expected.relevance)


# --- operations that decide, draw, or cut samples off -----------------------------------------------------------------


@pytest.mark.parametrize(
    "f",
    [
        lambda n, v: torch.cond(v.sum() > 0, lambda a: a * 2, lambda a: -a, (n(v),)),
        lambda n, v: n(torch.cond(v.sum() > 0, lambda a: a * 2, lambda a: -a, (v,))),
        lambda n, v: n(v) * torch.cond(v.sum() > 0, lambda: torch.ones(3), lambda: torch.zeros(3)),
        lambda n, v: torch.cond(
            v.sum() > 0,
            lambda a: torch.cond(a.max() > 1, lambda b: b * 2, lambda b: b * 3, (a,)),
            lambda a: a * 1.0,
            (n(v),),
        ),
        lambda n, v: n(torch.while_loop(lambda a: a.sum() < 99, lambda a: (a + 1,), (v,))[0]),
    ],
)
def test_control_flow_of_torch_is_refused_with_the_line(f: Callable[[nn.Module, Tensor], Tensor]) -> None:
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.explain(Of(f), X)
    says(info.value, "control flow by the data's values", "torch.where", "test_odd_networks.py")
    assert "eval_with_key" not in str(info.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda n, v: F.rrelu(n(v)),
        lambda n, v: torch.rrelu(n(v), 0.1, 0.3),
        lambda n, v: F.rrelu(n(v), 0.1, 0.3, inplace=True),
        lambda n, v: F.rrelu(n(v), 0.2, 0.4, n.training),
        lambda n, v: nn.RReLU(0.1, 0.3).eval()(n(v)),
    ],
)
def test_rrelu_in_eval_mode_is_a_leaky_relu(f: Callable[[nn.Module, Tensor], Tensor]) -> None:
    assert math.isfinite(float(explained(f).relevance.sum()))


def test_rrelu_in_training_mode_draws() -> None:
    with pytest.raises(dt.PlanError, match="draws random numbers in eval mode"):
        dt.explain(Of(lambda n, v: F.rrelu(n(v), training=True)), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda n, v: n(torch.cat([v[1:], v[:1]])),
        lambda n, v: n(torch.cat([v[-1:], v[:-1]])),
        lambda n, v: torch.cat([n(v)[1:], n(v)[:1]]),
        lambda n, v: n(torch.cat([v[1:], torch.zeros(1, 4)])),
        lambda n, v: n(torch.cat([torch.zeros(1, 4), v])[:-1]),
        lambda n, v: n(torch.cat([v[:1], v[1:]])),
        lambda n, v: n(torch.cat([v[::2], v[1::2]])),
        lambda n, v: torch.cat([n(v)[:2], n(v)[2:]]),
    ],
)
@pytest.mark.parametrize("samples", [3, 5])
def test_samples_that_are_cut_off_and_joined_are_refused(
    f: Callable[[nn.Module, Tensor], Tensor], samples: int
) -> None:
    with pytest.raises((dt.PlanError, dt.CaptureError), match="sample"):
        dt.explain(Of(f), torch.rand(samples, 4))


# --- sizes that depend on values --------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Rows sorted by their expert, and split by how many each has, as mixtures of experts do it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.sum(1) > 2).long()
        sizes = torch.bincount(chosen, minlength=2).tolist()
        parts = x[chosen.argsort()].split(sizes)
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])


def test_sizes_that_depend_on_values_are_refused_in_our_words() -> None:
    with pytest.raises(dt.CaptureError) as info:
        dt.explain(Experts(), X)
    says(info.value, "depends on the values of the data", "dt.as_taken(model, x)")


def test_lists_of_values_are_taken_as_they_were() -> None:
    network = Of(lambda n, v: n(v) * sum(map(sum, torch.relu(v).gt(0.5).long().tolist())))
    x = X[:1]
    taken = dt.as_taken(network, x)
    torch.testing.assert_close(dt.explain(taken, x, 0).score, network(x)[:, 0])


@pytest.mark.parametrize("name", ["XLM", "Flaubert", "JetMoe"])
def test_small_networks_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "num_labels": 3, "max_position_embeddings": 32, "pad_token_id": 0}
    sizes |= (
        {"emb_dim": 16, "n_layers": 1, "n_heads": 2}
        if name != "JetMoe"
        else {"hidden_size": 16, "num_hidden_layers": 1, "num_key_value_heads": 2, "kv_channels": 8}
        | {"intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    )
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, e: Tensor) -> Tensor:
            return self.model(inputs_embeds=e).logits

    e = torch.rand(2, 7, 16)
    if name == "JetMoe":
        with pytest.raises(dt.CaptureError, match="depends on the values of the data"):
            dt.explain(Logits(), e)
    else:
        torch.testing.assert_close(dt.explain(Logits(), e, 0).score, model(inputs_embeds=e).logits[:, 0])
