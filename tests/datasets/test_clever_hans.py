"""A mark on every training picture of one class is found among the clusters of the heatmaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from layout import ROOT

pytest.importorskip("zarr")
pytest.importorskip("sklearn")


@pytest.mark.slow
def test_the_marks_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from clever_hans import study

    found = study(tmp_path, seed=0, count=600, epochs=4, embedding="spectral")
    for name in ("training", "others"):
        assert found[name]["purity"] >= 0.95
        assert found[name]["recall"] >= 0.9
        assert found[name]["cluster"] == found[name]["most_alike"]
    assert (tmp_path / "training-0.png").stat().st_size > 10_000
