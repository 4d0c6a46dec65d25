"""A network that is dropped on the page: an ONNX file, and how photographs are prepared for it, which it does not say.

The file is a list of known operations with their weights; nothing in it is run as a program. It lies in a folder of its
own while it is read, where no other file can be asked for, and is deleted then.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deeptaylor.app.cli import words
from deeptaylor.errors import LoadError
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.models.onnx.tensors import ExternalDataError
from deeptaylor.shown import shown

__all__ = ["Dropped", "File"]

Words = Annotated[str, Field(max_length=100)]


class Dropped(BaseModel):
    """What the user says about the file: all of it, for a wrong guess would not be noticed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(max_length=200)] = Field(description="what the file is called; never opened")
    size: Words = Field(description="what the network sees, cut out of the middle: a side, or HEIGHTxWIDTH")
    resize: Words = Field(description="before that: the short side, or HEIGHTxWIDTH")
    channels: Literal["RGB", "BGR", "L"] = Field(description="their order; L is gray")
    white: Literal["1", "255"] = Field(description="the value of white before the mean is subtracted")
    mean: Words = Field(description="subtracted: a number, or one a channel with commas between")
    std: Words = Field(description="divided by: likewise")
    interpolation: Literal["bilinear", "bicubic", "nearest", "box", "hamming", "lanczos"] = Field(
        description="of the resizing"
    )
    names: Literal["none", "imagenet", "typed"] = Field(description="what classes are called")
    typed: Annotated[str, Field(max_length=4000)] = Field(default="", description="their names, with commas between")

    @property
    def preparation(self) -> Preparation:
        """As the library takes it; what is wrong with a number is said."""
        return Preparation(
            size=words.sides("size", self.size),
            resize=words.sides("resize", self.resize),
            channels=self.channels,
            white=float(self.white),
            mean=words.numbers("mean", self.mean),
            std=words.numbers("std", self.std),
            interpolation=self.interpolation,
        )

    @property
    def class_names(self) -> str | list[str] | None:
        """As the library takes them."""
        if self.names == "typed":
            return [name.strip() for name in self.typed.split(",")]
        return None if self.names == "none" else self.names


class File:
    """The file while it arrives and is read; in a folder of its own."""

    def __init__(self, said: Dropped) -> None:
        if not said.file.lower().endswith(".onnx"):
            raise LoadError(f"{shown(said.file)} is no ONNX file; only those can be dropped on the page.")
        self.said, self.preparation = said, said.preparation
        self._folder = tempfile.TemporaryDirectory(prefix="deeptaylor-")
        self._path = Path(self._folder.name, "network.onnx")
        self._file = self._path.open("wb")

    @property
    def title(self) -> str:
        """What the network is called on the page."""
        return shown(self.said.file)

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
                f"{self.title} has its weights in a second file, and only one file can be dropped here. Give the "
                "network to the command, where both lie in one folder: deeptaylor serve --model FILE."
            ) from error
        except LoadError as error:
            said = str(error).replace(str(self._path), self.title).replace(self._path.name, self.title)
            raise LoadError(said) from error
        finally:
            self.forget()

    def forget(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._folder.cleanup()
