"""Exact rewrites of a captured graph.

rewrite           equivalent formulations become one, constants are evaluated, one dtype throughout; one layer that
                  computes queries, keys and values becomes three
fold              BatchNorm and its like are folded into the weighted layer beside them
rearrangements    views and permutations, and constants carried through them
"""
