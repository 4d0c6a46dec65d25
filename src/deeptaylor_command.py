"""The command before anything is loaded: to import torch takes seconds, and Ctrl-C in them is an interrupt as well."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Load the command and run it; the exit code."""
    try:
        from deeptaylor.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was begun\n")
        return INTERRUPTED
    return command()
