"""Refits of the relevance model as the report shows them: one row a model, beside the training-free one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deeptaylor.paper.measures import or_nan
from deeptaylor.shown import percent
from deeptaylor.support.report import Table

__all__ = ["sentence", "table", "unique", "unique_from"]

_BEGINS = {"layer": "the network's weights", "random": "random"}


def table(record: Mapping[str, Any]) -> Table:
    """R², the likeness to the training-free maps and the share near the border, of each model."""
    rows: list[list[str | tuple[str, str]]] = [
        [
            f"min-max, from {_BEGINS[fit['begin']]}, seed {fit['seed']}",
            f"{or_nan(fit['r_squared']):.3f}",
            f"{or_nan(fit['correlation']):.3f}",
            percent(fit["border"]),
            percent(fit["gap"]),
        ]
        for fit in record["fits"]
    ]
    rows.append(["training-free", "—", "1", percent(record["training_free"]["border"]), "0"])
    return Table(
        f"Relevance models trained for {record['steps']} steps each, on {record['pairs']} held-out pairs. Correlation: "
        "of each map with the training-free one, mean over pairs with a target. Border: share of the relevance in the "
        "outermost four pixels. Gap: mean |f − Σ R_i| over the mean score.",
        ("model", "R²", "correlation", "border", "gap"),
        rows,
    )


def unique_from(found: Mapping[str, Any]) -> str:
    """How the spread of the min-max maps over seeds was found."""
    record = found["refits"]
    if record is None:
        return f"two models, each trained for {found['settings']['fit_steps']} steps on other pairs"
    return f"three models, each trained for {record['steps']} steps on other pairs, as long as the one that is shown"


def unique(found: Mapping[str, Any]) -> float:
    """The spread of the min-max maps over seeds, between models that were trained equally long."""
    record = found["refits"]
    return or_nan(
        found["unique"]["two-layer"]["min_max_map_spread"] if record is None else record["spread"]["layer"]["spread"]
    )


def sentence(record: Mapping[str, Any]) -> str:
    """What the start decides, and what the seed."""
    of = record["spread"]
    same = " and ".join(f"{or_nan(of[kind]['correlation']):.3f} ({kind})" for kind in ("layer", "random"))
    return f"""Weights v_ij are pulled towards the network's own while the model is trained. Maps of models that begin
        alike and see other pairs have a correlation of {same}; of models that begin otherwise
        {or_nan(of["different starts"]["correlation"]):.3f}. So the start decides little: Σ |R − R'| over Σ |R| is
        {or_nan(of["different starts"]["spread"]):.2g} between the two starts, and
        {or_nan(of["layer"]["spread"]):.2g} between seeds that begin at the network's weights."""
