"""Does the memory of a run grow with its data set? The same run over data sets of several sizes, each in a process.

    python benchmarks/runs_memory.py --json benchmarks/results/runs-memory.json --picture docs/images/runs_memory.png

Pictures like pairs of digits, made when they are asked for, and the paper's network, on the CPU. Of each run the memory
of the process as it goes on, and the most that it ever was.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.datasets.explain_dataset import Progress
from deeptaylor.models.networks.paper_networks import TwoLayer
from runs_speed import memory

SIZES = (5_000, 20_000, 80_000, 320_000)
SEEN = 40  # places of a run at which its memory is looked at


class Pairs:
    """White strokes on black; as many pictures as there are asked for, of which none is held."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.ink = torch.rand(64, 1, 28, 56, generator=torch.Generator().manual_seed(0)) > 0.8

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, k: int) -> Tensor:
        return torch.where(self.ink[k % 64].roll(k // 64, -1), 1.5, -0.5)

    def __getitems__(self, several: list[int]) -> list[Tensor]:
        return [self[k] for k in several]


def one(items: int) -> dict[str, Any]:
    """A run over so many items, in this process."""
    torch.manual_seed(0)
    data, seen = Pairs(items), list[tuple[int, float]]()
    explainer = dt.Explainer(TwoLayer().eval(), data[0][None], dt.Box(-0.5, 1.5))

    def progress(p: Progress) -> None:
        if not seen or p.done - seen[-1][0] >= items / SEEN or p.done == p.of:
            seen.append((p.done, memory()))

    with tempfile.TemporaryDirectory() as folder:
        dt.explain_dataset(data, explainer, Path(folder) / "store", batch=64, progress=progress)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"items": items, "peak_mb": peak, "seen": seen}


def apart(items: int) -> dict[str, Any]:
    """The same in a process of its own."""
    told = subprocess.run([sys.executable, __file__, "--one", str(items)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def draw(path: Path, runs: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2))
    for run in runs:
        done, held = zip(*run["seen"], strict=True)
        axes.plot([d / run["items"] for d in done], held, label=f"{run['items']:,} items")
    axes.set(xlabel="part of the run that is done", ylabel="memory of the process (MB)", ylim=(0, None), xlim=(0, 1))
    axes.set_title("Memory of runs over data sets of several sizes")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=int, help="run over so many items, in this process")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one)))
        return
    runs = [apart(items) for items in asked.sizes]
    for run in runs:
        print(f"{run['items']} items: at most {run['peak_mb']:.0f} MB")
    if asked.json:
        asked.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    if asked.picture:
        draw(asked.picture, runs)


if __name__ == "__main__":
    main()
