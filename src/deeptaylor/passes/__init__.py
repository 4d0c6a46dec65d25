"""Exact rewrites of a captured graph.

rewrite           equivalent formulations become one, constants are evaluated, one dtype throughout
fold              BatchNorm and its like are folded into the weighted layer beside them
attention_split   a layer that computes queries, keys and values at once becomes one layer for each
rearrangements    views and permutations, and constants carried through them
"""
