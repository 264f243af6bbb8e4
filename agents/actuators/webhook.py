"""Webhooks: a command becomes one signed HTTPS request, a CloudEvent in binary mode, to a receiver that does the act.

Requests are signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body. The id is the command's, the same at every
try: what the receiver made of an earlier try cannot be seen from here, so it must do nothing twice for one id. Redirects are
not followed, and nothing but the status of the answer is believed. Plain HTTP goes to this machine alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import Any, Final

from agents.actuators.hands import ActFailedError, Judgement, State, TargetAwayError
from agents.actuators.scontrol import plain_text
from schemas.codec import encode, message
from schemas.remediation import COMMAND_KINDS, Command

__all__ = ["WebhookHands", "WebhookSettings", "WebhookSettingsError", "body_of", "signature_of"]

_LATER = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which the same request may succeed."""

_LEAST_SECRET_BYTES = 24
"""As Standard Webhooks asks for."""


class WebhookSettingsError(ValueError):
    """Settings that do not hold; the text says which and why, in one line."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Whom to call, and how.

    Attributes:
        url: the receiver; `https`, or `http` on this machine.
        secret: what requests are signed with.
        kinds: of commands that go there.
        template: JSON of the body, with `$field` in its texts; None sends the command itself.
        timeout_s: for connecting, and for each part of the answer.
        ca_file: certificates to trust instead of the system's.
    """

    url: str
    secret: bytes
    kinds: frozenset[str] = frozenset(COMMAND_KINDS)
    template: Any = None
    timeout_s: float = 10.0
    ca_file: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work or would not be safe.

        Raises:
            WebhookSettingsError: see its text.
        """
        try:
            parts = urllib.parse.urlsplit(self.url)
            host = parts.hostname or ""
            _ = parts.port
        except ValueError as error:
            raise WebhookSettingsError(f"{self.url!r}: {error}") from None
        if not self.url.isascii() or not self.url.isprintable() or " " in self.url or not host:
            raise WebhookSettingsError(f"{self.url!r} is no URL")
        if parts.username is not None:
            raise WebhookSettingsError("the URL has a user in it; the receiver knows us by the signature")
        if parts.scheme != "https" and not (parts.scheme == "http" and _is_this_machine(host)):
            raise WebhookSettingsError(f"{self.url!r}: only https, or http to this machine")
        if len(self.secret) < _LEAST_SECRET_BYTES:
            raise WebhookSettingsError(f"the secret has {len(self.secret)} bytes; at least {_LEAST_SECRET_BYTES}")
        unknown = sorted(self.kinds - set(COMMAND_KINDS))
        if unknown:
            raise WebhookSettingsError(f"no kind {unknown[0]}; there are {', '.join(COMMAND_KINDS)}")
        if self.template is not None:
            _check_template(self.template)

    @staticmethod
    def secret_of(text: str) -> bytes:
        """The bytes of a secret as Standard Webhooks writes it, `whsec_` and base64; any other text stands for itself.

        Raises:
            WebhookSettingsError: what follows `whsec_` is no base64.
        """
        text = text.strip()
        if not text.startswith("whsec_"):
            return text.encode()
        try:
            return base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            raise WebhookSettingsError("the secret begins with whsec_ and goes on as no base64") from None


class WebhookHands:
    """Calls a receiver.

    Args:
        settings: whom and how.
        now_s: wall time in seconds, for the signature.
    """

    def __init__(self, settings: WebhookSettings, now_s: Callable[[], float]) -> None:
        self.kinds = settings.kinds
        self._settings, self._now_s = settings, now_s
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.ProxyHandler({})]
        if settings.url.startswith("https"):
            try:
                context = ssl.create_default_context(cafile=settings.ca_file)
            except OSError as error:
                raise WebhookSettingsError(f"{settings.ca_file}: {error}") from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def look(self, command: Command) -> State:  # noqa: ARG002
        """Nothing can be seen from here."""
        return {}

    def judge(self, command: Command, state: State, owner: str | None) -> Judgement:  # noqa: ARG002
        """Left to the receiver."""
        return Judgement("do")

    def act(self, command: Command, state: State) -> str:  # noqa: ARG002
        """Call the receiver.

        Raises:
            TargetAwayError: it did not take the request now; it may later.
            ActFailedError: it will not take it.
        """
        body = body_of(command, self._settings.template)
        now_s = int(self._now_s())
        headers = {name.replace("_", "-"): value.decode() for name, value in message(command).headers}
        headers |= {
            "content-type": "application/json",
            "user-agent": "paceline",
            "webhook-id": command.command_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature_of(self._settings.secret, command.command_id, now_s, body),
        }
        headers = {
            name: value if value.isascii() and value.isprintable() else urllib.parse.quote(value)
            for name, value in headers.items()
        }
        # Its scheme was checked with the settings.
        request = urllib.request.Request(self._settings.url, body, headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._settings.timeout_s) as answer:
                return f"the receiver answered {answer.status}"
        except urllib.error.HTTPError as error:
            with error:
                said = f"the receiver answered {error.code} {plain_text(error.reason or '')}".strip()
            if error.code in _LATER:
                raise TargetAwayError(said) from None
            raise ActFailedError(said) from None
        except ssl.SSLError as error:
            raise ActFailedError(f"TLS: {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None)
            if isinstance(reason, ssl.SSLError):
                raise ActFailedError(f"TLS: {plain_text(str(reason))}") from None
            raise TargetAwayError(f"the receiver did not answer: {plain_text(str(reason or error))}") from None

    def has_taken_effect(self, command: Command, before: State, after: State) -> bool | None:  # noqa: ARG002
        """It is sent again under its id, of which the receiver does nothing twice."""
        return False


def signature_of(secret: bytes, identity: str, at_s: int, body: bytes) -> str:
    """The header `webhook-signature` of a request, in version 1 of Standard Webhooks.

    Args:
        secret: shared with the receiver.
        identity: the header `webhook-id`.
        at_s: the header `webhook-timestamp`, seconds since the epoch.
        body: the request's body as it is sent.
    """
    signed = b".".join((identity.encode(), str(at_s).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def body_of(command: Command, template: Any) -> bytes:
    """The body of a request: the template filled in, or the command as it is without one.

    A template is any JSON; in each of its texts `$kind`, `$target`, ... are replaced, so that no value can change the form.
    """
    if template is None:
        return encode(command)
    fields = {name: field(command) for name, field in _FIELDS.items()}
    return json.dumps(_filled(template, fields), ensure_ascii=False).encode(errors="replace")


_FIELDS: Final[dict[str, Callable[[Command], str]]] = {
    "command_id": lambda command: command.command_id,
    "incident_id": lambda command: command.cause.incident_id,
    "site_id": lambda command: command.site_id,
    "kind": lambda command: command.kind,
    "target": lambda command: command.target.name(),
    "node_id": lambda command: command.target.node_id or "",
    "gpu": lambda command: command.target.gpu_uuid or command.target.pci_bus_id or "",
    "job_id": lambda command: command.target.job_id or "",
    "when": lambda command: command.when,
    "reason": lambda command: command.reason,
    "attempt": lambda command: str(command.attempt),
    "decided_at_ns": lambda command: str(command.decided_at_ns),
    "expires_at_ns": lambda command: str(command.expires_at_ns),
}
"""What a template may name, and how it is read off a command."""


def _filled(template: Any, fields: dict[str, str]) -> Any:
    if isinstance(template, str):
        return Template(template).substitute(fields)
    if isinstance(template, list):
        return [_filled(part, fields) for part in template]
    if isinstance(template, dict):
        return {name: _filled(part, fields) for name, part in template.items()}
    return template


def _check_template(template: Any) -> None:
    """Hold every text of a template against the fields that there are."""
    if isinstance(template, str):
        text = Template(template)
        if not text.is_valid():
            raise WebhookSettingsError(f"template: {template!r} has a $ that begins no name; $$ stands for it")
        unknown = sorted(set(text.get_identifiers()) - _FIELDS.keys())
        if unknown:
            raise WebhookSettingsError(f"template: no field ${unknown[0]}; there are {', '.join(sorted(_FIELDS))}")
    elif isinstance(template, list):
        for part in template:
            _check_template(part)
    elif isinstance(template, dict):
        for part in template.values():
            _check_template(part)


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A receiver that has moved is no receiver: a redirect would take the signed request to whomever it names."""

    def redirect_request(self, *_: Any) -> None:
        """None lets the status stand as an error."""
