"""One table: what an explanation costs, beside the gradient and beside other tools.

    python benchmarks/speed.py                                        # small on a CPU, whole on a CUDA machine
    python benchmarks/speed.py --networks vgg16,resnet50 --batches 1,64 --dtypes bfloat16
    python benchmarks/speed.py --networks vgg16 --batches 16 --targets 10
    python benchmarks/speed.py --json benchmarks/results/cpu.json     # settings already in the file are not run again

A setting is one network, batch size, type and number of targets. Its methods run on the same input, each after it was
compared with deeptaylor in float64: `off` is the sum of the differences as a share of the sum of relevances. A method
that is further off than its bound is not timed. Times are medians in milliseconds. Memory is the peak above what the
method holds between calls (its weights, mostly), in MiB; what it holds is stated beside it.

    gradient, gradient compiled     of the score, with respect to the input; channels last where that is faster
    gradient compiled, graphs       with CUDA graphs
    zennit, captum                  where they are installed, and take the network
    eager, compiled, compiled graphs   deeptaylor: z^B at the input, z+ above, bias neurons; one explainer, so that
                                    what it holds is stated at the first of them
    eager, explain; compiled, explain       `explainer.explain`: with ledger, checks and a look at every weight; to
                                    measure these beside the plain calls in turns, see books.py
    eager, recompute; compiled, recompute   the plain call after `explainer.recompute()`
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt
from zoo import MEAN, STD, images, randomise

NETWORKS = ("vgg16", "resnet50", "efficientnet_b0", "vit_b_16", "convnext_tiny")
METHODS = (
    "gradient",
    "gradient compiled",
    "gradient compiled, graphs",
    "zennit",
    "captum",
    "eager",
    "eager, explain",
    "eager, recompute",  # before those that compile: there is no way back
    "compiled",
    "compiled, explain",
    "compiled, graphs",
    "compiled, recompute",
)
OURS = METHODS[5:]
DOMAIN = dt.Box.from_normalisation(MEAN, STD)
Method = Callable[[], Tensor]


@dataclass
class Measured:
    """One method in one setting."""

    method: str
    ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    peak_mib: float | None = None
    held_mib: float | None = None
    off: float | None = None
    bound: float | None = None  # on `off`; for deeptaylor
    first_s: float | None = None  # set-up, compilation and first call
    problem: str = ""


@dataclass
class Setting:
    """What is measured together."""

    network: str
    batch: int
    dtype: str
    targets: int = 1
    methods: list[Measured] = field(default_factory=list)

    @property
    def name(self) -> str:
        many = f", {self.targets} targets" if self.targets > 1 else ""
        return f"{self.network}, batch {self.batch}, {self.dtype}{many}"


def build(name: str) -> nn.Module:
    """A torchvision network with random weights, biases and statistics that keep the size of activations."""
    from torchvision_shim import models  # here at the latest: zennit imports torchvision

    torch.manual_seed(0)
    vgg = name.startswith("vgg")
    model: nn.Module = getattr(models, name)(weights=None, **({"init_weights": False} if vgg else {})).eval()
    for layer in model.modules():
        if vgg and isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.normal_(layer.bias, 0.0, 0.1)  # type: ignore[arg-type]
        if name.startswith("resnet") and isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, 0.0, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(layer.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.normal_(layer.bias, 0.0, 0.1)
    return (model if name.startswith(("vgg", "resnet")) else randomise(model)).requires_grad_(False)


# --- methods ----------------------------------------------------------------------------------------------------------


def gradient(model: nn.Module, x: Tensor, target: Tensor, mode: str | None) -> Method:
    """The gradient of the score: what an explanation cannot do without."""
    if x.is_cuda and not any(isinstance(m, nn.MultiheadAttention) for m in model.modules()):
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    forward = model if mode is None else torch.compile(model, dynamic=False, mode=mode)

    def run() -> Tensor:
        leaf = x.detach().requires_grad_()
        score = forward(leaf).gather(1, target).sum()
        return torch.autograd.grad(score, leaf)[0]

    return run


def fold_norms(model: nn.Module) -> None:
    """BatchNorm into the convolution before it: zennit does so itself, but leaves norms that cuDNN refuses."""
    for block in model.modules():
        pairs = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("0", "1")]
        for first, second in pairs:
            conv, norm = getattr(block, first, None), getattr(block, second, None)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(block, first, nn.utils.fusion.fuse_conv_bn_eval(conv, norm))
                setattr(block, second, nn.Identity())


def zennit(name: str, model: nn.Module, x: Tensor, target: Tensor) -> Method:
    """The same rules by zennit's hooks."""
    from zennit.attribution import Gradient  # type: ignore[import-untyped]
    from zennit.composites import SpecialFirstLayerMapComposite  # type: ignore[import-untyped]
    from zennit.layer import Sum  # type: ignore[import-untyped]
    from zennit.rules import Norm, Pass, ZBox, ZPlus  # type: ignore[import-untyped]
    from zennit.torchvision import ResNetCanonizer, VGGCanonizer  # type: ignore[import-untyped]
    from zennit.types import Activation, AvgPool, Convolution, Linear  # type: ignore[import-untyped]

    if not name.startswith(("vgg", "resnet")):
        raise NotImplementedError("zennit has no canonizer for it")
    fold_norms(model)
    low, high = DOMAIN.bounds(x)
    composite = SpecialFirstLayerMapComposite(
        layer_map=[(Activation, Pass()), (AvgPool, Norm()), (Sum, Norm()), (Convolution, ZPlus()), (Linear, ZPlus())],
        first_map=[(Convolution, ZBox(low=low, high=high))],
        canonizers=[(VGGCanonizer if name.startswith("vgg") else ResNetCanonizer)()],
    )

    def start(output: Tensor) -> Tensor:
        return output.detach().clamp(min=0) * nn.functional.one_hot(target[:, 0], output.shape[1])

    def run() -> Tensor:
        with Gradient(model, composite) as attributor:
            relevance: Tensor = attributor(x.clone(), start)[1]
        return relevance.detach()

    return run


def captum(name: str, model: nn.Module, x: Tensor, target: Tensor) -> Method:
    """Captum's LRP with α = 1 and β = 0, its nearest to z+."""
    from captum.attr import LRP  # type: ignore[import-untyped]
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule  # type: ignore[import-untyped]

    if not name.startswith("vgg"):
        raise NotImplementedError("captum's LRP takes no module twice, and no sums")
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.rule = Alpha1_Beta0_Rule()  # type: ignore[assignment]
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    lrp = LRP(model)
    return lambda: lrp.attribute(x.clone().requires_grad_(), target[:, 0]).detach()


def deeptaylor(explainer: dt.Explainer, x: Tensor, target: Tensor, kind: str) -> Method:
    explainer.recompute(kind.endswith("recompute"))
    if kind.startswith("compiled"):
        explainer.compile(graphs=kind == "compiled, graphs")
    asked = target[:, 0] if target.shape[1] == 1 else target
    if kind.endswith("explain"):
        return lambda: explainer.explain(x, asked).relevance
    return lambda: explainer(x, asked)[1]


def explainer_of(network: str, x: Tensor) -> dt.Explainer:
    model = build(network).to(x.device)
    return dt.Explainer(model, images(2, x.shape[-1]).to(x.device), DOMAIN, bias="neuron").to(dtype=x.dtype)


def method(kind: str, setting: Setting, x: Tensor, target: Tensor) -> Method:
    """A method of others, ready to be called; raises where it does not exist for this network."""
    if setting.targets > 1:
        raise NotImplementedError("one target at a time")
    model = build(setting.network).to(x)
    if kind == "zennit":
        return zennit(setting.network, model, x, target)
    if kind == "captum":
        return captum(setting.network, model, x, target)
    modes = {"gradient": None, "gradient compiled": "default", "gradient compiled, graphs": "reduce-overhead"}
    return gradient(model, x, target, modes[kind])


# --- measuring --------------------------------------------------------------------------------------------------------


def clock(run: Method, repeats: int, cuda: bool) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for _ in range(repeats):
        if cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            taken.append(1000 * (time.perf_counter() - start))
    return taken


def peak_mib(run: Method) -> float:
    """The most memory on the GPU during a call, above what is held between calls."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def reference(setting: Setting, x: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """The relevance of the first samples in float64, and how far from it the setting's type may be."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "helpers")]
    import rounding

    some = x[:2].double()
    explainer = explainer_of(setting.network, some)
    kappa = rounding.condition(explainer.captured.engine, (some,), target[:2, 0], wide=setting.dtype == "float32")
    bound = rounding.bound(
        explainer.captured.engine, x.dtype, kappa, rounding.TF32 if setting.dtype == "tfloat32" else None
    )
    return deeptaylor(explainer, some, target[:2], "eager")().double(), bound


def measure(kind: str, make: Callable[[], Method], truth: Tensor, bound: float, repeats: int, cuda: bool) -> Measured:
    """One method: compared first, then timed."""
    result = Measured(kind)
    gc.collect()  # what an earlier method left must not be freed in between
    holding = torch.cuda.memory_reserved if kind.endswith("graphs") else torch.cuda.memory_allocated
    held = holding() if cuda else 0
    start = time.perf_counter()
    try:
        run = make()
        first = run()
        if cuda:
            torch.cuda.synchronize()
        result.first_s = time.perf_counter() - start
        if not kind.startswith("gradient"):
            found = first[:2].detach().double()
            result.off = float((found - truth).abs().sum() / truth.abs().sum())
            result.bound = bound if kind in OURS else None
            if kind in OURS and not result.off <= bound:
                raise AssertionError(f"off by {result.off:.2g}, bound {bound:.2g}")
            del found
        del first
        clock(run, 3 if cuda else 1, cuda)
        taken = clock(run, repeats, cuda)
        result.ms = statistics.median(taken)
        quarters = statistics.quantiles(taken, n=4) if len(taken) > 1 else [taken[0]] * 3
        result.quartiles_ms = (quarters[0], quarters[2])
        if cuda and not kind.endswith("graphs"):
            result.peak_mib = peak_mib(run)
        if cuda:
            torch.cuda.empty_cache()
            result.held_mib = (holding() - held) / 2**20
    except Exception as error:  # noqa: BLE001  one method that fails must not hide the others
        result.problem = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    return result


def run_setting(setting: Setting, kinds: list[str], device: str, repeats: int) -> Setting:
    """All methods of a setting, printed as they come."""
    torch.manual_seed(1)
    tf32 = setting.dtype == "tfloat32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    dtype = getattr(torch, "float32" if tf32 else setting.dtype)
    x = images(setting.batch, 224).to(device, dtype)
    with torch.no_grad():
        scores = build(setting.network).to(device)(x.float())
    target = scores.topk(setting.targets, 1).indices
    truth, bound = reference(setting, x, target)
    torch._dynamo.reset()
    print(f"\n{setting.name}", flush=True)
    ours: list[dt.Explainer] = []  # one for all its kinds: captured once, compiled once

    def make(kind: str) -> Method:
        if kind not in OURS:
            return method(kind, setting, x, target)
        if not ours:
            ours.append(explainer_of(setting.network, x))
        return deeptaylor(ours[0], x, target, kind)

    for kind in kinds:
        found = measure(kind, lambda kind=kind: make(kind), truth, bound, repeats, x.is_cuda)  # type: ignore[misc]
        setting.methods.append(found)
        ms = "" if found.ms is None else f"{found.ms:9.2f} ms"
        peak = "" if found.peak_mib is None else f"  peak {found.peak_mib:7.0f} MiB"
        off = "" if found.off is None else f"  off {found.off:.1e}"
        first = "" if found.first_s is None else f"  first {found.first_s:.1f} s"
        print(f"  {kind:<26}{ms}{peak}{off}{first}  {found.problem}", flush=True)
    return setting


def machine(device: str) -> dict[str, Any]:
    """Where this was measured, and with what."""
    packages = {}
    for name in ("torch", "torchvision", "zennit", "captum", "triton", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "device": gpu or f"{platform.machine()}, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        "packages": packages | {"deeptaylor": dt.__version__},
    }


def write(record: dict[str, Any], file: Path | None) -> None:
    """What was measured, into a file where one is asked for."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="What an explanation costs, beside the gradient and other tools.")
    add = parser.add_argument
    add("--networks", default=",".join(NETWORKS if cuda else NETWORKS[:2]))
    add("--batches", default="1,16,64" if cuda else "4")
    add("--dtypes", default="bfloat16" if cuda else "float32", help="also tfloat32: float32 with tf32 products")
    add("--targets", type=int, default=1)
    every = METHODS if cuda else ("gradient", "zennit", "eager", "eager, explain")
    add("--methods", default=",".join(kind.replace(", ", ";") for kind in every))
    add("--repeats", type=int, default=20 if cuda else 5)
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    device = "cuda" if cuda else "cpu"
    warnings.filterwarnings("ignore")

    record: dict[str, Any] = {"machine": machine(device), "settings": []}
    if options.json and options.json.exists():
        record = json.loads(options.json.read_text())
        if record["machine"] != machine(device):
            parser.error(f"{options.json} was made on another machine or with other versions; give another file")
    known = {(s["network"], s["batch"], s["dtype"], s["targets"]) for s in record["settings"]}
    kinds = [kind.replace(";", ", ") for kind in options.methods.split(",")]
    for network in options.networks.split(","):
        for batch in map(int, options.batches.split(",")):
            for dtype in options.dtypes.split(","):
                if (network, batch, dtype, options.targets) in known:
                    continue
                setting = Setting(network, batch, dtype, options.targets)
                record["settings"].append(asdict(run_setting(setting, kinds, device, options.repeats)))
                write(record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
