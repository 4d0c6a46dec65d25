"""How the cost of an explanation grows with the batch, the picture, the depth of the network and the targets.

    python benchmarks/growth.py --json benchmarks/results/growth-cpu.json     # about four minutes on one CPU thread

A plain network in the manner of VGG, four stages of equal cost; one quantity grows while the others stay. Explanation
(eager) and gradient take turns, and so do the sizes: a slow spell of the machine hits all of them. Times are medians in
milliseconds. The line `start + each * n` has the least squares of relative deviations; `off` is the largest of them.
For K targets the gradient goes forward once and back K times.

Where the C library takes it, a CPU is measured in two processes that take turns too: one as it comes, where large
pieces of memory are given back to the system after each call, one with all memory kept. `faults` are the pages that the
system had to hand out in a call.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import deeptaylor as dt
from speed import DOMAIN, Method, clock, gradient, machine, write
from zoo import images

STAGES = (1, 2, 4, 4)  # channels of each, as multiples of the width; pictures are halved between them
METHODS = ("gradient", "eager")
READY: list[dict[str, Method]] = []  # in the processes that measure


@dataclass(frozen=True)
class Case:
    """What one call computes."""

    batch: int
    size: int  # of the picture: size × size pixels
    layers: int  # convolutions
    targets: int
    width: int


CPU = Case(batch=2, size=96, layers=8, targets=1, width=16)
CUDA = Case(batch=32, size=224, layers=12, targets=1, width=64)
GROWN: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {
        "batch": (1, 2, 4, 8, 16),
        "size": (64, 96, 128, 160, 192),
        "layers": (4, 8, 12, 16, 24),
        "targets": (1, 2, 4, 8, 16),
    },
    "cuda": {
        "batch": (8, 16, 32, 64, 128),
        "size": (96, 128, 160, 192, 224, 288),
        "layers": (4, 8, 12, 16, 24),
        "targets": (1, 2, 4, 8),
    },
}


@dataclass(frozen=True)
class Line:
    """A straight line through the times: start + each * n; `off` is its largest relative deviation."""

    start: float
    each: float
    off: float

    @classmethod
    def through(cls, n: list[int], ms: list[float]) -> Line:
        each, start = (float(c) for c in np.polyfit(n, ms, 1, w=1 / np.array(ms)))
        return cls(start, each, max(abs(start + each * k - t) / t for k, t in zip(n, ms, strict=True)))


def network(case: Case) -> nn.Module:
    """Convolutions with ReLU, max pooling after each stage, the mean of what is left, a linear layer."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    channels = 3
    for stage in STAGES:
        for _ in range(case.layers // len(STAGES)):
            parts += [nn.Conv2d(channels, stage * case.width, 3, padding=1), nn.ReLU()]
            channels = stage * case.width
        parts.append(nn.MaxPool2d(2))
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100))
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.normal_(layer.bias, 0.0, 0.1)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False)


def gradients(model: nn.Module, x: Tensor, target: Tensor) -> Method:
    """The gradient of each target's score: forward once, back for each."""

    def run() -> Tensor:
        leaf = x.detach().requires_grad_()
        scores = model(leaf).gather(1, target).sum(0)
        return torch.stack([torch.autograd.grad(score, leaf, retain_graph=True)[0] for score in scores])

    return run


def methods(case: Case, device: str) -> dict[str, Method]:
    """Gradient and explanation of the same network, pictures and targets, both run once."""
    torch.manual_seed(1)
    layout = torch.channels_last if device == "cuda" else torch.contiguous_format
    x = images(case.batch, case.size).to(device, memory_format=layout)
    model = network(case).to(device, memory_format=layout)  # type: ignore[call-overload]
    with torch.no_grad():
        target = model(x).topk(case.targets, 1).indices
    plain = gradient(model, x, target, None) if case.targets == 1 else gradients(model, x, target)
    explainer = dt.Explainer(model, x, DOMAIN)
    asked = target[:, 0] if case.targets == 1 else target
    ready = {"gradient": plain, "eager": lambda: explainer(x, asked)[1]}
    for run in ready.values():
        clock(run, 3 if device == "cuda" else 1, device == "cuda")
    return ready


def mallopt() -> Any:
    """The settings of the GNU C library's memory, or None."""
    try:
        return ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return None


def faults() -> int:
    """How many pages of memory the system has handed to this process so far."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def prepare(cases: Sequence[Case], device: str, threads: int, kept: bool) -> None:
    """In a process of its own: all cases ready to be timed, where asked with all memory kept."""
    torch.set_num_threads(threads)
    if kept:
        mmap_max, trim_threshold = -4, -1  # of malloc.h
        mallopt()(mmap_max, 0)
        mallopt()(trim_threshold, -1)
    READY.extend(methods(case, device) for case in cases)


def timed(k: int, kind: str, cuda: bool) -> tuple[float, int]:
    """Milliseconds and new pages of one call in that process."""
    before = faults()
    (ms,) = clock(READY[k][kind], 1, cuda)
    return ms, faults() - before


def grow(what: str, base: Case, device: str, repeats: int, threads: int) -> list[dict[str, Any]]:
    """One quantity, as it comes and where possible with memory kept; every round has every case once."""
    values = GROWN[device][what]
    cases = [replace(base, **{what: value}) for value in values]
    both = (False, True) if device == "cpu" and mallopt() else (False,)
    taken: list[dict[str, list[list[tuple[float, int]]]]] = [{m: [[] for _ in cases] for m in METHODS} for _ in both]
    with ExitStack() as stack:
        spawn = get_context("spawn")
        pools = [
            stack.enter_context(
                ProcessPoolExecutor(1, mp_context=spawn, initializer=prepare, initargs=(cases, device, threads, kept))
            )
            for kept in both
        ]
        for _ in range(repeats):
            for k, kind, (pool, times) in product(range(len(cases)), METHODS, zip(pools, taken, strict=True)):
                times[kind][k].append(pool.submit(timed, k, kind, device == "cuda").result())
    found = []
    for kept, times in zip(both, taken, strict=True):
        print(f"\n{what} {list(values)}{', memory kept' if kept else ''}")
        found.append(entry(what, values, base, times))
    return found


def entry(
    what: str, values: Sequence[int], base: Case, taken: dict[str, list[list[tuple[float, int]]]]
) -> dict[str, Any]:
    """What goes into the record: medians, and the lines through them."""
    n = [value**2 if what == "size" else value for value in values]
    times = {kind: [[ms for ms, _ in calls] for calls in taken[kind]] for kind in METHODS}
    ms = {kind: [statistics.median(t) for t in times[kind]] for kind in METHODS}
    lines = {kind: Line.through(n, ms[kind]) for kind in METHODS}
    for kind, line in lines.items():
        shown = " ".join(f"{t:9.2f}" for t in ms[kind])
        print(f"  {kind:<10}{shown} ms   {line.start:.2f} + {line.each:.4g} n, off {line.off:.1%}", flush=True)
    return {
        "what": "pixels" if what == "size" else what,
        "base": {k: v for k, v in asdict(base).items() if k != what},
        "n": n,
        "ms": ms,
        "quartiles_ms": {kind: [statistics.quantiles(t, n=4)[::2] for t in times[kind]] for kind in METHODS},
        "faults": {kind: [statistics.median_low(p for _, p in calls) for calls in taken[kind]] for kind in METHODS},
        "lines": {kind: asdict(line) for kind, line in lines.items()},
    }


def main(arguments: list[str] | None = None) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description="How the cost of an explanation grows.")
    parser.add_argument("--grow", default=",".join(GROWN[device]), help="batch, size, layers, targets")
    parser.add_argument("--repeats", type=int, default=20 if device == "cuda" else 31)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    base = CUDA if device == "cuda" else CPU
    grown = [grow(what, base, device, options.repeats, options.threads) for what in options.grow.split(",")]
    record: dict[str, Any] = {"machine": machine(device), "repeats": options.repeats}
    record |= dict(zip(("growth", "growth with memory kept"), zip(*grown, strict=True), strict=False))
    write(record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
