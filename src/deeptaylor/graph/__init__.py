"""From the user's module to a flat graph that is the same network.

capture      torch.export, with everything that it does to those around it held back
editing      moving about in the graph
agreement    the captured network gives what the network gives
"""
