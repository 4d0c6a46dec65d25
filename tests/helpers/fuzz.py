"""Two spellings of one network compared in their maps, and random networks respelled."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, fx, nn

import deeptaylor as dt
from deeptaylor.engine import prepare
from deeptaylor.graph.capture import CapturedGraph, capture
from network_builder import Network
from network_modules import Program
from random_networks import build, family, package_domain
from spellings import DIFFER, TABLE, Spelling, key

BIASES = ("neuron", "spread")
EQUAL = 1e-9  # Σ|R − R'| / Σ|R| of maps that are the same but for rounding


def copied(captured: CapturedGraph) -> CapturedGraph:
    """A captured network again, to be rewritten apart."""
    graph, new = fx.Graph(), {}
    for node in captured.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
        new[node].meta = dict(node.meta)
    fields = {k: copy.copy(v) for k, v in vars(captured).items() if k not in ("graph", "inputs", "output")}
    return CapturedGraph(graph=graph, inputs=[new[n] for n in captured.inputs], output=new[captured.output], **fields)


@contextmanager
def captured_once() -> Iterator[None]:
    """Within, a network is exported once and planned as often as asked: export takes nearly all of the time."""
    known: dict[int, tuple[nn.Module, CapturedGraph]] = {}

    def once(model: nn.Module, *arguments: Any) -> CapturedGraph:
        if id(model) not in known:
            known[id(model)] = (model, capture(model, *arguments))
        return copied(known[id(model)][1])

    with mock.patch.object(prepare, "capture", once), warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.DeepTaylorWarning)
        yield


def targets(model: nn.Module, x: Tensor) -> list[Any]:
    """The top class, and weights of both signs that give a positive score."""
    with torch.no_grad():
        z = model(x)
    weights = torch.linspace(1.0, -0.7, z.shape[1]).to(z).expand_as(z)
    return [None, weights * (weights * z).sum(1, keepdim=True).sign()]


Maps = list[tuple[Tensor, Tensor]] | str


def maps(model: nn.Module, x: Tensor, domain: dt.Domain, bias: str) -> Maps:
    """For each target the map and the score, or the error's text."""
    try:
        explainer = dt.Explainer(model, x, domain, bias=bias)
        found = [explainer.explain(x, target=t) for t in targets(model, x)]
        return [(e.relevance, e.score) for e in found]
    except dt.DeepTaylorError as error:
        return f"{type(error).__name__}: {error}"


def difference(ours: Maps, theirs: Maps) -> float:
    """The largest Σ|R − R'| / Σ|R| of a sample; infinite where one is refused and the other is not.

    Where biases took all but a millionth, that millionth of the score is the measure: what is left is rounding.
    """
    if isinstance(ours, str) or isinstance(theirs, str):
        return 0.0 if isinstance(ours, str) and isinstance(theirs, str) else float("inf")
    worst = 0.0
    for (a, f), (b, _) in zip(ours, theirs, strict=True):
        gap, size = (t.abs().flatten(1).sum(1) for t in (a - b, a))
        worst = max(worst, float((gap / torch.maximum(size, 1e-6 * f.abs()).clamp(min=1e-300)).max()))
    return worst


# --------------------------------------------------------------------------------------------------------------------
# Random networks, respelled
# --------------------------------------------------------------------------------------------------------------------


VARIANTS = 5  # spellings tried on each random network, which is explained once


class Respelled(NamedTuple):
    """A network with one module written otherwise."""

    model: nn.Module
    spelling: Spelling
    place: str


def with_identity(model: Program, choose: random.Random) -> Program:
    """The same network with an identity at some place, for the spellings of one."""
    place = choose.randrange(1, len(model.steps))
    before = model.steps[place - 1][0]
    other = Program()
    for name, module in model._modules.items():
        other.add_module(name, module)
    other.add_module("same", nn.Identity())
    after = [(name, tuple("same" if o == before else o for o in operands)) for name, operands in model.steps[place:]]
    other.steps = [*model.steps[:place], ("same", (before,)), *after]
    return other.eval()


def respelled(network: Network, seed: int) -> Respelled:
    """A random spelling, of those that apply anywhere, at a random place where it applies."""
    choose = random.Random(seed)
    model = with_identity(network.model, choose)
    values = {"input": network.example}
    found: dict[str, list[tuple[str, Spelling, nn.Module]]] = {}
    with torch.no_grad():
        for name, operands in model.steps:
            module, given = model.get_submodule(name), [values[o] for o in operands]
            values[name] = module(*given)
            for spelling in TABLE:
                other = spelling.respell(module, *given) if spelling.usual is type(module) else None
                if other is not None:
                    found.setdefault(key(spelling), []).append((name, spelling, other))
    place, spelling, other = choose.choice(found[choose.choice(sorted(found))])
    model = copy.deepcopy(model)
    *path, last = place.split(".")
    model.get_submodule(".".join(path)).add_module(last, other)
    return Respelled(model.eval().requires_grad_(False), spelling, place)


@lru_cache(maxsize=1)
def _usual(seed: int) -> tuple[Network, Maps]:
    """A random network and its maps."""
    network = build(seed)
    return network, maps(network.model, network.example, package_domain(network.domain), BIASES[seed % 2])


def compare(number: int) -> tuple[Respelled, float, str]:
    """The pair of that number, how far its maps are apart, and what was said where one is refused."""
    seed = number // VARIANTS
    with captured_once():
        network, ours = _usual(seed)
        pair = respelled(network, number)
        theirs = maps(pair.model, network.example, package_domain(network.domain), BIASES[seed % 2])
    said = next((m for m in (ours, theirs) if isinstance(m, str)), "")
    return pair, difference(ours, theirs), said


def report(number: int) -> str:
    """What is wrong with a pair, in a line; empty where its maps are the same, or listed as different."""
    try:
        pair, gap, said = compare(number)
    except Exception as error:  # noqa: BLE001 - the fuzzer looks for them
        return f"pair {number} ({family(number // VARIANTS)}): raw {type(error).__name__}: {str(error)[:300]}"
    if gap <= EQUAL or key(pair.spelling) in DIFFER:
        return ""
    return f"pair {number} ({family(number // VARIANTS)}), {pair.place}, {key(pair.spelling)}: {gap:.2g} {said[:300]}"


# --------------------------------------------------------------------------------------------------------------------
# Random networks that mix samples
# --------------------------------------------------------------------------------------------------------------------

MIXING: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda v: v / (1 + v.abs().max()),
    lambda v: v / (1 + v.norm()),
    lambda v: v - v.mean(0, keepdim=True),
    lambda v: v * v[:1].sigmoid(),
    lambda v: v + 0.01 * v[-1],
    lambda v: v * (v >= v.mean(0)),
    lambda v: torch.where(v[:1] > 0, v, 0.5 * v),
    lambda v: v + v.flip(0),
    lambda v: v * v.softmax(0),
    lambda v: v * v.cumsum(0).sigmoid(),
    lambda v: v + v.roll(1, 0),
    lambda v: v * (1 + (v > 0.5).any()),
)


class Mixed(nn.Module):
    """An operation that mixes samples."""

    def __init__(self, way: int) -> None:
        super().__init__()
        self.way = way

    def forward(self, v: Tensor) -> Tensor:
        return MIXING[self.way](v)


def report_mixed(number: int) -> str:
    """Say what is wrong if a random network that mixes samples at a random place is explained; else an empty text."""
    network = build(number)
    model, way = with_identity(network.model, random.Random(number)), number % len(MIXING)
    model.add_module("same", Mixed(way))
    with captured_once():
        found = maps(model, network.example, package_domain(network.domain), BIASES[number % 2])
    if isinstance(found, str) and "depends on the other samples" in found:
        return ""
    return f"network {number} ({family(number)}), way {way}: {found if isinstance(found, str) else 'explained'}"


def main() -> None:
    """python fuzz.py FIRST LAST: compare these pairs, saying how far it has come."""
    first, last = (int(a) for a in sys.argv[1:3])
    for number in range(first, last):
        wrong = report(number)
        if wrong:
            print(wrong, flush=True)
        if (number + 1 - first) % 50 == 0:
            print(f"{number + 1 - first} of {last - first} pairs", flush=True)


if __name__ == "__main__":
    main()
