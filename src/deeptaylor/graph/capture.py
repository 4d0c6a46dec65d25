"""Capture an unmodified network as a flat, functional graph of ATen operations.

capture(model, inputs)
├── eval_mode          eval mode; training flags are restored afterwards
├── torch.export       non-strict, with two samples and a free batch size
├── unroll_recurrent   recurrent layers become the operations of their time steps
├── functionalise      in-place operations become ordinary ones
├── _lift              parameters and buffers become named constants; other outputs are removed
└── _reject_random     raise if the network draws random numbers, which differ in every call
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.errors import CaptureError, DeepTaylorError, PlanError, UnsupportedOpError
from deeptaylor.graph.experts import write_experts_out
from deeptaylor.graph.failure import explain_capture_failure, strip_traceback
from deeptaylor.graph.modes import eval_mode, isolate_export
from deeptaylor.graph.node import Node, bind_arguments, describe_node, make_unsupported_op, module_path
from deeptaylor.graph.recurrent import unroll_recurrent

__all__ = [
    "CapturedGraph",
    "capture",
    "find_lowest_precision",
    "functionalise",
    "inline_regions",
    "is_mutating",
    "is_random",
    "list_outputs",
    "pick_output",
]


aten = torch.ops.aten
_NO_MODULE = "_empty_nn_module_stack"  # torch's name for operations outside of any module
_DROPOUTS = {
    aten.dropout.default,
    aten.alpha_dropout.default,
    aten.feature_dropout.default,
    aten.feature_alpha_dropout.default,
}
_NO_ALIAS_OPS = {aten.batch_norm.default, aten.instance_norm.default}  # their results share no memory with arguments
_MAY_RETURN_ITS_ARGUMENT = {aten.pad.default, aten.type_as.default}  # the schemas of aten do not declare this


def functionalise(program: Any) -> Any:
    """Return a program without in-place operations; node.meta["functional"] replaces those that stay."""
    mutating = [n for n in program.graph.nodes if n.op == "call_function" and is_mutating(n)]
    if mutating:
        _remove_identities(program.graph)
    if all(_is_fresh_mutation(n) for n in mutating):
        for node in mutating:
            node.meta["functional"] = _find_functional(node)
        return program
    with isolate_export():
        return program.run_decompositions({})


def inline_regions(module: fx.GraphModule) -> None:
    """Inline the operations under the network's own autocast or grad mode, which export puts into subgraphs."""
    regions = {torch.ops.higher_order.wrap_with_autocast: 4, torch.ops.higher_order.wrap_with_set_grad_enabled: 1}
    for node in list(module.graph.nodes):
        if node.target not in regions:
            continue
        inner = getattr(module, str(node.args[regions[node.target]].target))
        inline_regions(inner)
        given = dict(zip(inner.graph.find_nodes(op="placeholder"), node.args[regions[node.target] + 1 :], strict=True))
        with module.graph.inserting_before(node):
            results: Any = module.graph.graph_copy(inner.graph, given)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # a getitem
            module.graph.erase_node(user)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def _remove_identities(graph: fx.Graph) -> None:
    """Remove dropout in eval mode: torch treats its result as a copy, but it is the tensor itself."""
    for node in list(graph.nodes):
        if node.target not in _DROPOUTS or node.args[2] or any(user.op == "output" for user in node.users):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def is_mutating(node: Node) -> bool:
    """Return True for an operation that writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _find_functional(node: Node) -> Any:
    """Return the functional form of an in-place operation, such as aten.relu for aten.relu_; None if there is none."""
    target: Any = node.target
    name, overload = target._schema.name.split("::")[1], target._overloadname
    if not name.endswith("_") or not target._schema.name.startswith("aten::"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, overload, None) if packet is not None else None


def _is_fresh_mutation(node: Node) -> bool:
    """Return True if the mutated tensor is new: not a view, without views, and not a parameter or an input."""
    mutated = node.args[0]
    if not isinstance(mutated, fx.Node) or mutated.op != "call_function" or _find_functional(node) is None:
        return False
    return not _is_view(mutated) and not any(_is_view(user) for user in mutated.users)


def _is_view(node: Node) -> bool:
    """Return True if a node's result may share memory with its first argument; False for in-place operations."""
    if node.target is operator.getitem:  # one of several tensors: of chunk, split, unbind
        return _is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None or is_mutating(node):
        return False
    aliases = any(r.alias_info is not None for r in schema.returns)
    maybe = torch.Tag.maybe_aliasing_or_mutating in node.target.tags and node.target not in _NO_ALIAS_OPS
    return aliases or maybe or node.target in _MAY_RETURN_ITS_ARGUMENT


@dataclass
class CapturedGraph:
    """A network as a graph: placeholders are its inputs, get_attr nodes its constants."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    inputs: list[Node]
    output: Node
    output_name: str
    batch_size: Any  # the number of samples if it is fixed; else its symbol, or None
    batch_range: tuple[int, int | None] = (1, None)  # the smallest and largest batch size for which the graph holds
    lowest_precision: tuple[torch.dtype, str] | None = (
        None  # the dtype of lowest precision in the network, and a node that has it
    )
    notes: list[str] = field(default_factory=list)
    in_place_writes: list[str] = field(default_factory=list)  # nodes of the network that write in place
    replacements: dict[str, str] = field(default_factory=dict)  # former node -> the node that replaced it
    fold_targets: dict[str, str] = field(default_factory=dict)  # folded node -> the node that now includes it
    module_paths: dict[str, str] = field(default_factory=dict)  # exported node -> the path of the module that made it
    module_outputs: dict[str, str] = field(default_factory=dict)  # module path -> the node that was the module's output
    cut_layer: str = ""  # the layer that was made the output (editing.cut_at_layer)

    def record_modules(self) -> None:
        """Record which module made each node."""
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.module_paths[node.name] = module_path(node)
                # The last node made inside a module is its output.
                for path in _list_module_paths(node):
                    self.module_outputs[path] = node.name

    def current_name(self, name: str) -> str:
        """Return the name of the node that replaced a former node; the name itself if it was not replaced."""
        while name in self.replacements:
            name = self.replacements[name]
        return name

    def former_names(self, name: str) -> list[str]:
        """Return the names of all exported nodes that this node replaced, or that were folded into it."""
        into = {**self.replacements, **self.fold_targets}
        found, todo = [], [name]
        while todo:
            current = todo.pop()
            earlier = [k for k, v in into.items() if v == current]
            found += earlier
            todo += earlier
        return found

    def add_constant(self, value: Tensor, before: Node, name: str = "constant") -> Node:
        """Add a constant to the graph, and return its node, which is placed before another node."""
        key = f"{name}_{len(self.constants)}"
        self.constants[key] = value
        with self.graph.inserting_before(before):
            node = self.graph.get_attr(key)
        node.meta["val"] = value
        return node


def capture(
    model: nn.Module, inputs: Sequence[Tensor], output: int | str | None = None, root: str = ""
) -> CapturedGraph:
    """Export a network and return it as a functional graph with one output.

    output   the output, if the network returns several
    root     the module path from which module paths are counted
    """
    with eval_mode(model), torch.no_grad():
        write_experts_out(model)
        program, batch, notes = _export(model, tuple(inputs))
    in_place = [describe_node(n) for n in program.graph.nodes if n.op == "call_function" and is_mutating(n)]
    try:
        program = functionalise(unroll_recurrent(program))
    except Exception as error:  # noqa: BLE001 - like export, it raises many types
        raise CaptureError(explain_capture_failure(error, model)) from strip_traceback(error)
    captured = _lift(program, output, batch, notes, root)
    captured.in_place_writes, captured.lowest_precision = in_place, find_lowest_precision(captured.graph)
    captured.notes += _describe_low_precision(captured.lowest_precision, inputs)
    captured.batch_range = _find_batch_range(program, batch)
    _reject_random(captured)
    _reject_vmap(captured)
    _reject_control_flow(captured)
    _reject_empty(captured)
    return captured


def _export(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, Any, list[str]]:
    """Export a network with a free batch size, or with a fixed one and a note if that fails."""
    doubled = tuple(torch.cat([x, x])[: max(2, x.shape[0])] if x.ndim else x for x in inputs)
    free = tuple({0: torch.export.Dim.DYNAMIC} if x.ndim else None for x in inputs)
    try:
        program = _export_quietly(model, doubled, free)
        return program, _find_batch_symbol(program), []
    except Exception as dynamic_error:  # export raises many types of errors; all mean that it failed
        if isinstance(dynamic_error, DeepTaylorError) and not isinstance(dynamic_error, CaptureError):
            raise
        try:
            program = _export_quietly(model, inputs, None)
        except Exception:  # noqa: BLE001
            if isinstance(dynamic_error, CaptureError):
                raise dynamic_error from None
            raise CaptureError(explain_capture_failure(dynamic_error, model)) from strip_traceback(dynamic_error)
        note = (
            f"The batch size could not be kept free and is fixed at {inputs[0].shape[0]}; each other size is "
            f"captured separately ({str(dynamic_error).strip().splitlines()[0][:160]})"
        )
        return program, int(inputs[0].shape[0]), [note]


def _export_quietly(model: nn.Module, inputs: tuple[Tensor, ...], dynamic: Any) -> Any:
    """Export a network without torch's log messages."""
    shapes = None if dynamic is None else _arrange_shapes(model, dynamic)
    try:
        with isolate_export():
            return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    except torch._dynamo.exc.UserError as error:
        raise error from None


def _arrange_shapes(model: nn.Module, dynamic: tuple[Any, ...]) -> Any:
    """Return dynamic_shapes for the forward's signature: for *args, torch needs one nested tuple."""
    import inspect

    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL:
        return (dynamic,)
    return dynamic


def _find_batch_symbol(program: Any) -> Any:
    """Return the symbolic size of dimension 0 of the first user input."""
    names = program.graph_signature.user_inputs
    node = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == names[0])
    return node.meta["val"].shape[0]


def _find_batch_range(program: Any, batch: Any) -> tuple[int, int | None]:
    """Return the smallest and largest batch size for which the graph holds; torch starts at two, this at one."""
    if isinstance(batch, int):
        return batch, batch
    known = program.range_constraints.get(batch.node.expr)
    if known is None:
        return 1, None
    low, high = (int(bound) if bound.is_Integer else None for bound in (known.lower, known.upper))
    return 1 if low is None or low <= 2 else low, high


def _reject_random(captured: CapturedGraph) -> None:
    """Raise PlanError for a network that draws random numbers in eval mode: its output differs in every call."""
    drawing = [n for n in captured.graph.nodes if n.op == "call_function" and is_random(n)]
    for node in [n for n in drawing if not n.users]:
        captured.graph.erase_node(node)
    drawing = [n for n in drawing if n.users]
    if drawing:
        lines = "".join(f"\n  {n.target._schema.name.split('::')[1]}: at {describe_node(n)}" for n in drawing)
        raise PlanError(
            f"The network draws random numbers in eval mode, so that there is no single score to explain:{lines}\n"
            "What to do: draw them in training mode only (if self.training: …), or keep one draw as a buffer."
        )


def _reject_vmap(captured: CapturedGraph) -> None:
    """Raise CaptureError for `torch.vmap`: its exported operations only make sense inside of it."""
    inside = [n for n in captured.graph.nodes if getattr(n.target, "__module__", "") == "torch._functorch.predispatch"]
    if inside:
        raise CaptureError(
            f"The network calls torch.vmap, which cannot be explained; at {describe_node(inside[0])}\n"
            "What to do: write it without. Language models of older transformers make their attention masks so: "
            'pip install "transformers>=5"'
        )


def _reject_control_flow(captured: CapturedGraph) -> None:
    """Raise UnsupportedOpError for torch.cond and similar operations, whose branches are graphs of their own."""
    found = [n for n in captured.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)]
    if found:
        lines = "".join(f"\n  {n.target.name()}: at {describe_node(n)}" for n in found)
        raise UnsupportedOpError(
            f"The network has control flow by the data's values, which cannot be explained:{lines}\n"
            "What to do: write it with torch.where, or explain one branch.",
            [make_unsupported_op(n.target.name(), n) for n in found],
        )


def _reject_empty(captured: CapturedGraph) -> None:
    """Raise a PlanError for a layer that has no inputs, such as Linear(0, 4): it reads an axis of length 0."""
    for node in captured.graph.nodes:
        read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        wide = [n for n in read if n.meta["val"].ndim > 1]
        if len(wide) > 1 and all(map(_is_empty, wide)) and not _is_empty(node):
            shape = tuple(wide[1].meta["val"].shape)
            raise PlanError(
                f"A layer has no inputs: its weights have shape {shape}, at {describe_node(node)}. Nothing of the "
                "input passes through it. Remove it from the network."
            )


def _is_empty(node: Node) -> bool:
    """Return True if an axis has length 0, whatever the size of the batch is."""
    val = node.meta.get("val")
    sizes: tuple[Any, ...] = tuple(val.shape) if isinstance(val, Tensor) else ()
    return any(isinstance(n, int) and n == 0 for n in sizes)


def is_random(node: Node) -> bool:
    """Return True if an operation's result is random, with the arguments that it has."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    a = bind_arguments(node)
    if "train" in a or "training" in a:
        return bool(a.get("train", a.get("training")))
    return bool(a["dropout_p"]) if "dropout_p" in a else True


def _lift(program: Any, output: int | str | None, batch: Any, notes: list[str], root: str) -> CapturedGraph:
    """Return the exported graph as a CapturedGraph: named constants, functional operations, one output."""
    signature = program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    lifted = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    inline_regions(program.graph_module)
    graph = fx.Graph()
    new: dict[Node, Node] = {}
    constants: dict[str, Tensor] = {}
    inputs: list[Node] = []
    outputs: Any = None
    for node in program.graph_module.graph.nodes:
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
    chosen, name = _choose_output(user, program.call_spec.out_spec, output)
    _check_numbers(chosen)
    graph.output(new[chosen])
    graph.eliminate_dead_code()
    captured = CapturedGraph(graph, constants, inputs, new[chosen], name, batch, notes=notes)
    for node in graph.nodes if root else ():
        node.meta["nn_module_stack"] = _shorten_stack(root, node.meta.get("nn_module_stack") or {})
    captured.record_modules()
    notes += [f"input {node.name!r} does not reach the output" for node in inputs if not node.users]
    return captured


def _check_numbers(output: Node) -> None:
    """Raise a PlanError for an output that is not a floating-point tensor."""
    val = output.meta.get("val")
    if not isinstance(val, Tensor):
        return
    if not val.is_floating_point():
        kind = "complex numbers" if val.is_complex() else f"{val.dtype} values"
        raise PlanError(
            f"The network's output holds {kind}; a score must be a real number. Explain a module that "
            "returns the scores "
            "before they are compared, rounded or made complex."
        )
    if _is_empty(output):
        raise PlanError(f"The network's output has shape {tuple(val.shape)}: it is empty, and there is no score.")


def find_lowest_precision(graph: fx.Graph) -> tuple[torch.dtype, str] | None:
    """Return the lowest precision in which a network computes, and a node that has it; None without such nodes."""
    floats = [n for n in graph.nodes if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].is_floating_point()]
    found = max(floats, key=lambda n: torch.finfo(n.meta["val"].dtype).eps, default=None)
    return None if found is None else (found.meta["val"].dtype, found.name)


def _describe_low_precision(found: tuple[torch.dtype, str] | None, inputs: Sequence[Tensor]) -> list[str]:
    """Return a note if parts of a network compute in a lower precision than its input; the explanation does not."""
    own = min((torch.finfo(x.dtype).eps for x in inputs if x.is_floating_point()), default=2.0**-23)
    if found is None or torch.finfo(found[0]).eps <= own:
        return []
    name = str(found[0]).removeprefix("torch.")
    return [f"parts of the network compute in {name} ({found[1]}, for one); explained in the type of the input"]


def _shorten_stack(root: str, stack: dict[str, Any]) -> dict[str, Any]:
    """Return a module stack with paths that start at one of its modules."""
    return {key: (path.removeprefix(root).removeprefix("."), kind) for key, (path, kind) in stack.items()}


def _list_module_paths(node: Node) -> list[str]:
    """Return the paths of all modules that made a node, outermost first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [str(path).split("@")[0] for path, _ in stack if path and not str(path).startswith(_NO_MODULE)]


def _choose_output(outputs: list[Any], spec: Any, wanted: int | str | None) -> tuple[Node, str]:
    """Return one output of several, by position or by name as it appears in the returned structure."""
    return pick_output(pytree.tree_unflatten(list(outputs), spec), wanted, fx.Node)


def list_outputs(returned: Any, kind: type = Tensor) -> list[tuple[str, Any]]:
    """Return every tensor of the structure that a network returned, with its name as in `pick_output`."""
    flat = pytree.tree_flatten_with_path(returned)[0]
    return [(".".join(map(_format_key, path)), leaf) for path, leaf in flat if isinstance(leaf, kind)]


def pick_output(returned: Any, wanted: int | str | None, kind: type) -> tuple[Any, str]:
    """Return one tensor of the structure that a network returned, and its name: its keys, joined by dots."""
    tensors = list_outputs(returned, kind)
    if wanted is None and len(tensors) == 1:
        return tensors[0][1], tensors[0][0]
    if not tensors:
        got = type(returned).__name__
        raise PlanError(f"The network returns no tensor, but {got}: there is no score to explain. Return the scores.")
    names = [p or "output" for p, _ in tensors]
    if wanted is None:
        has_names = not all(name.isdecimal() for name in names)
        listed = f": {', '.join(names)}" if has_names else ""
        raise PlanError(
            f"The network returns a {type(returned).__name__} of {len(tensors)} tensors{listed}. Choose one, by number "
            "or name: {output}.",
            output=names[0] if has_names else 0,
        )
    for k, (p, o) in enumerate(tensors):
        if wanted in (k, p):
            return o, p
    listed = ", ".join(f"{k}: {name}" for k, name in enumerate(names))
    raise PlanError(f"The network has no output {wanted!r}; it returns {listed}.")


def _format_key(key: Any) -> str:
    """Return one key of a path into a structure as text."""
    return str(next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)))
