"""Write docs/faithful_modern.md from the records modern-*.json and front-door-cost.json, and from nothing else.

    python benchmarks/modern_page.py

The records in benchmarks/results come from modern.py, modern_ocr.py, modern_photos.py and front_door_cost.py. Run it
again after any.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from page import table

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/faithful_modern.md"
FILES = ("modern-test", "modern-choice", "modern-ocr", "modern-photos", "front-door-cost")
Record = dict[str, Any]

KINDS = {
    "vit": "ViT, class token", "vit-mean": "ViT, mean", "swin": "Swin", "convnext": "ConvNeXt",
    "mobilenetv3": "MobileNetV3", "resnet-gelu": "ResNet, GELU", "cnn": "CNN, ReLU",
}  # fmt: skip
CONTROL = "cnn"
MEASURES = {"disc": "Pointing", "flip": "Flipping", "insertion": "Insertion"}
TASKS = ("digits", "textures")
OURS = {
    "default": "**default**", "default, contrast": "**default, contrast**",
    "secant": "secants (the default but on the CNN)",
}  # fmt: skip
ONE_CLASS = {
    "explain": "deep Taylor", "explain, neuron": "deep Taylor, neuron", "explain, spread": "deep Taylor, spread",
    "between, mean": "secants of the logit", "between, mean | smooth 3": "secants of the logit, smoothed",
    "integrated gradients": "integrated gradients, 16 steps", "gradient x input": "gradient × input",
    "Grad-CAM": "Grad-CAM", "AttnLRP": "AttnLRP", "AttnLRP, γ": "AttnLRP, γ", "Chefer": "Chefer",
}  # fmt: skip
LOG_ODDS = {
    "between, mean, log-odds": "secants of the log-odds",
    "halves, mean, log-odds": "secants of the log-odds, all and halves",
}
SPLITS = {"contrast": "deep Taylor, contrast", "contrast difference": "deep Taylor, difference of the contrast"}
MANY = {"occlusion, 8 px": "occlusion, 8 px (121 passes)", "occlusion, 12 px": "occlusion, 12 px (49 passes)"}
ROWS = OURS | ONE_CLASS | LOG_ODDS | SPLITS | MANY
OCR = {
    "default": "**default**", "deep Taylor, neuron": "deep Taylor, neuron",
    "deep Taylor, spread": "deep Taylor, spread", "secant": "secants of the log-odds, smoothed by 1/20",
    "between, mean": "secants of the logit, mean",
    "between, blur": "secants of the logit, blur", "between, background": "secants of the logit, background",
    "integrated gradients": "integrated gradients", "AttnLRP": "AttnLRP", "default, contrast": "**default, contrast**",
    "between, mean, log-odds": "secants of the log-odds, mean", "occlusion": "occlusion (217 passes)",
}  # fmt: skip
PHOTOS = {
    "explain": "**default**: deep Taylor", "contrast": "**default, contrast**",
    "contrast difference": "difference of the contrast", "secant": "secants of the log-odds, smoothed by 1/20",
    "secant, contrast": "secants, contrast, smoothed by 1/10",
    "between, mean, log-odds": "secants of the log-odds, mean",
    "between, blur, log-odds": "secants of the log-odds, blur",
}  # fmt: skip
PHOTO_NETWORKS = {"efficientnet-lite0": "EfficientNet-Lite0", "mobilenet_v2": "MobileNet v2"}

INTRODUCTION = """\
# Are the maps of modern networks faithful?

After this page you know how far the default's maps can be trusted on networks with attention, layer norms, GELU and
gates. The rules of deep Taylor were not made for these, so the default takes secants where they do better.
"""

ABOUT = """\
## How it was measured

**The default** is `dt.explain(network, x, target)`: `method="auto"`, without a setting. On the modern networks it tests
deep Taylor and secants on the first inputs and takes the better one. On the CNN the operations decide for deep Taylor
([how it chooses](theory.md#14-a-class-against-its-rivals-and-the-choice-of-the-method)). **Default, contrast** is
`dt.contrast(network, x, target)`.

**The networks** are small and trained for this page (`benchmarks/modern_networks.py`), each with two seeds; the tables
show the mean over both. In *digits*, a picture shows two digits of different classes among pieces of others. In
*textures*, it shows two shapes that are filled with different textures. Both classes of every picture are explained:
{maps} maps for each network. The pictures were not used to choose anything.

- **Pointing**: positive relevance in the object's own box, as a share of that in its own and in the other object's box.
  0.5 by chance.
- **Flipping**: patches are replaced by the ground of another picture, least relevant first minus most relevant first.
  The number is the mean difference of the class's probability; 0 by chance.
- **Insertion**: the mean probability of the class while the most relevant patches are put back into that ground.

A star marks the highest number of a column among methods of few passes. All secants have the mean of the picture as
their reference. *Log-odds* and *contrast* compare a class with all others, as the default's secants do. AttnLRP with γ
and Chefer's method were measured on the ViTs alone.

`python benchmarks/modern_page.py` makes this page from records of real runs; only the words are written by hand.
"""

VERDICT = """\
## The result in short

There are {count} modern networks: six kinds, two tasks, two seeds. Pointing of the default is {default}, of its
contrast {contrast}, of deep Taylor {deep_taylor}.

*First*: no other method has a higher mean, or the default's mean lies within the interval of the highest. The default
is first on so many networks:

{rows}
The default explains a class against its rivals, so the second row is the stricter comparison. Beside methods that
explain one class, it is behind

- in pointing on {pointing};
- in flipping on {flipping}.

Secants that are not smoothed often gain more by flipping, and point less well: smoothing shows where, and blurs how
much. Beside the contrast of deep Taylor, the default is first in pointing on fewer than half of the networks. That
contrast is weak on the ViTs. Insertion hardly tells methods apart on textures, where most numbers are above .99.
"""

SHORT = """\
## Seven methods in short

The mean over the {count} modern networks. [All tables](#appendix-pointing-digits) are in the appendix.
"""

WORDS_ON_CONTROL = """\
**The control.** On the CNN of rectified detectors and pooling, the default is deep Taylor without a test. Smoothed
secants gain more there by flipping ({flips}). They point better, too ({points}). `method="secant"` asks for them.
"""

PHOTOGRAPHS = """\
## On photographs

Two networks of [the study on photographs](faithful.md), whose operations decide for deep Taylor. {mosaics} mosaics
with four maps each for *grid pointing* (0.25 by chance), {flipped} photographs for *flipping* with a blurred picture
and with the mean colour. In brackets are 95 % intervals. The smoothed secants were measured in an earlier form of
`method="secant"`. They explain the log-odds, and their standard deviation is 1/20 of the side in place of 1/16.
"""

WORDS_ON_PHOTOGRAPHS = """\
Deep Taylor and smoothed secants do not differ by much: their intervals overlap, except for grid pointing on MobileNet
v2. There deep Taylor is ahead, so it stays the default. The difference of the contrast gains much less by flipping than
the contrast itself. So `.relevance` of a contrast is its distinctive part, and not the difference.
"""

LETTERS = """\
## On letters

PP-OCRv6 reads text; its output has the shape (batch, steps, classes). {letters} letters were rendered in words over
photographs. Fonts, words and crops are others than those on which anything was chosen. The logit of each letter at its
step is explained: `explain(x, dt.at_step(step, letter))`. The output has places, so the default is deep Taylor.

- *In the glyph*: the share of positive relevance in the letter's own box, {chance:.3f} by chance.
- *Own*: the share there, against the boxes of both neighbours.
- *Insertion − deletion*: as flipping, with the word's ground.

In brackets are 95 % intervals.
"""

WORDS_ON_LETTERS = """\
Among methods of few passes the default is first in the glyph. It is not first by insertion − deletion: {own:.3f}
against {best:.3f}. Occlusion is ahead in all three, and runs the network 217 times.
"""

CHOICE = """\
## How often the choice is right

`auto` does not see the boxes. It was run again with 1, 2 or 4 pictures as its first inputs, twelve pictures for each
network (`benchmarks/modern_choice.py`). A choice is right if the method points better over all pictures.
On the CNN the operations decide for deep Taylor; secants point better there by {behind}, so this counts as wrong.
"""

COST = """\
## What choosing costs

Times in units of one gradient, on one thread of a processor, batch {batch} (`benchmarks/front_door_cost.py`). The
self-test runs once for each explainer.
"""


def records() -> dict[str, Record]:
    """Every record by the name of its file."""
    return {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in FILES}


# --- small networks ---------------------------------------------------------------------------------------------------


def networks(found: Record, task: str, kind: str) -> list[Record]:
    """Return a network with each of its seeds."""
    return [n for name, n in found["networks"].items() if name.startswith(f"{task}, {kind}, ")]


def cell(found: Record, task: str, kind: str, method: str, measure: str) -> float | None:
    """Return the mean over the seeds; None if the method was not measured there."""
    values = [n["rows"][method][measure][0] for n in networks(found, task, kind) if method in n["rows"]]
    return mean(values) if values else None


def measured(found: Record, task: str, measure: str) -> str:
    """One row for each method, one column for each kind of network."""
    columns = []
    for kind in KINDS:
        values = {m: cell(found, task, kind, m, measure) for m in ROWS}
        highest = max(v for m, v in values.items() if v is not None and m not in MANY)
        marks = {m: " *" if v == highest and m not in MANY else "" for m, v in values.items()}
        columns.append({m: "–" if v is None else f"{v:.3f}{marks[m]}" for m, v in values.items()})
    rows = [(title, *(column[m] for column in columns)) for m, title in ROWS.items()]
    return table(("method", *KINDS.values()), rows)


def within(network: Record, measure: str, others: Iterable[str]) -> bool:
    """True if the default is the first, or its mean lies within the interval of the first."""
    rows = network["rows"]
    first = max((rows[m][measure] for m in others if m in rows), key=lambda value: value[0])
    value: float = rows["default"][measure][0]
    return value >= first[1]


def modern(found: Record) -> dict[str, Record]:
    return {name: n for name, n in found["networks"].items() if f", {CONTROL}," not in name}


def behind(found: Record, measure: str, others: Iterable[str]) -> list[str]:
    """The modern networks on which the default is behind."""
    others = tuple(others)
    return [name for name, n in modern(found).items() if not within(n, measure, others)]


def ranges(found: Record, method: str, measure: str) -> str:
    values = [n["rows"][method][measure][0] for n in modern(found).values()]
    return f"{min(values):.3f} to {max(values):.3f}"


def verdict(found: Record) -> str:
    """What the tables say, counted."""
    count = len(modern(found))
    against = {
        "methods that explain one class": tuple(ONE_CLASS),
        "and secants of the log-odds": (*ONE_CLASS, *LOG_ODDS),
        "and deep Taylor's contrast": (*ONE_CLASS, *LOG_ODDS, *SPLITS),
    }
    rows = [
        (said, *(f"{count - len(behind(found, m, others))} of {count}" for m in MEASURES))
        for said, others in against.items()
    ]
    said = {
        "count": count,
        "default": ranges(found, "default", "disc"),
        "contrast": ranges(found, "default, contrast", "disc"),
        "deep_taylor": ranges(found, "explain", "disc"),
        "rows": table(("beside", *MEASURES.values()), rows),
        "pointing": listed(behind(found, "disc", ONE_CLASS)),
        "flipping": listed(behind(found, "flip", ONE_CLASS)),
    }
    return VERDICT.format(**said) + "\n" + control(found)


def listed(names: Sequence[str]) -> str:
    """Name networks as readers know them: digits, swin, seed 0 → Swin (digits, seed 0)."""
    parts = [name.split(", ") for name in names]
    return ", ".join(f"{KINDS[kind]} ({task}, {seed})" for task, kind, seed in parts) or "none"


def control(found: Record) -> str:
    """What is lost on the control, where the operations decide for deep Taylor."""

    def value(task: str, method: str, measure: str) -> str:
        got = cell(found, task, CONTROL, method, measure)
        assert got is not None
        return f"{got:.3f}"

    flips = ", ".join(
        f"{value(t, 'secant', 'flip')} in place of {value(t, 'default', 'flip')} on {t}" for t in TASKS
    )  # fmt: skip
    points = ", ".join(
        f"{value(t, 'secant', 'disc')} in place of {value(t, 'default', 'disc')} on {t}" for t in TASKS
    )  # fmt: skip
    return WORDS_ON_CONTROL.format(flips=flips, points=points)


def tables(found: Record) -> str:
    parts = []
    for task in TASKS:
        for measure, name in MEASURES.items():
            parts += [f"## Appendix: {name.lower()}, {task}\n", measured(found, task, measure)]
    return "\n".join(parts)


IN_SHORT = (
    "default",
    "default, contrast",
    "explain",
    "integrated gradients",
    "Grad-CAM",
    "AttnLRP",
    "occlusion, 12 px",
)


def shorten(found: Record) -> str:
    """Return a few methods, each with its mean over the modern networks."""
    studied = modern(found).values()
    rows = [
        (ROWS[m], *(f"{mean([n['rows'][m][measure][0] for n in studied]):.3f}" for measure in MEASURES))
        for m in IN_SHORT
    ]  # fmt: skip
    return SHORT.format(count=len(studied)) + "\n" + table(("method", *MEASURES.values()), rows)


def choices(found: Record) -> str:
    """How often `auto` takes the method that points better."""

    def of(task: str, kind: str) -> list[Record]:
        return [n for name, n in found.items() if name.startswith(f"{task}, {kind}, ")]

    def right(task: str, kind: str, count: int) -> float:
        return mean([n[f"right, {count}"] for n in of(task, kind)])

    behind = [n["secant"] - n["deep-taylor"] for task in TASKS for n in of(task, "cnn")]
    rows = [
        (f"{task}, {count} first", *(f"{right(task, kind, count):.1%}" for kind in KINDS))
        for task in TASKS for count in (1, 2, 4)
    ]  # fmt: skip
    about = CHOICE.format(behind=f"{min(behind):.3f} to {max(behind):.3f}")
    return about + "\n" + table(("", *KINDS.values()), rows)


# --- photographs, letters, cost ---------------------------------------------------------------------------------------


def interval(value: Sequence[float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"


def photographs(found: Record) -> str:
    first = found[next(iter(PHOTO_NETWORKS))]
    measures = {"grid": "grid pointing", "flip, blur": "flipping, blur", "flip, mean": "flipping, mean"}
    parts = [PHOTOGRAPHS.format(mosaics=first["mosaics"], flipped=first["flipped"])]
    for name, title in PHOTO_NETWORKS.items():
        rows = [(said, *(interval(found[name]["rows"][m].get(k)) for k in measures)) for m, said in PHOTOS.items()]
        parts += [table((title, *measures.values()), rows)]
    return "\n".join([*parts, WORDS_ON_PHOTOGRAPHS])


def letters(found: Record) -> str:
    measures = {"share": "in the glyph", "own": "own", "flip": "insertion − deletion"}
    rows = [(said, *(interval(found["rows"][m][k]) for k in measures)) for m, said in OCR.items()]
    best = max(r["flip"][0] for m, r in found["rows"].items() if m not in ("occlusion", "default"))
    own = found["rows"]["default"]["flip"][0]
    return "\n".join([
        LETTERS.format(letters=found["letters"], chance=found["chance"]),
        table(("method", *measures.values()), rows),
        WORDS_ON_LETTERS.format(own=own, best=best),
    ])  # fmt: skip


def cost(found: Record) -> str:
    rows = [
        (name, f"{r['gradient, s']:.2f} s", f"{r['self-test']:.1f}", f"{r['secant']:.1f}")
        for name, r in found["rows"].items()
    ]
    head = ("network", "gradient", "self-test ÷ gradient", "an answer by secants ÷ gradient")
    return COST.format(batch=found["batch"]) + "\n" + table(head, rows)


def page(found: dict[str, Record]) -> str:
    """Return all of it."""
    study = found["modern-test"]
    maps = min(n["maps"] for n in study["networks"].values())
    return "\n".join([
        INTRODUCTION, verdict(study), shorten(study), ABOUT.format(maps=maps), choices(found["modern-choice"]),
        photographs(found["modern-photos"]), letters(found["modern-ocr"]), cost(found["front-door-cost"]),
        tables(study),
    ])  # fmt: skip


def main() -> None:
    PAGE.write_text(page(records()), encoding="utf-8")


if __name__ == "__main__":
    main()
