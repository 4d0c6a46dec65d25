"""An engine's pass, compiled by torch.compile once for each shape; on a GPU a CUDA graph if that is faster.

A recorded pass needs almost no time on the CPU, whatever its number of kernels; at small batches, launching them takes
most of the time.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.ledger_entries import EntryDetail
from deeptaylor.engine.result import Result
from deeptaylor.maps.linear_map import Maybe

__all__ = ["CompiledEngine"]

_Run = Callable[[Sequence[Maybe]], Any]  # takes the tensors of the inputs and the target

_FIELDS = tuple(field.name for field in fields(Result))
_WARM_UP = 3  # calls before a recording, for compilation, choice of algorithms and workspace
_TRIALS = 3
_MIN_LAUNCH_SHARE = 0.7  # record a pass if launching its kernels takes more than this part of its time


class CompiledEngine:
    """`Engine.run`, compiled. Later runs do not overwrite its results."""

    def __init__(self, engine: Engine, options: dict[str, Any], graphs: bool | None) -> None:
        self._engine, self._options, self._graphs = engine, options, graphs
        self._passes: dict[Any, _Run] = {}
        self._recordings: dict[Any, _Run] = {}
        self._pool: Any = None  # memory shared by all recordings: only one is replayed at a time
        self._replayed: Any = None  # the event after the last replay; the next replay waits for it
        self._stream: Any = None  # used by all warm-ups: a stream keeps the memory that it used
        self._lock = threading.Lock()

    def _run_uncompiled(
        self, inputs: tuple[Tensor, ...], target: Any, detail: EntryDetail, keep: frozenset[str]
    ) -> tuple[Any, ...]:
        """Return the fields of the engine's result as a tuple."""
        result = self._engine.run(inputs, target, detail, keep)
        return tuple(getattr(result, name) for name in _FIELDS)

    def __call__(
        self, inputs: Sequence[Tensor], target: Any, detail: EntryDetail = None, keep: frozenset[str] = frozenset()
    ) -> Result:
        target = targets.to_tensors(target, inputs[0])
        given, form = pytree.tree_flatten((tuple(inputs), target))
        tensors = [None if t is None else _to_contiguous(t) for t in given]
        sizes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
        key = (form, detail, keep, sizes)
        with torch.no_grad(), torch.cuda.device(inputs[0].device if inputs[0].is_cuda else -1):
            with self._lock:
                if key not in self._passes:
                    self._passes[key] = self._compile_pass(form, detail, keep)
                if inputs[0].is_cuda and self._graphs is not False:
                    if key not in self._recordings:
                        self._recordings[key] = self._prepare(self._passes[key], tensors)
                    return Result(*self._recordings[key](tensors))
            return Result(*self._passes[key](tensors))

    def _compile_pass(self, form: Any, detail: EntryDetail, keep: frozenset[str]) -> _Run:
        """Return a compiled pass for one set of sizes.

        Each has a code object of its own, because torch.compile gives up on a code object after some sizes.
        """
        code = type(self)._run_uncompiled.__code__.replace()
        function = types.MethodType(types.FunctionType(code, globals()), self)
        run = torch.compile(function, dynamic=False, fullgraph=True, options=self._options)
        return lambda tensors: run(*pytree.tree_unflatten(tensors, form), detail, keep)

    def _prepare(self, run: _Run, example: Sequence[Maybe]) -> _Run:
        """Return a pass for these sizes, recorded as a CUDA graph if the user wants that or if it is faster."""
        with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
            held = [None if t is None else t.clone() for t in example]
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run(held)
            record = self._graphs or _measure_launches(lambda: run(held)) > _MIN_LAUNCH_SHARE
        torch.cuda.current_stream().wait_stream(stream)
        if not record:
            return run
        if self._pool is None:
            self._pool, self._replayed = torch.cuda.graph_pool_handle(), torch.cuda.Event()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            results = run(held)

        def replay(tensors: Sequence[Maybe]) -> Any:
            torch.cuda.current_stream().wait_event(self._replayed)
            for ours, theirs in zip(held, tensors, strict=True):
                if ours is not None and theirs is not None:
                    ours.copy_(theirs)
            graph.replay()
            own = pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, results)
            self._replayed.record()
            return own

        return replay


def _measure_launches(run: Callable[[], Any]) -> float:
    """Return the share of a pass's time that launching its kernels takes."""
    parts: list[float] = []
    for _ in range(_TRIALS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        start = time.perf_counter()
        run()
        launched = 1000 * (time.perf_counter() - start)
        end.record()
        torch.cuda.synchronize()
        parts.append(launched / begin.elapsed_time(end))
    return min(parts)


def _to_contiguous(t: Tensor) -> Tensor:
    """Return a contiguous or channels-last tensor: every other memory layout would be compiled again."""
    t = t.detach()
    together = t.is_contiguous() or (t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last))
    return t if together else t.contiguous()
