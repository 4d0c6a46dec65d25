"""The networks on offer, and how far each has been loaded.

Networks by name, whose weights come out of packages and are checked by their hash; the network given on the command
line; and the ONNX file that was dropped on the page last. Such a file is a list of known operations with their weights;
nothing in it is run as a program. It lies in a folder of its own while it is read, and is deleted then. Nothing that
could run code can be loaded through the page.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deeptaylor import assets
from deeptaylor.app.cli.values import parse_numbers, parse_size
from deeptaylor.app.server.security import hide_folders
from deeptaylor.errors import DeepTaylorError, LoadError
from deeptaylor.formatting import escape_name
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.catalog import CATALOG
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.onnx.file import ExternalDataError

__all__ = [
    "OWN",
    "NotReadyError",
    "OfferedNetwork",
    "OfferedNetworks",
    "UnknownModelError",
    "UploadOptions",
    "UploadedNetwork",
    "is_own",
]

_log = logging.getLogger(__name__)

State = Literal["waiting", "loading", "ready", "failed"]
THREAD = "loading"
OWN = "yours"  # the name of the network given on the command line
FIRST = "efficientnet-lite0"  # to begin with; its weights come with the extra `demo`
DROPPED = "dropped-"  # how the names of networks begin that were dropped on the page

_DIGITS = (
    "Reads two handwritten digits and returns one number: about 100 if one of them is 0, 1, 2 or 3, else about 0. "
)
_ABOUT = {
    "squeezenet1_1": (
        "SqueezeNet 1.1",
        "Classifies photographs into 1000 classes. Small biases: most relevance reaches the pixels.",
    ),
    "mobilenet_v2": (
        "MobileNet v2",
        "Classifies photographs into 1000 classes. Large biases: compare the bias settings.",
    ),
    "efficientnet-lite0": (
        "EfficientNet-Lite0",
        "Classifies photographs into 1000 classes. Biases absorb nearly all of the score.",
    ),
    "efficientnet-lite1": ("EfficientNet-Lite1", "As Lite0, deeper."),
    "efficientnet-lite2": ("EfficientNet-Lite2", "As Lite1, wider."),
    "resnet50-keras": (
        "ResNet-50",
        "Classifies photographs into 1000 classes, as in Keras. 95 MB to download, with npm.",
    ),
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
class OfferedNetwork:
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


class OfferedNetworks:
    """All of them; each is loaded once, when it is first chosen, one after the other in a thread of its own."""

    def __init__(self, own: Pretrained | None = None, title: str = "Your network") -> None:
        self._all: OrderedDict[str, OfferedNetwork] = OrderedDict()
        if own is not None:
            about = "The network that was given to the command."
            self._all[OWN] = OfferedNetwork(OWN, title, about, "photograph", "ready", loaded=own)
        for name, named in CATALOG.items():
            digits = name in paper_networks.PAPER_NETWORKS
            if digits or named.asset is not None:
                words = _ABOUT.get(name, (name, ""))
                self._all[name] = OfferedNetwork(name, *words, "digits" if digits else "photograph")
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD)
        self._begun: list[Future[None]] = []
        self._dropped = 0

    def all(self) -> list[OfferedNetwork]:
        """Every network, in the order of the page."""
        return list(self._all.values())

    def first(self) -> str:
        """The one to begin with: the user's own, else one whose weights are here, so that none is fetched."""
        if OWN in self._all:
            return OWN
        photographs = [model.name for model in self._all.values() if model.kind == "photograph"]
        ordered = [FIRST, *(name for name in photographs if name != FIRST)]
        return next((name for name in ordered if assets.is_here(CATALOG[name].asset or name)), FIRST)

    def get(self, name: str) -> OfferedNetwork:
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

    def begin(self, name: str) -> OfferedNetwork:
        """Begin to load a network, unless that was done before; one by name that failed is tried again."""
        model = self.get(name)
        with self._lock:
            again = model.state == "failed" and model.get is None  # of a file that was dropped nothing is left
            if model.state == "waiting" or again:
                model.state, model.message = "loading", "waiting for another network"
                model.began, model.ended = time.monotonic(), 0.0
                self._begun = [self._thread.submit(self._load, model), *self._begun][: len(self._all)]
        return model

    def drop(self, title: str, get: Callable[[], Pretrained]) -> tuple[OfferedNetwork, list[str]]:
        """Begin to load a network that was dropped on the page; and the names of those that it takes the place of."""
        with self._lock:
            gone = [name for name in self._all if name.startswith(DROPPED)]
            for name in gone:
                del self._all[name]
            self._dropped += 1
            name = f"{DROPPED}{self._dropped}"
            about = "The network that was dropped on the page."
            self._all[name] = OfferedNetwork(name, title, about, "photograph", get=get)
            self._all.move_to_end(name, last=False)
        return self.begin(name), gone

    def _load(self, model: OfferedNetwork) -> None:
        model.message = "reading the file"
        if model.get is None:
            model.message = "getting the weights (the download on first use can take a minute)"
        try:
            loaded = load_pretrained(model.name) if model.get is None else model.get()
        except (DeepTaylorError, OSError, ImportError) as error:
            _log.warning("%s could not be loaded: %s", model.name, error)
            model.ended, model.message = time.monotonic(), hide_folders(str(error))
            model.state = "failed"
        except Exception:  # noqa: BLE001  # in a thread nobody would hear of it
            _log.exception("%s could not be loaded", model.name)
            model.ended, model.state = time.monotonic(), "failed"
            model.message = "an unexpected error occurred; the terminal shows the details."
        else:
            model.loaded, model.ended, model.message, model.state = loaded, time.monotonic(), "", "ready"

    def close(self) -> None:
        """Stop: what has not begun is dropped, and what is being fetched leaves nothing behind."""
        assets.abandon()
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait(self._begun, timeout=1.0)


# --- a file that is dropped on the page -------------------------------------------------------------------------------

Words = Annotated[str, Field(max_length=100)]


class UploadOptions(BaseModel):
    """What the user says about the file: all of it, for a wrong guess would not be noticed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(max_length=200)] = Field(description="the name of the file; never opened")
    size: Words = Field(description="what the network sees, cut out of the middle: a side, or HEIGHTxWIDTH")
    resize: Words = Field(description="before that: the short side, or HEIGHTxWIDTH")
    channels: Literal["RGB", "BGR", "L"] = Field(description="their order; L is gray")
    white: Literal["1", "255"] = Field(description="the value of white before the mean is subtracted")
    mean: Words = Field(description="subtracted: a number, or one per channel, separated by commas")
    std: Words = Field(description="divided by: likewise")
    interpolation: Literal["bilinear", "bicubic", "nearest", "box", "hamming", "lanczos"] = Field(
        description="of the resizing"
    )
    names: Literal["none", "imagenet", "typed"] = Field(description="what classes are called")
    typed: Annotated[str, Field(max_length=4000)] = Field(default="", description="their names, separated by commas")

    @property
    def preparation(self) -> Preparation:
        """As the library takes it; what is wrong with a number is said."""
        return Preparation(
            size=parse_size("size", self.size),
            resize=parse_size("resize", self.resize),
            channels=self.channels,
            white=float(self.white),
            mean=parse_numbers("mean", self.mean),
            std=parse_numbers("std", self.std),
            interpolation=self.interpolation,
        )

    @property
    def class_names(self) -> str | list[str] | None:
        """As the library takes them."""
        if self.names == "typed":
            return [name.strip() for name in self.typed.split(",")]
        return None if self.names == "none" else self.names


class UploadedNetwork:
    """The file while it arrives and is read; in a folder of its own."""

    def __init__(self, said: UploadOptions) -> None:
        if not said.file.lower().endswith(".onnx"):
            raise LoadError(f"{escape_name(said.file)} is not an ONNX file; the page accepts only ONNX files.")
        self.said, self.preparation = said, said.preparation
        self._folder = tempfile.TemporaryDirectory(prefix="deeptaylor-")
        name = re.sub(r"[^\w.-]+", "_", Path(said.file).stem)[:80]  # errors call the network by it
        self._path = Path(self._folder.name, f"{name}.onnx")
        self._file = self._path.open("wb")

    @property
    def title(self) -> str:
        """What the network is called on the page."""
        return escape_name(self.said.file)

    def write(self, piece: bytes) -> None:
        """A further piece of it."""
        self._file.write(piece)

    def load(self) -> Pretrained:
        """The network, once all has arrived; the file is gone then."""
        self._file.close()
        try:
            return load_pretrained(self._path, preparation=self.preparation, class_names=self.said.class_names)
        except ExternalDataError as error:
            raise LoadError(
                f"{self.title} has its weights in a second file, but only one file can be dropped here. Give the "
                "network to the command, where both lie in one folder: deeptaylor serve --model FILE."
            ) from error
        finally:
            self.forget()

    def forget(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._folder.cleanup()
