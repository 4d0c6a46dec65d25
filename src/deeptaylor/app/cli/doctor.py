"""`deeptaylor doctor`: what is installed here, and known traps."""

from __future__ import annotations

from dataclasses import asdict

from deeptaylor.app.cli.exits import CHECK_FAILED, FINE
from deeptaylor.app.cli.show import Talk
from deeptaylor.app.diagnosis import examine

__all__ = ["doctor"]

_MARKS = {"fine": "ok  ", "note": "note", "problem": "PROBLEM"}


def doctor(talk: Talk) -> int:
    """Look at torch, the device, the extras and known traps, and explain a small network as a test.

    Nothing is changed, and nothing is fetched. Exit code 1 if there is a problem; notes are no problems.

    \b
    Example:
      deeptaylor doctor
    """  # noqa: D301
    with talk.progress() as step:
        step("looking")
        findings = examine()
    code = CHECK_FAILED if any(f.state == "problem" for f in findings) else FINE
    talk.table(
        ("", "what", "found"),
        [(_MARKS[f.state], f.what, f.found + (f"\n→ {f.advice}" if f.advice else "")) for f in findings],
    )
    talk.result({"findings": [asdict(f) for f in findings], "exit_code": code})
    return code
