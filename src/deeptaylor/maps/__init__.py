"""W and its transpose in every reading; tensors only, no graph.

linear_map    one affine operation with its transpose, in six readings of its weights
structural    operations that only move, copy or drop elements
convolution   convolutions, in the form that computes fastest
block         several maps that share a denominator, as one
at_places     an average split into its places
affine_map    a block in one pass, as a rule sees it
division      quotients that are zero where the denominator is zero
ops           the functions that a rewritten graph calls in place of ATen's
"""
