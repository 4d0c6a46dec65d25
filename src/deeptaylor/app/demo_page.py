"""The demo's report: one HTML file that needs nothing else, pictures included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.support import report

__all__ = ["Explained", "Subject", "page"]


@dataclass(frozen=True)
class Explained:
    """One explanation of one photograph."""

    question: str  # evidence, or contrast
    about: str  # the same as a sentence
    ledger: str
    check: str
    heatmap: Picture
    overlay: Picture


@dataclass(frozen=True)
class Subject:
    """A photograph, what the network made of it, and its explanations."""

    name: str
    photo: Picture
    asked: str  # the class that is explained
    recognised: Sequence[tuple[str, float]]
    explained: Sequence[Explained]


def page(network: str, credit: str, subjects: Sequence[Subject], plan: str) -> str:
    """The report as HTML. Every text that comes from elsewhere is escaped."""
    how = [report.Lines(plan, "Plan")]
    sections = [*[_subject(subject) for subject in subjects], report.Section("How it was computed", how)]
    lead: list[report.Part] = [network, _MEANING, report.Legend(signed=False)]
    return report.page("What the network saw: deep Taylor decomposition", lead, sections, credit, contents=False)


def _subject(subject: Subject) -> report.Section:
    top = subject.asked
    parts = [part for explained in subject.explained for part in _explained(subject, top, explained)]
    return report.Section(f"{subject.name.capitalize()}: {top}", [report.Shares(subject.recognised), *parts])


def _explained(subject: Subject, top: str, explained: Explained) -> list[report.Part]:
    what = f"“{top}”" if explained.question == "evidence" else f"what sets “{top}” apart"
    pictures = (
        (subject.photo, "photograph", f"Photograph: {subject.name}, as the network sees it"),
        (explained.heatmap, "heatmap", f"Heatmap for {what}: red pixels speak for the class"),
        (explained.overlay, "overlay", f"Heatmap for {what}, laid over the photograph in grey"),
    )
    # The check stands before the pictures: it begins with what matters most.
    return [
        report.Heading(explained.about),
        report.Lines(explained.check),
        report.Row([report.Picture(png_bytes(picture), caption, alt) for picture, caption, alt in pictures]),
        explained.ledger,
    ]


_MEANING = """Each heatmap splits the score of the class that the network chose among the pixels (deep Taylor
    decomposition). First comes the evidence: which pixels hold the score, and how much of it each. Then what sets the
    class apart: the part of the same map that its rivals, the other classes that the network considered, do not share.
    Biases of the network absorb a part of the score; each map is rescaled to its score, place by place, and the check
    says how much biases absorbed. Colours of each map are scaled to its own 99.5th percentile: compare
    where the colour is, not how strong it is between maps."""
