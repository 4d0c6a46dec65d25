"""What a network read from an ONNX file gives, compared with what the file itself gives.

compare_outputs(network, model, path)
├── test_data_set_*/    inputs and outputs stored beside the file, as the ONNX standard lays them out
└── onnxruntime         where it is installed and there are no such data: one pass over invented numbers

A difference is an `OnnxMismatchError`. What could not be compared is returned as notes.
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import MismatchError
from deeptaylor.graph.failure import first_line
from deeptaylor.models.onnx.file import OnnxError, count_bytes, import_onnx, read_tensor
from deeptaylor.models.onnx.onnx_network import FAILURES, OnnxNetwork

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxMismatchError", "compare_outputs"]

# Allowed difference, relative to the largest output, by the precision in which the file computes.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}
_ROUNDING = 10  # as much as this network differs from itself in float64 may onnxruntime differ from that, too
_MOST_BYTES = 2**30  # of weights, for a second copy in onnxruntime
_MOST_INPUT = 2**26  # bytes of invented inputs
_BYTES = 256  # whole numbers of a byte


class OnnxMismatchError(OnnxError, MismatchError):
    """The imported network gives other results than the ONNX file."""


def compare_outputs(
    network: OnnxNetwork, model: onnx.ModelProto, batches: Sequence[int | None], path: Path
) -> tuple[str, ...]:
    """Run the network once and compare its outputs with others; return notes on what could not be compared.

    batches   the batch sizes that the file declares, one per input
    """
    stored = list(_read_test_data(network, model, path))
    for folder, inputs, outputs in stored:
        try:
            ours = _run_network(network, inputs)
        except FAILURES as error:
            return (f"{path.name}: not compared with {folder}: {first_line(error)}",)
        _check_outputs(network, ours, outputs, path, f"the outputs stored in {folder} say")
    return () if stored else _compare_with_runtime(network, model, batches, path)


# --- stored beside the file -----------------------------------------------------------------------------------------


def _read_test_data(
    network: OnnxNetwork, model: onnx.ModelProto, path: Path
) -> Iterator[tuple[str, list[Tensor], dict[str, Tensor]]]:
    """Yield test data beside the file if they fit its inputs and outputs and belong to no other file."""
    try:
        folders = sorted(path.parent.glob("test_data_set_*"))
        if not folders or len(list(path.parent.glob("*.onnx"))) != 1:
            return
    except OSError:
        return
    given = [i.name for i in model.graph.input]
    makes = [o.name for o in model.graph.output]
    for folder in folders:
        named = _read_tensors(
            folder, "input", given if len(given) == _count_files(folder, "input") else network.input_names
        )
        outputs = _read_tensors(folder, "output", makes)
        if named is None or outputs is None or not set(network.input_names) <= named.keys():
            continue
        inputs = [named[name] for name in network.input_names]
        same = all(name in named and torch.equal(named[name], value) for name, value in network.fixed.items())
        if same and all(_fits_shape(x, shape) for x, shape in zip(inputs, network.input_shapes, strict=True)):
            yield folder.name, inputs, outputs


def _count_files(folder: Path, what: str) -> int:
    return len(list(folder.glob(f"{what}_*.pb")))


def _read_tensors(folder: Path, what: str, names: Sequence[str]) -> dict[str, Tensor] | None:
    """Read tensors by name, in the order of the files; return None if that fails."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    found = {}
    if _count_files(folder, what) != len(names):
        return None
    for k, name in enumerate(names):
        file = folder / f"{what}_{k}.pb"
        proto = import_onnx().TensorProto()
        try:
            if not file.is_file():
                return None
            proto.ParseFromString(file.read_bytes())
            found[proto.name if proto.name in names else name] = read_tensor(proto, None)
        except (OSError, DecodeError, ValueError):
            return None
    return found if len(found) == len(names) else None


def _fits_shape(x: Tensor, shape: Sequence[int | None]) -> bool:
    return x.ndim == len(shape) + 1 and all(n in (None, m) for n, m in zip(shape, x.shape[1:], strict=True))


# --- onnxruntime ----------------------------------------------------------------------------------------------------


def _compare_with_runtime(
    network: OnnxNetwork, model: onnx.ModelProto, batches: Sequence[int | None], path: Path
) -> tuple[str, ...]:
    """Compare with onnxruntime, which runs the file as it is: its rewrites of the graph change outputs."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return ()
    if any(n is None for shape in network.input_shapes for n in shape):
        return (f"{path.name}: not compared with onnxruntime: it leaves sizes of its input open",)
    if sum(count_bytes(i) for i in model.graph.initializer) > _MOST_BYTES:
        return (f"{path.name}: not compared with onnxruntime: its weights are larger than {_MOST_BYTES >> 30} GiB",)
    inputs = _make_inputs(network, batches)
    if sum(x.numel() * x.element_size() for x in inputs) > _MOST_INPUT:
        return (f"{path.name}: not compared with onnxruntime: its input is too large",)
    # Values inside the graph are not outputs of the file.
    names = [n for n in network.output_names if n in {o.name for o in model.graph.output}]
    if not names:
        return (f"{path.name}: not compared with onnxruntime: {network.output_names[0]} is not an output of the file",)
    try:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        wanted = _run_session(session, network, inputs, names)
    except Exception as error:  # noqa: BLE001  onnxruntime has errors of its own, and lacks operators
        return (f"{path.name}: not compared with onnxruntime, which cannot run it: {first_line(error)}",)
    try:
        ours = _run_network(network, inputs)
    except FAILURES as error:
        if all(p.dtype in (torch.float32, torch.int64) for p in (*network.parameters(), *network.buffers(), *inputs)):
            raise OnnxError(
                f"{path.name} cannot be run here, though onnxruntime runs it: {first_line(error)}"
            ) from error
        return (f"{path.name}: not compared with onnxruntime: {first_line(error)}",)  # torch lacks it in few digits
    try:
        _check_outputs(network, ours, wanted, path, "onnxruntime gives")
    except OnnxMismatchError:
        if _agrees_elsewhere(network, model, batches, path, session, names):
            return ()
        if not _is_rounding(network, inputs, ours, wanted):
            raise
        return (f"{path.name}: its outputs differ from onnxruntime's by rounding, which it magnifies",)
    return ()


def _run_session(session: Any, network: OnnxNetwork, inputs: Sequence[Tensor], names: Sequence[str]) -> dict[str, Any]:
    """Return the outputs that onnxruntime computes."""
    kinds = {i.name: i.type for i in session.get_inputs()}
    named = dict(zip(network.input_names, inputs, strict=True)) | network.fixed
    fed = {n: _to_array(x, kinds[n]) for n, x in named.items() if n in kinds}
    return {n: _to_tensor(a) for n, a in zip(names, session.run(names, fed), strict=True)}


def _agrees_elsewhere(
    network: OnnxNetwork, model: onnx.ModelProto, batches: Sequence[int | None], path: Path, session: Any,
    names: Sequence[str],
) -> bool:  # fmt: skip
    """Return True if both agree on whole numbers of a wide range; False also if no input holds whole numbers.

    Networks of bytes see almost equal numbers in 0 and 1, and their norms then magnify rounding.
    """
    if all(kind.is_floating_point for kind in network.input_types):
        return False
    inputs = _make_inputs(network, batches, _count_rows(model))
    try:
        wanted = _run_session(session, network, inputs, names)
        _check_outputs(network, _run_network(network, inputs), wanted, path, "onnxruntime gives")
    except Exception:  # noqa: BLE001  a number that the network does not take, or a difference
        return False
    return True


def _count_rows(model: onnx.ModelProto) -> int:
    """Return how many whole numbers every lookup takes: the rows of the smallest table, or those of a byte."""
    sizes = {i.name: list(i.dims) for i in model.graph.initializer}
    tables = [sizes[n.input[0]] for n in model.graph.node if n.op_type == "Gather" and n.input[0] in sizes]
    return min([_BYTES, *[int(size[0]) for size in tables if len(size) > 1]])


def _is_rounding(
    network: OnnxNetwork, inputs: Sequence[Tensor], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> bool:
    """Return True if outputs differ by no more than this network differs from itself in float64."""
    exact = copy.deepcopy(network)
    exact.set_precision(torch.float64)
    try:
        wide = _run_network(exact, [x.double() if x.is_floating_point() else x for x in inputs])
    except FAILURES:
        return False
    for name in ours.keys() & theirs.keys():
        mine, other, best = (t[name].detach().double() for t in (ours, theirs, wide))
        if not theirs[name].is_floating_point() or mine.shape != other.shape:
            return False
        own, gap = _measure_gap(mine, best)[0], _measure_gap(other, best)[0]
        if gap > _ROUNDING * own:
            return False
    return True


def _make_inputs(network: OnnxNetwork, batches: Sequence[int | None], below: int = 2) -> list[Tensor]:
    """Make inputs of the declared shapes: real ones from −1 to 1, whole ones 0 and 1, as for tokens and masks.

    below   the end of the range of whole numbers
    """
    random, made = torch.Generator().manual_seed(0), []
    declared = zip(network.input_names, batches, network.input_shapes, network.input_types, strict=True)
    for name, batch, shape, kind in declared:
        full = () if name in network.scalars else (batch or 2, *[n or 1 for n in shape])
        if kind.is_floating_point:
            made.append((2 * torch.rand(full, generator=random) - 1).to(kind))
        else:
            most = 2 if kind is torch.bool else min(below, torch.iinfo(kind).max + 1)
            made.append(torch.randint(0, most, full, generator=random).to(kind))
    return made


def _to_array(x: Tensor, kind: str) -> np.ndarray[Any, Any]:
    """Return a tensor as onnxruntime takes it: unsigned types are wider here than in the file."""
    wanted = {"tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64}.get(kind)
    array: np.ndarray[Any, Any] = x.numpy()  # of bfloat16 there is none, which is an error
    return array if wanted is None else array.astype(wanted)


def _to_tensor(array: Any) -> Tensor:
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(str(array.dtype), array.dtype)
    return torch.from_numpy(np.ascontiguousarray(array.astype(wider))).reshape(array.shape)


# --- the two --------------------------------------------------------------------------------------------------------


def _run_network(network: OnnxNetwork, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        result = network(*inputs)
    return result if isinstance(result, dict) else {network.output_names[0]: result}


def _check_outputs(
    network: OnnxNetwork, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], path: Path, says: str
) -> None:
    """Raise an error with numbers if an output differs by more than its precision explains."""
    kinds = {t.dtype for t in (*network.parameters(), *network.buffers(), *ours.values(), *theirs.values())}
    allowed = max((_TOLERANCE[k] for k in kinds if k in _TOLERANCE), default=0.0)
    for name in ours.keys() & theirs.keys():
        mine, other = ours[name], theirs[name]
        if mine.shape != other.shape:
            raise OnnxMismatchError(
                f"{path.name}: its output {name!r} has the shape {tuple(mine.shape)} here; {says} "
                f"{tuple(other.shape)}. Please report this file; it is not explained."
            )
        gap, scale = _measure_gap(mine.detach().double(), other.double())
        tolerance = allowed if other.is_floating_point() else 0.0
        if gap > tolerance * scale:
            raise OnnxMismatchError(
                f"{path.name}: its output {name!r} differs by {gap:.3g} from what {says}, where outputs reach "
                f"{scale:.3g} and {tolerance * scale:.1g} is allowed. Please report this file; it is not explained."
            )


def _measure_gap(mine: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the largest difference and the largest number; infinities and NaNs in both count as equal."""
    same = (mine == other) | (mine.isnan() & other.isnan())
    gap = torch.where(same, 0, (mine - other).abs()).nan_to_num(torch.inf)
    finite = other[other.isfinite()].abs()
    return (float(gap.max()) if gap.numel() else 0.0, float(finite.max()) if finite.numel() else 0.0)
