"""The plan of an explanation: which rule applies where, and why. It is made before anything runs.

planner   group operations into detection blocks; choose one step for each boundary
domains   which values each tensor can take; the check in each pass that inferred signs hold
signals   which operands carry relevance, and which are gates
plan      the plan as it is printed, with its steps
"""
