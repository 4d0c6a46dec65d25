"""Networks with data-dependent control flow: the path for some inputs, as a network without decisions."""

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
from deeptaylor.graph.failure import describe_failure
from deeptaylor.graph.modes import eval_mode

__all__ = ["as_taken"]

# Functions by which Python reads a tensor's values: an `if`, a `while` or an index can depend on them.
_READ_FUNCTIONS = frozenset(
    {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__}
    | {Tensor.item, Tensor.tolist, Tensor.equal, Tensor.allclose, Tensor.is_nonzero}
    | {torch.equal, torch.allclose, torch.is_nonzero}
)


def as_taken(model: nn.Module, inputs: Tensor | Sequence[Tensor]) -> nn.Module:
    """Return the network with every data-dependent decision made as for these inputs.

    It has the network's own modules and the same output for these inputs. Wherever the network reads a value
    (``if x.sum() > 0``, ``for _ in range(int(n))``, ``experts[int(best)]``), it repeats the decision for these inputs.
    So it can be captured, and its explanation of these inputs is that of the network. Use it for these inputs only:
    the network may decide differently for others.

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
        raise InputError(f"dt.as_taken needs a torch.nn.Module; got {type(model).__name__}.")
    tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not tensors or not all(isinstance(x, Tensor) for x in tensors):
        raise InputError("dt.as_taken needs the network's inputs as tensors: dt.as_taken(model, x).")
    read: list[Any] = []

    def record_read(read_value: Callable[[], Any]) -> Any:
        read.append(read_value())
        return copy.copy(read[-1])

    with eval_mode(model), torch.no_grad(), _ReadInterceptor(record_read):
        try:
            model(*tensors)
        except Exception as error:
            raise describe_failure(model, tensors, error) from error
    forward = model.forward

    @functools.wraps(forward)
    def repeat_path(*args: Any, **named: Any) -> Any:
        remaining = deque(read)

        def replay_read(read_value: Callable[[], Any]) -> Any:
            try:
                # During an export, a tensor implements tolist() by calling item() for every number.
                while isinstance(remaining[0], list) and getattr(read_value, "func", None) is not Tensor.tolist:
                    remaining.extendleft(reversed(remaining.popleft()))
                return copy.copy(remaining.popleft())
            except IndexError:
                raise CaptureError(
                    "This network reads more values than it did when dt.as_taken followed it: it depends on something "
                    "other than its input, such as a counter or the time."
                ) from None

        with _ReadInterceptor(replay_read):
            return forward(*args, **named)

    repeated = copy.copy(model)  # with the same modules and parameters, by the same names
    repeated.forward = repeat_path
    return repeated


class _ReadInterceptor(TorchFunctionMode):
    """Calls a function wherever Python reads a tensor's value; the function may read it or return another value."""

    def __init__(self, handle_read: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__()
        self.handle_read = handle_read

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read_value = functools.partial(func, *args, **(kwargs or {}))
        return self.handle_read(read_value) if func in _READ_FUNCTIONS else read_value()
