"""A metrics page, fetched over HTTP, over TLS or from a file.

Guarantees: a page takes no longer than its time, whoever sends it how slowly (its head: one such time for each wait);
no page is larger than the limit, unpacked; secrets are read from their files for each connection or request, go to the
address that was given and nowhere else (no proxy, no redirect), and are in no message. Certificates are checked unless
that is switched off.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from agents.collectors.base import CollectorError

__all__ = ["MAX_BYTES", "Access", "PageSource"]

MAX_BYTES = 16 << 20
"""A page of 16 GPUs with MIG takes under 1 MiB."""

_CHUNK_BYTES = 1 << 16
_MOST_SECRET_BYTES = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS
_SCHEMES = ("http", "https", "file")


@dataclass(frozen=True, slots=True)
class Access:
    """How to be let in. Empty fields are not used.

    Attributes:
        user: for basic authentication, with the password in `password_file`.
        password_file: the password's file; a line end behind it does not count.
        token_file: file of a bearer token, used instead of a user.
        ca_file: certificates to trust instead of the system's.
        cert_file: the client's certificate, with the key in it or in `key_file`.
        key_file: the key of the client's certificate.
        insecure: take any certificate, which lets anyone on the way pass for the exporter.
    """

    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False


class PageSource:
    """Fetches one page again and again, over one connection as long as that stays open.

    Args:
        url: `http://...`, `https://...` or `file:///...`; user and password do not belong in it.
        access: how to be let in.
        timeout_s: for the whole page.
    """

    def __init__(self, url: str, access: Access, timeout_s: float) -> None:
        self._url = url
        self._access = access
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._trusted: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The address without what may be secret in it."""
        try:
            parts = urlsplit(self._url)
        except ValueError:
            return "the address"
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    def fault(self) -> str | None:
        """What is wrong with the address and the settings, apart from who answers there; None if nothing."""
        access = self._access
        try:
            parts = urlsplit(self._url)
            has_port = parts.port != 0
        except ValueError as error:
            return f"{self.name!r} is no address of a page: {error}"
        if parts.scheme not in _SCHEMES or not has_port or (parts.scheme != "file" and not parts.hostname):
            return f"{self.name!r} is no address of a page: it begins with {', '.join(_SCHEMES)}"
        if "@" in parts.netloc:
            return f"{self.name}: give the user in dcgm_exporter_user, not in the address, where all logs show it"
        if access.user and access.token_file:
            return f"{self.name}: give a user or a token file, not both"
        if bool(access.user) != bool(access.password_file):
            return f"{self.name}: a user needs a password file, and a password file a user"
        if access.key_file and not access.cert_file:
            return f"{self.name}: a key file needs a certificate file"
        if parts.scheme != "https" and (access.ca_file or access.cert_file or access.insecure):
            return f"{self.name}: certificates are for addresses that begin with https"
        return None

    def fetch(self) -> bytes:
        """The page.

        Raises:
            CollectorError: it cannot be fetched, or is too large; the text says why and names no secret.
        """
        if (fault := self.fault()) is not None:
            raise CollectorError(fault)
        parts = urlsplit(self._url)
        try:
            page = _file(parts) if parts.scheme == "file" else self._over_http(parts)
        except TimeoutError:
            self._close()
            raise CollectorError(f"{self.name} cannot be fetched: timed out after {self._timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            self._close()
            raise CollectorError(
                f"{self.name} cannot be fetched: its certificate is not trusted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
            self._close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CollectorError(f"{self.name} cannot be fetched: {reason}") from None
        if len(page) > MAX_BYTES:
            self._close()
            raise CollectorError(f"{self.name} is larger than {MAX_BYTES} bytes")
        return page

    def _over_http(self, parts: SplitResult) -> bytes:
        headers = {"Accept": "text/plain", "Accept-Encoding": "gzip", "User-Agent": "paceline-agent"}
        if (authorization := self._authorization()) is not None:
            headers["Authorization"] = authorization
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        ends_s = time.monotonic() + self._timeout_s
        is_kept = self._connection is not None
        connection = self._connected(parts)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
        except (http.client.BadStatusLine, ConnectionError):
            if not is_kept:
                raise
            self._close()  # the other side closed it in between, as it may
            connection = self._connected(parts)
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
        if response.status != http.client.OK:
            self._close()
            raise ValueError(_refusal(response))
        page = self._read(connection, response, ends_s)
        if response.will_close:
            self._close()
        return page

    def _read(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, ends_s: float) -> bytes:
        encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
        if encoding not in {"identity", "gzip"}:
            raise ValueError(f"it is encoded as {encoding[:40]!r}, which was not asked for")
        unpack = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        page = bytearray()
        while len(page) <= MAX_BYTES:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                if unpack is not None and not unpack.eof:
                    raise ValueError("its end is missing")
                if response.length:
                    raise ValueError(f"{response.length} bytes are missing at its end")
                response.close()  # only then is the connection free for the next page
                return bytes(page)
            page += chunk if unpack is None else unpack.decompress(chunk, MAX_BYTES + 1 - len(page))
        self._close()
        return bytes(page)

    def _connected(self, parts: SplitResult) -> http.client.HTTPConnection:
        files = self._files() if parts.scheme == "https" else ()
        if self._connection is not None and files != self._trusted:
            self._close()  # certificates were exchanged
        if self._connection is None:
            assert parts.hostname is not None
            if parts.scheme == "https":
                context = self._context()
                self._connection = http.client.HTTPSConnection(
                    parts.hostname, parts.port, timeout=self._timeout_s, context=context
                )
                self._trusted = files
            else:
                self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self._timeout_s)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout_s)
        return self._connection

    def _context(self) -> ssl.SSLContext:
        access = self._access
        context = ssl.create_default_context(cafile=access.ca_file or None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.cert_file:
            # An encrypted key would ask for its password on the terminal.
            context.load_cert_chain(access.cert_file, access.key_file or None, password=_no_password)
        return context

    def _files(self) -> tuple[tuple[str, int], ...]:
        names = (self._access.ca_file, self._access.cert_file, self._access.key_file)
        return tuple((name, Path(name).stat().st_mtime_ns) for name in names if name)

    def _authorization(self) -> str | None:
        access = self._access
        if access.token_file:
            return f"Bearer {_secret(access.token_file)}"
        if access.user:
            named = f"{access.user}:{_secret(access.password_file)}"
            return "Basic " + base64.b64encode(named.encode()).decode("ascii")
        return None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _file(parts: SplitResult) -> bytes:
    with Path(unquote(parts.path)).open("rb") as page:
        return page.read(MAX_BYTES + 1)


def _secret(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            secret = file.read(_MOST_SECRET_BYTES).decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is no text") from None
    if not secret or any(ord(character) < 32 for character in secret):
        raise ValueError(f"{name} holds no secret of one line")
    return secret


def _refusal(response: http.client.HTTPResponse) -> str:
    if response.status in {401, 403}:
        return f"HTTP {response.status}: user, password or token are not accepted"
    if 300 <= response.status < 400:
        return f"HTTP {response.status}: it is elsewhere, which is not followed; give the address itself"
    return f"HTTP {response.status} {response.reason}"


def _no_password() -> str:
    raise ValueError("the key is encrypted: give one that is not")
