"""`deeptaylor explain --text "…"`: which words made the network say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor.app.cli.exits import CHECK_FAILED, FINE
from deeptaylor.app.cli.options import OUT, How, Model, flags, option, the_command
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.app.record import about_check, json_bytes
from deeptaylor.errors import InputError
from deeptaylor.pictures.files import kind_of
from deeptaylor.shown import printable, shown
from deeptaylor.support.files import outputs, write_together

__all__ = ["Texts", "explain_texts"]

_PANEL = "Texts in place of photographs (networks of transformers: hf:FOLDER, hf:NAME)"
_KINDS = (".html", ".png", ".txt", ".json")


@dataclass(frozen=True)
class Texts:
    """What is asked of a network that reads texts."""

    text: Annotated[
        list[str] | None, option("--text", "The text to explain; may be given several times.", _PANEL, "TEXT")
    ] = None
    continuation: Annotated[
        str | None,
        option("--continuation", "What follows, for language models. Default: the most likely token.", _PANEL, "TEXT"),
    ] = None
    similar_to: Annotated[
        str | None, option("--similar-to", "Another text, for networks that give embeddings.", _PANEL, "TEXT")
    ] = None

    def refuse_alone(self) -> None:
        """Refuse what belongs to a text where none was given."""
        if given := flags(self):
            raise InputError(f"{given[0]} belongs to a text: give --text as well.")

    def refuse_beside(self, source: str, given: list[str]) -> None:
        """Refuse networks that read no texts, and options that mean nothing to one that does."""
        if not source.startswith("hf:"):
            meant = f" Did you mean hf:{source}?" if (Path(source) / "config.json").is_file() else ""
            raise InputError(
                f"{source} reads no texts: --text needs a network of transformers, hf:FOLDER or hf:NAME.{meant}"
            )
        strange = [flag for flag in given if flag not in ("--class-names", "--method", "--reference")]
        if strange:
            raise InputError(f"{strange[0]} is for photographs: leave it out with --text.")

    def refuse_beside_another(self, target: list[str], against: str | None) -> None:
        """Refuse questions about classes or continuations where two texts are compared."""
        others = {"--target": target, "--against": against, "--continuation": self.continuation}
        strange = [flag for flag, value in others.items() if value]
        if self.similar_to is not None and strange:
            raise InputError(f"{strange[0]} is no question about two texts: leave it out with --similar-to.")


def explain_texts(
    source: str, model: Model, how: How, texts: Texts, talk: Talk, target: list[str], against: str | None, out: Path,
    overwrite: bool, check: bool = False,
) -> int:  # fmt: skip
    """Print coloured words and the account; write them to a file where one is asked for.

    ``check``: and whether all adds up (`e.check()`), and the account token by token (`e.table()`).
    """
    given = texts.text or []
    texts.refuse_beside_another(target, against)
    kind = None if out == OUT else kind_of(out, _KINDS)
    if kind in (".png", ".txt") and len(given) > 1:
        raise InputError(f"--out {out}: a {kind} file holds one text, and {len(given)} were given; say .html or .json.")
    with talk.progress() as step, noted() as notes:
        step(f"loading {source}")
        names: Any = ... if model.class_names is None else model.names()
        network = dt.load(source, class_names=names)
        if not isinstance(network, dt.TextModel):
            raise InputError(f"{source} reads no texts: give photographs in place of --text.")
        step("capturing the network and explaining")
        found = _answer(network, how, texts, target, against)
    if not (talk.quiet or talk.as_json):
        typer.echo(str(found))
        if check:
            typer.echo(f"\n{_checked(found)}")
    for note in notes:
        talk.say(f"note: {note}")
    result = _record(source, network, found, given)
    if kind is not None:
        with outputs(
            out.parent,
            the_command("explain", out, source, model, how, texts, target=target, against=against),
            overwrite,
        ):
            write_together({out: _file(found, kind, result)})
        talk.say(f"Saved to {shown(out)}.")
    code = FINE if found.check().accounted else CHECK_FAILED
    talk.result(result | {"exit_code": code})
    return code


def _checked(found: dt.TextExplanation) -> str:
    """The check, and the account of every text and class."""
    tables = [found.table(k, t) for k, asked in enumerate(found.asked) for t in range(len(asked))]
    return printable("\n\n".join([as_options(str(found.check())), *tables]))


def _answer(
    network: dt.TextModel, how: How, texts: Texts, target: list[str], against: str | None
) -> dt.TextExplanation:
    explainer = network.explainer(how.method, how.reference)
    given = list(texts.text or [])
    if texts.similar_to is not None:
        return explainer.similarity(given, [texts.similar_to] * len(given))
    asked = None if not target else target[0] if len(target) == 1 else target
    return explainer.explain(given, asked, continuation=texts.continuation, against=against)


def _record(source: str, network: dt.TextModel, found: dt.TextExplanation, texts: list[str]) -> dict[str, Any]:
    return {
        "model": source,
        "kind": network.kind,
        "method": found.method,
        "reference": found.reference,
        "notes": list(found.notes),
        "check": about_check(found.check()),
        "texts": [
            {
                "text": text,
                "asked": list(found.asked[k]),
                "tokens": list(found.lines[k].pieces),
                "special": list(found.lines[k].special),
                "relevance": found.relevance[k].tolist(),
                "quantity": found.quantity,
                "score": found.score[k].tolist(),
                "probabilities": list(found.probabilities[k]) if found.probabilities else None,
                "sentences": [found.sentence(k, t) for t in range(len(found.asked[k]))],
            }
            for k, text in enumerate(texts)
        ],
    }


def _file(found: dt.TextExplanation, kind: str, result: dict[str, Any]) -> bytes:
    if kind == ".json":
        return json_bytes(result)
    return found.file_bytes(kind)
