"""`deeptaylor check`: whether a network can be explained, and by which rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.options import MethodOptions, ModelOptions, Shape, Source, make_example, resolve_reference
from deeptaylor.app.cli.printer import Printer, collect_notes
from deeptaylor.app.cli.values import format_error
from deeptaylor.engine.method_choice import Choice, choose_by_graph, describe_method
from deeptaylor.errors import CaptureError, PlanError, UnsupportedOpError
from deeptaylor.plan.plan import Plan
from deeptaylor_command import CHECK_FAILED, FINE

__all__ = ["check"]


def check(
    source: Source,
    model: ModelOptions,
    how: MethodOptions,
    printer: Printer,
    shape: Shape = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print every step: node, operation, domain, rule, reason.")
    ] = False,
) -> int:
    """Report whether a network can be explained: its operations, their rules, and what is not supported.

    Captures and plans the network. A method without a plan, such as secants, explains one input instead. Exit
    code 1 if the network cannot be explained.

    \b
    Examples:
      deeptaylor check mobilenet_v2
      deeptaylor check prices.onnx --domain nonnegative --shape 4 --class-names none --plan
    """  # noqa: D301
    settings = how.settings()
    found: dict[str, Any] = {}
    with printer.progress() as step, collect_notes() as notes:
        step(f"loading {source}")
        network = model.load(source)
        x = make_example(network, shape)
        about = record.about_model(source, network)
        for way, chosen in settings.items():
            step(f"capturing and planning {source}, {way}")
            try:
                explainer = dt.Explainer(network.network, x, network.domain, **resolve_reference(chosen, network))
                choice = explainer.choice or choose_by_graph(explainer.captured.engine, (x,))
                if not explainer.settings.planned:  # there is no plan to check: one input is explained
                    explainer.explain(x)
                found[way] = PlanCheck(explainer.plan, choice)
            except (CaptureError, UnsupportedOpError, PlanError) as error:
                found[way] = error
    notes = [*network.notes, *notes]
    refused = [plan for plan in found.values() if isinstance(plan, Exception)]
    printer.say(f"{source}: {about['parameters']:,} parameters, inputs {tuple(x.shape[1:])} in {network.domain}")
    for way, made in found.items():
        named = f", bias={how.bias if how.bias != 'both' else way}" if how.bias else ""
        if isinstance(made, Exception):
            printer.say(f"cannot be explained{named}: {format_error(made)}", style="bold red")
        else:
            _show(printer, named, made, plan)
    for note in dict.fromkeys(notes):
        printer.say(f"note: {note}")
    code = CHECK_FAILED if refused else FINE
    plans = {
        way: {"refused": str(made)} if isinstance(made, Exception) else made.record() for way, made in found.items()
    }
    printer.result({"model": about, "explainable": not refused, "plans": plans, "notes": notes, "exit_code": code})
    return code


@dataclass(frozen=True)
class PlanCheck:
    """The plan of a network, and the method that answers; None if that is tested on the first inputs."""

    plan: Plan
    choice: Choice | None

    def record(self) -> dict[str, Any]:
        """The same for programs."""
        chosen = None if self.choice is None else self.choice.method
        return record.about_plan(self.plan) | {"method": chosen, "reason": self.reason}

    @property
    def reason(self) -> str:
        """Which method answers, and why."""
        if self.choice is None:
            return "Method: deep Taylor or secants; both are tested on the first inputs that are explained."
        return describe_method(self.choice)


def _show(printer: Printer, named: str, made: PlanCheck, whole: bool) -> None:
    plan = made.plan
    steps = f": {len(plan.rows)} steps" if plan.rows else ""
    printer.say(f"can be explained{named}{steps}", style="bold green")
    printer.say(made.reason)
    if not plan.rows:
        return
    if whole:
        rows = [(r.node, r.module, r.op, r.domain, r.rule, r.why) for r in plan.rows]
        printer.table(("node", "module", "operation", "domain", "rule", "why"), rows)
    else:
        counts = Counter((r.op, r.rule, r.domain) for r in plan.rows)
        rows3 = [(op, str(n), rule, domain) for (op, rule, domain), n in counts.most_common()]
        printer.table(("operation", "times", "rule", "domain"), rows3, right=(1,))
    for note in plan.notes:
        printer.say(f"note: {note}")
