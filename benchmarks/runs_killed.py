"""A run that is killed with SIGKILL again and again, at random moments: is its store that of a run never killed?

    python benchmarks/runs_killed.py --kills 100

Prints how many kills fell where, and whether every file of the arrays is the same. The network is captured once; each
run is a fork, so that kills fall into the run itself, from its first moment on, and not into the loading of torch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import torch
import zarr  # noqa: F401  before the forks, which then begin at once
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.datasets import local

local.EVERY = 0.02  # seconds: shards are saved in parts, too
ITEMS, SHARD, BATCH = 1200, 48, 8
BOX = dt.Box(0, 1)


class Squares:
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        x = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(k))
        return (x if k % 97 else x * torch.nan), k % 3  # some cannot be explained


def explainer() -> dt.Explainer:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 3)).eval()
    return dt.Explainer(network, torch.zeros(1, 1, 16, 16), BOX)


def begin(store: Path, model: dt.Explainer) -> int:
    """A run in a process of its own; its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if dt.explain_dataset(Squares(), model, store, shard=SHARD, batch=BATCH, threads=1).complete else 2
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int | None:
    number, status = os.waitpid(child, os.WNOHANG)
    return None if number == 0 else status


def entered(store: Path) -> int:
    try:
        base = sqlite3.connect(f"file:{store / 'ledger.sqlite'}?mode=ro", uri=True)
        return int(base.execute("SELECT count(*) FROM shards WHERE done").fetchone()[0])
    except sqlite3.Error:
        return 0


def files(store: Path) -> dict[str, str]:
    names = {p.parent.name for p in store.glob("*/zarr.json")}
    return {
        p.relative_to(store).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(store.rglob("*"))
        if p.is_file() and p.relative_to(store).parts[0] in names
    }


def left_over(store: Path) -> list[str]:
    return [p.name for p in store.rglob("*.part")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # a fork of a process whose threads have worked together waits for them for ever
    chance, model = random.Random(asked.seed), explainer()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        began = time.monotonic()
        assert os.waitpid(begin(whole, model), 0)[1] == 0
        usual = time.monotonic() - began
        kills, empty, stores = 0, 0, 0
        while kills < asked.kills:
            child = begin(killed, model)
            time.sleep(chance.random() * usual / 3)
            if ended(child) is None:
                before = entered(killed)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills += 1
                empty += before == 0
            else:  # it was done before it was killed: compared, and begun anew elsewhere
                stores += 1
                if files(killed) != files(whole):
                    print(f"after {kills} kills the stores differ")
                    return 1
                killed = Path(folder) / f"killed-{stores}"
        status = os.waitpid(begin(killed, model), 0)[1]
        same = files(killed) == files(whole)
        base = sqlite3.connect(killed / "ledger.sqlite")
        rows = base.execute("SELECT count(*), count(DISTINCT number), sum(items) FROM shards").fetchone()
        print(
            f"{kills} kills ({empty} before the first shard was entered), {stores + 1} store(s); a run takes "
            f"{usual:.1f} s; {len(files(whole))} files; {rows[2]} items in {rows[1]} shards; unfinished files left: "
            f"{len(left_over(killed))}; the last run ended with {status}; the stores are "
            f"{'the same' if same else 'NOT the same'}"
        )
        return 0 if same and status == 0 and rows == (25, 25, ITEMS) else 1


if __name__ == "__main__":
    sys.exit(main())
