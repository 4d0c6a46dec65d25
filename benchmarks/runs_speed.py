"""How fast a run is beside the bare explainer, and what memory it takes as it goes on.

    python benchmarks/runs_speed.py --items 20000 --json benchmarks/results/runs-cpu.json --picture memory.png

Pairs of digits and the paper's network, on the CPU. The bare explainer takes a stretch of the same pictures, which are
ready in memory, after every stretch of the run, in the same process, so that whatever else the machine does slows both;
what the run's threads still do is waited for before. Three clocks: that on the wall, the processor time of the thread
that explains, and that of all threads, which is what counts where every core is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.datasets.explain_dataset import Progress
from deeptaylor.models.networks.paper_networks import TwoLayer

SETTLE = 0.3  # seconds in which the run's threads end what they do


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


CLOCKS = {"wall": time.perf_counter, "explaining thread": time.thread_time, "all threads": time.process_time}


class Clocks:
    """Items per second of every stretch, by each clock."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {name: [] for name in CLOCKS}
        self.start()

    def start(self) -> None:
        self._begun = {name: clock() for name, clock in CLOCKS.items()}

    def stop(self, items: int) -> None:
        for name, clock in CLOCKS.items():
            self.rates[name].append(items / (clock() - self._begun[name]))


def measured(items: int, batch: int, every: int) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Both throughputs by each clock, and the memory as the run goes on."""
    torch.manual_seed(0)
    data, network = Pairs(items), TwoLayer().eval()
    explainer = dt.Explainer(network, data[0][None], dt.Box(-0.5, 1.5))
    ready = torch.stack([data[k] for k in range(min(every, items))])
    bare, ran, seen, last = Clocks(), Clocks(), list[tuple[int, float]](), [0]

    def bare_stretch() -> None:
        time.sleep(SETTLE)
        bare.start()
        for part in ready.split(batch):
            explainer.explain(part)
        bare.stop(len(ready))

    def progress(p: Progress) -> None:
        if p.done - last[0] >= every or p.done == p.of:
            ran.stop(p.done - last[0])
            seen.append((p.done, memory()))
            bare_stretch()
            last[0] = p.done
            ran.start()

    bare_stretch()
    bare = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        ran.start()
        dt.explain_dataset(data, explainer, Path(folder) / "store", batch=batch, progress=progress)
    found: dict[str, Any] = {"items": items, "batch": batch}
    found |= {"torch_threads": torch.get_num_threads(), "cores": os.cpu_count()}
    for name in CLOCKS:
        runs, alone = ran.rates[name][1:], bare.rates[name][1:]  # the first stretch also warms up
        ratios = [r / b for r, b in zip(runs, alone, strict=True)]
        found[name] = {
            "run_per_second": statistics.median(runs),
            "bare_per_second": statistics.median(alone),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    return found, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--every", type=int, default=2048, help="items of a stretch")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found, seen = measured(asked.items, asked.batch, asked.every)
    found["memory_mb"] = [m for _, m in seen]
    text = json.dumps(found, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
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
