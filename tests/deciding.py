"""A decisions engine whose policy lets it act, over a fleet without jobs, and what is fed to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factories import SITE, START_NS, at, finding, policy

from schemas.findings import ProgressMark, Subject
from schemas.fleet import Node
from schemas.remediation import ActionResult, Approval, Command
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.decisions import DecisionsEngine

if TYPE_CHECKING:
    from schemas.base import Record

__all__ = ["APPROVALS", "FINDINGS", "RESULTS", "approval", "engine_of", "fed", "lost", "mark", "of", "orders", "result"]

RESULTS = "paceline.action-results.v1"
APPROVALS = "paceline.approvals.v1"
FINDINGS = "paceline.findings.v1"


def engine_of(nodes: int = 200, key_id: str | None = "ed25519-1", **fields: Any) -> DecisionsEngine:
    roster = Roster()
    roster.policy = policy(**{"mode": "auto", **fields})
    for number in range(nodes):
        place = {"rack": f"r{number // 4}", "leaf": f"l{number // 32}"}
        roster.take(Node(node_id=f"node-{number}", effective_from_ns=START_NS, **place))
    return DecisionsEngine(SITE, roster, key_id)


def lost(second: float, node: int, code: int = 79) -> Any:
    device = Subject(level="gpu", node_id=f"node-{node}", pci_bus_id="0000:10:00")
    values = {"code": code, "trusted": True}
    return finding("xid", second, device, urgent=True, values=values, finding_id=f"xid-{node}-{second}")


def mark(second: float) -> ProgressMark:
    return ProgressMark(site_id=SITE, role="telemetry", partition=0, mark_ns=at(second))


def fed(engine: DecisionsEngine, records: list[Any], first: int = 0) -> list[Record]:
    outputs: list[Record] = []
    for offset, record in enumerate(records, first):
        outputs += engine.on_record(record, Position(FINDINGS, 0, offset, 0))
    return outputs


def of(outputs: list[Record], family: type) -> list[Any]:
    return [record for record in outputs if isinstance(record, family)]


def orders(outputs: list[Record]) -> list[Command]:
    return [command for command in of(outputs, Command) if command.mode != "observe"]


def result(
    second: float, command_id: str, outcome: str = "applied", code: str | None = None, actuator_id: str = "slurm"
) -> ActionResult:
    return ActionResult(
        command_id=command_id,
        site_id=SITE,
        actuator_id=actuator_id,
        event_time_ns=at(second),
        outcome=outcome,
        code=code,
    )


def approval(
    second: float, command_id: str, approver: str = "ada", minutes: float = 60.0, site: str = SITE
) -> Approval:
    return Approval(
        command_id=command_id,
        site_id=site,
        approver=approver,
        event_time_ns=at(second),
        expires_at_ns=at(second + 60 * minutes),
    )
