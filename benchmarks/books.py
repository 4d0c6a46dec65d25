"""What the books cost: `explainer.explain(x)`, with its ledger, its checks and its look at every weight, beside the
plain call `explainer(x)`.

    python benchmarks/books.py                                        # VGG-16 and ResNet-50
    python benchmarks/books.py --networks vgg16 --ways eager --json benchmarks/results/books-NAME.json

On a CUDA machine batches of 64 in bfloat16, eager and compiled; elsewhere batches of 4 in float32, eager. The two calls
take turns, so that what else happens on the machine meets both. Times are medians in milliseconds, waited for; on a CPU
of processor time, which other work on the machine does not count into.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from speed import explainer_of, machine, write
from zoo import images

LIMIT = 1.2  # the ratio that is promised


def seconds(run: Callable[[], Any], cuda: bool) -> float:
    """One call, with all that it asked of the GPU."""
    clock = time.perf_counter if cuda else time.process_time
    start = clock()
    run()
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


def measure(network: str, batch: int, way: str, repeats: int, cuda: bool) -> dict[str, Any]:
    """Both calls of one network, in turns."""
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    x = images(batch, 224).to(device, dtype)
    target = torch.arange(batch, device=device)
    explainer = explainer_of(network, x)
    if way == "compiled":
        explainer.compile()
    calls: dict[str, Callable[[], Any]] = {
        "plain": lambda: explainer(x, target),
        "explain": lambda: explainer.explain(x, target),
    }
    for run in calls.values():
        for _ in range(3 if cuda else 1):
            seconds(run, cuda)
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(repeats):
        for kind, run in calls.items():
            taken[kind].append(1000 * seconds(run, cuda))
    plain, explain = (statistics.median(taken[kind]) for kind in calls)
    look = statistics.median(1000 * seconds(explainer.captured.check_unchanged, cuda) for _ in range(repeats))
    accounted = bool(explainer.explain(x, target).check().accounted)
    found = {"network": network, "batch": batch, "dtype": str(dtype).removeprefix("torch."), "way": way}
    return found | {"plain_ms": plain, "explain_ms": explain, "look_ms": look, "accounted": accounted}


def main(arguments: list[str] | None = None) -> int:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="What ledger, checks and the look at the weights cost.")
    add = parser.add_argument
    add("--networks", default="vgg16,resnet50")
    add("--batch", type=int, default=64 if cuda else 4)
    add("--ways", default="eager,compiled" if cuda else "eager")
    add("--repeats", type=int, default=20 if cuda else 5)
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    record: dict[str, Any] = {"machine": machine("cuda" if cuda else "cpu"), "books": []}
    for network in options.networks.split(","):
        for way in options.ways.split(","):
            found = measure(network, options.batch, way, options.repeats, cuda)
            ratio = found["explain_ms"] / found["plain_ms"]
            said = "" if ratio <= LIMIT else f"  more than {LIMIT}"
            print(
                f"{network:<10}{way:<10}plain {found['plain_ms']:9.2f} ms   explain {found['explain_ms']:9.2f} ms   "
                f"ratio {ratio:.3f}   the look alone {found['look_ms']:.2f} ms{said}",
                flush=True,
            )
            record["books"].append(found)
            write(record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
