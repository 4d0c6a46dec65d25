"""Is a network still the one that was captured? A quick look before every call, and a thorough one.

Known                what a network was when it was captured
├── quick            new parts, hooks, numbers, another `forward`, and every write that torch counts; optimisers, some
│                    of which write uncounted, say when they took a step
├── look, changed    every bit of its tensors, which also shows what was written through `.data`; and what else its
│                    forward pass may read (traits.py). Where only the latter changed, the network is asked: attributes
│                    that nobody reads, counters, and hooks that only watch leave its answers as they were. Names of
│                    what changed are looked for only where something did
└── moved            every tensor has another type or place, and the value that it had
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from deeptaylor.domain import Box, Domain
from deeptaylor.errors import DeepTaylorWarning
from deeptaylor.graph.agreement import ROUNDING, Answer
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.graph.hooks import global_hooks, hooks_of
from deeptaylor.run.checksum import Together, checksums
from deeptaylor.run.globals_read import GLOBAL, outside
from deeptaylor.run.traits import Seen, traits

__all__ = ["Known"]

_SCALARS = (type(None), bool, int, float, str)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """A network's parameters and buffers by name, each once; in one walk, for it is walked often."""
    modules = list(model.named_modules())
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for places in ([(path, m._parameters) for path, m in modules], [(path, m._buffers) for path, m in modules]):
        for path, place in places:
            for name, t in place.items():
                if t is not None and id(t) not in seen:
                    seen.add(id(t))
                    found[f"{path}.{name}" if path else name] = t
    return found


Look = Callable[[], bool]  # which has begun, on a GPU beside whatever else is asked of it; True if nothing changed


class Watch:
    """Whether a network is the one it was, seen from the same parts: quickly, or thoroughly."""

    _all: ClassVar[weakref.WeakSet[Watch]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, model: nn.Module, more: Sequence[Tensor], volatile: set[str]) -> None:
        modules = dict(model.named_modules())
        places = [d for m in modules.values() for d in (m._modules, m._parameters, m._buffers, *hooks_of(m))]
        places += global_hooks()
        self._sizes = [(d, len(d)) for d in (*places, *(m.__dict__ for m in modules.values()))]
        self._parts = [(d, name, part) for d in places for name, part in d.items()]
        self._parts += [(m.__dict__, "forward", m.__dict__.get("forward")) for m in modules.values()]
        # Numbers and words, but of torch's own modules: they are many, and hardly ever changed.
        self._parts += [
            (m.__dict__, name, value)
            for path, m in modules.items()
            if not type(m).__module__.startswith("torch.")
            for name, value in m.__dict__.items()
            if isinstance(value, _SCALARS) and name != "training" and f"{path}.{name}".lstrip(".") not in volatile
        ]
        self._parts += [
            (holder, key, holder[key])
            for name, holder, key in outside(model)
            if isinstance(holder[key], _SCALARS) and name not in volatile
        ]
        self._classes = [(c, c.forward) for c in {type(m) for m in modules.values()}]
        own = tensors_of(model)
        tensors = [*own.values(), *more]
        self._tensors = [(t, _version(t), t.data_ptr(), t.shape, t.stride()) for t in tensors]
        self._own = {id(t) for t in own.values()}
        self._together, self._seen = Together(tensors), Seen(model, volatile)
        self._sums = self._together.begin()()
        self._stepped = False
        with self._lock:
            self._all.add(self)

    def same(self) -> bool:
        """True if nothing changed that can be seen without a look at the values."""
        return (
            not self._stepped
            and all(len(d) == size for d, size in self._sizes)
            and all(d.get(name) is part for d, name, part in self._parts)
            and all(c.forward is forward for c, forward in self._classes)
            and all(
                _version(t) == version and t.data_ptr() == place and t.shape == shape and t.stride() == stride
                for t, version, place, shape, stride in self._tensors
            )
        )

    def begin(self) -> Look:
        """Begin to look at every value of a network that is quickly seen to be the same."""
        sums = self._together.begin()
        return lambda: self._seen.same() and sums() == self._sums

    @classmethod
    def step(cls, optimiser: Optimizer, *_: Any) -> None:
        """An optimiser took a step; perhaps with tensors that are watched."""
        with cls._lock:
            watches = list(cls._all)
        for watch in watches:
            watch.told(optimiser)

    def told(self, optimiser: Optimizer) -> None:
        """The same for one."""
        own = self._own
        self._stepped = self._stepped or any(id(p) in own for g in optimiser.param_groups for p in g["params"])


register_optimizer_step_post_hook(Watch.step)  # fused ones write without torch counting it


def _version(t: Tensor) -> int:
    """How often a tensor was written to; those made in inference mode do not count."""
    return 0 if t.is_inference() else t._version


class Known:
    """A network as it was when it was captured."""

    def __init__(self, model: nn.Module, example: Sequence[Tensor], domains: Sequence[Domain]) -> None:
        self.model = model
        self.stale: list[str] = []  # what had changed already when this was copied
        self._volatile: set[str] = set()  # what the network itself changes whenever it runs
        # The captured network may share these: they stay what they are, whatever the user's parameters become.
        self._tensors = {name: t.detach() for name, t in tensors_of(model).items()}
        self._print = _print(model, tensors_of(model))
        self._asked = _questions(example, domains)
        self._answer: Answer | None = None
        self._answers = self._ask()
        self._traits = traits(model)
        self._watch = Watch(model, [], self._volatile)

    def answer(self) -> Answer | None:
        """What the network said when it was asked last; told once, and forgotten: it may be large."""
        told, self._answer = self._answer, None
        return told

    def quick(self) -> bool:
        """True if nothing changed that can be seen without a look at the values."""
        return not self.stale and self._watch.same()

    def look(self) -> Look | None:
        """Begin a thorough look; None where a quick one shows that something changed."""
        return self._watch.begin() if self.quick() else None

    def changed(self, look: Look | None = None) -> list[str]:
        """The names of tensors, modules, or else of what a forward pass reads besides, that are not as they were."""
        look = look or self.look()
        if look is not None and look():
            return []
        now = tensors_of(self.model)
        # Of the captured network, where the user's own now lie elsewhere.
        apart = {name: t for name, t in self._tensors.items() if name in now and now[name].data_ptr() != t.data_ptr()}
        changed = self.stale or self._other_parts(now, apart) or self._other_answers()
        if not changed:
            self._watch = Watch(self.model, list(apart.values()), self._volatile)
        return changed

    def _other_parts(self, tensors: dict[str, Tensor], apart: dict[str, Tensor]) -> list[str]:
        now = _print(self.model, tensors)
        changed = [k for k in {**now, **self._print} if now.get(k) != self._print.get(k)]
        numbers = zip(apart, checksums(list(apart.values())), strict=True)
        changed += [name for name, n in numbers if n != self._print[name][-1] and name not in changed]
        return sorted(changed, key=lambda name: name.endswith("(module)"))

    def _other_answers(self) -> list[str]:
        """What differs in traits, if it makes the network's answers differ."""
        now = traits(self.model)
        changed = [k for k in {**now, **self._traits} if k not in self._volatile and now.get(k) != self._traits.get(k)]
        # A number that the code reads may matter for other inputs than those that are asked here.
        numbers = [k for k in changed if k.endswith(GLOBAL) and _is_scalar(self._traits.get(k), now.get(k))]
        if numbers or (changed and not _close(self._ask(), self._answers)):
            return numbers or changed
        self.answer()
        self._traits = now
        return []

    def _ask(self) -> list[Tensor]:
        """The network's answers, in eval mode and with everything put back; none where it fails."""
        like = next((t for t in self._tensors.values() if t.is_floating_point() and t.ndim), None)
        device = "cpu" if like is None else like.device.type
        found: list[Tensor] = []
        with warnings.catch_warnings(), torch.no_grad(), torch.autocast(device, enabled=False):
            warnings.simplefilter("ignore", DeepTaylorWarning)  # capture says it
            for question in self._asked:
                asked = [x if like is None else _like(x, like) for x in question]
                found += self._ask_for(asked) or self._ask_for([torch.cat([x, x]) for x in asked])
        return found

    def _ask_for(self, inputs: list[Tensor]) -> list[Tensor]:
        with eval_mode(self.model), _spared(self.model):
            before = traits(self.model)
            try:
                answers = self.model(*[x.clone() for x in inputs])
            except Exception:  # noqa: BLE001 - whatever it is, it is no answer
                return []
            after = traits(self.model)
        self._answer = Answer(inputs, answers)
        self._volatile |= {k for k in {**before, **after} if before.get(k) != after.get(k)}
        return [t.clone() for t in pytree.tree_leaves(answers) if isinstance(t, Tensor)]

    def moved(self) -> tuple[torch.device, torch.dtype] | None:
        """Where and what a network is now of which every tensor was converted or moved, and nothing else happened."""
        now = tensors_of(self.model)
        if self.stale or now.keys() != self._tensors.keys() or not _moved_as_one(self._tensors, now):
            return None
        sums = checksums(list(self._tensors.values()))
        same = all(
            n == self._print[name][-1] and torch.equal(t.to(now[name].device, now[name].dtype), now[name])
            for (name, t), n in zip(self._tensors.items(), sums, strict=True)
        )
        return _place(now) if same else None

    def gone(self) -> bool:
        """True if the values of a network that had some are gone: it was moved to the meta device."""
        now = any(t.is_meta for t in tensors_of(self.model).values())
        return now and not any(t.is_meta for t in self._tensors.values())

    @property
    def place(self) -> tuple[torch.device, torch.dtype] | None:
        """Where and what the network was, by its first tensor of numbers."""
        return _place(self._tensors)


def _place(tensors: dict[str, Tensor]) -> tuple[torch.device, torch.dtype] | None:
    first = next((t for t in tensors.values() if t.is_floating_point()), None)
    return None if first is None else (first.device, first.dtype)


def _moved_as_one(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """True if all tensors went to one device, or became one type, as `.to` does it."""
    pairs = [(t, after[name]) for name, t in before.items() if t.is_floating_point()]
    if any(t.shape != now.shape for t, now in pairs) or len({now.device for _, now in pairs}) != 1:
        return False
    kept = all(t.dtype is now.dtype for t, now in pairs)
    if not kept and len({now.dtype for _, now in pairs}) != 1:
        return False
    return not kept or any(t.device != now.device for t, now in pairs)


def _print(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """For every part of a network what it is, for every tensor its kind and checksum."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, module in model.named_modules():
        theirs = type(module).__module__.startswith("torch.nn.modules.") and "Dropout" not in type(module).__name__
        found[f"{path or 'itself'} (module)"] = (type(module), module.extra_repr() if theirs else "")
    for (name, t), number in zip(tensors.items(), checksums(list(tensors.values())), strict=True):
        found[name] = (t.shape, t.dtype, t.device, number)
    return found


def _is_scalar(*traits: Any) -> bool:
    """Return True if a value was a number or a word before and after; traits begin with its type."""
    return all(isinstance(t, tuple) and t and t[0] in _SCALARS for t in traits)


def _like(x: Tensor, like: Tensor) -> Tensor:
    """An input where a tensor is, real numbers of its type."""
    return x.to(like) if x.is_floating_point() else x.to(like.device)


def _questions(example: Sequence[Tensor], domains: Sequence[Domain]) -> list[list[Tensor]]:
    """What a network is asked: the first sample of an example; and, where all of an input is one number, another.

    On an example of zeros many networks are the same; but on one that is all ones, such as what of a text is seen, any
    other numbers may tell less than that.
    """
    first = [x[:1].detach() for x in example]
    other = [_varied(x, domain) if _is_one_number(x) else x for x, domain in zip(first, domains, strict=True)]
    return [first] if all(a is b for a, b in zip(first, other, strict=True)) else [other, first]


def _is_one_number(x: Tensor) -> bool:
    return x.is_floating_point() and not bool((x != x.flatten()[:1]).any())


def _varied(x: Tensor, domain: Domain) -> Tensor:
    """Half of an input, and half numbers from its domain."""
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        drawn = low + (high - low) * drawn
    elif not domain.non_negative:
        drawn = 4 * drawn - 2
    return (x + drawn) / 2


@contextlib.contextmanager
def _spared(model: nn.Module) -> Iterator[None]:
    """Copies in place of buffers and tensors, into which a forward pass may write, such as counters."""
    places = [d for m in model.modules() for d in (m._buffers, m.__dict__)]
    saved = [(d, name, t) for d in places for name, t in d.items() if isinstance(t, Tensor)]
    copies = {id(t): t.clone() for _, _, t in saved}
    for d, name, t in saved:
        d[name] = copies[id(t)]
    try:
        yield
    finally:
        for d, name, t in saved:
            d[name] = t


def _close(a: list[Tensor], b: list[Tensor]) -> bool:
    """True if two answers are the same but for rounding."""
    if not a or len(a) != len(b):
        return False
    return all(x.shape == y.shape and x.dtype is y.dtype and _near(x, y) for x, y in zip(a, b, strict=True))


def _near(x: Tensor, y: Tensor) -> bool:
    if not x.is_floating_point():
        return torch.equal(x, y)
    size = float(torch.nan_to_num(y.float()).abs().max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=0, atol=ROUNDING * torch.finfo(y.dtype).eps * size, equal_nan=True)
