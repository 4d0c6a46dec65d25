"""Recipes of the networks that are known by name: their graphs, so that no explanation has to wait for torch.export.

python -m deeptaylor.models.networks.recipes    writes them anew, after a network or torch changed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from deeptaylor.graph.capture import capture
from deeptaylor.graph.recipe import RECIPES, recipe_of
from deeptaylor.models.networks.named import NAMED

__all__ = ["recipe", "write"]


def recipe(name: str) -> dict[str, Any]:
    """The recipe of a network by name, captured now, for inputs as its photographs make them."""
    network = NAMED[name].build().eval()
    return recipe_of(network, capture(network, [torch.rand(1, *NAMED[name].preparation.shape)]))


def write(folder: Path = RECIPES) -> list[Path]:
    """Write the recipes of all networks into a folder."""
    folder.mkdir(exist_ok=True)
    for name in NAMED:
        text = json.dumps(recipe(name), separators=(",", ":"))
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    return [folder / f"{name}.json" for name in NAMED]


if __name__ == "__main__":
    for path in write():
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")
