"""Are maps bit for bit those of another state of the code? Saved by one, compared with the other, on one processor.

PYTHONPATH=OTHER/src python benchmarks/same.py --save before.npz       # the 22 families and 100 random networks
python benchmarks/same.py --save after.npz
python benchmarks/same.py --compare before.npz after.npz

--side makes the pictures of convolutional families smaller, which takes less time; attention needs its own size.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import deeptaylor as dt
from zoo import ATTENTION, FAMILIES, MEAN, STD, family

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "helpers")]
from random_networks import build, package_domain  # noqa: E402
from small_texts import classifier, llama  # noqa: E402

BIASES = ("neuron", "returned", "spread")
TEXT = "the film was not bad at all"


def maps(families: list[str], networks: int, side: int | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the relevance of every network by name: three bias modes, contrast, `between` and `auto`."""
    for name in families:
        network = family(name)
        x = network.x if side is None or name in ATTENTION else network.x[..., :side, :side].contiguous()
        yield from maps_of(name, network.model, x, dt.Box.from_normalisation(MEAN, STD))
    for seed in range(networks):
        random = build(seed)
        yield from maps_of(f"random {seed}", random.model, random.example, package_domain(random.domain))
    for name, text_model in (("text classifier", classifier()), ("language model", llama())):
        yield name, text_model.explain(TEXT).relevance[0]


def maps_of(name: str, model: nn.Module, x: torch.Tensor, domain: dt.Domain) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the maps of one network; a method that does not support it is left out."""
    for bias in BIASES:
        explainer = dt.Explainer(model, x, domain, bias=bias)
        yield f"{name} {bias}", explainer.explain(x).relevance
    with contextlib.suppress(dt.DeepTaylorError):
        yield f"{name} contrast", explainer.contrast(x).relevance
    with contextlib.suppress(dt.DeepTaylorError):
        yield f"{name} between", explainer.between(x, "zeros").relevance
    with contextlib.suppress(dt.DeepTaylorError):
        yield f"{name} auto", dt.Explainer(model, x, domain).explain(x).relevance


def compare(before: Path, after: Path) -> int:
    """Print what differs, and by how much of all relevance; the exit code."""
    a, b = np.load(before), np.load(after)
    only = sorted(set(a.files) ^ set(b.files))
    different = [name for name in a.files if name in b.files and a[name].tobytes() != b[name].tobytes()]
    for name in different:
        gap = np.abs(a[name].astype(float) - b[name]).sum() / np.abs(a[name]).sum()
        print(f"{name}: off by {gap:.2g}")
    print(f"{len(a.files)} maps, {len(different)} differ, {len(only)} in one file only")
    return 1 if different or only else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Are maps bit for bit those of another state of the code?")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--side", type=int, help="pixels of a picture's side in convolutional families")
    options = parser.parse_args(arguments)
    if options.compare:
        return compare(*options.compare)
    if options.save is None:
        parser.error("say --save FILE or --compare FILE FILE")
    warnings.filterwarnings("ignore")
    start, found = time.monotonic(), {}
    for name, relevance in maps([f for f in options.families.split(",") if f], options.networks, options.side):
        found[name] = relevance.numpy()
        print(f"{time.monotonic() - start:6.0f} s  {name}", flush=True)
    np.savez(options.save, **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
