"""A network captured for the shapes of input that it meets, and followed: is it still the network that was captured?

CapturedNetwork
├── engine_for     the engine for some inputs; captured anew for another shape or number of samples
├── refresh        captured again, as the network is now
├── compile        how passes are run from now on; recompute: with less memory
└── _look          before every call: refuse a network that changed, follow one that was moved
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from deeptaylor.errors import CaptureError, InputError, MismatchError, StaleModelError, warn
from deeptaylor.graph.agreement import Answer
from deeptaylor.graph.eval_mode import LOCK
from deeptaylor.plan.table import Plan
from deeptaylor.run.compiled import Compiled
from deeptaylor.run.engine import Engine
from deeptaylor.run.freshness import Known, Look
from deeptaylor.run.prepare import Settings, prepare
from deeptaylor.run.result import Result

__all__ = ["CapturedNetwork", "first_float"]

# The reverse pass reads what the forward pass kept, in the order in which it was written: reordered, it keeps more at
# once. Channels are last already. Padded matrix products cost more than they give here.
_INDUCTOR = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "shape_padding": False,
}
_ENGINES = 8  # shapes of input, and numbers of samples, that are remembered beside the first


class CapturedNetwork(nn.Module):
    """A network that is never changed, captured with the user's settings; a part of it is an engine a shape."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._scored: dict[str, Any] = {}  # with a function of the output, by what it computes; the latest last
        # In a tuple, so that nn.Module does not take the user's network for a part of this one.
        self._model = (model,)
        self._example = tuple(x[:2].detach() for x in inputs)
        self._compile: tuple[bool | None, dict[str, Any]] | None = None  # CUDA graphs, inductor's options; once asked
        self._recompute = False
        self._runs: dict[int, Compiled] = {}
        self._known, known = self._look_closely()
        self._lock, self._captures = threading.RLock(), 0
        self.engines = nn.ModuleDict()
        try:
            engine = self._capture(inputs, known=known)
        except MismatchError:
            raise
        except CaptureError:  # two samples were not enough for a network that insists on its batch size
            if inputs[0].shape[0] <= 2:
                raise
            engine = self._capture(inputs, whole=True)
            self._example = tuple(x.detach() for x in inputs)
        self.engines[_key(inputs)] = engine

    def _look_closely(self) -> tuple[Known, Answer | None]:
        """The network as it is now, and what it said of the example."""
        known = Known(self._model[0], self._example, self.settings.domains)
        return known, known.answer()

    # --- capture --------------------------------------------------------------------------------------------------

    def _capture(self, inputs: Sequence[Tensor], whole: bool = False, known: Answer | None = None) -> Engine:
        """Capture the network for these shapes, and bring the result to where this explainer was moved."""
        like = first_float(self._model[0].parameters())
        own = [x.detach() for x in inputs]
        if like is not None:
            own = [x.to(like) if x.is_floating_point() else x.to(like.device) for x in own]
        engine = Engine(prepare(self._model[0], own if whole else [x[:2] for x in own], self.settings, own, known))
        if self._recompute:
            engine.recompute()
        moved = first_float(self._first.network.buffers()) if len(self.engines) else None
        return engine if moved is None else engine.to(device=moved.device, dtype=moved.dtype)

    @property
    def plan(self) -> Plan:
        """What will be done, as a printable table."""
        return self._first.plan

    @property
    def _first(self) -> Engine:
        return cast("Engine", next(iter(self.engines.values())))

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed."""
        now, known = self._look_closely()
        self._capture_again(known)
        self._scored.clear()
        self._known = now
        return self

    def _capture_again(self, known: Answer | None = None) -> None:
        again = self._capture(self._example, whole=True, known=known)
        self.engines = nn.ModuleDict({_key(self._example): again})
        self._captures += 1
        self._runs.clear()

    def engine_for(self, inputs: Sequence[Tensor]) -> Engine:
        """The engine for inputs of these shapes, and this many of them; captured anew where they are new."""
        known = self._remembered(inputs)
        if known is not None:
            return known
        with self._lock:
            known = self._remembered(inputs)
            return self._new(inputs) if known is None else known

    def _remembered(self, inputs: Sequence[Tensor]) -> Engine | None:
        for key in (_key(inputs), f"{_key(inputs)}@{inputs[0].shape[0]}"):
            if key in self.engines:
                engine = cast("Engine", self.engines[key])
                if engine.takes(inputs[0].shape[0]):
                    return engine
        return None

    def _new(self, inputs: Sequence[Tensor]) -> Engine:
        """Capture for another shape or number of samples; what was captured longest ago is forgotten."""
        key, shape_is_new = _key(inputs), _key(inputs) not in self.engines
        try:
            engine = self._capture(inputs, whole=not shape_is_new)
            if not engine.takes(inputs[0].shape[0]):
                engine, shape_is_new = self._capture(inputs, whole=True), False
        except MismatchError:
            raise
        except CaptureError as error:
            wanted = [tuple(x.shape[1:]) for x in self._example]
            raise InputError(
                f"The network was captured for samples of shape {_shapes(wanted)} and does not take "
                f"{_shapes([tuple(x.shape[1:]) for x in inputs])}."
            ) from error
        while len(self.engines) > _ENGINES:
            oldest = next(k for k in self.engines if k != _key(self._example))
            self._runs.pop(id(self.engines.pop(oldest)), None)
        self.engines[key if shape_is_new else f"{key}@{inputs[0].shape[0]}"] = engine
        return engine

    def compile(self, graphs: bool | None = None, **options: Any) -> Self:  # type: ignore[override]
        """Compile every pass from now on: slow the first time for each shape, then faster.

        ``graphs``: record passes on a GPU as CUDA graphs, which keep their memory; None: where launching them takes
        most of the time. ``options`` are those of torch.compile's inductor.
        """
        self._compile = (graphs, _INDUCTOR | options)
        self._runs.clear()
        for scored in self._scored.values():
            scored.compile(graphs, **options)
        return self

    def recompute(self, on: bool = True) -> Self:
        """Keep less of the forward pass, and compute it again when the reverse pass comes to it.

        For deep networks and large inputs: the memory of a few layers instead of all, for the time of one more forward
        pass. What is in the way of a single sample is computed again without being asked for, and that is said.
        """
        self._recompute = on
        for engine in self.engines.values():
            cast("Engine", engine).recompute(on)
        self._runs.clear()
        for scored in self._scored.values():
            scored.recompute(on)
        return self

    def _runner(self, engine: Engine) -> Callable[..., Result]:
        """How a batch is run: by the engine itself, or compiled."""
        if self._compile is None or torch.compiler.is_compiling():
            return engine.run
        if id(engine) not in self._runs:
            graphs, options = self._compile
            self._runs[id(engine)] = Compiled(engine, options, graphs)
        return self._runs[id(engine)]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        places, before = self._places(), _type_of(self._first.network.buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._places() != places:
            self._runs.clear()
        for scored in self._scored.values():
            scored._apply(fn, recurse)
        now, own = _type_of(self._first.network.buffers()), _type_of(self._model[0].parameters())
        if _wider(now, before) and _wider(own, before) and not self._known.changed():
            self._capture_again()  # what was rounded stays so, but the network itself was not rounded, or less
        return self

    def _places(self) -> list[tuple[int, torch.dtype]]:
        return [(t.data_ptr(), t.dtype) for t in self.buffers()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # These belong to this object; a copy makes its own. Its network's tensors lie elsewhere, with the same values.
        return {**self.__dict__, "_runs": {}, "_scored": {}, "_known": self._known.changed(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._known, _ = self._look_closely()
        self._known.stale, self._lock = state["_known"], threading.RLock()

    # --- is it still the same? ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Refuse a network that changed, if that is easily seen, and follow one that moved."""
        if self._known.quick():
            return
        with LOCK:  # another thread may be capturing it, with its flags lowered
            if not self._known.quick():
                moved = self._known.moved()
                if moved is not None:
                    self._follow(*moved)
                self._check_fresh()

    def _begin_look(self) -> Look | None:
        """The same, and begin to look at every value; None where that was done already."""
        with LOCK:
            look = self._known.look()
        if look is None:
            self._look()
        return look

    def _follow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the network went, and become the type it became, unless this explainer was elsewhere already."""
        was, own = self._known.place, first_float(self._first.network.buffers())
        self._known, _ = self._look_closely()
        if was is None or own is None:
            return
        there = (device if own.device == was[0] else own.device, dtype if own.dtype == was[1] else own.dtype)
        if there != (own.device, own.dtype):
            warn(f"The network was moved to {device} as {dtype}; its explainer follows, and takes inputs like it.")
            self.to(device=there[0], dtype=there[1])

    def _check_fresh(self, look: Look | None = None) -> None:
        """Refuse a network that changed; `look`, where that look has begun."""
        with LOCK:
            changed = self._known.changed(look)
        if changed:
            raise StaleModelError(
                f"The network changed since it was captured ({len(changed)} parts, among them "
                f"{', '.join(changed[:3])}). Call explainer.refresh() to explain the network as it is now."
            )


def _wider(a: torch.dtype, b: torch.dtype) -> bool:
    """True if a type has more digits, or a wider range, than another."""
    return torch.finfo(a).eps < torch.finfo(b).eps or torch.finfo(a).max > torch.finfo(b).max


def first_float(tensors: Iterable[Tensor]) -> Tensor | None:
    """The tensor that tells where and in which type a network computes."""
    return next((t for t in tensors if t.is_floating_point() and t.ndim), None)


def _type_of(tensors: Iterable[Tensor]) -> torch.dtype:
    first = first_float(tensors)
    return torch.float32 if first is None else first.dtype


def _key(inputs: Sequence[Tensor]) -> str:
    """Everything but the batch size that a capture depends on; free of dots, as module names must be."""
    return "_".join(
        "x".join(str(int(n)) for n in x.shape[1:]) + ("f" if x.is_floating_point() else "i") for x in inputs
    )


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))
