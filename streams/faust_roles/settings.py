"""Settings of a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ROLES", "Role", "WorkerSettings"]

Role = Literal["telemetry", "jobs", "decisions"]
ROLES: tuple[Role, ...] = ("telemetry", "jobs", "decisions")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker needs to know.

    Attributes:
        role: which of the three apps it runs.
        bootstrap_servers: `host:port` of the brokers, comma-separated.
        site_id: the site whose records are read; findings carry it.
        instance_id: static group membership, so that a restart within the session time does not move partitions.
        metrics_port: where Prometheus scrapes; 0 takes a free port, None serves nothing.
        partitions: partition count of the role's topics and of its snapshots.
        snapshot_every_s: seconds between snapshots of a partition's state.
        signing_key: file of the private key that signs commands; read by the decisions role alone.
        keyring: file of the ring by which approvals are checked; read by the decisions role alone, none means that nobody approves.
        stuck_after_s: a worker that has something to read and processes nothing for this long ends itself.
        session_timeout_s: how long a dead worker keeps its partitions. 15 s: a control loop cannot wait Faust's minute.
    """

    role: Role
    bootstrap_servers: str
    site_id: str
    instance_id: str | None = None
    metrics_port: int | None = None
    partitions: int = 4
    snapshot_every_s: float = 10.0
    session_timeout_s: float = 15.0
    stuck_after_s: float = 120.0
    signing_key: Path | None = None
    keyring: Path | None = None
