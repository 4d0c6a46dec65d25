"""`python -m deeptaylor.paper.mnist`: every figure and table of the paper's MNIST experiments, and their numbers.

    build ──► pairs, networks
                explain_all         every method's maps, kept in OUT/arrays     (mnist_arrays.py)
                measure_properties  roots, restarts, quality, likewise          (mnist_arrays.py)
                numbers             from these arrays alone                     (mnist_numbers.py)
                judge_paper         the paper's sentences                       (mnist_verdicts.py) ──► OUT/numbers.json
                draw                OUT/*.png, OUT/*.svg                        (mnist_figures.py)
                write_report        figures, tables and what they say           (mnist_report.py) ──► OUT/report.html

A second run reads the arrays that are there if they come from the same pairs, weights, settings and version.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.relevance_fit import STEPS
from deeptaylor.models.networks.paper_networks import (
    BOX,
    PAPER_NETWORKS,
    RELEVANCE_MODELS,
    WEIGHTS,
    TwoLayer,
    load_network,
)
from deeptaylor.paper import mnist_arrays, mnist_report, relevance_training
from deeptaylor.paper import relevance_training as train_model
from deeptaylor.paper import training as train_networks
from deeptaylor.paper.digit_pairs import TRAIN_SHIFT, Digits, Pairs, held_out_pairs, load_digits
from deeptaylor.paper.experiment import (
    Arrays,
    Saved,
    Talk,
    digest,
    finish,
    format_claims,
    run,
    serialize_claims,
    versions,
)
from deeptaylor.paper.global_search import KEPT, make_starts
from deeptaylor.paper.mnist_arrays import (
    FULL,
    METHODS,
    QUICK,
    SEEDS,
    SHOWN,
    SPREAD,
    DigitNetwork,
    MnistEffort,
    MnistError,
    explain_all,
    load_networks,
    measure_properties,
)
from deeptaylor.paper.mnist_figures import draw
from deeptaylor.paper.mnist_numbers import check_consistent, numbers, requirements
from deeptaylor.paper.mnist_verdicts import judge_paper, judge_supplement
from deeptaylor.paper.verdicts import format_verdicts, serialize_verdicts
from deeptaylor.support.files import write_whole
from deeptaylor.support.tensor_files import read_notes

FILE = "comparison.json"
_PLACES = ("on_half", "on_ink", "coverage", "on_border")
Compared = tuple[str, float | None, float | None, bool | None]  # what, here, there, whether intervals overlap


class CompareError(DeepTaylorError, ValueError):
    """There are no numbers to compare with."""


def read_numbers(path: Path) -> dict[str, Any]:
    """The numbers of another run: its numbers.json, or the folder that holds it."""
    file = path / "numbers.json" if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CompareError(f"{file} does not hold the numbers of this experiment: {error}") from error
    if "methods" not in found:
        raise CompareError(f"{file} holds no numbers of such an experiment.")
    return found


def compare_numbers(here: Mapping[str, Any], there: Mapping[str, Any], out: Path) -> list[str]:
    """Lines that say what differs; every number goes to a file."""
    rows = list(_rows(here, there))
    data = [{"what": what, "here": a, "there": b, "agrees": agrees} for what, a, b, agrees in rows]
    write_whole(out / FILE, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
    same = [name for name, mark in here["weights"].items() if there["weights"].get(name) == mark]
    lines = [f"weights with the same bits: {', '.join(same) or 'none'}"]
    lines += [f"{_mark(agrees)} {what}: {_number(a)} here, {_number(b)} there" for what, a, b, agrees in rows]
    judged = [agrees for *_, agrees in rows if agrees is not None]
    return [*lines, f"{sum(judged)} of {len(judged)} intervals overlap; {out / FILE}"]


def _rows(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Compared]:
    for network, methods in METHODS.items():
        a, b = (found["quality"][network]["held_out"]["accuracy"] for found in (here, there))
        yield f"{network}: accuracy", a, b, None
        for method in methods:
            ours, theirs = (found["methods"][network][method.key] for found in (here, there))
            for place in _PLACES:
                p, q = ours[place], theirs[place]
                yield f"{network}, {method.title}: {place}", p["mean"], q["mean"], _overlap(p, q)
            yield f"{network}, {method.title}: kept", ours["kept"], theirs["kept"], None
    for name, value in here["min_max"].items():
        yield f"min-max: {name}", value, there["min_max"].get(name), None
    for name, value in here["min_max_guided"].items():
        yield f"min-max, our training: {name}", value, there["min_max_guided"].get(name), None


def _overlap(p: Mapping[str, Any], q: Mapping[str, Any]) -> bool | None:
    if None in (p["low"], p["high"], q["low"], q["high"]):
        return None
    return bool(p["low"] <= q["high"] and q["low"] <= p["high"])


def _mark(agrees: bool | None) -> str:
    return {True: "same  ", False: "OTHER ", None: "      "}[agrees]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def build(
    digits: Digits,
    out: Path,
    effort: MnistEffort = FULL,
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
    cases = load_networks(weights)
    saved = Saved(out / "arrays", talk, again=again)
    saved.get("pairs", {"pairs": digest(pairs.images)}, lambda: _pairs(pairs))
    maps = explain_all(cases, pairs, saved)
    extra = measure_properties(cases, digits, pairs, maps, effort, saved)
    found = _about(effort, cases, weights) | {"quality": _quality(extra)} | numbers(maps, extra, pairs)
    of = refitted or weights or WEIGHTS
    found["refits"] = {
        training: relevance_training.known(of, cases["two-layer"].network, training)
        for training in relevance_training.FILES
    }
    found["gradient"] = {name: float(value) for name, value in extra["two-layer-gradient"].items()}
    found["curve"] = relevance_training.read_curve(weights or WEIGHTS)
    check_consistent(found)
    found["requirements"] = serialize_claims(requirements(found))
    found["verdicts"] = serialize_verdicts([*judge_paper(found), *judge_supplement(found)])
    figures = draw(pairs, maps, extra, found, out, talk)
    finish(out, found, mnist_report.write_report(found, figures), saved)
    return found


def _quality(extra: Mapping[str, Arrays]) -> dict[str, Any]:
    """Both networks on the pairs of the report, on more pairs, and on moved ones."""
    found: dict[str, Any] = {
        network: {
            name: {
                "pairs": int(extra[f"{network}-quality-{name}"]["pairs"]),
                "mse": float(extra[f"{network}-quality-{name}"]["mse"]),
                "accuracy": float(extra[f"{network}-quality-{name}"]["accuracy"]),
                "max_shift": TRAIN_SHIFT if name == "moved" else 0,
            }
            for name in ("shown", "held_out", "moved")
        }
        for network in PAPER_NETWORKS
    }
    for network, of in found.items():
        silent = extra[f"{network}-silent"]
        of["silent"] = {"units": silent["units"].tolist(), "silent": silent["silent"].tolist()}
    return found


def _pairs(pairs: Pairs) -> Arrays:
    return {name: getattr(pairs, name).numpy() for name in ("images", "target", "side", "labels")}


def _about(effort: MnistEffort, cases: Mapping[str, DigitNetwork], weights: Path | None) -> dict[str, Any]:
    """Settings, versions and where the weights come from."""
    folder = WEIGHTS if weights is None else weights
    return {
        "settings": vars(effort)
        | {
            "level": 0.1,
            "low": BOX.low,
            "high": BOX.high,
            "starts": len(make_starts(torch.zeros(1, 1, 28, 56))),
            "searched": KEPT,
            "search_seeds": len(SEEDS),
            "shown": SHOWN,
            "spread": SPREAD,
            "t": mnist_arrays.SHARPNESS,
        },
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "weights": {name: case.digest(*case.models) for name, case in cases.items()},
        "training": {name: read_notes(folder / f"{name}.safetensors") for name in (*PAPER_NETWORKS, *RELEVANCE_MODELS)},
    }


# --- the command ------------------------------------------------------------------------------------------------------


def retrain(out: Path, digits: Path | None, steps: int | None, device: str = "cpu") -> Path:
    """Train both networks and both relevance models with the paper's settings; the folder of their weights.

    Each has a checkpoint beside its weights, from which a run that was broken off goes on.
    """
    folder = out / "weights"
    given = ["--device", device]
    given += ["--digits", str(digits)] if digits is not None else []
    given += ["--steps", str(steps)] if steps is not None else []

    def files(name: str) -> list[str]:
        return ["--out", str(folder / f"{name}.safetensors"), "--checkpoint", str(folder / f"{name}.checkpoint")]

    for name in PAPER_NETWORKS:
        _done(train_networks.main(["--network", name, *files(name), *given]))
    of = ["--network", str(folder / "two-layer.safetensors")]
    trainings = zip(RELEVANCE_MODELS, (("plain", "random"), ("guided", "layer")), strict=True)
    for name, (training, begin) in trainings:
        _done(train_model.main([*of, "--training", training, "--begin", begin, *files(name), *given]))
    return folder


def refit(out: Path, digits: Digits, weights: Path | None, steps: int | None, device: str, talk: Talk) -> Path:
    """Train the relevance model from both starts with three seeds; the folder of the models and their numbers."""
    network = load_network("two-layer", None if weights is None else weights / "two-layer.safetensors")
    assert isinstance(network, TwoLayer)
    network.to(train_networks.device_of(device))
    for training in relevance_training.FILES:
        relevance_training.refit(
            network, digits, out / "refits", talk, training=training, steps=STEPS if steps is None else steps
        )
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
        effort = MnistEffort(**(vars(effort) | {"pairs": options.pairs}))
    digits = load_digits(options.digits)
    other = None if options.compare is None else read_numbers(options.compare)
    out, talk, training = options.out, Talk(), (options.steps, options.device)
    weights = retrain(out, options.digits, *training) if options.retrain else options.weights
    refitted = refit(out, digits, weights, *training, talk) if options.refits else None
    found = build(digits, out, effort, weights=weights, again=options.again, refitted=refitted, talk=talk)
    said = [*format_claims(found["requirements"]), *format_verdicts(found["verdicts"])]
    said += [] if other is None else compare_numbers(found, other, out)
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
    add("--quick", action="store_true", help="a small version of everything, to test that it runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
