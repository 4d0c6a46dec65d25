"""What watching every channel of a layer costs a run: the same run with and without `dt.Concepts`, in turns.

python benchmarks/concepts_cost.py --count 10000 --turns 2 --json benchmarks/results/runs-concepts.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

import deeptaylor as dt
from synthetic_task import network, pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--layer", default="5")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    x = pictures(asked.count, 0)[0]
    explainer = dt.Explainer(network().eval(), x[:2], dt.Box(0, 1))
    folder = Path(tempfile.mkdtemp())
    took: dict[str, list[float]] = {"plain": [], "watched": []}
    try:
        for turn in range(asked.turns + 1):  # the first is a warm-up
            for name, also in (("plain", []), ("watched", [dt.Concepts(asked.layer)])):
                began = time.process_time()
                run = dt.explain_dataset(list(x), explainer, folder / f"{name}-{turn}", also=also, threads=1)
                took[name].append(time.process_time() - began)
        channels = run.channels(asked.layer).channels
    finally:
        shutil.rmtree(folder)
    plain, watched = (min(took[name][1:]) for name in took)
    print(f"{asked.count} pictures, {channels} channels: {plain:.2f} s plain, {watched:.2f} s watched (processor time)")
    turns = [round(b / a, 3) for a, b in zip(*took.values(), strict=True)]
    print(f"ratio {watched / plain:.3f}; of each turn: {turns}")
    if asked.json:
        found = {"count": asked.count, "channels": channels, "ratio": watched / plain, "seconds": took}
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
