"""A network captured for the shapes of input that it meets, and followed: is it still the network that was captured?

CapturedNetwork
├── begin          the first capture, for the first inputs that it is given
├── engine_for     the engine for some inputs; captured anew for another shape or number of samples
├── refresh        captured again, as the network is now
├── compile        how passes are run from now on; recompute: with less memory
├── run_batch      explain a batch, in parts where it does not fit into memory
└── original       the user's network: refused where it changed, followed where it was moved (stale.py)
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from deeptaylor.errors import CaptureError, InputError, MismatchError, warn
from deeptaylor.graph.agreement import Answer
from deeptaylor.graph.exporting import is_compiling
from deeptaylor.graph.failing import why_it_fails
from deeptaylor.plan.table import Plan
from deeptaylor.run.books import Kept
from deeptaylor.run.compiled import Compiled
from deeptaylor.run.engine import Engine
from deeptaylor.run.inputs import first_float
from deeptaylor.run.prepare import Settings, prepare
from deeptaylor.run.result import Result
from deeptaylor.run.short_of_memory import Batch, explain_in_parts
from deeptaylor.run.stale import Original

__all__ = ["CapturedNetwork", "State"]

# The reverse pass reads what the forward pass kept, in the order in which it was written: reordered, it keeps more at
# once. Channels are last already. Padded matrix products cost more than they give here.
_INDUCTOR = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "shape_padding": False,
}
State = tuple[tuple[torch.device, torch.dtype] | None, tuple[bool | None, dict[str, Any]] | None, bool]
_SCORED = 4  # functions of the output that are remembered
_ENGINES = 8  # shapes of input, and numbers of samples, that are remembered beside the first


class CapturedNetwork(nn.Module):
    """A network that is never changed, captured with the user's settings; a part of it is an engine a shape."""

    original: Original  # these two from the first capture on
    example: tuple[Tensor, ...]

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._scored: dict[str, Self] = {}  # with a function of the output, by what it computes; the latest last
        # In a tuple, so that nn.Module does not take the user's network for a part of this one.
        self._model = (model,)
        self._compile: tuple[bool | None, dict[str, Any]] | None = None  # CUDA graphs, inductor's options; once asked
        self._recompute = False
        self._runs: dict[int, dict[str, Any]] = {}  # of an engine, by what is asked
        self.lock, self.captures, self._followed = threading.RLock(), 0, ""  # the last: where it was moved, until said
        self.engines = nn.ModuleDict()

    @property
    def begun(self) -> bool:
        """True once the network was captured."""
        return len(self.engines) > 0

    def begin(self, inputs: tuple[Tensor, ...]) -> None:
        """Capture the network for the first inputs that it is given."""
        self.example = tuple(x[:2].detach() for x in inputs)
        self.original = Original(self.model, self.example, self.settings.domains)
        self.engines[_key(inputs)] = self._first_engine(inputs)

    def _first_engine(self, inputs: tuple[Tensor, ...]) -> Engine:
        failed: CaptureError | None = None
        for whole in (False, True) if inputs[0].shape[0] > 2 else (False,):  # it may insist on its batch size
            try:
                engine = self._capture(inputs, whole, None if whole else self.original.known.answer())
            except MismatchError:
                raise
            except CaptureError as error:
                failed = error
            else:
                self.example = tuple(x.detach() for x in inputs) if whole else self.example
                return engine
        assert failed is not None
        raise why_it_fails(self.model, inputs, self.settings.root) or failed

    def begin_unasked(self) -> None:
        """The first capture where nothing was given yet, but something is asked about the captured network."""
        raise InputError(
            "Nothing was captured yet: the network is captured with the first input that it explains. Explain one "
            "first, or give an example: dt.Explainer(model, example)."
        )

    @property
    def model(self) -> nn.Module:
        """The user's network."""
        return self._model[0]

    def wrap(self, model: nn.Module) -> None:
        """Capture another network, which calls the user's, in its place."""
        self._model = (model,)

    @property
    def engine(self) -> Engine:
        """The engine for the example."""
        if not self.begun:
            self.begin_unasked()
        return cast("Engine", next(iter(self.engines.values())))

    @property
    def plan(self) -> Plan:
        """What will be done, as a printable table."""
        return self.engine.plan

    @property
    def like(self) -> Tensor | None:
        """A tensor that tells where and in which type this network computes; it may have been moved."""
        return first_float(self.engine.network.buffers())

    # --- capture --------------------------------------------------------------------------------------------------

    def _capture(self, inputs: Sequence[Tensor], whole: bool = False, known: Answer | None = None) -> Engine:
        """Capture the network for these shapes, and bring the result to where this explainer was moved."""
        like = first_float(self.model.parameters())
        own = [x.detach() for x in inputs]
        if like is not None:
            own = [x.to(like) if x.is_floating_point() else x.to(like.device) for x in own]
        engine = Engine(prepare(self.model, own if whole else [x[:2] for x in own], self.settings, own, known))
        if torch.is_inference_mode_enabled():  # tensors that are made in it cannot be differentiated later
            with torch.inference_mode(False):
                engine._apply(lambda t: t.clone() if t.is_inference() else t)
        if self._recompute:
            engine.recompute()
        moved = self.like if len(self.engines) else None
        return engine if moved is None else engine.to(device=moved.device, dtype=moved.dtype)

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed."""
        if not self.begun:
            return self
        now = self.original.now(self.example)
        self._capture_again(now.answer())
        self._scored.clear()
        self.original.known = now
        return self

    def _capture_again(self, known: Answer | None = None) -> None:
        again = self._capture(self.example, whole=True, known=known)
        self.engines = nn.ModuleDict({_key(self.example): again})
        self.captures += 1
        self._runs.clear()

    def engine_for(self, inputs: Sequence[Tensor]) -> Engine:
        """The engine for inputs of these shapes, and this many of them; captured anew where they are new."""
        known = self._remembered(inputs)
        if known is not None:
            return known
        with self.lock:
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
        failed: CaptureError | None = None
        try:
            engine = self._capture(inputs, whole=not shape_is_new)
            if not engine.takes(inputs[0].shape[0]):
                engine, shape_is_new = self._capture(inputs, whole=True), False
        except MismatchError:
            raise
        except CaptureError as error:
            failed = error
        if failed is not None:
            raise self._refused(inputs) or failed
        while len(self.engines) > _ENGINES:
            oldest = next(k for k in self.engines if k != _key(self.example))
            self._runs.pop(id(self.engines.pop(oldest)), None)
        self.engines[key if shape_is_new else f"{key}@{inputs[0].shape[0]}"] = engine
        return engine

    def _refused(self, inputs: Sequence[Tensor]) -> InputError | None:
        """What to say where the network itself does not take inputs of another shape than the first."""
        why = why_it_fails(self.model, inputs, self.settings.root)
        if why is None:
            return None
        wanted, got = (", ".join(str(tuple(x.shape[1:])) for x in some) for some in (self.example, inputs))
        said = InputError(f"The network was captured for samples of shape {wanted}, and these have {got}. {why}")
        said.__cause__ = why.__cause__
        return said

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

    def run_batch(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, books: Kept = None,
        keep: frozenset[str] = frozenset(),
    ) -> Result:  # fmt: skip
        """Run a batch; what does not fit into memory is explained in parts, or keeping less, and that is said."""
        if is_compiling():
            return engine.run(inputs, target, books, keep)
        batch = Batch(tuple(inputs), target, books, keep)
        return explain_in_parts(engine, batch, lambda: self._runner(engine), self.recompute)

    def _runner(self, engine: Engine) -> Any:
        """How a batch is run: by the engine itself, or compiled; called like `Engine.run`."""
        if self._compile is None:
            return engine.run
        return self.kept_run(engine, "explain", partial(Compiled, engine, graphs=self._compile[0]))

    def kept_run(self, engine: Engine, asked: str, made: Callable[[dict[str, Any] | None], Any]) -> Any:
        """How something asked of an engine is run; made once, of torch.compile's options (None: not compiled)."""
        if asked not in (runs := self._runs.setdefault(id(engine), {})):
            runs[asked] = made(self._compile and self._compile[1])
        return runs[asked]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if not self.begun:
            self.begin_unasked()
        places, before = self._places(), _type_of(self.engine.network.buffers())
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        except (AssertionError, RuntimeError) as error:
            if torch.cuda.is_available():
                raise
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"The explainer cannot be moved: {why}; this torch finds no GPU, so stay on 'cpu'."
            ) from error
        if self._places() != places:
            self._runs.clear()
        for scored in self._scored.values():
            scored._apply(fn, recurse)
        now, own = _type_of(self.engine.network.buffers()), _type_of(self.model.parameters())
        if _wider(now, before) and _wider(own, before) and not self.original.known.changed():
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
        stale = self.original.known.changed() if self.begun else []
        return {**self.__dict__, "_runs": {}, "_scored": {}, "original": stale, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()
        if self.begun:
            self.original = Original(self.model, self.example, self.settings.domains)
            self.original.known.answer()
            self.original.known.stale = state["original"]

    # --- like another -------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Where this network was moved to, and how it is run."""
        like = self.like if self.begun else None
        return None if like is None else (like.device, like.dtype), self._compile, self._recompute

    def brought_to(self, state: State) -> Self:
        """The same network, moved and run like another."""
        moved, compiled, recompute = state
        if compiled is not None:
            self.compile(compiled[0], **compiled[1])
        if moved is not None:
            self.to(*moved)
        return self.recompute() if recompute else self

    def scored(self, signature: str | None, capture: Callable[[], Self]) -> Self:
        """This network with a function of its output, which a signature tells from others; remembered."""
        with self.lock:
            known = self._scored.pop(signature, None) if signature is not None else None
            if known is None:
                known = capture()
            if signature is not None:
                self._scored[signature] = known
                while len(self._scored) > _SCORED:
                    self._scored.pop(next(iter(self._scored)))
        return known

    def follow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the network went, and become the type it became, unless this explainer was elsewhere already."""
        was, own = self.original.known.place, self.like
        self.original.known = self.original.now(self.example)
        self.original.known.answer()
        if was is None or own is None:
            return
        there = (device if own.device == was[0] else own.device, dtype if own.dtype == was[1] else own.dtype)
        if there != (own.device, own.dtype):
            said = f"The network was moved to {device} as {dtype}; its explainer follows, and takes inputs like it."
            warn(said)
            self.to(device=there[0], dtype=there[1])
            self._followed = said

    def moves(self) -> list[str]:
        """What there is to say, once, of a network that was moved after it was captured."""
        said, self._followed = [self._followed] * bool(self._followed), ""
        return said


def _wider(a: torch.dtype, b: torch.dtype) -> bool:
    """True if a type has more digits, or a wider range, than another."""
    return torch.finfo(a).eps < torch.finfo(b).eps or torch.finfo(a).max > torch.finfo(b).max


def _type_of(tensors: Iterable[Tensor]) -> torch.dtype:
    first = first_float(tensors)
    return torch.float32 if first is None else first.dtype


def _key(inputs: Sequence[Tensor]) -> str:
    """Everything but the batch size that a capture depends on; free of dots, as module names must be."""
    return "_".join(
        "x".join(str(int(n)) for n in x.shape[1:]) + ("f" if x.is_floating_point() else "i") for x in inputs
    )
