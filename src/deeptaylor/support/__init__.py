"""What every part needs and none is about: files written whole, extras that may be missing, memory, reports as HTML."""
