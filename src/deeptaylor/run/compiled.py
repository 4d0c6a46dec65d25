"""An engine's pass compiled by torch.compile, once for every shape; on a GPU recorded as a CUDA graph where that helps.

A recorded pass costs the processor almost nothing, however many kernels it has: at small batches they are all there is.
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

from deeptaylor.maps.linear_map import Maybe
from deeptaylor.run import target as targets
from deeptaylor.run.books import Kept
from deeptaylor.run.engine import Engine
from deeptaylor.run.result import Result

__all__ = ["Compiled"]

_Run = Callable[[Sequence[Maybe]], Any]  # of tensors, the inputs' and the target's

_FIELDS = tuple(field.name for field in fields(Result))
_WARM_UP = 3  # calls before a recording: compilation, choice of algorithms, work space
_TRIALS = 3
_BUSY = 0.7  # the part of a pass that its launches may take before it is recorded


class Compiled:
    """`Engine.run`, compiled. Its results are the caller's own."""

    def __init__(self, engine: Engine, options: dict[str, Any], graphs: bool | None) -> None:
        self._engine, self._options, self._graphs = engine, options, graphs
        self._passes: dict[Any, _Run] = {}
        self._recorded: dict[Any, _Run] = {}
        self._pool: Any = None  # of memory, one for all recordings: no two are replayed at once
        self._replayed: Any = None  # the event after the last replay, which the next awaits, on whatever stream
        self._stream: Any = None  # for trials: memory that a stream used stays with it
        self._lock = threading.Lock()

    def _plain(self, inputs: tuple[Tensor, ...], target: Any, books: Kept, keep: frozenset[str]) -> tuple[Any, ...]:
        result = self._engine.run(inputs, target, books, keep)
        return tuple(getattr(result, name) for name in _FIELDS)

    def __call__(
        self, inputs: Sequence[Tensor], target: Any, books: Kept = None, keep: frozenset[str] = frozenset()
    ) -> Result:
        target = targets.settled(target, inputs[0])
        given, form = pytree.tree_flatten((tuple(inputs), target))
        tensors = [None if t is None else _laid_out(t) for t in given]
        sizes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
        key = (form, books, keep, sizes)
        with torch.no_grad(), torch.cuda.device(inputs[0].device if inputs[0].is_cuda else -1):
            with self._lock:
                if key not in self._passes:
                    self._passes[key] = self._compiled(form, books, keep)
                if inputs[0].is_cuda and self._graphs is not False:
                    if key not in self._recorded:
                        self._recorded[key] = self._prepare(self._passes[key], tensors)
                    return Result(*self._recorded[key](tensors))
            return Result(*self._passes[key](tensors))

    def _compiled(self, form: Any, books: Kept, keep: frozenset[str]) -> _Run:
        """A pass for one set of sizes. Its code is its own: torch.compile gives up on a code after some sizes."""
        code = type(self)._plain.__code__.replace()
        plain = types.MethodType(types.FunctionType(code, globals()), self)
        run = torch.compile(plain, dynamic=False, fullgraph=True, options=self._options)
        return lambda tensors: run(*pytree.tree_unflatten(tensors, form), books, keep)

    def _prepare(self, run: _Run, example: Sequence[Maybe]) -> _Run:
        """A pass for these sizes, recorded if that was asked for, or if its launches keep the GPU waiting."""
        with torch.inference_mode(False):  # or they could only be written to in that mode
            held = [None if t is None else t.clone() for t in example]
        stream = self._stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run(held)
            record = self._graphs or _launching(lambda: run(held)) > _BUSY
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


def _launching(run: Callable[[], Any]) -> float:
    """Which part of a pass goes by until the processor has launched it."""
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


def _laid_out(t: Tensor) -> Tensor:
    """A tensor whose elements lie together: every other layout would be compiled anew."""
    t = t.detach()
    together = t.is_contiguous() or (t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last))
    return t if together else t.contiguous()
