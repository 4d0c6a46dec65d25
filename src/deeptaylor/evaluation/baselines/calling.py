"""What every baseline needs: a copy of the network that it may do anything to, and the score of a class."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import InputError

__all__ = [
    "ROWS",
    "ROWS_FORWARD",
    "SEED",
    "ClassScore",
    "Maps",
    "PoolModule",
    "ScaleModule",
    "check_same",
    "depends_on_input",
    "fix_seed",
    "gradient",
    "gradient_times_input",
    "ignore_warnings",
    "name_of",
    "random",
    "select_scores",
    "squared_gradient",
    "trace_modules",
    "use_copy",
]

# (network in eval mode, inputs (B, …), classes (B,)) to relevance of the inputs' shape, or without the channel axis.
Maps = Callable[[nn.Module, Tensor, Tensor], Tensor]

SEED = 0
# A method that looks at many variations of an input sends so many rows, or the batch as it came, through the network
# at a time; more where no gradient is kept.
ROWS, ROWS_FORWARD = 16, 64


def use_copy(maps: Maps) -> Maps:
    """The same method on a copy of the network and of the inputs: whatever a library leaves behind, it leaves there.

    The copy's parameters ask for no gradient, and its modules do not write over their input.
    """

    @functools.wraps(maps)
    def careful(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            own = copy.deepcopy(network).requires_grad_(False)
            for module in own.modules():
                if hasattr(module, "inplace"):
                    setattr(module, "inplace", False)  # noqa: B010 - whatever kind of module it is
            relevance = maps(own, x.detach().clone(), classes.detach().to(x.device, torch.int64, copy=True))
            return relevance.detach()

    return careful


def select_scores(output: Tensor, classes: Tensor) -> Tensor:
    """The score of each sample's class, (B,); of a network with one score a sample, that score."""
    return output if output.ndim == 1 else output.gather(1, classes.unsqueeze(1)).squeeze(1)


class ClassScore(nn.Module):
    """A network whose output is the score of a class: (inputs, classes) to (B,)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        """The score of each sample's class."""
        return select_scores(self.network(x), classes)


@contextlib.contextmanager
def fix_seed(x: Tensor) -> Iterator[None]:
    """The same random numbers at every call, where x is; the generators of torch are afterwards where they were."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.default_generator.manual_seed(SEED)
        if x.is_cuda:
            with torch.cuda.device(x.device):
                torch.cuda.manual_seed(SEED)
        yield


@contextlib.contextmanager
def ignore_warnings(*messages: str) -> Iterator[None]:
    """Without some warnings, named by how they begin: what a library says about itself whenever it is called."""
    with warnings.catch_warnings():
        for message in messages:
            warnings.filterwarnings("ignore", message)
        yield


def _derivative(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """∂f/∂x of each sample's class."""
    x.requires_grad_()
    return torch.autograd.grad(select_scores(network(x), classes).sum(), x)[0]


@use_copy
def gradient(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """|∂f/∂x|"""
    return _derivative(network, x, classes).abs()


@use_copy
def squared_gradient(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """(∂f/∂x)², sensitivity analysis."""
    return _derivative(network, x, classes).square()


@use_copy
def gradient_times_input(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """x ∂f/∂x"""
    return _derivative(network, x, classes) * x


def random(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Noise between 0 and 1 that follows from the sample alone: neither its place in a batch nor its class matters."""
    return torch.stack([_noise(sample) for sample in x.detach()]).to(x.device)


def _noise(sample: Tensor) -> Tensor:
    seed = zlib.crc32(sample.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return torch.rand(sample.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


# --- every call as a module -------------------------------------------------------------------------------------------

Node = Any  # fx.Node, whose arguments may be anything

# By the name of the function: the module, and what the function's arguments after the first are called.
_MODULES: dict[str, tuple[type[nn.Module], str]] = {
    "relu": (nn.ReLU, ""),
    "relu6": (nn.ReLU6, ""),
    "hardtanh": (nn.Hardtanh, "min_val max_val"),
    "leaky_relu": (nn.LeakyReLU, "negative_slope"),
    "elu": (nn.ELU, "alpha"),
    "gelu": (nn.GELU, ""),
    "silu": (nn.SiLU, ""),
    "hardswish": (nn.Hardswish, ""),
    "sigmoid": (nn.Sigmoid, ""),
    "tanh": (nn.Tanh, ""),
    "softplus": (nn.Softplus, "beta threshold"),
    "max_pool2d": (nn.MaxPool2d, "kernel_size stride padding dilation ceil_mode"),
    "avg_pool2d": (nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad divisor_override"),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d, "output_size"),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d, "output_size"),
}
_SIZES = {"size", "shape", "dim", "ndim", "device", "dtype"}  # of a tensor: no longer its values
_AGREEMENT = 1e-3  # of the largest output: rounding, in float32 and through many layers


class PoolModule(nn.Module):
    """The sum or the mean over some axes: linear, and each element has its share in it."""

    def __init__(self, reduce: Callable[..., Tensor], dim: int | tuple[int, ...], keepdim: bool = False) -> None:
        super().__init__()
        self.reduce, self.dim, self.keepdim = reduce, dim, keepdim

    def forward(self, x: Tensor) -> Tensor:
        """Σ x or the mean of x."""
        return self.reduce(x, self.dim, self.keepdim)


class ScaleModule(nn.Module):
    """An element times, or through, a constant: each element is what the element before it was."""

    def __init__(self, by: Callable[[Any, Any], Tensor], constant: float | Tensor) -> None:
        super().__init__()
        self.by, self.constant = by, constant

    def forward(self, x: Tensor) -> Tensor:
        """x · c or x / c."""
        return self.by(x, self.constant)


def stack_pair(a: Tensor, b: Tensor) -> Tensor:
    """Two tensors along a new last axis, over which their sum is taken."""
    return torch.stack(torch.broadcast_tensors(a, b), -1)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """A layer of torch's own, or a kind of one; what others have built is looked into."""
        containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        return not isinstance(m, containers) and any(
            kind.__module__.startswith("torch.nn.modules") and kind is not nn.Module for kind in type(m).__mro__
        )


def trace_modules(network: nn.Module, x: Tensor) -> fx.GraphModule:
    """The network, which is the caller's own copy, as modules; on x it must give what it gave before."""
    tracer = _Tracer()
    if tracer.is_leaf_module(network, ""):
        network = nn.Sequential(network)
    try:
        graph = tracer.trace(network)
    except Exception as error:
        raise InputError(
            f"This method looks for the modules of a network, and torch.fx cannot follow this one: {error}. "
            "It must take no turns that depend on values or sizes. Where it does, choose a method that takes gradients "
            "only, such as integrated gradients."
        ) from error
    made = fx.GraphModule(network, graph)
    depending = depends_on_input(graph)
    called: set[str] = set()
    for node in list(graph.nodes):
        if node.op == "call_module":
            if node.target in called:
                _put(made, node, copy.deepcopy(made.get_submodule(node.target)))
            called.add(str(node.target))
        elif node.op in ("call_function", "call_method") and node in depending:
            _rewrite(made, node, depending)
    graph.lint()
    made.recompile()
    with torch.no_grad():
        check_same(network(x), made, x)
    return made


def check_same(before: Tensor, made: nn.Module, x: Tensor) -> None:
    """Refuse a rewritten network that gives other scores for x than the network itself gave before."""
    with torch.no_grad():
        after = made(x)
    if not torch.allclose(before, after, rtol=0, atol=_AGREEMENT * float(before.abs().max())):
        raise InputError(
            "This method needs the network as modules. Rewritten that way, its scores differ by up to "
            f"{float((before - after).abs().max()):.3g}, so another network would be explained. A layer whose "
            "forward() leaves out its bias may be the cause. Otherwise choose a method that uses gradients only."
        )


def name_of(node: Node) -> str:
    """What a node calls, without the underscore of an operation in place."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return {"iadd": "add", "imul": "mul", "itruediv": "div", "truediv": "div"}.get(name, name.removesuffix("_"))


def depends_on_input(graph: fx.Graph) -> set[Node]:
    """The nodes whose values follow from those of the input; its size does not count."""
    found: set[Node] = set()
    for node in graph.nodes:
        attribute = node.args[1] if node.target is getattr else name_of(node)
        if node.op == "placeholder" or (attribute not in _SIZES and any(n in found for n in node.all_input_nodes)):
            found.add(node)
    return found


def _rewrite(made: fx.GraphModule, node: Node, depending: set[Node]) -> None:
    """Put a module in the place of a function, if there is one that does the same."""
    name = name_of(node)
    if name in _MODULES and len(node.all_input_nodes) == 1:
        kind, parameters = _MODULES[name]
        given = dict(zip(parameters.split(), node.args[1:], strict=False)) | dict(node.kwargs)
        settings = {key: value for key, value in given.items() if key not in ("inplace", "input")}
        _put(made, node, kind(**settings))
    elif name in ("mean", "sum") and len(node.all_input_nodes) == 1 and not node.kwargs.keys() - {"dim", "keepdim"}:
        given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
        if given.get("dim") is not None:
            _put(made, node, PoolModule(getattr(torch, name), **given))
    elif name == "add" and all(a in depending for a in node.args) and not node.kwargs:
        with made.graph.inserting_before(node):
            both = made.graph.call_function(stack_pair, node.args)
        depending.add(both)
        _put(made, node, PoolModule(torch.sum, -1), both)
    elif name == "mul" or (name == "div" and node.args[0] in depending):
        constants = [_constant(made, a) for a in node.args if a not in depending]
        if len(constants) == 1 and constants[0] is not None:
            by = operator.mul if name == "mul" else operator.truediv
            _put(made, node, ScaleModule(by, constants[0]), next(a for a in node.args if a in depending))


def _constant(made: fx.GraphModule, value: Any) -> float | Tensor | None:
    """A number, or a parameter or buffer of the network."""
    if isinstance(value, fx.Node):
        return operator.attrgetter(str(value.target))(made).detach() if value.op == "get_attr" else None
    return value if isinstance(value, (int, float)) else None


def _put(made: fx.GraphModule, node: Node, module: nn.Module, argument: Node | None = None) -> None:
    """Let a node call a module of its own, with one argument; the arguments of a repeated module stay."""
    place = f"called_{node.name}"
    made.add_submodule(place, module)
    if node.op != "call_module":
        node.args, node.kwargs = (argument or node.all_input_nodes[0],), {}
    node.op, node.target = "call_module", place
