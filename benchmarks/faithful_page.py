"""Write docs/faithful.md and docs/faithful_tables.md from benchmarks/results/faithful/*.json and contrast-*.json.

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
RESULTS = ROOT / "benchmarks/results/faithful"
PAGE, TABLES = ROOT / "docs/faithful.md", ROOT / "docs/faithful_tables.md"
NETWORKS = {
    "efficientnet-lite0": "EfficientNet-Lite0", "mobilenet_v2": "MobileNet v2", "resnet50-keras": "ResNet-50 (Keras)",
    "squeezenet1_1": "SqueezeNet v1.1",
}  # fmt: skip
SECANT = "secant, blurred reference"
OURS = ("deep Taylor", "contrast", SECANT)
AGAIN = "gradient x input"  # what faithful.py --add measures again
SHORT = (
    *OURS, "lrp gamma", "lrp epsilon-plus", "lrp alpha2 beta1", "deeplift", "occlusion", "grad-cam", "smoothgrad",
    "integrated gradients", "random",
)  # fmt: skip
METRICS = ("flipping", "grid pointing")
Record = dict[str, Any]

INTRODUCTION = """\
# Are the maps faithful?

After this page you know how far maps of photographs can be trusted on networks of convolutions and rectifiers, beside the maps of other methods. You also know which criticism of such maps holds for ours.
A closed ledger says that nothing was lost. It does not say that the map is right. So we measure what the network does when a map is believed.
"""

ABOUT = """\
## How it was measured

- **Flipping**: a photograph is cut into patches of 16 pixels. They are replaced by the blurred photograph, most relevant first, and again least relevant first. The number is the mean probability of the class over twelve steps, least first minus most first. It is 0 for a random map.
- **Grid pointing**: four photographs of four classes in one mosaic. The number is the share of a class's positive relevance that lies in its own quarter. It is 0.25 for a random map.
- **Photographs**: 200, one of every fifth ImageNet class. They are not ours to publish; [a command](#measure-your-own-network) measures the same on yours.
- **Brackets**: 95 % intervals of the mean over photographs or mosaics that are drawn again.
- **A star** marks the first of a column, and every method whose interval overlaps with that of the first. The numbers do not tell these apart. Stars count all methods, also those of the appendix.
- **Our rows are bold.** `deep Taylor` is what `dt.explain` gives on these networks, and `contrast` what `dt.contrast` gives, both with all defaults.
- `secant, blurred reference` is `explainer.between(x, "blur")`: what took the score from that of the blurred photograph to that of the photograph ([theory, section 12](theory.md#12-between-two-inputs-secants)). Flipping also puts in the blurred photograph, so this reference fits its question.

On networks with attention, layer norms, GELU or gates, the default takes secants where they do better. [Another page](faithful_modern.md) measures that.
`python benchmarks/faithful_page.py` makes this page from records of real runs; only the words are written by hand.
"""

APPENDIX = """\
# Photographs: all tables and trials

After this page you can look up every method of [the study on photographs](faithful.md), and the ways to treat biases that were tried.
Metrics, brackets and stars are explained [there](faithful.md#how-it-was-measured). `python benchmarks/faithful_page.py` makes this page from records of real runs.
"""


def records() -> dict[str, Record]:
    """Every record by the name of its file."""
    files = [*sorted(RESULTS.glob("*.json")), *sorted(RESULTS.parent.glob("contrast-*.json"))]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def page(found: dict[str, Record]) -> str:
    """Return the page of short tables."""
    parts = [
        INTRODUCTION,
        results(found),
        photographs(found, SHORT),
        ABOUT,
        masks(found, SHORT),
        criticisms(found),
        cost(found),
        speed(found),
        CLOSING,
    ]
    return "\n".join(part for part in parts if part)


def tables(found: dict[str, Record]) -> str:
    """Return the appendix: all rows, and the trials."""
    parts = [APPENDIX, photographs(found), masks(found), biases(found)]
    return "\n".join(part for part in parts if part)


# --- photographs ------------------------------------------------------------------------------------------------------


def own_networks(found: dict[str, Record]) -> dict[str, Record]:
    """Return the records of the networks, in the order of the page."""
    return {name: found[name] for name in NETWORKS if name in found}


def judge(found: dict[str, Record], metric: str) -> dict[str, Evaluation]:
    """Return the evaluations by a metric, by network."""
    return {name: parse_evaluation(record[metric]) for name, record in own_networks(found).items() if metric in record}


def results(found: dict[str, Record]) -> str:
    """Return the result in short, counted from the records."""
    grid, flip = judge(found, "grid pointing"), judge(found, "flipping")
    if not grid or not flip:
        return ""

    def others(e: Evaluation, metric: str) -> float:
        return max(s.interval.mean for s in e.ranked(metric) if not s.method.startswith(OURS))

    def spread(values: list[float]) -> str:
        return f"{min(values):.2f} to {max(values):.2f}"

    def points(method: str) -> str:
        return spread([e.of("grid pointing", method).interval.mean for e in grid.values()])

    def of_first(method: str) -> str:
        return f"{sum(method in e.leaders('flipping') for e in flip.values())} of {len(flip)}"

    everywhere = set.intersection(
        *({m for m in e.leaders("flipping") if not m.startswith(OURS)} for e in flip.values())
    )
    shared = ", ".join(f"`{m}`" for m in sorted(everywhere)) or "no others"
    lines = [
        f"- **Pointing.** Of the relevance in a mosaic, the contrast has {points('contrast')} in the right photograph, deep Taylor {points('deep Taylor')}, and the best of the other methods {spread([others(e, 'grid pointing') for e in grid.values()])}.",
        f"- **Flipping.** The contrast is first, or not told apart from the first, on {of_first('contrast')} networks, and so is deep Taylor on {of_first('deep Taylor')}. On all of them so are {shared}.",
    ]
    if "digits" in found:
        places = [standing(parse_evaluation(r), "inside") for r in found["digits"]["evaluations"].values()]
        said = " and ".join(f"place {place} of {count}" for place, count, _ in places)
        lines.append(
            f"- **Where the true pixels are known**, on digits, deep Taylor has {said} by the share of relevance in the ink. First is `{places[0][2]}`."
        )
    lines.append(
        "- **Near the input, the maps of two classes are nearly the same.** Ask for a contrast if the question is *why this class and not that one*."
    )
    return "\n".join(
        ["## The result in short", "", *lines, "", "[All methods](faithful_tables.md) are in the appendix.", ""]
    )


def photographs(found: dict[str, Record], methods: tuple[str, ...] | None = None) -> str:
    """Return the tables of both metrics: with all methods and what they say, or with some methods alone."""
    own = own_networks(found)
    lines = [] if methods else ["## On photographs", ""]
    for metric in METRICS:
        judged = judge(found, metric)
        lines += [f"{'##' if methods else '###'} {metric.capitalize()}", "", *table(metric, judged, methods), ""]
        lines += [] if methods else [*sentences(metric, judged), ""]
    lines += [] if methods else added(own)
    broken = [NETWORKS[name] for name, record in own.items() if record.get("broken off")]
    if broken:
        lines += [f"The run of {', '.join(broken)} was stopped early: what is not in the tables was not measured.", ""]
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
            f"The row `{method}` was measured later than the others, on a processor in place of the GPU, on the same photographs and mosaics. As a check, `{AGAIN}` was measured again on the first of them. "
            f"The largest difference of one photograph or map was: {'; '.join(each)}. A dash means not measured; the row's place in the table is by the mean of what was."
        )
        lines += [text, ""]
    return lines


def table(metric: str, judged: dict[str, Evaluation], only: tuple[str, ...] | None = None) -> list[str]:
    """Return methods in the order of their mean over the networks; a column per network. `only`: these methods."""
    methods = {s.method for e in judged.values() for s in e.scores if only is None or s.method in only}
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


def sentences(metric: str, judged: dict[str, Evaluation]) -> list[str]:
    """Return for each network who is first, and where ours stand."""
    said = []
    for name, e in judged.items():
        ranked = e.ranked(metric)
        first = ranked[0].method
        others = [s for s in ranked if not s.method.startswith(OURS)]
        place = "; ".join(
            f"`{own}` {'overlaps with the first' if own in e.leaders(metric) else 'is behind'}"
            for own in OURS
            if own != first and any(s.method == own for s in ranked)
        )
        best = f"; of the others `{others[0].method}` does best ({others[0].interval.mean:.2f})" if others else ""
        said.append(f"- {NETWORKS[name]}: first is `{first}`; {place}{best}.")
    return said


def _bold(method: str) -> str:
    return f"**{method}**" if method in OURS else method


def _interval(i: Any) -> str:
    return f"{i.mean:.3f} [{i.low:.3f}, {i.high:.3f}]"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# --- ways to treat biases ---------------------------------------------------------------------------------------------


WAYS = {  # plain words for the rows of the record
    "spread: a bias's share to the inputs of its unit": "spread: a bias's share goes to the inputs of its unit",
    "neuron, or handed back in proportion to the whole map": "neuron, or redistributed in proportion to the whole map",
    "units that rest on biases silenced, within their place": "units that depend on biases set to zero, within their place",
    "walks that end in biases left out, below each place of the last feature map (two passes more)": "paths that end in biases left out, below each place of the last feature map (two more passes)",
    "handed back place by place (the default)": "redistributed place by place (the default)",
    "the places alone, enlarged": "the places alone, upsampled",
}
SETS = {
    "100 photographs that are recognised, 40 mosaics": "100 correctly classified photographs, 40 mosaics",
    "120 photographs, 50 mosaics; SqueezeNet: all of it handed back by place, where its biases take little": "120 photographs, 50 mosaics. SqueezeNet: all is redistributed by place, although its biases absorb little",
}


def biases(found: dict[str, Record]) -> str:
    """Return what was tried before the default was chosen."""
    if "biases-h200" not in found:
        return ""
    lines = ["## Ways to treat biases", "", BIASES, ""]
    for part in ("first", "second"):
        record = found["biases-h200"][part]
        names = list(next(iter(record["rows"].values())))
        about = SETS.get(record["sets"], record["sets"])
        lines += [f"{about}. *Sharp*: the share of relevance on the top 5 % of the pixels.", ""]
        lines += ["| way | " + " | ".join(f"{NETWORKS[n]}: grid, flipping, sharp" for n in names) + " |"]
        lines += ["|---|" + "---|" * len(names)]
        for way, row in record["rows"].items():
            cells = [
                f"{row[n]['grid']:.3f}, {row[n]['flipping']:.3f}, {row[n]['sharp']:.2f}" for n in names if n in row
            ]
            lines.append(f"| {WAYS.get(way, way)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


BIASES = """\
In networks with BatchNorm the paper's bias neurons absorb nearly all of the score. The map that is left is sharp, and holds 0.002 % of it. Spreading each bias's share over the inputs of its own unit gives all of the score to the pixels, and looks like a red wash.

These ways were tried on a GPU, and we looked at their maps. The default gives pixels at the end what biases absorbed, place by place ([theory, section 10](theory.md#10-redistribution-of-what-biases-absorbed)). In the second table, on the two networks with BatchNorm, it is first by flipping and within .002 of the first by pointing. It is twice as concentrated as *spread*, complete, and takes no further pass.

The tables have different photographs: compare each row with *spread* in its own table. By that measure three ways of the first table gain a little more by flipping on MobileNet v2. They point less well, and their maps look washed. These trials were run before the default was built in, with code that is not in the repository."""


# --- where the truth is known ----------------------------------------------------------------------------------------


def masks(found: dict[str, Record], only: tuple[str, ...] | None = None) -> str:
    """Return digits and signs: the share of relevance where the truth lies. `only`: these methods."""
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
    methods = {s.method for e, _ in judged.values() for s in e.scores if only is None or s.method in only}
    rows = {m: [_inside(e, m) for e, _ in judged.values()] for m in methods}
    first = next(iter(judged.values()))[0]
    order = sorted(methods, key=lambda m: (-_number(first, m), m))
    lines = ["## Where the true pixels are known", "", *([MASKS, ""] if only else [])]
    lines += [
        "| method | " + " | ".join(f"{n}: inside; flipping" for n in judged) + " |",
        "|---|" + "---|" * len(judged),
    ]
    lines += [f"| {_bold(m)} | " + " | ".join(rows[m]) + " |" for m in order]
    lines += ["", "By chance inside: " + ", ".join(f"{n} {c:.3f}" for n, (_, c) in judged.items()) + ".", ""]
    lines += [_describe(name, e) for name, (e, _) in judged.items()] if only else []
    return "\n".join(lines) + ("\n" if only else "")


def standing(e: Evaluation, metric: str) -> tuple[int, int, str]:
    """Return the place of deep Taylor by a metric, the number of methods, and the first of them."""
    ranked = e.ranked(metric)
    return next(k for k, s in enumerate(ranked, 1) if s.method == "deep Taylor"), len(ranked), ranked[0].method


def _describe(name: str, e: Evaluation) -> str:
    """Return where the default map stands, by both metrics."""
    said = []
    for metric in ("inside", "flipping"):
        place, count, first = standing(e, metric)
        overlaps = "overlaps with the first" if "deep Taylor" in e.leaders(metric) else "behind the first"
        said.append(f"{metric} {place} of {count}, {overlaps} (`{first}`)")
    return f"- Deep Taylor on {name.partition(' (')[0]}: {'; '.join(said)}."


MASKS = """\
*Digits*: the paper's two networks say how likely a digit 0–3 stands beside a distractor. The mask is that digit's ink; flipping paints black and reads the score. *Signs*: a network with BatchNorm, trained for this page to tell six signs on coloured ground with meaningless blobs. The mask is the sign's ink.

`inside` is the share of positive relevance in the mask. A map can be right and lie outside: beside the ink the network looks at what is not there."""


def _inside(e: Evaluation, method: str) -> str:
    found = {s.metric: s.interval for s in e.scores if s.method == method}
    if not found:
        return "–"
    return f"{found['inside'].mean:.3f}; {found['flipping'].mean:.3g}"


def _number(e: Evaluation, method: str) -> float:
    return next((s.interval.mean for s in e.scores if (s.method, s.metric) == (method, "inside")), -1.0)


# --- criticisms -------------------------------------------------------------------------------------------------------


PARTS = {  # of the record: the metric there, and the head of a column
    "random logit": ("random logit", "random logit ↓"),
    "randomised, top-down": ("top-down randomisation", "random weights ↓"),
    "randomised, emprt": ("emprt", "eMPRT ↑"),
    "flipping, mean": ("flipping", "flipping, mean colour ↑"),
    "flipping, zero": ("flipping", "flipping, zero ↑"),
}


def criticisms(found: dict[str, Record]) -> str:
    """Return each criticism with what it means here, and a table of the numbers."""
    if "criticisms" not in found:
        return ""
    record = found["criticisms"]
    judged = {
        head: {s.method: s.interval for s in parse_evaluation(record[part]).ranked(metric)}
        for key, (metric, head) in PARTS.items()
        if (part := key if key in record else key.partition(",")[0]) in record
    }
    methods = sorted(next(iter(judged.values())), key=lambda m: next(iter(judged.values()))[m].mean)
    counts = {head: max(i.samples for i in scores.values()) for head, scores in judged.items()}
    lines = [
        f"## Criticisms of such maps, measured ({NETWORKS[record['about']['network']]})",
        "",
        CRITICISMS,
        "",
        "| method | " + " | ".join(f"{head}, n = {counts[head]}" for head in judged) + " |",
        "|---|" + "---|" * len(judged),
    ]
    for m in methods:
        cells = [f"{s[m].mean:.2f} [{s[m].low:.2f}, {s[m].high:.2f}]" if m in s else "–" for s in judged.values()]
        lines.append(f"| {_bold(m)} | " + " | ".join(cells) + " |")
    lines += ["", *rank_one(record), "", ROOTS]
    return "\n".join(lines)


def rank_one(record: Record) -> list[str]:
    """Return the table of cosines of the maps of several classes, from the output to the input."""
    chosen = {label: _some(list(of.items())) for label, of in record["cosines"].items()}
    width = max(len(of) for of in chosen.values())
    lines = [RANK_ONE, "", "| from the output to the input |" + " |" * width, "|---|" + "--:|" * width]
    lines += [f"| {label} | " + " | ".join(f"{c:.2f}" for _, c in of) + " |" for label, of in chosen.items()]
    return [*lines, "", COSINE]


def _some(of: list[tuple[str, float]], count: int = 6) -> list[tuple[str, float]]:
    step = max(1, (len(of) - 1) // (count - 1))
    return [*of[::step][: count - 1], of[-1]]


CRITICISMS = """\
- **Maps of different classes are alike** (Sixt et al., 2020). *Random logit* is the rank correlation of the map with that of a class drawn at random. Classes with a negative score have an empty map by deep Taylor, and are not counted. `random` draws the same map for both, so it has 1.
- **The map does not notice random weights** (Adebayo et al., 2018). Layers are permuted from the output down, in eight steps. *Random weights* is the mean rank correlation with the true map.
- **That test is itself debated** (Binder et al., 2022; Hedström et al., 2024). By *eMPRT* a random network's map should be more complex.
- **Flipping depends on the filling.** Two columns have the mean colour and zero in place of the blurred picture.

An arrow says whether high or low is good."""
RANK_ONE = """\
**Positive matrices multiply to rank one** (Sixt et al., 2020): whatever class is explained, the same direction arrives. The table has the mean cosine of the relevance of a photograph's four best classes, at six layers. *Local* is our reading of averages ([theory, section 8](theory.md#8-local-evidence))."""
COSINE = """\
So this holds for ours, too: near the input the maps of a photograph's classes point nearly the same way. Two things tell them apart: local evidence at the last feature map, and the contrast, which compares them."""
ROOTS = """\
**Root points may leave the region in which the network is linear** (Sixt and Landgraf, 2022), and rules are a choice, not a theorem. Both are measured, layer by layer, in [the theory](theory.md#11-roots-measured).

**Product rules depend on how a product is bracketed** (You, 2025). Ours gives a product's relevance to one factor, the signal, and none to the gate, so brackets do not matter. If neither factor can be recognised as the gate, an error asks you to say which it is (`dt.rules.Signal`).
"""


# --- the rest ---------------------------------------------------------------------------------------------------------


def speed(found: dict[str, Record]) -> str:
    """How fast maps are judged."""
    if "evaluation-h200" not in found:
        return ""
    record = found["evaluation-h200"]
    beside, many = record["beside quantus"], record["flipping"]
    return (
        "## How fast maps are judged\n\n"
        f"On one {record['about']['machine']['device']} ({NETWORKS[record['about']['network']]}): {many['methods']} methods by flipping on {many['pictures']} pictures, maps included, in "
        f"{many['seconds']:.0f} s. On {beside['pictures']} pictures with {beside['steps']} steps each, in one run, pixel flipping of Quantus takes "
        f"{min(beside['seconds']['quantus']):.1f} s. Ours takes {min(beside['seconds']['ours']):.2f} s ({beside['times faster']['ours']:.0f} times faster), with `compiled=True` "
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
`python benchmarks/contrast_cost.py`, on network families of the zoo, with random weights in float32. The calls take turns in one run. On a processor, processor time is counted."""


def _ratios(of: list[Record], key: str) -> str:
    highest = max(of, key=lambda r: r[key])
    return f"{statistics.median(r[key] for r in of):.2f} ({highest[key]:.2f}, {highest['family']})"


CLOSING = """\
## Measure your own network

    deeptaylor evaluate FOLDER --model efficientnet-lite0 --metrics "flipping; grid pointing" --out judged

FOLDER has one subfolder per class. In Python, use `dt.evaluate(model, data, methods=…, metrics=…)`; a method is any callable `(network, x, classes) → relevance`.

Other methods run through their own libraries if these are installed: `pip install deeptaylor[evaluation]`, then `pip install --no-deps grad-cam ttach opencv-python-headless zennit==0.5.1`, which leaves your torch alone. For one map alone, use `e.check(faithful=True)`, or `deeptaylor explain photo.jpg --flip`.
"""


def main() -> None:
    found = records()
    for path, text in ((PAGE, page(found)), (TABLES, tables(found))):
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
