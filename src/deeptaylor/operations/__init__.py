"""All that is known of an operation, in one place: a row in the file of its family.

table        every row; what the plan asks of it
row          what a row can say
kinds        how relevance flows: a class a kind; flow: what the plan asks of each
ranges       which numbers come out
moves, joins, weighted, averages, sums, products, norms, attention, activations, powers, max_pooling, comparisons,
identities   the families; lp_pools, centrings, einsums, layers and scaling read what is written out in several steps
"""
