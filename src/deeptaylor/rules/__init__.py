"""How relevance is redistributed: a rule is a few straight lines in the paper's letters.

base      what a rule is, and the contributions of inputs and bias neurons that it adds up
paper     w², z⁺, z^B; and the supplement's procedures for one layer, functions of W, X and R
lrp       z, ε, αβ, γ, flat; pass and signal
steps     what happens between two boundaries: a block under its rule, pooling, activations, moves
pooling   how max and L^p pooling share relevance
parse     rules from text, and back
"""

import warnings
from typing import TYPE_CHECKING, Any

from deeptaylor.maps.division import divide, undivided
from deeptaylor.rules.base import LedgerWriter, Rule
from deeptaylor.rules.lrp import AlphaBeta, Epsilon, Flat, Gamma, Pass, Signal, Z
from deeptaylor.rules.paper import WSquare, ZBox, ZPlus, w_square, z, z_box, z_plus

__all__ = [
    "AlphaBeta",
    "Epsilon",
    "Flat",
    "Gamma",
    "LedgerWriter",
    "Pass",
    "Rule",
    "Signal",
    "WSquare",
    "Z",
    "ZBox",
    "ZPlus",
    "divide",
    "undivided",
    "w_square",
    "z",
    "z_box",
    "z_plus",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return `LedgerWriter` by its former name, with a DeprecationWarning; the name will be removed in 0.2."""
        if name != "Book":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn("dt.rules.Book is now dt.rules.LedgerWriter.", DeprecationWarning, stacklevel=2)
        return LedgerWriter
