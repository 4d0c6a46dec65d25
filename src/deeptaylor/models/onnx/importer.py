"""From an ONNX file to a network of torch.

read_onnx(path)
├── parse                    file.py: the graph, checked
├── refuse_unknown           all operators without a counterpart, at once
├── check_schema             onnx.checker
├── _Importer.read           node by node
│   ├── fold                 what depends on no input is computed now, and becomes a parameter
│   ├── shape arithmetic     shapes.py: computed beside the data, so that the batch stays free
│   └── a step               one operator on data: ops.py
├── _pruned                  steps that no output needs disappear
├── dry_run                  network.py: once without data; shapes fit, and nothing is larger than can be
└── compare                  comparison.py: once with data; outputs are those stored beside the file, or onnxruntime's
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deeptaylor.models.onnx.comparison import compare
from deeptaylor.models.onnx.file import all_nodes, check_schema, name_of, opset_of, parse
from deeptaylor.models.onnx.network import (
    FAILURES,
    Made,
    OnnxNetwork,
    OnnxNode,
    Shape,
    Step,
    Stored,
    dry_run,
    first_line,
    value_by_shape,
)
from deeptaylor.models.onnx.nodes import attributes_of, constant_of, folded, numbers_of, refuse_unknown, where
from deeptaylor.models.onnx.ops import OPS
from deeptaylor.models.onnx.shapes import SHAPES, Array, settled
from deeptaylor.models.onnx.tensors import MOST_BYTES, TYPES, WIDENED, OnnxError, size_of, tensor_of

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxNetwork", "read_onnx"]


def read_onnx(
    path: str | os.PathLike[str],
    outputs: Sequence[str] | None = None,
    *,
    flatten: bool = False,
    before_reading: Callable[[int], None] | None = None,
) -> OnnxNetwork:
    """A network in ONNX's format as a torch module, its batch size free wherever the file's graph allows it.

    outputs   names of values to return in place of the file's outputs: the logits before a softmax, say
    flatten   return outputs of the shape (batch, classes, 1, 1) as (batch, classes)

    The outputs are compared with the data stored beside the file, or with onnxruntime's where that is installed; the
    network's `notes` say what could not be compared.

    before_reading   told how many bytes all tensors take, those in other files too; may raise
    """
    path = Path(path)
    try:
        model = parse(path)
        if before_reading is not None:
            before_reading(sum(size_of(i) for i in model.graph.initializer))
        refuse_unknown(model, path)
        check_schema(model, path)
        importer = _Importer(model, path)
        importer.read(model.graph.node)
        network = importer.network(list(outputs) if outputs else [o.name for o in model.graph.output])
    except UnicodeDecodeError as error:
        raise OnnxError(f"{path.name} is not an ONNX file: a name in it is not text ({error.reason}).") from error
    dry_run(network, importer.batches, path)
    network.notes = compare(network, model, importer.batches, path)
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

    def __init__(self, model: onnx.ModelProto, path: Path) -> None:
        self.path, self.opset = path, opset_of(model)
        self.constants: dict[str, Tensor] = {}
        self.host: set[str] = set()  # values of the shape arithmetic
        self.aliases: dict[str, str] = {}
        self.stored: dict[str, str] = {}  # a constant -> the parameter or buffer
        self.steps: list[Step] = []
        self.makers: dict[str, Step] = {}
        self.named: Counter[str] = Counter()
        self.folded_bytes = 0
        self.result = OnnxNetwork()
        # Values of unsigned types that torch does not compute with, and which are wider here (tensors.TYPES).
        self.unsigned = {i.name for i in model.graph.initializer if i.data_type in WIDENED}
        self.unsigned |= {i.name for i in model.graph.input if i.type.tensor_type.elem_type in WIDENED}
        self._initialisers(model.graph, path.parent)
        given = [i for i in model.graph.input if i.name not in self.constants]
        if not given:
            raise OnnxError(f"{path.name} has no input but its own weights.")
        shapes = [self._shape(i) for i in given]
        self.batches = [s[0] for s in shapes]
        self.batch = self.batches[0]
        self.result.opset = self.opset
        self.result.input_names = tuple(i.name for i in given)
        self.result.input_shapes = tuple(s[1:] for s in shapes)
        self.result.input_types = tuple(TYPES[i.type.tensor_type.elem_type] for i in given)
        self.running = {name for n in model.graph.node if n.op_type == "BatchNormalization" for name in n.input[3:5]}
        self.read_names = {name for n in all_nodes(model.graph) for name in n.input}
        self.read_names |= {o.name for o in model.graph.output}

    def _initialisers(self, graph: onnx.GraphProto, folder: Path | None) -> None:
        for proto in graph.initializer:
            self.constants[proto.name] = tensor_of(proto, folder)

    def _shape(self, info: onnx.ValueInfoProto) -> Shape:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or kind.elem_type not in TYPES:
            raise OnnxError(f"{self.path.name}: the input {info.name!r} is not a tensor of numbers.")
        if not kind.HasField("shape") or not kind.shape.dim:
            raise OnnxError(f"{self.path.name}: the input {info.name!r} has no shape, hence no batch.")
        return tuple(d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim)

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
        return f"{self.path.name}: {where(node, self.opset)}"

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
            self._fold(node, [constant_of(node)])
        elif node.op_type == "If":
            self._branch(node, inputs)
        elif node.op_type == "Where" and self._guards_softmax(inputs):
            self.aliases[node.output[0]] = inputs[2]
        elif node.op_type in ("Shape", "Size") and inputs[0] not in self.constants:
            self._step(node, inputs, host=True)
        else:
            constant = all(not i or i in self.constants for i in inputs)
            known = all(not i or i in self.constants or i in self.host for i in inputs)
            if constant:
                self._evaluate(node, inputs)
            else:
                self._step(node, inputs, host=known and node.op_type in SHAPES and not self._on_weights(node, inputs))

    def _guards_softmax(self, inputs: list[str]) -> bool:
        """Where(IsNaN(s), 0, s) with a softmax s is s: attention as torch exports it.

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
            and isinstance(read := test.arguments[0], Made)
            and read.name == value
        )

    def _on_weights(self, node: onnx.NodeProto, inputs: list[str]) -> bool:
        """True for a weight brought into a shape that depends on the batch: data, not shape arithmetic."""
        if node.op_type not in OPS:
            return False
        kinds = zip(inputs, self._kinds(node, len(inputs)), strict=True)
        tensors = [self.constants.get(i) for i, kind in kinds if i and kind == "Tensor"]
        weights = [t for t in tensors if t is not None]
        return len(weights) == len(tensors) and any(t.is_floating_point() or t.ndim > 1 for t in weights)

    def _evaluate(self, node: onnx.NodeProto, inputs: list[str]) -> None:
        """An operator on constants alone, after its size was looked at without computing it."""
        attributes = attributes_of(node, self.opset, host=node.op_type not in OPS)
        if node.op_type not in OPS:
            arrays = [None if not i else numbers_of(self.constants[i]) for i in inputs]
            made = SHAPES[node.op_type](*arrays, **attributes)
            listed = made if isinstance(made, (tuple, list)) else [made]
            self._fold(node, [folded(settled(a)) for a in listed])
            return
        op = OPS[node.op_type]
        kinds = self._kinds(node, len(inputs))
        for device in ("meta", "cpu"):
            arguments: list[Any] = []
            for name, kind in zip(inputs, kinds, strict=True):
                value = self.constants.get(name)
                if value is not None:
                    arguments.append(value.to(device) if kind == "Tensor" else numbers_of(value))
                else:
                    arguments.append(None)
            with torch.no_grad(), torch.device(device):
                made = op.function(*arguments, **attributes)
            tensors = list(made) if isinstance(made, (tuple, list)) else [made]
            if device == "meta":
                self._bounded(node, tensors)
        self._fold(node, [t.contiguous() for t in tensors])

    def _bounded(self, node: onnx.NodeProto, tensors: Sequence[Tensor]) -> None:
        self.folded_bytes += sum(t.numel() * t.element_size() for t in tensors)
        if self.folded_bytes > MOST_BYTES:
            raise OnnxError(
                f"{self._where(node)} would make constants of {self.folded_bytes} bytes; the limit is {MOST_BYTES}."
            )

    def _fold(self, node: onnx.NodeProto, tensors: Sequence[Tensor]) -> None:
        self._refuse_extra(node, len(tensors))
        self.constants.update({n: t for n, t in zip(node.output, tensors, strict=False) if n})

    def _branch(self, node: onnx.NodeProto, inputs: list[str]) -> None:
        """An If whose condition is a constant, or decided by the declared shapes, is its branch."""
        condition = self._decided(inputs[0])
        if condition is None:
            raise OnnxError(
                f"{self._where(node)} chooses its branch by the data or its shape; "
                "export the network for fixed shapes, or without the choice."
            )
        wanted = "then_branch" if condition else "else_branch"
        graph = next(a.g for a in node.attribute if a.name == wanted)
        self._initialisers(graph, None)
        self.read(graph.node)
        for name, inner in zip(node.output, graph.output, strict=True):
            self.aliases[name] = self.aliases.get(inner.name, inner.name)

    def _decided(self, name: str) -> bool | None:
        if name in self.constants:
            return bool(self.constants[name].reshape(-1)[0])
        if name not in self.host:
            return None
        self.result.steps, self.result.results = _pruned(self.steps, {name}), {name: Made(name, True)}
        found = value_by_shape(self.result, name, self.batches)
        return None if found is None else bool(found.reshape(-1)[0])

    def _step(self, node: onnx.NodeProto, inputs: list[str], host: bool) -> None:
        if not host and node.op_type not in OPS:
            raise OnnxError(
                f"{self._where(node)} reads the data; this operator is read only in the "
                "arithmetic of shapes and constants."
            )
        if host:
            kinds = ["Tensor" if node.op_type in ("Shape", "Size") else "Host"] * len(inputs)
        else:
            kinds = self._kinds(node, len(inputs))
        arguments = [self._argument(node, i, kind) for i, kind in zip(inputs, kinds, strict=True)]
        attributes = attributes_of(node, self.opset, host)
        if node.op_type in ("Reshape", "Resize") and not host and self.batch is not None:
            attributes["batch"] = self.batch
        made = tuple(node.output if node.op_type == "Split" else node.output[:1])
        self._refuse_extra(node, len(made))
        name = self._free_name(name_of(node))
        self.result.add_module(name, OnnxNode(node.op_type, attributes, host))
        self.steps.append(Step(name, tuple(arguments), made, host))
        self.makers.update(dict.fromkeys(made, self.steps[-1]))
        self.host.update(made if host else ())

    def _kinds(self, node: onnx.NodeProto, count: int) -> list[str]:
        """How the operator wants each of its inputs."""
        op = OPS[node.op_type]
        if count > len(op.kinds) and not op.many:
            raise OnnxError(f"{self._where(node)} has {count} inputs; {len(op.kinds)} are known.")
        return [op.kinds[min(k, len(op.kinds) - 1)] for k in range(count)]

    def _argument(self, node: onnx.NodeProto, name: str, kind: str) -> Made | Stored | Array | None:
        if not name:
            return None
        if name in self.constants:
            return self._store(name) if kind == "Tensor" else numbers_of(self.constants[name])
        if kind == "Host" and name not in self.host:
            raise OnnxError(
                f"{self._where(node)} takes {name!r}, which depends on the data, where a number "
                "must be known beforehand."
            )
        return Made(name, kind in ("Host", "Maybe"))

    def _store(self, name: str) -> Stored:
        """The constant as a parameter, or as a buffer if it is a statistic or not real."""
        if name not in self.stored:
            self.stored[name] = self._free_name(name)
            value = self.constants[name]
            if value.is_floating_point() and name not in self.running:
                self.result.register_parameter(self.stored[name], nn.Parameter(value))
            else:
                self.result.register_buffer(self.stored[name], value)
        return Stored(self.stored[name])

    def _free_name(self, name: str) -> str:
        """A name of the file as an attribute's name, not used yet."""
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
        free = plain
        while hasattr(self.result, free):
            self.named[plain] += 1
            free = f"{plain}_{self.named[plain]}"
        return free

    def _refuse_extra(self, node: onnx.NodeProto, made: int) -> None:
        """Outputs beyond those computed (masks, indices, statistics) may be named but not read."""
        read = [o for o in node.output[made:] if o in self.read_names]
        if read:
            raise OnnxError(f"{self._where(node)} makes {read[0]!r}, which is used; this output is not read.")

    # --- the end --------------------------------------------------------------------------------------------------

    def network(self, outputs: list[str]) -> OnnxNetwork:
        """The network that makes these values, without the steps that none of them needs."""
        made = {*self.makers, *self.result.input_names}
        results: dict[str, Made | Stored] = {}
        for name in outputs:
            inner = self.aliases.get(name, name)
            if inner not in made and inner not in self.constants:
                raise OnnxError(f"{self.path.name} has no value called {name!r}; its last are: {self._last()}.")
            results[name] = self._store(inner) if inner in self.constants else Made(inner, False)
        network = self.result
        network.output_names, network.results = tuple(outputs), results
        network.steps = _pruned(self.steps, {r.name for r in results.values() if isinstance(r, Made)})
        kept = {s.module for s in network.steps}
        kept |= {a.name for s in network.steps for a in s.arguments if isinstance(a, Stored)}
        kept |= {r.name for r in results.values() if isinstance(r, Stored)}
        members = [*network._modules, *network._parameters, *network._buffers]
        for name in members:
            if name not in kept:
                delattr(network, name)
        return network.eval()

    def _last(self) -> str:
        return ", ".join(n for s in self.steps[-5:] for n in s.makes)


def _pruned(steps: Sequence[Step], needed: set[str]) -> tuple[Step, ...]:
    """The steps that the needed values depend on, each told which values nothing reads after it."""
    later, kept = set(needed), []
    for step in reversed(steps):
        if later.isdisjoint(step.makes):
            continue
        reads = {a.name for a in step.arguments if isinstance(a, Made)}
        kept.append(replace(step, done_with=tuple(sorted({*reads, *step.makes} - later))))
        later |= reads
    return tuple(reversed(kept))
