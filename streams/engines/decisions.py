"""Role decisions: findings in order, incidents with one culprit, and the command that each asks for.

Two lanes. Urgent findings (codes after which a node is not trusted with another step, uncorrectable ECC) are taken in
the order of the log, at once. All others are taken when every detector partition has passed their time, in order of
(event time, id), so that what is decided does not depend on which worker was faster. The cause of a slow rank waits
`EVIDENCE_NS` longer for what its devices say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.findings import Evidence, Finding, ProgressMark, Subject
from schemas.remediation import Decision
from schemas.topics import topic_of
from streams.core.settle import SettledOrder
from streams.decisions.attribution import attribute
from streams.decisions.commands import CommandDesk
from streams.decisions.incidents import Asked, IncidentBook, OpenIncident
from streams.decisions.observations import DeviceNames, Observations
from streams.decisions.pause import PauseJudge
from streams.decisions.remedies import ADVICE, Remedy, remedy_for_class, remedy_for_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.base import Record
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["DEFAULT_SETTLE_NS", "EVIDENCE_NS", "DecisionsEngine"]

_TOPIC = topic_of(Finding).name

EVIDENCE_NS = 5_000_000_000
"""Tolerance within which evidence of several nodes or switches belongs together."""

DEFAULT_SETTLE_NS = 10_000_000_000
"""How long a finding is held past its time where no policy says otherwise."""

_TAKEN_NS = 6 * 3_600_000_000_000
"""How long a finding is remembered as taken: far longer than a restart makes a detector say again what it said."""

_TAKEN_CHECK = 1024

_DEVICE_KINDS = frozenset({"thermal_violation", "sm_clock"})


@dataclass(slots=True)
class _Waiting:
    """A straggler whose cause is decided at a time."""

    due_ns: int
    finding: Finding
    component: str


class DecisionsEngine:
    """Decides for one site."""

    def __init__(self, site_id: str, roster: Roster) -> None:
        self._site_id = site_id
        self._roster = roster
        self._settled: SettledOrder[tuple[Finding, Evidence | None]] = SettledOrder(DEFAULT_SETTLE_NS)
        self._names = DeviceNames()
        self._observations = Observations()
        self._book = IncidentBook(site_id)
        self._desk = CommandDesk(site_id)
        self._pause = PauseJudge(EVIDENCE_NS)
        self._waiting: list[_Waiting] = []
        self._taken: dict[str, int] = {}
        self._journal_sequence = 0
        self._folded = -1

    def on_record(self, record: Record, position: Position | None = None) -> list[Record]:
        """Take one record of the findings topic, and return journal entries, incidents and commands."""
        source = position.evidence() if position is not None else None
        if position is not None and position.offset <= self._folded:
            # It comes again after a restart, because it was held: nothing is released before all of those are back.
            if isinstance(record, Finding) and not record.urgent and _edge(record) not in self._taken:
                self._settled.add(record.event_time_ns, _edge(record), (record, source))
            return []
        outputs: list[Record] = []
        if isinstance(record, ProgressMark):
            self._settled.mark(f"{record.role}-{record.partition}", record.mark_ns)
        elif isinstance(record, Finding):
            if record.urgent:
                outputs += self._take(record, source, "urgent")
            else:
                self._settled.add(record.event_time_ns, _edge(record), (record, source))
        return outputs + self._settle()

    def flush(self) -> list[Record]:
        """Take all that is held: the input has ended."""
        outputs = self._settle(everything=True)
        return outputs + self._decide_waiting(2**63)

    def _settle(self, everything: bool = False) -> list[Record]:
        policy = self._roster.policy
        self._settled.settle_ns = policy.settle_ns if policy is not None else DEFAULT_SETTLE_NS
        outputs: list[Record] = []
        for finding, source in self._settled.release(everything):
            outputs += self._decide_waiting(finding.event_time_ns)
            outputs += self._take(finding, source, "settled")
        for name in self._settled.newly_left_out:
            outputs.append(self._entry("mark_left_out", name, self._settled.settled_ns, None, None, ()))
        self._settled.newly_left_out = []
        return outputs + self._decide_waiting(self._settled.settled_ns)

    def _take(self, finding: Finding, source: Evidence | None, lane: str) -> list[Record]:
        if _edge(finding) in self._taken:
            return []
        self._remember(finding)
        self._learn(finding.subject)
        followed: list[Record] = []
        if finding.kind in {"xid", "sxid", "uncorrectable_ecc"}:
            followed = self._on_device_fault(finding)
        elif finding.kind in _DEVICE_KINDS:
            self._observations.take(finding, self._names.of(finding.subject))
            followed = self._reconsider(finding)
        elif finding.kind in {"pfc_pause", "pfc_pause_transmit"}:
            self._pause.take(finding)
        elif finding.kind == "straggler":
            followed = self._on_straggler(finding)
        ids = tuple(_identity(record) for record in followed)
        entry = self._entry("finding_taken", finding.finding_id, finding.event_time_ns, lane, source, ids)
        return [entry, *followed]

    def _remember(self, finding: Finding) -> None:
        self._taken[_edge(finding)] = finding.event_time_ns
        if len(self._taken) > _TAKEN_CHECK and len(self._taken) % _TAKEN_CHECK == 0:
            oldest_ns = max(self._taken.values()) - _TAKEN_NS
            self._taken = {edge: at for edge, at in self._taken.items() if at >= oldest_ns}

    def _learn(self, subject: Subject) -> None:
        """Take names seen together; what is open under a device's address goes on under its UUID."""
        self._names.learn(subject.node_id, subject.gpu_uuid, subject.pci_bus_id)
        self._names.learn_roster(self._roster)
        for node_id, address, gpu_uuid in self._names.newly:
            known, better = f"gpu:{node_id}/{address}", f"gpu:{node_id}/{gpu_uuid}"
            self._book.rename(known, better)
            for waiting in self._waiting:
                if waiting.component == known:
                    waiting.component = better
        self._names.newly = []

    def _on_device_fault(self, finding: Finding) -> list[Record]:
        """A code or an uncorrectable error: the failure table or the catalogue knows what to do."""
        if finding.kind == "uncorrectable_ecc":
            remedy = remedy_for_class("gpu_memory") if finding.urgent else None
        elif finding.values.get("trusted"):
            remedy = remedy_for_code(finding.kind, int(str(finding.values["code"])))
        else:
            remedy = None
        component = self._component(finding.subject)
        incident = self._book.on(component)
        if incident is None and remedy is None:
            return []
        opened = incident is None
        if incident is None:
            assert remedy is not None
            incident = self._book.open(component, remedy.cause_class, self._culprit(finding.subject), finding)
            incident.summary = finding.explanation
        incident.join(finding)
        if remedy is None:
            return []
        outranks = remedy.kind == "cordon_node" and "cordon_node" not in incident.commands
        again = (
            remedy.kind in incident.commands and finding.event_time_ns > incident.commands[remedy.kind].expires_at_ns
        )
        if opened or outranks or again or incident.cause_class in {"compute", "clock", "host", "data"}:
            incident.cause_class = remedy.cause_class
            incident.summary = finding.explanation
            return self._order(incident, remedy, finding.event_time_ns)
        return []

    def _culprit(self, subject: Subject) -> Subject:
        """The subject with both names of its device and the rank that runs on it, as far as they are known."""
        if subject.level != "gpu":
            return subject
        gpu = self._names.of(subject)
        gpu_uuid = gpu if gpu is not None and gpu != subject.pci_bus_id else None
        pci_bus_id = subject.pci_bus_id or self._names.address(subject.node_id, gpu_uuid)
        seat = self._roster.rank_of(subject.node_id or "", gpu_uuid, pci_bus_id)
        return subject.model_copy(
            update={
                "gpu_uuid": gpu_uuid,
                "pci_bus_id": pci_bus_id,
                "job_id": seat[0] if seat is not None else None,
                "rank": seat[2] if seat is not None else None,
            }
        )

    def _on_straggler(self, finding: Finding) -> list[Record]:
        component = self._component(finding.subject)
        incident = self._book.on(component)
        if finding.state == "cleared":
            return self._on_recovery(finding, component, incident)
        if incident is None:
            # Published only once its cause is decided: until then nobody is a culprit.
            incident = self._book.open(component, "compute", finding.subject, finding)
            incident.summary = finding.explanation
            incident.values = dict(finding.values)
        incident.join(finding)
        incident.slowdown = finding.slowdown
        incident.job_id = finding.job_id
        self._waiting.append(_Waiting(finding.event_time_ns + EVIDENCE_NS, finding, component))
        return []

    def _on_recovery(self, finding: Finding, component: str, incident: OpenIncident | None) -> list[Record]:
        if incident is None or finding.finding_id not in incident.findings:
            return []
        self._waiting = [w for w in self._waiting if w.finding.finding_id != finding.finding_id]
        if "cordon_node" in incident.commands:
            # The pace came back because the node is out, or in spite of it: that closes nothing.
            return []
        self._book.close(component)
        if not incident.is_published:
            return []
        lost = self._gpu_hours_lost(incident, finding.event_time_ns)
        return [self._book.record(incident, "resolved", finding.event_time_ns, "", lost)]

    def _decide_waiting(self, now_ns: int) -> list[Record]:
        due = sorted((w for w in self._waiting if w.due_ns <= now_ns), key=lambda w: (w.due_ns, w.finding.finding_id))
        self._waiting = [w for w in self._waiting if w.due_ns > now_ns]
        outputs: list[Record] = []
        for waiting in due:
            outputs += self._decide_straggler(waiting)
        for verdict in self._pause.decide(now_ns):
            incident = self._book.on(verdict.component)
            if incident is None:
                incident = self._book.open(verdict.component, verdict.cause_class, verdict.culprit, verdict.finding)
                incident.suppressed.extend(verdict.victims)
                incident.summary = verdict.summary
                incident.values = {"pause_frames_per_s": verdict.frames_per_s}
                outputs += self._order(incident, remedy_for_class(verdict.cause_class), verdict.finding.event_time_ns)
            else:
                incident.join(verdict.finding)
        for component, at_ns in self._pause.take_resolved():
            if self._book.on(component) is not None:
                incident = self._book.close(component)
                outputs.append(self._book.record(incident, "resolved", at_ns, "", None))
        return outputs

    def _decide_straggler(self, waiting: _Waiting) -> list[Record]:
        finding = waiting.finding
        incident = self._book.on(waiting.component)
        if incident is None or incident.commands:
            return []
        found = attribute(
            finding.subject,
            dict(finding.values),
            finding.onset_ns,
            waiting.due_ns,
            self._observations,
            self._names,
        )
        if found.cause_class == "compute" and self._pause.is_victim(finding.subject.node_id, finding.onset_ns):
            incident.suppressed.append(finding.finding_id)
            return [self._entry("suppressed", finding.finding_id, waiting.due_ns, None, None, ())]
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.findings.extend(i for i in found.because if i not in incident.findings)
        incident.summary = f"{finding.explanation}; {found.summary}"
        return self._order(incident, remedy_for_class(found.cause_class), waiting.due_ns)

    def _reconsider(self, finding: Finding) -> list[Record]:
        """Device evidence that came after a slow rank was judged without any."""
        if finding.state != "open":
            return []
        incident = self._book.on(self._component(finding.subject))
        if incident is None or not incident.commands or incident.cause_class not in {"compute", "clock"}:
            return []
        if incident.culprit is None or incident.slowdown is None:
            return []
        found = attribute(
            incident.culprit,
            incident.values,
            incident.onset_ns,
            finding.event_time_ns,
            self._observations,
            self._names,
        )
        if found.cause_class != "thermal":
            return []
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.join(finding)
        incident.summary = f"{incident.summary}; {found.summary}"
        return self._order(incident, remedy_for_class(found.cause_class), finding.event_time_ns)

    def _order(self, incident: OpenIncident, remedy: Remedy, at_ns: int) -> list[Record]:
        advice = ADVICE[remedy.cause_class]
        outputs: list[Record] = [
            self._book.record(incident, "open", at_ns, advice, self._gpu_hours_lost(incident, at_ns))
        ]
        if remedy.kind is None:
            return outputs
        asked = incident.commands.get(remedy.kind)
        if asked is not None and at_ns <= asked.expires_at_ns:
            return outputs
        attempt = asked.attempt + 1 if asked is not None else 1
        command = self._desk.command(incident, remedy, at_ns, self._roster, attempt)
        if command is not None:
            incident.commands[remedy.kind] = Asked(command.command_id, command.expires_at_ns, attempt)
            outputs.append(command)
        return outputs

    def _component(self, subject: Subject) -> str:
        """What an incident is about: one device, else one node, else the rank or port itself."""
        gpu = self._names.of(subject)
        if subject.level == "switch":
            return f"nvswitch:{subject.node_id}/{subject.pci_bus_id}"
        if gpu is not None:
            return f"gpu:{subject.node_id}/{gpu}"
        if subject.level == "rank":
            return f"rank:{subject.job_id}/{subject.rank}"
        return f"node:{subject.node_id}" if subject.node_id is not None else subject.key()

    def _gpu_hours_lost(self, incident: OpenIncident, now_ns: int) -> float | None:
        """GPU-hours that the job has lost since the onset: its ranks wait for the culprit's excess of every step."""
        excess, step_time = incident.values.get("excess_us"), incident.values.get("step_time_us")
        if not excess or not step_time or incident.job_id is None:
            return None
        gpus = self._desk.gpus_of(incident.job_id, self._roster)
        hours = max(0, now_ns - incident.onset_ns) / 3.6e12
        return float(gpus * hours * min(1.0, excess / step_time)) if gpus else None

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a finding that is held: it is not in the snapshot and must come again."""
        offsets = [source.offset for _, source in self._settled.held() if source is not None]
        return {_TOPIC: min(offsets)} if offsets else {}

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes, without the findings that are held."""
        return {
            "settled": self._settled.snapshot(with_held=False),
            "names": self._names.snapshot(),
            "observations": self._observations.snapshot(),
            "book": self._book.snapshot(),
            "desk": self._desk.snapshot(),
            "pause": self._pause.snapshot(),
            "waiting": [[waiting.due_ns, waiting.finding, waiting.component] for waiting in self._waiting],
            "taken": dict(sorted(self._taken.items())),
            "journal_sequence": self._journal_sequence,
        }

    def restore(self, snapshot: dict[str, Any], folded: Mapping[str, int]) -> None:
        """Replace the state by a snapshot's.

        Args:
            snapshot: what `snapshot` gave.
            folded: by topic, the last offset that had been taken; records up to it are held again and no more.
        """
        self._folded = folded.get(_TOPIC, -1)
        self._settled.restore(snapshot["settled"])
        self._names.restore(snapshot["names"])
        self._observations.restore(snapshot["observations"])
        self._book.restore(snapshot["book"])
        self._desk.restore(snapshot["desk"])
        self._pause.restore(snapshot["pause"])
        self._waiting = [_Waiting(due_ns, finding, component) for due_ns, finding, component in snapshot["waiting"]]
        self._taken = dict(snapshot["taken"])
        self._journal_sequence = snapshot["journal_sequence"]

    def _entry(
        self,
        action: str,
        subject_id: str,
        at_ns: int,
        lane: str | None,
        source: Evidence | None,
        followed: tuple[str, ...],
    ) -> Decision:
        sequence, self._journal_sequence = self._journal_sequence, self._journal_sequence + 1
        return Decision(
            site_id=self._site_id,
            sequence=sequence,
            event_time_ns=max(0, at_ns),
            action=action,
            lane=lane,
            subject_id=subject_id,
            source=source,
            followed=followed,
        )


def _edge(finding: Finding) -> str:
    """A finding's opening and its clearing are two statements under one id."""
    return f"{finding.finding_id}:{finding.state}"


def _identity(record: Record) -> str:
    return str(getattr(record, "command_id", None) or getattr(record, "incident_id", ""))
