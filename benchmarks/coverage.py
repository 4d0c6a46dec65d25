"""Which networks of `transformers` can be explained: every type that can be made small is asked three questions.

    python benchmarks/coverage.py [--types vit,bert] [--again]

Each type runs in a process of its own, and each question has 40 seconds of processor time. The record,
results/coverage.json, is written after every type; a type that is in it is not run again, unless --again is given.
benchmarks/coverage_page.py writes docs/coverage.md from the record.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import transformers as hf

import deeptaylor as dt
from coverage_networks import SPECIAL, VOCABULARY, Built, build, list_types

RECORD = Path(__file__).parent / "results" / "coverage.json"
LIMIT = 40  # seconds of processor time for one question
MOST_MEMORY = 8 * 2**30  # bytes: types that no setting makes small are not built
LONGEST = 400  # seconds that a process may take in all, on a machine that does other work
SAME = 1e-3  # the part of the network's output by which a score may be off


class OutOfTime(BaseException):
    """A question took longer than its limit; not an Exception, so that nothing catches it."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def _ask(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a question with its processor time; or the class and the first line of its error."""
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        answer = question()
    except OutOfTime:
        answer = {"error": "OutOfTime", "says": f"more than {LIMIT} s"}
    except Exception as error:  # noqa: BLE001  what users would see
        answer = {
            "error": type(error).__name__,
            "says": _summarise(error),
            "ours": isinstance(error, dt.DeepTaylorError),
        }
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return answer | {"seconds": round(time.process_time() - started, 1)}


def _summarise(error: Exception) -> str:
    """Return the first line of an error; with the first operation, if the line only counts operations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = " ".join(lines[:2]) if lines[0].endswith("cannot be explained:") else lines[0]
    return said.partition("; at ")[0][:300]


def _gap(answer: Any, *scores: torch.Tensor) -> float:
    """Return what the account of an answer lacks, relative to its scores."""
    largest = max(float(score.abs().max()) for score in scores)
    return float(answer.ledger.gap.abs().max()) / max(largest, 1e-12)


def _compare_score(answer: Any, output: torch.Tensor) -> None:
    """Raise AssertionError if the score is not the network's."""
    wanted = output[:, 0]
    off = float((answer.score.reshape(-1) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
    assert off <= SAME, f"wrong score: off by {off:.1e} of the output"


def explain(explainer: dt.Explainer, built: Built, output: torch.Tensor) -> dict[str, Any]:
    """Explain the logit of the first class by the method that the library chooses."""
    answer = explainer.explain(built.x, dt.logit(0))
    _compare_score(answer, output)
    assert bool(torch.isfinite(answer.relevance).all()), "relevance is not finite"
    return {"method": answer.method, "without rules": "has no rule for" in answer.reason}


def between(explainer: dt.Explainer, built: Built, output: torch.Tensor) -> dict[str, Any]:
    """Compare both inputs, and measure what the account lacks."""
    answer = explainer.between(built.x, built.other, dt.logit(0))
    _compare_score(answer, output)
    return {"gap": _gap(answer, answer.score, answer.reference_score)}


def read_text(built: Built) -> dict[str, Any]:
    """Explain a text by the face for texts, with a tokenizer of a few words."""
    words = ["<pad>", "<s>", "</s>", *[f"w{k}" for k in range(SPECIAL, VOCABULARY - 8)]]
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<pad>"}
    if built.task.kind == "classifier":
        special["mask_token"] = words[-1]
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=plain, **special)
    model = dt.TextModel(built.network, tokenizer, built.task.kind)
    asked = {"target": 0} if built.task.kind == "classifier" else {}
    text = "w5 w9 w12 w7 w30 </s>" if built.task.kind == "classifier" else "w5 w9 w12 w7 w30"
    answer = model.explain(text, **asked)
    return {"gap": _gap(answer, answer.score)}


def _run(name: str, pipe: Connection) -> None:
    """Build a type and ask all questions; send the row after each, so that what is known survives."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _stop)
    row: dict[str, Any] = {"type": name, "task": list_types()[name]}
    made: list[Built] = []
    row["built"] = _ask(lambda: made.append(build(name)) or {})  # type: ignore[func-returns-value]
    pipe.send(row)
    if not made:
        return
    built = made[0]
    row["class"] = type(built.network).__name__
    row["parameters"] = sum(p.numel() for p in built.network.parameters())
    with torch.no_grad():
        output = built.function(built.x)
    explainer = dt.Explainer(built.function)
    row["explain"] = _ask(lambda: explain(explainer, built, output))
    pipe.send(row)
    row["between"] = _ask(lambda: between(explainer, built, output))
    pipe.send(row)
    if built.task.kind:
        row["text"] = _ask(lambda: read_text(built))
    pipe.send(row)


def measure(name: str) -> dict[str, Any]:
    """Return the row of a type, measured in a process of its own."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(name, theirs))
    process.start()
    theirs.close()
    row: dict[str, Any] = {"type": name, "task": list_types()[name]}
    end = time.monotonic() + LONGEST
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            row = ours.recv()
    except EOFError:
        pass
    process.kill()
    process.join()
    lacks = [q for q in ("built", "explain", "between") if q not in row]
    if lacks and "error" not in row.get("built", {}):
        row[lacks[0]] = {"error": "OutOfTime", "says": f"the process ended, or took more than {LONGEST} s"}
    return row


def _warm_up() -> None:
    """Import here what every process needs, so that they need not."""
    torch.set_num_threads(1)
    built = build("bert")
    dt.Explainer(built.function).explain(built.x, 0)
    read_text(built)


def main() -> int:
    """Measure all types that the record lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default="", help="some types, with commas between")
    parser.add_argument("--again", action="store_true", help="measure types that are in the record, too")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": {}}
    record["versions"] = {
        "torch": torch.__version__.partition("+")[0],
        "transformers": hf.__version__,
        "python": platform.python_version(),
    }
    record["limits"] = {"limit": LIMIT, "same": SAME}
    _warm_up()
    for name in options.types.split(",") if options.types else list_types():
        if name in record["rows"] and not options.again:
            continue
        row = measure(name)
        record["rows"][name] = row
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(name, {question: answer for question, answer in row.items() if isinstance(answer, dict)}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
