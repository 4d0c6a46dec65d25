"""What deeptaylor, captum, zennit, autoLRP, grad-cam and SHAP can do, tried: the tables of docs/compare.md.

    pip install captum==0.9.0 zennit==1.0.0 autolrp==0.2.0 grad-cam==1.5.7 shap==0.51.0 \
        torchvision ipython transformers
    python benchmarks/features.py [--only ROW …] [--tools TOOL …]
    python benchmarks/features_page.py

Every cell is a function in `feature_cells` that does the thing on a tiny network, or shows that the tool refuses or has
no such function. A cell that ends with an error of its own is reported and ends the run; it is never taken for a "no".
The record, `benchmarks/results/features.json`, holds every answer with what was seen.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from torchvision_shim import models  # noqa: F401  first: zennit and grad-cam import torchvision

# isort: split

import torch

from feature_cells.cell import Cell
from feature_cells.rows import ROWS

RECORD = Path(__file__).resolve().parent / "results/features.json"
TOOLS = {
    "deeptaylor": "feature_cells.ours",
    "captum": "feature_cells.with_captum",
    "zennit": "feature_cells.with_zennit",
    "autoLRP": "feature_cells.with_autolrp",
    "grad-cam": "feature_cells.with_grad_cam",
    "SHAP": "feature_cells.with_shap",
}


def tried(module: Any, key: str) -> Cell:
    """One cell, from the same random numbers whatever ran before."""
    torch.manual_seed(0)
    function = module.CELLS.get(key) or getattr(module, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cell: Cell = function()
    return cell


def record(tools: list[str], keys: list[str], known: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """All cells that are asked for, beside those that are known; and the names of those that failed."""
    cells, failed = known.get("cells", {}), []
    for tool in tools:
        module = importlib.import_module(TOOLS[tool])
        for key in keys:
            began = time.perf_counter()
            try:
                cell = tried(module, key)
            except Exception:  # noqa: BLE001 - whatever it is, the others are tried
                traceback.print_exc()
                failed.append(f"{tool}, {key}")
                continue
            cells.setdefault(key, {})[tool] = {"answer": cell.answer, "shown": cell.shown, "evidence": cell.evidence}
            print(f"{time.perf_counter() - began:5.1f} s  {tool:10}  {key:16} {cell.answer}: {cell.shown}", flush=True)
            print(f"{'':8} {cell.evidence}", flush=True)
    numbers = known.get("versions", {})
    numbers |= {tool: version(importlib.import_module(TOOLS[tool]).DISTRIBUTION) for tool in tools}
    versions = {tool: numbers[tool] for tool in TOOLS if tool in numbers}
    cells = {key: {t: cells[key][t] for t in TOOLS if t in cells[key]} for key in _every() if key in cells}
    with_ = {name: version(name) for name in ("torch", "matplotlib", "Pillow", "numpy")} | {
        "Python": platform.python_version()
    }
    return {"versions": versions, "with": with_, "cells": cells}, failed


def _every() -> list[str]:
    return [key for rows in ROWS.values() for key in rows]


def main() -> None:
    every = _every()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=every, metavar="ROW", help="these rows, beside those of the record"
    )
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), metavar="TOOL", help="these tools")
    chosen = parser.parse_args()
    known = {}
    if RECORD.is_file() and (chosen.only or chosen.tools):
        known = json.loads(RECORD.read_text(encoding="utf-8"))
    found, failed = record(chosen.tools or list(TOOLS), chosen.only or every, known)
    RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(RECORD)
    if failed:
        sys.exit(f"These cells ended with an error: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
