"""What can go wrong, as one tree; every message says what, where and what to do next.

DeepTaylorError
├── CaptureError        the network cannot be exported to a graph
├── PlanError           the graph cannot be explained as asked
│   └── UnsupportedOpError   operations without a rule, all of them at once
├── InputError          the input cannot be explained (NaN, shape, type, outside its domain)
├── TargetError         the target does not exist or does not fit the output
├── StaleModelError     the network changed since it was captured
└── BoundaryError       relevance was asked for at a place inside a detection block
"""


class DeepTaylorError(Exception):
    """Base of every error this package raises on purpose."""


class CaptureError(DeepTaylorError):
    """The network cannot be exported to a graph."""


class PlanError(DeepTaylorError, ValueError):
    """The graph cannot be explained as asked."""


class UnsupportedOpError(PlanError):
    """Operations on the path of the relevance that have no rule."""


class InputError(DeepTaylorError, ValueError):
    """The input cannot be explained."""


class TargetError(DeepTaylorError, ValueError):
    """The target does not exist or does not fit the network's output."""


class StaleModelError(DeepTaylorError, RuntimeError):
    """The network changed since it was captured."""


class BoundaryError(DeepTaylorError, KeyError):
    """Relevance was asked for inside a detection block, or at a name that does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class DeepTaylorWarning(UserWarning):
    """Something the user should know, with a result nevertheless."""
