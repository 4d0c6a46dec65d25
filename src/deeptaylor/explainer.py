"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from deeptaylor import target as targets
from deeptaylor.capture import eval_mode
from deeptaylor.domain import Domain, Real, check_inside
from deeptaylor.engine import Engine, Result, Settings
from deeptaylor.errors import CaptureError, DeepTaylorWarning, InputError, PlanError, StaleModelError, TargetError
from deeptaylor.explanation import Explanation, Ledger
from deeptaylor.plan import Plan
from deeptaylor.rules import Rule

Inputs = Tensor | Sequence[Tensor]


class Explainer(nn.Module):
    """Explains the decisions of a network by deep Taylor decomposition.

    model     any exportable network; it is never changed
    example   an input (or a tuple of inputs) as the network takes it
    domain    what values the input may take: Real(), NonNegative() or Box(low, high); a tuple for several inputs
    rules     {node name, module path or pattern: rule} in place of the rules that follow from the domains
    first     the rule of the blocks that read the input
    bias      "neuron": biases keep their share, as in the paper; "spread": it goes back to the unit's inputs
    max_pool  "proportional" to activations, as in the paper, or "winner" takes all
    output    which output to explain, where the network has several: its number or name

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> explainer = dt.Explainer(network, torch.ones(1, 2), domain=dt.NonNegative())
    >>> explainer.explain(torch.ones(1, 2)).relevance.shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        example: Inputs,
        domain: Domain | Sequence[Domain] | None = None,
        *,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str = "neuron",
        max_pool: str = "proportional",
        output: int | str | None = None,
    ) -> None:
        super().__init__()
        _choice("bias", bias, ("neuron", "spread"))
        _choice("max_pool", max_pool, ("proportional", "winner"))
        inputs = _as_tuple(example)
        for k, x in enumerate(inputs):
            _check_tensor(x, f"input {k}")
        self.settings = Settings(_domains(domain, len(inputs)), dict(rules or {}), first, bias, max_pool, output)
        # In tuples, so that nn.Module does not take the user's network for a part of this one.
        self._model = (model,)
        self._example = tuple(x[:2].detach() for x in inputs)
        self._scored: dict[int, tuple[Any, Explainer]] = {}
        self._check_model_fits(inputs)
        self.engines = nn.ModuleDict()
        self._print = _fingerprint(model)
        self.engines[_key(inputs)] = self._capture(inputs)

    # --- capture --------------------------------------------------------------------------------------------------

    def _capture(self, inputs: Sequence[Tensor]) -> Engine:
        return Engine(self._model[0], [x[:2].detach() for x in inputs], self.settings)

    @property
    def plan(self) -> Plan:
        """What will be done, as a printable table."""
        return self._first.plan

    @property
    def _first(self) -> Engine:
        return cast("Engine", next(iter(self.engines.values())))

    def refresh(self) -> Explainer:
        """Capture the network again, after its parameters changed."""
        self._scored.clear()
        self._print = _fingerprint(self._model[0])
        example = self._example
        self.engines = nn.ModuleDict({_key(example): self._capture(example)})
        return self

    def _engine(self, inputs: Sequence[Tensor]) -> Engine:
        """The engine for these shapes, captured anew where they are new."""
        key = _key(inputs)
        if key in self.engines:
            return cast("Engine", self.engines[key])
        same = f"{_key(inputs)}@{inputs[0].shape[0]}"
        if same in self.engines:
            return cast("Engine", self.engines[same])
        try:
            engine = self._capture(inputs)
        except CaptureError as error:
            wanted = [tuple(x.shape[1:]) for x in self._example]
            raise InputError(
                f"The network was captured for samples of shape {_shapes(wanted)} and does not take "
                f"{_shapes([tuple(x.shape[1:]) for x in inputs])}."
            ) from error
        self.engines[key] = engine
        return engine

    # --- explain --------------------------------------------------------------------------------------------------

    def forward(self, x: Inputs, target: Any = None) -> tuple[Tensor, Any]:
        """Score and relevance as plain tensors; this is what compiles and exports."""
        inputs = _as_tuple(x)
        if targets.is_callable(target):
            return self._for_score(target).forward(x)
        engine = self._engine_for_batch(inputs)
        result = engine.run(inputs, target)
        return result.score, result.relevance[0] if len(inputs) == 1 else result.relevance

    def explain(self, x: Inputs, target: Any = None) -> Explanation:
        """Explain a batch: relevance, score, ledger and what there is to say about them.

        target   None: the top class; an int; an integer tensor (B,) or (B, K): K maps a sample; a float tensor shaped
                 like the output: weights; dt.margin(a, b): a logit difference; a callable on the output
        """
        if targets.is_callable(target):
            return self._for_score(target).explain(x)
        inputs = tuple(t.detach() for t in self._checked(x))
        self._check_fresh()
        with torch.no_grad():
            engine = self._engine_for_batch(inputs)
            self._check_target(engine, target)
            result, notes = self._run(engine, inputs, target, frozenset())
        return self._explanation(engine, inputs, target, result, notes)

    def relevance_at(self, name: str, x: Inputs, target: Any = None) -> Tensor:
        """The relevance at an inner boundary, by node name or module path."""
        if targets.is_callable(target):
            return self._for_score(target).relevance_at(name, x)
        inputs = tuple(t.detach() for t in self._checked(x))
        self._check_fresh()
        with torch.no_grad():
            engine = self._engine_for_batch(inputs)
            node = engine.boundary(name)
            result, _ = self._run(engine, inputs, target, frozenset([node]))
        return result.kept[node]

    def _engine_for_batch(self, inputs: Sequence[Tensor]) -> Engine:
        engine = self._engine(inputs)
        if engine.fixed_batch is None or engine.fixed_batch == inputs[0].shape[0]:
            return engine
        key = f"{_key(inputs)}@{inputs[0].shape[0]}"
        if key not in self.engines:
            self.engines[key] = Engine(self._model[0], list(inputs), self.settings)
        return cast("Engine", self.engines[key])

    def _run(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, keep: frozenset[str]
    ) -> tuple[Result, list[str]]:
        result = engine.run(inputs, target, ledger=True, keep=keep)
        if all(bool(torch.isfinite(t).all()) for t in (result.score, *result.relevance)):
            return result, []
        dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)
        if dtype in (torch.float16, torch.bfloat16):
            said = f"{str(dtype).removeprefix('torch.')} overflowed; the explanation was computed again in float32"
            warnings.warn(said, DeepTaylorWarning, stacklevel=4)
            wide = copy.deepcopy(engine).float()
            again = wide.run(
                [x.float() if x.is_floating_point() else x for x in inputs], target, ledger=True, keep=keep
            )
            if all(bool(torch.isfinite(t).all()) for t in (again.score, *again.relevance)):
                return again, [said]
        bad = "score" if not bool(torch.isfinite(result.score).all()) else "relevance"
        raise InputError(
            f"The network's {bad} is not finite for this input: its values overflow. Check weights and input scale."
        )

    def _for_score(self, score: Callable[[Tensor], Tensor]) -> Explainer:
        """An explainer of score(network(x)), captured together and remembered."""
        known = self._scored.get(id(score))
        if known is None:
            domains = self.settings.domains
            scored = Explainer(
                _Scored(self._model[0], score, self.settings.output),
                self._example,
                domains,
                rules=self.settings.rules,
                first=self.settings.first,
                bias=self.settings.bias,
                max_pool=self.settings.max_pool,
            )
            known = self._scored[id(score)] = (score, scored)
        return known[1]

    def _explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, notes: list[str]
    ) -> Explanation:
        assert result.entries is not None
        entries = result.entries if result.entries.ndim == 4 else result.entries.unsqueeze(0)
        rows = [(r.node, r.module, r.op, r.rule) for r in engine.plan.rows]
        many = result.entries.ndim == 4
        per_input = torch.stack([sum_per_sample(r, many) for r in result.relevance], -1)
        ledger = Ledger(
            input=per_input.sum(-1),
            bias=_by_target(entries[:, :, 2].sum(1), many),
            dropped=_by_target(entries[:, :, 3].sum(1), many),
            score=result.score.clamp(min=0),
            rows=tuple(rows),
            entries=entries if many else entries[0],
        )
        return Explanation(
            relevance=result.relevance[0] if len(inputs) == 1 else result.relevance,
            score=result.score,
            ledger=ledger,
            target=target,
            positive=all(getattr(s, "rule", None) is None or s.rule.positive for s in engine.planned.steps),
            notes=(*notes, *engine.plan.notes),
            source=lambda name: self.relevance_at(name, inputs if len(inputs) > 1 else inputs[0], target),
        )

    # --- checks ---------------------------------------------------------------------------------------------------

    def _checked(self, x: Inputs) -> tuple[Tensor, ...]:
        """The inputs, or a clear error before any work."""
        inputs = _as_tuple(x)
        if len(inputs) != len(self._example):
            raise InputError(f"The network takes {len(self._example)} input(s), got {len(inputs)}.")
        for k, (x_k, example, domain) in enumerate(zip(inputs, self._example, self.settings.domains, strict=True)):
            name = self._first.planned.inputs[k]
            _check_tensor(x_k, name)
            _check_like(x_k, example, name)
            _check_finite(x_k, name)
            if x_k.is_floating_point():
                check_inside(x_k, domain, name)
        if len({x_k.shape[0] for x_k in inputs}) > 1:
            raise InputError(f"The inputs have different batch sizes: {[x_k.shape[0] for x_k in inputs]}.")
        self._check_place(inputs)
        return inputs

    def _check_place(self, inputs: Sequence[Tensor]) -> None:
        constant = next((b for b in self._first.network.buffers() if b.is_floating_point() and b.ndim), None)
        x = next((t for t in inputs if t.is_floating_point()), None)
        if constant is None:
            return
        if inputs[0].device != constant.device:
            raise InputError(
                f"The network is on {constant.device}, the input on {inputs[0].device}; move one: "
                f"x.to({str(constant.device)!r}) or "
                f"explainer.to({str(inputs[0].device)!r})."
            )
        if x is not None and x.dtype != constant.dtype:
            raise InputError(
                f"The network computes in {constant.dtype}, the input is {x.dtype}; convert one: "
                f"x.to({constant.dtype}) or "
                f"explainer.to({x.dtype})."
            )

    def _check_model_fits(self, inputs: Sequence[Tensor]) -> None:
        """The network and the example on one device and of one type, before capture."""
        parameter = next((p for p in self._model[0].parameters() if p.is_floating_point()), None)
        x = next((t for t in inputs if t.is_floating_point()), None)
        if parameter is None:
            return
        if inputs[0].device != parameter.device:
            raise InputError(
                f"The network is on {parameter.device}, the example on {inputs[0].device}; move one of them."
            )
        if x is not None and x.dtype != parameter.dtype:
            raise InputError(
                f"The network's parameters are {parameter.dtype}, the example is {x.dtype}; convert one of them."
            )

    def _check_target(self, engine: Engine, target: Any) -> None:
        sizes = engine.layout[engine.planned.output].sizes
        if len(sizes) == 2:
            targets.check_range(target, sizes[1][0])
        elif isinstance(target, bool):
            raise TargetError("A target cannot be True or False.")

    def _check_fresh(self) -> None:
        changed = [k for k, v in _fingerprint(self._model[0]).items() if self._print.get(k) != v]
        gone = [k for k in self._print if k not in _names(self._model[0])]
        if changed or gone:
            names = ", ".join((changed + gone)[:3])
            raise StaleModelError(
                f"The network changed since it was captured ({len(changed) + len(gone)} tensors, among them "
                f"{names}). Call "
                "explainer.refresh() to explain the network as it is now."
            )


class _Scored(nn.Module):
    """score(network(x)): a callable target made part of the network."""

    def __init__(self, model: nn.Module, score: Callable[[Tensor], Tensor], output: int | str | None) -> None:
        super().__init__()
        self.model, self.score, self.output = model, score, output
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Tensor:
        y = self.model(*inputs)
        if self.output is not None:
            y = y[self.output] if not isinstance(self.output, str) or hasattr(y, "keys") else getattr(y, self.output)
        score: Any = self.score(y)
        if not isinstance(score, Tensor) or score.ndim not in (1, 2) or (score.ndim == 2 and score.shape[1] != 1):
            raise TargetError(
                "A callable target must return one number a sample: a tensor of shape (batch,) or (batch, 1)."
            )
        return score


def explain(
    model: nn.Module, x: Inputs, target: Any = None, domain: Domain | Sequence[Domain] | None = None, **settings: Any
) -> Explanation:
    """Capture, plan and explain in one call; for many inputs keep an Explainer."""
    return Explainer(model, x, domain, **settings).explain(x, target)


def sum_per_sample(relevance: Tensor, many: bool) -> Tensor:
    """ΣR over everything but the sample (and the target)."""
    kept = 2 if many else 1
    return relevance.sum(tuple(range(kept, relevance.ndim))) if relevance.ndim > kept else relevance


def _by_target(t: Tensor, many: bool) -> Tensor:
    return t.movedim(0, 1) if many else t[0]


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def _as_tuple(x: Inputs) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def _domains(domain: Domain | Sequence[Domain] | None, n: int) -> tuple[Domain, ...]:
    if domain is None or isinstance(domain, Domain):
        return (domain or Real(),) * n
    if len(domain) != n:
        raise PlanError(f"{len(domain)} domains were given for {n} inputs.")
    return tuple(domain)


def _key(inputs: Sequence[Tensor]) -> str:
    """Everything but the batch size that a capture depends on; free of dots, as module names must be."""
    return "_".join(
        "x".join(str(int(n)) for n in x.shape[1:]) + ("i" if not x.is_floating_point() else "f") for x in inputs
    )


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def _check_tensor(x: Any, name: str) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"Input {name!r} must be a torch tensor, got {type(x).__name__}.")
    if x.ndim == 0:
        raise InputError(f"Input {name!r} has no batch dimension; add one: x.unsqueeze(0).")
    if x.shape[0] == 0:
        raise InputError(f"Input {name!r} is an empty batch: there is nothing to explain.")
    if x.is_complex() or x.dtype == torch.bool:
        raise InputError(f"Input {name!r} is {x.dtype}; real or integer values are needed.")


def _check_like(x: Tensor, example: Tensor, name: str) -> None:
    if example.is_floating_point() and not x.is_floating_point():
        raise InputError(
            f"Input {name!r} holds integers ({x.dtype}), the network expects {example.dtype}; convert and normalise it."
        )
    if not example.is_floating_point() and x.is_floating_point():
        raise InputError(f"Input {name!r} holds {x.dtype}, the network expects integers ({example.dtype}).")
    if x.ndim != example.ndim:
        hint = " Add a batch dimension: x.unsqueeze(0)." if x.ndim == example.ndim - 1 else ""
        raise InputError(
            f"Input {name!r}: expected {example.ndim} dimensions (batch, "
            f"{', '.join(map(str, example.shape[1:]))}), got {x.ndim}: "
            f"{tuple(x.shape)}.{hint}"
        )
    fixed = (x.ndim > 2 or x.is_floating_point()) and x.ndim > 1
    if fixed and x.shape[1] != example.shape[1]:
        what = "channels" if x.ndim > 2 else "features"
        raise InputError(
            f"Input {name!r}: expected {example.shape[1]} {what}, got {x.shape[1]} (shape {tuple(x.shape)})."
        )


def _check_finite(x: Tensor, name: str) -> None:
    if not x.is_floating_point():
        return
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        index = tuple(int(i) for i in torch.nonzero(bad)[0])
        raise InputError(
            f"Input {name!r} has {int(bad.sum())} value(s) that are NaN or infinite, the first at index {index}."
        )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _names(model: nn.Module) -> set[str]:
    return set(_tensors(model))


def _fingerprint(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """For every parameter and buffer: where it lies, how often it was written, and a few of its values."""
    found = {}
    with torch.no_grad():
        for name, t in _tensors(model).items():
            # Writing through .data leaves the version counter alone; a few values show it all the same.
            flat = t.detach().reshape(-1)
            probe = tuple(flat[:: max(1, flat.numel() // 7)][:8].float().tolist()) if flat.numel() else ()
            found[name] = (id(t), t._version, t.data_ptr(), t.dtype, t.device, probe)
    return found


__all__ = ["Explainer", "eval_mode", "explain"]
