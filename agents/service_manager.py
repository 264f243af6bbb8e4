"""Words to the service manager that started the agent: systemd's notification protocol, two messages of it.

Guarantees: nothing is sent where nobody listens, and nothing that goes wrong here stops the agent. The watchdog's word is
sent by the loop itself, so that a loop that is stuck falls silent and is restarted.
"""

from __future__ import annotations

import contextlib
import socket

__all__ = ["ServiceManager"]


class ServiceManager:
    """The manager's socket.

    Args:
        address: `$NOTIFY_SOCKET`: a path, or a name in the abstract namespace after `@`; empty for nobody.
    """

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self) -> None:
        """The agent is up."""
        self._send(b"READY=1")

    def alive(self) -> None:
        """The loop has come around."""
        self._send(b"WATCHDOG=1")

    def _send(self, word: bytes) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(word, self._address)
