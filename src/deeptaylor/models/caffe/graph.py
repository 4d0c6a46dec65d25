"""A Caffe network as one torch module: which layers take part, what each reads, and where its weights come from.

read_caffe
├── wire      which layer's output each layer reads
├── needed    the layers that the output depends on, and the one input they read
├── _build    a module for each, and the shape of everything, without allocating any of it
└── _fill     the weights, once their shapes are known to fit
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.models.caffe.layers import KINDS, Shape
from deeptaylor.models.caffe.modules import BatchNorm, InnerProduct
from deeptaylor.models.caffe.text import read_prototxt
from deeptaylor.models.caffe.weights import Blob, CaffeError, read_weights
from deeptaylor.models.caffe.wiring import Step, named, needed, wire

__all__ = ["CaffeGraph", "read_caffe"]

MAX_ELEMENTS = 2**28  # of a blob for one sample, and of all random weights together: a GiB of float32
MAX_BATCH = 2**16


class CaffeGraph(nn.Module):
    """An imported network: an input blob to an output blob, for any batch size. Layers are submodules by their names.

    input_shape   of one sample, without the batch
    shapes        of every blob for one sample, by its name
    """

    def __init__(self, title: str, input_blob: str, output_blob: str, steps: Sequence[Step], sink: int) -> None:
        super().__init__()
        self.title, self.input_blob, self.output_blob = title, input_blob, output_blob
        self.steps, self.sink = tuple(steps), sink
        self.shapes: dict[str, Shape] = {}
        self.input_shape: Shape = ()

    def forward(self, x: Tensor) -> Tensor:
        values = {0: x}
        for step in self.steps:
            made = self.get_submodule(step.module)(*[values[k] for k in step.reads])
            values.update(zip(step.makes, made if isinstance(made, tuple) else (made,), strict=True))
            for k in step.spent:
                del values[k]
        return values[self.sink]

    def extra_repr(self) -> str:
        return f"{self.title!r}: {self.input_blob!r} {self.input_shape} to {self.output_blob!r}"


def read_caffe(
    prototxt: str | os.PathLike[str],
    caffemodel: str | os.PathLike[str] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    output: str | None = None,
) -> CaffeGraph:
    """The network of a Caffe file in eval mode, with its weights, or with random ones where no weights are given.

    input_shape   of one sample, such as (3, 227, 227), where the text does not say it (training networks)
    output        the blob to compute, where the text leaves several unread (auxiliary classifiers)
    """
    net = read_prototxt(prototxt)
    try:
        wiring = wire(net)
        steps, source, sink = needed(wiring, output)
        blob, declared = wiring.inputs[source]
        shape = _input_shape(blob, declared, input_shape)
        graph = CaffeGraph(net.string("name"), blob, wiring.blobs[sink], steps, sink)
        _build(graph, shape)
    except CaffeError as error:
        raise CaffeError(f"{prototxt}: {error}") from None
    if caffemodel is None:
        _randomise(graph, prototxt)
    else:
        weights = read_weights(caffemodel)
        try:
            _fill(graph, weights)
        except CaffeError as error:
            raise CaffeError(f"{caffemodel}: {error}") from None
    return graph.eval()


def _input_shape(blob: str, declared: Shape | None, given: Sequence[int] | None) -> Shape:
    """The shape of a batch of the network's input."""
    shape = declared or (None if given is None else (1, *map(int, given)))
    if not shape:
        raise CaffeError(
            f"the shape of the input {blob!r} is not said. Give it: input_shape=(channels, height, width)."
        )
    if len(shape) < 2 or min(shape) < 1 or math.prod(shape[1:]) > MAX_ELEMENTS or shape[0] > MAX_BATCH:
        raise CaffeError(f"the input {blob!r} cannot have the shape {shape}.")
    return shape


# --- the modules ----------------------------------------------------------------------------------------------------


def _build(graph: CaffeGraph, shape: Shape) -> None:
    """Make the modules and follow the shapes on the meta device, where tensors have a shape and no memory."""
    values = {0: torch.empty(shape, device="meta")}
    graph.input_shape = shape[1:]
    graph.shapes[graph.input_blob] = shape[1:]
    for step in graph.steps:
        where, kind = step.fields.where, KINDS[step.kind]
        if not kind.fewest <= len(step.reads) <= kind.most or not step.makes:
            raise CaffeError(f"{where} cannot have {len(step.reads)} inputs and {len(step.makes)} outputs.")
        inputs = [values[k] for k in step.reads]
        try:
            with torch.device("meta"):
                module = kind.build(step.fields, [tuple(x.shape) for x in inputs]).eval()
            with torch.no_grad():
                made = module(*inputs)
        except CaffeError:
            raise
        except (RuntimeError, ValueError, IndexError, OverflowError) as error:
            told = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CaffeError(f"{where} does not fit its input {[tuple(x.shape) for x in inputs]}: {told}") from error
        outputs = made if isinstance(made, tuple) else (made,)
        if len(outputs) != len(step.makes):
            raise CaffeError(f"{where} makes {len(outputs)} outputs, the text names {len(step.makes)}.")
        for k, top, y in zip(step.makes, step.tops, outputs, strict=True):
            if min(y.shape) < 1 or math.prod(y.shape[1:]) > MAX_ELEMENTS:
                raise CaffeError(f"{where} makes {top!r} with the shape {tuple(y.shape)}.")
            values[k] = y
            graph.shapes[top] = tuple(y.shape[1:])
        graph.add_module(step.module, module)


def _randomise(graph: CaffeGraph, prototxt: str | os.PathLike[str]) -> None:
    count = sum(p.numel() for p in graph.parameters())
    if count > MAX_ELEMENTS:
        raise CaffeError(f"{prototxt}: {count:,} random weights asked for, above {MAX_ELEMENTS:,}.")
    graph.to_empty(device="cpu")
    for module in graph.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()


# --- the weights ----------------------------------------------------------------------------------------------------


def _fill(graph: CaffeGraph, weights: dict[str, list[Blob]]) -> None:
    """Put the file's arrays into the modules; every misfit is named before anything is copied."""
    wanted = {}
    for step in graph.steps:
        shapes = _blob_shapes(graph.get_submodule(step.module))
        name = step.fields.string("name")
        if shapes and name in wanted:
            raise CaffeError(
                f"two layers of the text are called {name!r} and want weights: whose are whose is not said."
            )
        if shapes:
            wanted[name] = (step, shapes)
    missing = [step.fields.where for name, (step, _) in wanted.items() if name not in weights]
    if missing:
        raise CaffeError(f"it has no weights for {named(missing)}; it has them for {named(weights)}.")
    wrong = []
    for name, (step, shapes) in wanted.items():
        given = [blob.shape for blob in weights[name]]
        if [_bare(s) for s in given] != [_bare(s) for s in shapes]:
            wrong.append(f"{step.fields.where} expects {shapes}, received {given}")
    if wrong:
        raise CaffeError(f"the weights do not fit the text: {'; '.join(wrong[:8])}.")
    for name, (step, shapes) in wanted.items():
        arrays = [_tensor(b, s, step.fields.where) for b, s in zip(weights[name], shapes, strict=True)]
        _put(graph.get_submodule(step.module), arrays, step.fields.where)


def _blob_shapes(module: nn.Module) -> list[Shape]:
    """The arrays that Caffe keeps for a layer."""
    if isinstance(module, BatchNorm):
        return [(module.num_features,), (module.num_features,), (1,)]
    shapes = [tuple(p.shape) for p in module.parameters()]
    if isinstance(module, InnerProduct) and module.transposed:
        shapes[0] = shapes[0][::-1]
    return shapes


def _bare(shape: Shape) -> Shape:
    """Without the ones that old files put before a shape to make it four numbers."""
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _tensor(blob: Blob, shape: Shape, where: str) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        tensor = torch.from_numpy(blob.data.astype(np.float32)).reshape(shape)
    if not bool(torch.isfinite(tensor).all()):
        raise CaffeError(f"{where} has weights that are not finite.")
    return tensor


def _put(module: nn.Module, arrays: list[Tensor], where: str) -> None:
    if isinstance(module, BatchNorm):
        # The file holds sums; the third array says of how much.
        mean, variance, count = arrays
        factor = 0.0 if float(count) == 0 else 1 / float(count)
        module.running_mean, module.running_var = mean * factor, variance * factor
        module.num_batches_tracked = torch.tensor(0)
        if not bool((module.running_var + module.eps > 0).all()) or not bool(torch.isfinite(module.running_mean).all()):
            raise CaffeError(f"{where} has variances that are not positive, or statistics that are not finite.")
        return
    if isinstance(module, InnerProduct) and module.transposed:
        arrays = [arrays[0].T.contiguous(), *arrays[1:]]
    for (name, _), array in zip(list(module.named_parameters()), arrays, strict=True):
        setattr(module, name, nn.Parameter(array))
