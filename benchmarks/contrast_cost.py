"""What contrast and local evidence cost: `explainer.contrast(x)` beside `explainer.explain(x)`, and `explain` with
local evidence beside `explain` without, on the zoo's families.

    python benchmarks/contrast_cost.py                                     # a few families, on a GPU where there is one
    python benchmarks/contrast_cost.py --families all --json benchmarks/results/contrast-NAME.json

The calls take turns, so that what else happens on the machine meets all of them; a ratio is the median of the ratios of
neighbours. On a CPU processor time is counted. Memory is the highest point above what lay there before the call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import deeptaylor as dt
from books import seconds
from speed import machine, write
from zoo import FAMILIES, MEAN, STD, family

SOME = ("vgg11", "resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "regnet_y_400mf", "vit_b_16")


def peak(run: Callable[[], Any], cuda: bool) -> int:
    """Bytes above what lay there before, at the highest point."""
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    now = highest = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest


def measure(name: str, batch: int, repeats: int, cuda: bool) -> dict[str, Any]:
    """One family: times and memory of the three calls."""
    network = family(name)
    device = "cuda" if cuda else "cpu"
    model = network.model.to(device)
    example = network.x.to(device)
    x = example[torch.arange(batch) % len(example)]
    domain = dt.Box.from_normalisation(MEAN, STD)
    explainer, without = (dt.Explainer(model, example, domain, local=local) for local in (True, False))
    calls: dict[str, Callable[[], Any]] = {
        "explain": lambda: explainer.explain(x),
        "contrast": lambda: explainer.contrast(x),
        "not local": lambda: without.explain(x),
    }
    for run in calls.values():
        seconds(run, cuda)
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(repeats):
        for kind, run in calls.items():
            taken[kind].append(seconds(run, cuda))
    memory = {kind: peak(run, cuda) for kind, run in calls.items()}

    def ratio(over: str, under: str) -> float:
        return statistics.median(a / b for a, b in zip(taken[over], taken[under], strict=True))

    return {
        "family": name,
        "batch": batch,
        "explain_ms": 1000 * statistics.median(taken["explain"]),
        "contrast": ratio("contrast", "explain"),
        "local": ratio("explain", "not local"),
        "contrast_memory": memory["contrast"] / memory["explain"],
        "local_memory": memory["explain"] / memory["not local"],
    }


def main(arguments: list[str] | None = None) -> int:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(SOME), help="names, or all")
    parser.add_argument("--batch", type=int, default=32 if cuda else 2)
    parser.add_argument("--repeats", type=int, default=11 if cuda else 5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    record: dict[str, Any] = {"machine": machine("cuda" if cuda else "cpu"), "families": []}
    print(f"{'family':<20} {'explain':>10} {'contrast':>9} {'memory':>7} {'local':>7} {'memory':>7}", flush=True)
    for name in FAMILIES if options.families == "all" else options.families.split(","):
        found = measure(name, options.batch, options.repeats, cuda)
        print(
            f"{name:<20} {found['explain_ms']:>7.1f} ms {found['contrast']:>7.2f} × {found['contrast_memory']:>5.2f} ×"
            f" {found['local']:>5.2f} × {found['local_memory']:>5.2f} ×",
            flush=True,
        )
        record["families"].append(found)
        write(record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
