"""What a verb says, and where: words and tables on standard output, or one JSON object; progress on standard error."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape as without_markup
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from deeptaylor.app.record import json_bytes
from deeptaylor.assets import report_downloads
from deeptaylor.errors import DeepTaylorWarning
from deeptaylor.formatting import escape_text

__all__ = ["Printer", "collect_notes"]


def escape(text: str) -> str:
    """Text that neither rich nor a terminal takes for anything but text."""
    return without_markup(escape_text(text))


PATIENCE = 2.0  # seconds before a progress bar appears
_PANEL = "Output"


class ProgressNote(Protocol):
    """Says what is being done, and how far it is where that is known."""

    def __call__(self, text: str, done: int = 0, of: int = 0) -> None: ...


@dataclass(frozen=True)
class Printer:
    """The options --json and --quiet, and what follows from them."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=_PANEL)
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=_PANEL)] = (
        False
    )

    @property
    def _out(self) -> Console:
        return _wrap_lines(Console(quiet=self.quiet or self.as_json, highlight=False))

    def say(self, text: str = "", style: str | None = None) -> None:
        """Plain words, brackets and all."""
        with _hide_bar():
            self._out.print(escape(text), style=style)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """A table; ``right``: the columns with numbers."""
        console = Console(quiet=self.quiet or self.as_json, highlight=False)
        if not console.is_terminal:  # a file or a pipe is as wide as it needs to be
            console.width = 1000
        table = Table(box=None, pad_edge=False, header_style="dim")
        for k, name in enumerate(head):
            table.add_column(escape(name), justify="right" if k in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*[escape(cell) for cell in row])
        with _hide_bar():
            console.print(table)

    def result(self, found: dict[str, Any]) -> None:
        """The same for programs, where --json asks for it."""
        if self.as_json:
            typer.echo(json_bytes(found).decode(), nl=False)

    def line(self, found: dict[str, Any]) -> None:
        """One line of several for programs, where --json asks for it."""
        if self.as_json:
            typer.echo(json.dumps(json.loads(json_bytes(found))))

    def error(self, text: str) -> None:
        """To standard error, whatever --quiet says."""
        with _hide_bar():
            _wrap_lines(Console(stderr=True, highlight=False)).print(f"[bold red]error:[/] {escape(text)}")

    @contextmanager
    def progress(self) -> Iterator[ProgressNote]:
        """A bar on a terminal, once it has taken two seconds; gone when it is over, and nowhere else."""
        console = Console(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()
        bar = Progress(*columns, console=console, transient=True, disable=self.quiet or not console.is_terminal)
        task = bar.add_task("", total=None)

        def step(text: str, done: int = 0, of: int = 0) -> None:
            bar.update(task, description=escape(text), completed=done, total=of or None)

        def fetching(text: str) -> None:
            if not self.quiet:  # a line that stays: this machine asked another for something
                with _hide_bar():
                    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))

        clock = threading.Timer(PATIENCE, bar.start)
        _bars.append(bar)
        clock.daemon = True
        clock.start()
        try:
            with report_downloads(fetching):
                yield step
        finally:
            clock.cancel()
            clock.join()  # it may be about to begin
            bar.stop()
            _bars.remove(bar)


def _wrap_lines(console: Console) -> Console:
    """On a terminal lines end between words; in a file or a pipe they are as long as they are."""
    console.soft_wrap = not console.is_terminal
    return console


_bars: list[Progress] = []


@contextmanager
def _hide_bar() -> Iterator[None]:
    """Take a bar that is shown off the terminal while something else is written there."""
    shown = [bar for bar in _bars if bar.live.is_started]
    for bar in shown:
        bar.stop()
    try:
        yield
    finally:
        for bar in shown:
            bar.start()


@contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collects what the library warns of, as words; what others warn of, users of a command cannot mend."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DeepTaylorWarning)
        try:
            yield notes
        finally:
            notes += dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, DeepTaylorWarning))
