"""Live explainers: constants that follow the network's parameters, and relevance that is differentiable in them.

This is the one place where live parameters reach the formulas. Preparing a network records how each constant of an
engine (folded weights, W⁺, biases) is computed from the network's parameters and buffers (graph/recording.py).
LiveConstants computes them again, and puts them where the steps of the engine read them:

make_live_engine   an engine whose preparation was recorded
LiveConstants
├── update      permanently, without gradients: before `explain`, `contrast` and `between`
└── in_place    during one differentiable pass: `relevance`
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from deeptaylor.engine.comparison import compare_once
from deeptaylor.engine.contrast import read_map
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.ledger_entries import DROPPED
from deeptaylor.engine.prepare import prepare
from deeptaylor.engine.secant_walk import list_steps
from deeptaylor.engine.spatial import smooth
from deeptaylor.errors import DeepTaylorWarning, UnsupportedOpError, Wording
from deeptaylor.graph.agreement import KnownOutput
from deeptaylor.graph.recording import VALUE_PRESERVING_OPS, ConstantProgram, Recording
from deeptaylor.secants.pair import TracedValueError, trace_walk
from deeptaylor.settings import DEEP_TAYLOR, Settings

__all__ = ["LiveConstants", "LiveEngine", "connect", "make_live_engine", "relevance_by_rules", "relevance_by_secants"]

Inputs = Sequence[Tensor]


def _transpose_silu(m: Tensor, x: Tensor) -> Tensor:
    """Return m times the derivative of SiLU at x, differentiable by autograd."""
    s = torch.sigmoid(x)
    return m * s * (1 + x * (1 - s))


def _transpose_mish(m: Tensor, x: Tensor) -> Tensor:
    """Return m times the derivative of Mish at x, differentiable by autograd."""
    t = torch.tanh(torch.nn.functional.softplus(x))
    return m * (t + x * torch.sigmoid(x) * (1 - t * t))


def _normalise_layer(x: Tensor, shape: Sequence[int], *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of torch's layer norm, with the gradient of 1 / σ, which torch silently sets to zero."""
    u, mean, r = torch.native_layer_norm(x, shape, *rest)
    var = x.var(tuple(range(-len(shape), 0)), correction=0, keepdim=True)
    differentiable = torch.rsqrt(var + rest[-1])
    return u, mean, r.detach() + (differentiable - differentiable.detach())


_DIFFERENTIABLE = {  # operations of a walk, or results of them, that torch does not differentiate (again)
    "aten::native_layer_norm": _normalise_layer,
    "aten::silu_backward": _transpose_silu,
    "aten::mish_backward": _transpose_mish,
}


def _compile(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a compiled function of tensors that may carry autograd's record."""
    compiled = torch.compile(function, fullgraph=True, options=options)

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The .grad attribute of a Tensor that is not a leaf"
            )  # torch reads it itself
            return compiled(*args)

    return call


class LiveEngine(Engine):
    """An engine whose constants follow the parameters of its network."""

    live: LiveConstants


def make_live_engine(
    model: nn.Module,
    example: Sequence[Tensor],
    settings: Settings,
    full_batch: Sequence[Tensor],
    known_output: KnownOutput | None,
) -> LiveEngine:
    """Return the engine for these shapes, and record how its constants are computed.

    The arguments are those of `prepare`. A network in training mode is read in eval mode: BatchNorm by its running
    statistics, without dropout.
    """
    recording = Recording()
    with torch.inference_mode(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The network is in training mode", DeepTaylorWarning)
        few, batch = ([x.clone() if x.is_inference() else x for x in inputs] for inputs in (example, full_batch))
        prepared = prepare(model, few, settings, batch, known_output, recording)
        with recording, torch.no_grad():
            engine = LiveEngine(prepared)
            list_steps(engine)  # this may read numbers from constants
        engine.live = LiveConstants(engine, recording)
        engine.live.update()
    return engine


class LiveConstants:
    """The constants of an engine that are computed from the network's parameters and buffers."""

    def __init__(self, engine: Engine, recording: Recording) -> None:
        self._engine = engine
        self._names = [name for name, t in engine.named_buffers(remove_duplicate=False) if recording.knows(t)]
        self._buffers_of_network: tuple[nn.Module, list[tuple[dict[str, Any], str]]] | None = None
        self._compiled: Callable[..., Any] | None = None
        self._traced: dict[Any, Callable[..., Any]] = {}  # by shapes
        self._program: ConstantProgram = recording.finish([engine.get_buffer(name) for name in self._names])

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copied explainer is captured again, because its constants must follow the copied network."""

    def fits(self) -> bool:
        """Return True if the network's tensors have the shapes, dtypes and devices of the capture."""
        return self._program.read() is not None

    def compute(self) -> list[Tensor] | None:
        """Compute the constants from the network's current parameters; return None if it has to be captured again."""
        return self._program.compute()

    def update(self) -> bool | None:
        """Recompute the constants of the engine from the network's current parameters and buffers.

        Return True if a constant changed, and None if the network has to be captured again.
        """
        with torch.inference_mode(False), torch.no_grad():
            values = self.compute()
            if values is None:
                return None
            # Copy tensors that share memory with the network: they would change with it unnoticed.
            values = [t.detach().clone() if self._program.shares_memory(t) else t for t in values]
            same = all(torch.equal(a, b) for a, b in zip(self._set_constants(values), values, strict=True))
        return not same

    def run_rules(self, inputs: Inputs, target: Any, options: dict[str, Any] | None) -> tuple[Tensor, ...]:
        """Return the maps by deep Taylor, computed with the engine's current constants."""
        engine = self._engine

        def run(constants: Sequence[Tensor], inputs: Inputs, target: Any) -> tuple[Tensor, ...]:
            with self.in_place(constants):
                result = engine.run(inputs, target, DROPPED if engine.redistributes else None)
                return read_map(engine.redistribute(result), engine.channel_axis)

        if options is None:
            return run(self._list_constants(), inputs, target)
        if self._compiled is None:
            self._compiled = _compile(run, options)
        found: tuple[Tensor, ...] = self._compiled(self._list_constants(), inputs, target)
        return found

    def run_secants(self, x: Inputs, x0: Inputs, target: Any, options: dict[str, Any] | None) -> list[Tensor]:
        """Return the maps of x against one reference, computed with the engine's current constants."""
        given, form = pytree.tree_flatten(target)
        equal = tuple(a is b for a, b in zip(x, x0, strict=True))  # these are one input of the program
        tensors = [
            *x,
            *(b for b, is_same in zip(x0, equal, strict=True) if not is_same),
            *given,
            *self._list_constants(),
        ]
        key = (form, equal, options is None, tuple((t.shape, t.dtype, t.device) for t in tensors))
        if key not in self._traced:
            program = self._trace(tensors, equal, len(given), form)
            self._traced[key] = program if options is None else _compile(program, options)
        found: list[Tensor] = self._traced[key](*tensors)
        return found

    def _trace(self, tensors: Sequence[Tensor], equal: Sequence[bool], count: int, form: Any) -> fx.GraphModule:
        """Trace the forward walk at both points and the reverse pass as one program of inputs, target and constants."""
        from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

        def run_flat(*some: Tensor) -> list[Tensor]:
            rest = list(some)
            x = [rest.pop(0) for _ in equal]
            x0 = [a if is_same else rest.pop(0) for a, is_same in zip(x, equal, strict=True)]
            target = pytree.tree_unflatten([rest.pop(0) for _ in range(count)], form)
            with self.in_place(rest):
                return list(compare_once(self._engine, x, x0, target)[0])

        try:
            with trace_walk(), torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                program = make_fx(run_flat)(*[t.detach() for t in tensors])
        except TracedValueError as error:
            raise UnsupportedOpError(
                Wording(
                    "Relevance by secants is not differentiable here: how an operation is split depends on values "
                    "inside the network. Use deep Taylor: {method}.",
                    method=DEEP_TAYLOR,
                )
            ) from error
        for node in list(program.graph.nodes):
            name = node.target._schema.name if hasattr(node.target, "_schema") else ""
            if name in VALUE_PRESERVING_OPS:  # the walk detaches values, which stops gradients
                node.replace_all_uses_with(node.args[0])
                program.graph.erase_node(node)
            node.target = _DIFFERENTIABLE.get(name, node.target)
        program.graph.eliminate_dead_code()
        program.recompile()
        return program

    @contextlib.contextmanager
    def in_place(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Use these constants in the engine inside this context."""
        before = self._set_constants(values)
        try:
            yield
        finally:
            self._set_constants(before)

    def _set_constants(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Put constants into the engine, and return the previous ones."""
        before = self._list_constants()
        for (buffers, name), value in zip(self._list_buffers(), values, strict=True):
            buffers[name] = value
        return before

    def _list_constants(self) -> list[Tensor]:
        """Return the current constants of the engine."""
        return [buffers[name] for buffers, name in self._list_buffers()]

    def _list_buffers(self) -> list[tuple[dict[str, Any], str]]:
        """Return the buffers (dict and name) that hold the engine's constants; `recompute` may change them."""
        if self._buffers_of_network is None or self._buffers_of_network[0] is not self._engine.network:
            paths = [name.rpartition(".") for name in self._names]
            self._buffers_of_network = (
                self._engine.network,
                [(self._engine.get_submodule(path)._buffers, name) for path, _, name in paths],
            )
        return self._buffers_of_network[1]


# --- relevance --------------------------------------------------------------------------------------------------------


class _Connection(torch.autograd.Function):
    """Connect a map to every parameter: gradients are zero instead of None for parameters without effect."""

    @staticmethod
    def forward(ctx: Any, R: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return R.view_as(R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        needed = zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        return gradients[0], *(torch.zeros_like(p) if wanted else None for p, wanted in needed)


def connect(maps: Sequence[Tensor], model: nn.Module) -> tuple[Tensor, ...]:
    """Connect maps to every parameter of a network, so that its gradient is zero, not None, if it has no effect."""
    if not torch.is_grad_enabled():
        return tuple(maps)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return tuple(_Connection.apply(R, *parameters) for R in maps)  # type: ignore[no-untyped-call]


def relevance_by_rules(
    engine: LiveEngine, inputs: Inputs, target: Any, options: dict[str, Any] | None = None
) -> tuple[Tensor, ...]:
    """Return the relevance of each input, differentiable by autograd; the engine holds differentiable constants.

    options   torch.compile's, if the pass and its gradient are to be compiled; None: run as they are
    """
    return engine.live.run_rules(inputs, target, options)


def relevance_by_secants(
    engine: LiveEngine, inputs: Inputs, references: Sequence[Inputs], target: Any, width: float = 0.0,
    options: dict[str, Any] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the relevance m Δ (multiplier times difference) of each input, differentiable by autograd.

    The walk over the graph and its reverse pass are traced as one flat program, which autograd can differentiate.

    width     the standard deviation, in pixels, of the smoothing of pictures' relevance; 0: no smoothing
    options   as for `relevance_by_rules`
    """
    maps = [engine.live.run_secants(inputs, x0, target, options) for x0 in references]
    relevance = tuple(torch.stack(of_input).mean(0) for of_input in zip(*maps, strict=True))
    axis = engine.channel_axis
    return tuple(smooth(R, width, x.ndim - 2, axis) if width else R for R, x in zip(relevance, inputs, strict=True))
