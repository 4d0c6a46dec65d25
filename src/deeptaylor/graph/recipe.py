"""The captured graph of a network of our own as a small file, so that the network need not be exported: that takes
longer than everything else that a first explanation needs.

recipe_of(model, captured)      what the file holds: names and numbers, no tensors
rebuilt(model, inputs)          the graph of a file that the network's class names in `recipes`; or None
├── _fits                       the file is whole, and for a network built like this one, and inputs like these
└── _graph                      node by node; operations are torch's, by name

A recipe is never believed: as every captured graph it is compared with the network (agreement.py), and where that
fails, or anything else, the network is exported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import CaptureError
from deeptaylor.graph.capture import Captured, narrowest
from deeptaylor.graph.hooks import global_hooks, hooks_of
from deeptaylor.graph.outline import FREE, Outline, per_sample
from deeptaylor.graph.places import is_node

__all__ = ["RECIPES", "rebuilt", "recipe_of", "sealed"]

RECIPES = Path(__file__).with_name("recipes")
_FORMAT = 1
_OPERATION = re.compile(r"aten\.([a-z]\w*)\.([A-Za-z]\w*)", re.ASCII)
_NODE, _TEXT = "%", "="  # how names of nodes, and words, begin among a node's arguments
_OWN = frozenset(vars(nn.Module()))  # torch's: parameters, hooks, the mode


# --- a network as it is built -----------------------------------------------------------------------------------------


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return dict(named)


def _architecture(model: nn.Module) -> str:
    """A hash of how a network is built: its modules with their numbers, and the shapes of its tensors."""
    found = hashlib.sha256()
    for path, module in model.named_modules(remove_duplicate=False):
        held = [] if _kind(module).startswith("torch.") else sorted(vars(module).items())
        own = [(k, v) for k, v in held if k not in _OWN and isinstance(v, (bool, int, float, str))]
        found.update(f"{path} {_kind(module)}({module.extra_repr()}) {own}\n".encode())
    for name, t in _tensors(model).items():
        found.update(f"{name} {type(t).__name__} {tuple(t.shape)} {t.dtype} {t.layout}\n".encode())
    return found.hexdigest()


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _as_its_class(model: nn.Module) -> bool:
    """True if nothing but its modules' classes says what a network computes: no hooks, no forward of its own."""
    modules = list(model.modules())
    hooks = [*global_hooks(), *(place for m in modules for place in hooks_of(m))]
    return not any(hooks) and not any("forward" in vars(m) for m in modules)


# --- from a file ------------------------------------------------------------------------------------------------------


def rebuilt(model: nn.Module, inputs: Sequence[Tensor]) -> Captured | None:
    """A network of ours as a graph, from its recipe; None where there is none for just this network and input."""
    names = vars(type(model)).get("recipes", ())
    if not names or not _as_its_class(model):
        return None
    try:
        built = _architecture(model)
        fitting = (recipe for recipe in map(_read, names) if _fits(recipe, model, built, inputs))
        recipe = next(fitting, None)
        return None if recipe is None else _captured(recipe, model, inputs[0].device)
    except Exception:  # noqa: BLE001 - whatever a damaged file leads to: the network is exported
        return None


def _read(name: str) -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads((RECIPES / f"{name}.json").read_text(encoding="utf-8"))
    return recipe


def sealed(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the hash of all that it says, by which a damaged one is told."""
    said = {key: value for key, value in recipe.items() if key != "sha256"}
    return {**said, "sha256": hashlib.sha256(json.dumps(said).encode()).hexdigest()}


def _fits(recipe: dict[str, Any], model: nn.Module, built: str, inputs: Sequence[Tensor]) -> bool:
    device = inputs[0].device
    given = [[[None, *x.shape[1:]], _type_name(x.dtype)] for x in inputs]
    return (
        (recipe["format"], recipe["architecture"]) == (_FORMAT, built)
        and given == [[shape, dtype] for _, shape, dtype in recipe["inputs"]]
        and all(t.device == device for t in (*inputs, *_tensors(model).values()))
        and recipe["sha256"] == sealed(recipe)["sha256"]
    )


def _captured(recipe: dict[str, Any], model: nn.Module, device: torch.device) -> Captured:
    tensors, graph = _tensors(model), fx.Graph()
    kinds = {path: _kind(module) for path, module in model.named_modules(remove_duplicate=False)}
    stacks = [{path: (path, kinds.get(path.partition("@")[0], "")) for path in stack} for stack in recipe["stacks"]]
    constants = {name: tensors[path].detach() for name, path in recipe["constants"].items()}
    nodes: dict[str, fx.Node] = {}
    for name, t in constants.items():
        node = graph.get_attr(name)
        node.meta["val"] = t
        nodes[node.name] = node
    inputs = [graph.placeholder(name) for name, *_ in recipe["inputs"]]
    for node, (_, shape, dtype) in zip(inputs, recipe["inputs"], strict=True):
        node.meta["val"] = _value(shape, dtype, device)
        nodes[node.name] = node
    for name, target, args, kwargs, shape, dtype, stack in recipe["nodes"]:
        given = _argument(args, nodes), {key: _argument(value, nodes) for key, value in kwargs.items()}
        nodes[name] = graph.create_node("call_function", _operation(target), tuple(given[0]), given[1], name)
        nodes[name].meta = {"val": _value(shape, dtype, device), "nn_module_stack": stacks[stack]}
    output = nodes[recipe["output"]]
    graph.output(output)
    graph.eliminate_dead_code()
    captured = Captured(graph, constants, inputs, output, "", batch=None)
    captured.note_modules()
    captured.narrowest = narrowest(graph)
    return captured


def _operation(name: str) -> Any:
    """An operation of torch's, by its name with its overload; nothing else has such a name."""
    found = _OPERATION.fullmatch(name)
    operation = None if found is None else getattr(getattr(torch.ops.aten, found[1]), found[2])
    if not isinstance(operation, torch._ops.OpOverload) or operation._schema.is_mutable:
        raise CaptureError(f"{name!r} is no operation of a recipe's.")
    return operation


def _argument(written: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(written, list):
        return [_argument(part, nodes) for part in written]
    if isinstance(written, str):
        return nodes[written[1:]] if written.startswith(_NODE) else written.removeprefix(_TEXT)
    return written


def _value(shape: list[int | None] | None, dtype: str, device: torch.device) -> Any:
    """What a node gives: an outline of a tensor; or, of no shape, the size of the batch."""
    if shape is None:
        return FREE
    return Outline.of([FREE if n is None else n for n in shape], getattr(torch, dtype), device)


# --- to a file --------------------------------------------------------------------------------------------------------


def recipe_of(model: nn.Module, captured: Captured) -> dict[str, Any]:
    """A captured network without its tensors; refused where there is more to say of it than a recipe can."""
    if captured.notes or captured.in_place or captured.output_name or captured.batches != (1, None):
        raise CaptureError("A recipe is for a network of one output, with a free batch size and nothing to note.")
    names = {t.data_ptr(): name for name, t in _tensors(model).items()}
    stacks: list[list[str]] = []
    nodes = []
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        stack = [str(path) for path, _ in node.meta["nn_module_stack"].values()]
        if stack not in stacks:
            stacks.append(stack)
        kwargs = {key: _written(value) for key, value in node.kwargs.items()}
        said = [str(node.target), _written(node.args), kwargs, *_outline(node.meta["val"]), stacks.index(stack)]
        nodes.append([node.name, *said])
    return sealed(
        {
            "format": _FORMAT,
            "architecture": _architecture(model),
            "constants": {name: names[t.data_ptr()] for name, t in captured.constants.items()},
            "inputs": [[node.target, *_outline(node.meta["val"])] for node in captured.inputs],
            "nodes": nodes,
            "stacks": stacks,
            "output": captured.output.name,
        }
    )


def _written(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_written(part) for part in argument]
    if is_node(argument):
        return f"{_NODE}{argument.name}"
    if isinstance(argument, str):
        return f"{_TEXT}{argument}"
    if argument is None or isinstance(argument, (bool, int, float)):
        return argument
    raise CaptureError(f"A recipe cannot hold {argument!r}.")


def _outline(value: Any) -> list[Any]:
    """The shape and the type of what a node gives; the batch's size is None."""
    if not isinstance(value, Tensor) and _size(value) is None:
        return [None, "int64"]
    return [[_size(n) for n in value.shape], _type_name(value.dtype)]


def _size(n: Any) -> int | None:
    followed = per_sample(n)
    if followed not in (None, 1):
        raise CaptureError(f"A recipe cannot hold the size {n}.")
    return int(n) if followed is None else None


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
