"""Who is speaking: the node, its boot, and this run of the agent; and the numbers of what it says.

The boot id does not change when an agent restarts, so every run has a session of its own: (node, session, topic,
sequence number) names one record for ever. The node's name is what the operator or the host says, never what a
trainer says.
"""

from __future__ import annotations

import secrets
import socket
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["AgentIdentity", "Sequences", "agent_version", "read_boot_id"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """One run of the agent on one node.

    Attributes:
        node_id: the node's name.
        boot_id: the kernel's name for this boot.
        agent_session: a name that no other run of an agent has.
    """

    node_id: str
    boot_id: str
    agent_session: str

    @classmethod
    def of_this_run(cls, node_id: str | None, started_ns: int) -> AgentIdentity:
        """The identity of an agent that starts now.

        Args:
            node_id: the node's name; None takes the host's.
            started_ns: wall time of the start, which makes sessions sort by age.
        """
        session = f"{started_ns // 1_000_000:x}-{secrets.token_hex(4)}"
        return cls(node_id or socket.gethostname(), read_boot_id(), session)


class Sequences:
    """Numbers records of one session, by topic family, from 0 without gaps; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, int] = {}

    def take(self, family: str) -> int:
        """The next number of a topic family."""
        with self._lock:
            number = self._next.get(family, 0)
            self._next[family] = number + 1
            return number


def read_boot_id(path: Path = _BOOT_ID) -> str:
    """The kernel's random name of this boot; `unknown` where the kernel does not tell."""
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def agent_version() -> str | None:
    """The version of the installed distribution, or None in a bare checkout."""
    try:
        return version("paceline")
    except PackageNotFoundError:
        return None
