"""The steps of the reverse pass: one small class for each way in which relevance flows between two boundaries.

A step takes the relevance of its node and returns the relevance of each of its inputs; it records in the ledger what it
does not pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, fit
from deeptaylor.maps.affine_map import AffineMap, LocalMap, PlacesMap, ScoreMap
from deeptaylor.maps.block import Block, RunContext
from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import Maybe, unbroadcast
from deeptaylor.maps.structural import Structural
from deeptaylor.rules import LedgerWriter, Rule
from deeptaylor.rules.pooling import Windows, share_lp, share_max


class Step(nn.Module):
    """Base of the steps.

    node            the tensor whose relevance is redistributed
    inputs          the tensors to which it is passed on
    needs           further values of the forward pass that the step reads
    drops_nothing   True if no relevance arrives where the step would divide by zero; none is then dropped (planner.py)
    """

    drops_nothing = False

    def __init__(self, node: str, inputs: Sequence[str], needs: Sequence[str] = ()) -> None:
        super().__init__()
        self.node, self.inputs, self.needs = node, tuple(inputs), tuple(needs)

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        """Return the relevance of each input, redistributed from R; None for an input without relevance."""
        raise NotImplementedError


class _Bounds(nn.Module):
    """A box whose bounds are buffers, so that they move and convert with the step."""

    def __init__(self, box: Box) -> None:
        super().__init__()
        for name, bound in (("low", box.low), ("high", box.high)):
            self.register_buffer(name, torch.as_tensor(bound), persistent=False)
        self.low: Tensor
        self.high: Tensor

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper bounds, which broadcast against x."""
        return fit(self.low, x), fit(self.high, x)


class BlockStep(Step):
    """A detection block under its rule."""

    def __init__(
        self,
        block: Block,
        rule: Rule,
        non_negative: Sequence[bool],
        boxes: Sequence[Box | None],
        rectified: bool,
        spread: bool,
        needs: Sequence[str],
    ) -> None:
        super().__init__(block.head, block.leaves, needs)
        self.block, self.rule, self.rectified, self.spread = block, rule, rectified, spread
        self.non_negative = tuple(non_negative)
        self.bounds = nn.ModuleList([nn.Module() if box is None else _Bounds(box) for box in boxes])

    @property
    def boxes(self) -> list[_Bounds | None]:
        """Return the bounds of every leaf's box; None for a leaf without a box."""
        return [b if isinstance(b, _Bounds) else None for b in self.bounds]

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        W = run.affine_map(self.node, lambda: self._affine_map(run))
        return list(self.rule(W, R, ledger))

    def _affine_map(self, run: RunContext) -> AffineMap:
        return AffineMap(self.block, run, self.non_negative, self.boxes, self.rectified, self.spread)


class ScoreStep(BlockStep):
    """The block of the output, completed by the target: it redistributes R_f = max(0, f), one number per sample."""

    def start(self, R: Tensor, v: Tensor, f: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        """Return the relevance of each input, for the relevance R of the score f = Σ v z."""
        W = ScoreMap(self.block, run, self.non_negative, self.boxes, self.spread, v, f)
        return list(self.rule(W, R, ledger))


class LocalScoreStep(ScoreStep):
    """The block of an output that averages over places: each place is a detector of the target (docs/theory.md).

    Relevance goes to the places in proportion to what each detects, then within each place by the rule.
    """

    places: tuple[int, ...] = ()  # axes of the only leaf

    def start(self, R: Tensor, v: Tensor, f: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        W = PlacesMap(self.block, run, self.non_negative, self.boxes, self.spread, v, f, self.places)
        t = W.z.clamp(min=0)
        total = t.flatten(1).sum(1)  # at least f, so that nothing is dropped
        share = divide(R, total).reshape(-1, *[1] * (t.ndim - 1))
        return list(self.rule(W, t * share, _AllPlaces(ledger, lambda t: t.flatten(1).sum(1))))


class LocalStep(BlockStep):
    """An inner block that reads an average over places: each place is a detector of each of the block's units."""

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        W = LocalMap(self.block, run, self.non_negative, self.boxes, self.rectified, self.spread)
        at_places = (R.unsqueeze(1) * W.shares()).flatten(0, 1)
        return list(self.rule(W, at_places, _AllPlaces(ledger, lambda t: W.split_places(t).sum(1))))


class _AllPlaces:
    """A ledger writer for the units of all places: it sums over places and writes to the step's ledger."""

    def __init__(self, ledger: LedgerWriter, sum_places: Callable[[Tensor], Tensor]) -> None:
        self.ledger, self.open, self._sum_places = ledger, ledger.open, sum_places

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        if self.open:
            self.ledger.bias(self._sum_places(share if weight is None else share * weight))

    def dropped(self, share: Tensor) -> None:
        if self.open:
            self.ledger.dropped(self._sum_places(share))

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        if self.open:
            self.ledger.dropped(self._sum_places(undivided(R, Z)))


class CarryStep(Step):
    """An operation that copies elements: relevance goes back to where each came from; that of constants is recorded."""

    def __init__(self, carried: Structural, needs: Sequence[str]) -> None:
        super().__init__(carried.node, carried.operands, needs)
        self.carried = carried

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        if self.carried.brings_constants:
            ones = [R.new_ones(run.shape(n)) for n in self.carried.operands]
            ledger.bias(R * (1 - self.carried.carry(ones, run)))
        return self.carried.transpose("flat", R, run)


class PassStep(Step):
    """A gate, a normaliser, or an activation with φ(0) = 0: relevance passes unchanged to the signal."""

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        return [unbroadcast(R, run.shape(self.inputs[0]))]


class ConstantStep(Step):
    """A tensor of constants, such as position embeddings: all its relevance is recorded as absorbed by biases."""

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        ledger.bias(R)
        return []


class ActivationStep(Step):
    """An activation φ(z) = φ(0) + d(z) with φ(0) ≠ 0: φ(0) is a bias neuron, and d(z) passes relevance on."""

    def __init__(self, node: str, inputs: Sequence[str], at_zero: Tensor, spread: bool) -> None:
        super().__init__(node, inputs, () if spread else (node,))
        self.spread = spread
        self.register_buffer("at_zero", at_zero, persistent=False)
        self.at_zero: Tensor

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        if self.spread:
            return [R]
        y = run.value(self.node)
        s = torch.where(y >= 0, 1.0, -1.0).to(y.dtype)
        bias, d = (s * self.at_zero).clamp(min=0), (s * (y - self.at_zero)).clamp(min=0)
        # s φ(0) + s d = |y|, so where both are positive they add up to |y|; the sum is zero only where y is.
        whole = bias + d
        share = torch.where(whole > 0, bias / torch.where(whole > 0, whole, 1), 0)
        ledger.bias(R * share)
        return [R * torch.where(whole > 0, d / torch.where(whole > 0, whole, 1), 1)]


class SoftmaxStep(Step):
    """A softmax, as y = g exp(z) with a constant g: exp(0) = 1 is a bias neuron."""

    def __init__(self, node: str, inputs: Sequence[str], spread: bool) -> None:
        super().__init__(node, inputs, () if spread else inputs)
        self.spread = spread

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        if self.spread:
            return [R]
        share = (1 - torch.exp(-run.value(self.inputs[0]).clamp(min=0))).to(R.dtype)
        ledger.bias(R * (1 - share))
        return [R * share]


class MaxStep(Step):
    """Max pooling."""

    def __init__(
        self, node: str, inputs: Sequence[str], windows: Windows, winner: bool, spread: bool, zeros_get_none: bool
    ) -> None:
        super().__init__(node, inputs, (inputs[0],) if winner or zeros_get_none else (node, inputs[0]))
        self.windows, self.winner = windows, winner
        self.spread, self.zeros_get_none = spread, zeros_get_none

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        x = run.value(self.inputs[0])
        y = R if self.winner or self.zeros_get_none else run.value(self.node)
        return [share_max(self.windows, x, y, R, self.winner, self.spread, self.zeros_get_none, ledger)]


class LpStep(Step):
    """L^p pooling."""

    def __init__(self, node: str, inputs: Sequence[str], windows: Windows, spread: bool) -> None:
        super().__init__(node, inputs, inputs)
        self.windows, self.spread = windows, spread

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        return [share_lp(self.windows, run.value(self.inputs[0]), R, self.spread, ledger)]


class EmbeddingStep(Step):
    """An embedding: the relevance of a token is the sum over its vector."""

    def propagate(self, R: Tensor, run: RunContext, ledger: LedgerWriter) -> list[Maybe]:
        return [R.sum(-1)]
