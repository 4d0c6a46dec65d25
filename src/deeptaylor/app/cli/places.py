"""`deeptaylor explain --box … --region … --pixel …`: why a detector or segmenter says so at a place of a photograph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image, ImageDraw

import deeptaylor as dt
from deeptaylor.app.cli.options import MethodOptions, ModelOptions, format_command, option, resolve_reference
from deeptaylor.app.cli.photos import describe_saved, make_stems, output_folder
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.app.cli.values import parse_numbers
from deeptaylor.app.record import about_check, json_bytes
from deeptaylor.engine.place_target import BoxTarget, PlaceTarget
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.support.files import outputs, write_together
from deeptaylor.viz import heatmap
from deeptaylor_command import CHECK_FAILED, FINE

__all__ = ["PlaceOptions", "explain_places"]

_PANEL = "Detectors and segmenters"
Window = tuple[float, float, float, float]  # the part of a photograph that the network sees


@dataclass(frozen=True)
class PlaceOptions:
    """Where in the photograph a detector or segmenter is asked."""

    box: Annotated[
        str | None,
        option(
            "--box",
            "Explain the boxes that overlap this one, in pixels of the photograph; `best`: the best box.",
            _PANEL,
            "x1,y1,x2,y2|best",
        ),
    ] = None
    region: Annotated[
        str | None,
        option("--region", "Explain a region of a dense output: a picture of that size, white there.", _PANEL, "FILE"),
    ] = None
    pixel: Annotated[
        str | None, option("--pixel", "Explain one pixel of a dense output: row and column.", _PANEL, "y,x")
    ] = None
    layout: Annotated[
        str | None, option("--layout", "How boxes are read, such as yolov8. Default: by shapes.", _PANEL, "NAME")
    ] = None  # fmt: skip

    @property
    def is_given(self) -> bool:
        """True if any place is asked about."""
        return any(value is not None for value in (self.box, self.region, self.pixel, self.layout))

    def refuse_beside(self, target: list[str], strange: list[str]) -> None:
        """Raise InputError for options that do not go together."""
        if sum(value is not None for value in (self.box, self.region, self.pixel)) != 1:
            raise InputError("Give one of --box, --region and --pixel.")
        if self.layout is not None and self.box is None:
            raise InputError("--layout says how boxes are read: give --box as well.")
        if strange:
            raise InputError(f"{strange[0]} does not apply to a place of the photograph: leave it out.")
        if len(target) > 1:
            raise InputError("A place has one class: give --target once.")

    def target(self, photo: Image.Image, window: Window, size: tuple[int, int], name: str | None) -> PlaceTarget:
        """Return the target for a photograph, in pixels of the network's input.

        window   left, top, right, bottom of what the network sees
        size     rows and columns of the input
        """
        left, top, right, bottom = window
        across, down = size[1] / (right - left), size[0] / (bottom - top)
        if self.box == "best":
            return dt.best_box(name, layout=self.layout)
        if self.box is not None:
            x1, y1, x2, y2 = _read("--box", self.box, 4)
            corners = ((x1 - left) * across, (y1 - top) * down, (x2 - left) * across, (y2 - top) * down)
            return dt.box(corners, name, layout=self.layout)
        if self.pixel is not None:
            y, x = _read("--pixel", self.pixel, 2)
            if not (left <= x < right and top <= y < bottom):
                raise InputError(
                    f"--pixel {self.pixel} is outside of what the network sees of the photograph: rows {top:g} to "
                    f"{bottom:g}, columns {left:g} to {right:g}."
                )
            return dt.pixel(int((y - top) * down), int((x - left) * across), name)
        assert self.region is not None
        mask = load_photo(self.region, "L")
        if mask.size != photo.size:
            raise InputError(
                f"--region {escape_name(self.region)} has {mask.height} × {mask.width} pixels, the photograph "
                f"{photo.height} × {photo.width}: give a mask of the photograph's size, white in the region."
            )
        seen = mask.resize((size[1], size[0]), Image.Resampling.BOX, window)
        return dt.region(np.asarray(seen) >= 128, name)


def _read(flag: str, text: str, count: int) -> tuple[float, ...]:
    numbers = parse_numbers(flag, text)
    if not isinstance(numbers, tuple) or len(numbers) != count:
        wanted = "x1,y1,x2,y2" if count == 4 else "y,x"
        raise InputError(f"{flag} {text}: {count} numbers are needed, {flag} {wanted}, in pixels of the photograph.")
    return numbers


def explain_places(
    photos: list[Path], source: str, model: ModelOptions, how: MethodOptions, places: PlaceOptions, printer: Printer,
    target: list[str], out: Path, overwrite: bool,
) -> int:  # fmt: skip
    """Explain one place of each photograph; save the map over it, the relevance and a record."""
    settings, name = how.single(), target[0] if target else None
    results: list[dict[str, Any]] = []
    stems = make_stems(photos)
    with output_folder(out), printer.progress() as step, collect_notes() as notes:
        step(f"loading {source}")
        network = model.load(source)
        if network.preparation is None:
            raise InputError("A place of a photograph needs a network that takes photographs: give its preparation.")
        explainer = dt.Explainer(network, **resolve_reference(settings, network))
        for n, path in enumerate(photos):
            step(f"explaining {escape_name(path.name)}", n, len(photos))
            photo = network.preparation.read(path)
            window = network.preparation.window(photo.height, photo.width)
            asked = places.target(photo, window, network.preparation.shape[1:], name)
            answer = explainer.explain(path, asked)
            check = answer.check()
            picture = Image.fromarray(answer.overlay(original=True))
            _draw_box(picture, asked, window, network.preparation.shape[1:])
            record = {
                "photo": str(path), "model": source, "box": places.box, "region": places.region, "pixel": places.pixel,
                "target": name, "score": float(answer.score), "notes": list(answer.notes), "reason": answer.reason,
                "check": about_check(check),
            }  # fmt: skip
            made = {
                out / f"{stems[path]}_place.png": heatmap.encode_png(np.asarray(picture)),
                out / f"{stems[path]}_place_record.json": json_bytes(record),
            }
            command = format_command("explain", path, source, model, how, places, target=target)
            with outputs(out, command, overwrite) as own:
                write_together(made)
            printer.say(f"{escape_name(path)}: {answer.notes[0]}. {describe_saved(list(made), own.replaced)}")
            for line in (*answer.notes[1:], answer.reason):
                printer.say(f"  {line}")
            results.append(record)
    for note in notes:
        printer.say(f"note: {note}")
    code = FINE if all(found["check"]["accounted"] for found in results) else CHECK_FAILED
    printer.result({"photos": results, "exit_code": code})
    return code


def _draw_box(picture: Image.Image, asked: PlaceTarget, window: Window, size: tuple[int, ...]) -> None:
    """Draw the box that was asked about."""
    if not isinstance(asked, BoxTarget) or asked.corners is None:
        return
    left, top, right, bottom = window
    across, down = (right - left) / size[1], (bottom - top) / size[0]
    x1, y1, x2, y2 = asked.corners.tolist()
    corners = (x1 * across + left, y1 * down + top, x2 * across + left, y2 * down + top)
    width = max(2, min(picture.size) // 200)
    ImageDraw.Draw(picture).rectangle(corners, outline=(0, 160, 0), width=width)
