"""Explain every family of the torchvision zoo and hold the result to what the library promises.

    python benchmarks/zoo.py                                  # the 22 families, both bias modes
    python benchmarks/zoo.py --families resnet18,vit_b_16 --bias spread
    python benchmarks/zoo.py --hf                             # `transformers` families instead (hf_zoo.py)
    python benchmarks/zoo.py --json zoo.json

Weights are random and seeded, BatchNorm statistics random, batch 2, float32, the top class is explained. Each sample:

    positive     relevance, bias share and dropped share are >= 0, relevance at every element
    accounted    |input + bias + dropped - f| <= 1e-4 f, and dropped <= 1e-6 f
    conservative with bias="spread", on convolutional families: |input - f| <= 1e-4 f
    contrast     both parts are >= 0 at every element, |distinctive + shared + bias + dropped - f| <= 1e-6 f
    score        f is the network's own output
    untouched    the network is bit for bit what it was

`input` is summed here, from the relevance itself. The exit status is 1 if anything failed; a family that fails does not
stop the next one.
"""

import argparse
import gc
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "helpers")]
from untouched import changes, snapshot  # noqa: E402

FAMILIES: dict[str, str] = {  # family -> torchvision's name
    "alexnet": "alexnet",
    "vgg11": "vgg11",
    "vgg16_bn": "vgg16_bn",
    "googlenet": "googlenet",
    "inception_v3": "inception_v3",
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnext50": "resnext50_32x4d",
    "wide_resnet50": "wide_resnet50_2",
    "densenet121": "densenet121",
    "squeezenet1_1": "squeezenet1_1",
    "mobilenet_v2": "mobilenet_v2",
    "mobilenet_v3_small": "mobilenet_v3_small",
    "shufflenet_v2_x0_5": "shufflenet_v2_x0_5",
    "mnasnet0_5": "mnasnet0_5",
    "efficientnet_b0": "efficientnet_b0",
    "efficientnet_v2_s": "efficientnet_v2_s",
    "regnet_y_400mf": "regnet_y_400mf",
    "convnext_tiny": "convnext_tiny",
    "vit_b_16": "vit_b_16",
    "swin_t": "swin_t",
    "maxvit_t": "maxvit_t",
}
# Here constants enter the graph by themselves (class token, position embedding), or attention mixes.
ATTENTION = frozenset({"vit_b_16", "swin_t", "maxvit_t"})

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ACCOUNTED, DROPPED, CONSERVATIVE, SCORE, CONTRAST = 1e-4, 1e-6, 1e-4, 1e-4, 1e-6


@dataclass(frozen=True)
class Network:
    """A network in eval mode with an input it can be explained on."""

    name: str
    model: nn.Module
    x: Tensor
    convolutional: bool  # no constant enters by itself: under bias="spread" the input gets the whole score
    remark: str = ""

    @property
    def tokens(self) -> bool:
        """Whether the input is integers, looked up in an embedding."""
        return not self.x.is_floating_point()


@dataclass
class Result:
    """What was measured on one network in one bias mode: the worst of the batch, gaps and shares relative to f."""

    family: str
    bias: str
    f: float = math.nan
    lowest: float = math.nan
    gap: float = math.nan
    dropped: float = math.nan
    input: float = math.nan
    input_gap: float = math.nan
    contrast_gap: float = math.nan
    capture_s: float = math.nan
    explain_s: float = math.nan
    remark: str = ""
    problems: list[str] = field(default_factory=list)

    HEADER = (
        f"{'family':<20} {'bias':<7}{'f':>10} {'min R':>9} {'gap/f':>9} {'drop/f':>9} {'input/f':>9} {'|in-f|/f':>9}"
        f" {'contrast':>9} {'capture':>8} {'explain':>8}"
    )

    def __str__(self) -> str:
        line = (
            f"{self.family:<20} {self.bias:<7}{self.f:>10.3g} {self.lowest:>9.1e} {self.gap:>9.1e} {self.dropped:>9.1e}"
            f" {self.input:>9.5f} {self.input_gap:>9.1e} {self.contrast_gap:>9.1e}"
            f" {self.capture_s:>7.1f}s {self.explain_s:>7.2f}s  {'FAIL' if self.problems else 'ok'}"
        )
        notes = ([self.remark] if self.remark else []) + [_brief(problem) for problem in self.problems]
        return "\n".join([line, *(f"    {note}" for note in notes)])


def _brief(text: str, lines: int = 3, width: int = 240) -> str:
    """The beginning of a long message; the JSON file has all of it."""
    return "\n      ".join(line.strip()[:width] for line in text.splitlines()[:lines])


# ---------------------------------------------------------------------------------------------- networks


def family(name: str, seed: int = 0) -> Network:
    """The family's network with random weights and statistics, and two images for it."""
    from torchvision_shim import models

    arguments: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = 299 if name == "inception_v3" else 224

    def build() -> nn.Module:
        network: nn.Module = getattr(models, FAMILIES[name])(weights=None, **arguments)
        return network

    return seeded(name, build, lambda: images(2, size), convolutional=name not in ATTENTION, seed=seed)


def seeded(
    name: str, build: Callable[[], nn.Module], example: Callable[[], Tensor], *, convolutional: bool, seed: int
) -> Network:
    """Build with the seed; where a top score is not positive (no object, no relevance), by one that gives one."""
    remark = ""
    for attempt in range(5):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1000 * attempt)
            model = randomise(build()).eval()
            x = example()
        with torch.no_grad():
            top = model(x).amax(1)
        if torch.isfinite(top).all() and (top > 0).all():
            remark = f"seed {seed + 1000 * attempt}: earlier ones have no positive score" if attempt else ""
            break
        remark = f"top scores {top.tolist()}: no seed tried has positive ones"
    return Network(name, model, x, convolutional, remark)


def randomise(model: nn.Module) -> nn.Module:
    """Random values for BatchNorm and for every parameter left constant by initialisation (biases, scales, tokens)."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, 0.0, 0.5)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.normal_(module.weight, 1.0, 0.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.min() < parameter.max():
                continue
            if parameter.squeeze().dim() >= 2 and "weight" in name:
                nn.init.normal_(parameter, 0.0, parameter[0].numel() ** -0.5)
            elif "bias" in name or "token" in name or "position" in name:
                nn.init.normal_(parameter, 0.0, 0.1)
            else:  # scales: of norms, of layers
                nn.init.normal_(parameter, 1.0, 0.3)
    return model


def images(batch: int, size: int) -> Tensor:
    """Smooth random pictures with a little noise, some pixels black or white, normalised the ImageNet way."""
    coarse = nn.functional.interpolate(torch.randn(batch, 3, 7, 7), (size, size), mode="bicubic", align_corners=False)
    pixels = (0.5 + 0.3 * coarse + 0.05 * torch.randn(batch, 3, size, size)).clamp(0, 1)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (pixels - mean) / std


# ---------------------------------------------------------------------------------------------- checks


def check(network: Network, bias: str) -> Result:
    """Explain the network's input and measure; problems are collected, never raised."""
    result = Result(network.name, bias, remark=network.remark)
    before = snapshot(network.model)
    try:
        _measure(network, bias, result)
    except Exception as error:  # noqa: BLE001  a failing family must not hide the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).strip() or "(no message)"
        result.problems.append(f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {text}")
    if touched := changes(network.model, before):
        more = f" (and {len(touched) - 3} more places)" if len(touched) > 3 else ""
        result.problems.append("touched: " + "; ".join(touched[:3]) + more)
    return result


def _measure(network: Network, bias: str, result: Result) -> None:
    import deeptaylor as dt

    x = network.x
    with torch.no_grad():
        output = network.model(x)
    f = output.amax(1).double()

    start = time.perf_counter()
    domain = dt.Real() if network.tokens else dt.Box.from_normalisation(MEAN, STD)
    explainer = dt.Explainer(network.model, x, domain=domain, bias=bias)
    result.capture_s = time.perf_counter() - start
    start = time.perf_counter()
    e = explainer.explain(x)
    result.explain_s = time.perf_counter() - start

    parts = {"bias": e.ledger.bias.double(), "dropped": e.ledger.dropped.double()}
    parts["input"] = e.relevance.double().flatten(1).sum(1)
    off = {
        "f": (e.score.double() - f).abs() / output.abs().amax(1),
        "accounted": (sum(parts.values()) - f).abs() / f,
        "dropped": parts["dropped"] / f,
        "conservative": (parts["input"] - f).abs() / f,
        "ledger.input": (e.ledger.input.double() - parts["input"]).abs() / f,
    }
    result.f, result.lowest = f.min().item(), e.relevance.min().item()
    result.gap, result.dropped = off["accounted"].max().item(), off["dropped"].max().item()
    result.input, result.input_gap = (parts["input"] / f).min().item(), off["conservative"].max().item()

    def demand(holds: bool | Tensor, problem: str) -> None:
        if not bool(holds):
            result.problems.append(problem)

    demand(e.relevance.shape == x.shape, f"relevance is shaped {tuple(e.relevance.shape)}, the input {tuple(x.shape)}")
    demand(torch.isfinite(e.relevance).all(), "relevance is not finite")
    demand((e.relevance >= 0).all(), f"negative relevance, down to {result.lowest:.3g}")
    demand((f > 0).all(), f"the score is not positive: {f.tolist()}")
    demand((off["f"] <= SCORE).all(), f"score {e.score.tolist()}, the network says {f.tolist()}")
    for part, value in parts.items():
        demand((value >= 0).all(), f"negative {part}: {value.tolist()}")
    demand((off["accounted"] <= ACCOUNTED).all(), f"not accounted: off by {result.gap:.3g} f")
    wrong = off["ledger.input"].max().item()
    demand(wrong <= ACCOUNTED, f"ledger.input is not the sum of the relevance: off by {wrong:.3g} f")
    demand((off["dropped"] <= DROPPED).all(), f"dropped {result.dropped:.3g} f")
    if bias == "spread" and network.convolutional:
        demand((off["conservative"] <= CONSERVATIVE).all(), f"input sums to {result.input:.6f} f under spread")
    if output.ndim == 2 and output.shape[1] > 1:
        result.contrast_gap, lowest = contrast(explainer.contrast(x))
        demand(lowest >= 0, f"negative relevance in a contrast, down to {lowest:.3g}")
        demand(result.contrast_gap <= CONTRAST, f"a contrast is not accounted: off by {result.contrast_gap:.3g} f")


def contrast(c: Any) -> tuple[float, float]:
    """Of a contrast how far its parts are from adding up to f, as a share of f, and its smallest number."""
    parts = [part.double().flatten(1).sum(1) for part in (c.relevance, c.shared)]
    total = sum(parts) + c.ledger.bias.double() + c.ledger.dropped.double()
    gap = float(((total - c.score.double()).abs() / c.score.double()).max())
    return gap, min(float(c.relevance.min()), float(c.shared.min()))


Builder = Callable[[str, int], Network]


def run(families: Iterable[str], build: Builder, biases: Iterable[str], seed: int) -> list[Result]:
    """Check one family after the other, printing as it goes."""
    print(Result.HEADER, flush=True)
    results: list[Result] = []
    for name in families:
        try:
            network = build(name, seed)
        except Exception as error:  # noqa: BLE001
            results.append(Result(name, "-", problems=[f"cannot be built: {type(error).__name__}: {error}"]))
            print(results[-1], flush=True)
            continue
        for bias in biases:
            results.append(check(network, bias))
            print(results[-1], flush=True)
            gc.collect()
        del network
        gc.collect()
    failed = [result for result in results if result.problems]
    print(f"\n{len(results) - len(failed)} of {len(results)} runs hold", end="")
    print(": " + ", ".join(f"{r.family} ({r.bias})" for r in failed) + " failed" if failed else "")
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Explain every family of a model zoo and check the result.")
    parser.add_argument("--families", help="comma-separated; all of them if left out")
    parser.add_argument("--bias", choices=("neuron", "spread", "both"), default="both")
    parser.add_argument("--hf", action="store_true", help="families of `transformers`, small random configurations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args(arguments)

    known: Iterable[str] = FAMILIES
    build = family
    if options.hf:
        import hf_zoo

        known, build = hf_zoo.FAMILIES, hf_zoo.family
    families = options.families.split(",") if options.families else list(known)
    if unknown := [name for name in families if name not in known]:
        parser.error(f"unknown families {', '.join(unknown)}; there are {', '.join(known)}")
    biases = ("neuron", "spread") if options.bias == "both" else (options.bias,)

    warnings.filterwarnings("ignore", category=FutureWarning, module="torchvision|transformers")
    results = run(families, build, biases, options.seed)
    if options.json:
        record = {"torch": torch.__version__, "seed": options.seed, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
