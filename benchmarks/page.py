"""docs/speed.md and docs/images/growth.png, made from benchmarks/results/*.json and from nothing else.

    python benchmarks/page.py

Records with `settings` come from speed.py, with `books` from books.py, with `growth` from growth.py, with `precision`
from precision.py. Run it again after any.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from speed import METHODS, OURS

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, PLOT = ROOT / "benchmarks/results", ROOT / "docs/speed.md", ROOT / "docs/images/growth.png"
GRADIENTS = METHODS[:3]
GROWN = {"eager": "deeptaylor", "gradient": "gradient"}  # in growth.py
KEPT = "growth with memory kept"
AXES = {
    "batch": "pictures in a batch",
    "pixels": "pixels of a picture",
    "layers": "convolutions",
    "targets": "targets of a picture",
}
STAYS = {"layers": "convolutions", "size": "pixels a side", "width": "channels of the first stage"}
Record = dict[str, Any]

INTRODUCTION = """\
# What it costs

After this page you know how long explanations take and how much memory they need, and how to make them fast.

Each explanation is compared with the gradient of the same score on the same pictures, the least that an explanation of
this kind costs. Other tools are measured if they support the network. deeptaylor runs with z^B at the input, z⁺ above
and bias neurons; weights are random. Every explanation is compared with deeptaylor in float64 before it is timed.

Times are medians. Read them only as ratios within one machine: processors, their load and versions differ.

## Make it fast

On a GPU:

    explainer = dt.Explainer(network, example, domain).to("cuda", torch.bfloat16).compile()
    score, relevance = explainer(x, target)                  # plain tensors, without a ledger
    score, relevance = explainer(x, classes)                 # (batch, K): K maps per sample, forward once

`compile()` compiles a pass for every new shape, once, in seconds to a minute. It records the pass as a CUDA graph if
launching kernels would take longer than running them. `explainer.explain` uses it too. The same code runs on a CPU.
float16 and bfloat16 work with the default rules (see *Precision* below); other rules raise an error.

If memory is short, `explainer.recompute()` keeps little of the forward pass. The reverse pass computes the rest again,
for the time of about one more forward pass. Deep networks gain most. A network whose peak is in its first layers, such
as VGG, gains nothing.

A batch that does not fit into memory is explained in parts, and a single picture that does not fit with `recompute()`;
a message says so.
"""

AGAIN = """\
## Measure again

These commands write the records and make this page from them:

    python benchmarks/speed.py --json benchmarks/results/NAME.json
    python benchmarks/books.py --json benchmarks/results/books-NAME.json
    python benchmarks/growth.py --json benchmarks/results/growth-NAME.json
    python benchmarks/page.py
"""

COLUMNS = """\
## Appendix: every method in every setting

| column | meaning |
|---|---|
| ms | median of the calls |
| ÷ gradient | in units of the compiled gradient, or of the plain one if none is compiled; its row has 1.00 |
| ÷ zennit, ÷ captum | in units of theirs |
| ÷ plain | of `explain`, in units of the plain call |
| peak | the most memory during a call above what is held between calls, in MiB |
| ÷ gradient's | in units of the gradient's of the same kind: compiled to compiled, else plain |
| held | memory between calls, mostly weights, in MiB |
| off | the sum of differences to deeptaylor in float64, as a share of the sum of relevances |
| — | not measured; the reason is below the table |

*held*: deeptaylor's first row includes the float32 network that it was made from; its other rows say what they add.
With CUDA graphs it is all memory that is reserved for them. It is empty if an earlier method's memory was freed in
between.

*off*: zennit and captum do not follow the same rules everywhere (biases, pooling; see [how it differs](compare.md)).
Theirs is a difference of rules and has no bound.
"""

SEVERAL = """\
All targets of a call share its forward pass. **÷ one target**: in units of the same method with one target; **÷ K
gradients**: in units of as many gradients as there are targets, one after the other.
"""

BOOKS = """\
## What the ledger costs

`explainer.explain(x)` returns more than the plain call `explainer(x)`: a ledger, summed along the whole network, and
checks of the input and of the result. It also checks every weight, so that no explanation is of a network that has
changed. Both took turns (`benchmarks/books.py`). **look** is the check of the weights alone, in ms; on a GPU most of it
runs beside the pass. Times on a CPU are processor time.
"""

PRECISION = """\
## Precision

Every explanation was compared with deeptaylor in float64 before it was timed. deeptaylor's own are timed only within
the bound that [section 7 of the theory](theory.md#7-rounding) gives for the network and the dtype. The table shows
trained networks (`benchmarks/precision.py`) as *off ≤ bound*. tf32 is float32 with the products of tensor cores. A
dash: an error, because float16 cannot represent relevances this small.
"""

GROWTH = """\
## How it grows

A plain network in the manner of VGG (`benchmarks/growth.py`); one quantity grows, the others stay. deeptaylor runs
eagerly, and takes turns with the gradient and between sizes. For several targets, the gradient runs forward once and
back for each.

- **line**: milliseconds; n counts what grows.
- **each ÷ gradient's**: the cost of one more, in units of the gradient's.
- **off the line**: the largest relative deviation of a point.
- **spread**: the widest middle half of the calls at a point, relative to its median; this is the noise of the machine.

![Time of explanation and gradient against batch, pixels, convolutions and targets](images/growth.png)
"""

BENDS = """\
On a CPU, points for large n can lie above the line. One reason: the C library gives large pieces of memory back to the
system after a call, and gets them again, page by page, in the next. **new pages** counts them, in a call at the largest
n. A second process took turns with the first, call by call, and *kept* all memory (hollow in the plot; the lines go
through the full points).

**÷ kept**: the time in units of the time with memory kept, at the smallest and at the largest n. Rows without new pages
show how far it is from 1 for other reasons. For your own runs, the environment variables `MALLOC_MMAP_MAX_=0` and
`MALLOC_TRIM_THRESHOLD_=-1` keep memory with the GNU C library.
"""


BESIDE = """\
The fastest way of deeptaylor and the fastest way of the gradient; if the gradient was not compiled, both are plain:
"""


# --- words ------------------------------------------------------------------------------------------------------------


def brief(value: float | None) -> str:
    """Three digits; nothing for nothing."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(a: float | None, b: float | None) -> str:
    return "" if a is None or not b else f"{a / b:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that have nothing in them; numbers to the right."""
    filled = [tuple(row) for row in rows]
    columns = [k for k in range(len(head)) if any(row[k].strip("—") for row in filled)]

    def number(k: int) -> bool:
        return all(row[k][:1] in "—" or row[k][0].isdigit() for row in filled)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells[k] for k in columns) + " |"

    rule = "|" + "|".join("--:" if number(k) else "---" for k in columns) + "|"
    return "\n".join([line(head), rule, *map(line, filled)]) + "\n"


def reasons(settings: Sequence[Record], name: Any) -> str:
    """Why methods are missing; one line for each reason, and where, unless it is everywhere."""
    found: dict[tuple[str, str], list[str]] = {}
    for setting in settings:
        for m in setting["methods"]:
            if m["problem"]:
                found.setdefault((m["method"], m["problem"].replace("`", "'")), []).append(name(setting))
    where = {key: "" if len(names) == len(settings) else f" ({'; '.join(names)})" for key, names in found.items()}
    return "".join(f"- {method}{where[method, problem]}: `{problem}`\n" for method, problem in found)


# --- speed ------------------------------------------------------------------------------------------------------------


def methods(setting: Record) -> dict[str, Record]:
    return {m["method"]: m for m in setting["methods"]}


def ms(setting: Record, kinds: Sequence[str]) -> list[float]:
    """The times of those methods that have one."""
    known = methods(setting)
    return [known[kind]["ms"] for kind in kinds if kind in known and known[kind]["ms"] is not None]


def first(values: Sequence[float]) -> float | None:
    return values[0] if values else None


def baseline(setting: Record) -> float | None:
    """The compiled gradient's time, or the plain one's."""
    return first(ms(setting, ("gradient compiled", "gradient")))


def batch_and_type(setting: Record) -> str:
    return f"batch {setting['batch']}, {setting['dtype']}"


def summary(settings: Sequence[Record]) -> str:
    """The fastest of deeptaylor's ways beside the fastest of the gradient's; plain ones where it was not compiled."""
    head = ("network", "batch", "type", "both", "gradient, ms", "deeptaylor, ms", "÷ gradient", "÷ zennit", "÷ captum")
    rows = []
    for s in settings:
        ways = (GRADIENTS, OURS) if ms(s, GRADIENTS[1:]) else (GRADIENTS[:1], OURS[:1])
        gradient, ours = (min(ms(s, kinds), default=None) for kinds in ways)
        others = [ratio(ours, first(ms(s, (tool,)))) for tool in ("zennit", "captum")]
        cells = (brief(gradient) or "—", brief(ours) or "—", ratio(ours, gradient), *others)
        rows.append((s["network"], str(s["batch"]), s["dtype"], "plain" if OURS not in ways else "compiled", *cells))
    return table(head, rows)


def details(settings: Sequence[Record]) -> str:
    """Every method in every setting of one network."""
    times = ("ms", "÷ gradient", "÷ zennit", "÷ captum", "÷ plain")
    memory = ("peak", "÷ gradient's", "held")
    head = ("batch", "type", "method", *times, *memory, "off")

    rows = []
    for s in settings:
        known = methods(s)
        for kind, m in known.items():
            like = known.get("gradient compiled" if "compiled" in kind else "gradient", {})
            rows.append((
                str(s["batch"]), s["dtype"], kind, brief(m["ms"]) or "—", ratio(m["ms"], baseline(s)),
                *(ratio(m["ms"], first(ms(s, (tool,)))) for tool in ("zennit", "captum")),
                ratio(m["ms"], first(ms(s, (kind.removesuffix(", explain"),)))) if kind.endswith("explain") else "",
                brief(m["peak_mib"]), ratio(m["peak_mib"], like.get("peak_mib")), brief(_held(m)),
                "" if m["off"] is None else f"{m['off']:.1e}",
            ))  # fmt: skip
    return table(head, rows) + "\n" + reasons(settings, batch_and_type)


def several(settings: Sequence[Record], single: Sequence[Record]) -> str:
    """K targets at once, beside one at a time."""

    def place(s: Record) -> tuple[Any, ...]:
        return s["network"], s["batch"], s["dtype"]

    alone = {place(s): s for s in single}
    head = ("network", "batch", "type", "targets", "method", "ms", "÷ one target", "÷ K gradients", "peak", "off")
    rows = []
    for s in settings:
        one = alone.get(place(s), {"methods": []})
        gradient = baseline(one)
        for kind, m in methods(s).items():
            if m["ms"] is None:
                continue
            rows.append((
                s["network"], str(s["batch"]), s["dtype"], str(s["targets"]), kind, brief(m["ms"]),
                ratio(m["ms"], first(ms(one, (kind,)))), ratio(m["ms"], gradient and s["targets"] * gradient),
                brief(m["peak_mib"]), "" if m["off"] is None else f"{m['off']:.1e}",
            ))  # fmt: skip
    why = reasons(settings, lambda s: f"{s['network']}, {batch_and_type(s)}, {s['targets']} targets")
    return table(head, rows) + "\n" + why


def device(machine: Record) -> str:
    name: str = machine["device"]
    return name.replace(", 1 threads", ", 1 thread")


def versions(machine: Record, files: Sequence[str]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return f"From {', '.join(f'`benchmarks/results/{f}`' for f in files)}: Python {machine['python']}, {packages}.\n"


def in_order(settings: Sequence[Record]) -> list[Record]:
    """Settings by network, then by batch."""
    networks = list(dict.fromkeys(s["network"] for s in settings))
    return sorted(settings, key=lambda s: (networks.index(s["network"]), s["batch"]))


def machine_section(machine: Record, files: Sequence[str], settings: Sequence[Record]) -> list[str]:
    """The fastest ways on one machine."""
    single = [s for s in in_order(settings) if s["targets"] == 1]
    return [f"## {device(machine)}\n", versions(machine, files), *([BESIDE, summary(single)] if single else [])]


def details_section(machine: Record, settings: Sequence[Record]) -> list[str]:
    """Every method in every setting on one machine."""
    single = [s for s in in_order(settings) if s["targets"] == 1]
    many = [s for s in in_order(settings) if s["targets"] > 1]
    parts = []
    for network in dict.fromkeys(s["network"] for s in single):
        parts += [f"### {network} on {device(machine)}\n", details([s for s in single if s["network"] == network])]
    if many:
        parts += [f"### Several targets on {device(machine)}\n", SEVERAL, several(many, single)]
    return parts


# --- books ------------------------------------------------------------------------------------------------------------


def books_section(record: Record) -> list[str]:
    head = ("network", "batch", "type", "way", "explainer(x), ms", "explain(x), ms", "÷ plain", "look")
    rows = [
        (
            b["network"], str(b["batch"]), b["dtype"], b["way"], brief(b["plain_ms"]), brief(b["explain_ms"]),
            ratio(b["explain_ms"], b["plain_ms"]), brief(b["look_ms"]),
        )
        for b in record["books"]
    ]  # fmt: skip
    where = record["machine"]
    return [f"### Ledger on {device(where)}\n", versions(where, [record["file"]]), table(head, rows)]


# --- growth -----------------------------------------------------------------------------------------------------------


def growth_table(record: Record) -> str:
    head = ("grows with", "n", "memory", "method", "line, ms", "each ÷ gradient's", "off the line", "spread")
    rows = []
    kept = {g["what"]: g for g in record.get(KEPT, [])}
    for g in record["growth"]:
        for memory, here in {"as it comes": g, **({"kept": kept[g["what"]]} if kept else {})}.items():
            for kind, line in here["lines"].items():
                times = here["ms"][kind]
                spread = max((b - a) / t for (a, b), t in zip(here["quartiles_ms"][kind], times, strict=True))
                more = ("", "", "")
                if kept:
                    beside = [ratio(times[k], kept[g["what"]]["ms"][kind][k]) for k in (0, -1)]
                    more = (memory, str(here["faults"][kind][-1]), "" if here is not g else ", ".join(beside))
                rows.append((
                    AXES[g["what"]], f"{g['n'][0]} to {g['n'][-1]}", more[0], GROWN[kind],
                    f"{line['start']:.3g} + {line['each']:.3g} n",
                    ratio(line["each"], here["lines"]["gradient"]["each"]),
                    f"{line['off']:.0%}", f"{spread:.0%}", *more[1:],
                ))  # fmt: skip
    return table((*head, "new pages", "÷ kept"), rows)


def growth_section(record: Record) -> list[str]:
    base: Record = {}
    for g in record["growth"]:
        base |= g["base"]
    stays = ", ".join(f"{STAYS.get(name, name)} {value}" for name, value in sorted(base.items()))
    return [
        f"### Growth on {device(record['machine'])}\n",
        versions(record["machine"], [record["file"]]),
        f"What stays where it is not what grows: {stays}. Medians of {record['repeats']} calls.\n",
        growth_table(record),
        *([BENDS] if KEPT in record else []),
    ]


def plot(records: Sequence[Record], out: Path) -> None:
    """Four panels for each machine: points, and the lines through them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    colours = {"eager": "#b3261e", "gradient": "#4a6572"}
    figure = plt.figure(figsize=(8, 6 * len(records)), layout="constrained", facecolor="white")
    for part, record in zip(figure.subfigures(len(records), 1, squeeze=False)[:, 0], records, strict=True):
        part.suptitle(device(record["machine"]), fontsize=11)
        panels = part.subplots(2, 2).flat
        kept = {g["what"]: g for g in record.get(KEPT, [])}
        for panel, g in zip(panels, record["growth"], strict=False):
            for kind, colour in colours.items():
                n, line = g["n"], g["lines"][kind]
                name = GROWN[kind]
                panel.plot(n, g["ms"][kind], "o", color=colour, label=name)
                panel.plot([0, n[-1]], [line["start"], line["start"] + line["each"] * n[-1]], color=colour, lw=1)
                if g["what"] in kept:
                    again = kept[g["what"]]["ms"][kind]
                    panel.plot(n, again, "o", color=colour, mfc="none", label=f"{name}, memory kept")
            names = [f"{math.isqrt(k)}²" if g["what"] == "pixels" else str(k) for k in g["n"]]
            panel.set(xlabel=AXES[g["what"]], ylabel="ms", xlim=(0, None), ylim=(0, None))
            panel.set_xticks(g["n"], names)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(color="0.92")
            panel.set_axisbelow(True)
        part.axes[0].legend(frameon=False, fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    plt.close(figure)


# --- the page ---------------------------------------------------------------------------------------------------------


def load(folder: Path) -> list[Record]:
    """All records, with the names of their files."""
    return [json.loads(path.read_text("utf-8")) | {"file": path.name} for path in sorted(folder.glob("*.json"))]


def page(records: Sequence[Record]) -> str:
    """The whole page; records of one machine are put together."""
    parts = [INTRODUCTION]
    machines: dict[str, list[Record]] = {}
    for record in records:
        if "settings" in record:
            machines.setdefault(json.dumps(record["machine"], sort_keys=True), []).append(record)
    for same in machines.values():
        settings = [s for record in same for s in record["settings"]]
        parts += machine_section(same[0]["machine"], [record["file"] for record in same], settings)
    booked = [record for record in records if "books" in record]
    if booked:
        parts += [BOOKS, *(part for record in booked for part in books_section(record))]
    grown = [record for record in records if "growth" in record]
    if grown:
        parts += [GROWTH, *(part for record in grown for part in growth_section(record))]
    parts += [PRECISION, *(part for record in records if "precision" in record for part in precision_section(record))]
    parts.append(AGAIN)
    if machines:
        parts.append(COLUMNS)
    for same in machines.values():
        parts += details_section(same[0]["machine"], [s for record in same for s in record["settings"]])
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def precision_section(record: Record) -> list[str]:
    """How far explanations were from float64: a row for each network, bias and way to run, a column for each type."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in record["precision"]:
        cell = "—" if row["off"] is None else f"{row['off']:.1e} ≤ {row['bound']:.1e}"
        cell = cell if row["verdict"] == "within" or row["off"] is None else cell.replace("≤", "**>**")
        found.setdefault((row["network"], row["bias"], row["how"]), {})[row["dtype"]] = cell
    types = list(dict.fromkeys(row["dtype"] for row in record["precision"]))
    cells = [(*key, *(row.get(kind, "") for kind in types)) for key, row in found.items()]
    title = f"### Precision on {device(record['machine'])}\n"
    return [title, versions(record["machine"], [record["file"]]), table(("network", "bias", "run", *types), cells)]


def _held(method: Record) -> float | None:
    held: float | None = method["held_mib"]
    return None if held is None or held < 0 else held


def main() -> int:
    records = load(RESULTS)
    PAGE.write_text(page(records), encoding="utf-8")
    if grown := [record for record in records if "growth" in record]:
        plot(grown, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
