"""Data of the paper's experiments: handwritten digits, alone and in pairs."""

from deeptaylor.paper.data.digits import Digits, DigitsError, load_digits
from deeptaylor.paper.data.pairs import Pairs, PairSampler, held_out_pairs, training_pairs

__all__ = ["Digits", "DigitsError", "PairSampler", "Pairs", "held_out_pairs", "load_digits", "training_pairs"]
