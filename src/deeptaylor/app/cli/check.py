"""`deeptaylor check`: can this network be explained, by which rules, and if not, why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.exits import CHECK_FAILED, FINE
from deeptaylor.app.cli.inputs import example
from deeptaylor.app.cli.options import How, Model, Shape, Source, referring
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import CaptureError, PlanError, UnsupportedOpError
from deeptaylor.plan.table import Plan
from deeptaylor.secant.front_door import Choice, choose_by_graph, method_sentence

__all__ = ["check"]


def check(
    source: Source,
    model: Model,
    how: How,
    talk: Talk,
    shape: Shape = None,
    plan: Annotated[bool, typer.Option("--plan", help="Every step: node, operation, domain, rule, why.")] = False,
) -> int:
    """Say which operations a network has, which rules explain them, and what cannot be explained and why.

    The network is captured and planned; by a method without a plan, such as secants, one input is explained, too. Exit
    code 1 if it cannot be explained.

    \b
    Examples:
      deeptaylor check mobilenet_v2
      deeptaylor check prices.onnx --domain nonnegative --shape 4 --class-names none --plan
    """  # noqa: D301
    settings = how.settings()
    found: dict[str, Any] = {}
    with talk.progress() as step, noted() as notes:
        step(f"loading {source}")
        network = model.load(source)
        x = example(network, shape)
        about = record.about_model(source, network)
        for way, chosen in settings.items():
            step(f"capturing and planning {source}, {way}")
            try:
                explainer = dt.Explainer(network.network, x, network.domain, **referring(chosen, network))
                choice = explainer.choice or choose_by_graph(explainer.engine, (x,))
                if not explainer.settings.planned:  # there is no plan to check: one input is explained
                    explainer.explain(x)
                found[way] = Checked(explainer.plan, choice)
            except (CaptureError, UnsupportedOpError, PlanError) as error:
                found[way] = error
    notes = [*network.notes, *notes]
    refused = [plan for plan in found.values() if isinstance(plan, Exception)]
    talk.say(f"{source}: {about['parameters']:,} parameters, inputs {tuple(x.shape[1:])} in {network.domain}")
    for way, made in found.items():
        named = f", bias={how.bias if how.bias != 'both' else way}" if how.bias else ""
        if isinstance(made, Exception):
            talk.say(f"cannot be explained{named}: {as_options(str(made))}", style="bold red")
        else:
            _show(talk, named, made, plan)
    for note in dict.fromkeys(notes):
        talk.say(f"note: {note}")
    code = CHECK_FAILED if refused else FINE
    plans = {
        way: {"refused": str(made)} if isinstance(made, Exception) else made.record() for way, made in found.items()
    }
    talk.result({"model": about, "explainable": not refused, "plans": plans, "notes": notes, "exit_code": code})
    return code


@dataclass(frozen=True)
class Checked:
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
        return as_options(method_sentence(self.choice))


def _show(talk: Talk, named: str, made: Checked, whole: bool) -> None:
    plan = made.plan
    steps = f": {len(plan.rows)} steps" if plan.rows else ""
    talk.say(f"can be explained{named}{steps}", style="bold green")
    talk.say(made.reason)
    if not plan.rows:
        return
    if whole:
        rows = [(r.node, r.module, r.op, r.domain, r.rule, r.why) for r in plan.rows]
        talk.table(("node", "module", "operation", "domain", "rule", "why"), rows)
    else:
        counts = Counter((r.op, r.rule, r.domain) for r in plan.rows)
        rows3 = [(op, str(n), rule, domain) for (op, rule, domain), n in counts.most_common()]
        talk.table(("operation", "times", "rule", "domain"), rows3, right=(1,))
    for note in plan.notes:
        talk.say(f"note: {note}")
