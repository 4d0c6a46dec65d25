"""Progress of the paper's experiments, on a terminal and in a file."""

from __future__ import annotations

import io
import sys

import pytest

from deeptaylor.paper import experiment
from deeptaylor.paper.experiment import Talk


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(experiment.time, "monotonic", lambda: now)
    talk = Talk()
    for now in (1.0, 14.0, 15.0, 16.0, 31.0):
        talk.share("  roots", int(now), 40)
    assert capsys.readouterr().err == "  roots 38 %\n  roots 78 %\n"
    with talk.doing("figures"):
        now = 33.5
    assert capsys.readouterr().err == "figures …\nfigures: 2.5 s\n"
    Talk(quiet=True).say("nothing")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_every_step_over_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    talk = Talk()
    talk.share("  roots", 1, 4)
    talk.say("done")
    assert terminal.getvalue() == "\r\x1b[K  roots 25 %\r\x1b[Kdone\n"
