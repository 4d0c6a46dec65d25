"""Networks to explain: pretrained ones, files of other formats, photographs made ready."""
