"""One table: how far explanations of trained networks are from float64, and how far they may be.

    python benchmarks/precision.py --prepare FOLDER      # where the weights are: writes five networks, some 20 MB
    python benchmarks/precision.py FOLDER                # where they need not be: on a GPU, or else on the processor
    python benchmarks/precision.py FOLDER --device cpu --json benchmarks/results/precision-cpu.json

`off` is the sum of differences to the same network in float64 as a share of the sum of relevances, `bound` what it may
be; `reverse` is what the reverse pass alone did to the values it was given, `counted` what that may be (docs/theory.md,
section 7). κ is the network's condition. Weights are what float16 holds of the trained ones, in float64 too.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models import networks
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS as DIGITS
from deeptaylor.paper.digit_pairs import BLACK, WHITE
from speed import machine, write

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "helpers")]
import rounding  # noqa: E402

FILE = "networks.pt"
PHOTOS = {
    "squeezenet1_1": networks.squeezenet1_1,
    "efficientnet-lite0": networks.efficientnet_lite0,
    "mobilenet_v2": networks.mobilenet_v2,
}
TYPES = ("float32", "tf32", "float16", "bfloat16")


@dataclass
class Row:
    """One network, way with biases, type and way to run."""

    network: str
    bias: str
    dtype: str
    how: str
    kappa: float
    off: float | None = None
    bound: float | None = None
    reverse: float | None = None
    counted: float | None = None
    problem: str = ""

    @property
    def verdict(self) -> str:
        if self.problem or self.off is None or self.bound is None:
            return self.problem
        fine = self.off <= self.bound and (self.reverse or 0) <= (self.counted or 0)
        return "within" if fine else "NOT WITHIN"

    def __str__(self) -> str:
        numbers = (f"{'':9}" if v is None else f"{v:9.1e}" for v in (self.off, self.bound, self.reverse, self.counted))
        start = f"{self.network:<19}{self.bias:<8}{self.dtype:<10}{self.how:<10}{self.kappa:7.1f}"
        return f"{start}{''.join(numbers)}  {self.verdict}"


# --- five trained networks --------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Write the networks with their domains, and what they are to explain."""
    found: dict[str, Any] = {}
    for name in PHOTOS:
        known = dt.load(name)
        low, high = (torch.as_tensor(b).reshape(-1, 1, 1) for b in (known.domain.low, known.domain.high))
        found[name] = {"weights": known.network.state_dict(), "low": low, "high": high, "x": pictures(known)}
    for name in DIGITS:
        weights = dt.models.networks.paper_networks.load_network(name).state_dict()
        low, high = torch.tensor(BLACK), torch.tensor(WHITE)
        found[name] = {"weights": weights, "low": low, "high": high, "x": low + blobs((1, 28, 56)) * (high - low)}
    for one in found.values():
        one["weights"] = {k: v.half() if v.is_floating_point() else v for k, v in one["weights"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(found, folder / FILE)
    print(f"{folder / FILE}: {(folder / FILE).stat().st_size / 1e6:.0f} MB")


def pictures(known: dt.Pretrained) -> Tensor:
    """A photograph, and a picture of soft blobs, as the network takes them."""
    from PIL import Image
    from skimage import data

    cat = known.preprocess(Image.fromarray(data.chelsea()))[0]
    low, high = (torch.as_tensor(b).reshape(-1, 1, 1) for b in (known.domain.low, known.domain.high))
    return torch.cat([cat, low + blobs(known.preparation.shape)[:1] * (high - low)])  # type: ignore[union-attr]


def blobs(shape: tuple[int, ...]) -> Tensor:
    noise = torch.rand(2, shape[0], 8, 8, generator=torch.Generator().manual_seed(0))
    return F.interpolate(noise, shape[1:], mode="bicubic").clamp(0, 1)


def network(name: str, weights: dict[str, Tensor]) -> nn.Module:
    made = (PHOTOS | DIGITS)[name]()
    made.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
    return made.eval().double()


# --- measuring --------------------------------------------------------------------------------------------------------


def rows(name: str, one: dict[str, Any], device: str, types: list[str], compiled: set[str]) -> Iterator[Row]:
    """Every bias, type and way to run of one network."""
    model, x = network(name, one["weights"]).to(device), one["x"].double().to(device)
    domain = dt.Box(one["low"].to(device), one["high"].to(device))
    with torch.no_grad():
        output = model(x)
    target = None if output.ndim == 1 else output.argmax(1)
    for bias in ("neuron", "spread"):
        exact = dt.Explainer(model, x, domain, bias=bias)
        engine, truth = exact.captured.engine, exact(x, target)[1]
        kappas = {wide: rounding.condition(engine, (x,), target, wide) for wide in (False, True)}
        for kind in types:
            dtype, u = getattr(torch, "float32" if kind == "tf32" else kind), rounding.TF32 if kind == "tf32" else None
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
            kappa = kappas[kind == "float32"]
            limit = rounding.bound(engine, dtype, kappa, u)
            explainer = copy.deepcopy(exact).to(dtype=dtype)
            row = Row(name, bias, kind, "eager", kappa, bound=limit, counted=rounding.counted(engine, dtype, u))
            try:
                row.off = rounding.off([explainer(x.to(dtype), target)[1]], [truth])
                found, again = rounding.compared(explainer.captured.engine, (x.to(dtype),), target)
                row.reverse = rounding.off(found.relevance, again.relevance)
            except dt.InputError as error:
                row.problem = f"refused: {str(error).split('.')[0]}"
            yield row
            if kind in compiled and bias == "neuron":
                row = Row(name, bias, kind, "compiled", kappa, bound=limit)
                row.off = rounding.off([explainer.compile(graphs=False)(x.to(dtype), target)[1]], [truth])
                yield row


def main(arguments: list[str] | None = None) -> int:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="How far explanations in types of few digits are from float64.")
    add = parser.add_argument
    add("folder", type=Path, help=f"holds {FILE}")
    add("--prepare", action="store_true", help="write that file instead")
    add("--device", default="cuda" if cuda else "cpu")
    add("--networks", default=",".join(PHOTOS | DIGITS))
    add("--types", help=f"some of {','.join(TYPES)}")
    add("--compiled", default="bfloat16" if cuda else "", help="the types that are also compiled, with bias neurons")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.prepare:
        prepare(options.folder)
        return 0
    warnings.filterwarnings("ignore")
    types = options.types.split(",") if options.types else [t for t in TYPES if options.device == "cuda" or t != "tf32"]
    found: list[Row] = []
    print(f"{'network':<19}{'bias':<8}{'type':<10}{'':<10}{'κ':>7}", *(f"{h:>8}" for h in ("off", "bound", "reverse")),
          f"{'counted':>8}")  # fmt: skip
    trained = torch.load(options.folder / FILE, weights_only=True)
    for name in options.networks.split(","):
        for row in rows(name, trained[name], options.device, types, set(options.compiled.split(","))):
            print(row, flush=True)
            found.append(row)
    rows_ = [asdict(row) | {"verdict": row.verdict} for row in found]
    write({"machine": machine(options.device), "precision": rows_}, options.json)
    return int(any(row.verdict == "NOT WITHIN" for row in found))


if __name__ == "__main__":
    sys.exit(main())
