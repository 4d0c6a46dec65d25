"""An explanation as something to look at: pictures, text, bars, curves and slices.

axes ──► heat ──scale──► colours ──┬── photograph   over the original photograph, with Pillow alone
                                   ├── plotting, curve, volume   figures with title, colour bar and caption (canvas)
                                   ├── tokens, bars   text in colours, and bars, that need no figure
                                   └── files   what the suffix says, whole or not at all
pictured    what an explanation can be looked at as: the methods of `Explanation`; page: as one that answers the pointer
sentences   what stands below: where the score went
"""
