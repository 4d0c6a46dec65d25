"""Write the recipes of the networks by name: their graphs, so that no explanation has to wait for torch.export.

python benchmarks/write_recipes.py    (make recipes)    after one of these networks, or torch, changed
"""

from __future__ import annotations

import json
import sys

import torch

from deeptaylor.graph.capture import capture
from deeptaylor.graph.recipe import RECIPE_FOLDER, make_recipe
from deeptaylor.models.networks.catalog import CATALOG


def main() -> None:
    RECIPE_FOLDER.mkdir(exist_ok=True)
    for name, entry in CATALOG.items():
        network = entry.build().eval()
        recipe = make_recipe(network, capture(network, [torch.rand(1, *entry.preparation.shape)]))
        path = RECIPE_FOLDER / f"{name}.json"
        path.write_text(json.dumps(recipe, separators=(",", ":")) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
