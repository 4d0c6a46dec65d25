"""Networks out of Caffe's files, without the caffe package.

    text.py      .prototxt     ──► nested fields             ┐
    wiring.py    its layers    ──► steps: who reads whom     │
    layers.py    a layer       ──► a torch module            ├──► graph.py: read_caffe
    weights.py   .caffemodel   ──► arrays by layer name      ┘

The text says what is computed, the weights file with which numbers; a layer finds its own by name.
"""

from deeptaylor.models.caffe.graph import CaffeGraph, read_caffe
from deeptaylor.models.caffe.weights import CaffeError

__all__ = ["CaffeError", "CaffeGraph", "read_caffe"]
