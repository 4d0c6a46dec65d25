"""Networks out of ONNX files, and explainers into them.

file               the file: its graph, checked; its tensors, inside it or beside it    ┐
shape_operators    arithmetic of shapes, so that the batch size stays free              │
operators          the operators in torch; those of attention, of recurrent layers, of  │
                   choices and of quantised layers in files of their own                ├──► importer: read_onnx
onnx_network       the result: an ordinary module                                       │
onnx_comparison    its outputs, compared with those of the file                         ┘

exporter           an explainer as an ONNX file, compared with itself in onnxruntime before it is written
"""
