"""Networks out of ONNX files, and explainers into them.

tensors.py    stored numbers, inside the file or beside it            ┐
file.py       the file: its graph, checked                            │
shapes.py     arithmetic of shapes, so that the batch stays free      │
elements.py   moves.py   windows.py   ops.py   operators in torch     ├──► importer.py: read_onnx
network.py    what comes of it: an ordinary module                    │
nodes.py      a node of the file as a step of the network             │
comparison.py what it gives, compared with what the file gives        ┘

exporter.py   an explainer as an ONNX file, compared with itself in onnxruntime before it is written
"""
