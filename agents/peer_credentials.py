"""Who is at the other end of a Unix socket, as the kernel says, and whether a process id that it claims is its own.

A process has one id in each namespace that it is in, and knows only the innermost; the kernel lists them all. What the
kernel does not tell is None and never taken for a yes or a no: a process in a namespace beside ours, or behind a kernel
of its own (gVisor, a virtual machine), cannot be checked.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

__all__ = ["claims_its_own_pid", "peer_of"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process id (0 if it is in a namespace that cannot be seen from here) and user of who opened a connection."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def claims_its_own_pid(pid: int, claimed: int, procfs_root: Path = Path("/proc")) -> bool | None:
    """Whether a process may call itself by an id: its own here, or its own in a namespace further inside.

    Args:
        pid: the process as seen from here; 0 if it cannot be seen.
        claimed: what it calls itself.
        procfs_root: where procfs is mounted.

    Returns:
        None where the kernel does not tell, as of a process that has ended.
    """
    if pid == claimed:
        return True
    if pid <= 0:
        return None
    try:
        status = (procfs_root / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return str(claimed) in line.split()[1:]
    return None
