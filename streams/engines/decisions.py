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
from schemas.remediation import Incident
from schemas.topics import topic_of
from streams.core.position import event_time_of
from streams.core.settle import SettledOrder
from streams.decisions.acts import COSTS_A_NODE
from streams.decisions.attribution import DEVICE_KINDS, KIND_OF_CAUSE, attribute
from streams.decisions.commands import CommandDesk
from streams.decisions.explained import Explained
from streams.decisions.figures import check_figures
from streams.decisions.gate import Gate
from streams.decisions.hang import HANG_KINDS, HangIncidents
from streams.decisions.incidents import Asked, IncidentBook, OpenIncident
from streams.decisions.journal import Journal, in_journal_order
from streams.decisions.network import NETWORK_KINDS, NetworkJudge, NetworkVerdict
from streams.decisions.observations import DeviceNames, Observations
from streams.decisions.pause import PauseJudge, PauseVerdict
from streams.decisions.places import SharedPlace, place_of_heat, place_of_ranks
from streams.decisions.remedies import ADVICE, Remedy, remedy_for_class, remedy_for_code
from streams.decisions.storms import Storms
from streams.decisions.untimed import UNTIMED_KINDS, UntimedNodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.base import Record
    from schemas.remediation import Command
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

_WITHOUT_DEVICE_REASON = frozenset(
    {"compute", "clock", "host", "data", "hang_rank", "hang_device", "gpu_stalled", "node_lost"}
)
"""Classes that a device's own word outranks."""

_HEAT_SPAN_NS = 600_000_000_000
"""GPUs that begin to slow for heat within this span are looked at together: heat rises over minutes."""


@dataclass(slots=True)
class _Waiting:
    """A straggler whose cause is decided at a time."""

    due_ns: int
    finding: Finding
    component: str


class DecisionsEngine:
    """Decides for one site.

    Args:
        site_id: the site.
        roster: jobs, nodes and policy.
        key_id: the key that signs what is commanded; None when nothing does.
    """

    def __init__(self, site_id: str, roster: Roster, key_id: str | None = None) -> None:
        self.key_id = key_id
        self._roster = roster
        self._settled: SettledOrder[tuple[Finding, Evidence | None]] = SettledOrder(DEFAULT_SETTLE_NS)
        self._names = DeviceNames()
        self._observations = Observations()
        self._book = IncidentBook(site_id)
        self._desk = CommandDesk(site_id)
        self._pause = PauseJudge(EVIDENCE_NS)
        self._network = NetworkJudge(EVIDENCE_NS)
        self._hangs = HangIncidents(self._book, self._names, self._network)
        self._untimed_nodes = UntimedNodes(self._book)
        self._places = Explained()
        self._waiting: list[_Waiting] = []
        self._gate = Gate()
        self._storms = Storms(site_id, self._book)
        self._taken: dict[str, int] = {}
        self._journal = Journal(site_id)
        self._folded = -1

    def on_record(self, record: Record, position: Position | None = None) -> list[Record]:
        """Take one record of the findings topic, and return journal entries, incidents and commands.

        Raises:
            InvalidRecordError: a figure that is computed with is no number; nothing is folded then.
        """
        if isinstance(record, Finding):
            check_figures(record)
        source = position.evidence() if position is not None else None
        if position is not None and position.offset <= self._folded:
            # It comes again after a restart, because it was held: nothing is released before all of those are back.
            if isinstance(record, Finding) and not record.urgent:
                self._hold(record, source)
            return []
        self._journal.source = source
        at_ns = event_time_of(record) or 0
        outputs: list[Record] = [
            *self._journal.reference(self._roster, at_ns),
            *self._journal.signing_key(self.key_id, at_ns),
        ]
        if isinstance(record, ProgressMark):
            self._settled.mark(f"{record.role}-{record.partition}", record.mark_ns)
        elif isinstance(record, Finding):
            if record.urgent:
                outputs += self._take(record, source, "urgent")
            else:
                self._hold(record, source)
        return outputs + self._decide_faults(self._settled.lowest_ns) + self._settle()

    def flush(self) -> list[Record]:
        """Take all that is held: the input has ended."""
        outputs = self._decide_faults(2**63) + self._settle(everything=True)
        return outputs + self._decide_waiting(2**63) + self._decide_faults(2**63)

    def _hold(self, finding: Finding, source: Evidence | None) -> None:
        """Hold a finding until its time has settled, unless it was taken already: then it would only make others earlier."""
        if _edge(finding) not in self._taken:
            self._settled.add(finding.event_time_ns, _edge(finding), (finding, source))

    def _settle(self, everything: bool = False) -> list[Record]:
        policy = self._roster.policy
        self._settled.settle_ns = policy.settle_ns if policy is not None else DEFAULT_SETTLE_NS
        outputs: list[Record] = []
        for finding, source in self._settled.release(everything):
            outputs += self._decide_waiting(finding.event_time_ns)
            outputs += self._take(finding, source, "settled")
        for name in self._settled.newly_left_out:
            outputs.append(self._journal.entry("mark_left_out", name, self._settled.settled_ns))
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
        elif finding.kind in DEVICE_KINDS:
            self._observations.take(finding, self._names.of(finding.subject))
            followed = self._reconsider(finding)
        elif finding.kind in {"pfc_pause", "pfc_pause_transmit"}:
            self._pause.take(finding)
        elif finding.kind == "straggler":
            followed = self._on_straggler(finding)
        elif finding.kind == "changed_ranks":
            followed = self._on_changed_ranks(finding)
        elif finding.kind in HANG_KINDS:
            followed = self._on_hang(finding)
        elif finding.kind in UNTIMED_KINDS:
            followed = self._on_untimed_node(finding)
        self._hangs.note(finding)
        if finding.kind in NETWORK_KINDS or finding.kind == "network_slowdown":
            self._network.take(finding)
        entry = self._journal.entry("finding_taken", finding.finding_id, finding.event_time_ns, lane, source, followed)
        return in_journal_order([entry], followed)

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
        remedy = self._remedy_of(finding)
        if remedy is not None and self._waits_for_others(finding, remedy):
            self._storms.add(finding)
            return []
        return self._on_fault(finding, remedy, finding.event_time_ns)

    def _waits_for_others(self, finding: Finding, remedy: Remedy) -> bool:
        """Whether a fault would have somebody take a node out: then it is first seen how many fail at once."""
        node_id = finding.subject.node_id
        if node_id is None or remedy.kind not in COSTS_A_NODE or finding.state != "open":
            return False
        jobs = tuple(job_id for job_id, _ in self._roster.jobs_on(node_id))
        return self._gate.wanted(remedy.kind, node_id, jobs, self._roster, self.key_id is not None) != "observe"

    def _decide_faults(self, passed_ns: int) -> list[Record]:
        """Faults that have waited for others: each for itself, or all of a storm as one."""
        outputs: list[Record] = []
        followed: list[Record]
        for released in self._storms.release(passed_ns, self._roster.policy):
            at_ns = released.at_ns
            if released.word == "over":
                assert released.incident is not None
                followed = [self._book.record(released.incident, "resolved", at_ns, "", None)]
            elif released.word == "opened":
                assert released.incident is not None
                holds = {"holds": [{"guard": "common_mode", "reason": released.reason}]}
                followed = [
                    self._journal.entry("held", released.incident.incident_id, at_ns, detail=holds),
                    *self._order(released.incident, remedy_for_class("common_mode"), at_ns),
                ]
            else:
                assert released.finding is not None
                followed = self._on_fault(released.finding, self._remedy_of(released.finding), at_ns)
            outputs += self._decided(followed, at_ns)
        return outputs

    @staticmethod
    def _remedy_of(finding: Finding) -> Remedy | None:
        """What the failure table or the catalogue has for a code or an uncorrectable error."""
        if finding.kind == "uncorrectable_ecc":
            return remedy_for_class("gpu_memory") if finding.urgent else None
        if not finding.values.get("trusted"):
            return None
        return remedy_for_code(finding.kind, int(str(finding.values.get("code"))))

    def _on_fault(self, finding: Finding, remedy: Remedy | None, at_ns: int) -> list[Record]:
        """Open an incident for a fault, or join the one that its part has, and order what answers it."""
        component = self._names.component(finding.subject)
        if remedy is not None:
            self._untimed_nodes.hand_over(component, self._names.culprit(finding.subject, self._roster))
        incident = self._book.on(component)
        if incident is None and remedy is None:
            return []
        opened = incident is None
        if incident is None:
            assert remedy is not None
            incident = self._book.open(
                component, remedy.cause_class, self._names.culprit(finding.subject, self._roster), finding
            )
            incident.summary = finding.explanation
        incident.join(finding)
        if remedy is None:
            return []
        outranks = remedy.kind == "cordon_node" and "cordon_node" not in incident.commands
        again = (
            remedy.kind in incident.commands and finding.event_time_ns > incident.commands[remedy.kind].expires_at_ns
        )
        if opened or outranks or again or incident.cause_class in _WITHOUT_DEVICE_REASON:
            incident.cause_class = remedy.cause_class
            incident.summary = finding.explanation
            return self._order(incident, remedy, at_ns)
        return []

    def _on_straggler(self, finding: Finding) -> list[Record]:
        component = self._names.component(finding.subject)
        incident = self._book.on(component)
        if finding.state == "cleared":
            return self._on_place_recovery(finding) or self._on_recovery(finding, component, incident)
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
        lost = self._desk.gpu_hours_lost(incident, finding.event_time_ns, self._roster)
        return [self._book.record(incident, "resolved", finding.event_time_ns, "", lost)]

    def _decide_waiting(self, now_ns: int) -> list[Record]:
        due = sorted((w for w in self._waiting if w.due_ns <= now_ns), key=lambda w: (w.due_ns, w.finding.finding_id))
        self._waiting = [w for w in self._waiting if w.due_ns > now_ns]
        outputs: list[Record] = []
        for waiting in due:
            outputs += self._decided(self._decide_straggler(waiting), waiting.due_ns)
        verdicts: list[PauseVerdict | NetworkVerdict] = [*self._pause.decide(now_ns)]
        verdicts += self._network.decide(now_ns, self._roster, self._pause.is_standing)
        for verdict in verdicts:
            incident = self._book.on(verdict.component)
            if incident is not None:
                incident.join(verdict.finding)
                continue
            incident = self._book.open(verdict.component, verdict.cause_class, verdict.culprit, verdict.finding)
            incident.suppressed.extend(verdict.victims)
            incident.findings.extend(verdict.because)
            incident.summary = verdict.summary
            incident.values = verdict.values
            ordered = self._order(incident, remedy_for_class(verdict.cause_class), verdict.at_ns)
            outputs += self._decided(ordered, verdict.at_ns)
        for component, at_ns in (*self._pause.take_resolved(), *self._network.take_resolved()):
            outputs += self._decided(self._resolve(component, at_ns), at_ns)
        return outputs

    def _resolve(self, component: str | None, at_ns: int) -> list[Record]:
        """Close an incident whose cause is gone by itself."""
        if component is None or self._book.on(component) is None:
            return []
        return [self._book.record(self._book.close(component), "resolved", at_ns, "", None)]

    def _on_hang(self, finding: Finding) -> list[Record]:
        followed: list[Record] = []
        at_ns = finding.event_time_ns
        for outcome in self._hangs.take(finding, self._roster):
            incident = outcome.incident
            if outcome.is_resolved:
                followed.append(self._book.record(incident, "resolved", at_ns, "", None))
            elif outcome.cause_class is not None:
                followed += self._order(incident, remedy_for_class(outcome.cause_class), at_ns)
            else:
                followed.append(self._book.record(incident, "open", at_ns, ADVICE[incident.cause_class]))
        return followed

    def _on_untimed_node(self, finding: Finding) -> list[Record]:
        """A node whose job sends no timings is out, or silent: somebody is told, nothing is asked for."""
        told = self._untimed_nodes.take(finding, self._roster)
        if told is None:
            return []
        incident, state = told
        advice = ADVICE[incident.cause_class] if state == "open" else ""
        return [self._book.record(incident, state, finding.event_time_ns, advice)]

    def _on_changed_ranks(self, finding: Finding) -> list[Record]:
        """Ranks that became slow together: the place that has all of them, if there is one."""
        if finding.state == "cleared":
            return self._on_place_recovery(finding)
        place = place_of_ranks(finding, self._roster)
        return self._on_place(place, "shared_place", finding, finding.event_time_ns) if place is not None else []

    def _on_place(self, place: SharedPlace, cause_class: str, finding: Finding, at_ns: int) -> list[Record]:
        """A finding that a place explains: the first one opens the place's incident, which costs nobody a node."""
        component = f"{place.kind}:{place.name}"
        self._places.join(finding.finding_id, component)
        incident = self._book.on(component)
        if incident is not None:
            incident.suppress(finding)
            return [self._journal.entry("suppressed", finding.finding_id, at_ns)]
        incident = self._book.open(component, cause_class, place.subject(), finding)
        incident.summary = f"{finding.explanation}; {place.suspects} devices of {place.kind} {place.name} alike"
        return self._order(incident, remedy_for_class(cause_class), at_ns)

    def _on_place_recovery(self, finding: Finding) -> list[Record]:
        return self._resolve(self._places.leave(finding.finding_id), finding.event_time_ns)

    def _shared_heat(self, at_ns: int) -> SharedPlace | None:
        """The place whose GPUs slow themselves for heat together."""
        hot = self._observations.nodes_of("thermal_violation", at_ns - _HEAT_SPAN_NS, at_ns)
        return place_of_heat(hot, self._roster.nodes)

    def _decided(self, followed: list[Record], at_ns: int) -> list[Record]:
        """What was decided when the wait for it was over, with the journal's entry of it before it."""
        incidents = [record for record in followed if isinstance(record, Incident)]
        entries = [self._journal.entry("incident", i.incident_id, at_ns, followed=followed) for i in incidents]
        return in_journal_order(entries, followed)

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
            return [self._journal.entry("suppressed", finding.finding_id, waiting.due_ns)]
        place = self._shared_heat(waiting.due_ns) if found.cause_class == "thermal" else None
        if place is not None and not incident.is_published:
            self._book.close(waiting.component)
            return self._on_place(place, "cooling", finding, waiting.due_ns)
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.findings.extend(i for i in found.because if i not in incident.findings)
        if found.because and found.cause_class in KIND_OF_CAUSE:
            incident.signs.observe(KIND_OF_CAUSE[found.cause_class])
        incident.summary = f"{finding.explanation}; {found.summary}"
        return self._order(incident, remedy_for_class(found.cause_class), waiting.due_ns)

    def _reconsider(self, finding: Finding) -> list[Record]:
        """Device evidence that came after a slow rank was judged without any."""
        if finding.state != "open":
            return []
        incident = self._book.on(self._names.component(finding.subject))
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
        if found.cause_class != "thermal" or self._shared_heat(finding.event_time_ns) is not None:
            return []
        incident.cause_class, incident.culprit = found.cause_class, found.culprit
        incident.join(finding)
        incident.summary = f"{incident.summary}; {found.summary}"
        return self._order(incident, remedy_for_class(found.cause_class), finding.event_time_ns)

    def _order(self, incident: OpenIncident, remedy: Remedy, at_ns: int) -> list[Record]:
        advice = ADVICE[remedy.cause_class]
        outputs: list[Record] = [
            self._book.record(incident, "open", at_ns, advice, self._desk.gpu_hours_lost(incident, at_ns, self._roster))
        ]
        if remedy.kind is None:
            return outputs
        asked = incident.commands.get(remedy.kind)
        if asked is not None and at_ns <= asked.expires_at_ns:
            return outputs
        attempt = asked.attempt + 1 if asked is not None else 1
        command = self._desk.command(incident, remedy, at_ns, self._roster, attempt, self.key_id)
        if command is not None:
            incident.commands[remedy.kind] = Asked(command.command_id, command.expires_at_ns, attempt)
            outputs += self._through_the_gate(command, incident, at_ns)
        return outputs

    def _through_the_gate(self, draft: Command, incident: OpenIncident, at_ns: int) -> list[Record]:
        """A command with its mode; before it an entry of why it did not get the one that the policy wants."""
        command, wanted, found = self._gate.pass_through(draft, incident.signs, self._roster, self.key_id is not None)
        if not found:
            return [command]
        detail = {"wanted": wanted, "holds": [{"guard": hold.guard, "reason": hold.reason} for hold in found]}
        return [self._journal.entry("held", command.command_id, at_ns, detail=detail), command]

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
            "network": self._network.snapshot(),
            "hangs": self._hangs.snapshot(),
            "untimed_nodes": self._untimed_nodes.snapshot(),
            "places": self._places.snapshot(),
            "waiting": [[waiting.due_ns, waiting.finding, waiting.component] for waiting in self._waiting],
            "gate": self._gate.snapshot(),
            "storms": self._storms.snapshot(),
            "taken": dict(sorted(self._taken.items())),
            "journal": self._journal.snapshot(),
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
        self._network.restore(snapshot["network"])
        self._hangs.restore(snapshot["hangs"])
        self._untimed_nodes.restore(snapshot.get("untimed_nodes", {}))
        self._places.restore(snapshot["places"])
        self._waiting = [_Waiting(due_ns, finding, component) for due_ns, finding, component in snapshot["waiting"]]
        self._taken = dict(snapshot["taken"])
        self._gate.restore(snapshot["gate"])
        self._storms.restore(snapshot["storms"])
        self._journal.restore(snapshot["journal"])


def _edge(finding: Finding) -> str:
    """A finding's opening and its clearing are two statements under one id."""
    return f"{finding.finding_id}:{finding.state}"
