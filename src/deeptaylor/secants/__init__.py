"""Secants: the slope of each operation between two inputs, and its transpose. Tensors only, no graph.

f(x) − f(x₀) is shared exactly among the inputs, with both signs. The walk over the graph is in engine/secant_walk.py.
"""
