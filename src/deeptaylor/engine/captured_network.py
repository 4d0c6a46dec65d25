"""A captured network: one engine for each input shape, and a check that the user's network has not changed.

CapturedNetwork
├── read           inputs as users give them, as tensors
├── open           the start of every answer: check the inputs and the network, return the engine
├── capture        capture the network with an example, or with the first input that is explained
├── engine_for     return the engine for inputs of a shape; capture one if there is none
├── refresh        capture the network again, as it is now
├── compile        compile all passes from now on; recompute: use less memory
├── run_batch      explain a batch, in parts if it does not fit into memory
├── watch          the user's network: an error if it changed; if it was moved, the captured one follows (ModelWatch)
└── open_live      as open, for a live explainer: constants are differentiable in the parameters (LiveWatch, live.py)
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self, cast

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.engine import target as targets
from deeptaylor.engine.change_detection import ModelSnapshot, PendingCheck
from deeptaylor.engine.compilation import CompiledEngine
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import (
    Inputs,
    ModelSource,
    NamedInputs,
    argument_order,
    as_domains,
    as_tuple,
    check_arguments,
    check_initialised,
    check_inputs,
    check_kind,
    check_place,
    check_processor,
    check_values,
    first_float,
    input_names,
    read_input,
)
from deeptaylor.engine.ledger_entries import EntryDetail
from deeptaylor.engine.live import LiveEngine, make_live_engine
from deeptaylor.engine.prepare import prepare
from deeptaylor.engine.result import Result, join_results
from deeptaylor.engine.target_reader import ScoredNetwork
from deeptaylor.errors import CaptureError, InputError, MismatchError, StaleModelError, TooLargeError, warn
from deeptaylor.graph.agreement import KnownOutput
from deeptaylor.graph.failure import find_failure, is_out_of_memory
from deeptaylor.graph.modes import MODEL_LOCK, is_compiling
from deeptaylor.plan.plan import Plan
from deeptaylor.settings import Settings

__all__ = ["Batch", "CapturedNetwork", "ModelWatch", "RunState", "explain_in_parts"]

# Reordering would need more memory: the reverse pass reads cached values in the order in which they were written.
# Weights are channels-last already. Padded matrix products are slower here.
_INDUCTOR = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "shape_padding": False,
}
_ENGINES = 8  # engines for further input shapes and batch sizes that are cached
_trusted: ContextVar[object] = ContextVar("_trusted", default=None)  # the watch that this thread skips


class RunState(NamedTuple):
    """The device and dtype of a captured network, and how it is run."""

    place: tuple[torch.device, torch.dtype] | None
    compiled: tuple[bool | None, dict[str, Any]] | None  # CUDA graphs, and inductor's options; None: not compiled
    recomputes: bool


class CapturedNetwork(nn.Module):
    """The user's network, which is never changed, captured with one engine per input shape.

    source     the network, with how its inputs are read
    settings   of the explainer; the first capture adds the domain of each input
    """

    watch: ModelWatch  # set by the first capture, like `example`
    example: tuple[Tensor, ...]

    def __init__(self, source: ModelSource, settings: Settings) -> None:
        super().__init__()
        self.source, self.settings = source, settings
        # A tuple, so that nn.Module does not register the user's network as a submodule of this one.
        self._model = (source.network,)
        self._compile: tuple[bool | None, dict[str, Any]] | None = None
        self._recompute = False
        self._runs: dict[int, dict[str, Any]] = {}  # by the id of the engine, then by name
        self.lock = threading.RLock()
        self.captures = 0
        self._move_note = ""  # until `take_move_notes`
        self.engines = nn.ModuleDict()

    @property
    def model(self) -> nn.Module:
        """The user's network."""
        return self._model[0]

    @property
    def is_captured(self) -> bool:
        """True once the network was captured."""
        return len(self.engines) > 0

    @property
    def engine(self) -> Engine:
        """The engine for the example."""
        if not self.is_captured:
            self.capture_default()
        return cast("Engine", next(iter(self.engines.values())))

    @property
    def plan(self) -> Plan:
        """The plan as a printable table."""
        return self.engine.plan

    @property
    def like(self) -> Tensor | None:
        """A tensor with the device and dtype in which this network computes."""
        return first_float(self.engine.network.buffers())

    # --- inputs ---------------------------------------------------------------------------------------------------

    def read(self, x: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return inputs as users give them as tensors, and the source of each photograph."""
        if self.is_captured:
            self._check_outputs()
        if isinstance(x, Tensor) and self.source.scaling is None:
            return x, ()
        if self.is_captured:
            self.check_quickly()  # it may have moved, and the inputs are brought to its device
        like = self.like if self.is_captured else first_float(self.model.parameters())
        x, seen = self.source.read(x, like)
        if isinstance(x, Mapping) and not self.is_captured:
            names = argument_order(x, self.model)
            if input_names(self.model, len(names)) != names:  # arguments between them are left out
                self._model = (NamedInputs(self.model, names),)
        return read_input(x, self.model, like), seen

    def open(self, x: Inputs) -> tuple[Engine, tuple[Tensor, ...], PendingCheck | None]:
        """Return the engine for some inputs, the inputs after all checks, and a started check of the network.

        Capture the network if it is not captured. On a CPU the check is complete. On a GPU it goes on during the pass:
        complete it with `check_unchanged` before the answer.
        """
        if not self.is_captured:
            self.capture(x, "input")
        pending = self.watch.start_check(self.follow)
        inputs = tuple(t.detach().clone() for t in self.check_inputs(x))
        if not inputs[0].is_cuda:
            self.watch.check(pending)
        with torch.no_grad():
            return self.engine_for(inputs), inputs, pending

    def check_inputs(self, x: Inputs) -> tuple[Tensor, ...]:
        """Return the inputs as a tuple; raise InputError if the network does not take them."""
        return check_inputs(x, self.example, self.settings.domains, self.engine)

    def check_kind(self, inputs: tuple[Tensor, ...]) -> None:
        """Raise InputError if the number of inputs, a shape, a dtype or a device does not fit; values are not read."""
        check_kind(inputs, self.example, self.engine)

    def check_quickly(self) -> None:
        """Raise StaleModelError if the network visibly changed, without comparing values; follow it if it was moved."""
        self.watch.check_quickly(self.follow)

    def check_unchanged(self, pending: PendingCheck | None = None) -> None:
        """Raise StaleModelError if the network changed since it was captured.

        pending   a check that `open` started
        """
        self.watch.check(pending)

    def check_captures(self, captures: int) -> None:
        """Raise StaleModelError if the network changed, or was captured again after `captures` captures."""
        self.watch.check()
        if captures != self.captures:
            raise StaleModelError("The explainer was refreshed since this explanation was made; explain again.")

    # --- capture --------------------------------------------------------------------------------------------------

    def capture(self, x: Any, role: str) -> None:
        """Check inputs and capture the network with them; do nothing if it is captured already.

        role   "example" or "input", for error messages; the values of an example are not checked
        """
        if is_compiling():
            self._raise_not_captured()
        inputs = as_tuple(x)
        check_initialised(self.model)
        check_arguments(self.model, inputs)
        domains = as_domains(self.source.domain, inputs)
        check_place(inputs, first_float(self.model.parameters()), role, "model")
        if role == "input":
            check_values(inputs, domains, [f"input {k}" for k in range(len(inputs))])
        check_processor(inputs)
        with self.lock:
            if not self.is_captured:
                self.settings = replace(self.settings, domains=domains, root=_path_of_model(self.model))
                self.example = tuple(t[:2].detach() for t in inputs)
                self.watch = self._make_watch()
                self.engines[_key(inputs)] = self._first_engine(inputs)
        self._check_outputs()

    def capture_default(self) -> None:
        """Capture the network with a random input from its source; raise InputError if the source cannot make one."""
        blank = self.source.random_input()
        if blank is None:
            self._raise_not_captured()
        like = first_float(self.model.parameters())
        self.capture(blank if like is None else blank.to(like), "example")

    def _raise_not_captured(self) -> NoReturn:
        raise InputError(
            "Nothing was captured yet: the network is captured with the first input that it explains. Explain one "
            "first, or give an example: dt.Explainer(model, example)."
        )

    def _check_outputs(self) -> None:
        self.source.check_outputs(self.engine.output_shape(1))

    def _first_engine(self, inputs: tuple[Tensor, ...]) -> Engine:
        failed: CaptureError | None = None
        for whole in (False, True) if inputs[0].shape[0] > 2 else (False,):  # it may insist on its batch size
            try:
                engine = self._make_engine(inputs, whole, None if whole else self.watch.known.take_output())
            except MismatchError:
                raise
            except CaptureError as error:
                failed = error
            else:
                self.example = tuple(x.detach() for x in inputs) if whole else self.example
                return engine
        assert failed is not None
        raise find_failure(self.model, inputs, self.settings.root) or failed

    def _make_engine(self, inputs: Sequence[Tensor], whole: bool = False, known: KnownOutput | None = None) -> Engine:
        """Capture the network for these shapes; return its engine, on the device and in the dtype of this network.

        whole   capture with all samples instead of the first two
        known   what the network returns for the inputs, if that was computed already
        """
        like = first_float(self.model.parameters())
        own = [x.detach() for x in inputs]
        if like is not None:
            own = [x.to(like) if x.is_floating_point() else x.to(like.device) for x in own]
        few = own if whole else [x[:2] for x in own]
        if self.settings.live:
            engine: Engine = make_live_engine(self.model, few, self.settings, own, known)
        else:
            engine = Engine(prepare(self.model, few, self.settings, own, known))
        if torch.is_inference_mode_enabled():  # tensors made in inference mode cannot be differentiated later
            with torch.inference_mode(False):
                engine._apply(lambda t: t.clone() if t.is_inference() else t)
        if self._recompute:
            engine.recompute()
        moved = self.like if self.is_captured and not self.settings.live else None
        return engine if moved is None else engine.to(device=moved.device, dtype=moved.dtype)

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed."""
        if not self.is_captured:
            return self
        now = self.watch.now(self.example)
        self._capture_again(now.take_output())
        self.watch.known = now
        return self

    def _make_watch(self) -> ModelWatch:
        if self.settings.live:
            return LiveWatch(self.model, self.example, self.settings.domains, self.follow_values)
        return ModelWatch(self.model, self.example, self.settings.domains)

    def _capture_again(self, known: KnownOutput | None = None) -> None:
        again = self._make_engine(self.example, whole=True, known=known)
        self.engines = nn.ModuleDict({_key(self.example): again})
        self.captures += 1
        self._runs.clear()

    def engine_for(self, inputs: Sequence[Tensor]) -> Engine:
        """Return the engine for inputs of these shapes; capture one if there is none."""
        engine = self._find_engine(inputs)
        if engine is not None:
            return engine
        with self.lock:
            engine = self._find_engine(inputs)
            return self._capture_shape(inputs) if engine is None else engine

    def _find_engine(self, inputs: Sequence[Tensor]) -> Engine | None:
        for key in (_key(inputs), f"{_key(inputs)}@{inputs[0].shape[0]}"):
            if key in self.engines:
                engine = cast("Engine", self.engines[key])
                if engine.accepts_batch(inputs[0].shape[0]):
                    return engine
        return None

    def _capture_shape(self, inputs: Sequence[Tensor]) -> Engine:
        """Capture for another shape or batch size; drop the oldest engine if too many are cached."""
        key, shape_is_new = _key(inputs), _key(inputs) not in self.engines
        failed: CaptureError | None = None
        try:
            engine = self._make_engine(inputs, whole=not shape_is_new)
            if not engine.accepts_batch(inputs[0].shape[0]):
                engine, shape_is_new = self._make_engine(inputs, whole=True), False
        except MismatchError:
            raise
        except CaptureError as error:
            failed = error
        if failed is not None:
            raise self._find_shape_failure(inputs) or failed
        while len(self.engines) > _ENGINES:
            oldest = next(k for k in self.engines if k != _key(self.example))
            self._runs.pop(id(self.engines.pop(oldest)), None)
        self.engines[key if shape_is_new else f"{key}@{inputs[0].shape[0]}"] = engine
        return engine

    def _find_shape_failure(self, inputs: Sequence[Tensor]) -> InputError | None:
        """Return the error for inputs of another shape than the example; None if the network itself accepts them."""
        why = find_failure(self.model, inputs, self.settings.root)
        if why is None:
            return None
        wanted, got = (", ".join(str(tuple(x.shape[1:])) for x in some) for some in (self.example, inputs))
        failure = InputError(f"The network was captured for samples of shape {wanted}, and these have {got}. {why}")
        failure.__cause__ = why.__cause__
        return failure

    # --- live -----------------------------------------------------------------------------------------------------

    def follow_values(self) -> None:
        """Update every engine of a live explainer to the current parameters; capture again if the plan may differ."""
        with self.lock:
            engines = cast("list[LiveEngine]", list(self.engines.values()))
            changed = [engine.live.update() for engine in engines]
            if None in changed or not self.watch.known.only_values_changed():
                self.refresh()
            elif any(changed):
                self.captures += 1

    @contextlib.contextmanager
    def open_live(self, x: Inputs) -> Iterator[tuple[LiveEngine, tuple[Tensor, ...]]]:
        """Yield the engine for some inputs, and the inputs after all checks, of a live explainer.

        Meanwhile the engine's constants are differentiable in the network's parameters.
        """
        if not self.is_captured:
            self.capture(x, "input")
        with self.lock:
            if not self.watch.known.only_values_changed() or not cast("LiveEngine", self.engine).live.fits():
                self.refresh()
            inputs = self.check_inputs(x)
            engine = cast("LiveEngine", self.engine_for(inputs))
            values = engine.live.compute()
            if values is None:
                self.refresh()
                engine = cast("LiveEngine", self.engine_for(inputs))
                values = engine.live.compute()
            assert values is not None  # it was captured just now
            with engine.live.in_place(values):
                yield engine, inputs

    # --- run ------------------------------------------------------------------------------------------------------

    def compile(self, graphs: bool | None = None, **options: Any) -> Self:  # type: ignore[override]
        """Compile every pass from now on; see `Explainer.compile`."""
        graphs = False if self.settings.live else graphs  # a recorded pass would read the constants of that time
        self._compile = (graphs, _INDUCTOR | options)
        self._runs.clear()
        return self

    def recompute(self, on: bool = True) -> Self:
        """Cache less of the forward pass; see `Explainer.recompute`."""
        self._recompute = on
        for engine in self.engines.values():
            cast("Engine", engine).recompute(on)
        self._runs.clear()
        return self

    def run_batch(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, detail: EntryDetail = None,
        keep: frozenset[str] = frozenset(),
    ) -> Result:  # fmt: skip
        """Explain a batch; if it does not fit into memory, explain it in parts or cache less, and warn."""
        engine.check_rules()
        if is_compiling():
            return engine.run(inputs, target, detail, keep)
        batch = Batch(tuple(inputs), target, detail, keep)
        return explain_in_parts(engine, batch, lambda: self._runner(engine), self.recompute)

    def _runner(self, engine: Engine) -> Any:
        """Return a function like `Engine.run`: the engine's own, or a compiled one."""
        if self._compile is None:
            return engine.run
        return self.cached_run(engine, "explain", partial(CompiledEngine, engine, graphs=self._compile[0]))

    def cached_run(self, engine: Engine, name: str, make: Callable[[dict[str, Any] | None], Any]) -> Any:
        """Return the cached function of this name for an engine; make it on first use.

        make   called with the options of torch.compile; None: the function is not to be compiled
        """
        if name not in (runs := self._runs.setdefault(id(engine), {})):
            runs[name] = make(self._compile and self._compile[1])
        return runs[name]

    # --- place ----------------------------------------------------------------------------------------------------

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if self.settings.live:
            raise InputError("A live explainer computes where its network does: move or convert the network instead.")
        if not self.is_captured:
            self.capture_default()
        places, before = self._places(), _dtype_of(self.engine.network.buffers())
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
        now, own = _dtype_of(self.engine.network.buffers()), _dtype_of(self.model.parameters())
        if _is_wider(now, before) and _is_wider(own, before) and not self.watch.known.find_changes():
            self._capture_again()  # the engine was rounded to `before`, the network itself was not, or less
        return self

    def _places(self) -> list[tuple[int, torch.dtype]]:
        return [(t.data_ptr(), t.dtype) for t in self.buffers()]

    def follow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move this network to the device and dtype of the user's network, unless it was moved elsewhere before."""
        was, own = self.watch.known.place, self.like
        self.watch.known = self.watch.now(self.example)
        self.watch.known.take_output()
        if was is None or own is None:
            return
        there = (device if own.device == was[0] else own.device, dtype if own.dtype == was[1] else own.dtype)
        if there != (own.device, own.dtype):
            note = f"The network was moved to {device} as {dtype}; its explainer was moved with it; inputs must match."
            warn(note)
            self.to(device=there[0], dtype=there[1])
            self._move_note = note

    def take_move_notes(self) -> list[str]:
        """Return the note about a network that was moved after its capture, if there is one, and forget it."""
        notes, self._move_note = [self._move_note] * bool(self._move_note), ""
        return notes

    # --- copies ---------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes its own compiled runs, watch and lock: its tensors are others.
        stale = self.watch.known.find_changes() if self.is_captured else []
        return {**self.__dict__, "_runs": {}, "watch": stale, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()
        if self.is_captured:
            self.watch = self._make_watch()
            self.watch.known.take_output()
            self.watch.known.stale = state["watch"]
            if self.settings.live:
                self.refresh()

    def run_state(self) -> RunState:
        """Return the device and dtype of this network, and how it is run."""
        like = self.like if self.is_captured else None
        return RunState(None if like is None else (like.device, like.dtype), self._compile, self._recompute)

    def set_run_state(self, state: RunState) -> Self:
        """Move this network to a device and dtype, and run it as described."""
        now = self.run_state()
        if state.compiled is not None and state.compiled != now.compiled:
            self.compile(state.compiled[0], **state.compiled[1])
        if state.place is not None and state.place != now.place:
            self.to(*state.place)
        if state.recomputes != now.recomputes:
            self.recompute(state.recomputes)
        return self


def _is_wider(a: torch.dtype, b: torch.dtype) -> bool:
    """Return True if dtype a has a higher precision or a wider range than b."""
    return torch.finfo(a).eps < torch.finfo(b).eps or torch.finfo(a).max > torch.finfo(b).max


def _dtype_of(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype of the first floating-point tensor; float32 if there is none."""
    first = first_float(tensors)
    return torch.float32 if first is None else first.dtype


def _key(inputs: Sequence[Tensor]) -> str:
    """Return the key of an engine, without dots: shapes without the batch size, and whether each dtype is floating."""
    return "_".join(
        "x".join(str(int(n)) for n in x.shape[1:]) + ("f" if x.is_floating_point() else "i") for x in inputs
    )


def _path_of_model(model: nn.Module) -> str:
    """Return the path of the user's network inside the modules that wrap it."""
    steps = []
    while isinstance(model, (ScoredNetwork, NamedInputs)):
        steps.append("model")
        model = model.model
    return ".".join(steps)


# --- the network of the user ------------------------------------------------------------------------------------------

Follow = Callable[[torch.device, torch.dtype], None]  # called with the device and dtype of a network that was moved


class ModelWatch:
    """Checks before every call that the user's network is still as it was when it was captured (`known`).

    model     the user's network
    example   inputs of the network; see `ModelSnapshot`
    domains   of these inputs
    """

    def __init__(self, model: nn.Module, example: Sequence[Tensor], domains: Sequence[Domain]) -> None:
        self.model, self._domains = model, domains
        self.known = self.now(example)

    def now(self, example: Sequence[Tensor]) -> ModelSnapshot:
        """Return a snapshot of the network as it is now, with its output for the example."""
        return ModelSnapshot(self.model, example, self._domains)

    def check_quickly(self, follow: Follow) -> None:
        """Raise StaleModelError if the network visibly changed, without comparing values.

        follow   called if the network was only moved or converted
        """
        if self.known.seems_unchanged():
            return
        with MODEL_LOCK:  # another thread may be capturing the network, with its training flags changed
            if not self.known.seems_unchanged():
                self._check_has_values()
                moved = self.known.find_move()
                if moved is not None:
                    follow(*moved)
                self.check()

    def _check_has_values(self) -> None:
        if self.known.has_lost_values():
            raise StaleModelError(
                "The network was moved to the meta device, where tensors have no values: there is nothing left to "
                "explain. Load its weights again, and call explainer.refresh()."
            )

    @contextlib.contextmanager
    def trust(self) -> Iterator[None]:
        """Compare no values in this thread inside this context; call `check` afterwards."""
        before = _trusted.set(self)
        try:
            yield
        finally:
            _trusted.reset(before)

    def start_check(self, follow: Follow) -> PendingCheck | None:
        """Do the same, and start to compare every value; return None if the check is complete."""
        if _trusted.get() is self:
            self.check_quickly(follow)
            return _nothing_changed
        with MODEL_LOCK:
            pending = self.known.start_check()
        if pending is None:
            self.check_quickly(follow)
        return pending

    def check(self, pending: PendingCheck | None = None) -> None:
        """Raise StaleModelError if the network changed.

        pending   a check that `start_check` started; None: compare every value now
        """
        with MODEL_LOCK:
            if pending is None:
                self._check_has_values()
            changed = self.known.find_changes(pending)
        if changed:
            raise StaleModelError(
                f"The network changed since it was captured ({len(changed)} parts, among them "
                f"{', '.join(changed[:3])}). Call explainer.refresh() to explain the network as it is now."
            )


def _nothing_changed() -> bool:
    """Complete the check of a thread that trusts the network."""
    return True


class LiveWatch(ModelWatch):
    """Follows the network of a live explainer: values of parameters and buffers may change at any time.

    follow_values   brings the captured network to the values as they are now; what else changed, it captures again
    """

    def __init__(
        self, model: nn.Module, example: Sequence[Tensor], domains: Sequence[Domain], follow_values: Callable[[], None]
    ) -> None:
        super().__init__(model, example, domains)
        self._follow_values = follow_values

    def check_quickly(self, follow: Follow | None = None) -> None:
        """Follow the network."""
        self._check_has_values()
        if _trusted.get() is not self:
            self._follow_values()

    def start_check(self, follow: Follow) -> PendingCheck:
        """Follow the network; there is nothing left to check."""
        self.check_quickly()
        return _nothing_changed

    def check(self, look: PendingCheck | None = None) -> None:
        """Follow the network, unless `start_check` did."""
        if look is None:
            self.check_quickly()


# --- batches that do not fit into memory ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """What is explained in one pass: inputs, targets, which ledger entries and which inner relevance to return."""

    inputs: tuple[Tensor, ...]
    target: Any
    detail: EntryDetail
    keep: frozenset[str]

    def __len__(self) -> int:
        return int(self.inputs[0].shape[0])

    def run(self, run: Callable[..., Result], samples: slice) -> Result:
        """Explain some of the samples."""
        return run(
            [x[samples] for x in self.inputs], targets.select_samples(self.target, samples), self.detail, self.keep
        )


def explain_in_parts(
    engine: Engine, batch: Batch, make_run: Callable[[], Callable[..., Result]], keep_less: Callable[[], Any]
) -> Result:
    """Explain a batch; halve it until it fits into memory, and for a single sample cache less.

    make_run    returns a function like `Engine.run`
    keep_less   makes the engine cache less from now on

    Raises TooLargeError if a single sample does not fit even then.
    """
    size = len(batch)
    while True:
        samples = [slice(k, k + size) for k in range(0, len(batch), size)]
        try:
            run = make_run()
            parts = [batch.run(run, s) for s in samples]
            break
        except (RuntimeError, MemoryError) as error:
            one = size == 1 or engine.fixed_batch is not None
            if not is_out_of_memory(error):
                raise
            if one and engine.recomputes:
                raise TooLargeError(_describe_too_large(engine, batch, error)) from error
        if batch.inputs[0].is_cuda:
            torch.cuda.empty_cache()
        if one:
            warn("A sample does not fit into memory; from now on fewer values are stored and more are recomputed.")
            keep_less()
        else:
            size = (size + 1) // 2
    if len(parts) == 1:
        return parts[0]
    warn(f"A batch of {len(batch)} does not fit into memory; it was explained {size} at a time.")
    return join_results(parts, {name: engine.layout[name] for name in batch.keep})


def _describe_too_large(engine: Engine, batch: Batch, error: BaseException) -> str:
    """Return the message about a sample that does not fit into memory."""
    shapes = ", ".join(str(tuple(x.shape[1:])) for x in batch.inputs)
    what = "A sample" if engine.fixed_batch is None else f"The batch of {engine.fixed_batch}, which the network fixes,"
    said = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"{what} of shape {shapes} does not fit into memory, even with all computed again that can be ({said[0]}). "
        "Explain smaller inputs, in fewer digits (explainer.to(torch.bfloat16)), or where there is more memory."
    )
