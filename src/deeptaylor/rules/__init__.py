"""How relevance is shared out: a rule is a few straight lines in the paper's letters.

base            what a rule is
contributions   what inputs and bias neurons contribute to units: added up, and relevance handed out in proportion
paper           w², z⁺, z^B
algorithms      the same as the supplement has them, for one layer: functions of W, X and R
lrp             z, ε, αβ, γ, flat; pass and signal
steps           what happens between two boundaries: a block under its rule, pooling, activations, moves
pooling         how max and L^p pooling share
parse           rules as words, and back
"""

from deeptaylor.maps.division import divide, undivided
from deeptaylor.rules.algorithms import w_square, z, z_box, z_plus
from deeptaylor.rules.base import Book, Rule
from deeptaylor.rules.lrp import AlphaBeta, Epsilon, Flat, Gamma, Pass, Signal, Z
from deeptaylor.rules.paper import WSquare, ZBox, ZPlus

__all__ = [
    "AlphaBeta",
    "Book",
    "Epsilon",
    "Flat",
    "Gamma",
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
