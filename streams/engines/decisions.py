"""Role decisions: findings in order, incidents with one culprit, and the command that each asks for.

Two lanes. Urgent findings (codes after which a node is not trusted with another step, uncorrectable ECC) are taken in
the order of the log, at once. All others are taken when every detector partition has passed their time, in order of
(event time, id), so that what is decided does not depend on which worker was faster. The cause of a slow rank waits
`EVIDENCE_NS` longer for what its devices say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.findings import Evidence, Finding, ProgressMark, Subject
from schemas.remediation import ActionResult, Approval
from schemas.topics import topic_of
from streams.core.position import event_time_of
from streams.core.settle import SettledOrder
from streams.decisions.attribution import DEVICE_KINDS
from streams.decisions.commands import COMMAND_PREFIX
from streams.decisions.consents import Consents
from streams.decisions.consequences import Consequences
from streams.decisions.device_faults import FAULT_KINDS, SECOND_SIGNS, DeviceFaults
from streams.decisions.figures import check_figures
from streams.decisions.hang import HANG_KINDS, HangIncidents
from streams.decisions.held import Held, edge_of, held_of, hold_answer, hold_finding
from streams.decisions.incidents import IncidentBook
from streams.decisions.job_level import JOB_LEVEL_CLASSES, JobLevel
from streams.decisions.journal import Journal, in_journal_order
from streams.decisions.network import NETWORK_KINDS, NetworkJudge, NetworkVerdict
from streams.decisions.observations import DeviceNames, Observations
from streams.decisions.orders import Orders
from streams.decisions.outcomes import Outcomes
from streams.decisions.pause import PauseJudge, PauseVerdict
from streams.decisions.recurrence import Recurrence
from streams.decisions.remedies import remedy_for_class
from streams.decisions.slow_ranks import EVIDENCE_NS, SlowRanks
from streams.decisions.untimed import UNTIMED_KINDS, UntimedNodes
from streams.decisions.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemas.base import Record
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["DEFAULT_SETTLE_NS", "EVIDENCE_NS", "DecisionsEngine"]

_TOPIC = topic_of(Finding).name

DEFAULT_SETTLE_NS = 10_000_000_000
"""How long a finding is held past its time where no policy says otherwise."""

_TAKEN_NS = 6 * 3_600_000_000_000
"""How long a finding is remembered as taken: far longer than a restart makes a detector say again what it said."""

_TAKEN_CHECK = 1024


class DecisionsEngine:
    """Decides for one site.

    Args:
        site_id: the site.
        roster: jobs, nodes and policy.
        key_id: the key that signs what is commanded; None when nothing does.
    """

    def __init__(self, site_id: str, roster: Roster, key_id: str | None = None) -> None:
        self._roster = roster
        self._settled: SettledOrder[Held] = SettledOrder(DEFAULT_SETTLE_NS)
        self._names = DeviceNames()
        self._observations = Observations()
        self._journal = Journal(site_id)
        self._book = IncidentBook(site_id)
        self._pause = PauseJudge(EVIDENCE_NS)
        self._consents = Consents(site_id, self._book)
        self._recurrence = Recurrence()
        self._orders = Orders(
            site_id, roster, self._book, self._journal, self._pause, self._consents, self._recurrence, key_id
        )
        self._network = NetworkJudge(EVIDENCE_NS)
        self._hangs = HangIncidents(self._book, self._names, self._network)
        self._untimed_nodes = UntimedNodes(self._book)
        self._verification = Verification(self._book, self._orders, self._journal)
        self._outcomes = Outcomes(self._book, self._orders, self._verification, self._recurrence)
        self._consequences = Consequences(self._book, self._names, self._orders, self._journal)
        self._faults = DeviceFaults(
            site_id,
            roster,
            self._book,
            self._names,
            self._untimed_nodes,
            self._orders,
            self._journal,
            self._consequences,
        )
        self._slow_ranks = SlowRanks(
            roster, self._book, self._names, self._observations, self._pause, self._orders, self._journal
        )
        self._job_level = JobLevel(self._book, self._orders)
        self._taken: dict[str, int] = {}
        self._folded = -1

    @property
    def key_id(self) -> str | None:
        """The key that signs what is commanded; None when nothing does."""
        return self._orders.key_id

    @key_id.setter
    def key_id(self, key_id: str | None) -> None:
        self._orders.key_id = key_id

    def on_record(self, record: Record, position: Position | None = None) -> list[Record]:
        """Take one record, and return journal entries, incidents and commands.

        A result is held until its time has settled, and says nothing before: all that is decided is decided while a record of
        the findings topic is judged, so that the journal needs to say no more than before which of them a result was taken.

        Raises:
            InvalidRecordError: a figure that is computed with is no number; nothing is folded then.
        """
        if isinstance(record, Finding):
            check_figures(record)
        source = position.evidence() if position is not None else None
        if isinstance(record, ActionResult):
            if not record.command_id.startswith(COMMAND_PREFIX):
                # About a message that was no command of anybody.
                return []
            self._hold(hold_answer(record, position))
            return []
        if position is not None and position.offset <= self._folded:
            # It comes again after a restart, because it was held: nothing is released before all of those are back.
            if isinstance(record, Finding) and not record.urgent:
                self._hold(hold_finding(record, source))
            return []
        self._journal.source = source
        at_ns = event_time_of(record) or 0
        outputs: list[Record] = [
            *self._journal.reference(self._roster, at_ns),
            *self._journal.signing_key(self.key_id, at_ns),
        ]
        if isinstance(record, ProgressMark):
            self._settled.mark(f"{record.role}-{record.partition}", record.mark_ns)
        self._orders.now_ns = self._settled.lowest_ns
        if isinstance(record, Finding):
            if record.urgent:
                outputs += self._take(record, source, "urgent")
            else:
                self._hold(hold_finding(record, source))
        return outputs + self._faults.decide(self._settled.lowest_ns) + self._settle()

    def on_approval(self, approval: Approval, signature: str | None, position: Position | None = None) -> list[Record]:
        """Hold a consent until its time has settled, as a result is; says nothing.

        Args:
            approval: it.
            signature: why its signature does not count, in a word; None for one that holds.
            position: where it stands.
        """
        self._hold(hold_answer(approval, position, signature))
        return []

    def flush(self) -> list[Record]:
        """Take all that is held: the input has ended."""
        outputs = self._faults.decide(2**63) + self._settle(everything=True)
        return outputs + self._decide_waiting(2**63) + self._faults.decide(2**63)

    def _hold(self, held: Held) -> None:
        """Hold a record until its time has settled, unless it was taken already: then it would only make others earlier."""
        if held.edge not in self._taken:
            self._settled.add(held.at_ns, held.edge, held)

    def _settle(self, everything: bool = False) -> list[Record]:
        policy = self._roster.policy
        self._settled.settle_ns = policy.settle_ns if policy is not None else DEFAULT_SETTLE_NS
        outputs: list[Record] = []
        for held in self._settled.release(everything):
            outputs += self._decide_waiting(held.at_ns)
            if isinstance(held.record, Finding):
                outputs += self._take(held.record, held.source, "settled")
            elif held.edge not in self._taken:
                self._remember(held.edge, held.at_ns)
                if isinstance(held.record, ActionResult):
                    outputs += self._take_result(held.record, held)
                else:
                    outputs += self._take_approval(held.record, held)
        for name in self._settled.newly_left_out:
            outputs.append(self._journal.entry("mark_left_out", name, self._settled.settled_ns))
        self._settled.newly_left_out = []
        return outputs + self._decide_waiting(self._settled.settled_ns)

    def _take(self, finding: Finding, source: Evidence | None, lane: str) -> list[Record]:
        if edge_of(finding) in self._taken:
            return []
        self._remember(edge_of(finding), finding.event_time_ns)
        self._learn(finding.subject)
        followed: list[Record] = []
        if finding.kind in FAULT_KINDS:
            followed = self._faults.take(finding)
        elif finding.kind in SECOND_SIGNS:
            followed = self._faults.second_sign(finding)
        elif finding.kind in DEVICE_KINDS:
            self._observations.take(finding, self._names.of(finding.subject))
            followed = self._slow_ranks.reconsider(finding)
        elif finding.kind in {"pfc_pause", "pfc_pause_transmit"}:
            self._pause.take(finding)
        elif finding.kind == "straggler":
            followed = self._slow_ranks.take(finding)
        elif finding.kind == "changed_ranks":
            followed = self._slow_ranks.take_changed(finding)
        elif finding.kind in HANG_KINDS:
            followed = self._on_hang(finding)
        elif finding.kind in JOB_LEVEL_CLASSES:
            followed = self._job_level.take(finding)
        elif finding.kind in UNTIMED_KINDS:
            followed = self._on_untimed_node(finding)
        followed = followed or self._consequences.take(finding)
        self._hangs.note(finding)
        if finding.kind in NETWORK_KINDS or finding.kind == "network_slowdown":
            self._network.take(finding)
        entry = self._journal.entry("finding_taken", finding.finding_id, finding.event_time_ns, lane, source, followed)
        return in_journal_order([entry], followed)

    def _take_result(self, result: ActionResult, held: Held) -> list[Record]:
        followed, is_news = self._outcomes.take(result, held.at_ns)
        # What changes nothing is told too: to take it, what was due before it was decided.
        detail = {
            "outcome": result.outcome,
            "code": result.code,
            "actuator_id": result.actuator_id,
            "is_news": is_news,
        }
        entry = self._journal.entry(
            "result_taken", result.command_id, held.at_ns, None, held.source, followed, detail=detail
        )
        return in_journal_order([entry], followed)

    def _take_approval(self, approval: Approval, held: Held) -> list[Record]:
        verdict = self._consents.take(approval, held.signature, held.at_ns, self._orders)
        followed = list(verdict.followed)
        detail = {"approver": approval.approver, "signature": held.signature or "holds"}
        action = "approval_taken"
        if verdict.code:
            action, detail = "approval_refused", {**detail, "code": verdict.code, "text": verdict.text}
        entry = self._journal.entry(action, approval.command_id, held.at_ns, None, held.source, followed, detail=detail)
        return in_journal_order([entry], followed)

    def _remember(self, edge: str, at_ns: int) -> None:
        self._taken[edge] = at_ns
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
            self._slow_ranks.rename(known, better)
            self._orders.rename(known, better)
            self._consequences.rename(known, better)
        self._names.newly = []

    def _decide_waiting(self, now_ns: int) -> list[Record]:
        outputs: list[Record] = [*self._slow_ranks.decide(now_ns), *self._orders.decide(now_ns)]
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
            ordered = self._orders.order(incident, remedy_for_class(verdict.cause_class), verdict.at_ns)
            outputs += self._journal.decided(ordered, verdict.at_ns)
        for component, at_ns in (*self._pause.take_resolved(), *self._network.take_resolved()):
            if component is not None:
                outputs += self._journal.decided(self._book.resolve(component, at_ns), at_ns)
        return outputs + self._verification.decide(now_ns)

    def _on_hang(self, finding: Finding) -> list[Record]:
        followed: list[Record] = []
        at_ns = finding.event_time_ns
        for outcome in self._hangs.take(finding, self._roster):
            incident = outcome.incident
            if outcome.is_resolved:
                followed.append(self._book.record(incident, "resolved", at_ns, "", None))
            elif outcome.cause_class is not None:
                followed += self._orders.order(incident, remedy_for_class(outcome.cause_class), at_ns)
            else:
                advice = remedy_for_class(incident.cause_class, self._roster.policy).advice
                followed.append(self._book.record(incident, incident.state, at_ns, advice))
        return followed

    def _on_untimed_node(self, finding: Finding) -> list[Record]:
        """A node whose job sends no timings is out, or silent: somebody is told, nothing is asked for."""
        told = self._untimed_nodes.take(finding, self._roster)
        if told is None:
            return []
        incident, state = told
        advice = remedy_for_class(incident.cause_class, self._roster.policy).advice if state == "open" else ""
        return [self._book.record(incident, state, finding.event_time_ns, advice)]

    def resume_offsets(self) -> dict[str, int]:
        """By topic, the lowest offset of a record that is held: it is not in the snapshot and must come again."""
        lowest: dict[str, int] = {}
        for held in self._settled.held():
            if held.source is not None:
                lowest[held.source.topic] = min(held.source.offset, lowest.get(held.source.topic, held.source.offset))
        return lowest

    def snapshot(self, with_held: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_held: whether what is held is part of it, for an engine beside the same roster; false where it will come again.
        """
        settled = self._settled.snapshot(with_held)
        return {
            "settled": {**settled, "held": [(at_ns, edge, held.plain()) for at_ns, edge, held in settled["held"]]},
            "names": self._names.snapshot(with_version=with_held),
            "observations": self._observations.snapshot(),
            "book": self._book.snapshot(),
            **self._orders.snapshot(),
            "pause": self._pause.snapshot(),
            "network": self._network.snapshot(),
            "hangs": self._hangs.snapshot(),
            "untimed_nodes": self._untimed_nodes.snapshot(),
            **self._slow_ranks.snapshot(),
            "storms": self._faults.snapshot(),
            "job_level": self._job_level.snapshot(),
            "consequences": self._consequences.snapshot(),
            "consents": self._consents.snapshot(),
            "recurrence": self._recurrence.snapshot(),
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
        settled = snapshot["settled"]
        self._settled.restore(
            {**settled, "held": [(at_ns, edge, held_of(one)) for at_ns, edge, one in settled["held"]]}
        )
        self._names.restore(snapshot["names"])
        self._observations.restore(snapshot["observations"])
        self._book.restore(snapshot["book"])
        self._orders.restore(snapshot)
        self._orders.now_ns = self._settled.lowest_ns
        self._pause.restore(snapshot["pause"])
        self._network.restore(snapshot["network"])
        self._hangs.restore(snapshot["hangs"])
        self._untimed_nodes.restore(snapshot.get("untimed_nodes", {}))
        self._slow_ranks.restore(snapshot)
        self._faults.restore(snapshot["storms"])
        self._job_level.restore(snapshot.get("job_level", {}))
        self._consequences.restore(snapshot.get("consequences", {}))
        self._consents.restore(snapshot.get("consents", {}))
        self._recurrence.restore(snapshot.get("recurrence", []))
        self._taken = dict(snapshot["taken"])
        self._journal.restore(snapshot["journal"])
