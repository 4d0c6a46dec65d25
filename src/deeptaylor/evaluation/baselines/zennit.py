"""Layer-wise relevance propagation by zennit (Anders et al., 2021)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import UnsupportedOp, UnsupportedOpError
from deeptaylor.evaluation.baselines.calling import (
    Maps,
    PoolModule,
    ScaleModule,
    check_same,
    depends_on_input,
    name_of,
    trace_modules,
    use_copy,
)
from deeptaylor.support.optional import MissingPackageError, optional_package

__all__ = ["EPSILON", "GAMMA", "alpha2_beta1", "epsilon", "epsilon_plus", "gamma", "load_zennit"]

# ε is a share of the root mean square of a layer's values, as Montavon et al. (2019) advise: one that only keeps from
# dividing by zero makes of the rule gradient × input.
EPSILON, GAMMA = 0.25, 0.25
# Each element is an element of the input, or lies beside others of it: relevance goes where the gradient goes.
_MOVES = {
    "flatten", "reshape", "view", "unflatten", "permute", "transpose", "contiguous", "squeeze", "unsqueeze",
    "cat", "concat", "stack", "side_by_side", "getitem", "chunk", "split", "pad", "dropout", "amax", "float",
    "to", "clone", "detach", "expand", "add", "sub",
}  # fmt: skip
_MOVING_MODULES = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad2d,
)  # fmt: skip


def load_zennit() -> Any:
    """The package, also where torchvision does not import: zennit asks for it only to name torchvision's ResNets."""
    why = "This method is zennit's"
    try:
        return optional_package("zennit", why, "evaluation")
    except MissingPackageError as error:
        if error.package == "zennit":
            raise
    name = "zennit.torchvision"
    sys.modules[name] = ModuleType(name, "Empty: torchvision does not import.")
    try:
        return optional_package("zennit", why, "evaluation")
    finally:
        del sys.modules[name]


def _epsilon(zennit: Any, base: list[Any]) -> Any:
    rule = zennit.rules.Epsilon(zennit.core.Stabilizer(EPSILON, norm_scale=True))
    return zennit.composites.LayerMapComposite([*base, (zennit.types.Linear, rule)])


def _gamma(zennit: Any, base: list[Any]) -> Any:
    return zennit.composites.LayerMapComposite([*base, (zennit.types.Linear, zennit.rules.Gamma(GAMMA))])


def _epsilon_plus(zennit: Any, base: list[Any]) -> Any:
    return zennit.composites.EpsilonPlus(layer_map=base)


def _alpha2_beta1(zennit: Any, base: list[Any]) -> Any:
    return zennit.composites.EpsilonAlpha2Beta1(layer_map=base)


def _make_maps(composite: Callable[[Any, list[Any]], Any]) -> Maps:
    """The method that takes its rules from a composite."""

    @use_copy
    def maps(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        zennit = load_zennit()
        made = trace_modules(network, x)
        _refuse_without_rule(zennit, made)
        with torch.no_grad():
            scores = made(x)
        _merge_batch_norms(zennit, made)
        check_same(scores, made, x)
        own = [((PoolModule,), zennit.rules.Norm()), ((ScaleModule,), zennit.rules.Pass())]
        rules = composite(zennit, [*own, *zennit.composites.layer_map_base()])
        relevance: Tensor = zennit.attribution.Gradient(made, rules)(x, functools.partial(_of_class, classes))[1]
        return relevance

    return maps


epsilon, gamma, epsilon_plus, alpha2_beta1 = map(_make_maps, (_epsilon, _gamma, _epsilon_plus, _alpha2_beta1))


def _of_class(classes: Tensor, output: Tensor) -> Tensor:
    """Relevance at the output: the score of the class, and nothing elsewhere."""
    return output if output.ndim == 1 else output * nn.functional.one_hot(classes, output.shape[1])


def _merge_batch_norms(zennit: Any, made: fx.GraphModule) -> None:
    """Every BatchNorm right behind a linear layer into it, by zennit's canonizer.

    What zennit leaves in its place divides by the root of 1 + eps, so it is taken out.
    """
    pairs = []
    for node in made.graph.nodes:
        before = node.args[0] if node.op == "call_module" else None
        if not (isinstance(before, fx.Node) and before.op == "call_module" and len(before.users) == 1):
            continue
        layer, norm = made.get_submodule(str(before.target)), made.get_submodule(str(node.target))
        fits = isinstance(layer, zennit.types.Linear) and isinstance(norm, zennit.types.BatchNorm)
        if fits and norm.affine and norm.track_running_stats:
            pairs.append(([str(before.target)], str(node.target)))
    with torch.no_grad():
        zennit.canonizers.NamedMergeBatchNorm(pairs).apply(made)
    for _, name in pairs:
        made.set_submodule(name, nn.Identity())


def _refuse_without_rule(zennit: Any, made: fx.GraphModule) -> None:
    """zennit sends the plain gradient through what it has no rule for; that is no relevance, and is not begun."""
    types = zennit.types
    known = (types.Linear, types.BatchNorm, types.AvgPool, types.MaxPool, types.Activation, PoolModule, ScaleModule)
    depending, missing = depends_on_input(made.graph), set()
    for node in made.graph.nodes:
        if node.op == "call_module":
            module = made.get_submodule(str(node.target))
            if not isinstance(module, (*known, *_MOVING_MODULES)) or isinstance(module, nn.MultiheadAttention):
                missing.add(type(module).__name__)
        elif node.op in ("call_function", "call_method") and node in depending:
            tensors = sum(n in depending for n in node.all_input_nodes)
            name = name_of(node)
            if name not in _MOVES or (name in ("add", "sub") and tensors > 1):
                missing.add(name)
    if missing:
        raise UnsupportedOpError(
            f"zennit has no rule for {', '.join(sorted(missing))}, and would send the plain gradient through. Leave "
            "this method out for the network; deeptaylor's own rules may know it.",
            [UnsupportedOp(name, "", "") for name in sorted(missing)],
        )
