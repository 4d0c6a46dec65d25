"""Questions to a map, each a small class in its file: is it true? They need a network and a map, and no engine.

Case      inputs and the classes that are explained        Measured   a value per sample, and curves
flipping  road  leave_one_out                              what does the network do when a map is believed?
tokens                                                     the same of texts, token by token
pointing  logits  randomised  continuity                   does it lie where it should, and follow its class?
"""
