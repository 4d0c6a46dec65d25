"""Phrases that readers did not understand stay out of messages, pages and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layout import ROOT

# What was written, and the plain sentence that took its place.
REPLACED = {
    r"does not overlap with": "43.9 % of the map is specific to tabby; it shares the rest with its rivals",
    r"no negative values": "all values are zero or positive",
    r"best, or statistically tied": "highest, or not distinguishable from the highest (intervals overlap)",
    r"\b0 (=|for) (a )?random map": "a random map scores 0",
    r"[Aa]re (the|my) maps faithful\?": "Do the maps show what the network uses?",
    r"[Tt]est (this|the) map by hiding patches": "Check this map: hide patches and watch the score",
    r"another bias setting": "the same method with other handling of biases",
    r"show pass-through layers": "also list layers that only pass relevance on",
    r"match their recorded hashes": "All files are intact",
    r"\b0 failed": "failures are named only if there are any",
    r"What sets it apart": "Specific to the class",
    r"Beside it": "Second explanation",
    r"Its own part": "Specific to the class",
    r"wrong answers without a word": "Wrong values give wrong answers and no error",
    r"Take it with you": "Save and reuse",
    r"How it is explained": "Method",
    r"Is it consistent\?": "Check: does the map add up?",
    r"best guesses, by probability": "Classes with the highest probability",
    r"made the network say so\b": "Which pixels decided the network's answer?",
    r"returns a tuple of 2; use output=0": "the network returns 2 outputs: choose one with output=",
    r"one output; use target=0": "the network has one output, number 0",
}
READ = {".py", ".ts", ".html", ".css", ".md", ".yml", ".ipynb"}
RECORDS = "faithful"  # pages that a benchmark writes from its recorded results


def sources() -> list[Path]:
    """Return all files whose texts people read, in the package, the page and the documentation."""
    found = [p for folder in ("src", "web/src", "web/digits", "docs") for p in (ROOT / folder).rglob("*")]
    found += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "Makefile")]
    return [p for p in found if (p.suffix in READ or p.name == "Makefile") and not p.name.startswith(RECORDS)]


@pytest.mark.parametrize("phrase", REPLACED)
def test_no_source_holds_a_phrase_that_readers_did_not_understand(phrase: str) -> None:
    # A string may be broken over two lines of source.
    joined = re.compile(phrase.replace(" ", r'(?:\s|"\s*f?")+'))
    found = [str(p.relative_to(ROOT)) for p in sources() if joined.search(p.read_text("utf-8"))]
    assert found == [], f"say instead: {REPLACED[phrase]}"
