"""Start the page: `deeptaylor serve`, or `python -m deeptaylor.server`.

The address that is printed holds a token, new at every start. It belongs to whoever sees it; do not pass it on.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from deeptaylor.app.server.jobs import THREAD as EXPLAINING
from deeptaylor.app.server.models import THREAD as LOADING
from deeptaylor.datasets.open_dataset import Run, open_dataset
from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import escape_name, escape_text
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.support.optional import optional_package
from deeptaylor.text.model import TextModel

__all__ = ["main", "open_page", "serve"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GRACE = 2  # seconds that requests have to end when the server does


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    model: str | Pretrained | TextModel | None = None,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
    title: str = "Your network",
    run: str | os.PathLike[str] | Run | None = None,
) -> None:
    """Serve the page until it is interrupted.

    port       0: any that is free; the address is printed
    model      the network to begin with: a name, or one that `dt.load` gave; left out: EfficientNet-Lite0
               where its weights are here, else another whose are
    title      what that one is called on the page
    run        the store of a run to look at, or what `dt.open_dataset` gave
    ready      called with the page's address once it can be opened
    """
    if host not in LOOPBACK:
        raise DeepTaylorError(
            f"the page is for this machine alone and listens on 127.0.0.1, not on {host}. To reach it from another "
            "machine, forward the port: ssh -L 8000:127.0.0.1:8000 user@machine, with --port 8000 there."
        )
    why = "the page needs a web server"
    uvicorn = optional_package("uvicorn", why, "web")
    optional_package("fastapi", why, "web")
    from deeptaylor.app.server.connections import ACCEPTED_AT_ONCE, Connections
    from deeptaylor.app.server.models import OfferedNetworks
    from deeptaylor.app.server.routes import make_app
    from deeptaylor.app.server.texts import TextPage

    gallery = None
    if run is not None:
        from deeptaylor.app.server.gallery import Gallery

        gallery = Gallery(run if isinstance(run, Run) else open_dataset(run))
    own = model if isinstance(model, Pretrained) else None
    texts = TextPage(model, title) if isinstance(model, TextModel) else None
    chosen = model if isinstance(model, str) else None
    bound = _bind(host, port)
    port = bound.getsockname()[1]
    token = secrets.token_urlsafe(24)
    names = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    names |= {name.removesuffix(":80") for name in names} if port == 80 else set()
    try:
        offered = OfferedNetworks(own, title)
        app = make_app(frozenset(names), token, models=offered, chosen=chosen, texts=texts, gallery=gallery)
        bracketed = f"[{host}]" if ":" in host else host
        address = f"http://{bracketed}:{port}/#token={token}"
        sys.stdout.write(f"The page is at {address}\nStop it with Ctrl-C.\n")
        sys.stdout.flush()
        if ready is not None:
            ready(address)
        config = uvicorn.Config(
            app,
            http=Connections(),
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=_GRACE,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        with open_page(address) if open_browser else nullcontext(True) as found:
            if not found:
                sys.stdout.write("No browser could be started; open the address above.\n")
                sys.stdout.flush()
            uvicorn.Server(config).run(sockets=[bound])
    finally:
        bound.close()


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket: bound before anything is printed, so that the printed port is ours."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(256)
    except (OSError, OverflowError) as error:
        made.close()
        why = getattr(error, "strerror", None) or error
        raise DeepTaylorError(f"Port {port} of {host} is not free: {why}; --port 0 takes a free one.") from error
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; 0, or 2 if that cannot be done."""
    example = (
        "examples: deeptaylor serve --model squeezenet1_1 --open; deeptaylor serve --model my.onnx --size 224 …; "
        "deeptaylor serve --model hf:FOLDER, for a network that reads texts; deeptaylor serve --run STORE, for a run"
    )
    parser = argparse.ArgumentParser(prog="deeptaylor serve", description=__doc__, epilog=example)
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0, the default, takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1 (the default), localhost or ::1")
    parser.add_argument("--model", metavar="NAME|FILE", help="the network to begin with: by name, or a file of yours")
    parser.add_argument("--run", metavar="STORE", help="show a run: the store that `deeptaylor run` wrote")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    _add_file_options(parser)
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_EscapingFormatter("%(levelname)s: %(message)s"))
    before = set(threading.enumerate())
    try:
        model = _model(asked)
        title = "" if model is None or isinstance(model, str) else Path(asked.model.removeprefix("hf:")).name
        serve(asked.host, asked.port, model, asked.open, title=escape_name(title), run=asked.run)
    except KeyboardInterrupt:
        return _leave(before)
    except DeepTaylorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return _leave(before)


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    """What a file does not say, by the options of `deeptaylor explain`; they come with the extra `cli`."""
    if importlib.util.find_spec("typer") is None:
        return
    from deeptaylor.app.cli.options import ModelOptions

    group = parser.add_argument_group("what a network file does not contain, as for `deeptaylor explain`")
    hints = get_type_hints(ModelOptions, include_extras=True)
    for option in fields(ModelOptions):
        said = hints[option.name].__metadata__[0]
        kind: dict[str, Any] = {"metavar": said.metavar}
        if option.default is False:
            kind = {"action": "store_true"}
        elif hints[option.name].__origin__ == float | None:
            kind["type"] = float
        group.add_argument(f"--{option.name.replace('_', '-')}", default=option.default, help=said.help, **kind)


def _model(asked: argparse.Namespace) -> str | Pretrained | TextModel | None:
    """The name of a network of the page; any other network is loaded here."""
    from deeptaylor.models.networks.catalog import CATALOG

    given = {name: value for name, value in vars(asked).items() if name not in ("host", "port", "model", "run", "open")}
    said = {name: value for name, value in given.items() if value not in (None, False)}
    if asked.model is None or (asked.model in CATALOG and not said):
        return asked.model if asked.model is None else str(asked.model)
    if asked.model.startswith("hf:") and (text := _load_text_model(asked.model, said.get("class_names"))) is not None:
        return text
    optional_package("typer", f"{asked.model} is read as `deeptaylor explain` does it", "cli")
    from deeptaylor.app.cli.options import ModelOptions
    from deeptaylor.app.cli.values import format_error

    try:
        loaded = ModelOptions(**said).load(asked.model)
    except DeepTaylorError as error:
        raise DeepTaylorError(format_error(error)) from error
    if loaded.preparation is None:
        raise DeepTaylorError(
            "the page explains photographs: give their preprocessing (--size, --resize, …) instead of --domain."
        )
    return loaded


def _load_text_model(source: str, class_names: str | None) -> TextModel | None:
    """A network of transformers with its tokenizer; None for one that looks at pictures."""
    from deeptaylor.models.loading.hubs import load_text_model

    names: Any = ...
    if class_names is not None:
        from deeptaylor.app.cli.values import load_class_names

        names = load_class_names(class_names)
    return load_text_model(source, None, None, names)


class _EscapingFormatter(logging.Formatter):
    """A line of the log may hold what a stranger sent."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_text(super().format(record))


def _leave(before: set[threading.Thread]) -> int:
    """0; but where an explanation is still being computed, Python would wait for it, and nobody else does."""
    mine = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith((EXPLAINING, LOADING))]
    for thread in mine:
        thread.join(0.3)
    if any(thread.is_alive() for thread in mine):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


# --- the page in a browser --------------------------------------------------------------------------------------------

SECONDS = 60.0  # a browser that has to start first takes its time
_SNAPS = Path("/snap")


@contextlib.contextmanager
def open_page(address: str) -> Iterator[bool]:
    """Open an address that holds a secret; whether a browser was there to start. Nothing is left behind."""
    folder = Path(tempfile.mkdtemp(prefix="deeptaylor-", dir=_browser_folder()))  # mode 700

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    clock = threading.Timer(SECONDS, remove)
    clock.daemon = True
    try:
        file = folder / "page.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opening:
            opening.write(_redirect(address))
        clock.start()
        yield webbrowser.open(file.as_uri())
    finally:
        clock.cancel()
        remove()


def _browser_folder() -> Path | None:
    """Where a browser can read; a snap has a /tmp of its own, and sees only what is not hidden of its user's folder."""
    home = Path.home()
    return home if sys.platform == "linux" and _SNAPS.is_dir() and os.access(home, os.W_OK) else None


def _redirect(address: str) -> str:
    to = html.escape(address)
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>deeptaylor</title>'
        f'<meta http-equiv="refresh" content="0;url={to}"><a href="{to}">The page</a>\n'
    )
