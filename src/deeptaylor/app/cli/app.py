"""The verbs that typer reads, with what they have in common: groups of options, errors, exit codes."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from deeptaylor.app.cli import check, compare, doctor, evaluate, explain, export, fit, handed_over, run, words
from deeptaylor.app.cli.exits import BAD_INPUT, CHECK_FAILED, EXITS, INTERRUPTED, OWN_ERROR
from deeptaylor.app.cli.show import Talk
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.loading.asked import UnsaidError
from deeptaylor.models.onnx.exporter import ExportError

__all__ = ["app"]

app = typer.Typer(
    help="Which pixels made the network say so, and how much of the score does each of them carry?",
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
        raise typer.Exit(_exit_code(lambda: function(**given), given["talk"]))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _exit_code(run: Callable[[], int], talk: Talk) -> int:
    try:
        return run()
    except UnsaidError as error:
        said, code = words.unsaid(error), BAD_INPUT
    except ExportError as error:
        said, code = words.as_options(str(error)), CHECK_FAILED
    except (DeepTaylorError, OSError) as error:
        said, code = words.as_options(str(error)), BAD_INPUT
    except KeyboardInterrupt:
        talk.line({"error": "interrupted", "exit_code": INTERRUPTED})
        return INTERRUPTED  # said by `main`, which hears of it wherever it happened
    except Exception as error:  # noqa: BLE001  ours, and shown in full
        typer.echo(traceback.format_exc(), err=True)
        said, code = f"this should not happen, please report it: {type(error).__name__}: {error}", OWN_ERROR
    talk.line({"error": said, "exit_code": code})  # one, for `run` has said others
    talk.error(said)
    return code


def _flowing(text: str) -> str:
    """Help whose paragraphs run on; those that begin with click's mark keep their lines."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)


_VERBS: tuple[Callable[..., int], ...] = (
    explain.explain, check.check, compare.compare, evaluate.evaluate, run.run, run.status, run.verify, fit.fit,
    export.export, doctor.doctor,
)  # fmt: skip
for verb in _VERBS:
    app.command(verb.__name__, epilog=EXITS, help=_flowing(verb.__doc__ or ""))(command(verb))


def _handed_over(verb: str, text: str) -> None:
    """List a verb that reads its own words, so that help and completion know it."""

    @app.command(
        verb,
        help=text,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )
    def run(context: typer.Context) -> None:
        raise typer.Exit(handed_over.run([verb, *context.args]))


_handed_over("demo", "Five photographs explained with a real network.")
_handed_over("paper", f"The paper's experiments: {', '.join(handed_over.EXPERIMENTS)}.")
_handed_over("serve", "The same in a browser.")
