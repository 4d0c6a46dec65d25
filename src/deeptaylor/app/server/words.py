"""What an answer says, in plain sentences: made of what was computed, never of what was typed.

title        what the picture shows, in one line
sentences    what its numbers are, each with its unit
consistency  whether the map is one that deep Taylor decomposition promises
"""

from __future__ import annotations

import re

from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.pictures import sentences as captions
from deeptaylor.properties import SAME, Check
from deeptaylor.run.contrast import POWER
from deeptaylor.run.target import Negative
from deeptaylor.secant.between import Between
from deeptaylor.secant.comparing import LOG_ODDS_NOTE, is_against_rivals
from deeptaylor.secant.front_door import AS_ASKED
from deeptaylor.shown import number, percent

__all__ = [
    "apart",
    "believed",
    "consistency",
    "higher",
    "layer",
    "layer_title",
    "no_rival_map",
    "note",
    "nothing_apart",
    "overlap",
    "reason",
    "sentences",
    "title",
    "warning",
]


def quoted(name: str) -> str:
    """A class as it is called in a sentence; the answer itself where there are no classes."""
    return f"“{name}”" if name else "the network’s answer"


def title(method: str, e: Explanation, name: str, rival: str) -> str:
    """What is shown, in one line."""
    what, score = quoted(name), float(e.score[0])
    if method == "sensitivity":
        return f"Where a small change would alter the score of {what} most"
    if method == "taylor":
        return f"How {what} differs from the nearest picture with a low score"
    if isinstance(e, Between):
        return _difference_title(e, what, rival)
    if method == "attnlrp":
        return f"Which pixels speak for {what}, and which against"
    if score <= 0:
        return f"Nothing here speaks for {what}" if name else "The network’s answer is zero"
    if not isinstance(e, Contrast):
        return f"Which pixels speak for {what}"
    if rival:
        return f"{what} against {quoted(rival)}"
    return f"What sets {what} apart" if e.rivals[0] else f"{what} has no rival here"


def sentences(method: str, e: Explanation, name: str, rival: str) -> list[str]:
    """What the numbers are."""
    what, score = quoted(name), float(e.score[0])
    has = f"The score of {what} is {number(score)}" if name else f"The network’s answer is {number(score)}"
    if isinstance(e.target, Negative):
        has = f"The network’s answer is {number(-score)}, below zero: its negative, {number(score)}, is explained"
    largest = "; the class with the largest score wins" if name else ""
    if method == "sensitivity":
        return [
            f"{has}{largest}.",
            (
                "The map is the squared gradient of that score: where a pixel matters if it is changed a little. "
                "It does not split the score, so its values are no shares of it."
            ),
        ]
    if method == "taylor":
        return [f"{has}{largest}.", _taylor(e)]
    if isinstance(e, Between):
        return [_difference(e, has, largest, what, rival)]
    if method == "attnlrp":
        held = f"{percent(float(e.ledger.input[0]) / score)} of it" if score else "nothing"
        return [
            f"{has}{largest}.",
            f"Red pixels raise it, blue ones lower it. They sum to {held}; constants keep the rest.",
        ]
    if score <= 0:
        return [f"{has}. Only a positive score can be handed out to the pixels, so there is no map."]
    if not isinstance(e, Contrast):
        return [f"{has}{largest}. Every pixel holds a part of it, its relevance: the redder, the more."]
    return [f"{has}{largest}.", *_contrast(e, what, rival)]


def _difference_title(e: Between, what: str, rival: str) -> str:
    if not is_against_rivals(e):
        return f"Which pixels raise the score of {what}, and which lower it"
    return f"{what} against {quoted(rival)}" if rival else f"Which pixels speak for {what}, and which for its rivals"


def _difference(e: Between, has: str, largest: str, what: str, rival: str) -> str:
    """What took the score from the reference's to the picture's."""
    score, ledger = float(e.score[0]), e.ledger
    reference, raised, lowered = (float(t[0]) for t in (ledger.reference, ledger.in_favour, ledger.against))
    if is_against_rivals(e):
        others = f"that of {quoted(rival)}" if rival else "the mean of its rivals"
        has, largest = f"The score of {what} minus {others} is {number(score)}", ""
    elif LOG_ODDS_NOTE in e.notes:
        has = f"The log-odds of {what} against all other classes are {number(score)}"
    return (
        f"{has}{largest}. Of the reference it is {number(reference)}: red pixels raise it by {number(raised)}, blue "
        f"ones lower it by {number(lowered)}, and nothing is left over."
    )


def overlap(share: float, name: str, other: str) -> str:
    """How much of a map is the same for the next class; of one that does not depend on the class, what to ask."""
    if share > SAME:
        return (
            f"This map does not depend on the class: {percent(share)} of it is the same for the next class, "
            f"{quoted(other)}. Ask what sets {quoted(name)} apart, or choose secants as the method."
        )
    return f"{percent(share)} of the map is the same for the next class, {quoted(other)}."


def reason(text: str) -> str:
    """Which method answered, and why; empty if it was named."""
    return "" if text.endswith(f"{AS_ASKED}.") else text


def _taylor(e: Explanation) -> str:
    score, rest = float(e.ledger.score[0]), float(e.ledger.residual[0])
    if score <= 0:
        return "Only a positive score can be explained, so there is no map."
    return (
        f"The map is the gradient at the nearest root times the change of each pixel. Its values add up to "
        f"{percent((score - rest) / score)} of the score; the difference, {number(rest)}, is the score at the root and "
        "what a first-order expansion leaves out."
    )


def apart(name: str, rival: str) -> str:
    """What goes on behind the percentage that says how far a class and its rivals are apart."""
    others = quoted(rival) if rival else "its rivals"
    return f"of the relevance of {quoted(name)} lies elsewhere than that of {others}."


def _contrast(e: Contrast, what: str, rival: str) -> list[str]:
    if not e.rivals[0]:
        return ["No other class has a positive score: nothing is shared with rivals, and all evidence is shown."]
    others, have = (quoted(rival), "has") if rival else ("its rivals", "have")
    same = percent(0.5**POWER)
    counted = f"{percent(_own_share(e))} of the evidence for {what} is counted as its own"
    return [
        f"{counted}: what lies where {others} {have} little. Where both have as much, {same} of a pixel counts.",
    ]


def nothing_apart(e: Contrast) -> str:
    """That nothing, or hardly anything, sets the class apart, as a figure says it; empty where something does."""
    return captions.hardly_apart(_own_share(e))


def _own_share(e: Contrast) -> float:
    """The part of a class's evidence that is counted as its own."""
    assert e.ledger.shared is not None
    own, shared = float(e.ledger.input[0]), float(e.ledger.shared[0])
    return own / (own + shared) if own + shared > 0 else 0.0


def higher(name: str, rival: str, by: float) -> str:
    """Where the rival wins."""
    return f"“{rival}” scores higher by {number(by)}: ask for “{rival}” against “{name}”."


def no_rival_map(name: str, rival: str, score: float) -> str:
    """Where the rival has no map to be set against."""
    return (
        f"The score of “{rival}” is {number(score)}: the network sees nothing of it here, so there is nothing that "
        f"“{name}” could be set apart from. Name a class that it does consider, such as one of its five best guesses."
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def consistency(check: Check, parts: bool) -> str:
    """Whether a map is consistent, in one sentence; for scores above zero. `parts`: it is one part of two."""
    if check.consistent:
        whole = "its own part and the shared one" if parts else "all of it"
        return f"Consistent: no relevance is negative, and {whole} together {'are' if parts else 'is'} the whole score."
    why = [] if check.positive else ["some relevance is negative"]
    if not check.conservative:
        before = "before rescaling " if check.rescaled else ""
        why.append(f"{before}the relevances add up to {percent(check.own_share)} of the score")
    return f"Not consistent: {' and '.join(why)}."


def believed(area: float, name: str, parts: bool) -> str:
    """What the network did when the map was believed. `parts`: its own part of a map, where a class is set apart."""
    by = "what the part that is its own says" if parts else "what the map says"
    if abs(area) < 0.005:
        found = f"It made no difference to the probability of {quoted(name)} which of them went first"
    else:
        found = (
            f"The probability of {quoted(name)} was {abs(area):.2f} {'higher' if area > 0 else 'lower'} on average "
            "when the least relevant went first than when the most relevant did"
        )
    return (
        f"The network was asked: patches of the picture were blurred away in the order of {by}. {found}. A map that "
        "knows nothing gets 0, and the most that is possible is 1."
    )


def layer_title(node: str, name: str) -> str:
    """What is shown of a layer: all evidence, whatever was asked at the pixels."""
    return f"Evidence for {quoted(name)} inside the network, at {node}"


def layer(e: Explanation, shape: list[int], total: float, returned: bool) -> str:
    """What the map of a layer is."""
    picture = len(shape) == 3
    size = " × ".join(map(str, shape)) + (" neurons (channels × rows × columns)" if picture else " neurons")
    how = "their sum over channels, each square a place of the layer" if picture else "a stripe for each neuron"
    score = float(e.ledger.score[0])
    share = f", {percent(total / score)} of the score" if score > 0 else ""
    text = f"The layer has {size}; the map is {how}. Together they hold {number(total)}{share}."
    if returned:
        text += " What biases absorbed is redistributed to the pixels only, not here."
    if isinstance(e, Contrast):
        text += " All evidence is shown here, also what rivals share: the two are told apart at the pixels only."
    return text


# --- the library's words, as the page says them -----------------------------------------------------------------------


def warning(check: str) -> str:
    """Return the first line of a check if it must be read with the map: biases absorbed much of the score."""
    first = check.split("\n", 1)[0]
    return first if first.startswith(("Conservative: no.", "The input accounts for only")) else ""


def note(text: str) -> str:
    """A note of the library, for one picture."""
    text = re.sub(r" \(sample [\d, …]+\)", "", text)
    return re.sub(r" dt\.margin\(.*$", "", text)
