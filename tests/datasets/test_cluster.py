"""Runs on Dask: a scheduler and workers as processes of their own, which are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import deeptaylor as dt
from deeptaylor.datasets.explain_dataset import Progress
from layout import ROOT
from small_runs import Crashing, Slow, Squares, arrays, run

pytest.importorskip("zarr")
pytest.importorskip("distributed")
pytestmark = [pytest.mark.filterwarnings("ignore")]


class Dask:
    """A scheduler with workers, on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        said = self._wait_for(self._folder / "0.log", r"Scheduler at:\s+(tcp://\S+)")
        self.address = said[1]

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "helpers")])
        with (self._folder / f"{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli.dask_" + what, *words], stdout=log, stderr=log,
                    cwd=self._folder, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
        return self.processes[-1]

    def worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def _wait_for(self, log: Path, pattern: str) -> re.Match[str]:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if found := re.search(pattern, log.read_text() if log.exists() else ""):
                return found
            time.sleep(0.1)
        raise AssertionError(log.read_text())


@contextmanager
def dask(folder: Path) -> Iterator[Dask]:
    folder.mkdir()
    made = Dask(folder)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_worker_and_then_the_scheduler_are_killed_and_the_result_is_the_same(tmp_path: Path) -> None:
    data = Slow(400)
    whole = run(data, tmp_path / "whole")
    killed: list[str] = []
    with dask(tmp_path / "first") as cluster:
        first, _ = cluster.worker(), cluster.worker()

        def watch(p: Progress) -> None:
            if p.entered >= 64 and not killed:
                first.send_signal(signal.SIGKILL)
                killed.append("worker")
            elif p.entered >= 192 and len(killed) == 1:
                cluster.scheduler.send_signal(signal.SIGKILL)
                killed.append("scheduler")

        with pytest.raises(dt.DeepTaylorError, match="is gone"):
            run(data, tmp_path / "killed", scheduler=cluster.address, progress=watch)
    assert killed == ["worker", "scheduler"]
    half = dt.open_dataset(tmp_path / "killed")
    assert 192 <= half.progress[1] < 400
    with dask(tmp_path / "second") as cluster:
        cluster.worker()
        done = run(data, tmp_path / "killed", scheduler=cluster.address)
    assert done.complete
    assert arrays(tmp_path / "killed") == arrays(tmp_path / "whole")
    assert whole.table["score"].tolist() == done.table["score"].tolist()


@pytest.mark.slow
def test_a_run_begun_here_ends_on_dask(tmp_path: Path) -> None:
    run(Slow(200), tmp_path / "whole")

    def interrupt(p: Progress) -> None:
        if p.done >= 48:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(Slow(200), tmp_path / "half", progress=interrupt)
    assert 48 <= dt.open_dataset(tmp_path / "half").progress[1] < 200
    with dask(tmp_path / "dask") as cluster:
        cluster.worker()
        run(Slow(200), tmp_path / "half", scheduler=cluster.address)
    assert arrays(tmp_path / "half") == arrays(tmp_path / "whole")


@pytest.mark.slow
def test_a_worker_that_crashes_is_done_without(tmp_path: Path) -> None:
    with dask(tmp_path / "dask") as cluster:
        cluster.worker(), cluster.worker()
        done = run(Crashing(160, tmp_path / "mark"), tmp_path / "store", scheduler=cluster.address)
    assert (tmp_path / "mark").exists()
    assert done.complete
    assert not done.errors


@pytest.mark.slow
def test_no_scheduler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = pytest.importorskip("deeptaylor.datasets.cluster")
    monkeypatch.setattr(cluster, "_PATIENCE", 1)
    with pytest.raises(cluster.ClusterError, match=r"no scheduler at tcp://127\.0\.0\.1:1"):
        run(Squares(4), tmp_path / "store", scheduler="tcp://127.0.0.1:1")
