"""What goes wrong with disks, files, clocks and signals: a run ends cleanly, and goes on to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from cli_model import MODEL, write
from deeptaylor.app.cli import main
from deeptaylor.datasets import store as stores
from deeptaylor.datasets.commits import Commits
from deeptaylor.datasets.explain_dataset import Progress
from deeptaylor.datasets.export import save
from deeptaylor.datasets.items import DatasetSource, Parquet, Tar
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.datasets.verify import examine, recompute, repair
from deeptaylor.datasets.work import Work
from deeptaylor.engine.engine import Engine
from deeptaylor.support.files import DiskFullError
from deeptaylor.support.provenance import weights_fingerprint
from layout import ROOT
from small_runs import BOX, Squares, arrays, explainer, network, run

pytest.importorskip("zarr")


def test_a_full_disk_ends_the_run_and_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Squares(50), tmp_path / "whole")
    usual, count = stores.write_together, [0]

    def full(files: Any, threads: int) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise DiskFullError("No space left on device")
        return usual(files, threads)

    monkeypatch.setattr(stores, "write_together", full)
    with pytest.raises(DiskFullError):
        run(Squares(50), tmp_path / "full")
    assert dt.open_dataset(tmp_path / "full").progress[0] == 2
    run(Squares(50), tmp_path / "full")
    assert arrays(tmp_path / "full") == arrays(tmp_path / "whole")


def test_a_small_disk_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5000})())
    with pytest.raises(DiskFullError, match="the same command continues"):
        run(Squares(50), tmp_path / "store", check_space=False)
    assert dt.open_dataset(tmp_path / "store").progress[0] == 0


def test_a_damaged_shard_is_found_and_done_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(Squares(50), store)
    before = arrays(store)
    path = store / "heatmap" / "c" / "1" / "0" / "0"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    (store / "score" / "c" / "2").unlink()
    assert examine(store).damaged == (1, 2)
    assert repair(store).damaged == (1, 2)
    assert dt.open_dataset(store).progress[0] == 2
    run(Squares(50), store)
    assert arrays(store) == before
    assert examine(store).fine


def test_a_sample_is_computed_again(tmp_path: Path) -> None:
    data = Squares(50, {7: ValueError("cannot be read")})
    store = run(data, tmp_path / "store").path
    assert main(["verify", str(store)]) == 0

    def work(samples: Squares) -> Work:
        return Work(DatasetSource(samples), explainer(), None)

    found = recompute(store, work(data), 50)
    assert found.fine
    assert found.items == 50
    assert found.map_gap == found.score_gap == 0
    changed = recompute(store, work(Squares(50, {7: ValueError("cannot be read"), 9: data.x(10)})), 50)
    assert changed.changed == ("9",)
    assert not changed.fine


def test_another_network_is_refused_before_anything_is_compared(tmp_path: Path) -> None:
    store = run(Squares(8), tmp_path / "store").path
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    work = Work(DatasetSource(Squares(8)), dt.Explainer(other, None, dt.Box(0, 1)), None)
    with pytest.raises(ChangedError, match="another network") as refused:
        recompute(store, work, 4)
    assert dt.open_dataset(store).manifest["network"]["fingerprint"] in str(refused.value)
    assert weights_fingerprint(other) in str(refused.value)


def test_a_signal_ends_the_run_after_its_shard(tmp_path: Path) -> None:
    def interrupt(p: Progress) -> None:
        if p.done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(Squares(50), tmp_path / "store", progress=interrupt)
    assert dt.open_dataset(tmp_path / "store").progress == (1, 16, 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_clock_that_jumps_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Squares(40), tmp_path / "usual")
    now = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    seen: list[Progress] = []
    run(Squares(40), tmp_path / "jumps", progress=seen.append)
    assert arrays(tmp_path / "usual") == arrays(tmp_path / "jumps")
    assert all(p.per_second >= 0 for p in seen)


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(dt.InputError, match="file"):
        run(Squares(4), tmp_path / "file" / "store")


def test_no_half_written_file_is_left(tmp_path: Path) -> None:
    run(Squares(20), tmp_path / "store")
    part = tmp_path / "store" / "score" / "c" / ".0.abcd.part"
    part.write_bytes(b"half")
    run(Squares(20), tmp_path / "store")
    assert not part.exists()


# --- packed -----------------------------------------------------------------------------------------------------------


def pictures(folder: Path) -> list[Path]:
    folder.mkdir()
    for k in range(4):
        Image.fromarray((Squares(4).x(k)[0] * 255).byte().numpy()).save(folder / f"{k}.png")
        (folder / f"{k}.cls").write_text(str(k % 3))
    return sorted(folder.iterdir())


def test_tar_and_parquet_hold_the_same_pictures(tmp_path: Path) -> None:
    files = pictures(tmp_path / "files")
    with tarfile.open(tmp_path / "data.tar", "w") as packed:
        for file in files:
            packed.add(file, file.name)
    found = [(e.name, e.label) for e in Tar(tmp_path / "data.tar").entries()]
    assert found == [(f"{k}.png", k % 3) for k in range(4)]
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": f.read_bytes(), "path": f.name} for f in files if f.suffix == ".png"]
    table = arrow.table({"image": images, "label": [k % 3 for k in range(4)]})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=3)
    preparation = dt.Preparation(size=8, resize=8, channels="L", white=1, mean=0.0, std=1.0, interpolation="bilinear")
    model = dt.Pretrained(explainer().model, None, preparation)
    runs = [
        dt.explain_dataset(tmp_path / name, model, tmp_path / name[5:], shard=4)
        for name in ("data.tar", "data.parquet")
    ]
    assert np.array_equal(runs[0].heatmaps[:], runs[1].heatmaps[:])
    assert runs[0].table["label"].tolist() == runs[1].table["label"].tolist() == [0, 1, 2, 0]
    assert runs[0].picture(2).tobytes() == runs[1].picture(2).tobytes()
    assert Parquet(tmp_path / "data.parquet").about["kind"] == "parquet"


# --- files for others -------------------------------------------------------------------------------------------------


def test_a_run_as_files(tmp_path: Path) -> None:
    done = run(Squares(12, {3: ValueError("bad")}), tmp_path / "store")
    with Image.open(save(done, tmp_path / "a.png")) as sheet:
        assert sheet.width > 500
    page = save(done, tmp_path / "a.html").read_text()
    assert page.count('<script type="text/plain" id="i') == 11
    assert "<summary>Not explained</summary><pre>3: " in page
    assert "Colours: white nothing, red for the class" in page  # no map has negative values
    with np.load(save(done, tmp_path / "a.npz", most=5)) as found:
        assert np.array_equal(found["heatmap"], done.heatmaps[:5])
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(save(done, tmp_path / "a.parquet")).num_rows == 12
    with pytest.raises(dt.InputError, match=r"\.parquet"):
        save(done, tmp_path / "a.pdf")
    assert main(["status", str(tmp_path / "store")]) == 0
    assert main(["export", str(tmp_path / "store"), str(tmp_path / "b.png")]) == 0
    assert (tmp_path / "b.png").is_file()


def test_for_programs_a_run_says_one_line_per_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.png").rename(tmp_path / "photos" / "a.png")
    assert main(["run", "photos", *MODEL, "--out", "store", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["progress", "done"]
    assert said[-1]["items"] == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_store() -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "runs_killed.py"), "--kills", "25"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_ledger_is_read_beside_a_run_and_where_nothing_can_be_written(tmp_path: Path) -> None:
    run(Squares(20), tmp_path / "store")
    writer = Commits(tmp_path / "store", write=True)
    assert dt.open_dataset(tmp_path / "store").progress[0] == 2
    writer.close()


def short_of_memory(monkeypatch: pytest.MonkeyPatch, fits: Any) -> None:
    """Only inputs for which `fits` is true go through the network."""
    usual = Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if not fits(inputs[0]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return usual(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(Squares(20), tmp_path / "whole")
    short_of_memory(monkeypatch, lambda x: len(x) <= 2)
    with pytest.warns(dt.DeepTaylorWarning, match="A batch of 5 does not fit into memory; it was explained 2 at a ti"):
        halved = run(Squares(20), tmp_path / "halved", shard=20)
    assert halved.complete
    assert halved.progress == (1, 20, 0)
    np.testing.assert_allclose(halved.heatmaps[:], whole.heatmaps[:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(halved.table["score"], whole.table["score"], rtol=1e-5)


def test_an_item_that_does_not_fit_into_memory_is_recorded_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Squares(20)
    whole = run(data, tmp_path / "whole")
    large = data.x(7)
    short_of_memory(monkeypatch, lambda x: not any(torch.equal(one, large) for one in x))
    own = dt.Explainer(network(), torch.zeros(1, 1, 8, 8), BOX)
    with pytest.warns(dt.DeepTaylorWarning, match="does not fit into memory|explained . at a time"):
        found = dt.explain_dataset(data, own, tmp_path / "short", shard=16, batch=5)
    assert found.complete
    assert found.progress == (2, 20, 1)
    (trouble,) = found.errors
    assert trouble.item == 7
    assert "does not fit into memory" in trouble.reason
    others = [k for k in range(20) if k != 7]
    np.testing.assert_allclose(found.heatmaps[:][others], whole.heatmaps[:][others], rtol=0, atol=1e-5)
    assert np.isnan(found.table["score"][7])


def test_a_network_that_changes_unseen_within_a_shard_ends_the_run_before_the_shard_is_saved(tmp_path: Path) -> None:
    own = dt.Explainer(network(), torch.zeros(1, 1, 8, 8), BOX)

    def change(p: Progress) -> None:
        if p.done == 21:  # in the second shard; torch does not count this
            own.model[0].weight.data[0, 0, 0, 0] += 1

    with pytest.raises(dt.StaleModelError, match=r"0\.weight"):
        dt.explain_dataset(Squares(50), own, tmp_path / "store", shard=16, batch=5, progress=change)
    assert dt.open_dataset(tmp_path / "store").progress == (1, 16, 0)
