"""Parameters are randomised, layer by layer (Adebayo et al., 2018): does the map notice?

    top-down    from the output towards the input        bottom-up   from the input towards the output

Layers stay randomised while further ones are. A layer is a module with parameters of its own, or a normalisation with
running statistics; the order is that in which modules run. "permuted": the values of every parameter change places at
random, so that layers keep their scale; running means and variances of normalisations are permuted in the same way,
each by itself. "reset": the module's own `reset_parameters`, as Quantus does; layers without one are left as they are,
and normalisations are set back (mean 0, variance 1), which need not fit what arrives there. Every step is a copy of the
network; the user's own stays bit for bit what it was.

eMPRT (Hedström et al., 2024) asks for no similarity: a random network should have a random, more complex map.
Complexity is the entropy of a histogram of the map's values.

Quantus 0.6 counts the map itself (similarity 1) among the layers when it averages: it leaves out a layer called "orig",
but calls it "original". A map that is constant is not counted here; Quantus calls its complexity 0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.metrics.case import Case, Maps, Measured, further_maps
from deeptaylor.metrics.similarity import spearman

__all__ = ["BottomUp", "Complexity", "How", "TopDown", "complexity", "layers", "randomised"]

How = Literal["permuted", "reset"]
STEPS = 8  # at which the method is asked again
BINS = 100  # of the histogram


def layers(network: nn.Module, x: Tensor) -> list[str]:
    """The names of the modules that are randomised, as they run; one that is only read, as its parent runs."""
    own = [name for name, module in network.named_modules() if _own(module)]
    began: dict[str, int] = {}

    def begins(name: str, module: nn.Module, inputs: object) -> None:
        began.setdefault(name, len(began))

    handles = [m.register_forward_pre_hook(partial(begins, name)) for name, m in network.named_modules()]
    try:
        with torch.no_grad():
            network(x[:1])
    finally:
        for handle in handles:
            handle.remove()

    def when(name: str) -> int:
        return began[name] if name in began else when(name.rpartition(".")[0])

    return sorted(own, key=when)


def _own(module: nn.Module) -> list[Tensor]:
    """What is randomised of a module: its own parameters, and the statistics of a normalisation."""
    own: list[Tensor] = list(module.parameters(recurse=False))
    if isinstance(module, nn.modules.batchnorm._NormBase):
        own += [b for b in module.buffers(recurse=False) if b.is_floating_point()]
    return own


def randomised(
    network: nn.Module, x: Tensor, *, top_down: bool, steps: int | None = None, how: How = "permuted", seed: int = 0
) -> Iterator[tuple[float, nn.Module]]:
    """Copies of the network with ever more layers randomised, each with its share of layers; the last has all.

    ``steps``: how many copies; None: one per layer.
    """
    if how not in ("permuted", "reset") or (steps is not None and steps < 1):
        raise InputError(
            f"Layers are randomised by how='permuted' or 'reset', in 1 step or more; got {how!r}, {steps}."
        )
    network = copy.deepcopy(network)
    names = layers(network, x)
    if not names:
        raise InputError(f"{type(network).__name__} has no parameters that could be randomised.")
    seeds = {name: seed + number for number, name in enumerate(names)}  # the same in both orders
    names = names[::-1] if top_down else names
    steps = len(names) if steps is None else min(steps, len(names))
    known: set[int] = set()  # of tensors that several layers share
    done = 0
    for step in range(1, steps + 1):
        until = -(-step * len(names) // steps)
        for name in names[done:until]:
            own = [t for t in _own(network.get_submodule(name)) if id(t) not in known]
            known.update(map(id, own))
            if how == "permuted":
                _permute(own, seeds[name])
            elif own:
                _reset(network.get_submodule(name), seed)
        done = until
        yield done / len(names), copy.deepcopy(network)


def _permute(own: Sequence[Tensor], seed: int) -> None:
    lot = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in own:
            places = torch.randperm(t.numel(), generator=lot).to(t.device)
            t.copy_(t.flatten()[places].reshape(t.shape))


def _reset(module: nn.Module, seed: int) -> None:
    """By the module's own way, from a seed that is the same for every layer, as Quantus does."""
    if (reset := getattr(module, "reset_parameters", None)) is not None:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed + 1)
            reset()


@dataclass(frozen=True)
class _Randomisation:
    """The rank correlation of the map with those of ever more random networks; the value is its mean."""

    steps: int | None = STEPS  # None: after every layer
    how: How = "permuted"

    higher = False
    top_down = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        at, found = [], []
        for share, network in randomised(
            case.network, case.x, top_down=self.top_down, steps=self.steps, how=self.how, seed=case.seed
        ):
            at.append(share)
            found.append(spearman(R, further_maps(case, method, network, case.x, case.classes)))
        alike = torch.stack(found, dim=1)
        return Measured(alike.nanmean(dim=1), {"rank correlation": alike}, tuple(at))


@dataclass(frozen=True)
class TopDown(_Randomisation):
    """From the output towards the input."""

    name = "top-down randomisation"
    about = (
        "rank correlation of the map with itself while layers are randomised, from the output down: 1 for a map that "
        "does not depend on what was learned"
    )


@dataclass(frozen=True)
class BottomUp(_Randomisation):
    """From the input towards the output."""

    name = "bottom-up randomisation"
    about = (
        "rank correlation of the map with itself while layers are randomised, from the input up: 1 for a map that does "
        "not depend on what was learned"
    )
    top_down = False


def complexity(R: Tensor, bins: int = BINS) -> Tensor:
    """The entropy of a histogram over the range of each map (B, …); NaN for a constant one.

    >>> complexity(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), bins=2)  # log 2
    tensor([0.6931], dtype=torch.float64)
    """
    R = R.flatten(1).double()
    low, high = R.amin(dim=1, keepdim=True), R.amax(dim=1, keepdim=True)
    numbers = (high > low) & R.isfinite().all(dim=1, keepdim=True)
    bin_of = torch.where(numbers, (R - low) / (high - low) * bins, 0).long().clamp(max=bins - 1)
    share = torch.zeros(len(R), bins, dtype=R.dtype, device=R.device)
    share = share.scatter_add_(1, bin_of, torch.ones_like(R)) / R.shape[1]
    return torch.where(numbers[:, 0], -torch.xlogy(share, share).sum(dim=1), torch.nan)


@dataclass(frozen=True)
class Complexity:
    """eMPRT: how much more complex, relatively, the map of a wholly randomised network is."""

    how: How = "permuted"
    bins: int = BINS

    name = "emprt"
    about = "relative rise of the map's complexity when all parameters are randomised: above 0 for a map that notices"
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measured:
        [(_, network)] = randomised(case.network, case.x, top_down=False, steps=1, how=self.how, seed=case.seed)
        before, after = (
            complexity(maps, self.bins)
            for maps in (R, further_maps(case, method, network, case.x, case.classes))
        )  # fmt: skip
        return Measured((after - before) / before)
