"""What is known of an operation: how relevance flows through it, its map, the range of its results."""
