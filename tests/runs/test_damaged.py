"""A store of which a part is gone or damaged: it is refused in words, and never said to be fine."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeptaylor as dt
from damages import KINDS, damage_many
from deeptaylor.app.cli import main
from deeptaylor.runs.commits import Commits, StoreError
from deeptaylor.runs.verify import examine, repair
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return run(Squares(20), tmp_path / "store").path


def remove_ledger(store: Path) -> None:
    for path in store.glob("ledger.sqlite*"):
        path.unlink()


def test_a_store_whose_manifest_is_gone_is_left_as_it_is(store: Path) -> None:
    before = arrays(store)
    (store / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"manifest\.json is missing.*verify --repair"):
        run(Squares(20), store)
    assert arrays(store) == before
    repair(store)
    assert run(Squares(20), store).complete
    assert arrays(store) == before


@pytest.mark.parametrize("text", ["{", "", "\xff", "[]"])
def test_a_manifest_that_is_broken(store: Path, text: str) -> None:
    (store / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"manifest\.json is (missing|not what was written).*verify --repair"):
        run(Squares(20), store)
    with pytest.raises(StoreError, match=r"manifest\.json is (missing|not what was written).*verify --repair"):
        dt.open_run(store)
    repair(store)
    assert dt.open_run(store).complete


def test_a_store_whose_ledger_is_gone(store: Path) -> None:
    remove_ledger(store)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used.*put it back from a copy"):
            run(Squares(20), store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        examine(store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used: it is missing"):
        _ = dt.open_run(store).progress
    assert not (store / "ledger.sqlite").exists()


@pytest.mark.parametrize("data", [b"", b"no database" * 500])
def test_a_ledger_that_is_empty_or_damaged(store: Path, data: bytes) -> None:
    remove_ledger(store)
    (store / "ledger.sqlite").write_bytes(data)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        _ = dt.open_run(store).progress
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        run(Squares(20), store)
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be used"):
        examine(store)


def test_a_ledger_of_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove_ledger(store)
    Commits(store, write=True).close()
    with pytest.raises(StoreError, match="is damaged"):
        run(Squares(20), store)
    for verb in ("status", "verify"):
        assert main([verb, str(store)]) in (1, 2)
        assert "damaged" in capsys.readouterr().err


def test_what_zarr_reads_first_is_written_again(store: Path) -> None:
    before = arrays(store)
    (store / "scale" / "zarr.json").unlink()
    assert examine(store).faults == ("scale/zarr.json: it is not what was written",)
    (store / "zarr.json").unlink()
    run(Squares(20), store)
    assert arrays(store) == before
    assert examine(store).fine


def test_a_lock_alone_is_no_store_yet(tmp_path: Path) -> None:
    (tmp_path / "lock.sqlite").touch()
    assert run(Squares(3), tmp_path).complete


def test_a_damaged_lock_is_told(store: Path) -> None:
    (store / "lock.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(StoreError, match=r"lock\.sqlite cannot be written to.*remove it"):
        run(Squares(20), store)


# --- random damages ---------------------------------------------------------------------------------------------------


def test_random_damages_are_noticed_named_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, wrong = damage_many(tmp_path, 100, monkeypatch)
    assert not wrong, "\n".join(wrong[:20])
    assert set(KINDS) <= set(counted)


@pytest.mark.slow
def test_2000_random_damages_are_noticed_named_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, wrong = damage_many(tmp_path, 2000, monkeypatch, seed=1)
    print(dict(counted))
    assert not wrong, "\n".join(wrong[:20])
