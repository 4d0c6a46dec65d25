"""The explainer itself as an ONNX file: a photograph's numbers in, score and relevance out, without torch.

    Explainer ──torch.export──► program ──torch.onnx──► model ──onnxruntime──► compared with the explainer ──► file

Nothing is written unless the file says what the explainer says, on the example and on inputs drawn from the domain.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, Domain, NonNegative
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.failure import first_line
from deeptaylor.graph.modes import eval_mode, preserve_interrupts, silence_log
from deeptaylor.settings import PRESETS
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package

__all__ = [
    "TOLERANCE",
    "ExportError",
    "OnnxExport",
    "convert_module",
    "export_explainer",
    "measure_gap",
    "open_session",
    "require_packages",
]

TOLERANCE = 1e-4  # of the largest score, and of the largest relevance of a sample
_WHY, _EXTRA = "explainers are exported by way of ONNX", "export"
_MOST_DRAWN = 24  # batches
_LARGEST = 2**31 - 1  # bytes of one protobuf message


class ExportError(DeepTaylorError, RuntimeError):
    """The explainer cannot be exported, or its export says something else than it does."""


@dataclass(frozen=True)
class OnnxExport:
    """An explainer as a file: ``x`` (and ``target``) in, ``score`` and ``relevance`` out."""

    path: Path
    inputs: Mapping[str, tuple[int | str, ...]]
    outputs: Mapping[str, tuple[int | str, ...]]
    size: int
    score_gap: float  # the largest difference found, relative to the largest score
    relevance_gap: float  # relative to the largest relevance of its sample
    samples: int  # how many were compared
    empty: int  # of them with an empty map, where relevance could not be compared


def export_explainer(
    explainer: Explainer,
    example: Tensor,
    path: str | os.PathLike[str],
    *,
    target: int | Literal["top", "input"] = "top",
    about: Mapping[str, str] | None = None,
) -> OnnxExport:
    """Write an explainer as ONNX, after onnxruntime and the explainer were found to agree to `TOLERANCE`.

    example   inputs as the network takes them; they are among those that are compared
    target    "top": the top class is explained; a number: that class; "input": the file takes the classes as `target`
    about     words to put into the file beside the version and the plan
    """
    path = Path(path)
    require_packages()
    if len(explainer.settings.domains) != 1 or not example.is_floating_point():
        raise InputError("An explainer with one input of real numbers can be exported; give such an example.")
    method = explainer.choose(example, None if isinstance(target, str) else target).method
    if method not in PRESETS:
        raise InputError(
            f"Only explainers by deep Taylor, 'paper' and 'cp-lrp' can be exported to ONNX; this one uses {method!r}, "
            "whose backward pass cannot be exported. Use {method}, or keep the explainer in Python.",
            method="deep-taylor",
        )
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} to.")
    batches = _make_batches(explainer, example, target)
    data = _write_model(explainer, batches[0], target, dict(about or {}))
    session = open_session(data)
    score_gap, relevance_gap, empty = _compare(explainer, session, batches, target)
    if not (score_gap <= TOLERANCE and relevance_gap <= TOLERANCE):  # a NaN is no agreement
        raise ExportError(
            f"{path} was not written: run by onnxruntime, the exported explainer differs from the explainer by "
            f"{score_gap:.1e} of the score and {relevance_gap:.1e} of the largest relevance, more than {TOLERANCE:.0e}."
        )
    write_whole(path, data)
    return OnnxExport(
        path,
        {i.name: tuple(i.shape) for i in session.get_inputs()},
        {o.name: tuple(o.shape) for o in session.get_outputs()},
        len(data),
        score_gap,
        relevance_gap,
        sum(len(b) for b in batches),
        empty,
    )


class _FixedTarget(nn.Module):
    """An explainer of always the same class."""

    def __init__(self, explainer: Explainer, target: int) -> None:
        super().__init__()
        self.explainer, self.target = explainer, target

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score, relevance = self.explainer(x, self.target)
        return score, relevance


def _make_batches(explainer: Explainer, example: Tensor, target: int | str) -> list[Tensor]:
    """Make the batches to compare: inputs drawn from the domain, as many as the network takes at once; the example.

    Two batches at least, and more until one has a positive score: an empty map agrees with anything.
    """
    domain, fixed = explainer.settings.domains[0], _find_fixed_batch(explainer, example)
    batches = list(example.split(fixed or 1))
    drawn = (_draw_inputs(domain, example, fixed or 2 + seed % 2, seed) for seed in range(_MOST_DRAWN))
    for k, batch in enumerate(drawn):
        if k >= 2 and any(_can_explain(explainer, x, target) for x in batches):
            return [*batches[-2:], *batches[:-2]]
        batches.append(batch)
    raise ExportError(
        f"none of {sum(len(b) for b in batches)} inputs has a positive score, so there is no relevance to compare; "
        "give an example that the network recognises (at the command line: --photo FILE)."
    )


def _can_explain(explainer: Explainer, x: Tensor, target: int | str) -> bool:
    """Return whether there is relevance to compare."""
    score, _ = explainer(x, _resolve_target(explainer, x, target))
    return bool((score > 0).any())


def _resolve_target(explainer: Explainer, x: Tensor, target: int | str) -> Any:
    return _best_classes(explainer, x) if target == "input" else None if target == "top" else target


def _find_fixed_batch(explainer: Explainer, x: Tensor) -> int | None:
    """Return the batch size that the network requires; None if it takes any."""
    return explainer.captured.engine_for([x]).fixed_batch


def _draw_inputs(domain: Domain, like: Tensor, batch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, *like.shape[1:])
    if isinstance(domain, Box):
        low, high = (bound.to(like) for bound in domain.bounds(like[:1]))
        return low + (high - low) * torch.rand(shape, generator=generator).to(like)
    drawn = torch.randn(shape, generator=generator).to(like)
    return drawn.abs() if isinstance(domain, NonNegative) else drawn


@contextmanager
def _silence_export() -> Iterator[None]:
    """Silence warnings between torch, onnxscript and torchvision that the user cannot act on."""
    with silence_log("torch.onnx", logging.ERROR), redirect_stdout(io.StringIO()):
        yield


def require_packages() -> None:
    """Raise if a package that an export needs is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        optional_package(name, _WHY, _EXTRA)


def convert_module(
    module: nn.Module, example: tuple[Tensor, ...], inputs: Sequence[str], outputs: Sequence[str], is_free: bool = False
) -> Any:
    """Return a module that calls an explainer as an ONNX model; `is_free`: it takes batches of any size."""
    batch = {0: torch.export.Dim("batch")} if is_free else {}
    try:
        with _silence_export(), preserve_interrupts(), torch.no_grad():
            program = torch.export.export(module, example, dynamic_shapes=(batch,) * len(example), strict=False)
            made = torch.onnx.export(
                program, example, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
            )
    except Exception as error:
        first = first_line(error)
        raise ExportError(f"torch {torch.__version__} cannot export this explainer to ONNX: {first}") from error
    assert made is not None
    return made.model_proto


def _write_model(explainer: Explainer, x: Tensor, target: int | str, about: dict[str, str]) -> bytes:
    """Return the bytes of the ONNX file."""
    onnx = optional_package("onnx", _WHY, _EXTRA)
    module: nn.Module = explainer if isinstance(target, str) else _FixedTarget(explainer, target)
    given = (x, torch.zeros(len(x), dtype=torch.int64, device=x.device)) if target == "input" else (x,)
    is_free = _find_fixed_batch(explainer, x) is None
    proto = convert_module(module, given, ["x", "target"][: len(given)], ["score", "relevance"], is_free)
    _name_batch(proto.graph)
    onnx.helper.set_model_props(proto, {"plan": explainer.plan.summary(), "target": str(target), **about})
    if proto.ByteSize() > _LARGEST:
        raise ExportError(f"the explainer has {proto.ByteSize() / 2**30:.1f} GiB, more than the 2 GiB of an ONNX file.")
    data: bytes = proto.SerializeToString()
    return data


def _name_batch(graph: Any) -> None:
    """Call the free batch size what it is, in place of torch's s77."""
    free = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for side in value.type.tensor_type.shape.dim:
            if free and side.dim_param == free:
                side.dim_param = "batch"


def open_session(data: bytes) -> Any:
    """Return a session of onnxruntime on the CPU, with as many threads as torch has."""
    onnxruntime = optional_package("onnxruntime", _WHY, _EXTRA)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        first = first_line(error)
        raise ExportError(f"onnxruntime does not take the exported explainer: {first}") from error


def _compare(
    explainer: Explainer, session: Any, batches: Sequence[Tensor], target: int | str
) -> tuple[float, float, int]:
    """Return the largest gaps of score and relevance, and how many maps were empty."""
    gaps, empty = [(0.0, 0.0)], 0
    for x in batches:
        with torch.no_grad():
            asked = _resolve_target(explainer, x, target)
            score, relevance = explainer(x, asked)
        feed = {"x": x.cpu().numpy()}
        if isinstance(asked, Tensor):
            feed["target"] = asked.cpu().numpy()
        found = [torch.from_numpy(value).to(x) for value in session.run(["score", "relevance"], feed)]
        largest = relevance.flatten(1).abs().amax(1)
        empty += int((largest == 0).sum())
        scale = largest.reshape(-1, *[1] * (relevance.ndim - 1))
        gaps.append((measure_gap(found[0], score, score.abs().max()), measure_gap(found[1], relevance, scale)))
    score_gap, relevance_gap = (
        torch.tensor(gaps, dtype=torch.float64).amax(0).tolist()
    )  # keeps a NaN, as max() would not
    return score_gap, relevance_gap, empty


def _best_classes(explainer: Explainer, x: Tensor) -> Tensor:
    """Return the top class of every other sample, and the second of those between, so that the classes count."""
    with eval_mode(explainer.model):
        output: Tensor = explainer.model(x)
    if output.ndim != 2 or output.shape[1] < 2:
        raise InputError(f"The network's output has shape {tuple(output.shape)}: there are no classes to ask for.")
    best = output.topk(2, dim=1).indices
    return best.gather(1, torch.arange(len(x), device=x.device).remainder(2).unsqueeze(1)).squeeze(1)


def measure_gap(found: Tensor, wanted: Tensor, scale: Tensor) -> float:
    """Return the largest difference relative to a scale; NaN if only one of both is NaN."""
    if found.shape != wanted.shape:
        return float("inf")
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return float(((found - wanted) / scale).abs().max())
