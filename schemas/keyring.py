"""Which public keys are trusted, for what, and from when until when: the ring that every verifier holds.

A key is held against the verifier's own clock, not against the time that a record states: whoever has a stolen key can
write any time into a record. So a retired key stays valid for as long as commands that it signed may still be under way,
and no longer. Plain data with pure changes; times are passed in. Files are read in `schemas.key_files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, ValidationError, model_validator

from schemas.base import EventTimeNs, Identifier, Record
from schemas.errors import SchemaError
from schemas.signatures import SIGNATURE_HEADER, MalformedSignatureError, holds, key_id_of, read_signature

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_OVERLAP_NS",
    "KEY_PURPOSES",
    "KeyPurpose",
    "Keyring",
    "KeyringError",
    "TrustedKey",
    "UnprovenError",
    "UntrustedKeyError",
    "read_keyring",
    "signer_of",
]

KeyPurpose = Literal["commands", "approvals"]
KEY_PURPOSES: tuple[KeyPurpose, ...] = ("commands", "approvals")

DEFAULT_OVERLAP_NS = 25 * 3_600_000_000_000
"""How long a retired key goes on: the longest term of a command is 24 h, and an hour for the ring to reach everybody."""


class KeyringError(SchemaError):
    """A ring that does not hold, or a change that cannot be made; the text says what, in one line."""


class UnprovenError(SchemaError):
    """A message of which it is not proven that somebody sent it who may; the text says why, in one line.

    Attributes:
        code: `unsigned`, `malformed_signature` or `bad_signature`, or that of an `UntrustedKeyError`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class UntrustedKeyError(UnprovenError):
    """A key that may not speak now.

    Attributes:
        code: `unknown_key`, `key_of_other_purpose`, `key_revoked`, `key_not_yet_valid` or `key_expired`.
    """


class TrustedKey(Record):
    """One public key.

    `valid_until_ns` is null until the key is retired. `holder` says who has the private half: a worker, or a person.
    """

    key_id: Identifier
    purpose: KeyPurpose
    holder: Identifier
    public_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    valid_from_ns: EventTimeNs
    valid_until_ns: EventTimeNs | None = None
    revoked: bool = False

    @model_validator(mode="after")
    def _id_is_of_the_key(self) -> Self:
        if self.key_id != key_id_of(self.public_bytes()):
            raise ValueError(f"{self.key_id} is not the id of its public key")
        return self

    def public_bytes(self) -> bytes:
        """The key's 32 bytes."""
        return bytes.fromhex(self.public_key)

    def state(self, now_ns: int) -> str:
        """`revoked`, `not yet`, `expired`, `retiring` or `valid`."""
        if self.revoked:
            return "revoked"
        if now_ns < self.valid_from_ns:
            return "not yet"
        if self.valid_until_ns is None:
            return "valid"
        return "retiring" if now_ns <= self.valid_until_ns else "expired"


class Keyring(Record):
    """All keys that are or were trusted. Those that no longer are stay named, so that a refusal can say why."""

    keys: tuple[TrustedKey, ...] = ()

    @model_validator(mode="after")
    def _ids_are_distinct(self) -> Self:
        ids = [key.key_id for key in self.keys]
        if len(set(ids)) != len(ids):
            raise ValueError("a key stands twice in the ring")
        return self

    def trusted(self, key_id: str, purpose: KeyPurpose, now_ns: int, skew_ns: int = 0) -> TrustedKey:
        """The key of an id, if it may speak now.

        Args:
            key_id: what a signature names.
            purpose: what it is to be trusted for.
            now_ns: the verifier's clock.
            skew_ns: by how much that clock may be behind the one by which the key was made.

        Raises:
            UntrustedKeyError: it may not; the code says why.
        """
        key = next((key for key in self.keys if key.key_id == key_id), None)
        if key is None:
            raise UntrustedKeyError("unknown_key", f"{key_id} is not in the ring")
        if key.revoked:
            raise UntrustedKeyError("key_revoked", f"{key_id} was revoked")
        if key.purpose != purpose:
            raise UntrustedKeyError("key_of_other_purpose", f"{key_id} is for {key.purpose}, not for {purpose}")
        if now_ns + skew_ns < key.valid_from_ns:
            raise UntrustedKeyError(
                "key_not_yet_valid", f"{key_id} is valid in {(key.valid_from_ns - now_ns) / 1e9:.0f} s"
            )
        if key.valid_until_ns is not None and now_ns > key.valid_until_ns:
            raise UntrustedKeyError(
                "key_expired", f"{key_id} was retired and expired {(now_ns - key.valid_until_ns) / 1e9:.0f} s ago"
            )
        return key

    def with_key(self, public_key: bytes, purpose: KeyPurpose, holder: str, now_ns: int) -> Keyring:
        """The ring with one more key, valid from now.

        Raises:
            KeyringError: it is there already, or its holder has no name that can be written.
        """
        key_id = key_id_of(public_key)
        if any(key.key_id == key_id for key in self.keys):
            raise KeyringError(f"{key_id} is in the ring already")
        try:
            key = TrustedKey(
                key_id=key_id, purpose=purpose, holder=holder, public_key=public_key.hex(), valid_from_ns=now_ns
            )
        except ValidationError as error:
            raise KeyringError(_first_error(error)) from None
        return Keyring(keys=(*self.keys, key))

    def retired(self, key_id: str, until_ns: int) -> Keyring:
        """The ring in which a key expires at a time; one that expires earlier stays as it is.

        Raises:
            KeyringError: there is no such key.
        """
        key = self._found(key_id)
        if key.valid_until_ns is not None and key.valid_until_ns <= until_ns:
            return self
        return self._with(key.model_copy(update={"valid_until_ns": until_ns}))

    def without_trust(self, key_id: str) -> Keyring:
        """The ring in which a key is revoked: nothing that it signed counts from now on.

        Raises:
            KeyringError: there is no such key.
        """
        return self._with(self._found(key_id).model_copy(update={"revoked": True}))

    def text(self) -> str:
        """The ring as its file holds it: JSON, one field a line."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    def _found(self, key_id: str) -> TrustedKey:
        key = next((key for key in self.keys if key.key_id == key_id), None)
        if key is None:
            there_are = ", ".join(key.key_id for key in self.keys) or "none"
            raise KeyringError(f"no key {key_id}; there are {there_are}")
        return key

    def _with(self, changed: TrustedKey) -> Keyring:
        return Keyring(keys=tuple(changed if key.key_id == changed.key_id else key for key in self.keys))


def signer_of(
    payload: bytes,
    headers: Iterable[tuple[str, bytes | None]],
    ring: Keyring,
    purpose: KeyPurpose,
    now_ns: int,
    skew_ns: int,
) -> TrustedKey:
    """The key whose signature a message has, over its very bytes, if it may speak now; nothing of them is parsed.

    Args:
        payload: the message's value, as it came.
        headers: all of its headers.
        ring: who is trusted.
        purpose: what for.
        now_ns: the verifier's clock, nanoseconds since the epoch.
        skew_ns: by how much that clock may be behind the one by which the key was made.

    Raises:
        UnprovenError: there is not one signature alone, it does not hold, or its key may not speak; the code says which.
    """
    signatures = [bytes(value) for name, value in headers if name == SIGNATURE_HEADER and value is not None]
    if len(signatures) != 1:
        raise UnprovenError("unsigned", f"it has {len(signatures)} signatures, not one")
    try:
        signature = read_signature(signatures[0])
    except MalformedSignatureError as error:
        raise UnprovenError("malformed_signature", str(error)) from None
    key = ring.trusted(signature.key_id, purpose, now_ns, skew_ns)
    if not holds(key.public_bytes(), payload, signature):
        raise UnprovenError("bad_signature", f"its signature by {key.key_id} does not hold over its bytes")
    return key


def read_keyring(text: bytes | str) -> Keyring:
    """The ring of a file's text.

    Raises:
        KeyringError: it is none.
    """
    try:
        return Keyring.model_validate_json(text)
    except ValidationError as error:
        raise KeyringError(_first_error(error)) from None


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "ring"
    return f"{place}: {first['msg']}"
