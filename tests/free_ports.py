"""Ports for servers that tests start: below the range of outgoing connections, so that no client of a test takes one first."""

from __future__ import annotations

from deploy.brokers.apache import free_port

__all__ = ["free_ports"]


def free_ports(count: int) -> list[int]:
    """Distinct ports of loopback that nothing listens on now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
