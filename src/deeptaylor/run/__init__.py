"""One explanation: forward once, the steps in reverse, and all that watches over it.

engine       forward and reverse
books        what arrived, went on, was a bias's and was dropped
freshness    is the network still the one that was captured?
"""
