"""Record how the constants of a captured graph are computed from the network's tensors, to compute them again.

The capture of a network computes constants once: BatchNorm is folded into weights, W⁺ is computed from W. A live
explainer records these operations, and repeats them with the parameters and buffers that the network has later.

Recording               a context that records operations on the network's tensors
├── start               choose the tensors to follow
├── record_as_text      allow numbers to be read for printed text only
└── finish              return the recorded operations as a ConstantProgram
ConstantProgram         computes the constants again, and every value on which the graph or the plan depends, such as
                        whether a weight is negative anywhere
is_recorded             True for a tensor that the current recording computes from the network's tensors
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

__all__ = ["VALUE_PRESERVING_OPS", "ConstantProgram", "Recording", "TensorPlace", "is_recorded", "record_as_text"]

VALUE_PRESERVING_OPS = ("aten::detach", "aten::alias", "aten::lift_fresh")
_NUMBER = "aten::_local_scalar_dense"
_THREAD = threading.local()


class TensorPlace(NamedTuple):
    """The place of a parameter or a buffer in a network."""

    module: nn.Module
    kind: str  # the module's dictionary: "_parameters" or "_buffers"
    name: str
    path: str  # in the network, as in named_parameters

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


def _find_memory(t: Tensor) -> tuple[Any, ...]:
    """Return a key that two tensors share if they are the same view of the same memory."""
    return t.data_ptr(), t.shape, t.stride(), t.dtype


class ConstantProgram(NamedTuple):
    """Computes constants from the network's tensors, and the values that the capture read from tensors.

    places       the places of the tensors that the program reads
    signatures   shape, dtype and device of each
    program      returns the constants, then the values that were read, as tensors without axes
    constants    the number of constants
    answers      the values that the capture read
    """

    places: Sequence[TensorPlace]
    signatures: Sequence[tuple[torch.Size, torch.dtype, torch.device]]
    program: fx.GraphModule
    constants: int
    answers: Sequence[Any]

    def read(self) -> list[Tensor] | None:
        """Return the network's tensors; None if one is gone, or has another shape, dtype or device."""
        found = [place.read() for place in self.places]
        for t, like in zip(found, self.signatures, strict=True):
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
        return list(results[: self.constants]) if self._has_same_answers(results[self.constants :]) else None

    def shares_memory(self, t: Tensor) -> bool:
        """Return True for a constant that shares memory with one of the network's tensors."""
        theirs = {held.untyped_storage().data_ptr() for place in self.places if (held := place.read()) is not None}
        return t.untyped_storage().data_ptr() in theirs

    def _has_same_answers(self, answers: Sequence[Tensor]) -> bool:
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
        self._nodes: dict[int, fx.Node] = {}  # by the id of the tensor
        self._references: list[Tensor] = []  # keeps them alive, so that no later tensor has the same id
        self._other_tensors: dict[str, Tensor] = {}  # tensors that depend on no parameter
        self._answers: list[tuple[fx.Node, Any]] = []
        self._is_reading_text = False

    def __enter__(self) -> Self:
        _get_recordings().append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _get_recordings().pop()

    def start(self, model: nn.Module, constants: Mapping[str, Tensor]) -> None:
        """Start to record; follow the constants that are parameters or buffers of the network."""
        places: dict[tuple[Any, ...], TensorPlace] = {}
        for place in list_places(model):
            t = place.read()
            if t is not None and t.numel():
                places.setdefault(_find_memory(t), place)
        for t in constants.values():
            found = places.get(_find_memory(t))
            if found is not None and id(t) not in self._nodes:
                self._add(t, self._graph.placeholder(f"tensor_{len(self._inputs)}"))
                self._inputs.append((found, t))

    @contextlib.contextmanager
    def record_as_text(self) -> Iterator[None]:
        """Allow numbers to be read that are only printed: no computation depends on them."""
        before, self._is_reading_text = self._is_reading_text, True
        try:
            yield
        finally:
            self._is_reading_text = before

    def knows(self, t: Tensor) -> bool:
        """Return True for a tensor that is computed from the network's tensors."""
        return id(t) in self._nodes

    def finish(self, results: Sequence[Tensor]) -> ConstantProgram:
        """Return the program that computes these results; all must have been recorded."""
        asked = dict(self._answers)
        self._graph.output(tuple(self._nodes[id(t)] for t in results) + tuple(asked))
        self._graph.eliminate_dead_code()
        module = fx.GraphModule(self._other_tensors, self._graph)
        signatures = [(t.shape, t.dtype, t.device) for _, t in self._inputs]
        return ConstantProgram([p for p, _ in self._inputs], signatures, module, len(results), list(asked.values()))

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
        """Record one operation and its results."""
        name = func._schema.name
        if name in VALUE_PRESERVING_OPS:
            self._add(result, self._nodes[id(args[0])])
        elif not isinstance(result, Tensor | tuple | list):
            self._add_answer(func, args, kwargs, result)
        elif func._schema.is_mutable:
            raise NotImplementedError(
                f"{name} writes to a constant while constants are computed; it cannot be recorded"
            )
        elif all(type(t) is Tensor for t in pytree.tree_leaves(result)):  # fake tensors are not recorded
            node = self._graph.call_function(func, *self._replace_tensors(args, kwargs))
            if isinstance(result, Tensor):
                self._add(result, node)
            else:
                for k, t in enumerate(result):
                    self._add(t, self._graph.call_function(_get_item, (node, k)))

    def _add_answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        """Record that a number was read from a tensor, and its value."""
        if self._is_reading_text:
            return
        if func._schema.name != _NUMBER:  # such as torch.equal
            node = self._graph.call_function(_read_as_tensor, (func, *self._replace_tensors(args, kwargs)))
            self._answers.append((node, answer))
            return
        node = self._nodes[id(args[0])]
        if args[0].is_floating_point():
            raise PlanError(
                f"A live explainer cannot follow {self._list_sources(node)}: a number is read from it when the "
                "network is captured, so relevance is not differentiable in it. Leave live=True out."
            )
        self._answers.append((node, answer))

    def _list_sources(self, node: fx.Node) -> str:
        """Return the names of the network's tensors that a value is computed from."""
        todo, seen = [node], set[fx.Node]()
        while todo:
            n = todo.pop()
            seen.add(n)
            todo += [m for m in n.all_input_nodes if m not in seen]
        names = [place.path for place, t in self._inputs if self._nodes[id(t)] in seen]
        return ", ".join(map(repr, names))

    def _replace_tensors(self, args: Any, kwargs: Any) -> Any:
        """Replace tensors among arguments by nodes."""
        return pytree.tree_map_only(Tensor, self._find_node, (args, kwargs))

    def _find_node(self, t: Tensor) -> fx.Node:
        """Return the node of a tensor; other tensors become constants of the program."""
        if id(t) not in self._nodes:
            name = f"held_{len(self._other_tensors)}"
            self._other_tensors[name] = t.detach()
            return self._graph.get_attr(name)
        return self._nodes[id(t)]

    def _add(self, t: Tensor, node: fx.Node) -> None:
        """Register the node that computes a tensor."""
        self._nodes[id(t)] = node
        self._references.append(t)


def _get_item(parts: Sequence[Tensor], k: int) -> Tensor:
    """Return one of several results; fx records this call."""
    return parts[k]


def _read_as_tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Call a function that returns a number, and return the number as a tensor."""
    return torch.tensor(func(*args, **kwargs))


def _get_recordings() -> list[Recording]:
    """Return the recordings that are entered in this thread."""
    if not hasattr(_THREAD, "recordings"):
        _THREAD.recordings = []
    found: list[Recording] = _THREAD.recordings
    return found


def is_recorded(t: Tensor) -> bool:
    """Return True, while recording, for a tensor computed from the network's tensors: its value may change later."""
    return any(recording.knows(t) for recording in _get_recordings())


@contextlib.contextmanager
def record_as_text() -> Iterator[None]:
    """Allow numbers to be read for printing only, in every recording of this thread."""
    with contextlib.ExitStack() as stack:
        for recording in _get_recordings():
            stack.enter_context(recording.record_as_text())
        yield
