"""What the channels of an inner layer did: how much each counted, the map that passed through it, its examples."""
