"""One explanation: forward once, the steps in reverse, and all that watches over it.

network      a network captured for the shapes that it meets, and followed
prepare      all that is done once: captured, rewritten, planned, compared with the user's network
engine       forward and reverse
forward      what the forward pass keeps; recomputed: what is computed again instead
reverse      the steps, from the score down to the inputs
books        what arrived, went on, was a bias's and was dropped
stale        a network that changed is refused (freshness sees it), one that moved is followed
short_of_memory   a batch that does not fit into memory
precision    types of few digits; lift: scores that are too small for theirs
"""
