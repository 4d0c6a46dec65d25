"""Record how the constants of a captured graph are computed from the network's tensors, to compute them again.

Preparing a network computes constants once: BatchNorm is folded into weights, W⁺ is read from W. A live explainer
records these operations, and repeats them with the parameters and buffers that the network has later.

Recording               a context: operations in it that read the network's tensors are recorded
├── start               the tensors that are followed
├── record_as_text      numbers are read for a printed text alone
└── finish              the recorded operations as a ConstantProgram
ConstantProgram         computes the constants, and every answer to a question about values on which the graph or the
                        plan depends: is a weight negative anywhere?
is_recorded             is this tensor computed from the network's tensors, in a recording that is under way?
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from deeptaylor.errors import PlanError

__all__ = ["SAME_VALUE", "ConstantProgram", "Recording", "TensorPlace", "is_recorded", "record_as_text"]

SAME_VALUE = ("aten::detach", "aten::alias", "aten::lift_fresh")
_NUMBER = "aten::_local_scalar_dense"
_active = threading.local()


class TensorPlace(NamedTuple):
    """Where a network holds a parameter or a buffer."""

    module: nn.Module
    kind: str  # the module's dictionary: "_parameters" or "_buffers"
    name: str
    path: str  # from the network on

    def read(self) -> Tensor | None:
        """Return the tensor that is stored there now."""
        found: Tensor | None = getattr(self.module, self.kind).get(self.name)
        return found


def list_places(model: nn.Module) -> list[TensorPlace]:
    """Return the places of all parameters, then of all buffers."""
    modules = list(model.named_modules())
    return [
        TensorPlace(module, kind, name, f"{path}.{name}".lstrip("."))
        for kind in ("_parameters", "_buffers")
        for path, module in modules
        for name, t in getattr(module, kind).items()
        if t is not None
    ]


def _memory_of(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.shape, t.stride(), t.dtype


class ConstantProgram(NamedTuple):
    """Computes constants from the network's tensors, and answers the questions about values that were asked.

    places      of the tensors that are read
    likes       shape, dtype and device of each
    program     returns the constants, then the answers, as tensors without axes
    constants   their number
    answers     as they were when the network was captured
    """

    places: Sequence[TensorPlace]
    likes: Sequence[tuple[torch.Size, torch.dtype, torch.device]]
    program: fx.GraphModule
    constants: int
    answers: Sequence[Any]

    def read(self) -> list[Tensor] | None:
        """Return the network's tensors; None if one is gone, or has another shape, dtype or device."""
        found = [place.read() for place in self.places]
        for t, like in zip(found, self.likes, strict=True):
            if t is None or (t.shape, t.dtype, t.device) != like:
                return None
        return [t for t in found if t is not None]

    def compute(self) -> list[Tensor] | None:
        """Compute the constants from the network's current tensors, differentiable if gradients are enabled.

        Return None if a value that the capture read has changed: then the network has to be captured again.
        """
        tensors = self.read()
        if tensors is None:
            return None
        results = self.program(*tensors)
        return list(results[: self.constants]) if self._same_answers(results[self.constants :]) else None

    def shares_memory(self, t: Tensor) -> bool:
        """Return True for a constant that shares memory with one of the network's tensors."""
        theirs = {held.untyped_storage().data_ptr() for place in self.places if (held := place.read()) is not None}
        return t.untyped_storage().data_ptr() in theirs

    def _same_answers(self, answers: Sequence[Tensor]) -> bool:
        """Return True if no value that the capture read has changed; compare all at once: reading synchronises."""
        kinds = {t.dtype for t in answers}
        for kind in kinds:
            now = torch.stack([t.detach() for t in answers if t.dtype is kind]).tolist()
            if now != [a for a, t in zip(self.answers, answers, strict=True) if t.dtype is kind]:
                return False
        return True


class Recording(TorchDispatchMode):
    """Records operations on the network's tensors while it is entered; it may be entered several times."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._inputs: list[tuple[TensorPlace, Tensor]] = []
        self._nodes: dict[int, fx.Node] = {}  # by the tensor
        self._alive: list[Tensor] = []  # or a later tensor could have an earlier one's number
        self._held: dict[str, Tensor] = {}  # tensors that depend on no parameter
        self._answers: list[tuple[fx.Node, Any]] = []
        self._reading_text = False

    def __enter__(self) -> Self:
        _stack().append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _stack().pop()

    def start(self, model: nn.Module, constants: Mapping[str, Tensor]) -> None:
        """Start to record with the constants that are parameters or buffers of a network."""
        places: dict[tuple[Any, ...], TensorPlace] = {}
        for place in list_places(model):
            t = place.read()
            if t is not None and t.numel():
                places.setdefault(_memory_of(t), place)
        for t in constants.values():
            found = places.get(_memory_of(t))
            if found is not None and id(t) not in self._nodes:
                self._add(t, self._graph.placeholder(f"tensor_{len(self._inputs)}"))
                self._inputs.append((found, t))

    @contextlib.contextmanager
    def record_as_text(self) -> Iterator[None]:
        """Allow numbers to be read that are only printed: no computation depends on them."""
        before, self._reading_text = self._reading_text, True
        try:
            yield
        finally:
            self._reading_text = before

    def knows(self, t: Tensor) -> bool:
        """Return True for a tensor that is computed from the network's."""
        return id(t) in self._nodes

    def finish(self, results: Sequence[Tensor]) -> ConstantProgram:
        """Return the program that computes these results; all must have been recorded."""
        asked = dict(self._answers)
        self._graph.output(tuple(self._nodes[id(t)] for t in results) + tuple(asked))
        self._graph.eliminate_dead_code()
        module = fx.GraphModule(self._held, self._graph)
        likes = [(t.shape, t.dtype, t.device) for _, t in self._inputs]
        return ConstantProgram([p for p, _ in self._inputs], likes, module, len(results), list(asked.values()))

    # --- operations -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation; record it if it reads a known tensor."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(isinstance(t, Tensor) and self.knows(t) for t in pytree.tree_leaves((args, kwargs))):
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name
        if name in SAME_VALUE:
            self._add(result, self._nodes[id(args[0])])
        elif not isinstance(result, Tensor | tuple | list):
            self._add_answer(func, args, kwargs, result)
        elif func._schema.is_mutable:
            raise NotImplementedError(
                f"{name} writes to a constant while constants are computed; it cannot be recorded"
            )
        elif all(type(t) is Tensor for t in pytree.tree_leaves(result)):  # not of fake tensors
            node = self._graph.call_function(func, *self._read(args, kwargs))
            if isinstance(result, Tensor):
                self._add(result, node)
            else:
                for k, t in enumerate(result):
                    self._add(t, self._graph.call_function(_item, (node, k)))

    def _add_answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        """Record that a number was read from a tensor, and its value."""
        if self._reading_text:
            return
        if func._schema.name != _NUMBER:  # such as torch.equal
            self._answers.append((self._graph.call_function(_as_tensor, (func, *self._read(args, kwargs))), answer))
            return
        node = self._nodes[id(args[0])]
        if args[0].is_floating_point():
            raise PlanError(
                f"A live explainer cannot follow {self._sources(node)}: a number is read from it when the network is "
                "captured, so relevance is not differentiable in it. Leave live=True out."
            )
        self._answers.append((node, answer))

    def _sources(self, node: fx.Node) -> str:
        """Return the names of the network's tensors that a value is computed from."""
        todo, seen = [node], set[fx.Node]()
        while todo:
            n = todo.pop()
            seen.add(n)
            todo += [m for m in n.all_input_nodes if m not in seen]
        names = [place.path for place, t in self._inputs if self._nodes[id(t)] in seen]
        return ", ".join(map(repr, names))

    def _read(self, args: Any, kwargs: Any) -> Any:
        """Replace tensors among arguments by nodes."""
        return pytree.tree_map_only(Tensor, self._node_of, (args, kwargs))

    def _node_of(self, t: Tensor) -> fx.Node:
        if id(t) not in self._nodes:
            name = f"held_{len(self._held)}"
            self._held[name] = t.detach()
            return self._graph.get_attr(name)
        return self._nodes[id(t)]

    def _add(self, t: Tensor, node: fx.Node) -> None:
        self._nodes[id(t)] = node
        self._alive.append(t)


def _item(parts: Sequence[Tensor], k: int) -> Tensor:
    return parts[k]


def _as_tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a number that was read from tensors as a tensor."""
    return torch.tensor(func(*args, **kwargs))


def _stack() -> list[Recording]:
    if not hasattr(_active, "recordings"):
        _active.recordings = []
    found: list[Recording] = _active.recordings
    return found


def is_recorded(t: Tensor) -> bool:
    """Return True while recording for a tensor that is computed from the network's tensors, so its value may change."""
    return any(recording.knows(t) for recording in _stack())


@contextlib.contextmanager
def record_as_text() -> Iterator[None]:
    """Allow numbers to be read for printing, in the current recording if there is one."""
    with contextlib.ExitStack() as stack:
        for recording in _stack():
            stack.enter_context(recording.record_as_text())
        yield
