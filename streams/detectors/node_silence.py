"""Node silence: a node whose heartbeats stopped while others' time went on.

Agents send a heartbeat every 5 s. `node_silent` (warning, about the node) opens when the last sign of life is more than
30 s of the partition's time old, and is cleared by the next. A node is only called silent while another one speaks. When
at least 3 nodes and more than 20 % of the partition's go silent at once, that is a rollout or a collector and no node's
fault: one finding `nodes_silent` (info, about the facility) instead; who stays away after it is named then. Passed over:
nodes that said `stop` or `maintenance`, and nodes that were never seen.

Statuses are held until the partition's time is 10 s past them and applied in order of event time, so arrival within that
does not matter. An older one still is a sign of life, of a node that replays its spool or whose clock is behind.
A silent agent is not a dead node: that its training goes on is not seen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from schemas.findings import Evidence, Subject
from streams.core.keyed import SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.events import NodeStatus
    from schemas.findings import Finding
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["RULE", "NodeSilence", "NodeSilenceThresholds"]

RULE = "node_silence"

_LATENESS_NS = 10_000_000_000
_ONCE_A_MINUTE_NS = 60_000_000_000
_MOST_NAMES = 16
_NEVER_NS = 2**63


@dataclass(frozen=True, slots=True)
class NodeSilenceThresholds:
    """Thresholds of the rule. Judgements; compare NCCL RAS: warns after 5 s, calls a peer dead after 60 s.

    Attributes:
        silent_ns: time without a sign of life after which a node is silent: six heartbeats.
        speaking_ns: a node that was heard within this speaks: three heartbeats.
        mass_share: share of the watched nodes (ratio) above which silence is nobody's.
        mass_nodes: nodes that must be silent for that.
        at_once_ns: how far the last signs of life of those nodes may lie apart.
        maintenance_ns: heartbeats this long after `maintenance` end it, as a `start` does at any time.
        forget_ns: a node that was not heard for this long is no longer watched: it was taken away.
    """

    silent_ns: int = 30_000_000_000
    speaking_ns: int = 15_000_000_000
    mass_share: float = 0.20
    mass_nodes: int = 3
    at_once_ns: int = 60_000_000_000
    maintenance_ns: int = 3_600_000_000_000
    forget_ns: int = 86_400_000_000_000


class _Node(SubjectState):
    __slots__ = ("due_ns", "grouped", "heard_ns", "latest_ns", "masked", "masked_ns", "onset_ns", "opened_ns", "place")

    def __init__(self) -> None:
        self.due_ns: int | None = None
        """When to look at it next; an entry of another time in the heap is void."""
        self.latest_ns = 0
        """Event time of its newest status, by its own clock."""
        self.heard_ns = 0
        """When it was last heard, in the partition's time."""
        self.masked: str | None = None
        self.masked_ns = 0
        self.onset_ns: int | None = None
        self.opened_ns: int | None = None
        self.grouped = False
        self.place: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether the node is called silent."""
        return self.onset_ns is not None


class NodeSilence:
    """Watches the heartbeats of the nodes of one partition."""

    def __init__(self, site_id: str, defaults: NodeSilenceThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or NodeSilenceThresholds(), RULE)
        self._nodes: dict[str, _Node] = {}
        self._held: list[tuple[int, str, str, int, list[Any]]] = []
        """Statuses not yet applied: when, node, state, its own time, place. A heap."""
        self._due: list[tuple[int, str]] = []
        """When to look at a node next. A heap."""
        self._waiting: list[str] = []
        """Silent nodes while nobody spoke: judged when somebody does."""
        self._group_ns: int | None = None
        self._now_ns = 0

    def on_status(self, status: NodeStatus, evidence: Evidence | Position | None = None) -> None:
        """Take a status, in any order; what follows from it comes out of `on_time`."""
        node = self._nodes.get(status.node_id)
        own_ns = status.event_time_ns
        # A repeat of what was applied is no sign of life, however late it comes.
        if own_ns <= self._now_ns and node is not None and own_ns <= node.latest_ns:
            return
        place = [evidence.topic, evidence.partition, evidence.offset] if evidence is not None else []
        heappush(self._held, (max(own_ns, self._now_ns), status.node_id, status.state, own_ns, place))

    def on_time(self, partition_time_ns: int, roster: Roster) -> Iterable[Finding]:
        """Findings up to 10 s before a time of the partition, in order of event time."""
        until_ns = partition_time_ns - _LATENESS_NS
        if until_ns <= self._now_ns:
            return ()
        if self._next_ns() <= until_ns:
            return self._advance(until_ns, roster)
        self._now_ns = until_ns
        return ()

    def flush(self, roster: Roster) -> Iterator[Finding]:
        """Findings up to the newest status: the input has ended."""
        newest_ns = max((entry[0] for entry in self._held), default=0)
        yield from self._advance(newest_ns, roster)

    def _advance(self, until_ns: int, roster: Roster) -> Iterator[Finding]:
        if until_ns <= self._now_ns:
            return
        limits = self._limits.of(roster.policy)
        while (at_ns := self._next_ns()) <= until_ns:
            self._now_ns = at_ns
            # A heartbeat at the very moment at which its node would be silent counts.
            if self._held and self._held[0][0] == at_ns:
                yield from self._apply(limits)
            else:
                yield from self._look_at(limits)
        self._now_ns = until_ns

    def _next_ns(self) -> int:
        held_ns = self._held[0][0] if self._held else _NEVER_NS
        due_ns = self._due[0][0] if self._due else _NEVER_NS
        return min(due_ns, held_ns)

    def _apply(self, limits: NodeSilenceThresholds) -> Iterable[Finding]:
        """One status, in its turn."""
        now_ns, node_id, state, own_ns, place = heappop(self._held)
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node()
            self._look_again(node_id, now_ns + limits.silent_ns)
        node.heard_ns, node.latest_ns, node.place = now_ns, max(own_ns, node.latest_ns), place
        if state in {"stop", "maintenance"}:
            node.masked, node.masked_ns = state, now_ns
        elif state == "start" or node.masked == "stop" or now_ns - node.masked_ns >= limits.maintenance_ns:
            node.masked = None
        if self._waiting:
            for silent_id in self._waiting:
                self._look_again(silent_id, now_ns + limits.silent_ns)
            self._waiting = []
        return self._is_back(node_id, node, state, limits) if node.onset_ns is not None or node.grouped else ()

    def _is_back(self, node_id: str, node: _Node, state: str, limits: NodeSilenceThresholds) -> Iterator[Finding]:
        """What there is to say when a silent node is heard."""
        now_ns = self._now_ns
        if node.is_open:
            words = "heartbeats are back" if node.masked is None else f"said {state}"
            self._look_again(node_id, now_ns + limits.silent_ns)
            yield self._of_node(node_id, node, "cleared", words, limits)
        if node.grouped:
            node.grouped = False
            self._look_again(node_id, now_ns + limits.silent_ns)
            yield from self._reconsider_group(limits)

    def _look_again(self, node_id: str, at_ns: int) -> None:
        self._nodes[node_id].due_ns = at_ns
        heappush(self._due, (at_ns, node_id))

    def _look_at(self, limits: NodeSilenceThresholds) -> Iterator[Finding]:
        """The node whose time has come: it may have been heard since, be silent, or be gone for good."""
        now_ns, node_id = heappop(self._due)
        node = self._nodes.get(node_id)
        if node is None or node.due_ns != now_ns:
            return
        node.due_ns = None
        forget_at_ns = node.heard_ns + limits.forget_ns
        if now_ns >= forget_at_ns:
            del self._nodes[node_id]
            if node.is_open:
                yield self._of_node(node_id, node, "cleared", "no longer watched: not heard for too long", limits)
            yield from self._reconsider_group(limits)
        elif node.is_open or node.grouped:
            self._look_again(node_id, forget_at_ns)
        elif node.masked is not None:
            # A mask may be lifted by any status: the node is due again no later than it could be silent after that.
            self._look_again(node_id, now_ns + limits.silent_ns)
        else:
            due_ns = node.heard_ns + limits.silent_ns
            if node.opened_ns is not None:
                due_ns = max(due_ns, node.opened_ns + _ONCE_A_MINUTE_NS)
            if due_ns > now_ns:
                self._look_again(node_id, due_ns)
            else:
                yield from self._judge(node_id, node, limits)

    def _judge(self, node_id: str, node: _Node, limits: NodeSilenceThresholds) -> Iterator[Finding]:
        now_ns = self._now_ns
        watched = {name: other for name, other in sorted(self._nodes.items()) if other.masked is None}
        quiet = [
            name
            for name, other in watched.items()
            if not other.is_open
            and other.heard_ns <= now_ns - limits.speaking_ns
            and other.heard_ns >= node.heard_ns - limits.at_once_ns
        ]
        if _is_mass(len(quiet), len(watched), limits):
            node.grouped = True
            self._look_again(node_id, node.heard_ns + limits.forget_ns)
            if self._group_ns is None:
                self._group_ns = min(watched[name].heard_ns for name in quiet)
                yield self._of_group("open", quiet, len(watched), limits)
        elif all(other.heard_ns <= now_ns - limits.speaking_ns for other in self._nodes.values()):
            self._waiting.append(node_id)
        else:
            node.onset_ns, node.opened_ns = node.heard_ns, now_ns
            self._look_again(node_id, node.heard_ns + limits.forget_ns)
            seconds = (now_ns - node.heard_ns) // 10**9
            yield self._of_node(node_id, node, "open", f"no heartbeat for {seconds} s while others speak", limits)

    def _reconsider_group(self, limits: NodeSilenceThresholds) -> Iterator[Finding]:
        """End a mass silence when few are left in it; those are looked at again, one by one."""
        left = [name for name, node in sorted(self._nodes.items()) if node.grouped]
        watched = sum(node.masked is None for node in self._nodes.values())
        if self._group_ns is None or _is_mass(len(left), watched, limits):
            return
        yield self._of_group("cleared", left, watched, limits)
        for name in left:
            self._nodes[name].grouped = False
            self._look_again(name, self._now_ns + limits.silent_ns)

    def _of_node(
        self, node_id: str, node: _Node, state: str, explanation: str, limits: NodeSilenceThresholds
    ) -> Finding:
        onset_ns = node.onset_ns
        assert onset_ns is not None
        if state == "cleared":
            node.onset_ns = None
        return self._rule.finding(
            "node_silent",
            Subject(level="node", node_id=node_id),
            state=state,
            severity="warning",
            event_time_ns=self._now_ns,
            onset_ns=onset_ns,
            explanation=explanation,
            values={
                "silent_s": (self._now_ns - onset_ns) / 1e9,
                "limit_s": limits.silent_ns / 1e9,
                "watched_nodes": sum(other.masked is None for other in self._nodes.values()),
            },
            evidence=Evidence(topic=node.place[0], partition=node.place[1], offset=node.place[2])
            if node.place
            else None,
        )

    def _of_group(self, state: str, silent: list[str], watched: int, limits: NodeSilenceThresholds) -> Finding:
        onset_ns = self._group_ns
        assert onset_ns is not None
        if state == "cleared":
            self._group_ns = None
        return self._rule.finding(
            "nodes_silent",
            Subject(level="facility"),
            state=state,
            severity="info",
            event_time_ns=self._now_ns,
            onset_ns=onset_ns,
            explanation=f"{len(silent)} of {watched} nodes went silent at once: a rollout or a collector, no node's fault"
            if state == "open"
            else f"heartbeats are back, {len(silent)} nodes are still silent",
            values={
                "silent_nodes": len(silent),
                "watched_nodes": watched,
                "limit_share": limits.mass_share,
                "limit_nodes": limits.mass_nodes,
                "nodes": silent[:_MOST_NAMES],
            },
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "nodes": {name: node.snapshot() for name, node in sorted(self._nodes.items())},
            "held": [[*entry[:4], list(entry[4])] for entry in sorted(self._held)],
            "due": [list(entry) for entry in sorted(self._due)],
            "waiting": list(self._waiting),
            "group_ns": self._group_ns,
            "now_ns": self._now_ns,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._nodes = {}
        for name, state in snapshot["nodes"].items():
            self._nodes[name] = _Node()
            self._nodes[name].restore(state)
        self._held = [(at, name, state, own_ns, place) for at, name, state, own_ns, place in snapshot["held"]]
        self._due = [(at, name) for at, name in snapshot["due"]]
        heapify(self._held)
        heapify(self._due)
        self._waiting = list(snapshot["waiting"])
        self._group_ns = snapshot["group_ns"]
        self._now_ns = snapshot["now_ns"]


def _is_mass(silent: int, watched: int, limits: NodeSilenceThresholds) -> bool:
    return silent >= limits.mass_nodes and silent > limits.mass_share * watched
