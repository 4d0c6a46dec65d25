"""Rewrites of the graph, one per file: other spellings to one, constants folded, packed layers split."""
