"""What an explanation was computed from, and with what: a record beside the pictures, as JSON.

The fingerprint is a hash of the network's weights by name. Two records with the same fingerprint, plan, settings and
versions, of the same photograph, hold the same numbers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from deeptaylor.check import Check
from deeptaylor.domain import Box, Domain
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.formatting import CONTROL_CHARACTERS
from deeptaylor.ledger import make_reader
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.plan.plan import Plan
from deeptaylor.support.optional import optional_package
from deeptaylor.support.provenance import to_json_values, versions, weights_fingerprint

__all__ = [
    "about_check", "about_domain", "about_explainer", "about_explanation", "about_model", "about_plan", "json_bytes",
    "npz", "safetensors_bytes", "versions", "weights_fingerprint",
]  # fmt: skip


def about_model(name: str, model: Pretrained) -> dict[str, Any]:
    """The network and what belongs to it."""
    return {
        "name": name,
        "fingerprint": weights_fingerprint(model.network),
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "preparation": None if model.preparation is None else asdict(model.preparation),
        "domain": about_domain(model.domain),
        "classes": None if model.class_names is None else len(model.class_names),
        "notes": list(model.notes),
    }


def about_domain(domain: Domain) -> dict[str, Any]:
    """A domain with its bounds."""
    bounds = {} if not isinstance(domain, Box) else {"low": _numbers(domain.low), "high": _numbers(domain.high)}
    return {"kind": type(domain).__name__, **bounds}


def about_plan(plan: Plan) -> dict[str, Any]:
    """The plan, step by step."""
    return {"summary": plan.summary(), "steps": [asdict(row) for row in plan.rows], "notes": list(plan.notes)}


def about_explainer(explainer: Explainer) -> dict[str, Any]:
    """Method, settings and plan."""
    chosen, found = explainer.settings, explainer.choice
    return {
        "method": {
            "asked": chosen.method,
            "chosen": None if found is None else found.method,
            "areas": {} if found is None else dict(found.areas),
        },
        "settings": {
            "bias": chosen.bias,
            "max_pool": chosen.max_pool,
            "first": None if chosen.first is None else repr(chosen.first),
            "rules": {name: repr(rule) for name, rule in chosen.rules.items()},
        },
        "plan": about_plan(explainer.plan),
    }


def about_check(check: Check) -> dict[str, Any]:
    """The properties as measured, and in words."""
    return asdict(check) | {"text": str(check)}


def about_explanation(e: Explanation, sample: int = 0, target: int = 0) -> dict[str, Any]:
    """Score and ledger of one sample and target."""
    pick = make_reader(sample, target)
    ledger = e.ledger
    account = {name: pick(getattr(ledger, name)) for name in ("input", "bias", "dropped", "residual")}
    account["returned"] = 0.0 if ledger.returned is None else pick(ledger.returned)
    if ledger.shared is not None:
        account["shared"] = pick(ledger.shared)
    f = pick(ledger.score)
    return {
        "method": e.method,
        "score": pick(e.score),
        "ledger": account,
        "input_share": pick(ledger.input_total) / f if f > 0 else None,
    }


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as the bytes of an .npz file."""
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})
    return data.getvalue()


def safetensors_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as the bytes of a .safetensors file."""
    writer = optional_package("safetensors.numpy", "safetensors files are written with safetensors", "cli")
    data: bytes = writer.save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
    return data


_HIDDEN = re.compile(f"(?!\n)[{CONTROL_CHARACTERS}]")  # the line breaks are JSON's own


def _numbers(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def json_bytes(found: Mapping[str, Any]) -> bytes:
    """A record as the bytes of a JSON file; what is not finite is null, and no name in it moves a terminal."""
    text = json.dumps(to_json_values(found), indent=2, ensure_ascii=False, default=str, allow_nan=False)
    return (_HIDDEN.sub(lambda c: f"\\u{ord(c[0]):04x}", text) + "\n").encode()
