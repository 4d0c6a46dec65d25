"""docs/units.md, made from benchmarks/results/units.json and from nothing else.

    python benchmarks/units_page.py

The record comes from units.py. Run it again after that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from page import table

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "benchmarks/results/units.json", ROOT / "docs/units.md"
Record = dict[str, Any]

INTRODUCTION = """\
# Small networks with a known answer

After this page you know on which of {count} small networks each method gives the right answer. Each network is set by
hand, so the right answer is known before any method runs.
"""

DEFINITIONS = """\
**The right answer** is the Shapley value of the parts of the input against the reference. A test computes it by
enumeration. In {axioms} networks it already follows from simple axioms, which the column *why* names:

- symmetry: parts with the same role get the same;
- dummy: a part without effect gets nothing;
- additive: in a sum of functions of one part each, each part gets the change of its function;
- sum: all parts together get the difference of the scores.

In the other {others} networks only the enumeration gives the answer. A method with other axioms may differ for good
reasons.

**An answer is right** if its shares (relevance over the sum of its absolute values) differ from the right shares by at
most {tolerance} in all. The size of the relevance does not count. *Exact*: the relevance itself is right to a
millionth.

**The default** is `dt.Explainer(network, method="auto", reference=…).explain(x, target)`. The reference is zeros, or an
input with a meaning such as a white picture. Three pictures and a signal have no reference.

**The other methods.** Integrated gradients (200 steps) and DeepLift (captum) have the same reference, or zeros.
Gradient × input, AttnLRP and deep Taylor have none. Pictures are judged by the mark and two pixels around it, because
the default smooths secants of pictures.

`python benchmarks/units_page.py` makes this page from a record of real runs (`benchmarks/units.py`; the networks are in
`benchmarks/units_networks.py`).
"""

WRONG = """\
## Where the default is wrong

[The limits](limits.md#interactions-inside-one-unit) say why.
"""


def record() -> Record:
    found: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def by_axioms(unit: Record) -> bool:
    """True if symmetry, dummy and the sum give the answer without a Shapley value."""
    return "Shapley" not in unit["why"]


def methods(found: Record) -> list[str]:
    return list(found["units"][0]["methods"])


def totals(found: Record) -> str:
    """One row for each method."""
    units = found["units"]
    rows = []
    for name in methods(found):
        answers = [(unit["methods"][name], by_axioms(unit)) for unit in units]
        given = [(a, axioms) for a, axioms in answers if a is not None]
        right = [axioms for a, axioms in given if a["right"]]
        exact = sum(a["exact"] for a, _ in given)
        cells = (len(right), sum(right), len(right) - sum(right), exact, len(answers) - len(given))
        rows.append((f"**{name}**" if name == "default" else name, *map(str, cells)))
    axioms = sum(map(by_axioms, units))
    head = (
        "method",
        f"right, of {len(units)}",
        f"by axioms, of {axioms}",
        f"by Shapley value, of {len(units) - axioms}",
    )
    return table((*head, "exact", "not supported"), rows)


def numbers(values: list[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def wrong(found: Record) -> str:
    """The answers of the default that are wrong."""
    units = [u for u in found["units"] if not u["methods"]["default"]["right"]]
    rows = [(u["name"], numbers(u["answer"]), numbers(u["methods"]["default"]["relevance"])) for u in units]
    return table(("network", "right", "default"), rows)


def every(found: Record) -> str:
    """One row for each network: yes, no, or not supported."""

    def cell(answer: Record | None) -> str:
        return "not supported" if answer is None else "yes" if answer["right"] else "**no**"

    rows = [
        (u["name"], u["reference"], numbers(u["answer"]), u["why"], *map(cell, u["methods"].values()))
        for u in found["units"]
    ]
    return table(("network", "reference", "right answer", "why", *methods(found)), rows)


def page(found: Record) -> str:
    """All of it."""
    axioms = sum(map(by_axioms, found["units"]))
    count = len(found["units"])
    introduction = INTRODUCTION.format(count=count)
    definitions = DEFINITIONS.format(axioms=axioms, others=count - axioms, tolerance=found["tolerance"])
    appendix = "## Appendix: all networks\n"
    return "\n".join([introduction, totals(found), definitions, WRONG, wrong(found), appendix, every(found)])


def main() -> None:
    PAGE.write_text(page(record()), encoding="utf-8")


if __name__ == "__main__":
    main()
