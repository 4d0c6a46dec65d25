"""The study behind docs/faithful_text.md: are the maps of tokens true? text_page.py makes the page from the records.

    python benchmarks/text_study.py prepare --folder FOLDER                 packages into small files; needs a network
    python benchmarks/text_study.py train   --folder FOLDER --out FOLDER [--device cuda]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import text_data
import text_train


def _prepare(asked: argparse.Namespace) -> dict[str, Any]:
    text_data.prepared(asked.folder)
    return {"prepared": str(asked.folder)}


PARTS = {"prepare": _prepare, "train": text_train.trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True, help="what prepare wrote")
    parser.add_argument("--out", type=Path, help="where results go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--reviews", type=int, default=0, help="at most so many")
    parser.add_argument("--epochs", type=int, default=4)
    asked = parser.parse_args()
    print(PARTS[asked.part](asked))


if __name__ == "__main__":
    main()
