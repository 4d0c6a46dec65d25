"""From an unmodified network to a flat, functional graph of ATen operations.

capture(model, inputs)
├── eval_mode          training flags lowered, restored afterwards whatever happens
├── torch.export       non-strict, the example doubled to two samples, the batch dimension free
├── functionalise      in-place operations become ordinary ones
└── lift               parameters and buffers become named constants, unused outputs are pruned
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.errors import CaptureError, DeepTaylorError, PlanError, warn
from deeptaylor.exporting import exporting

if TYPE_CHECKING:
    # fx types a node's arguments as a union too wide to work with; to the type checker a node may be anything.
    Node = Any
else:
    Node = fx.Node

# Capture lowers training flags and a global switch for a moment; two captures at once would restore them wrongly.
_LOCK = threading.RLock()
_HERE, _TORCH = (f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__))


@dataclass
class Captured:
    """A network as a graph: placeholders are its inputs, get_attr nodes its constants."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    inputs: list[Node]
    output: Node
    output_name: str
    batch: Any  # the symbol of the free batch dimension, or the fixed number where it could not be freed
    notes: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # a node that was replaced -> the node with its value now
    absorbed: dict[str, str] = field(default_factory=dict)  # a node folded into another -> that other
    paths: dict[str, str] = field(default_factory=dict)  # module path of every node as it was exported
    outputs: dict[str, str] = field(default_factory=dict)  # module path -> the node that was the module's output

    def now(self, name: str) -> str:
        """The node that holds a former node's value."""
        while name in self.renamed:
            name = self.renamed[name]
        return name

    def former_names(self, name: str) -> list[str]:
        """Every exported node that became, or was folded into, a node."""
        into = {**self.renamed, **self.absorbed}
        found, todo = [], [name]
        while todo:
            current = todo.pop()
            earlier = [k for k, v in into.items() if v == current]
            found += earlier
            todo += earlier
        return found

    def constant(self, value: Tensor, before: Node, name: str = "constant") -> Node:
        """A new constant of the graph, placed before a node."""
        key = f"{name}_{len(self.constants)}"
        self.constants[key] = value
        with self.graph.inserting_before(before):
            node = self.graph.get_attr(key)
        node.meta["val"] = value
        return node


def is_node(value: Any) -> bool:
    """True for a node; told apart here, so that the type checker does not narrow to fx's own type."""
    return isinstance(value, fx.Node)


def module_path(node: Node) -> str:
    """The path of the module that made a node, as in `named_modules`; empty for the outermost."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return str(path).split("@")[0]


def source_line(node: Node) -> str:
    """The line of the user's code that made a node: 'file:line: code', or empty."""
    return _user_line(node.meta.get("stack_trace") or "")


def _user_line(trace: str) -> str:
    """The innermost frame of a formatted stack that is not torch's own."""
    lines = trace.splitlines()
    frames = [
        (line.strip(), lines[k + 1].strip() if k + 1 < len(lines) else "")
        for k, line in enumerate(lines)
        if line.strip().startswith("File ")
    ]
    own = [f for f in frames if _TORCH not in f[0]] or frames
    if not own:
        return ""
    where, code = own[-1]
    parts = where.split('"')
    number = where.split("line ")[-1].split(",")[0] if "line " in where else "?"
    return f"{parts[1] if len(parts) > 1 else where}:{number}: {code}"


def where(node: Node) -> str:
    """A node for an error message: name, module path, source line."""
    path, line = module_path(node), source_line(node)
    return f"{node.name}" + (f" in module {path!r}" if path else "") + (f" ({line})" if line else "")


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Lower every training flag, one by one so that no overridden `train()` runs, and put each back."""
    with _LOCK:
        training = [m for m in model.modules() if m.training]
        noisy = sorted({type(m).__name__ for m in training if _behaves_differently(m)})
        if noisy:
            warn(
                f"The network is in training mode ({', '.join(noisy)} behave differently there). It is "
                "explained in eval "
                "mode; its own mode is restored. Call model.eval() to silence this.",
            )
        random = torch.get_rng_state()
        saved = [(m, dict(m.__dict__), _contents(m)) for m in model.modules()]
        fastpath = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in training:
                module.training = False
            # The fused inference kernels of attention layers are opaque: no rule could look inside.
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            torch.set_rng_state(random)
            for module, attributes, contents in saved:
                # Export puts copies in place of lists and dicts, and a forward pass may count its calls.
                module.__dict__.clear()
                module.__dict__.update(attributes)
                for container, items in contents:
                    _refill(container, items)
            for module in training:
                module.training = True


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    """Copies of what a module's plain lists, dicts and sets hold."""
    return [(v, v.copy()) for v in module.__dict__.values() if type(v) in (list, dict, set)]


def _refill(container: Any, items: Any) -> None:
    if container != items or (isinstance(items, dict) and list(container) != list(items)):
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(items)


def _behaves_differently(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats


def capture(model: nn.Module, inputs: Sequence[Tensor], output: int | str | None = None, root: str = "") -> Captured:
    """Export a network and return it as a functional graph with one output chosen; paths are named from `root` on."""
    with eval_mode(model), torch.no_grad():
        program, batch, notes = _export(model, tuple(inputs))
    program = _functionalise(program)
    return _lift(program, output, batch, notes, root)


def _export(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, Any, list[str]]:
    """torch.export with a free batch dimension; a fixed one, noted, where the network does not allow it."""
    doubled = tuple(torch.cat([x, x])[: max(2, x.shape[0])] if x.ndim else x for x in inputs)
    free = tuple({0: torch.export.Dim.DYNAMIC} if x.ndim else None for x in inputs)
    try:
        program = _quiet_export(model, doubled, free)
        return program, _batch_symbol(program), []
    except DeepTaylorError:
        raise
    except Exception as dynamic_error:  # noqa: BLE001 - export raises many kinds; all mean that it failed
        try:
            program = _quiet_export(model, inputs, None)
        except Exception:  # noqa: BLE001
            raise CaptureError(_explain_failure(dynamic_error)) from dynamic_error
        note = (
            f"The batch size could not be left free and is fixed at {inputs[0].shape[0]}; other sizes are "
            "captured anew "
            f"({str(dynamic_error).strip().splitlines()[0][:160]})"
        )
        return program, int(inputs[0].shape[0]), [note]


def _quiet_export(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: Any) -> Any:
    shapes = None if dynamic is None else _shapes_like(model, dynamic)
    try:
        with exporting():
            return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    except torch._dynamo.exc.UserError as error:
        raise error from None


def _shapes_like(model: nn.Module, dynamic: tuple[Any, ...]) -> Any:
    """dynamic_shapes in the form the forward's signature needs (a var-positional argument wants one nested tuple)."""
    import inspect

    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL:
        return (dynamic,)
    return dynamic


def _batch_symbol(program: Any) -> Any:
    """The symbolic size of dimension 0 of the first user input."""
    names = program.graph_signature.user_inputs
    node = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == names[0])
    return node.meta["val"].shape[0]


def _explain_failure(error: Exception) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    line = ""
    tb = error.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if not filename.startswith((_HERE, _TORCH, "<")):
            line = f"{filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    line = _user_line(text) or line
    dependent = any(word in text for word in ("data-dependent", "GuardOnDataDependent", "Could not guard"))
    advice = (
        "The control flow depends on the values of the data (an `if`, `.item()`, or a Python loop over "
        "values). Replace it "
        "by torch.where, or explain the part of the network after it."
        if dependent
        else "Make the forward pass exportable (torch.export.export(model, (x,), strict=False) must succeed), "
        "or explain "
        "the part of the network that is."
    )
    return f"The network cannot be captured: {first}\n  at: {line or 'unknown place'}\n  What to do: {advice}"


def _functionalise(program: Any) -> Any:
    """Turn in-place operations into ordinary ones: directly where that is plain, else by torch's own pass."""
    mutating = [n for n in program.graph.nodes if n.op == "call_function" and _mutates(n)]
    if all(_plain_in_place(n) for n in mutating):
        for node in mutating:
            node.meta["functional"] = _functional_twin(node)
        return program
    with exporting():
        return program.run_decompositions({})


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _functional_twin(node: Node) -> Any:
    """aten.relu for aten.relu_ and so on, or None."""
    target: Any = node.target
    name, overload = target._schema.name.split("::")[1], target._overloadname
    if not name.endswith("_") or not target._schema.name.startswith("aten::"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, overload, None) if packet is not None else None


def _plain_in_place(node: Node) -> bool:
    """True if the mutated tensor is fresh: neither a view, nor viewed, nor a parameter or an input."""
    mutated = node.args[0]
    if not isinstance(mutated, fx.Node) or mutated.op != "call_function" or _functional_twin(node) is None:
        return False
    return not _is_view(mutated) and not any(_is_view(user) for user in mutated.users)


def _is_view(node: Node) -> bool:
    """True if a node's result may share memory with its first argument without being the in-place result itself."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or _mutates(node):
        return False
    aliases = any(r.alias_info is not None for r in schema.returns)
    maybe = schema.name.split("::")[1] in {
        "reshape",
        "flatten",
        "contiguous",
        "to",
        "dropout",
        "unflatten",
        "chunk",
        "pad",
    }
    return aliases or maybe


def _lift(program: Any, output: int | str | None, batch: Any, notes: list[str], root: str) -> Captured:
    """Copy the exported graph with constants by name, functional targets, and one output."""
    signature = program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    lifted = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    graph = fx.Graph()
    new: dict[Node, Node] = {}
    constants: dict[str, Tensor] = {}
    inputs: list[Node] = []
    outputs: Any = None
    for node in program.graph.nodes:
        if node.op == "output":
            outputs = node.args[0]
        elif node.op == "placeholder" and node.name in lifted:
            constants[node.name] = tensors[lifted[node.name]].detach()
            new[node] = graph.get_attr(node.name)
            new[node].meta = dict(node.meta)
        elif node.op == "placeholder":
            if not isinstance(node.meta.get("val"), Tensor):
                raise CaptureError(
                    f"The network's input {node.name!r} is not a tensor; wrap the network so that it takes tensors."
                )
            new[node] = graph.node_copy(node, lambda n: new[n])
            inputs.append(new[node])
        elif "functional" in node.meta:
            args = fx.map_arg(node.args, lambda n: new[n])
            copied = graph.call_function(node.meta["functional"], args, fx.map_arg(node.kwargs, lambda n: new[n]))
            copied.meta = {k: v for k, v in node.meta.items() if k != "functional"}
            # Later readers of the mutated tensor see what was written into it.
            new[node] = new[node.args[0]] = copied
        else:
            new[node] = graph.node_copy(node, lambda n: new[n])
    user = [o for o, spec in zip(outputs, signature.output_specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
    chosen, name = _choose(user, program.call_spec.out_spec, output)
    graph.output(new[chosen])
    graph.eliminate_dead_code()
    captured = Captured(graph, constants, inputs, new[chosen], name, batch, notes)
    for node in graph.nodes:
        if root:
            node.meta["nn_module_stack"] = _below(root, node.meta.get("nn_module_stack") or {})
        if node.op == "call_function":
            captured.paths[node.name] = module_path(node)
            # The last node made inside a module is its output.
            for path in _module_paths(node):
                captured.outputs[path] = node.name
    notes += [f"input {node.name!r} does not reach the output" for node in inputs if not node.users]
    return captured


def _below(root: str, stack: dict[str, Any]) -> dict[str, Any]:
    """A module stack as it reads from one of its modules on."""
    return {key: (path.removeprefix(root).removeprefix("."), kind) for key, (path, kind) in stack.items()}


def _module_paths(node: Node) -> list[str]:
    """The paths of all modules a node was made in, outermost first."""
    return [str(path).split("@")[0] for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]


def _choose(outputs: list[Any], spec: Any, wanted: int | str | None) -> tuple[Node, str]:
    """One output of several, by position or by name as it appears in the returned structure."""
    return pick_output(pytree.tree_unflatten(list(outputs), spec), wanted, fx.Node)


def pick_output(returned: Any, wanted: int | str | None, kind: type) -> tuple[Any, str]:
    """One tensor of whatever structure a network returned, and its name: the keys on the way, with dots between."""
    flat = pytree.tree_flatten_with_path(returned)[0]
    tensors = [(".".join(map(_key_text, path)), leaf) for path, leaf in flat if isinstance(leaf, kind)]
    if wanted is None and len(tensors) == 1:
        return tensors[0][1], tensors[0][0]
    names = ", ".join(f"{k}: {p or 'output'}" for k, (p, _) in enumerate(tensors))
    if wanted is None:
        raise PlanError(
            f"The network returns {len(tensors)} tensors ({names}); choose one with output=…, by number or name."
        )
    for k, (p, o) in enumerate(tensors):
        if wanted in (k, p):
            return o, p
    raise PlanError(f"The network has no output {wanted!r}; it returns {names}.")


def _key_text(key: Any) -> str:
    """One step into a structure, as a person would write it."""
    return str(next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)))
