"""What happens to relevance between two boundaries: one small class for each way it can flow.

A step takes the relevance of its node and returns the relevance of each of its inputs; what does not go on is booked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, fit
from deeptaylor.maps.affine_map import AffineMap, LocalMap, PlacesMap, ScoreMap
from deeptaylor.maps.block import Block, Run
from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import Maybe, unbroadcast
from deeptaylor.maps.structural import Structural
from deeptaylor.rules import Book, Rule
from deeptaylor.rules.pooling import Windows, share_lp, share_max


class Step(nn.Module):
    """Base: `node` is the tensor whose relevance it takes, `inputs` those it hands on to, `needs` what it reads.

    `settled`: no relevance arrives where it could not be divided (planner.py), so that none is dropped.
    """

    settled = False

    def __init__(self, node: str, inputs: Sequence[str], needs: Sequence[str] = ()) -> None:
        super().__init__()
        self.node, self.inputs, self.needs = node, tuple(inputs), tuple(needs)

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        raise NotImplementedError


class _Bounds(nn.Module):
    """A box whose bounds move and convert with the step."""

    def __init__(self, box: Box) -> None:
        super().__init__()
        for name, bound in (("low", box.low), ("high", box.high)):
            self.register_buffer(name, torch.as_tensor(bound), persistent=False)
        self.low: Tensor
        self.high: Tensor

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
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
        """For every leaf the box that it lies in, if any."""
        return [b if isinstance(b, _Bounds) else None for b in self.bounds]

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        W = AffineMap(self.block, run, self.non_negative, self.boxes, self.rectified, self.spread)
        return self.rule(W, R, book)


class ScoreStep(BlockStep):
    """The output's block completed by the target: it starts from R_f = max(0, f), one number per sample."""

    def start(self, R: Tensor, v: Tensor, f: Tensor, run: Run, book: Book) -> list[Maybe]:
        W = ScoreMap(self.block, run, self.non_negative, self.boxes, self.spread, v, f)
        return self.rule(W, R, book)


class LocalScoreStep(ScoreStep):
    """The output's block where it averages over places: each place is a detector of the target (docs/theory.md).

    Relevance goes to the places first, in proportion to what each detects, and within a place to what it detects by.
    """

    places: tuple[int, ...] = ()  # axes of the only leaf

    def start(self, R: Tensor, v: Tensor, f: Tensor, run: Run, book: Book) -> list[Maybe]:
        W = PlacesMap(self.block, run, self.non_negative, self.boxes, self.spread, v, f, self.places)
        t = W.z.clamp(min=0)
        total = t.flatten(1).sum(1)  # at least f, so that nothing is dropped
        share = divide(R, total).reshape(-1, *[1] * (t.ndim - 1))
        return self.rule(W, t * share, _AllPlaces(book, lambda t: t.flatten(1).sum(1)))


class LocalStep(BlockStep):
    """A block inside the network that reads an average over places: each place is a detector of each of its units."""

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        W = LocalMap(self.block, run, self.non_negative, self.boxes, self.rectified, self.spread)
        at_places = (R.unsqueeze(1) * W.shares()).flatten(0, 1)
        return self.rule(W, at_places, _AllPlaces(book, lambda t: W.apart(t).sum(1)))


class _AllPlaces:
    """A book for the units of all places; the other takes what `summed` makes of them."""

    def __init__(self, book: Book, summed: Callable[[Tensor], Tensor]) -> None:
        self.book, self.open, self._summed = book, book.open, summed

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        if self.open:
            self.book.bias(self._summed(share if weight is None else share * weight))

    def dropped(self, share: Tensor) -> None:
        if self.open:
            self.book.dropped(self._summed(share))

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        if self.open:
            self.book.dropped(self._summed(undivided(R, Z)))


class CarryStep(Step):
    """Structural operations: relevance goes back to where each element came from, constants' shares to the ledger."""

    def __init__(self, carried: Structural, needs: Sequence[str]) -> None:
        super().__init__(carried.node, carried.operands, needs)
        self.carried = carried

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        if self.carried.brings_constants:
            ones = [R.new_ones(run.shape(n)) for n in self.carried.operands]
            book.bias(R * (1 - self.carried.carry(ones, run)))
        return self.carried.transpose("flat", R, run)


class PassStep(Step):
    """Relevance passes unchanged to the signal: gates, normalisers, activations with φ(0) = 0."""

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        return [unbroadcast(R, run.shape(self.inputs[0]))]


class ConstantStep(Step):
    """What no input reaches with relevance, such as position embeddings: all of it is a constant's."""

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        book.bias(R)
        return []


class ActivationStep(Step):
    """φ(z) = φ(0) + d(z) with φ(0) ≠ 0: φ(0) is a bias neuron, d(z) goes on."""

    def __init__(self, node: str, inputs: Sequence[str], at_zero: Tensor, spread: bool) -> None:
        super().__init__(node, inputs, () if spread else (node,))
        self.spread = spread
        self.register_buffer("at_zero", at_zero, persistent=False)
        self.at_zero: Tensor

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        if self.spread:
            return [R]
        y = run.value(self.node)
        s = torch.where(y >= 0, 1.0, -1.0).to(y.dtype)
        bias, d = (s * self.at_zero).clamp(min=0), (s * (y - self.at_zero)).clamp(min=0)
        # s φ(0) + s d = |y|, so where both are positive they add up to |y|; the sum is zero only where y is.
        whole = bias + d
        share = torch.where(whole > 0, bias / torch.where(whole > 0, whole, 1), 0)
        book.bias(R * share)
        return [R * torch.where(whole > 0, d / torch.where(whole > 0, whole, 1), 1)]


class SoftmaxStep(Step):
    """y = g exp(z) with a constant g: exp(0) = 1 is a bias neuron."""

    def __init__(self, node: str, inputs: Sequence[str], spread: bool) -> None:
        super().__init__(node, inputs, () if spread else inputs)
        self.spread = spread

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        if self.spread:
            return [R]
        share = (1 - torch.exp(-run.value(self.inputs[0]).clamp(min=0))).to(R.dtype)
        book.bias(R * (1 - share))
        return [R * share]


class MaxStep(Step):
    """Max pooling."""

    def __init__(
        self, node: str, inputs: Sequence[str], windows: Windows, winner: bool, spread: bool, clean: bool
    ) -> None:
        super().__init__(node, inputs, (inputs[0],) if winner or clean else (node, inputs[0]))
        self.windows, self.winner, self.spread, self.clean = windows, winner, spread, clean

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        x = run.value(self.inputs[0])
        y = R if self.winner or self.clean else run.value(self.node)
        return [share_max(self.windows, x, y, R, self.winner, self.spread, self.clean, book)]


class LpStep(Step):
    """L^p pooling."""

    def __init__(self, node: str, inputs: Sequence[str], windows: Windows, spread: bool) -> None:
        super().__init__(node, inputs, inputs)
        self.windows, self.spread = windows, spread

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        return [share_lp(self.windows, run.value(self.inputs[0]), R, self.spread, book)]


class EmbeddingStep(Step):
    """A token's relevance is the sum over its vector."""

    def back(self, R: Tensor, run: Run, book: Book) -> list[Maybe]:
        return [R.sum(-1)]
