"""The web server of the page: addresses, what is refused, how long it runs; what is shown is elsewhere."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intarsia.errors import InputError, IntarsiaError, NothingMatched, StorageError
from intarsia.pipeline.reports import page as report_page
from intarsia.pipeline.reports import run_index_page
from intarsia.pipeline.reports.live import read_live_runs
from intarsia.pipeline.reports.run_index import INDEX, is_report_name, read_runs
from intarsia.pipeline.reports.run_index_page import RunList
from intarsia.ui.frame import Link, render_error, render_frame
from intarsia.ui.lake import Lake, ReportDirectory, TableRef, open_lake, stamp_path
from intarsia.ui.lake_pages import RunsOf, render_home, render_runs
from intarsia.ui.table_pages import render_card_of, render_failed_card, render_tab

__all__ = ["bind_loopback", "make_app", "make_server", "serve"]

PORT = 8585
LOOPBACK = "127.0.0.1"
THREADS = 4
"""Pages that are made at the same time."""
_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="7" height="7" rx="1.5" fill="#5f7690"/>'
    '<rect x="9" width="7" height="7" rx="1.5" fill="#eda21b"/><rect y="9" width="7" height="7" rx="1.5"'
    ' fill="#35a06a"/><rect x="9" y="9" width="7" height="7" rx="1.5" fill="#c3d0de"/></svg>'
)


class LocalOnly:
    """Refuses what does not come from a page of this server: other hosts, other methods, other sites.

    A name that an attacker points at this machine (DNS rebinding) is another host.
    """

    def __init__(self, app: ASGIApp, *, port: int) -> None:
        self.app = app
        names = (LOOPBACK, "localhost")
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._find_refusal(scope)
        app = self.app if refusal is None else refusal
        await app(scope, receive, _add_headers(send))

    def _find_refusal(self, scope: Scope) -> Response | None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value.lower() for name, value in headers if name == "host"]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return PlainTextResponse("This page is for this machine alone.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only.\n", 405, {"allow": "GET, HEAD"})
        sent = dict(headers)
        if sent.get("sec-fetch-site") == "cross-site" and sent.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Other sites have no access.\n", 403)
        return None


def _add_headers(send: Send) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if name.decode() not in _HEADERS]
            extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*kept, *extra]}
        await send(message)

    return send_more


def make_app(lake: Lake, *, port: int) -> ASGIApp:
    """The application: every address, behind the checks of a local server.

    Args:
        lake: what to show.
        port: the port that it is reached at, which requests have to name.
    """
    pages = Pages(lake)
    routes = [
        Route("/", pages.show_home),
        Route("/card", pages.show_card),
        Route("/table", pages.show_table),
        Route("/table/{tab}", pages.show_table),
        Route("/runs/{key}/{name}", pages.show_runs),
        Route("/pulse", pages.show_pulse),
        Route(
            "/style.css",
            _serve_text(f"{report_page.STYLE}{run_index_page.STYLE}{_read('style.css')}", "text/css"),
        ),
        Route("/page.js", _serve_text(_read("page.js"), "text/javascript")),
        Route("/icon.svg", _serve_text(_ICON, "image/svg+xml")),
    ]
    handlers: Mapping[Any, Any] = {404: pages.show_nothing}
    return LocalOnly(
        Starlette(routes=routes, exception_handlers=handlers, lifespan=_limit_threads), port=port
    )


@asynccontextmanager
async def _limit_threads(_app: Starlette) -> AsyncIterator[None]:
    """Make few pages at a time, so that a large lake does not take all of the machine."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


def _read(name: str) -> str:
    return files("intarsia.ui").joinpath(name).read_text(encoding="utf-8")


def _serve_text(text: str, kind: str) -> Callable[[Request], Response]:
    def answer(_request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer


class Pages:
    """An answer for each address. Functions are not async: they run in threads."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def show_home(self, request: Request) -> Response:
        try:
            contents = self.lake.list_contents()
            runs = [_list_runs(found) for found in contents.reports]
            return HTMLResponse(render_home(self.lake, contents, runs, request.query_params))
        except (IntarsiaError, OSError) as error:
            return self._show_error(error, self.lake.title)

    def show_card(self, request: Request) -> Response:
        try:
            ref = _read_ref(request)
            with self.lake.open_table(ref) as table:
                return HTMLResponse(render_card_of(ref, table))
        except (IntarsiaError, OSError) as error:
            return HTMLResponse(render_failed_card(error))

    def show_table(self, request: Request) -> Response:
        ref = _read_ref(request)
        try:
            with self.lake.open_table(ref) as table:
                tab = request.path_params.get("tab", "")
                return HTMLResponse(render_tab(tab, ref, table, request.query_params, self.lake.title))
        except (IntarsiaError, OSError) as error:
            return self._show_error(error, ref.title or self.lake.title)

    def show_runs(self, request: Request) -> Response:
        """The page over runs, or the report of one: only files that are named as reports are read."""
        name = request.path_params["name"]
        try:
            directory = self.lake.find_reports(request.path_params["key"])
            if name == INDEX:
                return HTMLResponse(render_runs(self.lake, _list_runs(directory)))
            stem, _, ending = name.rpartition(".")
            if ending not in ("html", "json") or not is_report_name(f"{stem}.json") or "/" in name:
                raise NothingMatched("There is no such report.")
            data = _read_report(directory.path / name)
        except (IntarsiaError, OSError) as error:
            return self._show_error(error, "Report")
        return Response(data, media_type="text/html" if ending == "html" else "application/json")

    def show_pulse(self, request: Request) -> Response:
        """A short text that changes when a page would."""
        told = []
        try:
            if request.query_params:
                told.append(self.lake.stamp(_read_ref(request)))
            elif self.lake.is_cheap_to_list:
                told += [ref.query for ref in self.lake.list_contents().tables]
            told += [stamp_path(path) for path in self.lake.list_report_paths()]
        except (IntarsiaError, OSError) as error:
            told.append(type(error).__name__)
        return PlainTextResponse(hashlib.sha256("\n".join(told).encode()).hexdigest()[:16])

    def show_nothing(self, _request: Request, _error: Exception) -> Response:
        return self._show_error(NothingMatched("There is no such page."), "Not found")

    def _show_error(self, error: IntarsiaError | OSError, title: str) -> Response:
        body = f"<section>{render_error(error)}</section>"
        code = 404 if isinstance(error, (NothingMatched, InputError, FileNotFoundError)) else 500
        return HTMLResponse(render_frame(title, body, way=(Link(self.lake.title, "/"),)), code)


def _read_ref(request: Request) -> TableRef:
    """The table that a query names; whether there is one is not looked at."""
    return TableRef.parse(request.scope["query_string"].decode("latin-1"))


def _read_report(path: Path) -> bytes:
    """The bytes of a report. Raises NothingMatched for a symbolic link, which may lead anywhere."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NothingMatched("This report is a symbolic link, which is not followed.") from error
        raise
    with os.fdopen(handle, "rb") as file:
        return file.read()


def _list_runs(directory: ReportDirectory) -> RunsOf:
    try:
        listed = _read_known_runs(directory.path, directory.path.stat().st_mtime_ns)
    except OSError:
        listed = RunList(())
    return RunsOf(directory, listed, read_live_runs(directory.path))


@lru_cache(maxsize=8)
def _read_known_runs(path: Path, _changed_ns: int) -> RunList:
    """The runs of a directory, which are read again when a file has come or gone."""
    return read_runs(path)


@contextmanager
def bind_loopback(port: int) -> Iterator[socket.socket]:
    """A socket on this machine's own address.

    Raises:
        StorageError: the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((LOOPBACK, port))
        except OSError as error:
            raise StorageError(
                f"Port {port} of {LOOPBACK} cannot be used: {error.strerror}",
                errno=error.errno,
                hint="choose another with --port, or 0 for a free one.",
            ) from error
        yield bound


def serve(
    place: str = ".",
    *,
    port: int = PORT,
    reports: tuple[str, ...] = (),
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a read-only page over a lake on this machine, until Ctrl-C.

    It listens on 127.0.0.1 alone and answers requests for that address only. Nothing is written, and no row
    is read: what is shown comes from listings, footers, logs and metadata.

    Args:
        place: a directory with Parquet datasets or an Iceberg warehouse somewhere below it, the URL of one on
            an object store, or the name of a catalog that PyIceberg is configured with.
        port: where to listen; 0 for any that is free.
        reports: directories with reports of pipelines, beside those that are found below ``place``.
        on_ready: called with the address of the page once it can be opened.

    Raises:
        NothingMatched: there is neither a directory nor a catalog of this name.
        StorageError: the port is taken, or the catalog cannot be reached.

    Example:
        >>> from intarsia import ui
        >>> ui.serve("lake", port=8600)  # doctest: +SKIP
    """
    lake = open_lake(place, reports=reports)
    with bind_loopback(port) as bound, suppress(KeyboardInterrupt):
        make_server(lake, bound, on_ready).run(sockets=[bound])


def make_server(
    lake: Lake, bound: socket.socket, on_ready: Callable[[str], None] | None = None
) -> uvicorn.Server:
    """The server of a lake for a socket, which its ``run`` is given."""
    port = bound.getsockname()[1]
    config = uvicorn.Config(
        make_app(lake, port=port),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return _Server(config, on_ready, f"http://{LOOPBACK}:{port}/")


class _Server(uvicorn.Server):
    """Says when it can be reached."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None] | None, address: str) -> None:
        super().__init__(config)
        self._on_ready, self._address = on_ready, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready(self._address)
