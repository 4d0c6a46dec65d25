"""From the user's module to a flat graph that is the same network.

capture      torch.export, with everything that it does to those around it held back
recipe       the same from a small file, for the networks of our own
editing      moving about in the graph
agreement    the captured network gives what the network gives
"""
