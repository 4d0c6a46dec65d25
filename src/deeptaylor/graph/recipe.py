"""Recipes: the captured graphs of the networks by name as small files.

Without a recipe the network is exported, which is the slowest part of a first explanation.

make_recipe(model, captured)      return the content of a file: names and numbers, no tensors
rebuild_graph(model, inputs)      return the graph from the file that the network's class names, or None
├── _fits                         check that the file is undamaged, and made for this network and these inputs
└── _rebuild                      build the graph node by node, from torch's operations by name

A graph from a recipe is compared with the network (agreement.py), like every captured graph. If that fails, the network
is exported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.errors import CaptureError
from deeptaylor.graph.capture import CapturedGraph, find_lowest_precision
from deeptaylor.graph.modes import forward_hooks, global_forward_hooks
from deeptaylor.graph.node import FREE_BATCH, find_batch_factor, is_node

__all__ = ["RECIPE_FOLDER", "ShapeTensor", "add_checksum", "make_recipe", "rebuild_graph"]

RECIPE_FOLDER = Path(__file__).with_name("recipes")
_FORMAT = 1
_OPERATION = re.compile(r"aten\.([a-z]\w*)\.([A-Za-z]\w*)", re.ASCII)
_NODE, _TEXT = "%", "="  # prefixes of node names and of strings among a node's arguments
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # attributes that every module has


# --- the architecture of a network ------------------------------------------------------------------------------------


def _list_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a network's parameters and buffers by name."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return dict(named)


def _hash_architecture(model: nn.Module) -> str:
    """Return a hash of a network's modules, their settings, and the shapes of its tensors."""
    found = hashlib.sha256()
    for path, module in model.named_modules(remove_duplicate=False):
        held = [] if _find_class_path(module).startswith("torch.") else sorted(vars(module).items())
        own = [(k, v) for k, v in held if k not in _MODULE_ATTRIBUTES and isinstance(v, (bool, int, float, str))]
        found.update(f"{path} {_find_class_path(module)}({module.extra_repr()}) {own}\n".encode())
    for name, t in _list_tensors(model).items():
        found.update(f"{name} {type(t).__name__} {tuple(t.shape)} {t.dtype} {t.layout}\n".encode())
    return found.hexdigest()


def _find_class_path(module: nn.Module) -> str:
    """Return the dotted name of a module's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _is_defined_by_classes(model: nn.Module) -> bool:
    """Return True if only its modules' classes define what a network computes: no hooks, no replaced forward."""
    modules = list(model.modules())
    hooks = [*global_forward_hooks(), *(place for m in modules for place in forward_hooks(m))]
    return not any(hooks) and not any("forward" in vars(m) for m in modules)


# --- from a file ------------------------------------------------------------------------------------------------------


def rebuild_graph(model: nn.Module, inputs: Sequence[Tensor]) -> CapturedGraph | None:
    """Rebuild the graph of a named network from its recipe; return None if there is none for this input."""
    names = vars(type(model)).get("recipes", ())
    if not names or not _is_defined_by_classes(model):
        return None
    try:
        architecture = _hash_architecture(model)
        fitting = (recipe for recipe in map(_read, names) if _fits(recipe, model, architecture, inputs))
        recipe = next(fitting, None)
        return None if recipe is None else _rebuild(recipe, model, inputs[0].device)
    except Exception:  # noqa: BLE001 - a damaged file may raise anything; the network is exported instead
        return None


def _read(name: str) -> dict[str, Any]:
    """Return the content of a recipe file."""
    recipe: dict[str, Any] = json.loads((RECIPE_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return recipe


def add_checksum(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the hash of its content, so that a damaged file is noticed."""
    content = {key: value for key, value in recipe.items() if key != "sha256"}
    return {**content, "sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def _fits(recipe: dict[str, Any], model: nn.Module, architecture: str, inputs: Sequence[Tensor]) -> bool:
    """Return True if a recipe is undamaged, and made for this architecture (a hash) and such inputs."""
    device = inputs[0].device
    given = [[[None, *x.shape[1:]], _format_dtype(x.dtype)] for x in inputs]
    return (
        (recipe["format"], recipe["architecture"]) == (_FORMAT, architecture)
        and given == [[shape, dtype] for _, shape, dtype in recipe["inputs"]]
        and all(t.device == device for t in (*inputs, *_list_tensors(model).values()))
        and recipe["sha256"] == add_checksum(recipe)["sha256"]
    )


def _rebuild(recipe: dict[str, Any], model: nn.Module, device: torch.device) -> CapturedGraph:
    """Return the graph of a recipe with the network's tensors."""
    tensors, graph = _list_tensors(model), fx.Graph()
    kinds = {path: _find_class_path(module) for path, module in model.named_modules(remove_duplicate=False)}
    stacks = [{path: (path, kinds.get(path.partition("@")[0], "")) for path in stack} for stack in recipe["stacks"]]
    constants = {name: tensors[path].detach() for name, path in recipe["constants"].items()}
    nodes: dict[str, fx.Node] = {}
    for name, t in constants.items():
        node = graph.get_attr(name)
        node.meta["val"] = t
        nodes[node.name] = node
    inputs = [graph.placeholder(name) for name, *_ in recipe["inputs"]]
    for node, (_, shape, dtype) in zip(inputs, recipe["inputs"], strict=True):
        node.meta["val"] = _make_outline(shape, dtype, device)
        nodes[node.name] = node
    for name, target, args, kwargs, shape, dtype, stack in recipe["nodes"]:
        given = _read_argument(args, nodes), {key: _read_argument(value, nodes) for key, value in kwargs.items()}
        nodes[name] = graph.create_node("call_function", _find_operation(target), tuple(given[0]), given[1], name)
        nodes[name].meta = {"val": _make_outline(shape, dtype, device), "nn_module_stack": stacks[stack]}
    output = nodes[recipe["output"]]
    graph.output(output)
    graph.eliminate_dead_code()
    captured = CapturedGraph(graph, constants, inputs, output, "", batch_size=None)
    captured.record_modules()
    captured.lowest_precision = find_lowest_precision(graph)
    return captured


def _find_operation(name: str) -> Any:
    """Return torch's operation of this name and overload; raise CaptureError for any other name."""
    found = _OPERATION.fullmatch(name)
    operation = None if found is None else getattr(getattr(torch.ops.aten, found[1]), found[2])
    if not isinstance(operation, torch._ops.OpOverload) or operation._schema.is_mutable:
        raise CaptureError(f"{name!r} is not an operation that a recipe can hold.")
    return operation


def _read_argument(value: Any, nodes: dict[str, fx.Node]) -> Any:
    """Return an argument of a node from its JSON values; the inverse of `_write_argument`."""
    if isinstance(value, list):
        return [_read_argument(part, nodes) for part in value]
    if isinstance(value, str):
        return nodes[value[1:]] if value.startswith(_NODE) else value.removeprefix(_TEXT)
    return value


def _make_outline(shape: list[int | None] | None, dtype: str, device: torch.device) -> Any:
    """Return the value of a node without its numbers: a ShapeTensor, or the batch size."""
    if shape is None:
        return FREE_BATCH
    return ShapeTensor.of([FREE_BATCH if n is None else n for n in shape], getattr(torch, dtype), device)


# --- to a file --------------------------------------------------------------------------------------------------------


def make_recipe(model: nn.Module, captured: CapturedGraph) -> dict[str, Any]:
    """Return the recipe of a captured network; raise CaptureError if a recipe cannot describe it."""
    if captured.notes or captured.in_place_writes or captured.output_name or captured.batch_range != (1, None):
        raise CaptureError("A recipe needs a network with one output, a free batch size and no notes.")
    names = {t.data_ptr(): name for name, t in _list_tensors(model).items()}
    stacks: list[list[str]] = []
    nodes = []
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        stack = [str(path) for path, _ in node.meta["nn_module_stack"].values()]
        if stack not in stacks:
            stacks.append(stack)
        kwargs = {key: _write_argument(value) for key, value in node.kwargs.items()}
        call = [str(node.target), _write_argument(node.args), kwargs]
        nodes.append([node.name, *call, *_write_outline(node.meta["val"]), stacks.index(stack)])
    return add_checksum(
        {
            "format": _FORMAT,
            "architecture": _hash_architecture(model),
            "constants": {name: names[t.data_ptr()] for name, t in captured.constants.items()},
            "inputs": [[node.target, *_write_outline(node.meta["val"])] for node in captured.inputs],
            "nodes": nodes,
            "stacks": stacks,
            "output": captured.output.name,
        }
    )


def _write_argument(argument: Any) -> Any:
    """Return an argument of a node as JSON values; raise CaptureError if there is no such form."""
    if isinstance(argument, (list, tuple)):
        return [_write_argument(part) for part in argument]
    if is_node(argument):
        return f"{_NODE}{argument.name}"
    if isinstance(argument, str):
        return f"{_TEXT}{argument}"
    if argument is None or isinstance(argument, (bool, int, float)):
        return argument
    raise CaptureError(f"A recipe cannot hold {argument!r}.")


def _write_outline(value: Any) -> list[Any]:
    """Return the shape and dtype of a node's result as JSON values; None stands for the batch size."""
    if not isinstance(value, Tensor) and _write_size(value) is None:
        return [None, "int64"]
    return [[_write_size(n) for n in value.shape], _format_dtype(value.dtype)]


def _write_size(n: Any) -> int | None:
    """Return a size as a number, or None for the batch size; raise CaptureError for its multiples."""
    followed = find_batch_factor(n)
    if followed not in (None, 1):
        raise CaptureError(f"A recipe holds fixed sizes and the batch size, not its multiple {n}.")
    return int(n) if followed is None else None


def _format_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


class ShapeTensor(Tensor):
    """A tensor without values: it has a shape, dtype and device, and so have the results of operations on it."""

    meta_tensor: Tensor  # a tensor of this shape and dtype on the meta device

    @staticmethod
    def __new__(cls, meta_tensor: Tensor, device: torch.device) -> Self:
        """Return a tensor without data on this device."""
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, meta_tensor.shape, meta_tensor.stride(), dtype=meta_tensor.dtype, device=device
        )
        made.meta_tensor = meta_tensor.to("meta")
        return made

    @classmethod
    def of(cls, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Self:
        """Return a tensor without data, of these sizes."""
        return cls(torch.empty(list(sizes), dtype=dtype, device="meta"), device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ShapeTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = {**(kwargs or {})}
        device = next(t.device for t in pytree.tree_leaves((args, named)) if isinstance(t, cls))
        if "device" in named:
            device, named["device"] = named["device"] or device, "meta"
        args, named = pytree.tree_map_only(Tensor, _to_meta, (args, named))
        return pytree.tree_map_only(Tensor, lambda t: cls(t, device), func(*args, **named))


def _to_meta(t: Tensor) -> Tensor:
    """Return an outline as a tensor on the meta device; any other tensor moved there."""
    return t.meta_tensor if isinstance(t, ShapeTensor) else t.to("meta")
