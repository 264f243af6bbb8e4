"""A dcgm-exporter on 127.0.0.1: a real HTTP server that gives pages by script, with a password or TLS if asked.

Guarantees: a free port, connections that stay open as those of the real one do, and every request on record. It holds
no GPU: a page is the text that it was given.

    with FakeExporter(PAGE, user="paceline", password="secret") as exporter:
        DcgmExporterCollector(exporter.url, ...)
        exporter.pages = [PAGE, OTHER]   # one a request from here on, the last for ever
        exporter.hold()                  # answers hang until exporter.release()
        exporter.pause_s = 0.1           # pages trickle
        exporter.status = 503
"""

from __future__ import annotations

import base64
import gzip
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["ExporterRequest", "FakeExporter"]

_LONGEST_HANG_S = 60.0


@dataclass(frozen=True, slots=True)
class ExporterRequest:
    """A request that came.

    Attributes:
        path: as asked for.
        headers: by lower-case name.
        client: address and port: the same for requests on one connection.
        status: what was answered.
    """

    path: str
    headers: Mapping[str, str]
    client: tuple[str, int]
    status: int


class FakeExporter:
    """The server; it runs from `with` until its end.

    Args:
        pages: a page, or several: one a request, the last for ever.
        user: asks for basic authentication.
        password: that goes with the user.
        token: asks for a bearer token.
        certificate: files of certificate and key: speaks TLS.
        client_ca: file of the authority that must have signed the client's certificate.
        compressed: whether it sends gzip to those who take it.
    """

    def __init__(
        self,
        pages: str | bytes | Sequence[str | bytes],
        *,
        user: str | None = None,
        password: str = "",
        token: str | None = None,
        certificate: tuple[Path, Path] | None = None,
        client_ca: Path | None = None,
        compressed: bool = False,
    ) -> None:
        self.pages: Sequence[str | bytes] = [pages] if isinstance(pages, str | bytes) else list(pages)
        self.status = 200
        self.headers: dict[str, str] = {}
        """Further headers of an answer."""
        self.pause_s = 0.0
        """How long it pauses behind every 100 bytes of a page."""
        self.requests: list[ExporterRequest] = []
        self._compressed = compressed
        self._demanded = f"Bearer {token}" if token is not None else None
        if user is not None:
            self._demanded = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._free = threading.Event()
        self._free.set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            # The handshake is left to the connection's own thread: one that fails must not hold up the others.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/metrics"

    def hold(self) -> None:
        """Let every further answer hang."""
        self._free.clear()

    def release(self) -> None:
        """Let answers come."""
        self._free.set()

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, headers: Mapping[str, str], client: tuple[str, int]) -> tuple[int, bytes]:
        self._free.wait(_LONGEST_HANG_S)
        with self._lock:
            may = self._demanded is None or headers.get("authorization") == self._demanded
            status = self.status if may else 401
            self.requests.append(ExporterRequest(path, dict(headers), client, status))
            page = self.pages[0] if len(self.pages) == 1 else self._next_page()
        return status, page.encode() if isinstance(page, str) else page

    def _next_page(self) -> str | bytes:
        page, *rest = self.pages
        self.pages = rest
        return page

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer."""
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body = exporter._answer(self.path, headers, self.client_address)
                extra = dict(exporter.headers)
                if exporter._compressed and "gzip" in headers.get("accept-encoding", ""):
                    body = gzip.compress(body)
                    extra["Content-Encoding"] = "gzip"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in extra.items():
                    self.send_header(name, value)
                self.end_headers()
                step = 100 if exporter.pause_s else max(len(body), 1)
                for start in range(0, len(body), step):
                    self.wfile.write(body[start : start + step])
                    time.sleep(exporter.pause_s)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def handle(self) -> None:
                """Serve a connection; one that the other side gave up is no error."""
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        return Handler
