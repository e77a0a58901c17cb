"""`haotuner watch`: serves the report of a run while it goes on, read-only, and refreshes it by server-sent events."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import typer

from haotuner.cli.options import Quiet
from haotuner.cli.output import say, tell
from haotuner.cli.run_status import read_status, status_file
from haotuner.errors import HaotunerError, UsageError
from haotuner.records.address import POSTGRES, without_password

if TYPE_CHECKING:
    from collections.abc import Callable

PORT, LOOPBACK = 8765, "127.0.0.1"
REFRESH_S = 2.0
SHARE = 0.2  # of a core, at most, that making pages takes: measurements go on beside it
BEAT_S = 15.0  # between two signs of life, so that a stream whose reader has gone ends
MOST_STREAMS = 32  # readers at once
NICE = 10  # measuring comes first
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LivePage:
    """The newest document of a run, made anew whenever one of its files has changed; without files at every look."""

    def __init__(self, make: Callable[[], dict[str, Any]], files: Sequence[Path]) -> None:
        self._make, self._files = make, files
        self._changed = threading.Condition()
        self._state: object = None
        self.version, self.document = 0, dict[str, Any]()

    def refresh(self) -> float:
        """Look once, and make a new document if anything changed; seconds until the next look is worth it."""
        state = [_state_of(path) for path in self._files]
        begin = time.monotonic()
        if state != self._state or not state:
            document = self._make()
            with self._changed:
                self._state, self.document, self.version = state, document, self.version + 1
                self._changed.notify_all()
        return max(REFRESH_S, (time.monotonic() - begin) / SHARE)

    def newer(self, version: int, seconds: float) -> tuple[int, dict[str, Any]] | None:
        """A document behind that version; None if there is none within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version, seconds)
            return (self.version, self.document) if self.version > version else None


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


class Server(ThreadingHTTPServer):
    """Server of one page. ``names``: hosts that a request may name; None: any address in digits, too."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, page: LivePage) -> None:
        self.page, self.streams = page, threading.BoundedSemaphore(MOST_STREAMS)
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        except OSError as error:
            raise UsageError(f"--address {address!r} is no address of this host ({error.strerror})") from error
        self.address_family = family
        try:
            super().__init__((address, port), Handler)
        except OverflowError as error:
            raise UsageError(f"--port {port} must be in 0..65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"port {port} of {address} is in use; name another one with --port, or 0 for any that is free"
            else:
                why = f"cannot serve on {address}, port {port}: {error.strerror}; name others with --address and --port"
            raise UsageError(why) from error
        self.any_address = ipaddress.ip_address(self.server_address[0]).is_unspecified  # type: ignore[arg-type]
        self.names = {
            address.lower(),
            "localhost",
            LOOPBACK,
            "::1",
            socket.gethostname().lower(),
            str(self.server_address[0]),
        }

    def allows(self, host: str) -> bool:
        """True for a Host header of this server; a page of others that had its name point here sends its own."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, "80"
        name = name.strip("[]").lower()
        if port and port != str(self.server_address[1]):
            return False
        with contextlib.suppress(ValueError):
            if self.any_address and ipaddress.ip_address(name):
                return True
        return name in self.names

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no error."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page and of its stream."""

    server: Server
    server_version, sys_version = "haotuner", ""
    timeout = 60  # of a request that does not come

    def do_GET(self) -> None:
        """The page, its stream, or an error in words."""
        path = self.path.partition("?")[0]
        if not self.server.allows(self.headers.get("Host", "")):
            self._text(
                HTTPStatus.MISDIRECTED_REQUEST, "the Host header names another server; open the address that watch said"
            )
        elif path == "/":
            from haotuner.cli.pages.document import html_of

            self._send(HTTPStatus.OK, "text/html; charset=utf-8", html_of(self.server.page.document, "events").encode())
        elif path == "/events":
            self._stream()
        else:
            self._text(HTTPStatus.NOT_FOUND, "there is no such page here; the report is at /")

    do_HEAD = do_GET

    def refuse(self) -> None:
        """Nothing can be changed here."""
        self._text(HTTPStatus.METHOD_NOT_ALLOWED, "this server only shows; it answers GET and HEAD")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = refuse

    def _stream(self) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} readers are here already; close a page")
            return
        try:
            self._head(HTTPStatus.OK, "text/event-stream")
            self.end_headers()
            version = 0
            while self.command == "GET":
                newer = self.server.page.newer(version, BEAT_S)
                if newer is None:
                    self.wfile.write(b": still here\n\n")
                else:
                    version, document = newer
                    self.wfile.write(f"data: {json.dumps(document, separators=(',', ':'))}\n\n".encode())
        except OSError:  # the reader has gone
            self.close_connection = True
        finally:
            self.server.streams.release()

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._head(status, kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in HEADERS.items():
            self.send_header(name, value)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged: requests of others would steer the terminal."""


def page_of(name: str) -> LivePage:
    """The page of a run that is named by its pack or its record store. UsageError where that can be neither."""
    from haotuner.cli.pages.document import document_of
    from haotuner.cli.pages.live_panels import now_page
    from haotuner.cli.pages.sources import URL, opened, records_beside, url_of

    title, in_server = without_password(name), name.startswith(POSTGRES)
    if "://" in name and not (in_server or name.startswith(URL)):
        raise UsageError(f"{title}: name the --out of a run, sqlite:///FILE or postgresql://HOST/DATABASE")
    path, pack = Path(unquote(name.removeprefix(URL))), None
    if in_server:
        store = path  # no file is there: the page is made anew at every look
    elif name.startswith(URL) or path.suffix in (".db", ".sqlite"):
        store = path
        pack = path.with_name(stem) if (stem := path.name.removesuffix(".records.db")) != path.name else None
    else:
        store, pack = records_beside(path), path
    if not in_server and not path.parent.is_dir():
        raise UsageError(f"{title}: there is no folder {path.parent}; name the --out or the --db of a run")

    def make() -> dict[str, Any]:
        status = None if pack is None else read_status(status_file(pack))
        used = Path(unquote(status.db.removeprefix(URL))) if status is not None and status.db.startswith(URL) else store
        names = [str(pack)] if pack is not None and pack.is_dir() else []
        names += [name] if in_server else [url_of(used)] if used.is_file() else []
        try:
            with opened(names, serve=False) as sources:
                document = document_of(sources, title, live=now_page(sources, status, title))
        except HaotunerError as error:  # a pack or a store that is just being replaced, or is damaged
            document = {"title": f"haotuner watch: {title}", "haotuner": "", "pages": [], "status": str(error)}
            with opened([]) as sources:
                document |= document_of(sources, title, live=now_page(sources, status, title)) | {"status": str(error)}
            return document
        document["title"] = f"haotuner watch: {title}"
        document["status"] = f"made at {time.strftime('%H:%M:%S')}, refreshed when something changes"
        return document

    files = [store, store.with_name(f"{store.name}-wal"), *([] if pack is None else [status_file(pack), pack])]
    return LivePage(make, () if in_server else files)


def watch(
    name: Annotated[str, typer.Argument(metavar="PACK|DB", help="The --out of a run, finished or not, or a record store.")],
    port: Annotated[int, typer.Option("--port", help="Port to serve on; 0 takes any that is free.")] = PORT,
    address: Annotated[
        str,
        typer.Option("--address", help="Address to serve on. Another than loopback shows the page to whoever reaches it."),
    ] = LOOPBACK,
    quiet: Quiet = False,
) -> None:
    """Serve the report of a run while it goes on; Ctrl-C ends it. It only reads, and the run does not notice it."""
    from haotuner.cli.pages.document import plotly_source

    plotly_source()
    page = page_of(name)
    with Server(address, port, page) as server:
        with contextlib.suppress(OSError):
            os.nice(NICE)
        page.refresh()
        threading.Thread(target=partial(_serve, server), daemon=True).start()
        host = f"[{address}]" if ":" in address else address
        say(
            f"http://{host}:{server.server_address[1]}/"
            + ("" if quiet else f" shows {without_password(name)}; Ctrl-C ends it")
        )
        if not server.any_address and not ipaddress.ip_address(server.server_address[0]).is_loopback or server.any_address:  # type: ignore[arg-type]
            tell(f"--address {address}: whoever reaches this host can read the page")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(page.refresh())


def _serve(server: Server) -> None:
    server.serve_forever(poll_interval=0.5)
