"""How far rounding moves a map (docs/theory.md, section 7).

counted     ½ √n u, for what the reverse pass does to the values it is given: n roundings on relevance's longest way
condition   κ, for what the network does before: a map moves by κ u where its weights and values are off by up to u
bound       both: how far a map may be from that of the same network in float64
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.precision import LOW_PRECISION
from deeptaylor.engine.result import Result
from deeptaylor.engine.reverse import reverse
from deeptaylor.graph.node import Node
from deeptaylor.maps.linear_map import LinearMap, Maybe, WeightedMap
from deeptaylor.maps.structural import Structural
from deeptaylor.operations.flow import Mix
from deeptaylor.operations.table import flow_of
from deeptaylor.rules import steps

__all__ = ["bound", "compared", "condition", "counted", "off", "roundings", "unit"]

TF32 = 2.0**-11  # the unit of products in tf32, which have float16's digits

_RMS = 0.5  # of a rounding, in units: 0.43 for numbers of all sizes
_NOISE = 2.0**-8  # the unit of bfloat16, the coarsest type
_HEADROOM = 3  # √3 for up to three roundings of a value instead of one, and as much for bad luck
_PRODUCT = 5  # into the denominator: two parts of a sum, their sum, the bias; and three back, but for the bias
_QUOTIENT = 3  # R / Z, times x, and the sum of what positive and negative parts received
_OTHER = {
    steps.MaxStep: 5,
    steps.LpStep: 5,
    steps.ActivationStep: 4,
    steps.SoftmaxStep: 3,
    steps.PassStep: 0,
    steps.ConstantStep: 0,
}


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to the nearest number."""
    return torch.finfo(dtype).eps / 2


def off(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """How far maps are from others: the sum of differences as a share of the sum of relevances."""
    apart = sum(float((a.double() - b.double()).abs().sum()) for a, b in zip(found, truth, strict=True))
    return apart / sum(float(b.double().abs().sum()) for b in truth)


# --- the reverse pass, counted ----------------------------------------------------------------------------------------


def counted(engine: Engine, dtype: torch.dtype, u: float | None = None) -> float:
    """½ √n u: what the roundings of the reverse pass alone may do; `u` where products have another unit (tf32)."""
    n = roundings(engine, wide=dtype not in LOW_PRECISION and u is None)
    return _RMS * math.sqrt(n) * (unit(dtype) if u is None else u)


def roundings(engine: Engine, wide: bool) -> float:
    """The most roundings on a way of relevance from the score to an input.

    `wide`: sums are added up in the type itself, not in one of twice its digits, so that each term rounds.
    """
    readers: dict[str, int] = {}
    most: dict[str, float] = {}
    for step in engine.planned.steps:
        begun = 0.0 if isinstance(step, steps.ScoreStep) else most.get(step.node, 0.0) + readers.get(step.node, 1) - 1
        after = begun + _of(step, engine, wide)
        for name in step.inputs:
            readers[name] = readers.get(name, 0) + 1
            most[name] = max(most.get(name, 0.0), after)
    return max(1.0, *(most.get(name, 0.0) + readers.get(name, 1) - 1 for name in engine.planned.inputs))


def _of(step: steps.Step, engine: Engine, wide: bool) -> float:
    if isinstance(step, steps.BlockStep):
        return _QUOTIENT + sum(_of_map(m, engine, wide) for m in step.block.maps)
    return next((float(n) for kind, n in _OTHER.items() if isinstance(step, kind)), 1.0)


def _of_map(m: LinearMap, engine: Engine, wide: bool) -> float:
    if isinstance(m, Structural):
        return 1.0
    if not m.is_mixing:
        return 2.0
    # A running sum of K terms: roundings weigh k/K, the part that is there already, and Σ (k/K)² is K/3.
    return _PRODUCT + (sum(_terms(m, engine)) / 3 if wide else 0)


def _terms(m: LinearMap, engine: Engine) -> tuple[int, int]:
    """How many products a unit adds up, and how many a leaf's element does in the transpose."""
    if isinstance(m, WeightedMap):
        shape = engine.constant(m.name).shape
        return shape.numel() // int(shape[0]), shape.numel() // int(shape[1])
    sizes = [math.prod(engine.layout[name].shape(engine.fixed_batch or 1)) for name in (m.operands[0], m.node)]
    longest = max(engine.layout[m.operands[0]].shape(engine.fixed_batch or 1), default=1)
    return max(longest, sizes[0] // max(1, sizes[1])), max(longest, sizes[1] // max(1, sizes[0]))


def compared(engine: Engine, inputs: Sequence[Tensor], target: Any) -> tuple[Result, Result]:
    """A run, and its reverse pass again in float64: on the weights and on the very values that it had."""
    wide = copy.deepcopy(engine).double()
    run = engine.forward_pass(inputs)
    names = dict.fromkeys([engine.planned.output, *(name for s in engine.planned.steps for name in s.needs)])
    values = {name: _double(run.value(name)) for name in names}
    found = _reverse(engine, run, target)
    exact = ForwardValues(values, wide.constant, wide.layout, run.batch, None, run.is_non_negative)
    return found, _reverse(wide, exact, target)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _reverse(engine: Engine, run: ForwardValues, target: Any) -> Result:
    output = run.values[engine.planned.output]
    return reverse(engine, run, targets.output_weights(target, output)[0])


# --- the network itself, measured -------------------------------------------------------------------------------------


def condition(
    engine: Engine, inputs: Sequence[Tensor], target: Any, wide: bool = False, draws: int = 6, seed: int = 0
) -> float:
    """κ: how far maps move, in units, where weights, inputs and values are off by up to a unit each, at random.

    Measured in float64 with errors drawn evenly from ±u, u that of bfloat16; the root of the mean square over the
    draws, which differ much where a few errors, such as the score's, move all of a map. The reverse pass is exact.
    `wide`: sums are added up in the type itself, and round at each term.
    """
    exact = copy.deepcopy(engine).double()
    exact.keep({})  # nothing is computed without errors
    given = [_double(x) for x in inputs]
    weights = {name: w for name, w in exact.network.named_buffers() if w.is_floating_point()}
    dice, squares = torch.Generator(given[0].device).manual_seed(seed), 0.0
    with torch.no_grad():
        run = exact.forward_pass(given)
        truth = _reverse(exact, run, target).relevance
        for _ in range(draws):
            exact.network._buffers.update({name: _shaken(w, dice) for name, w in weights.items()})
            exact.reread_weights()
            network = _Shaken(exact.network, dice, wide)
            values = network.run(*[_shaken(x, dice) if x.is_floating_point() else x for x in given])
            run.values = dict(zip(exact.keeping.kept, values, strict=True))
            squares += off(_reverse(exact, run, target).relevance, truth) ** 2
    return math.sqrt(squares / draws) / _NOISE


def _shaken(value: Tensor, dice: torch.Generator, size: Maybe = None) -> Tensor:
    """A value with errors of up to a unit, of itself or of another size."""
    noise = torch.rand(value.shape, dtype=value.dtype, device=value.device, generator=dice)
    return value + (2 * noise - 1) * _NOISE * (value if size is None else size)


class _Shaken(fx.Interpreter):
    """The network with an error in every value that is rounded."""

    def __init__(self, network: fx.GraphModule, dice: torch.Generator, wide: bool) -> None:
        super().__init__(network)
        self.dice, self.wide = dice, wide

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        rounds = n.op == "call_function" and not flow_of(n).is_exact
        rounds = rounds and isinstance(value, Tensor) and value.is_floating_point()
        return _shaken(value, self.dice, self._size(n, value)) if rounds else value

    def _size(self, n: Node, value: Tensor) -> Maybe:
        """How large a rounding is: of a sum that is added up in the type itself, about as of its terms."""
        if not self.wide or not isinstance(flow_of(n), Mix):
            return None
        read = [(a.op, self.env[a]) for a in n.all_input_nodes if isinstance(self.env[a], Tensor)]
        weights = [v.numel() // v.shape[0] for op, v in read if op == "get_attr" and v.ndim > 1]
        terms = max(weights or [max(v.shape) for _, v in read if v.ndim])
        return torch.sqrt(value.square() + terms / 6 * value.square().mean())


def bound(engine: Engine, dtype: torch.dtype, kappa: float, u: float | None = None) -> float:
    """How far a map may be from that of the same network in float64, of which κ is the condition."""
    return math.hypot(counted(engine, dtype, u), _HEADROOM * kappa * (unit(dtype) if u is None else u))
