"""From an unmodified network to a flat, functional graph of ATen operations.

capture(model, inputs)
├── eval_mode          training flags lowered, restored afterwards whatever happens
├── torch.export       non-strict, the example doubled to two samples, the batch dimension free
├── unrolled           recurrent layers become the operations of their steps
├── functionalise      in-place operations become ordinary ones
├── lift               parameters and buffers become named constants, unused outputs are pruned
└── _refuse_random     a network that draws numbers is another one at every call
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.errors import CaptureError, DeepTaylorError, PlanError, UnsupportedOpError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.graph.exporting import exporting
from deeptaylor.graph.functional import functionalise, inline_regions, mutates
from deeptaylor.graph.places import Node, explain_failure, module_path, short, where
from deeptaylor.graph.recurrent import unrolled


@dataclass
class Captured:
    """A network as a graph: placeholders are its inputs, get_attr nodes its constants."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    inputs: list[Node]
    output: Node
    output_name: str
    batch: Any  # the fixed number of samples, where it could not be freed; else the symbol of it, or None
    batches: tuple[int, int | None] = (1, None)  # from, to: the batch sizes for which the network takes this way
    narrowest: tuple[torch.dtype, str] | None = None  # the type of fewest digits in the network, and a node that has it
    notes: list[str] = field(default_factory=list)
    in_place: list[str] = field(default_factory=list)  # where the network writes to its own tensors
    renamed: dict[str, str] = field(default_factory=dict)  # a node that was replaced -> the node with its value now
    absorbed: dict[str, str] = field(default_factory=dict)  # a node folded into another -> that other
    paths: dict[str, str] = field(default_factory=dict)  # module path of every node as it was exported
    outputs: dict[str, str] = field(default_factory=dict)  # module path -> the node that was the module's output
    layer: str = ""  # where the network was cut (cutting.py)

    def note_modules(self) -> None:
        """Note which modules the nodes were made in."""
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.paths[node.name] = module_path(node)
                # The last node made inside a module is its output.
                for path in _module_paths(node):
                    self.outputs[path] = node.name

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


def capture(model: nn.Module, inputs: Sequence[Tensor], output: int | str | None = None, root: str = "") -> Captured:
    """Export a network and return it as a functional graph with one output chosen; paths are named from `root` on."""
    with eval_mode(model), torch.no_grad():
        program, batch, notes = _export(model, tuple(inputs))
    in_place = [where(n) for n in program.graph.nodes if n.op == "call_function" and mutates(n)]
    try:
        program = functionalise(unrolled(program))
    except Exception as error:  # noqa: BLE001 - as export does, it raises many kinds
        raise CaptureError(explain_failure(error, model)) from short(error)
    captured = _lift(program, output, batch, notes, root)
    captured.in_place, captured.narrowest = in_place, narrowest(captured.graph)
    captured.notes += _narrow_parts(captured.narrowest, inputs)
    captured.batches = _batches(program, batch)
    _refuse_random(captured)
    _refuse_vmap(captured)
    _refuse_control_flow(captured)
    _refuse_empty(captured)
    return captured


def _export(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, Any, list[str]]:
    """torch.export with a free batch dimension; a fixed one, noted, where the network does not allow it."""
    doubled = tuple(torch.cat([x, x])[: max(2, x.shape[0])] if x.ndim else x for x in inputs)
    free = tuple({0: torch.export.Dim.DYNAMIC} if x.ndim else None for x in inputs)
    try:
        program = _quiet_export(model, doubled, free)
        return program, _batch_symbol(program), []
    except Exception as dynamic_error:  # export raises many kinds; all mean that it failed
        if isinstance(dynamic_error, DeepTaylorError) and not isinstance(dynamic_error, CaptureError):
            raise
        try:
            program = _quiet_export(model, inputs, None)
        except Exception:  # noqa: BLE001
            if isinstance(dynamic_error, CaptureError):
                raise dynamic_error from None
            raise CaptureError(explain_failure(dynamic_error, model)) from short(dynamic_error)
        note = (
            f"The batch size could not be left free and is fixed at {inputs[0].shape[0]}; other sizes are "
            f"captured anew ({str(dynamic_error).strip().splitlines()[0][:160]})"
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


def _batches(program: Any, batch: Any) -> tuple[int, int | None]:
    """The batch sizes for which a network takes the way that was captured; torch counts from two, we from one."""
    if isinstance(batch, int):
        return batch, batch
    known = program.range_constraints.get(batch.node.expr)
    if known is None:
        return 1, None
    low, high = (int(bound) if bound.is_Integer else None for bound in (known.lower, known.upper))
    return 1 if low is None or low <= 2 else low, high


def _refuse_random(captured: Captured) -> None:
    """Refuse a network that draws random numbers in eval mode: those of the capture would be kept for ever."""
    drawing = [n for n in captured.graph.nodes if n.op == "call_function" and draws(n)]
    for node in [n for n in drawing if not n.users]:
        captured.graph.erase_node(node)
    drawing = [n for n in drawing if n.users]
    if drawing:
        lines = "".join(f"\n  {n.target._schema.name.split('::')[1]}: at {where(n)}" for n in drawing)
        raise PlanError(
            f"The network draws random numbers in eval mode, so that there is no one score to explain:{lines}\n"
            "What to do: draw them in training mode only (if self.training: …), or keep one draw as a buffer."
        )


def _refuse_vmap(captured: Captured) -> None:
    """Refuse `torch.vmap`: what is exported of it only has a meaning inside."""
    inside = [n for n in captured.graph.nodes if getattr(n.target, "__module__", "") == "torch._functorch.predispatch"]
    if inside:
        raise CaptureError(
            f"The network calls torch.vmap, which cannot be explained; at {where(inside[0])}\n"
            "What to do: write it without. Language models of older transformers make their attention masks so: "
            'pip install "transformers>=5"'
        )


def _refuse_control_flow(captured: Captured) -> None:
    """Raise for torch.cond and its kind, in a gate too: their branches are graphs of their own."""
    found = [n for n in captured.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)]
    if found:
        lines = "".join(f"\n  {n.target.name()}: at {where(n)}" for n in found)
        raise UnsupportedOpError(
            f"The network has control flow by the data's values, which cannot be explained:{lines}\n"
            "What to do: write it with torch.where, or explain one branch."
        )


def _refuse_empty(captured: Captured) -> None:
    """Raise a PlanError for a layer that has no inputs, such as Linear(0, 4): it reads an axis of length 0."""
    for node in captured.graph.nodes:
        read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        wide = [n for n in read if n.meta["val"].ndim > 1]
        if len(wide) > 1 and all(map(_is_empty, wide)) and not _is_empty(node):
            shape = tuple(wide[1].meta["val"].shape)
            raise PlanError(
                f"A layer has no inputs: its weights have shape {shape}, at {where(node)}. Nothing of the input passes "
                "through it; take it out of the network."
            )


def _is_empty(node: Node) -> bool:
    """Return True if an axis has length 0, whatever the size of the batch is."""
    val = node.meta.get("val")
    sizes: tuple[Any, ...] = tuple(val.shape) if isinstance(val, Tensor) else ()
    return any(isinstance(n, int) and n == 0 for n in sizes)


def draws(node: Node) -> bool:
    """True if an operation's result is random, with the arguments that it has."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    a = bound_args(node)
    if "train" in a or "training" in a:
        return bool(a.get("train", a.get("training")))
    return bool(a["dropout_p"]) if "dropout_p" in a else True


def bound_args(node: Node) -> dict[str, Any]:
    """A node's arguments by the names of its schema, defaults filled in."""
    schema = node.target._schema
    named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    named.update(zip([a.name for a in schema.arguments], node.args, strict=False))
    named.update(node.kwargs)
    return named


def _lift(program: Any, output: int | str | None, batch: Any, notes: list[str], root: str) -> Captured:
    """Copy the exported graph with constants by name, functional targets, and one output."""
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
    chosen, name = _choose(user, program.call_spec.out_spec, output)
    _check_numbers(chosen)
    graph.output(new[chosen])
    graph.eliminate_dead_code()
    captured = Captured(graph, constants, inputs, new[chosen], name, batch, notes=notes)
    for node in graph.nodes if root else ():
        node.meta["nn_module_stack"] = _below(root, node.meta.get("nn_module_stack") or {})
    captured.note_modules()
    notes += [f"input {node.name!r} does not reach the output" for node in inputs if not node.users]
    return captured


def _check_numbers(output: Node) -> None:
    """Raise a PlanError for an output that holds no real numbers."""
    val = output.meta.get("val")
    if not isinstance(val, Tensor):
        return
    if not val.is_floating_point():
        kind = "complex numbers" if val.is_complex() else f"{val.dtype} values"
        raise PlanError(
            f"The network's output holds {kind}; a score is a real number. Explain a module that returns the scores "
            "before they are compared, rounded or made complex."
        )
    if _is_empty(output):
        raise PlanError(f"The network's output has shape {tuple(val.shape)}: it is empty, and there is no score.")


def narrowest(graph: fx.Graph) -> tuple[torch.dtype, str] | None:
    """Where a network computes in the fewest digits."""
    floats = [n for n in graph.nodes if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].is_floating_point()]
    found = max(floats, key=lambda n: torch.finfo(n.meta["val"].dtype).eps, default=None)
    return None if found is None else (found.meta["val"].dtype, found.name)


def _narrow_parts(found: tuple[torch.dtype, str] | None, inputs: Sequence[Tensor]) -> list[str]:
    """A note where a network computes in fewer digits than its input has: the explanation does not."""
    own = min((torch.finfo(x.dtype).eps for x in inputs if x.is_floating_point()), default=2.0**-23)
    if found is None or torch.finfo(found[0]).eps <= own:
        return []
    name = str(found[0]).removeprefix("torch.")
    return [f"parts of the network compute in {name} ({found[1]}, for one); explained in the type of the input"]


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
    if not tensors:
        got = type(returned).__name__
        raise PlanError(f"The network returns no tensor, but {got}: there is no score to explain. Return the scores.")
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
