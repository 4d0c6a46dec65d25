"""How often does `auto` choose the method that points better? On inputs that were not used to choose anything.

    python benchmarks/modern_choice.py [--json FILE]

For every network of results/modern-test.json, `auto` is asked anew with 1, 2 or 4 other pictures as its first inputs;
the better method is the one whose disc is larger over all pictures (modern.py). The self-test does not look at boxes.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch

import deeptaylor as dt
from modern_networks import default_cache, load
from modern_tasks import pictures

RECORD = Path(__file__).resolve().parent / "results/modern-test.json"
FIRST = 12  # pictures that are first inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    record = {}
    for key, found in json.loads(RECORD.read_text(encoding="utf-8"))["networks"].items():
        task, name, seed = key.replace("seed ", "").split(", ")
        network, x = load(task, name, int(seed), default_cache()), pictures(task, "test", FIRST).x
        disc = {m: found["rows"][row]["disc"][0] for m, row in (("deep-taylor", "explain"), ("secant", "secant"))}
        better = max(disc, key=lambda m: disc[m])
        row: dict[str, object] = {"deep-taylor": disc["deep-taylor"], "secant": disc["secant"]}
        for count in (1, 2, 4):
            chosen = []
            for first in x.split(count):
                explainer = dt.Explainer(network, x[:1], dt.Box(0.0, 1.0))
                chosen.append(explainer.choose(first, None).method)
            row[f"right, {count}"] = round(sum(m == better for m in chosen) / len(chosen), 4)
        print(key, row, flush=True)
        record[key] = row
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
