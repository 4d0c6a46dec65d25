"""How fast a run is beside the bare explainer, and what memory it takes as it goes on.

    python benchmarks/runs_speed.py --items 20000 --picture memory.png

Pairs of digits and the paper's network, on the CPU. The bare explainer takes every k-th stretch of the same pictures in
the same process, between two stretches of the run, so that whatever else the machine does slows both. Two clocks: that
on the wall, and the processor time of the thread that explains, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.models.networks.detection_pooling import TwoLayer
from deeptaylor.runs.progress import Progress


class Pairs:
    """Pictures like pairs of digits: white strokes on black, from −0.5 to 1.5."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.ink = torch.rand(items, 1, 28, 56, generator=torch.Generator().manual_seed(0)) > 0.8

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, k: int) -> Tensor:
        return torch.where(self.ink[k], 1.5, -0.5)

    def __getitems__(self, several: list[int]) -> list[Tensor]:
        return list(torch.where(self.ink[several], 1.5, -0.5))


def memory() -> float:
    """Of this process, in MB."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--every", type=int, default=2048, help="items between two stretches of the bare explainer")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    data, network = Pairs(asked.items), TwoLayer().eval()
    explainer = dt.Explainer(network, data[0][None], dt.Box(-0.5, 1.5))
    ready = torch.stack([data[k] for k in range(512)])
    bare, runs, seen = list[float](), list[float](), list[tuple[int, float]]()

    bare_busy, runs_busy = list[float](), list[float]()

    def bare_stretch() -> None:
        began, busy = time.perf_counter(), time.thread_time()
        for part in ready.split(asked.batch):
            explainer.explain(part)
        bare.append(len(ready) / (time.perf_counter() - began))
        bare_busy.append(len(ready) / (time.thread_time() - busy))

    last = [0, time.perf_counter(), time.thread_time()]

    def progress(p: Progress) -> None:
        if p.done - last[0] >= asked.every or p.done == p.of:
            runs.append((p.done - last[0]) / (time.perf_counter() - last[1]))
            runs_busy.append((p.done - last[0]) / (time.thread_time() - last[2]))
            seen.append((p.done, memory()))
            bare_stretch()
            last[:] = [p.done, time.perf_counter(), time.thread_time()]

    bare_stretch()
    bare.clear()
    bare_busy.clear()
    with tempfile.TemporaryDirectory() as folder:
        last[1:] = [time.perf_counter(), time.thread_time()]
        dt.run(data, explainer, Path(folder) / "store", batch=asked.batch, progress=progress)
    runs, bare = runs[1:], bare[1:]  # the first stretch also warms up
    ratio = sorted(r / b for r, b in zip(runs, bare, strict=True))
    busy = sorted(r / b for r, b in zip(runs_busy[1:], bare_busy[1:], strict=True))
    found = {
        "items": asked.items, "batch": asked.batch,
        "run_per_second": sorted(runs)[len(runs) // 2], "bare_per_second": sorted(bare)[len(bare) // 2],
        "ratio_median": ratio[len(ratio) // 2], "ratio_least": ratio[0],
        "processor_ratio_median": busy[len(busy) // 2], "processor_ratio_least": busy[0],
        "memory_mb": [m for _, m in seen],
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    if asked.picture:
        draw(asked.picture, seen)


def draw(path: Path, seen: list[tuple[int, float]]) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3))
    axes.plot(*zip(*seen, strict=True), marker=".")
    axes.set(xlabel="items explained", ylabel="memory of the process (MB)", ylim=(0, None))
    axes.set_title("Memory over a run")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
