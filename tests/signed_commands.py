"""Commands for tests, and the key, ring and message that go with them."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from factories import SITE, at

from schemas.codec import Message, message
from schemas.keyring import Keyring
from schemas.remediation import Cause, Command, Target
from streams.faust_roles.command_signer import CommandSigner

__all__ = ["KEY", "MINUTE_S", "RING", "SIGNER", "command", "signed"]

MINUTE_S = 60
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = CommandSigner(KEY)
RING = Keyring().with_key(KEY.public_key().public_bytes_raw(), "commands", "decisions", at(-3600))


def command(second: float = 0.0, *, node_id: str = "node-1", number: int = 0, **fields: Any) -> Command:
    """An order to cordon a node, decided at a second and valid for ten minutes; its id follows from node and number."""
    fields.setdefault("target", Target(level="node", node_id=node_id))
    fields.setdefault("expires_at_ns", at(second + 10 * MINUTE_S))
    return Command.model_validate(
        {
            "command_id": f"cmd-{node_id}-{number}",
            "site_id": SITE,
            "kind": "cordon_node",
            "audience": f"actuators/{SITE}",
            "cause": Cause(incident_id="inc-1"),
            "decided_at_ns": at(second),
            "sequence": number,
            "mode": "auto",
            "reason": "Xid 79",
            "key_id": SIGNER.key_id,
            **fields,
        }
    )


def signed(record: Command, signer: CommandSigner = SIGNER) -> Message:
    """A command as the decisions role publishes it."""
    return signer.signed(record, message(record))
