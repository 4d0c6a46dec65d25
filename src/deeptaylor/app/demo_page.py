"""The demo's report: one HTML file that needs nothing else, pictures included."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.shown import percent

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
    return _PAGE.substitute(
        network=escape(network),
        credit=escape(credit),
        subjects="\n".join(_subject(subject) for subject in subjects),
        plans="\n".join(
            f"<details><summary>Plan, bias=“{escape(bias)}”</summary><pre>{escape(plan)}</pre></details>"
            for bias, plan in plans.items()
        ),
    )


def _subject(subject: Subject) -> str:
    top = subject.recognised[0][0]
    classes = "".join(
        f"<li><span>{escape(name)}</span> <meter min=0 max=1 value={p:.4f}></meter> {percent(p)}</li>"
        for name, p in subject.recognised
    )
    return f"""<section aria-labelledby="{escape(subject.name)}">
<h2 id="{escape(subject.name)}">{escape(subject.name.capitalize())}: {escape(top)}</h2>
<ol class="classes">{classes}</ol>
{"".join(_explained(subject, top, explained) for explained in subject.explained)}
</section>"""


def _explained(subject: Subject, top: str, explained: Explained) -> str:
    what = f"“{top}”, bias={explained.bias}"
    figures = "".join(
        _figure(picture, caption, alt)
        for picture, caption, alt in (
            (subject.photo, "photograph", f"Photograph: {subject.name}, as the network sees it"),
            (explained.heatmap, "heatmap", f"Heatmap for {what}: red pixels speak for the class"),
            (explained.overlay, "overlay", f"Heatmap for {what}, laid over the photograph in grey"),
        )
    )
    # The check stands first: it begins with what matters most, such as an input that holds less than half of the score.
    return f"""<h3>bias=“{escape(explained.bias)}”</h3>
<pre>{escape(explained.check)}</pre>
<div class="row">{figures}</div>
<p>{escape(str(explained.account))}</p>"""


def _figure(picture: Picture, caption: str, alt: str) -> str:
    data = base64.b64encode(png_bytes(picture)).decode("ascii")
    height, width = picture.shape[:2]
    return (
        f'<figure><img src="data:image/png;base64,{data}" width={width} height={height} alt="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>What the network saw: deep Taylor decomposition</title>
<style>
:root { color-scheme: light dark; --text: #1b1b1f; --soft: #5a5a66; --page: #fbfbfd; --line: #d9d9e0; }
@media (prefers-color-scheme: dark) { :root { --text: #ececf1; --soft: #a9a9b6; --page: #17171b; --line: #3a3a44; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1rem; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(14rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; } img { width: 100%; height: auto; display: block; border-radius: .25rem; }
figcaption, .classes { color: var(--soft); font-size: .9rem; }
.legend { height: .9rem; border: 1px solid var(--line); border-radius: .25rem;
  background: linear-gradient(90deg, rgb(16 0 150), rgb(70 92 250), #fff, rgb(250 92 70), rgb(150 0 16)); }
.ends { display: grid; grid-template-columns: repeat(3, 1fr); color: var(--soft); font-size: .9rem; }
.ends :nth-child(2) { text-align: center; } .ends :nth-child(3) { text-align: right; }
pre { overflow-x: auto; white-space: pre-wrap;
  font-size: .8rem; line-height: 1.35; padding: .75rem; border: 1px solid var(--line); }
summary { cursor: pointer; }
</style>
</head>
<body>
<main>
<h1>What the network saw</h1>
<p>$network</p>
<p>Each heatmap splits the score of the class the network chose among the pixels (deep Taylor decomposition). With
bias=“neuron” the biases of the network take their share of the score, as in the paper; with bias=“spread” that share
goes back to the inputs of each neuron, and the pixels together hold the whole score. Colours of each map are scaled to
its own 99.5th percentile: compare where the colour is, not how strong it is between maps.</p>
<div class="legend" role="img" aria-label="Colours: blue against the class, white nothing, red for it"></div>
<div class="ends" aria-hidden="true"><span>against</span><span>0</span><span>for the class</span></div>
$subjects
<h2>How it was computed</h2>
$plans
<p><small>$credit</small></p>
</main>
</body>
</html>
""")
