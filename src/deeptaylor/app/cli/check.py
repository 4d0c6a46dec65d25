"""`deeptaylor check`: can this network be explained, by which rules, and if not, why."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.exits import CHECK_FAILED, FINE
from deeptaylor.app.cli.inputs import example
from deeptaylor.app.cli.options import How, Model, Shape, Source
from deeptaylor.app.cli.show import Talk, noted
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import CaptureError, PlanError, UnsupportedOpError
from deeptaylor.plan.table import Plan

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

    The network is captured and planned; nothing is explained yet. Exit code 1 if it cannot be explained.

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
        for bias, chosen in settings.items():
            step(f"capturing and planning {source}, bias={bias}")
            try:
                found[bias] = dt.Explainer(network.network, x, network.domain, **chosen).plan
            except (CaptureError, UnsupportedOpError, PlanError) as error:
                found[bias] = error
    notes = [*network.notes, *notes]
    refused = [plan for plan in found.values() if isinstance(plan, Exception)]
    talk.say(f"{source}: {about['parameters']:,} parameters, inputs {tuple(x.shape[1:])} in {network.domain}")
    for bias, made in found.items():
        if isinstance(made, Exception):
            talk.say(f"cannot be explained, bias={bias}: {as_options(str(made))}", style="bold red")
        else:
            _show(talk, bias, made, plan)
    for note in dict.fromkeys(notes):
        talk.say(f"note: {note}")
    code = CHECK_FAILED if refused else FINE
    plans = {
        bias: {"refused": str(made)} if isinstance(made, Exception) else record.about_plan(made)
        for bias, made in found.items()
    }
    talk.result({"model": about, "explainable": not refused, "plans": plans, "notes": notes, "exit_code": code})
    return code


def _show(talk: Talk, bias: str, plan: Plan, whole: bool) -> None:
    talk.say(f"can be explained, bias={bias}: {len(plan.rows)} steps", style="bold green")
    if whole:
        rows = [(r.node, r.module, r.op, r.domain, r.rule, r.why) for r in plan.rows]
        talk.table(("node", "module", "operation", "domain", "rule", "why"), rows)
    else:
        counts = Counter((r.op, r.rule, r.domain) for r in plan.rows)
        rows3 = [(op, str(n), rule, domain) for (op, rule, domain), n in counts.most_common()]
        talk.table(("operation", "times", "rule", "domain"), rows3, right=(1,))
    for note in plan.notes:
        talk.say(f"note: {note}")
