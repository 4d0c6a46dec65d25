"""Recipes: the graph that torch.export gives, from a file; and whatever they are not for, or is wrong with them."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import prepare
from deeptaylor.errors import CaptureError
from deeptaylor.graph import recipe as recipes
from deeptaylor.graph.capture import CapturedGraph, capture
from deeptaylor.graph.modes import forward_hooks, global_forward_hooks
from deeptaylor.graph.node import FREE_BATCH, find_batch_factor, module_path
from deeptaylor.graph.recipe import RECIPE_FOLDER, ShapeTensor, add_checksum, make_recipe, rebuild_graph
from deeptaylor.models.networks import (
    CATALOG,
    CaffeNet,
    EfficientNetLite,
    GoogLeNet,
    KerasResNet50,
    MobileNetV2,
    SqueezeNet,
    squeezenet1_1,
)
from deeptaylor.models.networks.paper_networks import OneLayer, TwoLayer

QUICK = ("squeezenet1_1", "caffenet", "one-layer", "two-layer")
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CATALOG]
KINDS = (SqueezeNet, MobileNetV2, EfficientNetLite, KerasResNet50, CaffeNet, GoogLeNet, OneLayer, TwoLayer)
X = torch.linspace(-0.5, 1.5, 28 * 56).reshape(1, 1, 28, 56)


def network_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CATALOG[name].build().eval()


def input_of(name: str, samples: int = 1) -> Tensor:
    x = torch.rand(samples, *CATALOG[name].preparation.shape, generator=torch.Generator().manual_seed(1))
    low, high = CATALOG[name].preparation.domain.bounds(x)
    return low + (high - low) * x


def explainer(network: nn.Module, x: Tensor, name: str = "two-layer", **settings: Any) -> dt.Explainer:
    return dt.Explainer(network, x, CATALOG[name].preparation.domain, **settings)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dt.Explainer]:
    """An explainer that takes no recipe."""

    def made(*args: Any, **settings: Any) -> dt.Explainer:
        with monkeypatch.context() as patch:
            patch.setattr(prepare, "rebuild_graph", lambda *_: None)
            return explainer(*args, **settings)

    return made


def refuse(*_: Any) -> None:
    raise AssertionError("the network was exported")


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "capture", refuse)


def shape_of(value: Any) -> Any:
    """The shape of a node's value, the size of the batch as None."""
    sizes = value.shape if isinstance(value, Tensor) else [value]
    return [None if find_batch_factor(n) == 1 else int(n) for n in sizes]


def described(captured: CapturedGraph) -> list[Any]:
    rows = [(n.name, n.op, n.target, str((n.args, n.kwargs)), module_path(n)) for n in captured.graph.nodes]
    values = [n.meta["val"] for n in captured.graph.nodes if n.op != "output"]
    return [rows, [(shape_of(v), getattr(v, "dtype", None), getattr(v, "device", None)) for v in values]]


# --- as torch.export gives it -----------------------------------------------------------------------------------------


def test_every_network_by_name_has_a_small_recipe() -> None:
    assert {path.stem for path in RECIPE_FOLDER.iterdir()} == set(CATALOG)
    assert all(path.stat().st_size < 100_000 for path in RECIPE_FOLDER.iterdir())
    assert [recipe for kind in KINDS for recipe in kind.recipes] == list(CATALOG)


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_what_torch_export_gives_now(name: str) -> None:
    network, x = network_of(name), input_of(name)
    now, made = capture(network, [x]), rebuild_graph(network, [x])
    assert made is not None
    assert described(made) == described(now)
    for field in (
        "output_name", "batch_range", "lowest_precision", "notes", "in_place_writes", "module_paths", "module_outputs",
        "cut_layer",
    ):  # fmt: skip
        assert getattr(made, field) == getattr(now, field), field
    assert made.output.name == now.output.name
    assert list(made.constants) == list(now.constants)
    assert all(made.constants[k].data_ptr() == t.data_ptr() for k, t in now.constants.items())
    kept = json.loads((RECIPE_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert kept == make_recipe(network, now), "python benchmarks/write_recipes.py writes them anew"


@pytest.mark.parametrize("name", ["squeezenet1_1", "two-layer", *[p for p in ALL if not isinstance(p, str)]])
def test_maps_and_plans_are_those_of_the_exported_network(
    name: str, exported: Callable[..., dt.Explainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = network_of(name), input_of(name, 3)
    theirs = exported(network, x[:1], name)
    monkeypatch.setattr(prepare, "capture", refuse)
    ours = explainer(network, x[:1], name)
    for batch in (x[:1], x):
        a, b = ours.explain(batch), theirs.explain(batch)
        assert torch.equal(a.relevance, b.relevance)
        assert a.notes == b.notes
        assert float(a.relevance.abs().sum()) > 0
    assert str(ours.plan) == str(theirs.plan)
    assert ours.captured.engine.layout == theirs.captured.engine.layout


def test_any_number_of_samples_is_explained_without_another_capture(no_export: None) -> None:
    ours = explainer(TwoLayer(), X)
    together = torch.cat([X, X.flip(3), X.flip(2)])
    e = ours.explain(together)
    assert len(ours.captured.engines) == 1
    assert ours.captured.engine.fixed_batch is None
    assert torch.allclose(e.relevance[1:2], ours.explain(X.flip(3)).relevance)
    assert e.notes == ours.explain(X).notes == ()


def test_explainers_are_copied_and_pickled(no_export: None) -> None:
    ours = explainer(TwoLayer(), X)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(twin.explain(X).relevance, ours.explain(X).relevance)


# --- what it is not for -----------------------------------------------------------------------------------------------


def hooked(network: nn.Module) -> nn.Module:
    network.relu1.register_forward_hook(lambda module, args, output: output * 2)
    return network


def with_a_forward_of_its_own(network: nn.Module) -> nn.Module:
    network.forward = lambda x: x.flatten(1).sum(1)
    return network


def with_another_module(network: nn.Module) -> nn.Module:
    network.relu1 = nn.GELU()
    return network


class Other(TwoLayer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "network",
    [
        hooked(TwoLayer()), with_a_forward_of_its_own(TwoLayer()), with_another_module(TwoLayer()), Other(),
        TwoLayer().double(), nn.Sequential(TwoLayer()), nn.Linear(2, 2), dt.as_taken(TwoLayer(), X),
    ],
    ids=["hook", "forward", "module", "subclass", "double", "inside", "another", "as taken"],
)  # fmt: skip
def test_a_network_that_is_not_just_so_has_none(network: nn.Module) -> None:
    assert rebuild_graph(TwoLayer(), [X]) is not None
    assert rebuild_graph(network, [X]) is None


def test_nor_has_one_while_every_module_has_a_hook() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert [len(place) for place in global_forward_hooks()] == [1, 0]
        assert rebuild_graph(TwoLayer(), [X]) is None
    finally:
        hook.remove()
    assert not any(forward_hooks(TwoLayer()))
    assert rebuild_graph(TwoLayer(), [X]) is not None


def test_nor_weights_of_other_shapes_nor_inputs_of_another_size() -> None:
    network = squeezenet1_1()
    assert rebuild_graph(network, [torch.rand(2, 3, 227, 227)]) is not None
    assert rebuild_graph(network, [torch.rand(1, 3, 224, 224)]) is None
    assert rebuild_graph(network, [torch.rand(1, 3, 227, 227).double()]) is None
    assert rebuild_graph(squeezenet1_1(classes=7), [torch.rand(1, 3, 227, 227)]) is None
    network.conv1.stride = (1, 1)
    assert rebuild_graph(network, [torch.rand(1, 3, 227, 227)]) is None


def test_a_network_that_was_changed_is_explained_as_it_is(exported: Callable[..., dt.Explainer]) -> None:
    network = with_another_module(TwoLayer())
    plain = explainer(TwoLayer(), X).explain(X).relevance
    e = explainer(network, X).explain(X)
    assert torch.allclose(e.score, network(X))
    assert torch.equal(e.relevance, exported(network, X).explain(X).relevance)
    assert not torch.allclose(e.relevance, plain)


@pytest.mark.parametrize("asked", [{"output": 0}, {}])
def test_where_an_output_or_a_layer_is_asked_for_it_is_exported(asked: dict[str, Any], no_export: None) -> None:
    if asked:
        with pytest.raises(AssertionError, match="was exported"):
            explainer(TwoLayer(), X, **asked)
    else:
        with pytest.raises(AssertionError, match="was exported"):
            explainer(TwoLayer(), X).activations("relu1", X)


# --- damaged ----------------------------------------------------------------------------------------------------------


def another_operation(recipe: dict[str, Any]) -> None:
    next(node for node in recipe["nodes"] if node[1] == "aten.relu.default")[1] = "aten.sigmoid.default"


def another_argument(recipe: dict[str, Any]) -> None:
    next(node for node in recipe["nodes"] if node[1] == "aten.unflatten.int")[2][2] = [4, 100]


def another_operand(recipe: dict[str, Any]) -> None:
    recipe["constants"]["p_detection1_bias"] = "detection2.bias"


def an_unknown_operation(recipe: dict[str, Any]) -> None:
    recipe["nodes"][0][1] = "aten.not_yet.default"


def a_missing_node(recipe: dict[str, Any]) -> None:
    del recipe["nodes"][2]


DAMAGES = [another_operation, another_argument, another_operand, an_unknown_operation, a_missing_node]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a recipe of the two-layer network in the place of ours."""
    monkeypatch.setattr(recipes, "RECIPE_FOLDER", tmp_path)
    return lambda text: tmp_path.joinpath("two-layer.json").write_text(text, encoding="utf-8") and None


def own() -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads((RECIPE_FOLDER / "two-layer.json").read_text(encoding="utf-8"))
    return recipe


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_recipe_is_not_read(damage: Callable[[dict[str, Any]], None], put: Callable[[str], None]) -> None:
    recipe = own()
    put(json.dumps(recipe))
    assert rebuild_graph(TwoLayer(), [X]) is not None
    damage(recipe)
    put(json.dumps(recipe))
    assert rebuild_graph(TwoLayer(), [X]) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_recipe_gives_no_wrong_map(
    damage: Callable[[dict[str, Any]], None], put: Callable[[str], None]
) -> None:
    network = TwoLayer()
    with torch.no_grad():
        network.detection1.bias.fill_(-0.2)
    put(json.dumps(own()))
    right = explainer(network, X).explain(X).relevance
    recipe = own()
    damage(recipe)
    put(json.dumps(add_checksum(recipe)))  # it says that it is whole
    e = explainer(network, X).explain(X)
    assert torch.equal(e.relevance, right)
    assert e.notes == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 99}'])
def test_what_is_no_recipe_is_passed_over(text: str, put: Callable[[str], None]) -> None:
    put(text)
    assert rebuild_graph(TwoLayer(), [X]) is None


def test_a_missing_file_is_passed_over(put: Callable[[str], None]) -> None:
    assert rebuild_graph(TwoLayer(), [X]) is None


@pytest.mark.parametrize(
    "name",
    ["aten.relu_.default", "aten.name.format", "aten.__dir__.x", "aten.relu", "os.system", "torch.load", "aten..", "x"],
)
def test_nothing_but_operations_that_write_nowhere_is_looked_up(name: str, put: Callable[[str], None]) -> None:
    recipe = own()
    recipe["nodes"][0][1] = name
    put(json.dumps(add_checksum(recipe)))
    assert rebuild_graph(TwoLayer(), [X]) is None


# --- what a recipe cannot say -----------------------------------------------------------------------------------------


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x, dtype=torch.float64) + x


class Merged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).reshape(x.shape[0], -1)


@pytest.mark.parametrize("network", [TwoOutputs(), Cast(), Merged()])
def test_no_recipe_is_written_of_what_it_cannot_hold(network: nn.Module) -> None:
    captured = capture(network, [torch.ones(1, 3)], 0 if isinstance(network, TwoOutputs) else None)
    with pytest.raises(CaptureError, match="recipe"):
        make_recipe(network, captured)


def test_a_rebuilt_graph_has_outlines_alone() -> None:
    made = rebuild_graph(TwoLayer(), [X])
    assert made is not None
    values = [n.meta["val"] for n in made.graph.nodes if n.op in ("placeholder", "call_function")]
    assert all(isinstance(v, ShapeTensor) and v.shape[0] == FREE_BATCH for v in values)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_explains_without_loading_what_exports(tmp_path: Path) -> None:
    """That takes longer than all the rest: a first heatmap would come seconds later."""
    photo = tmp_path / "pair.png"
    Image.linear_gradient("L").resize((56, 28)).save(photo)
    program = (
        "import sys; from deeptaylor.app.cli import main; "
        f"code = main(['explain', {str(photo)!r}, '--model', 'two-layer', '--out', {str(tmp_path / 'out')!r}]); "
        "import torch, deeptaylor as dt; from deeptaylor.models.networks import squeezenet1_1; "
        "dt.Explainer(squeezenet1_1(), torch.rand(1, 3, 227, 227)).explain(torch.rand(1, 3, 227, 227)); "
        "print(code, [m for m in ('torch._dynamo', 'sympy', 'torch.export._trace') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert (tmp_path / "out" / "pair_record.json").is_file()
