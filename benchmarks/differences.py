"""What other tools do with a bias, with `+`, with attention and with the user's network: the facts of docs/compare.md.

    pip install zennit captum shap autolrp torchvision
    python benchmarks/differences.py [--json FILE] [--vit]

--vit also sums the relevance of a ViT-B/16 with random weights, which takes some minutes.

Small networks in float64 with numbers that can be checked by hand. A tool that is not installed is left out. Every
tool is asked in the way its documentation shows, with its z+ (or alpha 1, beta 0) rule where it has one.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torchvision_shim import models  # first: zennit imports torchvision

# isort: split

import torch
from torch import Tensor, nn

import deeptaylor as dt

X = torch.tensor([[1.0, 2.0]], dtype=torch.float64)


class Biased(nn.Module):
    """Two detectors, then a sum: f = 13 at X, of which the bias of the first one holds 4."""

    def __init__(self) -> None:
        super().__init__()
        self.detect, self.relu, self.pool = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)
        self.detect.weight.data = torch.tensor([[1.0, 2.0], [-1.0, 3.0]])
        self.detect.bias.data = torch.tensor([4.0, -1.0])
        self.pool.weight.data = torch.ones(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.relu(self.detect(x)))


class Residual(nn.Module):
    """x + relu(W x), then a sum, no biases, no negative numbers: f = 3 + 11 at X."""

    def __init__(self) -> None:
        super().__init__()
        self.detect, self.relu, self.pool = nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)
        self.detect.weight.data = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
        self.pool.weight.data = torch.ones(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x + self.relu(self.detect(x)))


class ResidualZennit(Residual):
    """The same with the module that zennit has for it."""

    def __init__(self) -> None:
        from zennit.layer import Sum  # type: ignore[import-untyped]

        super().__init__()
        self.plus = Sum()

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.plus(torch.stack([x, self.relu(self.detect(x))], -1)))


class ResidualCaptum(Residual):
    """The same with the module that captum has for it."""

    def __init__(self) -> None:
        from captum.attr._utils.custom_modules import Addition_Module  # type: ignore[import-untyped]

        super().__init__()
        self.plus = Addition_Module()

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.plus(x, self.relu(self.detect(x))))


class Attention(nn.Module):
    """One head of attention over the two values of X as tokens, without biases, then a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.relu = nn.Linear(1, 4, bias=False), nn.ReLU()
        self.attend = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
        self.pool = nn.Linear(8, 1, bias=False)
        for p in self.parameters():
            p.data.uniform_(0.1, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        t = self.relu(self.embed(x.unsqueeze(-1)))
        return self.pool(self.attend(t, t, t, need_weights=False)[0].flatten(1))


class Functional(Biased):
    """The same as Biased, with the rectifier and the sum as functions instead of modules."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.detect(x)).sum(1, keepdim=True)


def with_deeptaylor(bias: str) -> Callable[[nn.Module], Tensor]:
    def explain(model: nn.Module) -> Tensor:
        relevance: Tensor = dt.explain(model, X, domain=dt.NonNegative(), bias=bias).relevance
        return relevance

    return explain


def with_zennit(rule: str) -> Callable[[nn.Module], Tensor]:
    from zennit import rules  # type: ignore[import-untyped]
    from zennit.attribution import Gradient  # type: ignore[import-untyped]
    from zennit.composites import LayerMapComposite  # type: ignore[import-untyped]
    from zennit.layer import Sum
    from zennit.types import Activation, Linear  # type: ignore[import-untyped]

    def explain(model: nn.Module) -> Tensor:
        layers = [(Activation, rules.Pass()), (Sum, rules.Norm()), (Linear, getattr(rules, rule)())]
        composite = LayerMapComposite(layers)
        with Gradient(model, composite) as attributor:
            relevance: Tensor = attributor(X.clone(), lambda output: output.detach())[1]
        return relevance.detach()

    return explain


def with_captum(rule: str | None) -> Callable[[nn.Module], Tensor]:
    from captum.attr import LRP  # type: ignore[import-untyped]
    from captum.attr._utils import lrp_rules  # type: ignore[import-untyped]

    def explain(model: nn.Module) -> Tensor:
        if rule:
            for layer in model.modules():
                if isinstance(layer, nn.Linear):
                    layer.rule = getattr(lrp_rules, rule)()
        relevance: Tensor = LRP(model).attribute(X.clone().requires_grad_())
        return relevance.detach()

    return explain


def with_autolrp(rule: str | None) -> Callable[[nn.Module], Tensor]:
    import autolrp  # type: ignore[import-untyped]

    more = dict.fromkeys(("AddmmBackward", "MmBackward"), rule) if rule else {}
    config = autolrp.LRPConfig(rule={**autolrp.BASE, **more})

    def explain(model: nn.Module) -> Tensor:
        x = autolrp.tensor(X.clone())
        score = model(x)[0, 0]
        score.lrp(config=config)
        relevance: Tensor = x.relevance * score  # it starts from 1, not from the score
        return relevance.detach().as_subclass(Tensor)

    return explain


def with_shap() -> Callable[[nn.Module], Tensor]:
    import shap  # type: ignore[import-untyped]

    def explain(model: nn.Module) -> Tensor:
        values = shap.DeepExplainer(model, torch.zeros_like(X)).shap_values(X)
        return torch.as_tensor(values).reshape(X.shape)

    return explain


TOOLS: dict[str, tuple[str, Callable[[], Callable[[nn.Module], Tensor]]]] = {
    "deeptaylor, returned": ("deeptaylor", lambda: with_deeptaylor("returned")),
    "deeptaylor, neuron": ("deeptaylor", lambda: with_deeptaylor("neuron")),
    "deeptaylor, spread": ("deeptaylor", lambda: with_deeptaylor("spread")),
    "zennit, ZPlus": ("zennit", lambda: with_zennit("ZPlus")),
    "zennit, Epsilon": ("zennit", lambda: with_zennit("Epsilon")),
    "captum, LRP": ("captum", lambda: with_captum(None)),
    "captum, alpha 1 beta 0": ("captum", lambda: with_captum("Alpha1_Beta0_Rule")),
    "autoLRP, default": ("autoLRP", lambda: with_autolrp(None)),
    "autoLRP, zplus": ("autoLRP", lambda: with_autolrp("zplus")),
    "shap, DeepExplainer": ("shap", with_shap),
}
NETWORKS: dict[str, type[nn.Module]] = {
    "bias": Biased,
    "functional": Functional,
    "plus": Residual,
    "attention": Attention,
}

OWN_PLUS: dict[str, type[nn.Module]] = {"zennit": ResidualZennit, "captum": ResidualCaptum}


def asked(explain: Callable[[nn.Module], Tensor], network: type[nn.Module]) -> dict[str, Any]:
    """What one tool says about one network: its map and sum, or its refusal; its warnings; what it left behind."""
    model = network().double().eval()
    f = model(X).item()
    before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    requires = {name: p.requires_grad for name, p in model.named_parameters()}
    found: dict[str, Any] = {"f": f}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            relevance = explain(model)
            found |= {"map": relevance.flatten().tolist(), "sum": relevance.sum().item()}
        except Exception as error:  # noqa: BLE001  whatever it is, it is the fact to report
            found["refused"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    found["warnings"] = sorted({str(w.message).strip().splitlines()[0] for w in heard})
    after = dict(model.named_parameters())
    found["same values"] = after.keys() == before.keys() and all(
        bool(torch.equal(after[n], v)) for n, (_, v) in before.items()
    )
    found["same objects"] = after.keys() == before.keys() and all(id(after[n]) == i for n, (i, _) in before.items())
    found["same requires_grad"] = all(after[n].requires_grad == r for n, r in requires.items() if n in after)
    return found


def sum_on_vit(seed: int) -> dict[str, float]:
    """Return the sums of relevance of a ViT-B/16 with random weights, as shares of its top score.

    The weights of the head are drawn too: torchvision begins with a head of zeros.
    """
    import autolrp

    torch.manual_seed(seed)
    model = models.vit_b_16().eval()
    nn.init.normal_(model.heads.head.weight, std=0.02)
    x = torch.rand(1, 3, 224, 224)
    presets = {"default": {}, "ATTNLRP": autolrp.ATTNLRP, "CPLRP": autolrp.CPLRP}
    found = {}
    for name, preset in presets.items():
        wrapped = autolrp.tensor(x)
        model(wrapped).max().lrp(config=autolrp.LRPConfig(rule={**autolrp.BASE, **preset}))
        relevance = wrapped.relevance.as_subclass(Tensor)
        found[f"autoLRP, {name}"] = float(relevance.sum())
        found[f"autoLRP, {name}, absolute values"] = float(relevance.abs().sum())
    for method in ("attnlrp", "cp-lrp"):
        e = dt.explain(model, x, method=method)
        found[f"deeptaylor, {method}"] = float(e.relevance.sum() / e.score.sum())
        for entry in ("bias", "dropped", "residual"):
            found[f"deeptaylor, {method}, {entry}"] = float(getattr(e.ledger, entry).sum() / e.score.sum())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What other tools do with small networks.")
    parser.add_argument("--vit", action="store_true", help="also a ViT-B/16 with random weights; takes some minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args()
    results: dict[str, Any] = {"versions": {"torch": torch.__version__}, "tools": {}}
    for name, (package, make) in TOOLS.items():
        try:
            results["versions"][package] = dt.__version__ if package == "deeptaylor" else version(package)
            explain = make()
        except (ImportError, PackageNotFoundError) as error:
            print(f"{name}: left out, {error}")
            continue
        networks = NETWORKS | ({"own plus": OWN_PLUS[package]} if package in OWN_PLUS else {})
        results["tools"][name] = {key: asked(explain, network) for key, network in networks.items()}
    print(results["versions"])
    for name, found in results["tools"].items():
        for key, fact in found.items():
            said = fact.get("refused") or f"{[round(v, 6) for v in fact['map']]} sum {fact['sum']:.6g}"
            print(f"{name:<24} {key:<11} f = {fact['f']:.6g}: {said}")
            for word in fact["warnings"]:
                print(f"{'':<37}warns: {word}")
            for what in ("same values", "same objects", "same requires_grad"):
                if not fact[what]:
                    print(f"{'':<37}not the {what} afterwards")
    if options.vit:
        results["vit"] = {}
        for seed in (0, 1):
            results["vit"][f"seed {seed}"] = sum_on_vit(seed)
            print(f"ViT-B/16, seed {seed}: {results['vit'][f'seed {seed}']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
