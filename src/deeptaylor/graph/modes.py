"""Contexts in which the user's network runs or is exported; each restores everything that it changes.

eval_mode             every module in eval mode, without fused attention kernels
disable_autocast      torch.autocast off
isolate_export        torch.export without its logs; interrupts are raised as such
├── preserve_interrupts   re-raise errors of signal handlers, even if torch replaces them
└── _silence_export       no warnings, no logs, no printed graph
forward_hooks         the user's hooks that run in a forward pass
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from deeptaylor.errors import warn

__all__ = [
    "AUTOCAST_NOTE", "MODEL_LOCK", "disable_autocast", "eval_mode", "forward_hooks", "global_forward_hooks",
    "is_autocast_enabled", "is_compiling", "isolate_export", "preserve_interrupts", "silence_log",
]  # fmt: skip

# Held while training flags and a global switch of torch are changed: two captures at once would restore them wrongly,
# and other threads must not read the network's flags meanwhile.
MODEL_LOCK = threading.RLock()
AUTOCAST_NOTE = "torch.autocast was on around this call and is ignored: dtypes are those of the network and the input"
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")  # a constant, because torch's own list cannot be traced
_NOISY_LOGS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
_exporting_threads: list[int] = []  # identifiers of the threads that call torch.export, once for each call


# --- eval mode --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run a network in eval mode, and restore its flags and attributes afterwards.

    Training flags are set directly, so that no overridden `train()` runs. Warns if a module behaves differently there.
    """
    with MODEL_LOCK:
        training = [m for m in model.modules() if m.training]
        different = sorted({type(m).__name__ for m in training if _depends_on_training(m)})
        if different:
            warn(
                f"The network is in training mode ({', '.join(different)} behave differently there). It is explained "
                "in eval mode, and its own mode is restored. Call model.eval() to silence this."
            )
        random = torch.get_rng_state()
        saved = [(m, dict(m.__dict__), _copy_containers(m)) for m in model.modules()]
        fastpath = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in training:
                module.training = False
            # The fused inference kernels of attention layers are opaque: no rule applies inside them.
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            torch.set_rng_state(random)
            for module, attributes, containers in saved:
                # Export replaces lists and dicts by copies, and a forward pass may count its calls.
                module.__dict__.clear()
                module.__dict__.update(attributes)
                for container, items in containers:
                    _restore_container(container, items)
            for module in training:
                module.training = True


def _copy_containers(module: nn.Module) -> list[tuple[Any, Any]]:
    """Return the lists, dicts and sets among a module's attributes, each with a copy."""
    return [(v, v.copy()) for v in module.__dict__.values() if type(v) in (list, dict, set)]


def _restore_container(container: Any, items: Any) -> None:
    """Put a list, dict or set back to its former items."""
    if container != items or (isinstance(items, dict) and list(container) != list(items)):
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(items)


def _depends_on_training(module: nn.Module) -> bool:
    """Return True for a module that behaves differently in training mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats


# --- autocast ---------------------------------------------------------------------------------------------------------


def is_autocast_enabled(x: Any) -> bool:
    """Return True if autocast is on for the CPU, or for the device of one of these inputs."""
    return any(torch.is_autocast_enabled(device) for device in _device_types(x))


@contextlib.contextmanager
def disable_autocast(x: Any) -> Iterator[None]:
    """Turn autocast off for the CPU and for the devices of these inputs; it would compute in low precision."""
    with contextlib.ExitStack() as stack:
        for device in _device_types(x):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _device_types(x: Any) -> set[str]:
    """Return the device types of some inputs, and "cpu"."""
    inputs: Sequence[Any] = (x,) if isinstance(x, Tensor) else x if isinstance(x, (tuple, list)) else ()
    return {"cpu", *(t.device.type for t in inputs if isinstance(t, Tensor) and t.device.type in _AUTOCAST_DEVICES)}


# --- export -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def isolate_export() -> Iterator[None]:
    """Silence the logs of torch.export inside this context, and re-raise interrupts that torch would replace."""
    thread = threading.get_ident()
    _exporting_threads.append(thread)
    try:
        with preserve_interrupts(), _silence_export():
            yield
    finally:
        _exporting_threads.remove(thread)


def is_compiling() -> bool:
    """Return True if this thread compiles or exports; torch's own function answers for all threads at once."""
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_compiling():
        return torch.compiler.is_dynamo_compiling()
    return not _exporting_threads or threading.get_ident() in _exporting_threads


@contextlib.contextmanager
def preserve_interrupts() -> Iterator[None]:
    """Re-raise an error of a signal handler inside this context, even if torch replaces or ignores it.

    This holds for KeyboardInterrupt, SystemExit and time limits. Signal handlers run in the main thread; in other
    threads, an interrupt is recognised by the error that torch makes of it.
    """
    raised: list[BaseException] = []

    def record_errors(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
        def call(number: int, frame: Any) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return call

    is_main = threading.current_thread() is threading.main_thread()
    current = {number: signal.getsignal(number) for number in signal.valid_signals()} if is_main else {}
    handlers = {number: handler for number, handler in current.items() if callable(handler)}
    for number, handler in handlers.items():
        signal.signal(number, record_errors(handler))
    try:
        yield
    except Exception as error:
        if raised:
            raise raised[0] from error
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if raised:
        raise raised[0]


def _is_interrupt(error: BaseException) -> bool:
    """Return True if an error was raised from an interrupt; sometimes only torch's message names it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, KeyboardInterrupt) or "KeyboardInterrupt" in str(link):
            return True
        link = link.__cause__ or link.__context__
    return False


class _OtherThreadsStderr:
    """Standard error that drops everything written by the current thread."""

    def __init__(self) -> None:
        self._stream, self._thread = sys.stderr, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _silence_export() -> Iterator[None]:
    """Silence the logs of torch.export, and what it prints in this thread."""
    with contextlib.ExitStack() as stack:
        for name in _NOISY_LOGS:
            stack.enter_context(silence_log(name, logging.CRITICAL + 1))
        stack.enter_context(contextlib.redirect_stderr(_OtherThreadsStderr()))
        yield


@contextlib.contextmanager
def silence_log(name: str, level: int) -> Iterator[None]:
    """Ignore warnings, and messages of the logger `name` below this level."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


# --- hooks ------------------------------------------------------------------------------------------------------------


def forward_hooks(module: nn.Module) -> tuple[dict[Any, Any], ...]:
    """Return a module's dicts of hooks that run in a forward pass."""
    return module._forward_hooks, module._forward_pre_hooks


def global_forward_hooks() -> tuple[dict[Any, Any], ...]:
    """Return torch's dicts of hooks that run in the forward pass of every module."""
    return tuple(getattr(nn_module, name) for name in ("_global_forward_hooks", "_global_forward_pre_hooks"))
