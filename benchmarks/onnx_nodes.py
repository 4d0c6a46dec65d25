"""How many of the onnx package's own tests of operators are read right, refused, or read wrong.

    python benchmarks/onnx_nodes.py            a minute; writes results/onnx-nodes.json

Each test is a file with one operator (or the functions that it stands for), its inputs and its outputs. It is read
twice: as it is, and with all inputs but the first stored in the file, as trained networks have them. Right means that
the outputs agree with those of the test within 1e-3 of their size (5e-3 in float16, 2e-2 in bfloat16).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "helpers")]
from onnx_nodes import cases, verdict  # noqa: E402

RECORD = HERE / "results" / "onnx-nodes.json"


def reason(text: str) -> str:
    """A refusal without names and numbers of its file."""
    text = re.sub(r"'[^']*'|\([^)]*\)", "…", text.removeprefix("refused: "))
    return text.split(". ")[0][:120]


def measure(stored: bool) -> dict[str, object]:
    """Counts of verdicts, the reasons of refusals, and the tests that are read wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: verdict(*case, Path(folder) / "model.onnx") for name, *case in cases(stored)}
    kinds = Counter(said.partition(":")[0] for said in found.values())
    reasons = Counter(reason(said) for said in found.values() if said.startswith("refused"))
    return {
        "tests": len(found),
        **dict(kinds.most_common()),
        "wrong, by name": [name for name, said in found.items() if said == "wrong"],
        "otherwise in onnxruntime": [name for name, said in found.items() if said.startswith("differs")],
        "refusals": dict(reasons.most_common()),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record = {
        "versions": {name: version(name) for name in ("onnx", "onnxruntime", "torch")},
        "as given": measure(stored=False),
        "stored": measure(stored=True),
    }
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in ("as given", "stored"):
        print(name, {key: value for key, value in record[name].items() if isinstance(value, int)})
