"""Commands made from incidents: the target named by its device, what it costs, how long it stays valid.

A command is not repeated: its id depends on incident, kind, target and attempt. `sequence` counts up per target.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from schemas.base import deterministic_id, round_significant
from schemas.remediation import Cause, Command, Target

if TYPE_CHECKING:
    from streams.core.roster import Roster
    from streams.decisions.incidents import OpenIncident
    from streams.decisions.remedies import Remedy

__all__ = ["COMMAND_PREFIX", "CommandDesk", "id_of_command"]

_MAX_EVIDENCE = 16
_PREFIX = "cmd"
COMMAND_PREFIX = f"{_PREFIX}-"
"""How the id of every command begins."""


def id_of_command(incident_id: str, kind: str, target: str, attempt: int) -> str:
    """The id of a command by its incident, its kind, its target's name and which attempt it is."""
    return deterministic_id(_PREFIX, incident_id, kind, target, attempt)


class CommandDesk:
    """Writes the commands of one site."""

    def __init__(self, site_id: str) -> None:
        self._site_id = site_id
        self._sequence: dict[str, int] = {}

    def command(
        self,
        incident: OpenIncident,
        remedy: Remedy,
        at_ns: int,
        roster: Roster,
        attempt: int,
        key_id: str | None = None,
    ) -> Command | None:
        """The command that a remedy asks for, or None when the culprit gives it no target."""
        target = _target(incident, remedy)
        if target is None or remedy.kind is None:
            return None
        policy = roster.policy
        name = target.name()
        sequence = self._sequence[name] = self._sequence.get(name, -1) + 1
        return Command(
            command_id=id_of_command(incident.incident_id, remedy.kind, name, attempt),
            site_id=self._site_id,
            kind=remedy.kind,
            target=target,
            audience=f"actuators/{self._site_id}",
            cause=Cause(
                incident_id=incident.incident_id,
                findings=tuple(sorted(incident.findings)),
                evidence=tuple(incident.evidence[:_MAX_EVIDENCE]),
            ),
            decided_at_ns=at_ns,
            expires_at_ns=at_ns + remedy.term_ns,
            sequence=sequence,
            attempt=attempt,
            # As it is drafted: the gate may give it more.
            mode="observe",
            when=remedy.when,
            taint=remedy.taint,
            reason=incident.summary,
            cost_estimate=self._cost(incident, roster),
            policy_version=policy.policy_version if policy is not None else "default",
            key_id=key_id,
        )

    def superseding(
        self,
        waiting: Command,
        at_ns: int,
        expires_at_ns: int,
        attempt: int,
        approver: str,
        key_id: str | None,
        roster: Roster,
    ) -> Command:
        """The order that takes the place of a command to which somebody consented."""
        name = waiting.target.name()
        sequence = self._sequence[name] = self._sequence.get(name, -1) + 1
        changes = {
            "command_id": id_of_command(waiting.cause.incident_id, waiting.kind, name, attempt),
            "decided_at_ns": at_ns,
            "expires_at_ns": expires_at_ns,
            "sequence": sequence,
            "attempt": attempt,
            "mode": "auto",
            "policy_version": roster.policy.policy_version if roster.policy is not None else "default",
            "key_id": key_id,
            "supersedes": waiting.command_id,
            "approved_by": approver,
        }
        return waiting.model_copy(update=changes)

    @staticmethod
    def gpus_of(job_id: str, roster: Roster) -> int:
        """World size of the newest epoch of a job; 0 when it is not registered."""
        sizes = [
            job.job.world_size
            for (name, _), job in sorted(roster.jobs.items())
            if name == job_id and job.job is not None
        ]
        return sizes[-1] if sizes else 0

    def gpu_hours_lost(self, incident: OpenIncident, now_ns: int, roster: Roster) -> float | None:
        """GPU-hours that the job has lost since the onset: its ranks wait for the culprit's excess of every step."""
        excess, step_time = incident.values.get("excess_us"), incident.values.get("step_time_us")
        if not excess or not step_time or incident.job_id is None:
            return None
        gpus = self.gpus_of(incident.job_id, roster)
        hours = max(0, now_ns - incident.onset_ns) / 3.6e12
        return float(gpus * hours * min(1.0, excess / step_time)) if gpus else None

    @staticmethod
    def time_lost_ns(incident: OpenIncident, now_ns: int) -> int | None:
        """Time that the job has lost to an incident since its onset; None where nothing is lost step by step."""
        share = _share_lost(incident.values)
        return round(share * max(0, now_ns - incident.onset_ns)) if share is not None else None

    @staticmethod
    def lost_by_ns(incident: OpenIncident, lost_ns: float) -> int | None:
        """When a job will have lost so much time to an incident that goes on as it is; None where it never will."""
        share = _share_lost(incident.values)
        return incident.onset_ns + ceil(lost_ns / share) if share else None

    def _cost(self, incident: OpenIncident, roster: Roster) -> dict[str, float]:
        """What waiting costs per hour: GPU-hours, and money where a price is known."""
        excess, step_time = incident.values.get("excess_us"), incident.values.get("step_time_us")
        if not excess or not step_time or incident.job_id is None:
            return {}
        gpus = self.gpus_of(incident.job_id, roster)
        lost_per_hour = gpus * min(1.0, excess / step_time)
        cost = {"gpu_hours_lost_per_hour": round_significant(lost_per_hour)}
        policy = roster.policy
        if policy is not None and policy.gpu_hour_cost is not None:
            cost["money_lost_per_hour"] = round_significant(lost_per_hour * policy.gpu_hour_cost)
        return cost

    def snapshot(self) -> dict[str, int]:
        """Plain data that `restore` takes."""
        return dict(sorted(self._sequence.items()))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._sequence = dict(snapshot)


def _share_lost(values: dict[str, Any]) -> float | None:
    """Share of the step that a slow part takes from its job: own time beyond its peers', or transfers beyond theirs."""
    step_us, excess_us = values.get("step_time_us"), values.get("excess_us")
    transfer_us, reference_us = values.get("transfer_us"), values.get("reference_us")
    if excess_us is None and transfer_us is not None and reference_us is not None:
        excess_us = transfer_us - reference_us
    if not step_us or excess_us is None:
        return None
    return float(min(1.0, max(0.0, excess_us / step_us)))


def _target(incident: OpenIncident, remedy: Remedy) -> Target | None:
    culprit = incident.culprit
    if remedy.level == "job":
        # What is done to a job needs nobody to blame.
        job_id = culprit.job_id if culprit is not None else incident.job_id
        return Target(level="job", job_id=job_id) if job_id is not None else None
    if culprit is None:
        return None
    if remedy.level == "switch":
        return Target(level="switch", switch_id=culprit.switch_id) if culprit.switch_id is not None else None
    if remedy.level == "port":
        return Target(
            level="port",
            node_id=culprit.node_id,
            switch_id=culprit.switch_id,
            device=culprit.device,
            port=culprit.port,
        )
    if culprit.node_id is None:
        return None
    # A node is what can be taken out; the GPU says which part of it is to be looked at.
    return Target(
        level=remedy.level,
        node_id=culprit.node_id,
        gpu_uuid=culprit.gpu_uuid,
        pci_bus_id=culprit.pci_bus_id,
        job_id=culprit.job_id,
    )
