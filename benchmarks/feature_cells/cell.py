"""An answer with what was seen, and what several tools are asked in the same way."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

YES, PART, NO = "yes", "in part", "no"


@dataclass(frozen=True)
class Cell:
    """One cell of the table: `shown` stands in it, `evidence` in the record alone."""

    answer: str
    shown: str
    evidence: str


def yes(shown: str, evidence: str) -> Cell:
    """The tool did it; `shown` says with what."""
    return Cell(YES, shown, evidence)


def part(shown: str, evidence: str) -> Cell:
    """The tool did some of it, or all with work by the user; `shown` says what."""
    return Cell(PART, shown, evidence)


def no(shown: str, evidence: str) -> Cell:
    """The tool does not do it; `shown` says why."""
    return Cell(NO, shown, evidence)


def shape(t: Any) -> str:
    """The shape of a map, of which all values must be finite and some not 0."""
    a = numbers(t)
    assert np.isfinite(a).all()
    assert np.abs(a).max() > 0
    return f"map {tuple(a.shape)}"


def numbers(t: Any) -> np.ndarray:
    """A tensor or an array as an array of doubles."""
    return np.asarray(t.detach().to("cpu", torch.float64) if isinstance(t, torch.Tensor) else t, dtype=np.float64)


def gap(a: Any, b: Any) -> float:
    """The largest difference of two maps, as a part of the largest value."""
    p, q = numbers(a), numbers(b)
    assert p.shape == q.shape
    return float(np.abs(p - q).max() / max(np.abs(p).max(), 1e-300))


def alike(a: Any, b: Any) -> float:
    """The correlation of two maps."""
    return float(np.corrcoef(numbers(a).ravel(), numbers(b).ravel())[0, 1])


def error_of(call: Callable[[], Any]) -> str:
    """The error that a call ends with, in one line; one that ends without is a mistake of this file."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - tools raise whatever they like
        text = re.sub(r"\s+", " ", re.sub(r"(/[\w.-]+)+/", "", str(error))).strip()
        return f"{type(error).__name__}: {text[:160]}"
    raise AssertionError("there was no error")


def nowhere(package: str, *words: str) -> str:
    """That a package's source has none of these words, as regular expressions."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        found = re.search("|".join(words), path.read_text(encoding="utf-8"), re.IGNORECASE)
        assert found is None, f"{package} has {found and found[0]!r} in {path.name}"
    return f"its source has none of: {', '.join(words)}"


def without_command(name: str, package: str) -> str:
    """That a distribution installs no command, and its package cannot be run as a program."""
    commands = [e.name for e in distribution(name).entry_points if e.group == "console_scripts"]
    assert not commands
    assert importlib.util.find_spec(f"{package}.__main__") is None
    return "installs no command, and has no __main__"


def without_demo(name: str) -> str:
    """That the description of a distribution names no page where it could be tried."""
    places = ("huggingface.co/spaces", "colab.research", "mybinder", "streamlit", "replicate.com")
    text = distribution(name).metadata.get_payload() or distribution(name).metadata["Description"]
    assert not any(place in text for place in places)
    return f"its README has none of: {', '.join(places)}"


def saved_figure(figure: Any) -> str:
    """That a figure of matplotlib is written as PNG, PDF and SVG."""
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for ending, start in starts.items():
        out = io.BytesIO()
        figure.savefig(out, format=ending)
        assert out.getvalue().startswith(start)
    return "PNG, PDF and SVG, each begins as its kind does"


def pickled(thing: Any) -> Any:
    """Written and read again."""
    return pickle.loads(pickle.dumps(thing))


@dataclass(frozen=True)
class Look:
    """All of a network that a tool could leave changed."""

    values: dict[str, torch.Tensor]
    modes: tuple[bool, ...]
    hooks: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]

    @classmethod
    def at(cls, network: nn.Module) -> Look:
        parts = list(network.modules())
        kept = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return cls(
            {name: t.detach().clone() for name, t in copy.copy(network.state_dict()).items()},
            tuple(m.training for m in parts),
            tuple(sum(len(getattr(m, k)) for k in kept) for m in parts),
            tuple(tuple(sorted(vars(m))) for m in parts),
            tuple(type(m).__name__ for m in parts),
        )

    def changes(self, network: nn.Module) -> list[str]:
        now, found = Look.at(network), []
        if self.values.keys() != now.values.keys() or any(
            not torch.equal(t, now.values[name]) for name, t in self.values.items()
        ):
            found.append("parameters or buffers")
        if self.modes != now.modes:
            found.append("training mode")
        if self.hooks != now.hooks:
            found.append("hooks")
        if self.names != now.names or self.kinds != now.kinds:
            found.append("attributes")
        if any(p.grad is not None for p in network.parameters()):
            found.append("gradients")
        return found


def untouched(call: Callable[[nn.Module], Any], network: nn.Module, shown: str) -> Cell:
    """What a call leaves behind in a network that is being trained."""
    network.train()
    before = Look.at(network)
    call(network)
    changed = before.changes(network)
    if changed:
        harmless = set(changed) <= {"training mode", "gradients"}
        said = f"{shown} on a network in training mode; before and after"
        return (part if harmless else no)(f"afterwards changed: {', '.join(changed)}", said)
    return yes(shown, "parameters, buffers, gradients, mode, hooks and attributes are the same after the call")


def not_exported(package: str, explain: Callable[[nn.Module, torch.Tensor], Any], network: nn.Module) -> Cell:
    """That a tool writes no ONNX, and that torch.export does not take a module that calls it either."""

    class Explainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(explain(self.network, x))

    said = error_of(lambda: torch.export.export(Explainer(), (torch.rand(1, 3, 32, 32),)))
    return no("has none", f"{nowhere(package, 'onnx')}; torch.export of a module around it: {said}")


def fitted() -> Any:
    """A model that is no PyTorch network: a linear regression of scikit-learn on six values."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(np.eye(6), np.arange(6.0))
