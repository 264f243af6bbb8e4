"""Incidents, the commands they ask for, what came of them, and the journal that ties them together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from schemas.base import DeviceKey, EventTimeNs, Identifier, Record
from schemas.findings import Evidence, Subject

__all__ = [
    "COMMAND_KINDS",
    "ActionResult",
    "Approval",
    "Cause",
    "Command",
    "CommandKind",
    "Decision",
    "Incident",
    "Target",
]

CommandKind = Literal[
    "collect_evidence",
    "run_preflight",
    "restart_job",
    "reset_gpu",
    "drain_node",
    "cordon_node",
    "swap_spare",
    "reboot_node",
    "replace_hardware",
    "network_action",
    "uncordon_node",
]
COMMAND_KINDS: tuple[str, ...] = CommandKind.__args__  # type: ignore[attr-defined]


class Incident(Record):
    """One transition of one incident; the latest state is a fold over them.

    `culprit` is null when there is nobody to blame. `cause_class` names the class (`thermal`, `host`, `gpu_lost`,
    `pause_storm`, ...). `suppressed` are findings that are explained by this cause.
    """

    record: Literal["incident"] = "incident"
    incident_id: Identifier
    site_id: Identifier
    state: Literal["open", "acting", "verifying", "resolved"]
    cause_class: Identifier
    culprit: Subject | None = None
    job_id: str | None = None
    event_time_ns: EventTimeNs
    onset_ns: EventTimeNs
    findings: tuple[str, ...] = ()
    suppressed: tuple[str, ...] = ()
    summary: str = ""
    advice: str = ""
    slowdown: float | None = None
    gpu_hours_lost: float | None = None


class Target(Record):
    """What a command acts on, by the field's own names."""

    level: Literal["gpu", "node", "port", "switch", "job"]
    node_id: str | None = None
    gpu_uuid: DeviceKey | None = None
    pci_bus_id: DeviceKey | None = None
    device: str | None = None
    port: str | None = None
    switch_id: str | None = None
    job_id: str | None = None

    def key(self) -> str:
        """The key of the actions topic, and a name for people: switch, node or job."""
        return self.switch_id or self.node_id or self.job_id or ""

    def name(self) -> str:
        """A text that is equal exactly for equal targets."""
        parts = (self.key(), self.gpu_uuid or self.pci_bus_id, self.device, self.port)
        return "/".join(part for part in parts if part)


class Cause(Record):
    """Why a command was given: its incident, the findings and the records under them."""

    incident_id: Identifier
    findings: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()


class Command(Record):
    """A remediation order. In mode `observe` it states what would be done and nobody may carry it out.

    `supersedes` is the command that waited for consent and in whose place this one stands, and `approved_by` who gave it.
    """

    record: Literal["command"] = "command"
    command_id: Identifier
    site_id: Identifier
    kind: CommandKind
    target: Target
    audience: Identifier
    cause: Cause
    decided_at_ns: EventTimeNs
    expires_at_ns: EventTimeNs
    sequence: int = Field(ge=0)
    attempt: int = Field(default=1, ge=1)
    mode: Literal["observe", "approve", "auto"]
    when: Literal["now", "after_checkpoint"] = "now"
    taint: str | None = None
    reason: str = ""
    cost_estimate: dict[str, float] = Field(default_factory=dict)
    policy_version: str = "default"
    key_id: str | None = None
    supersedes: Identifier | None = None
    approved_by: Identifier | None = None


class ActionResult(Record):
    """What an actuator made of a command.

    `code` is the word for why, one of a fixed few (`bad_signature`, `expired`, `already_so`, ...); `reason` is the text. A
    message whose signature does not hold says nothing about any command: the result then has an id of its own, and
    `message` says where it stands.
    """

    record: Literal["action_result"] = "action_result"
    command_id: Identifier
    site_id: Identifier
    actuator_id: Identifier
    event_time_ns: EventTimeNs
    outcome: Literal["applied", "refused", "failed", "expired"]
    reason: str = ""
    code: str | None = None
    message: Evidence | None = None


class Approval(Record):
    """A person's consent to one waiting command, signed by a key whose holder is the approver.

    What it makes may be carried out until `expires_at_ns`, and not beyond the command's own term.
    """

    record: Literal["approval"] = "approval"
    command_id: Identifier
    site_id: Identifier
    approver: Identifier
    event_time_ns: EventTimeNs
    expires_at_ns: EventTimeNs


class Decision(Record):
    """One entry of the decisions journal: what was taken, in which order, and what followed.

    `source` is the place of what was taken, else of the record that made the entry. `sequence` counts the entries of one
    partition of findings from 0; after a restart numbers come again, mostly with the same bytes. `reference_taken` stands before the
    first record that was judged by other reference records than the one before it: `detail` says, by `topic/partition`,
    how many of those had been read. `signing_key_taken` stands before the first record whose commands name another signing
    key; its subject is the key, `none` without one. `held` says which guard kept a command from more than `observe`.
    `result_taken`, `approval_taken` and `approval_refused` are about a command: their source is the result or the approval, and
    `taken_at` of `detail` is the offset of the findings record with which it was taken.
    """

    record: Literal["decision"] = "decision"
    site_id: Identifier
    sequence: int = Field(ge=0)
    event_time_ns: EventTimeNs
    action: Literal[
        "finding_taken",
        "mark_left_out",
        "reference_taken",
        "incident",
        "command",
        "suppressed",
        "signing_key_taken",
        "held",
        "result_taken",
        "approval_taken",
        "approval_refused",
    ]
    lane: Literal["urgent", "settled"] | None = None
    subject_id: str
    source: Evidence | None = None
    followed: tuple[str, ...] = ()
    detail: dict[str, Any] = Field(default_factory=dict)
