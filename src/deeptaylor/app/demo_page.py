"""The demo's report: one HTML file that needs nothing else, pictures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.shown import percent
from deeptaylor.support import report

__all__ = ["Account", "Explained", "Subject", "page"]


@dataclass(frozen=True)
class Account:
    """Where the score went: to the input, to biases, or nowhere."""

    score: float
    input: float
    bias: float
    dropped: float

    def __str__(self) -> str:
        return (
            f"score {self.score:.4g} = input {self.input:.4g} ({self._share(self.input)}) "
            f"+ biases {self.bias:.4g} ({self._share(self.bias)}) "
            f"+ dropped {self.dropped:.4g} ({self._share(self.dropped)})"
        )

    def _share(self, part: float) -> str:
        return percent(part / self.score, ".3g") if self.score > 0 else "no score"


@dataclass(frozen=True)
class Explained:
    """One explanation of one photograph."""

    bias: str
    account: Account
    check: str
    heatmap: Picture
    overlay: Picture


@dataclass(frozen=True)
class Subject:
    """A photograph, what the network made of it, and its explanations."""

    name: str
    photo: Picture
    recognised: Sequence[tuple[str, float]]
    explained: Sequence[Explained]


def page(network: str, credit: str, subjects: Sequence[Subject], plans: Mapping[str, str]) -> str:
    """The report as HTML. Every text that comes from elsewhere is escaped."""
    how = [report.Lines(plan, f"Plan, bias=“{bias}”") for bias, plan in plans.items()]
    sections = [*[_subject(subject) for subject in subjects], report.Section("How it was computed", how)]
    lead: list[report.Part] = [network, _MEANING, report.Legend()]
    return report.page("What the network saw: deep Taylor decomposition", lead, sections, credit, contents=False)


def _subject(subject: Subject) -> report.Section:
    top = subject.recognised[0][0]
    parts = [part for explained in subject.explained for part in _explained(subject, top, explained)]
    return report.Section(f"{subject.name.capitalize()}: {top}", [report.Shares(subject.recognised), *parts])


def _explained(subject: Subject, top: str, explained: Explained) -> list[report.Part]:
    what = f"“{top}”, bias={explained.bias}"
    pictures = (
        (subject.photo, "photograph", f"Photograph: {subject.name}, as the network sees it"),
        (explained.heatmap, "heatmap", f"Heatmap for {what}: red pixels speak for the class"),
        (explained.overlay, "overlay", f"Heatmap for {what}, laid over the photograph in grey"),
    )
    # The check stands first: it begins with what matters most, such as an input that holds less than half of the score.
    return [
        report.Heading(f"bias=“{explained.bias}”"),
        report.Lines(explained.check),
        report.Row([report.Picture(png_bytes(picture), caption, alt) for picture, caption, alt in pictures]),
        str(explained.account),
    ]


_MEANING = """Each heatmap splits the score of the class the network chose among the pixels (deep Taylor decomposition).
    With bias=“neuron” the biases of the network take their share of the score, as in the paper; with bias=“spread” that
    share goes back to the inputs of each neuron, and the pixels together hold the whole score. Colours of each map are
    scaled to its own 99.5th percentile: compare where the colour is, not how strong it is between maps."""
