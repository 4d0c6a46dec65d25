"""A network read from an ONNX file: its steps in the file's order, interpreted.

OnnxNetwork.forward
└── interpret            step by step; a value is forgotten after its last reader
    ├── OnnxNode         an operator on data (ops.py) or on numbers known before it (shapes.py)
    └── as_tensor        such numbers, where the data is computed with them

check_shapes                  the same without data: shapes fit, nothing is larger than can be, the batch is free or not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.graph.failure import first_line
from deeptaylor.models.onnx.file import MOST_BYTES, TYPES, OnnxError
from deeptaylor.models.onnx.operators import OPERATORS
from deeptaylor.models.onnx.shape_operators import SHAPE_OPERATORS, Array, as_tensor, resolve_symbols

__all__ = [
    "FAILURES",
    "OnnxNetwork",
    "OnnxNode",
    "OnnxStep",
    "Shape",
    "ValueReference",
    "WeightReference",
    "check_shapes",
    "infer_value",
]

Shape = tuple[int | None, ...]
_NUMBERS = {torch.float32: 1, torch.float64: 11}  # ONNX's numbers of these types

# What torch and NumPy raise for shapes and numbers that do not fit.
FAILURES = (
    RuntimeError, ValueError, IndexError, KeyError, TypeError, ArithmeticError, NotImplementedError, MemoryError,
    AttributeError, AssertionError,
)  # fmt: skip


@dataclass(frozen=True)
class ValueReference:
    """An argument that another step makes; `host`: numbers of the shape arithmetic."""

    name: str
    host: bool


@dataclass(frozen=True)
class WeightReference:
    """An argument that is a parameter or buffer."""

    name: str


@dataclass(frozen=True)
class OnnxStep:
    """One operator: the submodule that applies it, its arguments in order, and the names of what it makes."""

    module: str
    arguments: tuple[ValueReference | WeightReference | Array | None, ...]
    makes: tuple[str, ...]
    host: bool
    done_with: tuple[str, ...] = ()


class OnnxNode(nn.Module):
    """One node of the file, so that plans and errors can name it."""

    def __init__(self, op_type: str, attributes: Mapping[str, Any], host: bool) -> None:
        super().__init__()
        self.op_type, self.attributes, self.host = op_type, dict(attributes), host

    def forward(self, *arguments: Any) -> Any:
        """Apply the operator to its arguments."""
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if self.host and (not tensors or self.op_type in ("Shape", "Size")):
            return SHAPE_OPERATORS[self.op_type](*arguments, **self.attributes)
        op = OPERATORS[self.op_type]
        if self.host:  # a number was made a tensor, as many as there are samples
            pairs = [(a, op.kinds[min(k, len(op.kinds) - 1)]) for k, a in enumerate(arguments)]
            arguments = tuple(
                as_tensor(a, tensors[0].device) if kind == "Tensor" and isinstance(a, np.ndarray) else a
                for a, kind in pairs
            )
        return op.function(*arguments, **self.attributes)

    def set_precision(self, kind: torch.dtype) -> bool:
        """Make real numbers of this dtype, float32 or float64, where it makes them in another; whether it did."""
        before = dict(self.attributes)
        if self.op_type == "Cast" and TYPES[self.attributes["to"]].is_floating_point:
            self.attributes["to"] = _NUMBERS[kind]
        if getattr(self.attributes.get("dtype"), "is_floating_point", False):
            self.attributes["dtype"] = kind
        return self.attributes != before

    def extra_repr(self) -> str:
        return ", ".join([self.op_type, *[f"{k}={v}" for k, v in self.attributes.items()]])


class OnnxNetwork(nn.Module):
    """A network read from an ONNX file: its initialisers are parameters and buffers, its nodes submodules.

    input_names, input_shapes   of one sample: without the batch; None where the file leaves a size open
    scalars                     the inputs that are one number, and have no samples
    fixed                       {name: value} of inputs that were given a constant value
    output_names                one: forward returns a tensor; several: a dict of tensors by these names
    batch                       None if the batch size is free, else the only size that the file's graph takes
    opset                       the version of the ONNX operators
    flatten                     whether outputs (batch, classes, 1, 1) are returned as (batch, classes)
    flattens                    whether there are such outputs; None if the declared shapes do not say
    notes                       what could not be compared with the file's own outputs (comparison.py)
    """

    def __init__(self) -> None:
        super().__init__()
        self.input_names: tuple[str, ...] = ()
        self.input_shapes: tuple[Shape, ...] = ()
        self.input_types: tuple[torch.dtype, ...] = ()
        self.scalars: frozenset[str] = frozenset()
        self.fixed: dict[str, Tensor] = {}
        self.output_names: tuple[str, ...] = ()
        self.batch: int | None = None
        self.opset = 0
        self.flatten = False
        self.flattens: bool | None = None
        self.notes: tuple[str, ...] = ()
        self.steps: tuple[OnnxStep, ...] = ()
        self.results: dict[str, ValueReference | WeightReference] = {}

    @property
    def input_shape(self) -> Shape:
        """The shape of a sample of the first input that has samples."""
        names = zip(self.input_names, self.input_shapes, strict=True)
        return next((shape for name, shape in names if name not in self.scalars), ())

    def set_precision(self, kind: torch.dtype) -> bool:
        """Compute in this dtype, float32 or float64, all that is computed in another; whether there was such a thing.

        A network in float64 is for comparisons: numbers of the shape arithmetic stay in float32.
        """
        real = {torch.float16, torch.bfloat16, torch.float32, torch.float64} - {kind}
        kinds = [*self.input_types, *[p.dtype for p in self.parameters()], *[b.dtype for b in self.buffers()]]
        found = any(k in real for k in kinds)
        for node in self.children():
            if isinstance(node, OnnxNode):
                found = node.set_precision(kind) or found
        self.input_types = tuple(kind if k in real else k for k in self.input_types)
        self.to(kind)
        return found

    def forward(self, *inputs: Tensor) -> Any:
        """Return the outputs for a batch."""
        return self.interpret(inputs, lambda name: getattr(self, name), self.take)

    def take(self, step: OnnxStep, arguments: list[Any]) -> Any:
        """Apply one step to its arguments."""
        return getattr(self, step.module)(*arguments)

    def interpret(
        self, inputs: Sequence[Tensor], stored: Callable[[str], Tensor], apply: Callable[[OnnxStep, list[Any]], Any]
    ) -> Any:
        """Apply every step in order, to the inputs and the stored tensors."""
        if len(inputs) != len(self.input_names):
            raise ValueError(f"The network takes {len(self.input_names)} inputs, got {len(inputs)}.")
        values: dict[str, Any] = dict(zip(self.input_names, inputs, strict=True))
        device = inputs[0].device

        def value(argument: Any, host: bool) -> Any:
            if isinstance(argument, WeightReference):
                return stored(argument.name)
            if not isinstance(argument, ValueReference):
                return argument
            found = values[argument.name]
            return found if isinstance(found, Tensor) or argument.host or host else as_tensor(found, device)

        for step in self.steps:
            made = apply(step, [value(a, step.host) for a in step.arguments])
            for name, one in zip(step.makes, made if isinstance(made, (tuple, list)) else (made,), strict=False):
                if not isinstance(one, Tensor):
                    values[name] = resolve_symbols(one)
                else:  # a `to` that does nothing would still leave its mark in a captured graph
                    values[name] = one if one.device == device else one.to(device)
            for name in step.done_with:
                values.pop(name, None)
        results = {name: self._flat(value(r, False)) for name, r in self.results.items()}
        return results if len(results) > 1 else next(iter(results.values()))

    def _flat(self, output: Tensor) -> Tensor:
        return output.flatten(1) if self.flatten and _is_single_pixel(output) else output


def _is_single_pixel(output: Tensor) -> bool:
    """Return whether an output has the shape (batch, classes, 1, 1)."""
    return output.ndim > 2 and all(n == 1 for n in output.shape[2:])


def infer_value(network: OnnxNetwork, name: str, batches: Sequence[int | None]) -> Array | None:
    """Return numbers of the shape arithmetic if the declared shapes decide them whatever the batch is."""
    if any(n is None for shape in network.input_shapes for n in shape):
        return None
    found = []
    for free in (2, 3):
        inputs = _make_inputs(network, [free if b is None else b for b in batches])
        with torch.no_grad():
            found.append(network.interpret(inputs, _weights_on_meta(network).__getitem__, network.take))
    return found[0] if np.array_equal(found[0], found[1]) else None


def check_shapes(network: OnnxNetwork, batches: Sequence[int | None], path: Path) -> None:
    """Propagate the declared shapes, without data; find out whether the batch size is free.

    batches   the batch sizes that the file declares, one per input
    """
    if any(n is None for shape in network.input_shapes for n in shape):
        network.batch = None
        return
    written = [b for b in batches if b is not None]
    try:
        outputs = _propagate_shapes(network, [2] * len(batches), path)
        network.flattens = any(_is_single_pixel(t) for t in outputs)
        apart = all(t.ndim and t.shape[0] == 2 for t in outputs)
    except OnnxError:
        if not written:
            raise
        apart = False
    with_samples = {b for b, name in zip(batches, network.input_names, strict=True) if name not in network.scalars}
    if written and not (apart and len(with_samples) == 1):
        outputs = _propagate_shapes(network, [2 if b is None else b for b in batches], path)
        network.flattens = any(_is_single_pixel(t) for t in outputs)
        network.batch = written[0]
    else:
        network.batch = None


def _propagate_shapes(network: OnnxNetwork, batches: Sequence[int], path: Path) -> list[Tensor]:
    def apply(step: OnnxStep, arguments: list[Any]) -> Any:
        module = getattr(network, step.module)
        try:
            made = module(*arguments)
            for t in made if isinstance(made, (tuple, list)) else [made]:
                if isinstance(t, Tensor) and t.numel() * t.element_size() > MOST_BYTES:
                    raise OnnxError(f"it makes a tensor of the shape {tuple(t.shape)}")
        except FAILURES as error:
            where = f"node {step.module!r} ({module.op_type}, opset {network.opset})"
            raise OnnxError(f"{path.name}: {where} with a batch of {batches[0]}: {first_line(error)}") from error
        return made

    try:
        inputs = _make_inputs(network, batches)
        sizes = [t.numel() * t.element_size() for t in inputs]
    except FAILURES as error:
        raise OnnxError(f"{path.name}: the declared input is too large: {first_line(error)}") from error
    if max(sizes) > MOST_BYTES:
        raise OnnxError(f"{path.name}: the declared input is too large: {max(sizes)} bytes.")
    with torch.no_grad():
        result = network.interpret(inputs, _weights_on_meta(network).__getitem__, apply)
    return list(result.values()) if isinstance(result, dict) else [result]


def _make_inputs(network: OnnxNetwork, batches: Sequence[int]) -> list[Tensor]:
    """Make inputs of the declared shapes and dtypes, without data."""
    declared = zip(network.input_names, batches, network.input_shapes, network.input_types, strict=True)
    sizes = [(() if name in network.scalars else (b, *[n or 1 for n in s]), t) for name, b, s, t in declared]
    return [torch.empty(shape, dtype=t, device="meta") for shape, t in sizes]


def _weights_on_meta(network: OnnxNetwork) -> dict[str, Tensor]:
    return {k: v.to("meta") for k, v in [*network.named_parameters(), *network.named_buffers()]}
