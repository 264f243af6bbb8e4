"""Whether a message of the actions topic is a command that this actuator may look at: signature first, then the rest.

Nothing of the payload is parsed before its signature holds. Each refusal has a code of its own. Pure: the ring and the time
are passed in. What was done before, and whether an act is wise, is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from schemas.codec import MAX_RECORD_BYTES, decode
from schemas.errors import InvalidRecordError
from schemas.keyring import UnprovenError, signer_of
from schemas.remediation import Command
from schemas.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.keyring import Keyring

__all__ = ["LONGEST_TERM_NS", "SKEW_NS", "Expectations", "Refusal", "check_term", "verify"]

SKEW_NS = 60_000_000_000
"""How far the deciding clock may be ahead of this one: as far as a record may be ahead of its arrival."""

LONGEST_TERM_NS = 25 * 3_600_000_000_000
"""A command that is to hold for longer was not made by the failure table, whose longest term is 24 h."""

_TOPIC = topic_of(Command).name

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Ids go into reasons, headers and file names of others."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Whom an actuator listens to, and as whom.

    Attributes:
        site_id: the only site whose commands are taken.
        audiences: names under which it is addressed.
        keyring: who is trusted.
    """

    site_id: str
    audiences: frozenset[str]
    keyring: Keyring


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is not carried out.

    Attributes:
        code: one word, of a fixed few.
        text: one line for people.
        command: what was refused; None when its signature does not hold, for then nothing is known of it.
        outcome: of the result.
    """

    code: str
    text: str
    command: Command | None = None
    outcome: Literal["refused", "expired", "failed"] = "refused"


def verify(
    payload: bytes | None, headers: Iterable[tuple[str, bytes | None]], expected: Expectations, now_ns: int
) -> Command | Refusal:
    """The command in a message, or why it is none for us. Never raises, whatever the bytes are.

    Args:
        payload: the message's value.
        headers: all of its headers, in their order.
        expected: ring, site and audiences.
        now_ns: this machine's clock, nanoseconds since the epoch.
    """
    command = _authentic(payload, headers, expected, now_ns)
    if isinstance(command, Refusal):
        return command
    if command.site_id != expected.site_id:
        return Refusal("wrong_site", f"it is for site {command.site_id!r}, not {expected.site_id!r}", command)
    if command.audience not in expected.audiences:
        return Refusal("wrong_audience", f"it is for {command.audience!r}", command)
    return check_term(command, now_ns) or command


def check_term(command: Command, now_ns: int) -> Refusal | None:
    """Why a command does not hold at a time, or None when it does."""
    ahead_ns = command.decided_at_ns - now_ns
    if ahead_ns > SKEW_NS:
        return Refusal(
            "from_the_future",
            f"it was decided {ahead_ns / 1e9:.0f} s ahead of this clock, and one of the two is wrong",
            command,
        )
    if command.expires_at_ns - command.decided_at_ns > LONGEST_TERM_NS:
        hours = (command.expires_at_ns - command.decided_at_ns) / 3.6e12
        return Refusal("term_too_long", f"it is to hold for {hours:.1f} h", command)
    if now_ns > command.expires_at_ns:
        late_s = (now_ns - command.expires_at_ns) / 1e9
        return Refusal("expired", f"it expired {late_s:.0f} s ago by this clock", command, "expired")
    return None


def _authentic(
    payload: bytes | None, headers: Iterable[tuple[str, bytes | None]], expected: Expectations, now_ns: int
) -> Command | Refusal:
    """The command of a message whose signature holds."""
    if payload is None or len(payload) > MAX_RECORD_BYTES:
        size = "no" if payload is None else len(payload)
        return Refusal("malformed", f"{size} bytes are no command")
    try:
        key = signer_of(payload, headers, expected.keyring, "commands", now_ns, SKEW_NS)
    except UnprovenError as error:
        return Refusal(error.code, str(error))
    try:
        command = decode(_TOPIC, payload)
    except InvalidRecordError as error:
        return Refusal("malformed", f"signed, and no command that is known here: {error}")
    assert isinstance(command, Command)
    if _PLAIN_ID.fullmatch(command.command_id) is None:
        return Refusal("malformed", "signed, and its id has characters that no id has")
    if command.key_id != key.key_id:
        return Refusal("key_mismatch", f"it names the key {command.key_id!r} and is signed by {key.key_id}")
    return command
