"""Networks to explain: networks by name, files of other formats, and the preprocessing of their inputs."""
