"""How right is a map? Measured, beside the maps of other methods."""
