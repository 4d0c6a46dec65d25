"""Rewrites of the graph, one a file: other spellings to one, constants folded, packed layers split."""
