"""The secant decomposition: how a score came from that of a reference, exactly and with two signs.

compared(engine, x, references, target)
├── references   what x is compared with: zeros, a blurred picture, other tokens, …
├── walk         the graph once at both points, and back; splits: THE table of secants
└── Between      the answer, with f(x) = f(reference) + for − against
"""
