"""What an answer says, in plain sentences: made of what was computed, never of what was typed.

write_title           what the picture shows, in one line
write_sentences       what its numbers are, each with its unit
describe_consistency  whether the map is consistent in the sense of deep Taylor decomposition
"""

from __future__ import annotations

from deeptaylor.between import AGAINST_RIVALS, LOG_ODDS, Between
from deeptaylor.check import MAX_OVERLAP, Check
from deeptaylor.engine.contrast import POWER
from deeptaylor.engine.target import Negative
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.formatting import format_number, format_percent
from deeptaylor.viz import captions

__all__ = [
    "describe_consistency",
    "describe_deletion",
    "describe_layer",
    "describe_missing_rival",
    "describe_no_separation",
    "describe_overlap",
    "describe_separation",
    "describe_stronger_rival",
    "find_warning",
    "write_layer_title",
    "write_sentences",
    "write_title",
]


def quote(name: str) -> str:
    """A class as it is called in a sentence; the answer itself where there are no classes."""
    return f"“{name}”" if name else "the network’s answer"


def write_title(method: str, e: Explanation, name: str, rival: str) -> str:
    """What is shown, in one line."""
    what, score = quote(name), float(e.score[0])
    if method == "sensitivity":
        return f"Where a small change alters the score of {what} most"
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
        return f"{what} against {quote(rival)}"
    return f"What is specific to {what}" if e.rivals[0] else f"{what} has no rival here"


def write_sentences(method: str, e: Explanation, name: str, rival: str) -> list[str]:
    """What the numbers are."""
    what, score = quote(name), float(e.score[0])
    has = (
        f"The score of {what} is {format_number(score)}" if name else f"The network’s answer is {format_number(score)}"
    )
    if isinstance(e.target, Negative):
        own, negative = format_number(-score), format_number(score)
        has = f"The network’s answer is {own}, below zero: its negative, {negative}, is explained"
    largest = "; the class with the largest score wins" if name else ""
    if method == "sensitivity":
        return [
            f"{has}{largest}.",
            (
                "The map is the squared gradient of that score: it shows where a small change matters. It does not "
                "split the score among the pixels."
            ),
        ]
    if method == "taylor":
        return [f"{has}{largest}.", _taylor(e)]
    if isinstance(e, Between):
        return [_difference(e, has, largest, what, rival)]
    if method == "attnlrp":
        held = f"{format_percent(float(e.ledger.input[0]) / score)} of it" if score else "nothing"
        return [
            f"{has}{largest}.",
            f"Red pixels raise it, blue ones lower it. They sum to {held}; constants account for the rest.",
        ]
    if score <= 0:
        return [f"{has}. Only a positive score can be distributed to the pixels, so there is no map."]
    if not isinstance(e, Contrast):
        return [f"{has}{largest}. The relevance of a pixel is its part of the score: the redder, the larger."]
    return [f"{has}{largest}.", *_contrast(e, what, rival)]


def _difference_title(e: Between, what: str, rival: str) -> str:
    if e.score_kind != AGAINST_RIVALS:
        return f"Which pixels raise the score of {what}, and which lower it"
    return f"{what} against {quote(rival)}" if rival else f"Which pixels speak for {what}, and which for its rivals"


def _difference(e: Between, has: str, largest: str, what: str, rival: str) -> str:
    """What took the score from the reference's to the picture's."""
    score, ledger = float(e.score[0]), e.ledger
    reference, raised, lowered = (float(t[0]) for t in (ledger.reference, ledger.in_favour, ledger.against))
    if e.score_kind == AGAINST_RIVALS:
        others = f"that of {quote(rival)}" if rival else "the mean of its rivals"
        has, largest = f"The score of {what} minus {others} is {format_number(score)}", ""
    elif e.score_kind == LOG_ODDS:
        has = f"The log-odds of {what} against all other classes are {format_number(score)}"
    return (
        f"{has}{largest}. For the reference it is {format_number(reference)}. Red pixels raise it by "
        f"{format_number(raised)}, and blue ones lower it by {format_number(lowered)}: this is the whole difference."
    )


def describe_overlap(share: float, name: str, other: str) -> str:
    """How much of a map is the same for the next class; of one that does not depend on the class, what to ask."""
    if share > MAX_OVERLAP:
        return (
            f"This map does not depend on the class: {format_percent(share)} of it is the same for the next class, "
            f"{quote(other)}. Ask what is specific to {quote(name)}, or choose secants as the method."
        )
    return f"{format_percent(share)} of the map is the same for the next class, {quote(other)}."


def _taylor(e: Explanation) -> str:
    score, rest = float(e.ledger.score[0]), float(e.ledger.residual[0])
    if score <= 0:
        return "Only a positive score can be explained, so there is no map."
    return (
        f"The map is the gradient at the nearest root times the change of each pixel. Its values add up to "
        f"{format_percent((score - rest) / score)} of the score. The difference, {format_number(rest)}, is the "
        f"score at the root and the higher-order terms."
    )


def describe_separation(name: str, rival: str) -> str:
    """Return the words behind the percentage of a class's map that its rivals do not share."""
    return f"{captions.describe_specific(quote(name), quote(rival) if rival else 'its rivals')}."


def _contrast(e: Contrast, what: str, rival: str) -> list[str]:
    if not e.rivals[0]:
        return ["No other class has a positive score: nothing is shared with rivals, and all evidence is shown."]
    others, have = (quote(rival), "has") if rival else ("its rivals", "have")
    same = format_percent(0.5**POWER)
    lies = f"{format_percent(_own_share(e))} of the evidence for {what} lies where {others} {have} little"
    return [f"{lies}. Of a pixel where both have equal evidence, {same} counts as such."]


def describe_no_separation(e: Contrast) -> str:
    """That nothing, or hardly anything, sets the class apart, as a figure says it; empty where something does."""
    return captions.describe_indistinct(_own_share(e))


def _own_share(e: Contrast) -> float:
    """The part of a class's evidence that is counted as its own."""
    assert e.ledger.shared is not None
    own, shared = float(e.ledger.input[0]), float(e.ledger.shared[0])
    return own / (own + shared) if own + shared > 0 else 0.0


def describe_stronger_rival(name: str, rival: str, by: float) -> str:
    """Where the rival wins."""
    return f"“{rival}” scores higher by {format_number(by)}: ask for “{rival}” against “{name}”."


def describe_missing_rival(name: str, rival: str, score: float) -> str:
    """Where the rival has no map to be set against."""
    return (
        f"The score of “{rival}” is {format_number(score)}: this picture has no evidence for it to compare "
        f"“{name}” with. Name another class, such as one of the five best guesses."
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def find_warning(check: Check) -> str:
    """Return the sentence of a check that must be read before the map; empty if the pixels hold most of the score."""
    explained = check.samples > check.negative + check.empty
    little = not check.conservative and check.input_share < 0.5
    return str(check.sentences()[0]) if explained and (check.is_rescaled or little) else ""


def describe_consistency(check: Check, parts: bool) -> str:
    """Whether a map is consistent, in one sentence; for scores above zero. `parts`: it is one part of two."""
    if check.consistent:
        whole = "distinctive and shared relevance" if parts else "the pixels"
        return f"Consistent: all values are zero or positive, and {whole} add up to the score."
    why = [] if check.positive else ["some values are negative"]
    if not check.conservative:
        before = "before rescaling " if check.rescaled else ""
        why.append(f"{before}the relevances add up to {format_percent(check.own_share)} of the score")
    return f"Not consistent: {' and '.join(why)}."


def describe_deletion(area: float, name: str, parts: bool) -> str:
    """What the network did when the map was believed. `parts`: its own part of a map, where a class is set apart."""
    by = "the distinctive part of the map" if parts else "the map"
    if abs(area) < 0.005:
        found = f"The order made no difference to the probability of {quote(name)}"
    else:
        found = (
            f"The probability of {quote(name)} was {abs(area):.2f} {'higher' if area > 0 else 'lower'} on average "
            "when the least relevant patches were hidden first than when the most relevant were"
        )
    return (
        f"Patches of the picture were hidden by blur in the order of {by}. {found}. A random map scores 0; the "
        f"largest possible value is 1."
    )


def write_layer_title(node: str, name: str) -> str:
    """What is shown of a layer: all evidence, whatever was asked at the pixels."""
    return f"Evidence for {quote(name)} inside the network, at {node}"


def describe_layer(e: Explanation, shape: list[int], total: float, returned: bool) -> str:
    """What the map of a layer is."""
    picture = len(shape) == 3
    size = " × ".join(map(str, shape)) + (" neurons (channels × rows × columns)" if picture else " neurons")
    how = "the sum over channels, one square per position" if picture else "one stripe per neuron"
    score = float(e.ledger.score[0])
    share = f", {format_percent(total / score)} of the score" if score > 0 else ""
    text = f"The layer has {size}. The map shows {how}. Its relevance sums to {format_number(total)}{share}."
    if returned:
        text += " What biases absorbed is redistributed to the pixels only, not here."
    if isinstance(e, Contrast):
        text += " It shows all evidence, including what rivals share; only the map of the pixels separates the two."
    return text
