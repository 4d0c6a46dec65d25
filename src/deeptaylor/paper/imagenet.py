"""`python -m deeptaylor.paper.imagenet`: the paper's experiment on large networks and photographs, and its numbers.

    build ──► photographs, networks
                explain_all        every method's maps, kept in OUT/arrays     (imagenet_maps.py)
                numbers            from these arrays alone                     (imagenet_numbers.py)
                check_claims       our own checks                              (imagenet_verdicts.py)
                judge_paper        the paper's sentences                       (imagenet_verdicts.py)
                                   ──► OUT/numbers.json
                draw               OUT/*.png, OUT/*.svg                        (imagenet_report.py)
                write_report       figures, tables and what they say           (imagenet_report.py) ──► OUT/report.html

A second run reads the arrays that are there if they come from the same photographs, weights, settings and version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deeptaylor.paper import imagenet_report
from deeptaylor.paper.experiment import (
    Saved,
    Talk,
    digest,
    figure_class,
    finish,
    format_claims,
    run,
    serialize_claims,
    versions,
    write,
)
from deeptaylor.paper.imagenet_maps import (
    PHOTO_CONTENTS,
    ImagenetError,
    PhotoContent,
    PhotoNetwork,
    Pixels,
    compose,
    explain_all,
    load_networks,
    load_photographs,
)
from deeptaylor.paper.imagenet_numbers import check_accounted, numbers
from deeptaylor.paper.imagenet_verdicts import check_claims, judge_paper, judge_supplement
from deeptaylor.paper.verdicts import format_verdicts, serialize_verdicts


def build(
    photos: Mapping[str, Image.Image],
    cases: Mapping[str, PhotoNetwork],
    out: Path,
    *,
    credit: str,
    known: Mapping[str, PhotoContent] | None = None,
    targets: Mapping[str, str] | None = None,
    zoom: str | None = None,
    again: bool = False,
    talk: Talk | None = None,
) -> dict[str, Any]:
    """Make the report in a folder, and return its numbers. Photographs are squares, as `photographs` gives them.

    known     what is on photographs, by their names, where that is known
    targets   the class to explain, by a photograph's name ("": of all); the most probable one where none is named
    zoom      the photograph to zoom into; by default the one with the region most nearly of two even areas
    """
    talk = talk or Talk()
    figure_class()  # before minutes of work: without it there is no report
    saved = Saved(out / "arrays", talk, again=again)
    pictures = _stacked(list(photos.values()))
    settings = {"photographs": digest(torch.from_numpy(pictures))}
    saved.get("photographs", settings, lambda: {"pictures": pictures, "names": np.array(list(photos))})
    maps = explain_all(cases, photos, saved, targets)
    with talk.doing("numbers"):
        found = _about(cases, credit) | numbers(cases, maps, pictures, list(photos), known or {}, zoom)
    check_accounted(found)
    found["claims"] = serialize_claims(check_claims(found))
    found["verdicts"] = serialize_verdicts([*judge_paper(found), *judge_supplement(found)])
    composed = _stacked(compose(list(photos.values()))["twice_"])
    shown = imagenet_report.PhotoFigures(cases, maps, pictures, composed, found)
    figures = draw(shown, out, talk)
    finish(out, found, imagenet_report.write_report(found, figures), saved)
    return found


def draw(shown: imagenet_report.PhotoFigures, out: Path, talk: Talk) -> dict[str, Path]:
    """Every figure as PNG and SVG; the PNG by its name."""
    make = {
        "figure10": lambda: imagenet_report.draw_heatmaps(shown),
        "similarity": lambda: imagenet_report.draw_similarity(shown.found),
        "two_instances": lambda: imagenet_report.draw_two_instances(shown),
        "figure11": lambda: imagenet_report.draw_zoom(shown),
        "edges": lambda: imagenet_report.draw_edges(shown.found),
        "stride": lambda: imagenet_report.draw_strides(shown.found),
        "figureS4": lambda: imagenet_report.draw_lrp(shown),
    }
    with talk.doing("figures"):
        return {name: write(figure, out, name)[0] for name, figure in make.items()}


def _stacked(pictures: Sequence[Image.Image]) -> Pixels:
    return np.stack([np.asarray(picture) for picture in pictures])


def _about(cases: Mapping[str, PhotoNetwork], credit: str) -> dict[str, Any]:
    """Versions, and where the weights and the photographs come from."""
    return {
        "versions": versions(),
        "weights": {key: digest(case.model.network) for key, case in cases.items()},
        "notes": {key: list(case.model.notes) for key, case in cases.items()},
        "credit": credit,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the report and say where it is; 2 if that failed."""
    options = _parser().parse_args(arguments)
    return run(lambda: _made(options))


def _made(options: argparse.Namespace) -> list[object]:
    talk = Talk()
    options.out.mkdir(parents=True, exist_ok=True)
    figure_class()
    photos = load_photographs(options.photos)
    with talk.doing("loading the networks"):
        cases = load_networks(options.caffenet, options.googlenet)
    own = options.photos is not None
    found = build(
        photos,
        cases,
        options.out,
        credit=imagenet_report.name_credit(own=own),
        known={} if own else PHOTO_CONTENTS,
        targets=_targets(options.target, photos),
        zoom=_named(options.zoom, photos, "--zoom"),
        again=options.again,
        talk=talk,
    )
    files = [options.out / "report.html", options.out / "numbers.json"]
    said = [*format_claims(found["claims"]), *format_verdicts(found["verdicts"])]
    return [*imagenet_report.warn_of_biases(found), *said, *files]


def _targets(given: Sequence[str], photos: Mapping[str, Image.Image]) -> dict[str, str]:
    """Classes by photographs' names, from CLASS or PHOTOGRAPH=CLASS; "" stands for all photographs."""
    found = {}
    for text in given:
        photo, equals, name = text.partition("=")
        found[_named(photo, photos, "--target") if equals else ""] = name if equals else text
    return {photo or "": name for photo, name in found.items()}


def _named(name: str | None, photos: Mapping[str, Image.Image], option: str) -> str | None:
    if name is not None and name not in photos:
        raise ImagenetError(f"{option}: no photograph is called {name!r}; there are: {', '.join(photos)}.")
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deeptaylor paper imagenet",
        description="The paper's experiment on ILSVRC: heatmaps of photographs by two large networks.",
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("paper_output/imagenet"), help="folder to write to (%(default)s)")
    add("--photos", type=Path, help="folder with photographs of your own, instead of those that packages bring")
    add(
        "--target",
        action="append",
        default=[],
        metavar="[PHOTOGRAPH=]CLASS",
        help="the class to explain, by name or number: of all photographs or of one; may be given several times",
    )
    add("--zoom", metavar="PHOTOGRAPH", help="the photograph to zoom into, by its name without the ending")
    add("--caffenet", type=Path, help="bvlc_reference_caffenet.caffemodel, the paper's first network")
    add("--googlenet", type=Path, help="bvlc_googlenet.caffemodel, the paper's second network")
    add("--again", action="store_true", help="compute everything anew")
    return parser


if __name__ == "__main__":
    sys.exit(main())
