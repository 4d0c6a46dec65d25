"""The command before anything is loaded and after all is done: in these seconds, too, Ctrl-C is an interrupt.

while it is loaded   torch takes seconds, and swallows some interrupts: they are noticed when it is there
when it is over      all files are written, and the exit code says how it went; Python only cleans up after itself,
                     which takes a second once torch is loaded: the process ends without it
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import Any

INTERRUPTED = 130
UNHEARD = 120  # Python's own for this
FEW_CORES = 4  # with more, a thread that waits takes little from the others
HELP = """\
Which parts of the input made a network decide so, and how much did each count?

deeptaylor explain PHOTO... --model NAME    which pixels made the network say so: heatmaps, a report
deeptaylor check MODEL                      can this network be explained, by which rules, and if not, why
deeptaylor compare PHOTO --model NAME       several methods side by side
deeptaylor evaluate FOLDER --model NAME     are the maps true? methods judged by what the network does
deeptaylor run DATA --model NAME --out STORE    a whole data set; the same command goes on
deeptaylor status STORE                     how far a run is, and what could not be explained
deeptaylor verify STORE                     a run's files against their hashes, a sample computed again
deeptaylor fit MODEL DATA --layer NAME      train a relevance model of one layer, as in section IV-A
deeptaylor export MODEL explainer.onnx      the explainer itself as an ONNX file
deeptaylor export STORE maps.html           a run as .png, .html, .npz or .parquet
deeptaylor doctor                           what is installed here, and known traps
deeptaylor demo                             five photographs explained with a real network
deeptaylor serve                            the same in a browser
deeptaylor paper mnist                      sections III and IV: every figure and table on pairs of digits
deeptaylor paper imagenet                   section IV-D: photographs and large networks, the claims as numbers
deeptaylor paper rules                      the supplement's picture of the rules' root points

Each has --help with an example, and all but serve have --json and --quiet. deeptaylor --version says which this is.
Shell completion: deeptaylor --install-completion. Exit codes: 0 fine; 1 a check failed; 2 bad input; 3 some of several
photographs could not be explained; 70 an error in deeptaylor itself; 130 interrupted.
"""


def run() -> None:
    """What the shell calls: the command, and then the end of the process, without taking torch apart."""
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # what was said did not arrive, as on a full disk
            code = code or UNHEARD
    os._exit(code)


def main() -> int:
    """Load the command and run it; the exit code. Help needs nothing loaded."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]) and "_DEEPTAYLOR_COMPLETE" not in os.environ:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        sys.stdout.write(HELP)
        return 0
    _wait_asleep()
    pressed: list[int] = []

    def heard(number: int, _frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT)
    listening = usual is signal.default_int_handler  # not where a shell has its background jobs ignore it
    try:
        if listening:
            signal.signal(signal.SIGINT, heard)
        gc.disable()  # nothing that is loaded is garbage, and looking for some takes half a second
        from deeptaylor.app.cli import main as command

        gc.freeze()
        gc.enable()
        if listening:
            signal.signal(signal.SIGINT, usual)
    except KeyboardInterrupt:
        pressed.append(signal.SIGINT)
    if pressed:
        sys.stderr.write("interrupted; nothing was begun\n")
        return INTERRUPTED
    code = command()
    if listening:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _wait_asleep() -> None:
    """Have threads that wait for each other sleep soon, where cores are few; before torch is loaded, which asks once.

    GNU's OpenMP lets a thread turn round and round for milliseconds while it waits. On a machine of few cores that is
    busy, it keeps those from working that it waits for: a photograph takes six times the processor's time. 1000 turns
    are what OpenMP itself takes where it knows of more threads than cores. Who has said otherwise is obeyed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores <= FEW_CORES and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
