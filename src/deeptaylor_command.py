"""The start and the end of the command `deeptaylor`, so that Ctrl-C works there too.

At the start, torch is imported, which takes seconds and swallows some interrupts; they are handled after the import.
At the end, all files are written. Python's own clean-up takes a second once torch is loaded; the process ends without.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import Any

FINE = 0
CHECK_FAILED = 1  # the network cannot be explained, a ledger does not close, an export differs, the doctor is worried
BAD_INPUT = 2  # nothing was done
SOME_FAILED = 3  # of several photographs
OWN_ERROR = 70  # an error of this package, not of the user
INTERRUPTED = 130
EXITS = (
    "Exit codes: 0 success; 1 a check failed; 2 invalid input; 3 some of several photographs failed; 70 an internal "
    "error; 130 interrupted."
)
UNWRITTEN = 120  # the exit code that Python itself uses if its last output cannot be written
FEW_CORES = 4  # with more cores, waiting threads take little time from the others
HELP = """\
Explain the decisions of a neural network: which parts of the input carry the score, and how much each carries.

deeptaylor explain PHOTO... --model NAME    heatmaps of photographs: which pixels carry the score
deeptaylor check MODEL                      whether a network can be explained, and by which rules
deeptaylor compare PHOTO --model NAME       several methods side by side
deeptaylor evaluate FOLDER --model NAME     do the maps show what the network uses? several methods, measured
deeptaylor run DATA --model NAME --out STORE    explain a whole data set; the same command resumes
deeptaylor status STORE                     progress of a run, and items that could not be explained
deeptaylor verify STORE                     check the files of a run, and recompute a sample of it
deeptaylor fit MODEL DATA --layer NAME      train a relevance model of one layer (section IV-A)
deeptaylor export MODEL explainer.onnx      write the explainer as an ONNX file
deeptaylor export STORE maps.html           write a run as .html, .png, .npz or .parquet
deeptaylor doctor                           check the installation
deeptaylor demo                             explain five photographs with a real network
deeptaylor serve                            explain pictures, texts and runs in a browser
deeptaylor paper mnist                      reproduce sections III and IV: pairs of digits
deeptaylor paper imagenet                   reproduce section IV-D: photographs and large networks
deeptaylor paper rules                      draw the root points of the rules (supplement)

Every command has --help with an example. All but serve take --json and --quiet.
Version: deeptaylor --version. Shell completion: deeptaylor --install-completion.
Exit codes: 0 success; 1 a check failed; 2 invalid input; 3 some of several photographs could not be explained;
70 an internal error; 130 interrupted.
"""


def run() -> None:
    """Run the command and end the process without Python's clean-up."""
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the output was not written, as on a full disk
            code = code or UNWRITTEN
    os._exit(code)


def main() -> int:
    """Import the command and run it; return the exit code. The help is printed without an import."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]) and "_DEEPTAYLOR_COMPLETE" not in os.environ:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        sys.stdout.write(HELP)
        return 0
    _shorten_spinning()
    pressed: list[int] = []

    def heard(number: int, _frame: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT)
    listening = usual is signal.default_int_handler  # False if a shell has background jobs ignore the signal
    try:
        if listening:
            signal.signal(signal.SIGINT, heard)
        gc.disable()  # collecting garbage during the imports would take half a second
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


def _shorten_spinning() -> None:
    """Make OpenMP's waiting threads sleep soon on machines with few cores; call it before torch is imported.

    A waiting thread of GNU's OpenMP spins for milliseconds. On a busy machine with few cores it blocks the threads that
    it waits for, so that a photograph takes six times the processor time. 1000 spins are OpenMP's own choice if there
    are more threads than cores. Environment variables that the user has set are kept.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores <= FEW_CORES and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
