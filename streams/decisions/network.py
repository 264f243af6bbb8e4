"""What slows a job's transfers: slow communicators joined to what ports, cables and links of their nodes say.

A slow transfer makes all members of its communicator wait alike, so step timings never tell which member's link it is.
The place follows from device evidence alone, and only from evidence that can explain every slow communicator:

- trouble on one cable (either end of it): that port;
- on cables of several nodes that end at one switch: that switch;
- on several cables of one node: that node;
- where different cables touch different slow communicators: the one switch at which nearly all of them end, told by loss
  alone that began with the slowness;
- else, or without any evidence: nobody is named, and the job's own finding ("network, unlocalised") stands.

Evidence that comes later is taken into account while the transfers are slow. Pause storms are judged in `pause`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schemas.findings import Subject
from streams.decisions.explained import Explained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.findings import Finding
    from streams.core.roster import Roster

__all__ = ["NETWORK_KINDS", "NetworkJudge", "NetworkVerdict"]

_LINK = frozenset(
    {
        "link_down",
        "link_flapping",
        "link_error_recovery",
        "symbol_error",
        "port_rcv_errors",
        "rx_crc_errors_phy",
        "rx_crc_errors",
        "rx_symbol_err_phy",
        "local_ack_timeout_err",
        "SAI_PORT_STAT_IF_IN_ERRORS",
    }
)
_SPEED = frozenset({"port_speed"})
_PCIE = frozenset({"pcie_link", "nic_pcie_link"})
_LOSS = frozenset(
    {
        "out_of_sequence",
        "packet_seq_err",
        "oos_drop_count",
        "seq_err_naks_rcvd",
        "port_xmit_discards",
        "rx_discards_phy",
        "tx_discards_phy",
        "rx_out_of_buffer",
        "rx_missed_errors",
        "SAI_PORT_STAT_IF_OUT_DISCARDS",
        "SAI_PORT_STAT_IF_IN_DISCARDS",
    }
)
"""What a degraded cable and a degraded switch have in common: who sends again or drops is not who lost it."""

NETWORK_KINDS = _LINK | _SPEED | _PCIE | _LOSS
"""Kinds of findings about ports and links that may explain slow transfers."""

_LOOK_BACK_NS = 120_000_000_000
_KEEP_NS = 600_000_000_000
_SHARED = 0.8
"""Share of the troubled cables that must end at one switch before it is named; a judgement."""
_NODES_OF_A_SWITCH = 2
_NODES_OF_A_SWITCH_APART = 3
"""Nodes that must see loss towards a switch where none of their cables touches every slow communicator: two cables may
go bad at one switch by chance. A judgement."""


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """One place that explains slow transfers of a job."""

    component: str
    cause_class: str
    culprit: Subject
    finding: Finding
    because: tuple[str, ...]
    summary: str
    at_ns: int = 0
    victims: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """Figures of the incident."""
        names = ("transfer_us", "reference_us", "step_time_us")
        return {name: self.finding.values[name] for name in names if name in self.finding.values}


@dataclass(slots=True)
class _Trouble:
    """A finding about one cable or device link, from its onset to its clearing."""

    finding: Finding
    cable: str
    node_id: str | None
    switch_id: str | None
    cleared_ns: int | None = None


class NetworkJudge:
    """Remembers slow jobs and troubled links, and joins them.

    Args:
        tolerance_ns: findings of several nodes within this span belong together.
    """

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._troubles: dict[str, _Trouble] = {}
        self._slow: dict[str, Finding] = {}
        self._due: dict[str, int] = {}
        self._placed = Explained()
        self._resolved: list[tuple[str, int]] = []

    def take(self, finding: Finding) -> None:
        """A job's transfers became slow or are well again, or a port or link said something about itself."""
        if finding.kind == "network_slowdown":
            self._take_job(finding)
        elif finding.state == "open":
            trouble = _trouble(finding)
            if trouble is not None:
                self._troubles[finding.finding_id] = trouble
                for name in self._slow:
                    if name not in self._placed:
                        self._due[name] = max(self._due.get(name, 0), finding.event_time_ns + self._tolerance_ns)
        elif finding.finding_id in self._troubles:
            self._troubles[finding.finding_id].cleared_ns = finding.event_time_ns
        oldest_ns = finding.event_time_ns - _KEEP_NS
        over = [name for name, t in self._troubles.items() if t.cleared_ns is not None and t.cleared_ns < oldest_ns]
        for name in over:
            del self._troubles[name]

    def _take_job(self, finding: Finding) -> None:
        if finding.state == "open":
            self._slow[finding.finding_id] = finding
            self._due[finding.finding_id] = finding.event_time_ns + self._tolerance_ns
            return
        self._slow.pop(finding.finding_id, None)
        self._due.pop(finding.finding_id, None)
        component = self._placed.leave(finding.finding_id)
        if component is not None:
            self._resolved.append((component, finding.event_time_ns))

    def decide(self, now_ns: int, roster: Roster, is_explained: bool = False) -> list[NetworkVerdict]:
        """Verdicts on slow jobs whose tolerance has passed and whose place can be told, in order of time.

        Args:
            now_ns: event time up to which all is known.
            roster: seats of the jobs' ranks.
            is_explained: whether a pause storm stands, which is judged elsewhere.
        """
        due = sorted(
            (self._slow[name] for name, at in self._due.items() if at <= now_ns),
            key=lambda f: (f.event_time_ns, f.finding_id),
        )
        verdicts = []
        for finding in due:
            at_ns = self._due.pop(finding.finding_id)
            verdict = self._place(finding, at_ns, roster) if not is_explained else None
            if verdict is not None:
                self._placed.join(finding.finding_id, verdict.component)
                verdicts.append(replace(verdict, at_ns=at_ns))
        return verdicts

    def locate(self, finding: Finding, at_ns: int, roster: Roster) -> NetworkVerdict | None:
        """The place that explains transfers which do not end, as those of a hang; it is not followed up.

        Args:
            finding: about the job, with `slow_ranks` as `network_slowdown` has them.
            at_ns: event time up to which evidence counts.
            roster: seats of the job's ranks.
        """
        return self._place(finding, at_ns, roster)

    def take_resolved(self) -> list[tuple[str, int]]:
        """Components whose last slow job is well again since the last call, with the time."""
        resolved, self._resolved = self._resolved, []
        return resolved

    def _place(self, finding: Finding, at_ns: int, roster: Roster) -> NetworkVerdict | None:
        communicators = _nodes_of_slow(finding, roster)
        if not communicators:
            return None
        nodes = frozenset().union(*communicators)
        start_ns = finding.onset_ns - _LOOK_BACK_NS
        seen = [
            trouble
            for _, trouble in sorted(self._troubles.items())
            if trouble.finding.onset_ns <= at_ns and (trouble.cleared_ns is None or trouble.cleared_ns >= start_ns)
            if trouble.node_id in nodes or (trouble.node_id is None and trouble.switch_id is not None)
        ]
        by_cable: dict[str, list[_Trouble]] = {}
        for trouble in seen:
            by_cable.setdefault(trouble.cable, []).append(trouble)
        # What is wrong with one cable outweighs what others say of what they lost: they speak of the same packets.
        for kinds in (_SPEED | _PCIE | _LINK, NETWORK_KINDS):
            cables = {
                cable: troubles
                for cable, troubles in by_cable.items()
                if any(t.finding.kind in kinds for t in troubles) and _explains(troubles, communicators)
            }
            if len(cables) == 1:
                ((_, troubles),) = cables.items()
                return _port_verdict(finding, troubles)
            shared = _shared_place(finding, cables, communicators)
            if shared is not None:
                return shared
        return _switch_apart(finding, by_cable, communicators)

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes; findings are passed through as records."""
        return {
            "troubles": [[trouble.finding, trouble.cleared_ns] for _, trouble in sorted(self._troubles.items())],
            "slow": [self._slow[name] for name in sorted(self._slow)],
            "due": dict(sorted(self._due.items())),
            "placed": self._placed.snapshot(),
            "resolved": [list(entry) for entry in self._resolved],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._troubles = {}
        for finding, cleared_ns in snapshot["troubles"]:
            trouble = _trouble(finding)
            if trouble is not None:
                trouble.cleared_ns = cleared_ns
                self._troubles[finding.finding_id] = trouble
        self._slow = {finding.finding_id: finding for finding in snapshot["slow"]}
        self._due = dict(snapshot["due"])
        self._placed.restore(snapshot["placed"])
        self._resolved = [(component, at) for component, at in snapshot["resolved"]]


def _trouble(finding: Finding) -> _Trouble | None:
    """A finding as trouble of a cable, named alike from both of its ends; None for one that is no fault of a link."""
    if finding.kind not in NETWORK_KINDS or finding.values.get("found_at_start") is True:
        return None
    subject = finding.subject
    peer = finding.values.get("peer")
    far = peer if isinstance(peer, str) and peer else None
    if subject.level == "gpu":
        return _Trouble(
            finding, f"gpu:{subject.node_id}/{subject.gpu_uuid or subject.pci_bus_id}", subject.node_id, None
        )
    if subject.switch_id is not None:
        # A switch's port is its cable's name; the host at the other end names it as its peer.
        node_id = far.partition("/")[0] if far is not None else None
        return _Trouble(finding, f"{subject.switch_id}/{subject.port}", node_id, subject.switch_id)
    own = f"{subject.node_id}/{subject.device}/{subject.port}"
    switch_id = far.rpartition("/")[0] if far is not None else None
    return _Trouble(finding, far or own, subject.node_id, switch_id or None)


def _nodes_of_slow(finding: Finding, roster: Roster) -> list[frozenset[str]]:
    """The nodes that each slow communicator of a job runs over, those of one node alone left out."""
    job = roster.job(finding.job_id or "", finding.epoch or 0)
    told = finding.values.get("slow_ranks")
    groups = []
    for text in told if isinstance(told, list) else ():
        seats = [job.seats.get(int(rank)) for rank in str(text).split(",") if rank.isdecimal()]
        nodes = frozenset(seat.node_id for seat in seats if seat is not None)
        if len(nodes) > 1:
            groups.append(nodes)
    return groups


def _explains(troubles: Iterable[_Trouble], communicators: list[frozenset[str]]) -> bool:
    """Whether every slow communicator runs over a node at this cable's end."""
    nodes = {trouble.node_id for trouble in troubles} - {None}
    return not nodes or all(nodes & members for members in communicators)


def _port_verdict(finding: Finding, troubles: list[_Trouble]) -> NetworkVerdict:
    # The host's end is what can be acted on; of a GPU's link the GPU.
    first = min(troubles, key=lambda t: (t.switch_id is not None and t.finding.subject.node_id is None, t.cable))
    kinds = {trouble.finding.kind for trouble in troubles}
    subject = first.finding.subject
    said = ", ".join(sorted(kinds))
    ids = tuple(sorted(trouble.finding.finding_id for trouble in troubles))
    if kinds & _PCIE and subject.level == "gpu":
        who = f"{subject.node_id} {subject.gpu_uuid or subject.pci_bus_id}"
        culprit = subject.model_copy(update={"job_id": finding.job_id})
        component = f"gpu:{subject.node_id}/{subject.gpu_uuid or subject.pci_bus_id}"
        return NetworkVerdict(component, "pcie", culprit, finding, ids, f"{finding.explanation}; {who}: {said}")
    cause = "nic" if kinds & (_SPEED | _PCIE) else "link"
    who = f"{subject.node_id or subject.switch_id} {subject.device or ''} port {subject.port}"
    return NetworkVerdict(f"port:{first.cable}", cause, subject, finding, ids, f"{finding.explanation}; {who}: {said}")


def _switch_apart(
    finding: Finding, cables: dict[str, list[_Trouble]], communicators: list[frozenset[str]]
) -> NetworkVerdict | None:
    """The switch of several slow communicators that have no node in common, from loss on all of its cables.

    A cable that is itself broken may account for one of the communicators, and old loss for none: then nobody is named.
    """
    troubles = [trouble for ts in cables.values() for trouble in ts]
    if any(t.finding.kind not in _LOSS for t in troubles):
        return None
    if any(t.finding.onset_ns < finding.onset_ns - _LOOK_BACK_NS for t in troubles):
        return None
    return _shared_place(finding, cables, communicators, _NODES_OF_A_SWITCH_APART)


def _shared_place(
    finding: Finding,
    cables: dict[str, list[_Trouble]],
    communicators: list[frozenset[str]],
    least_nodes: int = _NODES_OF_A_SWITCH,
) -> NetworkVerdict | None:
    """A switch at which nearly all troubled cables end, or the one node that all of them come from."""
    if len(cables) < 2:
        return None
    ids = tuple(sorted(trouble.finding.finding_id for troubles in cables.values() for trouble in troubles))
    nodes = {trouble.node_id for troubles in cables.values() for trouble in troubles} - {None}
    if len(nodes) == 1:
        (node_id,) = nodes
        if not all(node_id in members for members in communicators):
            return None
        culprit = Subject(level="node", node_id=node_id, job_id=finding.job_id)
        summary = f"{finding.explanation}; {len(cables)} links of {node_id} are in trouble"
        return NetworkVerdict(f"node:{node_id}", "nic", culprit, finding, ids, summary)
    switches = Counter(next((t.switch_id for t in troubles if t.switch_id), None) for troubles in cables.values())
    del switches[None]
    if not switches:
        return None
    switch_id, count = min(switches.items(), key=lambda entry: (-entry[1], entry[0] or ""))
    at_switch = {t.node_id for ts in cables.values() for t in ts if t.switch_id == switch_id} - {None}
    if count < _SHARED * len(cables) or len(at_switch) < least_nodes:
        return None
    if not all(at_switch & members for members in communicators):
        return None
    culprit = Subject(level="switch", switch_id=switch_id)
    summary = f"{finding.explanation}; {count} of {len(cables)} troubled links end at {switch_id}"
    return NetworkVerdict(f"switch:{switch_id}", "switch", culprit, finding, ids, summary)
