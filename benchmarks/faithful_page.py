"""docs/faithful.md, made from benchmarks/results/faithful/*.json (and contrast-*.json beside it), and from nothing else.

    python benchmarks/faithful_page.py

Records of photographs, criticisms, digits and signs come from faithful.py, that of the speed from evaluation_speed.py,
that of ways to treat biases from trials before one of them was built in. Run it again after any.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from deeptaylor.evaluation.scores import Evaluation, parse_evaluation

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results/faithful", ROOT / "docs/faithful.md"
NETWORKS = {
    "efficientnet-lite0": "EfficientNet-Lite0", "mobilenet_v2": "MobileNet v2", "resnet50-keras": "ResNet-50 (Keras)",
    "squeezenet1_1": "SqueezeNet v1.1",
}  # fmt: skip
SECANT = "secant, blurred reference"
OURS = ("deep Taylor", "contrast", SECANT)
AGAIN = "gradient x input"  # what faithful.py --add measures again
Record = dict[str, Any]

INTRODUCTION = """\
# Are the maps faithful?

A closed ledger says that nothing was lost. It does not say that the map is right. So the network is asked: what does it do when a map is believed?
This page is made by `python benchmarks/faithful_page.py` from records of real runs; nothing on it is typed by hand but the words.

**Flipping**: a photograph is cut into patches of 16 pixels, which are replaced by the photograph out of focus, the most relevant first, and again the least relevant
first. The number is the mean probability of the class over twelve steps, least first minus most first: 0 for a random map.
**Grid pointing**: four photographs of four classes in one mosaic; the share of a class's positive relevance that lies in its own quarter. 0.25 for a random map.
In brackets is the middle 95 % of means over photographs (or mosaics) drawn anew. A star marks the first of a column, and those whose interval overlaps with its own: the numbers do not tell
these apart. Our rows are bold: `deep Taylor` is what `dt.explain` gives on these networks, `contrast` what `dt.contrast` gives, both with all defaults; `secant, blurred reference` is `explainer.between(x, "blur")`, which says what took the
score from that of the blurred photograph to that of the photograph ([theory, section 12](theory.md#12-between-two-inputs-secants)). Flipping puts in a photograph out of focus, too, so that this reference fits its question.

Networks with attention, layer norms, GELU or gates are another matter: there the default takes secants where they do better, and [a page of its own](faithful_modern.md) measures it.

The 200 photographs are one of every fifth ImageNet class. They are not ours to publish; `deeptaylor evaluate FOLDER --model NAME` asks the same of yours
([the command](#ask-it-yourself)).
"""


def records() -> dict[str, Record]:
    """Every record by the name of its file."""
    files = [*sorted(RESULTS.glob("*.json")), *sorted(RESULTS.parent.glob("contrast-*.json"))]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def page(found: dict[str, Record]) -> str:
    """All of it."""
    parts = [
        INTRODUCTION,
        photographs(found),
        biases(found),
        masks(found),
        criticisms(found),
        cost(found),
        speed(found),
        CLOSING,
    ]
    return "\n".join(part for part in parts if part)


# --- photographs ------------------------------------------------------------------------------------------------------


def photographs(found: dict[str, Record]) -> str:
    """The two large tables, and what they say."""
    own = {name: found[name] for name in NETWORKS if name in found}
    lines = ["## On photographs", ""]
    for metric in ("flipping", "grid pointing"):
        judged = {name: parse_evaluation(record[metric]) for name, record in own.items() if metric in record}
        lines += [f"### {metric.capitalize()}", "", *table(metric, judged), ""]
        lines += [sentence(metric, judged), ""]
    lines += added(own)
    broken = [NETWORKS[name] for name, record in own.items() if record.get("broken off")]
    if broken:
        lines += [f"The run of {', '.join(broken)} was broken off: what is not in the tables was not measured.", ""]
    return "\n".join(lines)


def added(own: dict[str, Record]) -> list[str]:
    """Which rows were measured later, and elsewhere."""
    later: dict[str, list[str]] = {}
    for name, record in own.items():
        for method, about in record.get("added", {}).items():
            off = ", ".join(f"{metric} {value:.4f}" for metric, value in about[AGAIN].items())
            later.setdefault(method, []).append(f"{NETWORKS[name]}: {off}")
    lines = []
    for method, each in later.items():
        text = (
            f"The row `{method}` was measured later than the others, on a processor in place of the GPU, on the same photographs and mosaics. To see that nothing else differs, `{AGAIN}` was measured again on the first of them; "
            f"one photograph or map differs from the record by at most: {'; '.join(each)}. Where the row has a dash, it was not measured; its place in the table is by the mean of what was."
        )
        lines += [text, ""]
    return lines


def table(metric: str, judged: dict[str, Evaluation]) -> list[str]:
    """Methods in the order of their mean over the networks; a column per network."""
    methods = {s.method for e in judged.values() for s in e.scores}
    mean = {m: _mean([s.interval.mean for e in judged.values() for s in e.scores if s.method == m]) for m in methods}
    leaders = {name: e.leaders(metric) for name, e in judged.items()}
    counts = {name: max(s.interval.samples for s in e.scores) for name, e in judged.items()}
    unit = "photographs" if metric == "flipping" else "maps"
    head = "| method | " + " | ".join(f"{NETWORKS[name]}, {counts[name]} {unit}" for name in judged) + " |"
    rows = []
    for method in sorted(methods, key=lambda m: (-mean[m], m)):
        cells = []
        for name, e in judged.items():
            scores = [s for s in e.scores if s.method == method]
            star = " *" if method in leaders[name] else ""
            cells.append(f"{_interval(scores[0].interval)}{star}" if scores else "–")
        rows.append(f"| {_bold(method)} | " + " | ".join(cells) + " |")
    return [head, "|---|" + "---|" * len(judged), *rows]


def sentence(metric: str, judged: dict[str, Evaluation]) -> str:
    """Who is first where, and where ours stand, in words."""
    said = []
    for name, e in judged.items():
        ranked = e.ranked(metric)
        first = ranked[0].method
        others = [s for s in ranked if not s.method.startswith(OURS)]
        place = ", ".join(
            f"{own} {'is first' if own == first else 'overlaps with the first' if own in e.leaders(metric) else 'is behind'}"
            for own in OURS
            if any(s.method == own for s in ranked)
        )
        best = f"; of the others {others[0].method} does best ({others[0].interval.mean:.2f})" if others else ""
        said.append(f"{NETWORKS[name]}: first {first}; {place}{best}.")
    return " ".join(said)


def _bold(method: str) -> str:
    return f"**{method}**" if method in OURS else method


def _interval(i: Any) -> str:
    return f"{i.mean:.3f} [{i.low:.3f}, {i.high:.3f}]"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# --- ways to treat biases ---------------------------------------------------------------------------------------------


def biases(found: dict[str, Record]) -> str:
    """What was tried before the default was chosen."""
    if "biases-h200" not in found:
        return ""
    lines = ["## Which way to treat biases", "", BIASES, ""]
    for part in ("first", "second"):
        record = found["biases-h200"][part]
        names = list(next(iter(record["rows"].values())))
        lines += [
            f"{record['sets'][0].upper()}{record['sets'][1:]}. *Sharp*: the share of relevance on the top 5 % of the pixels.",
            "",
        ]
        lines += ["| way | " + " | ".join(f"{NETWORKS[n]}: grid, flipping, sharp" for n in names) + " |"]
        lines += ["|---|" + "---|" * len(names)]
        for way, row in record["rows"].items():
            cells = [
                f"{row[n]['grid']:.3f}, {row[n]['flipping']:.3f}, {row[n]['sharp']:.2f}" for n in names if n in row
            ]
            lines.append(f"| {way} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


BIASES = """\
In networks with BatchNorm the paper's bias neurons take nearly all of the score: the map that is left is sharp, and holds 0.002 % of it. Spreading each bias's share over the inputs of its own
unit gives all of the score to the pixels, and looks like a red wash. These ways were tried on a GPU, and looked at. The one that was taken gives pixels at the end what biases absorbed,
place by place ([theory, section 10](theory.md#10-redistribution-of-what-biases-absorbed)): in the second table, on the two networks with BatchNorm, it is first by flipping and within .002 of the first by pointing; it is twice as concentrated as spread, complete, and takes no further pass. The tables have different photographs: compare each row with spread in its own. By that measure three ways of the first table gain a little more by flipping on MobileNet v2, and point less well; they look washed. (These trials were run before it was built in, with code that is not in the repository.)"""


# --- where the truth is known ----------------------------------------------------------------------------------------


def masks(found: dict[str, Record]) -> str:
    """Digits and signs: the share of relevance where the truth lies."""
    judged: dict[str, tuple[Evaluation, float]] = {}
    if "digits" in found:
        chance = found["digits"]["inside by chance"]
        judged |= {f"digits, {n}": (parse_evaluation(r), chance) for n, r in found["digits"]["evaluations"].items()}
    if "synthetic" in found:
        record = found["synthetic"]
        judged[f"signs ({record['right']:.1%} right)"] = (
            parse_evaluation(record["evaluation"]),
            record["inside by chance"],
        )
    if not judged:
        return ""
    methods = {s.method for e, _ in judged.values() for s in e.scores}
    rows = {m: [_inside(e, m) for e, _ in judged.values()] for m in methods}
    first = next(iter(judged.values()))[0]
    order = sorted(methods, key=lambda m: (-_number(first, m), m))
    lines = ["## Where the true pixels are known", "", MASKS, ""]
    lines += [
        "| method | " + " | ".join(f"{n}: inside; flipping" for n in judged) + " |",
        "|---|" + "---|" * len(judged),
    ]
    lines += [f"| {_bold(m)} | " + " | ".join(rows[m]) + " |" for m in order]
    lines += ["", "By chance inside: " + ", ".join(f"{n} {c:.3f}" for n, (_, c) in judged.items()) + "."]
    lines += ["", " ".join(_standing(name, e) for name, (e, _) in judged.items())]
    return "\n".join(lines) + "\n"


def _standing(name: str, e: Evaluation) -> str:
    """Where the default map stands, by both numbers."""
    said = []
    for metric in ("inside", "flipping"):
        ranked = e.ranked(metric)
        place = next(k for k, s in enumerate(ranked, 1) if s.method == "deep Taylor")
        overlaps = "overlaps with the first" if "deep Taylor" in e.leaders(metric) else "behind the first"
        said.append(f"{metric} {place} of {len(ranked)}, {overlaps} ({ranked[0].method})")
    return f"Deep Taylor on {name.partition(' (')[0]}: {'; '.join(said)}."


MASKS = """\
*Digits*: the paper's two networks say how likely a digit 0–3 stands beside a distractor; the mask is that digit's ink, flipping paints black and reads the score. *Signs*: a network with BatchNorm, trained for this page to
tell six signs on coloured ground with blobs that mean nothing; the mask is the sign's ink. `inside` is the share of positive relevance there. A map can be right and lie outside: beside the ink the network looks at what is not there."""


def _inside(e: Evaluation, method: str) -> str:
    found = {s.metric: s.interval for s in e.scores if s.method == method}
    if not found:
        return "–"
    return f"{found['inside'].mean:.3f}; {found['flipping'].mean:.3g}"


def _number(e: Evaluation, method: str) -> float:
    return next((s.interval.mean for s in e.scores if (s.method, s.metric) == (method, "inside")), -1.0)


# --- criticisms -------------------------------------------------------------------------------------------------------


def criticisms(found: dict[str, Record]) -> str:
    """Criticism by criticism, each with a number."""
    if "criticisms" not in found:
        return ""
    record = found["criticisms"]
    name = NETWORKS[record["about"]["network"]]
    lines = [f"## What has been said against such maps ({name})", ""]
    lines += _one(record, "random logit", "random logit", LOGIT)
    lines += _one(record, "randomised", "top-down randomisation", TOP_DOWN)
    lines += _one(record, "randomised", "emprt", EMPRT)
    cosines = record["cosines"]
    inner = {label: list(of.items()) for label, of in cosines.items()}
    lines += [
        "**Positive matrices multiply to rank one** (Sixt et al., 2020): whatever class is asked, the same direction arrives.",
        "",
    ]
    lines += [
        f"Mean cosine of the relevance of a photograph's four best classes, {label}: " +
        ", ".join(f"{c:.2f} at {node}" for node, c in _some(of)) + "."
        for label, of in inner.items()
    ]  # fmt: skip
    lines += ["", COSINE, ""]
    for fill in ("mean", "zero"):
        if f"flipping, {fill}" in record:
            lines += _one(record, f"flipping, {fill}", "flipping", FILL.format(fill=fill))
    return "\n".join([*lines, ROOTS])


def _one(record: Record, part: str, metric: str, words: str) -> list[str]:
    if part not in record:
        return []
    ranked = parse_evaluation(record[part]).ranked(metric)
    values = "; ".join(
        f"{_bold(s.method)} {s.interval.mean:.2f} [{s.interval.low:.2f}, {s.interval.high:.2f}]" for s in ranked
    )
    return [words, "", f"{values} (n = {max(s.interval.samples for s in ranked)}).", ""]


def _some(of: list[tuple[str, float]], count: int = 6) -> list[tuple[str, float]]:
    step = max(1, (len(of) - 1) // (count - 1))
    return [*of[::step][: count - 1], of[-1]]


LOGIT = """\
**Maps of different classes are alike** (Sixt et al., 2020; random logit). Rank correlation of the map with that of a class drawn at random, low is good; classes with a negative score have an empty map with us, and are not counted (`random` draws the same map for both, so it has 1):"""
TOP_DOWN = """\
**The map does not notice random weights** (Adebayo et al., 2018). Layers are permuted from the output down, eight steps; mean rank correlation with the true map, low is good:"""
EMPRT = """\
**That test is itself debated** (Binder et al., 2022; Hedström et al., 2024): by eMPRT a random network's map should be more complex, high is good:"""
COSINE = """\
So it is true of us, too: near the input the maps of a photograph's classes point nearly the same way. What tells them apart is where they are made to differ: local evidence at the last feature map, and the
contrast, which compares them instead of looking at one."""
FILL = """\
**Flipping depends on what fills the holes.** The same with the {fill} colour in place of the blurred picture:"""
ROOTS = """\
**Root points may leave the region in which the network is linear** (Sixt and Landgraf, 2022), and rules are a choice, not a theorem: measured, layer by layer, in
[the theory](theory.md#11-roots-measured). **Product rules depend on how a product is bracketed** (You, 2025): ours gives a product's relevance to one factor, the signal, and none to the
gate, so that brackets do not matter; where neither factor is recognisably the gate, the network is refused until the user says which it is (`dt.rules.Signal`).
"""


# --- the rest ---------------------------------------------------------------------------------------------------------


def speed(found: dict[str, Record]) -> str:
    """How fast maps are judged."""
    if "evaluation-h200" not in found:
        return ""
    record = found["evaluation-h200"]
    beside, many = record["beside quantus"], record["flipping"]
    return (
        "## How fast they are judged\n\n"
        f"On one {record['about']['machine']['device']} ({NETWORKS[record['about']['network']]}): {many['methods']} methods by flipping on {many['pictures']} pictures, maps included, in "
        f"{many['seconds']:.0f} s. Quantus' pixel flipping on the same work, {beside['pictures']} pictures with {beside['steps']} steps each, in one run: "
        f"{min(beside['seconds']['quantus']):.1f} s; ours {min(beside['seconds']['ours']):.2f} s ({beside['times faster']['ours']:.0f} times faster), with `compiled=True` "
        f"{min(beside['seconds']['ours, compiled']):.2f} s ({beside['times faster']['ours, compiled']:.0f} times).\n"
    )


def cost(found: dict[str, Record]) -> str:
    """What the contrast and local evidence cost."""
    runs = [record for name, record in found.items() if name.startswith("contrast-")]
    if not runs:
        return ""
    lines = ["## What the contrast costs", "", COST, ""]
    lines += [
        "| machine | families | contrast ÷ explain: time, median (highest) | memory | local evidence ÷ none: time |",
        "|---|---|---|---|---|",
    ]
    for record in runs:
        of = record["families"]
        cells = [_ratios(of, key) for key in ("contrast", "contrast_memory", "local")]
        lines.append(f"| {record['machine']['device']} | {len(of)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


COST = """\
`python benchmarks/contrast_cost.py`, on families of the zoo: the calls take turns in one run; on a processor its own time is counted. Random weights, float32."""


def _ratios(of: list[Record], key: str) -> str:
    highest = max(of, key=lambda r: r[key])
    return f"{statistics.median(r[key] for r in of):.2f} ({highest[key]:.2f}, {highest['family']})"


CLOSING = """\
## Ask it yourself

    deeptaylor evaluate FOLDER --model efficientnet-lite0 --metrics "flipping; grid pointing" --out judged

FOLDER has a subfolder per class. In Python, `dt.evaluate(model, data, methods=…, metrics=…)`; a method is any callable `(network, x, classes) → relevance`. Other methods run through their own libraries where these are installed
(`pip install deeptaylor[evaluation]`; then `pip install --no-deps grad-cam ttach opencv-python-headless zennit==0.5.1`, which leaves your torch alone). One map alone: `e.check(faithful=True)`, or `deeptaylor explain photo.jpg --flip`.
"""


def main() -> None:
    PAGE.write_text(page(records()), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
