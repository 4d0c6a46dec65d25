"""What the channels of an inner layer did: how much each counted, the map of what passed through it, its examples.

e.channels(layer)      Channels: relevance by channel, with what went past the layer and what biases took
├── .map(channel)      the part of the map that passed through a channel, an explanation of its own
└── .past()            the part that went past the layer
Examples(explainer, layer).update(batch).result()     over many inputs: those that a channel counted most in
"""
