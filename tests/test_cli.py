"""The command hands over to the module that does the work, and says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeptaylor.cli import EXPERIMENTS, main


def test_help_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"deeptaylor paper {name}" in text for name in EXPERIMENTS)
    assert main([]) == main(["paper"]) == 0


@pytest.mark.parametrize("words", [["explode"], ["paper", "nothing"]])
def test_an_unknown_verb(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"error: there is no `deeptaylor {' '.join(words)}`" in capsys.readouterr().err


def test_paper_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "rules", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "root_points.png").stat().st_size > 10_000
    assert "root_points.svg" in capsys.readouterr().out
