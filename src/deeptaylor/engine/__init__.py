"""One explanation: forward once, the steps in reverse, and all that watches over it.

captured_network   a network captured for the shapes that it meets, checked before every call; run in parts if
                   memory is short
prepare            all that is done once: captured, rewritten, planned, compared with the user's network
engine             forward and reverse
forward            what the forward pass keeps, and what is computed again instead
reverse            the steps, from the score down to the inputs
ledger_entries     what arrived at each step, went on, was absorbed by biases and was dropped
comparison         between: the network at both points, and its difference redistributed (secant_walk)
live               constants that follow the parameters, and relevance that is differentiable in them
precision          what low-precision dtypes cannot represent
"""
