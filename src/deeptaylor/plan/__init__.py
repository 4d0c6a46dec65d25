"""Which rule where, and why; made before anything runs.

planner      domains → signals → blocks → choice → one step a boundary
table        the plan as it is printed
"""
