"""The verbs that typer reads, with what they have in common: groups of options, errors, exit codes."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from deeptaylor.app.cli import check, compare, doctor, evaluate, explain, export, fit, programs, run
from deeptaylor.app.cli.printer import Printer
from deeptaylor.app.cli.values import format_error
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.onnx.exporter import ExportError
from deeptaylor_command import BAD_INPUT, CHECK_FAILED, EXITS, INTERRUPTED, OWN_ERROR

__all__ = ["app"]

app = typer.Typer(
    help="Explain the decisions of a neural network: which parts of the input carry the score, and how much each "
    "carries.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(function: Callable[..., int]) -> Callable[..., None]:
    """A verb as typer wants it: groups of options spread out, errors as one line, the result as exit code."""
    parameters, groups = [], {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            hints = get_type_hints(group, include_extras=True)
            options = inspect.signature(group).parameters.values()
            parameters += [own.replace(kind=own.KEYWORD_ONLY, annotation=hints[own.name]) for own in options]
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        raise typer.Exit(_exit_code(lambda: function(**given), given["printer"]))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _exit_code(run: Callable[[], int], printer: Printer) -> int:
    try:
        return run()
    except (DeepTaylorError, OSError) as error:
        said, code = format_error(error), CHECK_FAILED if isinstance(error, ExportError) else BAD_INPUT
    except KeyboardInterrupt:
        printer.line({"error": "interrupted", "exit_code": INTERRUPTED})
        return INTERRUPTED  # said by `main`, which hears of it wherever it happened
    except Exception as error:  # noqa: BLE001  ours, and shown in full
        typer.echo(traceback.format_exc(), err=True)
        said, code = f"internal error, please report it: {type(error).__name__}: {error}", OWN_ERROR
    printer.line({"error": said, "exit_code": code})  # one, for `run` has said others
    printer.error(said)
    return code


def _join_lines(text: str) -> str:
    """Help whose paragraphs run on; those that begin with click's mark keep their lines."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)


_VERBS: tuple[Callable[..., int], ...] = (
    explain.explain, check.check, compare.compare, evaluate.evaluate, run.run, run.status, run.verify, fit.fit,
    export.export, doctor.doctor,
)  # fmt: skip
for verb in _VERBS:
    app.command(verb.__name__, epilog=EXITS, help=_join_lines(verb.__doc__ or ""))(command(verb))


def _add_program(verb: str, text: str) -> None:
    """List a verb that reads its own words, so that help and completion know it."""

    @app.command(
        verb,
        help=text,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )
    def run(context: typer.Context) -> None:
        raise typer.Exit(programs.run_program([verb, *context.args]))


_add_program("demo", "Explain five photographs with a real network.")
_add_program("paper", f"Reproduce the paper's experiments: {', '.join(programs.EXPERIMENTS)}.")
_add_program("serve", "Explain pictures, texts and runs in a browser.")
