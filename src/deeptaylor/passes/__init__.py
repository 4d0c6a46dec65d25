"""Exact rewrites of a captured graph.

rewrite           unify equivalent formulations and dtypes, evaluate constants, split layers that compute queries, keys
                  and values
fold              fold BatchNorm and other scalings into the weighted layer beside them
rearrangements    move constants through views and permutations
"""
