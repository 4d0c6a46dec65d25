"""The command `deeptaylor`: parses the first words and hands the rest to the module that does the work.

deeptaylor paper mnist      sections III and IV: every figure and table on pairs of digits
deeptaylor paper imagenet   section IV-D: photographs and large networks, with the paper's claims as numbers
deeptaylor paper rules      the supplement's picture of the rules' root points
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

EXPERIMENTS = {
    "mnist": "deeptaylor.paper.mnist",
    "imagenet": "deeptaylor.paper.imagenet",
    "rules": "deeptaylor.paper.root_points",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 if all went well, 2 if not."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["paper"] and words[1:2] and words[1] in EXPERIMENTS:
        result: int = import_module(EXPERIMENTS[words[1]]).main(words[2:])
        return result
    asked = not words or words[0] in ("-h", "--help") or words in (["paper"], ["paper", "--help"])
    said = "" if asked else f"error: there is no `deeptaylor {' '.join(words[:2])}`\n\n"
    (sys.stdout if asked else sys.stderr).write(f"{said}{__doc__}")
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
