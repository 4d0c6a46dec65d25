"""Where the roots of rules lie in trained networks, and how far maps move under others (docs/theory.md, section 11).

    python benchmarks/roots.py --json benchmarks/results/roots-cpu.json  # about nine minutes of one core
    python benchmarks/roots.py --page                                   # the tables of that section, from the record

Pairs of digits with the paper's networks, and photographs out of packages with two large ones; in float64, with biases
spread, so that every rule expands at a root of its unit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.models.networks.paper_networks import BOX
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS as DIGITS
from deeptaylor.models.networks.paper_networks import load_network as load_digit_network
from deeptaylor.paper.digit_pairs import held_out_pairs, load_digits
from deeptaylor.rules import Flat, Rule, WSquare, Z, ZBox
from deeptaylor.rules.steps import BlockStep
from page import table, versions
from root_expansions import Expansions, Nearest, Passes, apart, expansions, roots
from speed import machine, write

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "benchmarks/results/roots-cpu.json", ROOT / "docs/theory.md"
START, END = "<!-- made by benchmarks/roots.py -->\n", "<!-- to here -->\n"
PHOTOS = ("cat", "coffee")
OWN, ALL, SECOND = "own", "all layers", "second class"
SHARES, OTHERS = ("found", "inside", "left"), ("z", "zB", "w2", "flat", "nearest")
ROUNDING = 1e-12
Record = dict[str, Any]
Row = dict[str, Any]


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How much is looked at: units of a layer and input, drawn in proportion to their relevance."""

    roots: int  # of which the roots are found
    expansions: int  # of these, from which the network is run again
    nearest: bool = True  # the nearest roots are found, too
    layers: bool = True  # maps under another root in each layer, and not only in all at once


CASES = {
    "one-layer": Case(64, 64),
    "two-layer": Case(64, 64),
    "squeezenet1_1": Case(16, 4),
    "efficientnet-lite0": Case(16, 2, nearest=False, layers=False),
}


def inputs(name: str, pairs: int) -> tuple[dt.Explainer, list[Tensor]]:
    """A network and what it is to explain."""
    if name in DIGITS:
        network = load_digit_network(name).double()
        drawn = held_out_pairs(load_digits(), 4 * pairs)
        with torch.no_grad():
            x = drawn.images.double()
            x = x[(drawn.target > 0) & (network(x) > 0)][:pairs]
        return dt.Explainer(network, x[:1], BOX, bias="spread"), list(x.split(1))
    from PIL import Image

    known = dt.load(name)
    pictures = [known.preprocess(Image.open(dt.assets.path(p)).convert("RGB"))[0].double() for p in PHOTOS]
    return dt.Explainer(known.network.double(), pictures[0], known.domain, bias="spread"), pictures


def others(passes: Passes, step: BlockStep, case: Case) -> list[Rule]:
    """Rules with other roots; z^B within the values that there are, where the domain is open."""
    highest = max(float(passes.here.values[leaf].max()) for leaf in step.block.leaves)
    box = [ZBox(0.0, highest)] if all(step.non_negative) else []
    return [Z(), *box, WSquare(), Flat(), *([Nearest()] if case.nearest else [])]


Found = dict[tuple[str, str], list[Any]]  # by layer and rule, what every input gave


def measure(explainer: dt.Explainer, xs: Sequence[Tensor], case: Case) -> dict[str, list[Row]]:
    """Roots, expansions and maps, by layer and rule, over all inputs."""
    generator = torch.Generator().manual_seed(0)
    at_roots: Found = defaultdict(list)
    expanded: Found = defaultdict(list)
    maps: Found = defaultdict(list)
    called = {row.node: row.module or row.op for row in explainer.plan.rows}
    for k, x in enumerate(xs):
        passes = Passes(explainer, x)
        every: dict[str, dict[str, Rule]] = defaultdict(dict)
        for step in passes.blocks:
            layer = called[step.node]
            R = passes.relevance[step.node].flatten().clamp(min=0)
            drawn = torch.multinomial(R, case.roots, replacement=True, generator=generator)
            for kind, rule in {OWN: step.rule, "z": Z(), "w2": WSquare()}.items():
                found = roots(rule, step, passes.here, drawn)
                at_roots[layer, kind].append({q: float(getattr(found, q).double().mean()) for q in SHARES})
            for kind, rule in {OWN: step.rule, **({"nearest": Nearest()} if case.nearest else {})}.items():
                expanded[layer, kind].append(expansions(passes, step, rule, drawn[: case.expansions]))
            for rule in others(passes, step, case):
                every[str(rule)][step.node] = rule
                if case.layers:
                    maps[layer, str(rule)].append(_apart(passes, {step.node: rule}))
            print(f"  input {k + 1} of {len(xs)}: {layer}", flush=True)
        for kind, instead in every.items():
            maps[ALL, kind].append(_apart(passes, instead))
        output = passes.here.values[passes.engine.planned.output]
        if output.ndim > 1:
            maps[ALL, SECOND].append(_apart(passes, {}, Passes(explainer, x, int(output.topk(2).indices[0, 1]))))
    return {
        "roots": _rows(at_roots, means),
        "expansions": _rows(expanded, lambda parts: Expansions.joined(parts).summary()),
        "maps": _rows(maps, means),
    }


def _rows(found: Found, summary: Callable[[list[Any]], Row]) -> list[Row]:
    return [{"layer": layer, "rule": kind, **summary(parts)} for (layer, kind), parts in found.items()]


def _apart(passes: Passes, instead: dict[str, Rule], other: Passes | None = None) -> Row:
    """The map at the input beside that with other rules, or of another class."""
    (name,) = passes.engine.planned.inputs
    beside = passes.reverse(passes.here, instead=instead) if other is None else other.relevance
    return vars(apart(passes.relevance[name].sum(1), beside[name].sum(1)))


def means(rows: Sequence[Row]) -> Row:
    """The mean of every number that some rows have."""
    known = {q: [row[q] for row in rows if row[q] is not None] for q in rows[0]}
    return {q: sum(values) / len(values) if values else None for q, values in known.items()}


# --- the tables -------------------------------------------------------------------------------------------------------

KINDS = {  # of EfficientNet-Lite's blocks
    "_bn1": "head, 1 × 1", "_blocks": "blocks: back, 1 × 1, and sum", "_blocks._bn2": "blocks: back, 1 × 1",
    "_blocks._bn1": "blocks: depthwise", "_blocks._bn0": "blocks: out, 1 × 1", "_bn0": "first, 3 × 3",
}  # fmt: skip
Column = tuple[str, str, str, str]  # its title; which rows of the record; of which rule; the quantity
WHERE: Sequence[Column] = (
    ("found", "roots", OWN, "found"), ("inside", "roots", OWN, "inside"), ("inside, z", "roots", "z", "inside"),
    ("inside, w²", "roots", "w2", "inside"), ("region", "expansions", OWN, "region"),
    ("region, nearest", "expansions", "nearest", "region"), ("beside", "expansions", OWN, "beside"),
    ("above", "expansions", OWN, "above"),
)  # fmt: skip
RESIDUAL: Sequence[Column] = (
    ("own piece", "expansions", OWN, "own"), ("model", "expansions", OWN, "model"), ("true", "expansions", OWN, "true"),
    ("true, nearest", "expansions", "nearest", "true"), ("stays", "expansions", OWN, "stays"),
    ("left", "roots", OWN, "left"),
)  # fmt: skip
SAID = {
    "where": """\
**found**: the share of units for which the search of their own rule meets a root (z⁺; at the input z^B). **inside**:
that root lies in the domain; the same for the roots of z and w². **region**: the share of roots in the linear region
of x; the same for nearest roots. **beside**, **above**: the share that switches, of the other units that the move
reaches, in the block and above it. A plain 0 is zero up to rounding.
""",
    "residual": """\
**own piece**: the share of units that are on the same linear piece at x and before the root. **model**, **true**: the
residuals, as shares of R_j; for *true* the median, also at the nearest roots. **stays**: R_j(x̃) / R_j(x) as the engine
finds it. **left**: the share of R_j that bias neurons would keep.
""",
    "maps": """\
The share of relevance that lies elsewhere in the map if a layer, or every layer, takes another root. In brackets: the
rank correlation with the map as it was, if the map is not the same everywhere. Maps of z have both signs, so more than
all of the relevance can move. **second class**: the same between the maps of the best and of the second class, with
the rules unchanged.
""",
}


def load(file: Path) -> Record:
    record: Record = json.loads(file.read_text("utf-8"))
    return record | {"file": file.name}


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Layers of one module, or of one kind, together: means."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        name = re.sub(r"^(_blocks)\.\d+", r"\1", row["layer"])
        numbers = {q: v for q, v in row.items() if q not in ("layer", "rule")}
        groups[KINDS.get(name, name.split(".")[0]), row["rule"]].append(numbers)
    return {key: means(found) for key, found in groups.items()}


def digits(value: float | None) -> str:
    """Two places; what is only rounding is 0."""
    return "" if value is None else "0" if abs(value) < ROUNDING else f"{value:.2f}"


def by_layer(network: Record, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    found = {part: grouped(network[part]) for part in ("roots", "expansions")}
    layers = dict.fromkeys(layer for layer, _ in found["roots"])
    return [
        (
            network["network"],
            layer,
            *(digits(found[part].get((layer, rule), {}).get(q)) for _, part, rule, q in columns),
        )
        for layer in layers
    ]


def map_rows(network: Record) -> list[tuple[str, ...]]:
    found = grouped(network["maps"])

    def cell(layer: str, kind: str) -> str:
        row = found.get((layer, kind))
        if row is None:
            return ""
        return f"{row['moved']:.3f}" + ("" if row["rank"] is None else f" ({row['rank']:.3f})")

    layers = dict.fromkeys(layer for layer, kind in found if kind != SECOND)
    rows = [(network["network"], layer, *(cell(layer, kind) for kind in OTHERS), "") for layer in layers]
    return [*rows[:-1], (*rows[-1][:-1], cell(ALL, SECOND))]


def section(record: Record) -> str:
    """What stands between the marks of the page."""
    networks = record["networks"]
    drawn = "".join(
        f"- {n['network']}: {n['inputs']} inputs; {n['drawn']['roots']} units of every layer and input, "
        f"{n['drawn']['expansions']} of them for the residuals\n"
        for n in networks
    )
    made = f"`{record['command']}`, {record['seconds']} s of one core:\n\n{drawn}"
    parts = [versions(record["machine"], [record["file"]]) + made]
    for said, columns in (("where", WHERE), ("residual", RESIDUAL)):
        head = ("network", "layer", *(title for title, *_ in columns))
        parts += [SAID[said], table(head, [row for n in networks for row in by_layer(n, columns)])]
    head = ("network", "layer", *OTHERS, SECOND)
    return "\n".join([*parts, SAID["maps"], table(head, [row for n in networks for row in map_rows(n)])])


def placed(page: str, made: str) -> str:
    """The page with what was made between its marks."""
    before, _, rest = page.partition(START)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE} has no {START.strip()} and {END.strip()}")
    return f"{before}{START}\n{made}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where the roots of rules lie, by layer.")
    add = parser.add_argument
    add("--networks", default=",".join(CASES))
    add("--pairs", type=int, default=20, help="of digits")
    add("--json", type=Path, metavar="FILE")
    add("--page", action="store_true", help=f"write the tables of {PAGE.name} from {RECORD.name} instead")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(placed(PAGE.read_text("utf-8"), section(load(RECORD))), encoding="utf-8")
        return 0
    names = options.networks.split(",")
    if unknown := sorted(set(names) - set(CASES)):
        parser.error(f"no network here is called {', '.join(unknown)}; there are: {', '.join(CASES)}")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    command = " ".join(["python benchmarks/roots.py", *(sys.argv[1:] if arguments is None else arguments)])
    begun, networks = time.process_time(), []
    for name in names:
        print(name)
        explainer, xs = inputs(name, options.pairs)
        case = CASES[name]
        networks.append({"network": name, "inputs": len(xs), "drawn": asdict(case)} | measure(explainer, xs, case))
    took = round(time.process_time() - begun)
    write({"machine": machine("cpu"), "command": command, "seconds": took, "networks": networks}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
