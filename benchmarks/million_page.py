"""What was measured, in docs/howto/million.md, made from benchmarks/results/runs-*.json alone.

    python benchmarks/million_page.py

The records come from runs_photos.py (runs-h200.json; on a CPU runs-photos.json), runs_speed.py (runs-cpu.json),
runs_memory.py (runs-memory.json) and concepts_cost.py (runs-concepts.json); one that is not there is not spoken of.
Only what stands between the two markers is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/howto/million.md"
MARKS = tuple(f"<!-- made by benchmarks/million_page.py: {which} -->" for which in ("begin", "end"))
MILLION = 1_000_000
NAMES = {"resnet50": "ResNet-50", "efficientnet-lite0": "EfficientNet-Lite0", "squeezenet": "SqueezeNet"}
Record = dict[str, Any]


def records(folder: Path) -> dict[str, Record]:
    """What there is, by the name of the file without `runs-`."""
    found = sorted(folder.glob("runs-*.json"))
    return {p.stem.removeprefix("runs-"): json.loads(p.read_text(encoding="utf-8")) for p in found}


def section(found: dict[str, Record]) -> str:
    """All that was measured, in words and tables."""
    parts = {"h200": h200, "photos": photos, "cpu": cpu, "concepts": concepts, "memory": memory}
    said = [write(found[name]) for name, write in parts.items() if name in found]
    if "h200" not in found:
        said.insert(0, "Throughput on an H200 was not measured for this page, so that it names no cost.\n")
    return "\n".join(said)


def h200(found: Record) -> str:
    """Throughput and what a million pictures take, from photographs on the disk to the store."""
    machine = found["machine"]
    rows = "".join(_row(run) for run in found["runs"])
    return f"""\
On one {machine["gpu"]} with {machine["cores"]} cores (torch {machine["torch"]}), from JPEG files of 500 × 375 pixels to
the store, with random weights; beside the bare compiled explainer on inputs that lie ready on the GPU, and beside
reading alone:

| network | numbers | batch | read by | pictures per second | of the bare explainer | reading alone | a million |
|---|---|---|---|---|---|---|---|
{rows}
The last column is the time of one GPU for a million pictures: times the price of an hour, it is the cost. `float32` is
computed without tf32; `tf32` is what torch computes where `torch.backends.cudnn.allow_tf32` is set.
"""


def _row(run: Record) -> str:
    by = f"{run['processes']} processes" if run["processes"] else f"{run['threads']} threads"
    return (
        f"| {NAMES[run['network']]} | {run['kind']} | {run['batch']} | {by} | {run['run_per_second']:.0f} | "
        f"{run['ratio']:.0%} | {run['reading_per_second']:.0f} | {hours(run['run_per_second'])} |\n"
    )


def hours(per_second: float) -> str:
    minutes = round(MILLION / per_second / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def photos(found: Record) -> str:
    """Photographs on a CPU, beside the bare explainer, which took turns with the run."""
    machine, (run,) = found["machine"], found["runs"]
    worst, best = min(run["ratios"]), max(run["ratios"])
    spins = "" if machine["spincount"] is None else f", with GOMP_SPINCOUNT={machine['spincount']} for both"
    return (
        f"On a CPU of {machine['cores']} cores, {run['count']:,} photographs with {NAMES[run['network']]} and random "
        f"weights, from JPEG files to the store: {run['run_per_second']:.1f} per second, {run['ratio']:.0%} of the "
        f"bare explainer's throughput on inputs that lie ready{spins} (median of {len(run['ratios'])} stretches of "
        f"the run, from {worst:.0%} to {best:.0%}).\n"
    )


def cpu(found: Record) -> str:
    """A small network, of which a run is the hardest to keep up with."""
    wall, every = found["wall"], found["all threads"]
    return (
        f"On a CPU of {found['cores']} cores, {found['items']:,} pairs of digits with the paper's network, torch on "
        f"{found['torch_threads']} thread(s): {wall['run_per_second']:.0f} per second, {wall['ratio']:.0%} of the bare "
        f"explainer's throughput in the same process; counted in processor time of all threads, which is what matters "
        f"where no core is idle, {every['ratio']:.0%}.\n"
    )


def concepts(found: Record) -> str:
    return (
        f"Watching the {found['channels']} channels of a layer (`also=[dt.Concepts(layer)]`) took {found['ratio']:.2f} "
        f"times the processor time of the same run without, over {found['count']:,} pictures.\n"
    )


def memory(found: Record) -> str:
    told = ", ".join(f"{run['peak_mb']:.0f} MB over {run['items']:,} items" for run in found["runs"])
    largest = found["runs"][-1]
    seen = largest["seen"]
    return (
        f"The most memory that a run on a CPU took at any time, with the paper's network: {told}. In the last of these "
        f"it was {seen[len(seen) // 4][1]:.0f} MB after a quarter of the items and {seen[-1][1]:.0f} MB at the end.\n\n"
        "![Memory of the process as runs over data sets of several sizes go on](../images/runs_memory.png)\n"
    )


def page(text: str, found: dict[str, Record]) -> str:
    """The page with what was measured between its markers."""
    begin, end = MARKS
    before, _, rest = text.partition(begin)
    inside, _, after = rest.partition(end)
    if not inside:
        raise ValueError(f"{PAGE.name} has no markers to put what was measured between.")
    return f"{before}{begin}\n\n{section(found)}\n{end}{after}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), records(RESULTS)), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
