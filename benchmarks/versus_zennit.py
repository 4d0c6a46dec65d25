"""Time deep Taylor decomposition of a VGG-16 on the CPU: deeptaylor against zennit, same rules, same run.

    python benchmarks/versus_zennit.py [--batch 4] [--repeats 7] [--json FILE]

Both use z^B in the first convolution, z+ in every other convolution and linear layer, winner-take-all in max pooling,
and both keep positive biases in the denominators of z+. Two choices make the rules the same everywhere: the biases of
the first convolution are negative, because zennit's z^B has no bias neuron (it cancels), and the input is 224 x 224,
where VGG's average pooling is the identity. Weights are random, scaled so that activations keep their size.

The methods take turns, so that a slow spell of the machine hits all of them; the medians are compared. The exit status
is 1 if zennit takes less than twice as long as deeptaylor, or if the maps differ by more than 1e-5 of their maximum in
float64: in float32 a rounding error decides here and there which element of a window wins.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchvision_shim import models  # first: zennit imports torchvision

# isort: split

import torch
from torch import Tensor, nn
from zennit.attribution import Gradient  # type: ignore[import-untyped]
from zennit.composites import SpecialFirstLayerMapComposite  # type: ignore[import-untyped]
from zennit.rules import Pass, ZBox, ZPlus  # type: ignore[import-untyped]
from zennit.types import Activation, Convolution, Linear  # type: ignore[import-untyped]

import deeptaylor as dt
from zoo import MEAN, STD, images

RATIO, AGREEMENT = 2.0, 1e-5
LOW, HIGH = ((bound - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1) for bound in (0.0, 1.0))

Method = Callable[[], Tensor]


def vgg16(seed: int) -> nn.Module:
    """Random weights that keep the size of activations, small random biases; those of the first layer negative."""
    torch.manual_seed(seed)
    model: nn.Module = models.vgg16(weights=None, init_weights=False).eval().requires_grad_(False)
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.normal_(layer.bias, 0.0, 0.1)  # type: ignore[arg-type]
    first = layers[0].bias
    first.copy_(-first.abs())  # type: ignore[union-attr]
    return model


def with_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Method:
    def gradient() -> Tensor:
        leaf = x.clone().requires_grad_()
        score = model(leaf).gather(1, target[:, None]).sum()
        return torch.autograd.grad(score, leaf)[0]

    return gradient


def with_zennit(model: nn.Module, x: Tensor, target: Tensor) -> Method:
    first_map = [(Convolution, ZBox(low=LOW, high=HIGH))]
    layer_map = [(Activation, Pass()), (Convolution, ZPlus()), (Linear, ZPlus())]
    composite = SpecialFirstLayerMapComposite(layer_map=layer_map, first_map=first_map)
    attributor = Gradient(model, composite)

    def relevance_at_output(output: Tensor) -> Tensor:
        chosen = nn.functional.one_hot(target, output.shape[1])
        return output.detach().clamp(min=0) * chosen

    def explain() -> Tensor:
        with attributor:
            relevance: Tensor = attributor(x.clone(), relevance_at_output)[1]
        return relevance.detach()

    return explain


def with_deeptaylor(model: nn.Module, x: Tensor, target: Tensor) -> Method:
    explainer = dt.Explainer(model, x, domain=dt.Box(LOW[0], HIGH[0]), bias="neuron", max_pool="winner")

    def explain() -> Tensor:
        relevance: Tensor = explainer(x, target)[1]
        return relevance

    return explain


def apart_in_float64(model: nn.Module, x: Tensor, target: Tensor) -> float:
    """The largest difference of the two maps, as a share of the largest relevance."""
    exact = copy.deepcopy(model).double()
    ours, theirs = (make(exact, x.double(), target)() for make in (with_deeptaylor, with_zennit))
    return float((ours - theirs).abs().max() / ours.abs().max())


def take_turns(methods: dict[str, Method], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call; one call each first, to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():
        method()
    for turn in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            method()
            seconds[name].append(time.perf_counter() - start)
        last = ", ".join(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items())
        print(f"turn {turn + 1}: {last}", flush=True)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Deep Taylor decomposition of a VGG-16: deeptaylor against zennit.")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args()

    model = vgg16(options.seed)
    x = images(options.batch, 224)
    with torch.no_grad():
        score, target = model(x).max(1)

    start = time.perf_counter()
    explain = with_deeptaylor(model, x, target)
    setup = time.perf_counter() - start
    methods = {
        "gradient": with_gradient(model, x, target),
        "zennit": with_zennit(model, x, target),
        "deeptaylor": explain,
    }
    ours, theirs = methods["deeptaylor"](), methods["zennit"]()
    rounded = ((ours - theirs).abs().max() / ours.abs().max()).item()
    disagreement = apart_in_float64(model, x[:1], target[:1])
    seconds = take_turns(methods, options.repeats)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratio = medians["zennit"] / medians["deeptaylor"]
    fastest = min(seconds["zennit"]) / min(seconds["deeptaylor"])

    print(f"\nVGG-16, batch {options.batch}, float32, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"scores {[round(s, 3) for s in score.tolist()]}")
    for name, relevance in (("zennit", theirs), ("deeptaylor", ours)):
        shares = ", ".join(f"{share:.4f}" for share in (relevance.flatten(1).sum(1) / score).tolist())
        print(f"{name:<11} gives the input {shares} of the score, biases the rest")
    for name, median in medians.items():
        print(f"{name:<11} {median:7.3f} s   {median / medians['gradient']:5.2f} x gradient")
    print(f"set-up of deeptaylor, once: {setup:.2f} s")
    print(f"zennit / deeptaylor = {ratio:.2f} (at least {RATIO} wanted); of the fastest calls {fastest:.2f}")
    print(f"max |a - b| / max |a| = {disagreement:.2e} in float64 (at most {AGREEMENT} wanted); float32: {rounded:.2e}")
    passed = ratio >= RATIO and disagreement <= AGREEMENT
    print("ok" if passed else "FAIL")

    if options.json:
        record: dict[str, Any] = {
            "torch": torch.__version__,
            "zennit": version("zennit"),
            "threads": torch.get_num_threads(),
            "batch": options.batch,
            "seconds": seconds,
            "median": medians,
            "setup": setup,
            "ratio": ratio,
            "ratio_of_fastest": fastest,
            "disagreement": disagreement,
            "passed": passed,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
