"""Signatures of records: Ed25519 over the exact bytes of a payload, carried beside it in a header.

A signature can be checked before anything of the payload is parsed. Its header names the key by an id that follows from
the public key, and has one spelling alone: a header in which any character is another does not hold. Nothing here reads
a file or a clock, and whether a key is to be trusted is not decided here (`schemas.keyring`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.errors import SchemaError

__all__ = [
    "PUBLIC_KEY_BYTES",
    "SIGNATURE_HEADER",
    "MalformedSignatureError",
    "Signature",
    "holds",
    "key_id_of",
    "read_signature",
    "sign",
]

SIGNATURE_HEADER = "signature"
"""Name of the Kafka header that carries a record's signature."""

PUBLIC_KEY_BYTES = 32

_HEADER = re.compile(rb"(ed25519-[0-9a-f]{16}):([0-9a-f]{128})")


class MalformedSignatureError(SchemaError):
    """A header that is no signature at all; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature as its header states it.

    Attributes:
        key_id: which key is said to have made it.
        value: its 64 bytes.
    """

    key_id: str
    value: bytes


def key_id_of(public_key: bytes) -> str:
    """The id of a key: `ed25519-` and 16 hexadecimal digits of the SHA-256 of its 32 public bytes."""
    return f"ed25519-{hashlib.sha256(public_key).hexdigest()[:16]}"


def sign(private_key: Ed25519PrivateKey, payload: bytes) -> bytes:
    """The header of a payload: `KEY_ID:SIGNATURE`, in lower-case hexadecimal digits."""
    key_id = key_id_of(private_key.public_key().public_bytes_raw())
    return f"{key_id}:{private_key.sign(payload).hex()}".encode()


def read_signature(header: bytes) -> Signature:
    """What a header states.

    Raises:
        MalformedSignatureError: it has another form.
    """
    found = _HEADER.fullmatch(header)
    if found is None:
        raise MalformedSignatureError(f"the header of {len(header)} bytes is not KEY_ID:SIGNATURE of Ed25519")
    return Signature(found[1].decode(), bytes.fromhex(found[2].decode()))


def holds(public_key: bytes, payload: bytes, signature: Signature) -> bool:
    """Whether a key made a signature over exactly these bytes.

    Args:
        public_key: its 32 bytes.
        payload: the bytes as they came, before any parsing.
        signature: what the header states.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature.value, payload)
    except (InvalidSignature, ValueError):
        return False
    return True
