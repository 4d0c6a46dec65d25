"""Networks that decide by their data: the way that one took for some inputs, as a network without decisions."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deeptaylor.errors import CaptureError, InputError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.graph.failing import describe_failure

__all__ = ["as_taken"]

# Where Python reads a tensor's values: what an `if`, a `while` or an index can depend on.
_READS = frozenset(
    {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__}
    | {Tensor.item, Tensor.tolist, Tensor.equal, Tensor.allclose, Tensor.is_nonzero}
    | {torch.equal, torch.allclose, torch.is_nonzero}
)


def as_taken(model: nn.Module, inputs: Tensor | Sequence[Tensor]) -> nn.Module:
    """The network with every decision made as for these inputs, for networks whose control flow depends on the data.

    It has the network's own modules, and gives the same output for the inputs; wherever the network reads a value
    (``if x.sum() > 0``, ``for _ in range(int(n))``, ``experts[int(best)]``) it goes the way that it went for them. So
    it can be captured, and its explanation of these inputs is the network's own. It is for these inputs alone: others
    may have gone another way.

    >>> import torch, deeptaylor as dt
    >>> class Deep(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 2, bias=False)
    ...         torch.nn.init.constant_(self.layer.weight, 0.5)
    ...     def forward(self, x):
    ...         while x.max() > 1:
    ...             x = torch.relu(self.layer(x)) / 2
    ...         return x
    >>> x = torch.tensor([[1.0, 3.0]])
    >>> taken = dt.as_taken(Deep(), x)
    >>> dt.explain(taken, x, target=0, domain=dt.NonNegative()).relevance.sum()
    tensor(1.)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"dt.as_taken wants a torch.nn.Module; got {type(model).__name__}.")
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not given or not all(isinstance(x, Tensor) for x in given):
        raise InputError("dt.as_taken wants the network's inputs as tensors: dt.as_taken(model, x).")
    read: list[Any] = []

    def noted(ask: Callable[[], Any]) -> Any:
        read.append(ask())
        return copy.copy(read[-1])

    with eval_mode(model), torch.no_grad(), _AtReads(noted):
        try:
            model(*given)
        except Exception as error:
            raise describe_failure(model, given, error) from error
    forward = model.forward

    @functools.wraps(forward)
    def straight(*args: Any, **named: Any) -> Any:
        known = deque(read)

        def told(ask: Callable[[], Any]) -> Any:
            try:
                # A tensor that is being exported answers tolist() itself, and asks for every number with item().
                while isinstance(known[0], list) and getattr(ask, "func", None) is not Tensor.tolist:
                    known.extendleft(reversed(known.popleft()))
                return copy.copy(known.popleft())
            except IndexError:
                raise CaptureError(
                    "This network reads more values than it did when dt.as_taken followed it: it depends on something "
                    "other than its input, such as a counter or the time."
                ) from None

        with _AtReads(told):
            return forward(*args, **named)

    taken = copy.copy(model)  # with the same modules and parameters, by the same names
    taken.forward = straight
    return taken


class _AtReads(TorchFunctionMode):
    """Wherever a value is read, another is asked, who may look or not."""

    def __init__(self, answer: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__()
        self.answer = answer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ask = functools.partial(func, *args, **(kwargs or {}))
        return self.answer(ask) if func in _READS else ask()
