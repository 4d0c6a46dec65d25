"""Heatmaps that look alike, found once and in the background: the page is told how far it is."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.gallery_schema import ClusterAnswer, ClustersAnswer
from deeptaylor.app.server.jobs import THREAD
from deeptaylor.errors import DeepTaylorError
from deeptaylor.runs.clusters import Clusters, cluster
from deeptaylor.runs.view import View

__all__ = ["Study"]

_log = logging.getLogger(__name__)
_POINTS = 3000  # that are drawn at most
_FEWEST = 8  # heatmaps


@dataclass
class Study:
    """The clusters of the items that were explained when they were first asked for."""

    state: Literal["waiting", "working", "ready", "failed"] = "waiting"
    message: str = ""
    found: Clusters | None = None
    rows: Any = None  # the items that were clustered, by their numbers in the run
    _began: float = 0.0
    _ended: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, view: View) -> None:
        """Begin to find them, once; where it failed, again."""
        with self._lock:
            if self.state in ("working", "ready"):
                return
            self.state, self._began, self.message = "working", time.monotonic(), "The heatmaps are being read."
        threading.Thread(target=self._work, args=(view,), name=f"{THREAD}-clusters", daemon=True).start()

    def _work(self, view: View) -> None:
        try:
            good = view.where(status="explained")
            if len(good) < _FEWEST:
                raise DeepTaylorError(f"Groups are looked for among {_FEWEST} heatmaps or more; there are {len(good)}.")
            self.rows = good.rows
            self.found = cluster(_Told(good.heatmaps, self))
            self.state, self.message = "ready", ""
        except DeepTaylorError as error:
            self.state, self.message = "failed", without_folders(str(error))
        except Exception as error:  # noqa: BLE001  # a thread has nobody else to tell
            _log.error("the heatmaps could not be grouped", exc_info=error)
            self.state = "failed"
            self.message = "The heatmaps could not be grouped; the window of the command says why."
        finally:
            self._ended = time.monotonic()

    def items(self, number: int) -> Any:
        """The items of a cluster, by their numbers in the run."""
        if self.found is None:
            raise DeepTaylorError("The heatmaps have not been grouped yet.")
        return self.rows[self.found.of(number)]

    def answer(self, view: View) -> ClustersAnswer:
        """How far it is, and what was found."""
        seconds = (self._ended if self.state in ("ready", "failed") else time.monotonic()) - self._began
        told = ClustersAnswer(
            state=self.state, message=self.message, seconds=round(seconds if self._began else 0.0, 1),
            clusters=[], points=[], note="",
        )  # fmt: skip
        if self.state != "ready" or self.found is None:
            return told
        clusters = [self._cluster(view, number) for number in range(self.found.count)]
        points, left_out = self._points()
        return told.model_copy(update={"clusters": clusters, "points": points, "note": self._note(left_out)})

    def _cluster(self, view: View, number: int) -> ClusterAnswer:
        assert self.found is not None
        rows = self.items(number)
        classes, counts = np.unique(view.table["target"][rows], return_counts=True)
        most = int(counts.argmax())
        what = view.class_name(int(classes[most]))
        said = f"The most frequent class is “{what}”, {counts[most]} of them."
        if classes[most] < 0:
            said = ""  # the network gives one number, and no class
        elif counts[most] == 1 < len(rows):
            said = "No two of them are of the same class."
        elif counts[most] == len(rows):
            said = f"All of them are of “{what}”."
        return ClusterAnswer(
            number=number, size=len(rows), alike=float(self.found.alike[number]),
            sentence=said,
        )  # fmt: skip

    def _points(self) -> tuple[list[tuple[int, int, float, float]], int]:
        """Some of all maps, evenly taken, each with its place."""
        assert self.found is not None
        inside = np.flatnonzero(self.found.labels >= 0)
        drawn = inside[np.unique(np.linspace(0, len(inside) - 1, min(len(inside), _POINTS)).astype(np.int64))]
        places = self.found.embedding[drawn].astype(np.float64)
        low, high = places.min(0), places.max(0)
        places = (places - low) / np.where(high > low, high - low, 1.0)
        labels = self.found.labels[drawn]
        points = [
            (int(item), int(label), round(float(x), 4), round(float(y), 4))
            for item, label, (x, y) in zip(self.rows[drawn], labels, places, strict=True)
        ]
        return points, len(inside) - len(drawn)

    def _note(self, left_out: int) -> str:
        assert self.found is not None
        empty = int((self.found.labels < 0).sum())
        said = [f"{left_out:,} further items are in the clusters and not drawn."] * bool(left_out)
        return " ".join([*said, *[f"{empty:,} heatmaps are empty and in no cluster."] * bool(empty)])


class _Told:
    """Heatmaps that say how many of them were read."""

    def __init__(self, maps: Any, study: Study) -> None:
        self._maps, self._study, self._read = maps, study, 0
        self.shape = maps.shape

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, which: Any) -> Any:
        found = self._maps[which]
        self._read = max(self._read, which.stop if isinstance(which, slice) and which.stop else 0)
        read = min(self._read, len(self))
        after = "" if read < len(self) else "; those that look alike are being grouped"
        self._study.message = f"{read:,} of {len(self):,} heatmaps were read{after}."
        return found
