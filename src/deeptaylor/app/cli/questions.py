"""What --target and --against ask: evidence for a class, or what sets it apart; and the words for the answer."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

import deeptaylor as dt
from deeptaylor.app.cli.photos import Photo
from deeptaylor.between import AGAINST_RIVALS, LOG_ODDS, Between
from deeptaylor.check import BY_RULES
from deeptaylor.errors import InputError, TargetError
from deeptaylor.formatting import format_percent
from deeptaylor.settings import PRESETS
from deeptaylor.viz.captions import describe_indistinct, describe_rescaling, describe_strength
from deeptaylor.viz.drawings import color_strength

__all__ = [
    "MOSTLY_BIAS",
    "NEXT",
    "RIVALS",
    "NoEvidenceError",
    "PhotoQuestion",
    "TargetOptions",
    "absorbed_share",
    "is_mostly_bias",
]

MOSTLY_BIAS = """The network's biases (constants that its layers add) absorb more than half of each score.
    Each map is rescaled to its full score. The lines below state how much biases absorbed.
    """

NEXT, RIVALS, NEGATIVE = "next", "rivals", "negative"
_TOP = re.compile(r"all-top-(\d+)")


class NoEvidenceError(InputError):
    """No class that was asked for has a score above zero in this photograph: it was read, and has nothing to show."""

    def __init__(
        self, photo: Photo, scores: Sequence[tuple[str, float]], instead: str = "Ask for another --target."
    ) -> None:
        self.photo, self.names = photo, " or ".join(name for name, _ in scores)
        listed = ", ".join(f"{score:.4g}" for _, score in scores)
        each = f"the score is {listed}, which is" if len(scores) == 1 else f"the scores are {listed},"
        self.line = f"No evidence for {self.names}: {each} not above zero."
        super().__init__(f"{self.line[0].lower()}{self.line[1:-1]}, and there is nothing to show. {instead}")


@dataclass(frozen=True)
class PhotoQuestion:
    """What is asked of one photograph: the classes, and what they are set against."""

    photo: Photo
    classes: list[tuple[int | None, str]]  # number and name; no number where the network gives one number alone
    against: tuple[int | None, str] | None = None  # a class; or no number: the network's own rivals
    negative: bool = False  # explain the one output of the network with the other sign

    def probability(self, k: int) -> float | None:
        """Return the probability of the k-th class; None if the network gives one number alone."""
        index = self.classes[k][0]
        return None if index is None else self.photo.probability(index)

    @property
    def argument(self) -> Any:
        """The classes as `Explainer.explain` takes them."""
        if self.negative:
            return dt.negative()
        numbers = [index for index, _ in self.classes]
        return numbers[0] if len(numbers) == 1 else torch.tensor([numbers])

    @property
    def one_class(self) -> bool:
        """True if the plain map of one class of several is asked for."""
        return self.against is None and not self.negative and [i is None for i, _ in self.classes] == [False]

    def answer(self, explainer: dt.Explainer) -> dt.Explanation:
        """The explanation, or the contrast."""
        if self.against is None:
            return explainer.explain(self.photo.x, self.argument)
        return explainer.contrast(self.photo.x, self.argument, self.against[0])

    def title(self, k: int) -> str:
        """What the k-th map shows."""
        name = self.classes[k][1]
        return name if self.against is None else f"what sets {name} apart from {self.against[1]}"

    def slug(self, k: int) -> str:
        """The same as part of a file's name."""
        name = _slug(self.classes[k][1])
        return name if self.against is None else f"{name}_against_{_slug(self.against[1])}"

    def headline(self, k: int) -> str:
        """Return the k-th class with its probability, and what it is compared with.

        >>> photo = Photo(None, "", None, None, [], [], torch.zeros(2), torch.tensor([0.25, 0.75]))
        >>> PhotoQuestion(photo, [(1, "cat")], (0, "dog")).headline(0)
        'cat, 75.0 %, compared with dog'
        """
        index, name = self.classes[k]
        chance = "" if index is None else f", {format_percent(self.photo.probability(index))}"
        return f"{name}{chance}" + ("" if self.against is None else f", compared with {self.against[1]}")

    def line(self, e: dt.Explanation, k: int, short: bool = False) -> str:
        """Return the headline, and where the score went.

        ``short``: beneath `MOSTLY_BIAS`, which says what the number means.
        """
        said = self.account(e, k, short)
        return f"{self.headline(k)}. {said[0].upper()}{said[1:]}"

    def account(self, e: dt.Explanation, k: int, short: bool = False) -> str:
        """Say where the score of the k-th class went, to be put behind a name and a colon."""
        name = self.classes[k][1]
        if isinstance(e, Between):
            return f"{_describe_difference(e, k)}."
        if self.against is None:
            return f"{_describe_account(e, k, short)}."
        ledger = e.ledger
        assert ledger.shared is not None
        own = _of(ledger.input, k) / max(_of(ledger.input_total, k), 1e-30)
        apart = f"; {format_percent(own)} of its relevance is distinctive, the rest is shared with rivals."
        if hardly := describe_indistinct(own, name):
            apart = f". {hardly}"
        said = [
            f"{_describe_account(e, k, short)}{apart}",
            describe_strength(self.strength(e, k), name),
        ]
        return " ".join(filter(None, said))

    def strength(self, e: dt.Explanation, k: int) -> float:
        """How many times as strong as usual the colours of the k-th map are; 0 where it is not drawn."""
        return color_strength(e, 0, k) if isinstance(e, dt.Contrast) else 1.0


def _of(t: torch.Tensor, k: int) -> float:
    return float(t[0].reshape(-1)[k])


def is_mostly_bias(e: dt.Explanation, k: int) -> bool:
    """Whether most of what a map shows was absorbed by biases and redistributed."""
    own = e.ledger.own
    return own is not None and e.ledger.returned is not None and _of(own, k) < 0.5 * _of(e.ledger.score, k)


def absorbed_share(e: dt.Explanation, k: int) -> float:
    """Return the share of the k-th score that biases absorbed, whether it was redistributed or not."""
    assert e.ledger.returned is not None
    return (_of(e.ledger.bias, k) + _of(e.ledger.returned, k)) / max(_of(e.ledger.score, k), 1e-30)


def _describe_account(e: dt.Explanation, k: int, short: bool) -> str:
    """What the pixels hold of the score, and biases."""
    if e.method == "sensitivity":
        return f"the map is the squared gradient of the score ({_of(e.score, k):.4g}) and does not split it"
    if e.method not in BY_RULES:
        part = format_percent(_of(e.ledger.input_total, k) / abs(_of(e.score, k) or 1e-30))
        return f"the pixels sum to {part} of the score, {_of(e.score, k):.4g}; {e.method} leaves out the rest"
    ledger, score = e.ledger, max(_of(e.ledger.score, k), 1e-30)
    held, biases = _of(ledger.input_total, k) / score, _of(ledger.bias, k) / score
    if ledger.own is None or ledger.returned is None:
        only = "only " if held < 0.5 else ""
        taken = format_percent(biases)
        return f"the pixels account for {only}{format_percent(held)} of the score; biases absorbed {taken}"
    absorbed = absorbed_share(e, k)
    return (
        f"biases absorbed {format_percent(absorbed)}"
        if short and is_mostly_bias(e, k)
        else describe_rescaling(absorbed, held)
    )


def _describe_difference(e: Between, k: int) -> str:
    """What raised and lowered the score from the reference's."""
    ledger = e.ledger
    numbers = (_of(t, k) for t in (ledger.score, ledger.reference, ledger.in_favour, ledger.against))
    score, reference, raised, lowered = numbers
    is_log_odds, is_contrast = e.score_kind == LOG_ODDS, e.score_kind == AGAINST_RIVALS
    what = (
        "log-odds against all other classes are"
        if is_log_odds
        else "score against its rivals is"
        if is_contrast
        else "score is"
    )
    it = "them" if is_log_odds else "it"
    return (
        f"the {what} {score:.4g}, the reference's {reference:.4g}; pixels raise {it} by {raised:.4g} and lower {it} by "
        f"{lowered:.4g}"
    )


def _slug(name: str) -> str:
    """A class's name in the name of a file: letters, digits and underscores."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:60] or "class"


@dataclass(frozen=True)
class TargetOptions:
    """The options --target (several) and --against, as they were said."""

    targets: Sequence[str] = ()
    against: str | None = None

    @property
    def slug(self) -> str:
        """The question in the names of files; empty for the network's answer."""
        words = [*map(_slug, self.targets), *(["against", _slug(self.against)] if self.against is not None else [])]
        return "".join(f"_{word}" for word in words)

    def check(self, network: dt.Pretrained) -> None:
        """Refuse what means nothing, before any photograph is read."""
        tops = [int(top[1]) for text in self.targets if (top := _TOP.fullmatch(text))]
        if any(count < 1 for count in tops):
            raise InputError("--target all-top-N: N must be at least 1.")
        for text in self.targets:
            if not _TOP.fullmatch(text) and not _is_negative(network, text):
                _reject_class_list(network, text)
                network.class_index(text)
        if self.against not in (None, NEXT, RIVALS):
            other = network.class_index(str(self.against))
            if tops or len(self.targets) > 1:
                raise InputError("--against CLASS takes one --target; for several targets use --against rivals.")
            if self.targets and network.class_index(self.targets[0]) == other:
                raise InputError(f"--target and --against are the same class, {network.class_name(other)}.")

    def of(self, network: dt.Pretrained, photo: Photo, explainers: Collection[dt.Explainer] = ()) -> PhotoQuestion:
        """Return what that means for a photograph; raise if there would be nothing to see.

        explainers   those that will answer, if their methods may have maps of scores below zero, too
        """
        if not photo.recognised:
            return self._of_one_output(network, photo, explainers)
        numbers = list(dict.fromkeys(n for text in self.targets for n in _numbers(network, photo, text)))
        if not numbers:
            numbers = [photo.recognised[0].index]
        every = PhotoQuestion(
            photo, [(n, network.class_name(n)) for n in numbers], self._rival(network, photo, numbers)
        )
        if _shows_negative(explainers, every):
            return every
        some = [n for n in numbers if photo.score(n) > 0] or numbers
        without = [network.class_name(n) for n in numbers if n not in some]
        if without:
            photo.notes.append(f"no map for {', '.join(without)}: the score is not above zero.")
        asked = replace(every, classes=[one for one in every.classes if one[0] in some])
        _require_evidence(asked)
        return asked

    def _of_one_output(
        self, network: dt.Pretrained, photo: Photo, explainers: Collection[dt.Explainer]
    ) -> PhotoQuestion:
        negative = len(self.targets) == 1 and _is_negative(network, self.targets[0])
        if (self.targets and not negative) or self.against is not None:
            raise InputError(
                "the network gives one number per photograph: there is no class to choose. --target negative explains "
                "a number below zero."
            )
        name = "the negative of the network's output" if negative else "the network's output"
        score = -photo.score(0) if negative else photo.score(0)
        asked = PhotoQuestion(photo, [(None, name)], negative=negative)
        if score < 0 and not _shows_negative(explainers, asked):
            instead = "Leave out --target." if negative else "Ask what makes it negative: --target negative."
            raise NoEvidenceError(photo, [(name, score)], instead)
        return asked

    def _rival(self, network: dt.Pretrained, photo: Photo, numbers: list[int]) -> tuple[int | None, str] | None:
        if self.against is None:
            return None
        if self.against == RIVALS:
            return None, "its rivals"
        if self.against == NEXT:
            other = next(r.index for r in photo.recognised if r.index not in numbers)
        else:
            other = network.class_index(self.against)
        if other in numbers:
            raise InputError(f"--against is the network's own answer, {network.class_name(other)}: name another class.")
        return other, network.class_name(other)


def _shows_negative(explainers: Collection[dt.Explainer], asked: PhotoQuestion) -> bool:
    """True if every method that will answer has a map of scores below zero, too."""
    methods = [e.choose(asked.photo.x, asked.argument).method for e in explainers]
    return bool(methods) and not any(method in (*PRESETS, "taylor") for method in methods)


def _reject_class_list(network: dt.Pretrained, text: str) -> None:
    """Several classes with commas between are no class; a class's own name may have commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) < 2:
        return
    with suppress(TargetError):
        network.class_index(text)
        return
    again = " ".join(f"--target {shlex.quote(part)}" for part in parts)
    raise InputError(f"No class is called '{text}'. To give several classes, repeat --target: {again}.")


def _is_negative(network: dt.Pretrained, text: str) -> bool:
    """True if the word asks for the other sign, and is not the name of a class."""
    return text == NEGATIVE and NEGATIVE not in [name.lower() for name in network.class_names or ()]


def _numbers(network: dt.Pretrained, photo: Photo, text: str) -> list[int]:
    top = _TOP.fullmatch(text)
    return photo.best(int(top[1])) if top else [network.class_index(text)]


def _require_evidence(asked: PhotoQuestion) -> None:
    """Say why a map would be empty, and what to ask instead."""
    score = asked.photo.score
    scores = [(name, score(index)) for index, name in asked.classes if index is not None]
    if any(value <= 0 for _, value in scores):  # then all of them: `TargetOptions.of` leaves the others out
        raise NoEvidenceError(asked.photo, scores)
    if asked.against is None or asked.against[0] is None:
        return
    (index, name), (other, rival) = asked.classes[0], asked.against
    assert index is not None
    assert other is not None
    if score(other) > score(index):
        raise InputError(
            f"{rival} scores higher than {name}, by {score(other) - score(index):.4g}. Swap them: "
            f'--target "{rival}" --against "{name}".'
        )
    if score(other) <= 0:
        raise InputError(
            f"the score of {rival} is {score(other):.4g}, which is not above zero: there is no evidence to compare "
            f"{name} with. Leave out --against to see the evidence for {name}."
        )
