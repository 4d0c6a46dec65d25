"""`dt.explain`, `dt.contrast` and `dt.similarity`: explain in one call, without creating an explainer.

photograph, row or text ──► Pretrained or TextModel ──► its cached explainer ──► explanation
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deeptaylor.between import Between
from deeptaylor.domain import Domain, Real
from deeptaylor.engine.contrast import POWER
from deeptaylor.engine.inputs import check_network, read_device
from deeptaylor.engine.target import margin
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.methods.activation_patching import Direction, Patching, Site, estimate_patching
from deeptaylor.methods.delegates import shapley
from deeptaylor.models.loading.estimators import has_layers, has_scaler, is_estimator, load_estimator
from deeptaylor.models.loading.hubs import is_pipeline
from deeptaylor.models.loading.load import load
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.rules import Rule
from deeptaylor.settings import AUTO, SECANT
from deeptaylor.support.class_names import class_number, read_class_names
from deeptaylor.support.explainer_cache import ExplainerCache
from deeptaylor.support.tables import column_names, default_column_names, read_rows, to_numbers
from deeptaylor.text.model import TextModel
from deeptaylor.text.text_explainer import TextExplainer
from deeptaylor.text.text_explanation import TextExplanation

__all__ = ["contrast", "explain", "patching", "similarity"]

_DATA = ("reference", "background")
_RULE_SETTINGS = ("rules", "first", "bias", "max_pool", "local")
_ClassNames = Sequence[str] | Mapping[int, str] | None
_Answer = TypeVar("_Answer", bound=Explanation)


@overload
def explain(
    model: TextModel, x: Any, target: Any = None, *, continuation: Any = None, against: Any = None,
    method: str | None = None, reference: Any = None,
) -> TextExplanation: ...  # fmt: skip


@overload
def explain(
    model: Any, x: Any, target: Any = None, domain: Domain | Sequence[Domain] | None = None, *,
    rules: Mapping[str, Rule] | None = None, first: Rule | None = None, bias: str | None = None,
    max_pool: str | None = None, local: bool | None = None, output: int | str | None = None,
    method: str | None = None, reference: Any = None, background: Any = None,
    class_names: _ClassNames = None, device: str | torch.device | None = None,
    tokenizer: Any = None,
) -> Explanation: ...  # fmt: skip


def explain(
    model: Any,
    x: Any,
    target: Any = None,
    domain: Domain | Sequence[Domain] | None = None,
    *,
    rules: Mapping[str, Rule] | None = None,
    first: Rule | None = None,
    bias: str | None = None,
    max_pool: str | None = None,
    local: bool | None = None,
    output: int | str | None = None,
    continuation: Any = None,
    against: Any = None,
    method: str | None = None,
    reference: Any = None,
    background: Any = None,
    class_names: _ClassNames = None,
    device: str | torch.device | None = None,
    tokenizer: Any = None,
) -> Explanation | TextExplanation:
    """Capture, plan and explain in one call; for many inputs keep an `Explainer`, which captures once.

    With a `Pretrained`, ``x`` may be a photograph (a file, a Pillow image, an array of uint8) or a list of them, and
    ``target`` the name of a class; it keeps what was captured last. Inputs and targets are those of
    `Explainer.explain`, the settings those of `Explainer`. With a `TextModel`, ``x`` is a text, a pair of texts or a
    list of them, and the settings are those of `TextModel.explain`: continuation, against, method, reference.

    ``method``, ``reference`` and ``background`` are those of `Explainer`; the answer says which method it is and why.
    ``class_names`` are names for the classes, in order or as {number: name}: targets may then be names, and answers
    show them. ``device`` is where the explanation is computed; the network itself stays where it is. ``tokenizer``
    belongs to a network that reads texts, as in `dt.load`; to explain many texts, call `dt.load` once.

    With a model of scikit-learn, fitted or in a Pipeline, ``x`` is a row of its table or several, and ``background`` is
    data such as X_train. The answer is what took the score from that of the mean row to that of x: by secants if the
    model is linear or a multilayer perceptron, otherwise by Shapley values (`dt.shapley`). The columns of a data frame
    keep their names, also with a network.

    >>> import torch, deeptaylor as dt
    >>> dt.explain(torch.nn.Linear(2, 3), [[1.0, 2.0]], target=0, domain=dt.NonNegative()).relevance.shape
    torch.Size([1, 2])
    """
    if tokenizer is not None and isinstance(model, TextModel):
        raise InputError("This network was loaded with its tokenizer: leave tokenizer= out.")
    if is_pipeline(model) or tokenizer is not None:
        model = load(model, tokenizer=tokenizer)
    if isinstance(model, TextModel):
        if domain is not None or rules or first is not None:
            raise InputError("domain=, rules= and first= are not for networks that read texts; use method=.")
        if background is not None:
            raise InputError("background= is for tables; a text is compared with reference=, see dt.TextExplainer.")
        if class_names is not None:
            raise InputError("Name the classes when you load the network: dt.load(…, class_names=[…]).")
        if device is not None:
            raise InputError(
                f"device= is not for networks that read texts. Move the network: {{p}}.network.to({str(device)!r})."
            )
        return model.explain(
            x, target, continuation=continuation, against=against, method=method, reference=reference
        )  # fmt: skip
    if continuation is not None:
        raise InputError("continuation= is for networks that read texts; load one with its tokenizer: dt.load(…).")
    if against is not None:
        raise InputError(
            "against= of dt.explain is for networks that read texts. For others use dt.contrast(model, x, a, "
            "against=b), or the difference of two classes, target=dt.margin(a, b)."
        )
    settings = {
        "method": method or AUTO, "background": background, "rules": rules, "first": first, "bias": bias,
        "max_pool": max_pool, "local": local, "output": output,
    }  # fmt: skip
    if is_estimator(model) and not has_layers(model):
        return _explain_by_shapley(model, x, target, {**settings, "domain": domain}, reference, class_names)
    if is_estimator(model):
        known: Any = Real() if domain is None and not has_scaler(model) else domain
        model, domain = load_estimator(model, None, known, ...), None
    is_table = not isinstance(model, nn.Module) and getattr(model, "feature_names", None) is not None
    model, domain = _add_names(model, x, domain, class_names)
    if is_table and settings["method"] in (AUTO, SECANT):
        reference, domain = _table_reference(model, settings, domain, reference), None
        settings["background"] = None

    def ask(explainer: Explainer) -> Explanation:
        return explainer.explain(_move(x, device), target, reference=_move(reference, device))

    return _ask_cached(model, domain, settings, ask, x, device)


def _add_names(
    model: nn.Module | Pretrained, x: Any, domain: Any, class_names: _ClassNames
) -> tuple[nn.Module | Pretrained, Any]:
    """Return a network with names of its classes and of the columns of a data frame, and the domain that is left."""
    names = None if class_names is None else read_class_names(class_names)
    if isinstance(model, Pretrained):
        known: Any = None if model.preparation is not None else model.domain
        return (model if names is None else replace(model, class_names=names, domain=known)), domain
    if names is None and not column_names(x):
        return model, domain
    check_network(model)
    known = Real() if domain is None else domain
    return Pretrained(model, names, None, known, feature_names=column_names(x) or None), None


# --- tables -----------------------------------------------------------------------------------------------------------


def _table_reference(model: Any, settings: Mapping[str, Any], domain: Any, reference: Any) -> Any:
    """Return what rows of a table are compared with: the mean row, or the reference that is given."""
    rules = "For a deep Taylor decomposition by rules, use method='deep-taylor'."
    if domain is not None or any(settings[name] is not None for name in _RULE_SETTINGS):
        raise InputError(f"Rows of a table are compared with the mean row, without domain and rules. {rules}")
    return _mean_row(model.feature_names, settings["background"], rules) if reference is None else reference


def _mean_row(names: Sequence[str], background: Any, advice: str = "") -> npt.NDArray[np.float64]:
    """Return the mean row of the background, in the table's own units; raise if there is no usable background."""
    if background is None:
        raise InputError(
            "A row of a table is compared with the mean row of data: give background=X_train, the rows that the model "
            f"was fitted on or others like them, or a row of your own, reference=. {advice}".rstrip()
        )
    found, columns = read_rows(background, names)
    rows = to_numbers(found.detach().cpu().numpy() if isinstance(found, Tensor) else found, columns)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(names):
        raise InputError(f"background= is rows of {len(names)} columns, such as X_train; got shape {rows.shape}.")
    if not np.isfinite(rows).all():
        k = int((~np.isfinite(rows)).any(0).argmax())
        raise InputError(
            f"background= has values that are missing (NaN) or infinite, the first in column {columns[k]!r}: leave "
            "those rows out, or fill them in as you did to fit the model."
        )
    mean: npt.NDArray[np.float64] = rows.mean(0, keepdims=True)
    return mean


_OUTPUTS = ("predict_proba", "decision_function", "predict")  # of an estimator, the first that it has


def _explain_by_shapley(
    model: Any,
    x: Any,
    target: Any,
    settings: Mapping[str, Any],
    reference: Any,
    class_names: _ClassNames,
) -> Between:
    """Explain rows by the Shapley values of an estimator without layers, such as a forest."""
    kind = type(model).__name__
    named = [name for name, value in settings.items() if value is not None and name not in ("method", "background")]
    if named or settings["method"] not in (AUTO, "shapley"):
        raise InputError(
            f"{kind} has no layers that relevance could pass through. It is explained by Shapley values, which take "
            f"background= or reference=, and not {named[0] if named else 'method'}=."
        )
    if (how := next((name for name in _OUTPUTS if hasattr(model, name)), None)) is None:
        raise InputError(f"{kind} has none of {', '.join(_OUTPUTS)}, so there is no output to explain.")
    rows, names = _read_table(model, x)
    if reference is None:
        reference = _mean_row(names, settings["background"])[0]
    else:
        reference = to_numbers(*read_rows(reference, names)).squeeze()
    classes = tuple(map(str, getattr(model, "classes_", ()))) if class_names is None else read_class_names(class_names)
    index = class_number(classes or None, target) if isinstance(target, str) else target
    answer = shapley(getattr(model, how), rows, reference, index)
    explained = np.broadcast_to(np.asarray(answer.target), len(answer)).tolist()
    has_names = how != "predict" and len(classes) > max(explained)
    return replace(
        answer, feature_names=names, class_names=classes if has_names else (),
        titles=tuple((classes[k],) for k in explained) if has_names else (),
        probabilities=tuple((p,) for p in answer.score.tolist()) if has_names and how == "predict_proba" else (),
        reason=f"Method: Shapley values of {how}, because {kind} has no layers that relevance could pass through.",
    )  # fmt: skip


def _read_table(model: Any, x: Any) -> tuple[Any, tuple[str, ...]]:
    """Return rows as the estimator was fitted, a data frame or an array, and the names of their columns."""
    fitted = getattr(model, "feature_names_in_", None)
    known: Any = fitted if fitted is not None else column_names(x)
    count = getattr(model, "n_features_in_", None) or np.shape(x)[-1]
    values, names = read_rows(x, tuple(map(str, known)) or default_column_names(count))
    rows = np.atleast_2d(to_numbers(values, names))
    if fitted is None:
        return rows, names
    return importlib.import_module("pandas").DataFrame(rows, columns=list(fitted)), names


def similarity(model: TextModel, a: Any, b: Any, *, dot: bool = False, reference: Any = None) -> TextExplanation:
    """Explain which words of two texts make their embeddings point the same way.

    model       a network that gives embeddings, as dt.load("hf:…") returns it
    a, b        a text each, or lists of as many
    dot         explain the dot product in place of the cosine
    reference   what words are replaced by (see `TextExplainer`)
    """
    if not isinstance(model, TextModel):
        raise InputError(
            f"A similarity needs a network loaded with its tokenizer, dt.load(…); got {type(model).__name__}."
        )
    return model.similarity(a, b, dot, reference)


def contrast(
    model: nn.Module | Pretrained,
    x: Any,
    target: Any = None,
    against: Any = None,
    power: float = POWER,
    domain: Domain | Sequence[Domain] | None = None,
    *,
    rules: Mapping[str, Rule] | None = None,
    first: Rule | None = None,
    bias: str | None = None,
    max_pool: str | None = None,
    local: bool | None = None,
    output: int | str | None = None,
    method: str = AUTO,
    reference: Any = None,
    class_names: _ClassNames = None,
    device: str | torch.device | None = None,
) -> Contrast | Between:
    """Explain what distinguishes a class from its rivals, in one call (see `Explainer.contrast`).

    With a `Pretrained`, ``x`` may be photographs, as for `explain`, and classes may be names. The settings are those of
    `Explainer`; ``class_names`` and ``device`` are those of `explain`.
    """
    if isinstance(model, TextModel):
        raise InputError(
            "dt.contrast is for networks that read pictures or numbers. To compare two classes of a text, use "
            "dt.explain(p, text, target=…, against=…)."
        )
    settings = {
        "method": method, "reference": reference, "rules": rules, "first": first, "bias": bias, "max_pool": max_pool,
        "local": local, "output": output,
    }  # fmt: skip
    model, domain = _add_names(model, x, domain, class_names)

    def ask(explainer: Explainer) -> Contrast | Between:
        return explainer.contrast(_move(x, device), target, against, power)

    return _ask_cached(model, domain, settings, ask, x, device)


def patching(
    model: nn.Module | Pretrained | TextModel | Explainer | TextExplainer,
    clean: Any,
    corrupted: Any,
    target: Any = None,
    *,
    against: Any = None,
    at: str | Site | Sequence[str | Site] | None = None,
    direction: Direction = "noising",
    verify: int = 10,
) -> Patching:
    """Estimate what activation patching would measure for all components of a network, from two passes.

    model              a network, or an explainer, which is captured once for many questions
    clean, corrupted   inputs of the same shape; texts of as many tokens
    target             a class, or of a language model the continuation; None: what the network itself answers
    against            a class, or a continuation, in the place of which: the difference of both is asked about
    at                 the components: names of modules, with * for any text; dt.heads(layer, count) or
                       dt.channels(layer); a list of these. None: everything that is added to a residual stream, such
                       as attention and MLPs
    direction          "noising" puts corrupted values into the clean run, "denoising" clean ones into the corrupted
    verify             how many of the largest components are also measured by patching, one run each; the result
                       says how well they agree

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> p = dt.patching(network, torch.ones(1, 2), torch.zeros(1, 2), 0, at=["0", "1"])
    >>> p.names, bool((p.estimate - (p.score - p.reference_score)).abs().max() < 1e-6)  # everything passes through both
    (('0', '1'), True)
    """
    if isinstance(model, (TextModel, TextExplainer)):
        return model.patching(clean, corrupted, target, against=against, at=at, direction=direction, verify=verify)
    explainer = model if isinstance(model, Explainer) else Explainer(model, method=SECANT)
    wanted = target if against is None else margin(target, against)
    return estimate_patching(explainer, clean, corrupted, wanted, at, direction=direction, verify=verify)


def _ask_cached(
    model: nn.Module | Pretrained, domain: Any, settings: Mapping[str, Any], ask: Callable[[Explainer], _Answer],
    x: Any, device: str | torch.device | None,
) -> _Answer:  # fmt: skip
    """Ask the cached explainer of a `Pretrained`; a new one if rules, domain or data are given, which may change.

    x        the input, with which a new explainer is captured before it is moved
    device   where the explainer computes; None: where the network is
    """
    place = None if device is None else read_device(device)
    settings = {name: _move(value, place) if name in _DATA else value for name, value in settings.items()}

    def make() -> Explainer:
        if place is None:
            return Explainer(model, None, domain, **settings)
        return Explainer(model, x, domain, **settings).to(place)

    kept: ExplainerCache[Explainer] | None = (
        None if isinstance(model, nn.Module) else getattr(model, "explainer_cache", None)
    )
    own_data = any(settings.get(name) is not None and not isinstance(settings[name], str) for name in _DATA)
    if kept is None or domain is not None or settings["rules"] or settings["first"] or own_data:
        return ask(make())
    named = {name: value for name, value in sorted(settings.items()) if value is not None}
    return kept.answer(f"{named!r} on {place}", make, ask)


def _move(x: Any, device: str | torch.device | None) -> Any:
    """Return tensors, alone or among others, on a device; None: where they are. Anything else is unchanged."""
    if device is None:
        return x
    if isinstance(x, Mapping):
        return {name: _move(value, device) for name, value in x.items()}
    if isinstance(x, (list, tuple)) and any(isinstance(one, Tensor) for one in x):
        return type(x)(_move(one, device) for one in x)
    return x.to(device) if isinstance(x, Tensor) else x
