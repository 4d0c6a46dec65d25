"""Criteria on heatmaps of MNIST: a measure of each method's maps with a limit, and of maps without information."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deeptaylor.paper.measures import or_nan
from deeptaylor.paper.mnist_comparisons import BLIND, EVEN, NOISE, OTHER, PICTURE, SIGNED
from deeptaylor.paper.mnist_numbers import TOLERANCE
from deeptaylor.paper.verdicts import Criterion, in_place_of, require_differences

Numbers = Mapping[str, Any]

SHALLOW = {"sensitivity": "sensitivity", "taylor": "Taylor", "w2": "w²", "zB": "zB"}
DEEP = {"sensitivity": "sensitivity", "taylor": "Taylor", "min-max": "min-max", "training-free": "training-free"}
OWN = ("min-max", "training-free")
BOTH = {f"zB, {name}": name for name in OWN}  # maps of the two networks that are laid beside each other
LRP = {"alpha1beta0": "α = 1, β = 0", "alpha2beta1": "α = 2, β = 1", "epsilon": "ε"}
NAMES = SHALLOW | DEEP | LRP
UNINFORMED = {
    EVEN: "an even map", NOISE: "noise", SIGNED: "noise of both signs", PICTURE: "the picture itself",
    OTHER: "another pair's map",
}  # fmt: skip
CAVEAT = "Our weights, trained by the paper's recipe; the paper's weights and pairs are not known."

COMPLETE = 0.6  # covered of the target's ink, less what is covered of the distractor's
ALIKE = 0.7  # correlation of maps that are similar
SAME = 0.9  # correlation of maps of similar quality
ALIGNED = 0.5  # correlation with the picture of maps that are well aligned with it
NEAR = 0.1  # of the mean score: near-conservative
LITTLE = 0.1  # of all relevance
MUCH = 0.2  # of all relevance
QUALITY = 0.1  # of a share: of similar quality
RIGHT = 0.9  # of the pairs
MORE = 1.1  # times what an even map has


def require_level(
    found: Numbers,
    network: str,
    measure: str,
    keys: Sequence[str],
    text: str,
    *,
    above: bool,
    limit: float,
    form: str = "%",
) -> Criterion:
    """Return the criterion that a mean over pairs is above or below a limit, for each of these methods."""
    levels = found["compared"]["levels"][network]
    return Criterion(
        text,
        above,
        limit,
        {NAMES[key]: or_nan(levels[key][measure]) for key in keys},
        {title: or_nan(levels[name][measure]) for name, title in UNINFORMED.items()},
        form,
    )


def require_more(
    found: Numbers,
    text: str,
    differences: Sequence[tuple[str, str, str, str]],
    form: str = "%",
    *,
    prefix: bool = False,
    praised: int = 0,
) -> Criterion:
    """Return the criterion that one method has more of something than another, pair by pair.

    differences   network, measure, and the methods of which the second is subtracted from the first
    praised       which of both a map without information takes the place of
    """
    compared = found["compared"]["differences"]

    measured, blind = {}, {}
    for network, measure, a, b in differences:
        row = f"{f'{network}, ' if prefix else ''}{NAMES[a]} − {NAMES[b]}"
        measured[row] = compared[network][measure][f"{a} − {b}"]
        for kind in BLIND:
            pair = (kind, b) if praised == 0 else (a, kind)
            name = in_place_of(UNINFORMED[kind], f"{NAMES[(a, b)[praised]]} in {row}")
            blind[name] = compared[network][measure][" − ".join(pair)]
    return require_differences(text, measured, blind, form)


def require_likeness(found: Numbers, names: Mapping[str, str], limit: float, text: str) -> Criterion:
    """Return the criterion that maps of a pair are alike beyond what they have in common with the picture."""
    similar = found["compared"]["similar"]
    return Criterion(
        f"{text} have a correlation of more than {limit:g}, with the picture taken out of both",
        True,
        limit,
        {title: or_nan(similar[name]["mean"]) for name, title in names.items()},
        {
            in_place_of(UNINFORMED[kind], title): or_nan(value)
            for name, title in names.items()
            for kind, value in similar[name]["blind"].items()
        },
        ".2f",
    )


def require_more_likeness(found: Numbers, text: str, names: Mapping[str, tuple[str, str]]) -> Criterion:
    """Return the criterion that two maps are more alike than two others, pair by pair.

    A map without information takes the place of one of the two that are said to be alike.
    """
    more = found["compared"]["similar"]["more"]
    pairs = {title: more[f"{a} − {b}"] for title, (a, b) in names.items()}
    return require_differences(
        text,
        {title: of["found"] for title, of in pairs.items()},
        {
            in_place_of(UNINFORMED[kind], f"one map in {title}"): value
            for title, of in pairs.items()
            for kind, value in of["blind"].items()
        },
        ".2f",
    )


def read_amounts(found: Numbers, network: str, measure: str) -> dict[str, float]:
    """Return how far sums of maps without information are from the scores, or what of them is negative."""
    amounts = found["compared"]["amounts"][network]
    return {title: or_nan(amounts[name][measure]) for name, title in UNINFORMED.items()}


def require_positive(found: Numbers, network: str, keys: Sequence[str], text: str, limit: float) -> Criterion:
    """Return the criterion that little or nothing is negative."""
    of = found["methods"][network]
    measured = {NAMES[key]: or_nan(of[key]["negative_share"]) for key in keys}
    return Criterion(text, False, limit, measured, read_amounts(found, network, "negative_share"))


def require_conservative(found: Numbers, network: str, keys: Sequence[str]) -> Criterion:
    """Return the criterion that the sums of all maps are the scores."""
    of = found["methods"][network]
    return Criterion(
        f"every map misses its score by less than {TOLERANCE:g} of it",
        False,
        TOLERANCE,
        {NAMES[key]: or_nan(of[key]["conservation_gap"]["worst"]) for key in keys},
        read_amounts(found, network, "worst_gap"),
        ".1g",
    )


def require_complete(found: Numbers, network: str, keys: Sequence[str]) -> Criterion:
    """Return the criterion that maps cover the digit to detect and not the distractor."""
    return require_level(
        found, network, "complete", keys,
        "of the ink of the digit to detect at least 60 points more have the relevance of the map's average pixel than "
        "of the distractor's ink",
        above=True, limit=COMPLETE,
    )  # fmt: skip
