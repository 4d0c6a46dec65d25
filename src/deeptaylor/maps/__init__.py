"""W and its transpose in every reading; tensors only, no graph.

A map is one affine operation, a block several that share a denominator; an AffineMap is what a rule sees of a block.
"""
