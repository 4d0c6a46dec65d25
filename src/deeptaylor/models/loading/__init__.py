"""`deeptaylor.load`: trained networks from names, other libraries and files.

load.py       which source is meant, and what is read from it
asked.py      what the user says, what the source says, and what nobody said
files.py      what a file is, without running anything in it; state dicts
programs.py   files that are programs, run only if trusted
hubs.py       timm, torchvision, transformers
"""
