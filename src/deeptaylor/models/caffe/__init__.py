"""Import networks from Caffe's files, without the caffe package.

    caffe_files.py      .prototxt      ──► nested fields           ┐
                        .caffemodel    ──► arrays by layer name    ├──► caffe_network.py: read_caffe
    caffe_layers.py     a layer        ──► a torch module          ┘

The text declares the layers, the weights file holds their arrays; a layer finds its arrays by its name.
"""

from deeptaylor.models.caffe.caffe_files import CaffeError
from deeptaylor.models.caffe.caffe_network import CaffeGraph, read_caffe

__all__ = ["CaffeError", "CaffeGraph", "read_caffe"]
