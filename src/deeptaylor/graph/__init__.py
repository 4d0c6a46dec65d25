"""From the user's module to a flat graph that computes the same.

capture        torch.export, and the graph that comes out of it as a `CapturedGraph`
recurrent      recurrent layers, unrolled into the operations of their time steps
recipe         the same graph from a small file, for the networks by name
node           reading a node: module path, source line, sizes that depend on the batch size
editing        reading operands and constants, replacing nodes, cutting a network at a layer
recording      how constants are computed from the network's parameters, recorded to compute them again
agreement      the captured graph gives what the network gives
failure        what to report if a network fails, or cannot be captured
modes          contexts in which a network runs: eval mode, no autocast, a quiet export
control_flow   networks with data-dependent control flow, with their decisions fixed
"""
