"""`python -m deeptaylor.paper.mnist`: every figure and table of the paper's MNIST experiments, and their numbers.

    build ──► pairs, networks
                explain_all        every method's maps, kept in OUT/arrays     (methods.py)
                gather             roots, restarts, quality, likewise          (root_measures.py)
                numbers            from these arrays alone                     (mnist_numbers.py) ──► OUT/numbers.json
                figures            OUT/*.png, OUT/*.svg                        (mnist_figures.py)
                sections           figures, tables and what they say           (mnist_text.py) ──► OUT/report.html

A second run reads the arrays that are there if they come from the same pairs, weights, settings and version.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.relevance_fit import STEPS
from deeptaylor.models.networks.detection_pooling import NETWORKS, WEIGHTS, OneLayer, TwoLayer, load
from deeptaylor.models.networks.min_max import TWO_LAYER
from deeptaylor.paper import compared, mnist_text, overview, refits, root_measures
from deeptaylor.paper import train as train_networks
from deeptaylor.paper import train_relevance as train_model
from deeptaylor.paper import verdicts as judged
from deeptaylor.paper.data.digits import Digits, load_digits
from deeptaylor.paper.data.pairs import TRAIN_SHIFT, Pairs, held_out_pairs
from deeptaylor.paper.experiment import as_json, as_text, finish, run, versions
from deeptaylor.paper.methods import BOX, STARTS, Case, explain_all, load_cases
from deeptaylor.paper.mnist_figures import draw
from deeptaylor.paper.mnist_numbers import check_consistent, numbers, requirements
from deeptaylor.paper.mnist_supplement import lrp_verdicts
from deeptaylor.paper.mnist_verdicts import verdicts
from deeptaylor.paper.saved import Arrays, Saved, Talk, digest
from deeptaylor.support.tensors import read_notes

__all__ = ["FULL", "QUICK", "Effort", "MnistError", "build", "main"]


class MnistError(DeepTaylorError, ValueError):
    """The experiments cannot be made as asked."""


@dataclass(frozen=True)
class Effort:
    """How many pairs are explained, and how much is spent on what is measured on fewer of them."""

    pairs: int = 1000
    roots: int = 100  # pairs whose neurons' roots are measured
    restarts: int = 40  # pairs on which searches are begun elsewhere
    seeds: int = 4
    fit_steps: int = 2000  # of each of two min-max models
    held_out: int = 20_000  # pairs that the quality is measured on


FULL = Effort()
QUICK = Effort(pairs=40, roots=4, restarts=3, seeds=2, fit_steps=20, held_out=200)


def build(
    digits: Digits,
    out: Path,
    effort: Effort = FULL,
    *,
    weights: Path | None = None,
    again: bool = False,
    refitted: Path | None = None,
    talk: Talk | None = None,
) -> dict[str, Any]:
    """Make the report in a folder, and return its numbers.

    weights    a folder, by default the weights that are shipped
    refitted   a folder with the numbers of refits of the relevance model, by default that of the weights
    """
    talk = talk or Talk()
    pairs = held_out_pairs(digits, effort.pairs)
    if not bool((pairs.side >= 0).any()) or not bool((pairs.side < 0).any()):
        raise MnistError(f"{effort.pairs} pairs are too few: some must have a target digit and some not.")
    cases = load_cases(weights)
    saved = Saved(out / "arrays", talk, again=again)
    saved.get("pairs", {"pairs": digest(pairs.images)}, lambda: _pairs(pairs))
    maps = explain_all(cases, pairs, saved)
    extra = gather(cases, digits, pairs, maps, effort, saved)
    found = _about(effort, cases, weights) | {"quality": _quality(extra)} | numbers(maps, extra, pairs)
    found["refits"] = refits.known(refitted or weights or WEIGHTS, cases["two-layer"].network)
    check_consistent(found)
    found["requirements"] = as_json(requirements(found))
    found["verdicts"] = judged.as_json([*verdicts(found), *lrp_verdicts(found)])
    figures = draw(pairs, maps, extra, found, out, talk)
    finish(out, found, mnist_text.report(found, figures), saved)
    return found


def gather(
    cases: Mapping[str, Case],
    digits: Digits,
    pairs: Pairs,
    maps: Mapping[str, Mapping[str, Arrays]],
    effort: Effort,
    saved: Saved,
) -> dict[str, Arrays]:
    """What is measured beside the maps: roots, restarts, refits, the true R_k, the quality of the networks."""
    talk = saved.talk
    scores = [next(iter(methods.values()))["score"] for methods in maps.values()]
    good = torch.from_numpy((pairs.side.numpy() >= 0) & np.all([f > 0 for f in scores], axis=0))
    if not bool(good.any()):
        raise MnistError("No pair with a target digit has a positive score from both networks: are they trained?")
    x = pairs.images[good].double()
    few, many = x[: effort.restarts], x[: effort.roots]
    one, two = cases["one-layer"], cases["two-layer"]
    assert isinstance(one.network, OneLayer)
    assert isinstance(two.network, TwoLayer)
    below, above = one.network.detection, two.network.detection2
    with torch.no_grad():
        features = two.network.features(many)
    box, real, rules = BOX, dt.Real(), dt.rules
    extra: dict[str, Arrays] = {}

    def keep(name: str, case: Case, at: Tensor, make: Any, **settings: object) -> None:
        weights = case.digest(relevance_model="refits" in name or "overview" in name)
        known = {"network": weights, "at": digest(at), "version": dt.__version__} | settings
        extra[name] = saved.get(name, known, make)

    w2, zb, flat = rules.WSquare(), rules.ZBox(BOX.low, BOX.high), many.flatten(1)
    keep("roots-w2", one, many, lambda: root_measures.per_neuron(w2, below, flat, real, talk))
    keep("roots-w2-in-box", one, many, lambda: root_measures.per_neuron(w2, below, flat, box, talk))
    keep("roots-zB", one, many, lambda: root_measures.per_neuron(zb, below, flat, box, talk))
    keep("roots-zplus", two, many, lambda: _zplus(above, features, talk))
    positive = dt.NonNegative()
    keep("roots-w2-positive", two, many, lambda: root_measures.per_neuron(w2, above, features, positive, talk))
    keep("one-layer-beyond", one, many, lambda: root_measures.beyond(below, flat, BOX))
    shown = overview.chosen(pairs, torch.from_numpy(np.stack(scores)))
    picture = pairs.images[shown : shown + 1].double()
    keep("overview-one-layer", one, picture, lambda: overview.one_layer(one, picture))
    keep("overview-two-layer", two, picture, lambda: overview.two_layer(two, picture))
    for case in cases.values():
        keep(
            f"{case.name}-restarts",
            case,
            few,
            lambda case=case: root_measures.restarts(case, few, effort.seeds, talk),
            seeds=effort.seeds,
        )
        keep(f"{case.name}-smooth", case, few, lambda case=case: root_measures.smooth(case, few))
        for name, shift in (("held_out", 0), ("moved", TRAIN_SHIFT)):
            keep(
                f"{case.name}-quality-{name}",
                case,
                torch.tensor([effort.held_out, shift]),
                lambda case=case, shift=shift: _evaluate(
                    case, held_out_pairs(digits, effort.held_out, max_shift=shift)
                ),
                digits=digest(torch.from_numpy(digits.test_images.copy())),
                shift=shift,
            )
        keep(
            f"{case.name}-quality-shown",
            case,
            pairs.images,
            lambda case=case: _evaluate(case, pairs),
            target=digest(pairs.target),
        )
    point = torch.from_numpy(extra["one-layer-restarts"]["point"])
    network = one.network
    keep("one-layer-real", one, few, lambda: root_measures.unbounded(network, few))
    keep("one-layer-certified", one, point, lambda: root_measures.certified(network, few, point, talk))
    keep(
        "two-layer-refits",
        two,
        few,
        lambda: root_measures.refits(two, digits, few, effort.fit_steps, talk),
        steps=effort.fit_steps,
    )
    keep("two-layer-relevance", two, pairs.images, lambda: _true_relevance(two, pairs))
    return extra


def _zplus(layer: torch.nn.Linear, features: Tensor, talk: Talk) -> Arrays:
    return root_measures.per_neuron(dt.rules.ZPlus(), layer, features, dt.NonNegative(), talk)


def _true_relevance(case: Case, pairs: Pairs) -> Arrays:
    """R_k of the pooled units, with z⁺ above."""
    x = pairs.images.double()
    R_k = dt.Explainer(case.network, x[:2], domain=BOX, bias="neuron").relevance_at(TWO_LAYER.pooled, x)
    return {"R_k": R_k.numpy()}


def _evaluate(case: Case, pairs: Pairs) -> Arrays:
    found = train_networks.evaluate(copy.deepcopy(case.network).float(), pairs)
    return {key: np.array(value) for key, value in found.items()} | {"pairs": np.array(len(pairs))}


def _quality(extra: Mapping[str, Arrays]) -> dict[str, Any]:
    """Both networks on the pairs of the report, on more pairs, and on moved ones."""
    return {
        network: {
            name: {
                "pairs": int(extra[f"{network}-quality-{name}"]["pairs"]),
                "mse": float(extra[f"{network}-quality-{name}"]["mse"]),
                "accuracy": float(extra[f"{network}-quality-{name}"]["accuracy"]),
                "max_shift": TRAIN_SHIFT if name == "moved" else 0,
            }
            for name in ("shown", "held_out", "moved")
        }
        for network in NETWORKS
    }


def _pairs(pairs: Pairs) -> Arrays:
    return {name: getattr(pairs, name).numpy() for name in ("images", "target", "side", "labels")}


def _about(effort: Effort, cases: Mapping[str, Case], weights: Path | None) -> dict[str, Any]:
    """Settings, versions and where the weights come from."""
    folder = WEIGHTS if weights is None else weights
    return {
        "settings": vars(effort)
        | {
            "level": 0.1,
            "low": BOX.low,
            "high": BOX.high,
            "starts": STARTS,
            "t": root_measures.SHARPNESS,
        },
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "weights": {name: case.digest(relevance_model=True) for name, case in cases.items()},
        "training": {name: read_notes(folder / f"{name}.safetensors") for name in (*NETWORKS, "min-max")},
    }


# --- the command ------------------------------------------------------------------------------------------------------


def retrain(out: Path, digits: Path | None, steps: int | None, device: str = "cpu") -> Path:
    """Train both networks and the relevance model with the paper's settings; the folder of their weights.

    Each has a checkpoint beside its weights, from which a run that was broken off goes on.
    """
    folder = out / "weights"
    given = ["--device", device]
    given += ["--digits", str(digits)] if digits is not None else []
    given += ["--steps", str(steps)] if steps is not None else []

    def files(name: str) -> list[str]:
        return ["--out", str(folder / f"{name}.safetensors"), "--checkpoint", str(folder / f"{name}.checkpoint")]

    for name in NETWORKS:
        _done(train_networks.main(["--network", name, *files(name), *given]))
    _done(train_model.main(["--network", str(folder / "two-layer.safetensors"), *files("min-max"), *given]))
    return folder


def refit(out: Path, digits: Digits, weights: Path | None, steps: int | None, device: str, talk: Talk) -> Path:
    """Train the relevance model from both starts with three seeds; the folder of the models and their numbers."""
    network = load("two-layer", None if weights is None else weights / "two-layer.safetensors")
    assert isinstance(network, TwoLayer)
    network.to(train_networks.device_of(device))
    refits.refit(network, digits, out / "refits", talk, steps=STEPS if steps is None else steps)
    return out / "refits"


def _done(status: int) -> None:
    if status:
        raise MnistError("Training did not end well; the reason is above.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the report and say where it is; 2 if that failed."""
    options = _parser().parse_args(arguments)
    return run(lambda: _made(options))


def _made(options: argparse.Namespace) -> list[object]:
    options.out.mkdir(parents=True, exist_ok=True)
    effort = QUICK if options.quick else FULL
    if options.pairs is not None:
        if options.pairs < 1:
            raise MnistError(f"--pairs is the number of pairs to explain, at least 1; got {options.pairs}.")
        effort = Effort(**(vars(effort) | {"pairs": options.pairs}))
    digits = load_digits(options.digits)
    other = None if options.compare is None else compared.read(options.compare)
    out, talk, training = options.out, Talk(), (options.steps, options.device)
    weights = retrain(out, options.digits, *training) if options.retrain else options.weights
    refitted = refit(out, digits, weights, *training, talk) if options.refits else None
    found = build(digits, out, effort, weights=weights, again=options.again, refitted=refitted, talk=talk)
    said = [*as_text(found["requirements"]), *judged.as_text(found["verdicts"])]
    said += [] if other is None else compared.compare(found, other, out)
    return [*said, out / "report.html", out / "numbers.json"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deeptaylor paper mnist", description="The figures and tables of the paper's MNIST experiments."
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("paper_output"), help="folder to write to (%(default)s)")
    add("--pairs", type=int, help=f"held-out pairs to explain ({FULL.pairs})")
    add("--digits", type=Path, help="folder with the four files of MNIST; by default they are fetched")
    add("--weights", type=Path, help="folder with weights of your own, as --retrain leaves them in OUT/weights")
    add("--retrain", action="store_true", help="train the networks and the relevance model first")
    add("--refits", action="store_true", help="train the relevance model from both starts with three seeds, too")
    add("--steps", type=int, help="of training, with --retrain and --refits (300000, as in the paper)")
    add("--device", default="cpu", help="that training runs on: cpu or cuda (%(default)s)")
    add("--compare", type=Path, metavar="NUMBERS", help="numbers.json of another run, to be compared with")
    add("--again", action="store_true", help="compute everything anew")
    add("--quick", action="store_true", help="little of everything, to see that it runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
