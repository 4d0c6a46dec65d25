"""What each question costs on nine families of networks, as a ratio to the gradient of the input.

    python benchmarks/families.py --json benchmarks/results/families-NAME.json
    python benchmarks/families.py --before OTHER/src      # in turns with another state of the package
    python benchmarks/families.py --memory --capture --compiled      # and what else a network costs

Random weights, pictures of 224 pixels a side, float32, processor time, one thread. Each state of the package runs in a
process of its own. The processes wait for each other: in every round each computes every call once. A time is the least
of all rounds, which other work on the machine disturbs least. Methods are named, so that `auto` chooses none.

    plain      explainer(x, target)        explain   explainer.explain(x, target)
    contrast   explainer.contrast(x, target)
    between    explainer.between(x, "zeros", target)
    capture    dt.Explainer(network, x, domain): seconds for the first and for a second one of the same class
    memory     highest point above what was there before the call, as a ratio to the gradient's
    compiled   the plain call after `compile()`, and the seconds of its first call
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NETWORKS = (
    "vgg16", "resnet50", "resnet18", "vit_b_16", "densenet121", "swin_t", "convnext_tiny", "mobilenet_v3_large",
    "efficientnet_b0",
)  # fmt: skip
CALLS = ("gradient", "plain", "explain", "contrast", "between")
LIMITS = {"plain": 1.6, "explain": 1.75, "contrast": 2.8, "between": 2.0}
TARGETS = 4


# --- in the process of one state of the package ---------------------------------------------------------------------


class Worker:
    """One network, ready to be timed; the commands are its methods."""

    def __init__(self, network: str, batch: int, size: int) -> None:
        import torch

        import deeptaylor as dt
        from speed import build, gradient
        from zoo import MEAN, STD, images

        torch.set_num_threads(1)
        warnings.filterwarnings("ignore")
        self.model, torch_seed = build(network), torch.manual_seed(1)
        self.x = images(batch, size)
        with torch.no_grad():
            scores = self.model(self.x)
        self.targets = scores.topk(TARGETS, 1).indices
        self.target = self.targets[:, 0]
        del torch_seed
        self._make = lambda: dt.Explainer(
            self.model, self.x, dt.Box.from_normalisation(MEAN, STD), method="deep-taylor"
        )
        start = time.process_time()
        self.explainer = self._make()
        self.first_s = time.process_time() - start
        x, target, explainer = self.x, self.target, self.explainer
        self.calls: dict[str, Callable[[], Any]] = {
            "gradient": gradient(self.model, x, target[:, None], None),
            "plain": lambda: explainer(x, target),
            "explain": lambda: explainer.explain(x, target),
            "contrast": lambda: explainer.contrast(x, target),
            "between": lambda: explainer.between(x, "zeros", target),
            "targets": lambda: explainer(x, self.targets),
        }

    def milliseconds(self, call: str) -> float:
        """Return the processor time of one call."""
        start = time.process_time()
        self.calls[call]()
        return 1000 * (time.process_time() - start)

    def peak(self, call: str) -> int:
        """Return the bytes above what was allocated before the call, at the highest point."""
        from contrast_cost import peak

        self.calls[call]()
        gc.collect()
        return peak(self.calls[call], cuda=False)

    def capture(self) -> tuple[float, float]:
        """Return the seconds of the first capture in this process, and of a second one."""
        start = time.process_time()
        self._make()
        return self.first_s, time.process_time() - start

    def compile(self) -> float:
        """Compile the plain call, and return the seconds of the first."""
        self.explainer.compile()
        start = time.perf_counter()
        self.calls["plain"]()
        return time.perf_counter() - start


def serve(network: str, batch: int, size: int) -> None:
    """Answer commands, one in each line: a method of `Worker` with its arguments."""
    worker = Worker(network, batch, size)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)


# --- the process that asks --------------------------------------------------------------------------------------------


class State:
    """A process with one state of the package."""

    def __init__(self, source: Path, network: str, batch: int, size: int) -> None:
        paths = [str(source), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", network, "--batch", str(batch), "--size", str(size)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._read()

    def ask(self, *command: Any) -> Any:
        """Run a command in the process, and return its answer."""
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"A process ended with exit code {self._process.wait()}; its error is above.")
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(network: str, sources: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Return what the calls of one network cost in every state of the package."""
    calls = options.calls.split(",")
    states = {name: State(source, network, options.batch, options.size) for name, source in sources.items()}
    taken: dict[str, dict[str, list[float]]] = {name: {call: [] for call in calls} for name in states}
    for round_ in range(options.repeats + 1):  # the first warms up
        for call in calls:
            for name, state in states.items():
                ms = state.ask("milliseconds", call)
                if round_:
                    taken[name][call].append(ms)
    found: dict[str, Any] = {"network": network, "batch": options.batch, "size": options.size}
    found["ms"] = {name: {call: min(times) for call, times in of.items()} for name, of in taken.items()}
    for name, state in states.items():
        if options.capture:
            found.setdefault("capture_s", {})[name] = state.ask("capture")
        if options.memory:
            peaks = {call: state.ask("peak", call) for call in (*CALLS, "targets")}
            found.setdefault("peak_mib", {})[name] = {call: peak / 2**20 for call, peak in peaks.items()}
        if options.compiled:
            first = state.ask("compile")
            times = [state.ask("milliseconds", "plain") for _ in range(options.repeats)]
            found.setdefault("compiled", {})[name] = {"first_s": first, "ms": min(times)}
    for state in states.values():
        state.end()
    return found


def ratios(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the time of every call, in units of the fastest gradient of all states."""
    unit = min(of["gradient"] for of in found["ms"].values())
    return {
        name: {call: ms / unit for call, ms in of.items() if call != "gradient"} for name, of in found["ms"].items()
    }


def describe(found: dict[str, Any]) -> str:
    """Return the line of one network."""
    line = f"{found['network']:<20}"
    for name, of in ratios(found).items():
        line += f"  {name}: " + "  ".join(
            f"{call} {ratio:.2f}{'!' if ratio > LIMITS.get(call, ratio) else ''}" for call, ratio in of.items()
        )
    unit = min(of["gradient"] for of in found["ms"].values())
    line += f"   gradient {unit:.0f} ms"
    for name, (first, second) in found.get("capture_s", {}).items():
        line += f"\n    {name} capture {first:.1f} s, again {second:.1f} s"
    for name, peaks in found.get("peak_mib", {}).items():
        line += f"\n    {name} memory " + "  ".join(
            f"{call} {peak / peaks['gradient']:.2f}" for call, peak in peaks.items()
        )
    for name, compiled in found.get("compiled", {}).items():
        line += f"\n    {name} compiled {compiled['ms'] / unit:.2f} after {compiled['first_s']:.0f} s"
    return line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--networks", default=",".join(NETWORKS))
    add("--calls", default=",".join(CALLS))
    add("--batch", type=int, default=2)
    add("--size", type=int, default=224)
    add("--repeats", type=int, default=7)
    add("--before", type=Path, metavar="SRC", help="the src folder of another state of the package")
    add("--capture", action="store_true")
    add("--memory", action="store_true")
    add("--compiled", action="store_true")
    add("--json", type=Path, metavar="FILE")
    add("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.batch, options.size)
        return 0
    from speed import machine, write

    sources = {"now": HERE.parent / "src"} | ({"before": options.before} if options.before else {})
    record: dict[str, Any] = {"machine": machine("cpu"), "repeats": options.repeats, "families": []}
    for network in options.networks.split(","):
        found = measure(network, sources, options)
        print(describe(found), flush=True)
        record["families"].append(found)
        write(record, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
