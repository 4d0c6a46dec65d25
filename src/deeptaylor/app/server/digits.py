"""The explainers of the digits page as ONNX files, for the page that runs wholly inside a browser.

python -m deeptaylor.app.server.digits FOLDER

Each file takes pixels x (1, 1, 28, 56), from −0.5 (black) to 1.5 (white), and gives score (1,) and relevance like x.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from deeptaylor.errors import DeepTaylorError
from deeptaylor.explainer import Explainer
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS
from deeptaylor.models.onnx.exporter import convert_module, require_packages
from deeptaylor.support.files import write_whole
from deeptaylor.viz.colors import style_sheet

__all__ = ["export", "main"]


def export(name: str, folder: Path) -> Path:
    """Write the explainer of one of the paper's networks into a folder that exists."""
    require_packages()
    loaded = load_pretrained(name)
    x = torch.zeros(1, 1, 28, 56)
    explainer = Explainer(loaded.network, x, domain=loaded.domain)
    proto = convert_module(explainer, (x,), ["x"], ["score", "relevance"])
    return write_whole(folder / f"{name}.onnx", proto.SerializeToString())


def main(arguments: Sequence[str] | None = None) -> int:
    """Export both networks and the colours; return 0, or 2 if that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m deeptaylor.app.server.digits", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "colors.css", style_sheet().encode())
        for name in PAPER_NETWORKS:
            sys.stdout.write(f"{export(name, folder)}\n")
    except (DeepTaylorError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
