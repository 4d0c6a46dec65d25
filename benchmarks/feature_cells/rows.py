"""The questions of the table: a key (the name of a function in every tool's module) and what stands in the table."""

from __future__ import annotations

ROWS: dict[str, dict[str, str]] = {
    "What can be explained": {
        "functional": "Functions in the code (`torch.relu`, `+`) count the same as modules",
        "attention": "Transformers: a map through attention",
        "two_inputs": "Networks with several inputs",
        "data_flow": "Networks whose control flow depends on the data",
        "any_function": "Models that are not PyTorch networks",
        "onnx_files": "Networks from ONNX files",
        "clips": "Video clips and volumes (3-D convolutions): a map for every frame",
        "segmentation": "Outputs other than classes, such as segmentation",
        "generated_text": "Texts that a language model generated",
    },
    "Which question is answered": {
        "several_classes": "Several classes in one call",
        "rather_than": "Why A rather than B",
        "reference": "Compared with a reference input of your choice",
        "inner_layer": "The map of an inner layer",
        "one_unit": "What one inner unit responded to",
        "class_names": "Classes by their names",
        "smoothed": "Averaged over noisy or altered copies of the input",
        "concepts": "Concepts instead of pixels",
        "training_data": "Which training examples counted",
    },
    "Can the map be trusted": {
        "adds_up": "Says whether the map adds up to the score, and where the rest went",
        "asks": "Measures on the network whether one map is right, by hiding what it marks",
        "judged": "Compares methods on a folder of photographs, with intervals",
        "untouched": "Leaves the network as it was",
    },
    "Pictures": {
        "figure": "Photograph, overlay and colour bar in one figure",
        "files": "Saved as PNG, PDF and SVG",
        "own_resolution": "Over the original photograph, in its own resolution",
        "tokens": "Words of a text in colour",
        "bars": "Bars for the values of a table",
        "curves": "Signals with their relevance",
        "slices": "Slices through a volume, in one figure",
        "notebook": "Shows itself in a notebook",
        "interactive": "Interactive figures (HTML)",
        "video_file": "A video with the map over its frames",
    },
    "How it is used": {
        "one_call": "From the file of a photograph to a map in one call",
        "command": "A command line",
        "page": "A page in the browser, on your own machine",
        "report": "A report on a folder of photographs",
        "compiled": "With `torch.compile`",
        "bfloat16": "In bfloat16",
        "exported": "The explainer itself as an ONNX file",
        "saved_answer": "Explanations can be pickled",
        "saved_explainer": "The explainer can be saved and loaded",
        "hosted": "A hosted demo",
    },
}
