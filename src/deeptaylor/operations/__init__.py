"""Operations: everything that is known of an operation is one row in the file of its family.

table        all rows; functions that read them
row          the fields of a row
flow         how relevance flows: a class for each kind
ranges       which values an operation can have
moves, layers, averages, sums, products, norms, activations, max_pooling, comparisons   the families
scaling      + − × ÷ by constants as one operation; shapes broadcast
properties   properties that need no row: pointwise, linear, samples that are not mixed
"""
