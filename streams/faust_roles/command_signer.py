"""Signs the commands of the decisions role: the one place of a worker that holds a private key.

A command is signed over the bytes that are published, and only if it names this key: what the engine decided without a
key is not signed afterwards. Other records pass as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schemas.key_files import load_private_key
from schemas.remediation import Command
from schemas.signatures import SIGNATURE_HEADER, key_id_of, sign

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from schemas.base import Record
    from schemas.codec import Message

__all__ = ["CommandSigner"]


class CommandSigner:
    """Adds signatures to commands on their way to the topic.

    Args:
        private_key: what signs.
    """

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._key = private_key
        self.key_id = key_id_of(private_key.public_key().public_bytes_raw())
        """What commands name as their key."""

    @classmethod
    def of_file(cls, path: Path) -> CommandSigner:
        """The signer of a key file.

        Raises:
            KeyFileError: the file cannot be used, or others can read it.
        """
        return cls(load_private_key(path))

    def signed(self, record: Record, wire: Message) -> Message:
        """A message with the signature of its payload, if it is a command under this key."""
        if not isinstance(record, Command) or record.key_id != self.key_id:
            return wire
        return replace(wire, headers=(*wire.headers, (SIGNATURE_HEADER, sign(self._key, wire.value))))
