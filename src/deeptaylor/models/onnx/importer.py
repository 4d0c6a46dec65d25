"""From an ONNX file to a network of torch.

read_onnx(path)
├── parse                    file.py: the graph, checked
├── check_operators           all operators without a counterpart, at once
├── check_schema             onnx.checker
├── _Importer.read           node by node
│   ├── fold                 what depends on no input is computed now, and becomes a parameter
│   ├── shape arithmetic     shape_operators.py: computed beside the data, so that the batch stays free
│   └── a step               one operator on data: operators.py
├── _prune                   steps that no output needs disappear
├── check_shapes             onnx_network.py: once without data; shapes fit, and nothing is larger than can be
└── compare_outputs          onnx_comparison.py: once with data; outputs agree with stored ones, or onnxruntime
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.graph.failure import first_line
from deeptaylor.models.onnx.file import (
    MOST_BYTES,
    TYPES,
    WIDENED,
    OnnxError,
    check_schema,
    count_bytes,
    describe_name,
    import_onnx,
    iterate_nodes,
    parse,
    read_opset,
    read_tensor,
)
from deeptaylor.models.onnx.onnx_comparison import compare_outputs
from deeptaylor.models.onnx.onnx_network import (
    FAILURES,
    OnnxNetwork,
    OnnxNode,
    OnnxStep,
    Shape,
    ValueReference,
    WeightReference,
    check_shapes,
    infer_value,
)
from deeptaylor.models.onnx.operators import OPERATORS
from deeptaylor.models.onnx.shape_operators import SHAPE_OPERATORS, Array, resolve_symbols

if TYPE_CHECKING:
    import onnx

__all__ = [
    "OnnxNetwork",
    "check_operators",
    "describe_node",
    "read_attributes",
    "read_constant",
    "read_onnx",
    "to_array",
    "to_constant",
]


def describe_node(node: onnx.NodeProto, opset: int) -> str:
    """Describe a node for an error message."""
    return f"node {describe_name(node)!r} ({node.op_type}, opset {opset})"


def check_operators(model: onnx.ModelProto, path: Path) -> None:
    """Raise one error that lists all operators that are not supported."""
    unknown = [
        n for n in iterate_nodes(model.graph) if n.op_type not in {*OPERATORS, *SHAPE_OPERATORS, "Constant", "If"}
    ]
    if not unknown:
        return
    kinds: dict[str, list[str]] = {}
    for node in unknown:
        kinds.setdefault(node.op_type, []).append(describe_name(node))
    listed = [f"{op} ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" for op, names in sorted(kinds.items())]
    advice = ""
    if any("quantize" in op.lower() or "QLinear" in op or op.endswith("Integer") for op in kinds):
        advice += " A quantised network cannot be decomposed; use the file in floating point."
    if kinds.keys() & {"Loop", "Scan", "SequenceMap"}:
        advice += " Loops have no fixed graph; export the network with them unrolled."
    raise OnnxError(
        f"{path.name} (opset {read_opset(model)}) has operators that are not supported: {'; '.join(listed)}.{advice}"
    )


def read_attributes(node: onnx.NodeProto, opset: int, host: bool) -> dict[str, Any]:
    """Return a node's attributes as keywords; raise for an attribute that its function does not know."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = import_onnx().helper.get_attribute_value(attribute)
        if attribute.name == "consumed_inputs":  # a hint to memory planners before opset 6
            continue
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif attribute.HasField("t"):  # of ConstantOfShape alone: one number
            tensor = read_tensor(attribute.t, None)
            value, found["dtype"] = tensor.reshape(-1)[0].item(), tensor.dtype
        elif isinstance(value, (list, tuple)):
            value = list(value)
        found[{"min": "low", "max": "high"}.get(attribute.name, attribute.name)] = value
    if not host:
        known = OPERATORS[node.op_type].keywords
        if strange := sorted(found.keys() - known):
            raise OnnxError(f"{describe_node(node, opset)} has unknown attributes: {', '.join(strange)}.")
        found.update({k: v for k, v in (("opset", opset), ("outputs", len(node.output))) if k in known})
    elif node.op_type == "Split":
        found["outputs"] = len(node.output)
    return found


def to_array(tensor: Tensor) -> Array:
    """Return a constant as numbers known before the data."""
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def to_constant(array: Array) -> Tensor:
    """Return numbers computed from constants as a constant."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def read_constant(node: onnx.NodeProto) -> Tensor:
    """Return the value of a Constant node."""
    attribute = node.attribute[0]
    if attribute.HasField("t"):
        return read_tensor(attribute.t, None)
    value = import_onnx().helper.get_attribute_value(attribute)
    kinds = {"value_float": torch.float32, "value_floats": torch.float32, "value_int": torch.int64}
    if attribute.name not in {*kinds, "value_ints"}:
        raise OnnxError(
            f"The constant {describe_name(node)!r} is text or sparse ({attribute.name}), which is not supported."
        )
    return torch.tensor(
        list(value) if attribute.name.endswith("s") else value, dtype=kinds.get(attribute.name, torch.int64)
    )


# --- the import -------------------------------------------------------------------------------------------------------


def read_onnx(
    path: str | os.PathLike[str],
    outputs: Sequence[str] | None = None,
    *,
    flatten: bool = False,
    fixed: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    before_reading: Callable[[int], None] | None = None,
) -> OnnxNetwork:
    """Read an ONNX file as a torch module, its batch size free wherever the file's graph allows it.

    outputs   names of values to return in place of the file's outputs: the logits before a softmax, say
    flatten   return outputs of the shape (batch, classes, 1, 1) as (batch, classes)
    fixed     {name of an input: its value}: these inputs are constants of the network
    shapes    {name of an input: its shape with the batch}: sizes that the file leaves open; None: left open

    The outputs are compared with the data stored beside the file, or with onnxruntime's where that is installed; the
    network's `notes` say what could not be compared.

    before_reading   told how many bytes all tensors take, those in other files too; may raise
    """
    path = Path(path)
    try:
        model = parse(path)
        if before_reading is not None:
            before_reading(sum(count_bytes(i) for i in model.graph.initializer))
        check_operators(model, path)
        check_schema(model, path)
        importer = _Importer(model, path, fixed or {}, shapes or {})
        importer.read(model.graph.node)
        network = importer.network(list(outputs) if outputs else [o.name for o in model.graph.output])
    except UnicodeDecodeError as error:
        raise OnnxError(f"{path.name} is not an ONNX file: a name in it is not text ({error.reason}).") from error
    check_shapes(network, importer.batches, path)
    network.notes = compare_outputs(network, model, importer.batches, path)
    network.flatten = flatten
    return network


# Operators whose results are right in a wider type, and those whose results are of a type of their own.
_KEEPS_UNSIGNED = {
    "Concat", "DepthToSpace", "Div", "Expand", "Flatten", "Gather", "GatherND", "Identity", "Max", "Min", "ReduceMax",
    "ReduceMin", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
_MAKES_ANOTHER_TYPE = {
    "Cast", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Shape", "Size",
}  # fmt: skip


class _Importer:
    """The state of an import: what is known of every value so far."""

    def __init__(
        self, model: onnx.ModelProto, path: Path, fixed: Mapping[str, Any], chosen: Mapping[str, Sequence[int | None]]
    ) -> None:
        self.path, self.opset = path, read_opset(model)
        self.constants: dict[str, Tensor] = {}
        self.host: set[str] = set()  # values of the shape arithmetic
        self.aliases: dict[str, str] = {}
        self.stored: dict[str, str] = {}  # a constant -> the parameter or buffer
        self.steps: list[OnnxStep] = []
        self.makers: dict[str, OnnxStep] = {}
        self.named: Counter[str] = Counter()
        self.folded_bytes = 0
        self.result = OnnxNetwork()
        # Values of unsigned types that torch does not compute with, and which are wider here (tensors.TYPES).
        self.unsigned = {i.name for i in model.graph.initializer if i.data_type in WIDENED}
        self.unsigned |= {i.name for i in model.graph.input if i.type.tensor_type.elem_type in WIDENED}
        self._initialisers(model.graph, path.parent)
        self._fix(model.graph, fixed)
        given = [i for i in model.graph.input if i.name not in self.constants]
        if not given:
            raise OnnxError(f"{path.name} has no input but its own weights.")
        if strange := sorted(chosen.keys() - {i.name for i in given}):
            raise OnnxError(f"{path.name} has no input {strange[0]!r}; it has: {', '.join(i.name for i in given)}.")
        self.chosen = chosen
        self.result.scalars = frozenset(i.name for i in given if self._is_scalar(i))
        shapes = [(None,) if i.name in self.result.scalars else self._shape(i) for i in given]
        self.batches = [s[0] for s in shapes]
        self.batch = next(
            (b for i, b in zip(given, self.batches, strict=True) if i.name not in self.result.scalars), None
        )
        self.result.opset = self.opset
        self.result.input_names = tuple(i.name for i in given)
        self.result.input_shapes = tuple(s[1:] for s in shapes)
        self.result.input_types = tuple(TYPES[i.type.tensor_type.elem_type] for i in given)
        self.running = {name for n in model.graph.node if n.op_type == "BatchNormalization" for name in n.input[3:5]}
        self.read_names = {name for n in iterate_nodes(model.graph) for name in n.input}
        self.read_names |= {o.name for o in model.graph.output}

    def _initialisers(self, graph: onnx.GraphProto, folder: Path | None) -> None:
        for proto in graph.initializer:
            self.constants[proto.name] = read_tensor(proto, folder)

    def _fix(self, graph: onnx.GraphProto, fixed: Mapping[str, Any]) -> None:
        """Make constants of inputs that are given values."""
        inputs = {i.name: i for i in graph.input if i.name not in self.constants}
        for name, value in fixed.items():
            if name not in inputs:
                raise OnnxError(f"{self.path.name} has no input {name!r}; it has: {', '.join(inputs)}.")
            kind = inputs[name].type.tensor_type
            if kind.elem_type not in TYPES:
                raise OnnxError(f"{self.path.name}: the input {name!r} is not a tensor of numbers.")
            tensor = torch.as_tensor(np.asarray(value)).to(TYPES[kind.elem_type])
            if kind.HasField("shape") and tensor.ndim != len(kind.shape.dim):
                raise OnnxError(
                    f"{self.path.name}: the input {name!r} has {len(kind.shape.dim)} axes, and the value that it is "
                    f"fixed at has {tensor.ndim}."
                )
            self.constants[name] = self.result.fixed[name] = tensor

    def _is_scalar(self, info: onnx.ValueInfoProto) -> bool:
        """Return True for an input of one number, which must be fixed before anything is explained."""
        kind = info.type.tensor_type
        return kind.elem_type in TYPES and kind.HasField("shape") and not kind.shape.dim

    def _shape(self, info: onnx.ValueInfoProto) -> Shape:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or kind.elem_type not in TYPES:
            raise OnnxError(f"{self.path.name}: the input {info.name!r} is not a tensor of numbers.")
        if not kind.HasField("shape") or not kind.shape.dim:
            raise OnnxError(f"{self.path.name}: the input {info.name!r} has no shape, hence no batch.")
        declared = [d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim]
        given = list(self.chosen.get(info.name, declared))
        fits = len(given) == len(declared) and all(d in (None, n) for n, d in zip(given, declared, strict=True))
        if not fits:
            raise OnnxError(f"{self.path.name}: the input {info.name!r} has the shape {declared}; got {given}.")
        return tuple(given)

    # --- node by node ---------------------------------------------------------------------------------------------

    def read(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Fold, or make a step of, each node."""
        for node in nodes:
            try:
                self._read(node)
            except OnnxError:
                raise
            except FAILURES as error:
                raise OnnxError(f"{self._where(node)}: {first_line(error)}") from error

    def _where(self, node: onnx.NodeProto) -> str:
        return f"{self.path.name}: {describe_node(node, self.opset)}"

    def _read(self, node: onnx.NodeProto) -> None:
        inputs = [self.aliases.get(i, i) for i in node.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        if not self.unsigned.isdisjoint(inputs) and node.op_type not in _MAKES_ANOTHER_TYPE:
            if node.op_type not in _KEEPS_UNSIGNED:
                raise OnnxError(
                    f"{self._where(node)} computes with unsigned whole numbers of 16 or more bits, which torch does "
                    "not; cast them to int64 or float before."
                )
            self.unsigned.update(node.output)
        if node.op_type == "Constant":
            self._fold(node, [read_constant(node)])
        elif node.op_type == "If":
            self._branch(node, inputs)
        elif node.op_type == "Where" and self._guards_softmax(inputs):
            self.aliases[node.output[0]] = inputs[2]
        elif node.op_type == "Cast" and (tokens := self._compared_tokens(node, inputs[0])) is not None:
            self._look_up(node, *tokens)
        elif node.op_type in ("Shape", "Size") and inputs[0] not in self.constants:
            self._step(node, inputs, host=True)
        else:
            constant = all(not i or i in self.constants for i in inputs)
            known = all(not i or i in self.constants or i in self.host for i in inputs)
            if constant:
                self._evaluate(node, inputs)
            else:
                self._step(
                    node, inputs, host=known and node.op_type in SHAPE_OPERATORS and not self._on_weights(node, inputs)
                )

    def _guards_softmax(self, inputs: list[str]) -> bool:
        """Return whether Where(IsNaN(s), 0, s) is s, since s is a softmax: attention as torch exports it.

        The two differ only where a row is masked whole; there s is NaN, and the explainer says so.
        """
        condition, zero, value = (*inputs, "", "", "")[:3]
        test, softmax = self.makers.get(condition), self.makers.get(value)
        return (
            test is not None
            and softmax is not None
            and zero in self.constants
            and not self.constants[zero].any()
            and self.result.get_submodule(test.module).op_type == "IsNaN"
            and self.result.get_submodule(softmax.module).op_type == "Softmax"
            and isinstance(read := test.arguments[0], ValueReference)
            and read.name == value
        )

    def _compared_tokens(self, node: onnx.NodeProto, name: str) -> tuple[str, int] | None:
        """Return tokens and depth if Cast(tokens[…, None] == 0, 1, 2, …) is a one-hot code, as JAX exports it.

        The code is a lookup in a table, through which tokens are explained.
        """
        equal = self.makers.get(name)
        kind = TYPES.get(next((a.i for a in node.attribute if a.name == "to"), 0))
        if equal is None or kind is None or not kind.is_floating_point or self._op_type(equal) != "Equal":
            return None
        stored = {new: old for old, new in self.stored.items()}
        read = [a.name for a in equal.arguments if isinstance(a, ValueReference)]
        table = [stored[a.name] for a in equal.arguments if isinstance(a, WeightReference)]
        if len(read) != 1 or len(table) != 1:
            return None
        counted = self.constants[table[0]]
        depth = counted.shape[-1] if counted.ndim else 0
        if counted.is_floating_point() or not torch.equal(counted.flatten(), torch.arange(depth).to(counted.dtype)):
            return None
        shapes = dict(zip(self.result.input_names, self.result.input_shapes, strict=True))
        while (step := self.makers.get(read[0])) is not None:  # back to the input that the tokens are
            first = step.arguments[0]
            op = self._op_type(step)
            if not isinstance(first, ValueReference) or op not in ("Expand", "Unsqueeze", "Reshape", "Identity"):
                return None
            read = [first.name]
            if op in ("Unsqueeze", "Reshape") and not self._appends_axis(step, shapes.get(first.name)):
                return None
        return (read[0], depth) if read[0] in shapes else None

    def _op_type(self, step: OnnxStep) -> str:
        return str(self.result.get_submodule(step.module).op_type)

    def _appends_axis(self, step: OnnxStep, sample: Shape | None) -> bool:
        """Return True if a step only adds an axis of size one behind the others of an input of this shape."""
        if sample is None or len(step.arguments) < 2 or not isinstance(step.arguments[1], np.ndarray):
            return False
        given = [int(n) for n in step.arguments[1].reshape(-1)]
        if self._op_type(step) == "Unsqueeze":
            return given in ([-1], [len(sample) + 1])
        return given[1:] == [*sample, 1]

    def _look_up(self, node: onnx.NodeProto, tokens: str, depth: int) -> None:
        """Add the step of a one-hot code."""
        name = self._free_name(describe_name(node))
        self.result.add_module(name, OnnxNode("OneHot", {"dtype": torch.float32}, False))
        values = np.array([0.0, 1.0], dtype=np.float32)
        arguments = (ValueReference(tokens, False), np.array(depth), values)
        self.steps.append(OnnxStep(name, arguments, (node.output[0],), False))
        self.makers[node.output[0]] = self.steps[-1]

    def _on_weights(self, node: onnx.NodeProto, inputs: list[str]) -> bool:
        """Return whether a weight is brought into a shape that depends on the batch: data, not shape arithmetic."""
        if node.op_type not in OPERATORS:
            return False
        kinds = zip(inputs, self._kinds(node, len(inputs)), strict=True)
        tensors = [self.constants.get(i) for i, kind in kinds if i and kind == "Tensor"]
        weights = [t for t in tensors if t is not None]
        return len(weights) == len(tensors) and any(t.is_floating_point() or t.ndim > 1 for t in weights)

    def _evaluate(self, node: onnx.NodeProto, inputs: list[str]) -> None:
        """Evaluate an operator on constants alone, after checking its size without computing it."""
        attributes = read_attributes(node, self.opset, host=node.op_type not in OPERATORS)
        if node.op_type not in OPERATORS:
            arrays = [None if not i else to_array(self.constants[i]) for i in inputs]
            made = SHAPE_OPERATORS[node.op_type](*arrays, **attributes)
            listed = made if isinstance(made, (tuple, list)) else [made]
            self._fold(node, [to_constant(resolve_symbols(a)) for a in listed])
            return
        op = OPERATORS[node.op_type]
        kinds = self._kinds(node, len(inputs))
        for device in ("meta", "cpu"):
            arguments: list[Any] = []
            for name, kind in zip(inputs, kinds, strict=True):
                value = self.constants.get(name)
                if value is not None:
                    arguments.append(value.to(device) if kind == "Tensor" else to_array(value))
                else:
                    arguments.append(None)
            with torch.no_grad(), torch.device(device):
                made = op.function(*arguments, **attributes)
            tensors = list(made) if isinstance(made, (tuple, list)) else [made]
            if device == "meta":
                self._check_folded_size(node, tensors)
        self._fold(node, [t.contiguous() for t in tensors])

    def _check_folded_size(self, node: onnx.NodeProto, tensors: Sequence[Tensor]) -> None:
        self.folded_bytes += sum(t.numel() * t.element_size() for t in tensors)
        if self.folded_bytes > MOST_BYTES:
            raise OnnxError(
                f"{self._where(node)} would make constants of {self.folded_bytes} bytes; the limit is {MOST_BYTES}."
            )

    def _fold(self, node: onnx.NodeProto, tensors: Sequence[Tensor]) -> None:
        self._refuse_extra(node, len(tensors))
        self.constants.update({n: t for n, t in zip(node.output, tensors, strict=False) if n})

    def _branch(self, node: onnx.NodeProto, inputs: list[str]) -> None:
        """Read the branch of an If whose condition is a constant, or decided by the declared shapes."""
        condition = self._decide(inputs[0])
        if condition is None:
            raise OnnxError(
                f"{self._where(node)} chooses its branch by the data or its shape; "
                "export the network for fixed shapes, or without the choice. If the file leaves sizes open, say them: "
                f"shapes={{{self.result.input_names[0]!r}: (1, …)}}."
            )
        wanted = "then_branch" if condition else "else_branch"
        graph = next(a.g for a in node.attribute if a.name == wanted)
        self._initialisers(graph, None)
        self.read(graph.node)
        for name, inner in zip(node.output, graph.output, strict=True):
            self.aliases[name] = self.aliases.get(inner.name, inner.name)

    def _decide(self, name: str) -> bool | None:
        if name in self.constants:
            return bool(self.constants[name].reshape(-1)[0])
        if name not in self.host:
            return None
        self.result.steps, self.result.results = _prune(self.steps, {name}), {name: ValueReference(name, True)}
        found = infer_value(self.result, name, self.batches)
        return None if found is None else bool(found.reshape(-1)[0])

    def _step(self, node: onnx.NodeProto, inputs: list[str], host: bool) -> None:
        if not host and node.op_type not in OPERATORS:
            raise OnnxError(
                f"{self._where(node)} reads the data; this operator is read only in the "
                "arithmetic of shapes and constants."
            )
        if host:
            kinds = ["Tensor" if node.op_type in ("Shape", "Size") else "Host"] * len(inputs)
        else:
            kinds = self._kinds(node, len(inputs))
        arguments = [self._argument(node, i, kind) for i, kind in zip(inputs, kinds, strict=True)]
        attributes = read_attributes(node, self.opset, host)
        if node.op_type in ("Reshape", "Resize") and not host and self.batch is not None:
            attributes["batch"] = self.batch
        several = node.op_type == "Split" or (not host and "outputs" in OPERATORS[node.op_type].keywords)
        made = tuple(node.output if several else node.output[:1])
        self._refuse_extra(node, len(made))
        name = self._free_name(describe_name(node))
        self.result.add_module(name, OnnxNode(node.op_type, attributes, host))
        self.steps.append(OnnxStep(name, tuple(arguments), made, host))
        self.makers.update(dict.fromkeys(made, self.steps[-1]))
        self.host.update(made if host else ())

    def _kinds(self, node: onnx.NodeProto, count: int) -> list[str]:
        """Return how the operator wants each of its inputs."""
        op = OPERATORS[node.op_type]
        if count > len(op.kinds) and not op.many:
            raise OnnxError(f"{self._where(node)} has {count} inputs; {len(op.kinds)} are known.")
        return [op.kinds[min(k, len(op.kinds) - 1)] for k in range(count)]

    def _argument(self, node: onnx.NodeProto, name: str, kind: str) -> ValueReference | WeightReference | Array | None:
        if not name:
            return None
        if name in self.constants:
            return self._store(name) if kind == "Tensor" else to_array(self.constants[name])
        if kind == "Host" and name not in self.host:
            fix = ""
            if name in self.result.input_names:
                fix = f" It is an input: fix it at a value, fixed={{{name!r}: …}}."
            raise OnnxError(f"{self._where(node)} needs a constant number, but {name!r} depends on the data.{fix}")
        return ValueReference(name, kind in ("Host", "Maybe"))

    def _store(self, name: str) -> WeightReference:
        """Store the constant as a parameter, or as a buffer if it is a statistic or not real."""
        if name not in self.stored:
            self.stored[name] = self._free_name(name)
            value = self.constants[name]
            if value.is_floating_point() and name not in self.running:
                self.result.register_parameter(self.stored[name], nn.Parameter(value))
            else:
                self.result.register_buffer(self.stored[name], value)
        return WeightReference(self.stored[name])

    def _free_name(self, name: str) -> str:
        """Turn a name of the file into an attribute name that is free."""
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
        free = plain
        while hasattr(self.result, free):
            self.named[plain] += 1
            free = f"{plain}_{self.named[plain]}"
        return free

    def _refuse_extra(self, node: onnx.NodeProto, made: int) -> None:
        """Raise if outputs beyond those computed (masks, indices, statistics) are read."""
        read = [o for o in node.output[made:] if o in self.read_names]
        if read:
            raise OnnxError(f"{self._where(node)} makes {read[0]!r}, which is used; this output is not supported.")

    # --- the end --------------------------------------------------------------------------------------------------

    def network(self, outputs: list[str]) -> OnnxNetwork:
        """Return the network that makes these values, without the steps that none of them needs."""
        made = {*self.makers, *self.result.input_names}
        results: dict[str, ValueReference | WeightReference] = {}
        for name in outputs:
            inner = self.aliases.get(name, name)
            if inner not in made and inner not in self.constants:
                raise OnnxError(
                    f"{self.path.name} has no value called {name!r}; its last are: {self._list_last_values()}."
                )
            results[name] = self._store(inner) if inner in self.constants else ValueReference(inner, False)
        network = self.result
        network.output_names, network.results = tuple(outputs), results
        network.steps = _prune(self.steps, {r.name for r in results.values() if isinstance(r, ValueReference)})
        kept = {s.module for s in network.steps}
        kept |= {a.name for s in network.steps for a in s.arguments if isinstance(a, WeightReference)}
        kept |= {r.name for r in results.values() if isinstance(r, WeightReference)}
        members = [*network._modules, *network._parameters, *network._buffers]
        for name in members:
            if name not in kept:
                delattr(network, name)
        return network.eval()

    def _list_last_values(self) -> str:
        return ", ".join(n for s in self.steps[-5:] for n in s.makes)


def _prune(steps: Sequence[OnnxStep], needed: set[str]) -> tuple[OnnxStep, ...]:
    """Return the steps that the needed values depend on, each with the values that nothing reads after it."""
    later, kept = set(needed), []
    for step in reversed(steps):
        if later.isdisjoint(step.makes):
            continue
        reads = {a.name for a in step.arguments if isinstance(a, ValueReference)}
        kept.append(replace(step, done_with=tuple(sorted({*reads, *step.makes} - later))))
        later |= reads
    return tuple(reversed(kept))
