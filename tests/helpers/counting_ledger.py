"""A ledger that adds up what a rule does not pass on."""

from __future__ import annotations

from torch import Tensor


class CountingLedger:
    """The relevance that biases absorbed, and that was dropped."""

    open = True

    def __init__(self) -> None:
        self.taken = self.lost = 0.0

    def bias(self, share: Tensor, weight: Tensor | None = None) -> None:
        self.taken += float((share if weight is None else share * weight).sum())

    def dropped(self, share: Tensor) -> None:
        self.lost += float(share.sum())

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        self.lost += float(R[Z == 0].sum())
