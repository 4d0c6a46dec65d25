"""One explanation: forward once, the steps in reverse, and all that watches over it.

network      a network captured for the shapes that it meets, and followed
engine       forward and reverse
books        what arrived, went on, was a bias's and was dropped
freshness    is the network still the one that was captured?
fitting      a batch that does not fit into memory
precision    types of few digits
"""
