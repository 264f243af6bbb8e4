"""Device peers: a node of a job without step timings whose devices or host differ from those of its peers for two minutes.

Once per piece of 5 s and metric (`node_figures`, in order of priority) each node's figure is held against the median of
all nodes of the same job and part in the partition. `device_peers` (warning, about the node) opens when one metric was out
for 120 s without a break; after 10 s where it is a GPU that stands still and the kernel has just reported a code of that
node's GPUs, because those are two witnesses; after 30 s where a node is not heard on any topic. Nodes that went out together in one metric, more than two of them or two of
one leaf or rack, have a cause in common and none is named.

An observation to be acted on by people. It cannot see a device that is slow without a counter that shows it, nor jobs of
fewer than 4 nodes in a partition, nor what all nodes have in common. Pieces are judged when the partition's time is 5 s
past them, so arrival within that does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.findings import Subject
from streams.core.counters import CounterIncrease
from streams.core.edges import EdgeState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.untimed import UntimedJobs
from streams.detectors.node_figures import METRICS, SILENCE, Reading, of_gpus, of_host, of_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schemas.events import KernelEvent, NodeStatus
    from schemas.findings import Finding
    from schemas.frames import FabricFrame, GpuFrame
    from streams.core.roster import Roster
    from streams.detectors.node_figures import Metric

__all__ = ["RULE", "DevicePeers", "DevicePeersThresholds"]

RULE = "device_peers"

_PIECE_NS = 5_000_000_000
_LATENESS_NS = 5_000_000_000
_FORGET_NS = 3_600_000_000_000
_STALL = "gpu_util_pct"
_HEAT = frozenset({"thermal_share", "sm_clock_mhz"})


@dataclass(frozen=True, slots=True)
class DevicePeersThresholds:
    """Thresholds of the rule. What is not sourced is a judgement.

    Attributes:
        persist_ns: how long a metric must be out without a break. Minder asks for 4 min of continuity.
        silent_ns: how long nothing may be heard of a node: neither frames nor heartbeats. As for `node_silence`, which
            looks at heartbeats alone; one stream of a node may be held up on its way while the others come.
        with_code_ns: the same for a GPU that stands still on a node whose kernel reported a code of a GPU.
        code_ns: how long before the stall such a code counts.
        scales: distance from the median in robust standard deviations (1.4826 MAD) that is out; that of stage peers in
            three published traces.
        peers: other nodes that must tell the same metric.
        together_ns: nodes that went out in one metric within this span went out together.
        most_together: nodes that may go out together and each be at fault; of one leaf or rack, and for heat of one zone,
            only one.
        pause_frames_per_s: pause frames transmitted a second above the median. As for `pfc_pause`.
        cpu_busy_off: busy share of the processors above the median (ratio).
        io_pressure_off_pct: time waiting for disks above the median (percentage points).
        gpu_util_off_pct: utilisation below the median (percentage points): the rule for a GPU at work.
        nvlink_errors_per_s: errors a second above the median. DCGM warns from one a minute and fails from 100 a second.
        pcie_off: share of the link's speed below the median (ratio): one lane or generation less is a half.
        port_speed_off: share of the speed below the median (ratio).
        port_errors_per_s: packets a second above the median. NVSentinel: 10 for `symbol_error` and `port_rcv_errors`.
        thermal_share: share of the time in thermal violation above the median (ratio), all GPUs of the node together.
        sm_clock_off: share of the clock below the median (ratio). As for `sm_clock`.
    """

    persist_ns: int = 120_000_000_000
    silent_ns: int = 30_000_000_000
    with_code_ns: int = 10_000_000_000
    code_ns: int = 60_000_000_000
    scales: float = 6.0
    peers: int = 3
    together_ns: int = 60_000_000_000
    most_together: int = 2
    pause_frames_per_s: float = 100.0
    cpu_busy_off: float = 0.30
    io_pressure_off_pct: float = 10.0
    gpu_util_off_pct: float = 50.0
    nvlink_errors_per_s: float = 1.0
    pcie_off: float = 0.10
    port_speed_off: float = 0.10
    port_errors_per_s: float = 10.0
    thermal_share: float = 0.02
    sm_clock_off: float = 0.10


class _Node:
    """What is known of one node: its counters, since when each metric is out, and what is said of it."""

    __slots__ = ("code", "counters", "edge", "heard_ns", "is_away", "shared", "since_ns")

    def __init__(self) -> None:
        self.counters: dict[str, CounterIncrease] = {}
        self.since_ns: dict[str, int] = {}
        self.edge = EdgeState()
        self.code: list[int] | None = None
        """(when, which) of the last code that the kernel reported of one of its GPUs."""
        self.heard_ns = 0
        self.is_away = False
        """Whether its agent said that it stops, or that the node is in maintenance."""
        self.shared: set[str] = set()
        """Metrics that went out together with others': not the node's fault for as long as they are out."""

    def back(self, metric: str) -> None:
        """A metric is like the others' again."""
        self.since_ns.pop(metric, None)
        self.shared.discard(metric)

    def snapshot(self) -> list[Any]:
        counters = {name: counter.snapshot() for name, counter in sorted(self.counters.items())}
        code = list(self.code) if self.code is not None else None
        since_ns, shared = dict(sorted(self.since_ns.items())), sorted(self.shared)
        return [counters, since_ns, self.edge.snapshot(), code, self.heard_ns, self.is_away, shared]

    def restore(self, snapshot: list[Any]) -> None:
        counters, since_ns, edge, code, self.heard_ns, self.is_away, shared = snapshot
        for name, value in counters.items():
            self.counters[name] = CounterIncrease()
            self.counters[name].restore(value)
        self.since_ns = dict(since_ns)
        self.edge.restore(edge)
        self.code = list(code) if code is not None else None
        self.shared = set(shared)


@dataclass(frozen=True, slots=True)
class _Out:
    """A node's figure that is out, with what it was held against."""

    figure: float
    median: float
    limit: float
    nodes: int


class DevicePeers:
    """Compares the nodes of one partition, by the time of the partition."""

    def __init__(self, site_id: str, defaults: DevicePeersThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or DevicePeersThresholds(), RULE)
        self._untimed = UntimedJobs()
        self._nodes: dict[str, _Node] = {}
        self._pieces: dict[int, dict[str, dict[str, list[float]]]] = {}
        """By start of the piece, node and metric: sum and number of figures."""
        self._judged_ns = 0

    def on_gpus(self, frame: GpuFrame, roster: Roster) -> None:
        """Take a node's GPUs; frames of a node come in its own order. What follows comes out of `on_time`."""
        seats = self._untimed.on(frame.node_id, roster)
        if seats is not None:
            self._take(frame.node_id, frame.event_time_ns, frame.agent_session, of_gpus(frame, seats))

    def on_ports(self, frame: FabricFrame, roster: Roster) -> None:
        """Take a host's ports; those of switches are nobody's peers."""
        if frame.view == "host" and frame.node_id is not None and self._untimed.on(frame.node_id, roster) is not None:
            self._take(frame.node_id, frame.event_time_ns, frame.agent_session, of_ports(frame))

    def on_status(self, status: NodeStatus, roster: Roster) -> None:
        """Take a heartbeat, which may tell the host's load, or a change of state."""
        if self._untimed.on(status.node_id, roster) is None:
            return
        reading = of_host(status.host) if status.host is not None else Reading({}, {})
        self._take(status.node_id, status.event_time_ns, status.agent_session, reading)
        self._nodes[status.node_id].is_away = status.state in {"stop", "maintenance"}

    def on_event(self, event: KernelEvent, roster: Roster) -> None:
        """Take a code of a GPU; what a user process may have written is none."""
        seats = self._untimed.on(event.node_id, roster)
        if seats is None or event.source != "xid" or event.code is None or not event.trusted:
            return
        if (event.gpu_uuid is None and event.pci_bus_id is None) or seats.holds(event.gpu_uuid, event.pci_bus_id):
            node = self._nodes.setdefault(event.node_id, _Node())
            if node.code is None or event.event_time_ns >= node.code[0]:
                node.code = [event.event_time_ns, event.code]

    @property
    def is_waiting(self) -> bool:
        """Whether there are pieces to be judged; none while all jobs tell their steps."""
        return bool(self._pieces)

    def on_time(self, partition_time_ns: int, roster: Roster) -> Iterable[Finding]:
        """Findings of the pieces that a time of the partition leaves behind, in order of event time."""
        until_ns = partition_time_ns - _LATENESS_NS
        if self._pieces and min(self._pieces) + _PIECE_NS <= until_ns:
            return self._judge_until(until_ns, roster)
        return ()

    def flush(self, roster: Roster) -> Iterator[Finding]:
        """Findings of whole pieces that are left: the input has ended, and its last piece may be cut short."""
        yield from self._judge_until(max(self._pieces, default=0), roster)

    def _take(self, node_id: str, now_ns: int, session: str, reading: Reading) -> None:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node()
        figures = dict(reading.figures)
        for name, count in reading.counters.items():
            counter = node.counters.get(name)
            if counter is None:
                counter = node.counters[name] = CounterIncrease()
            step = counter.read(session, now_ns, count)
            if step is not None and step[1] > 0:
                figures[name] = step[0] / step[1] * (1.0 if name == "thermal_share" else 1e9)
        node.heard_ns = max(node.heard_ns, now_ns)
        start_ns = now_ns - now_ns % _PIECE_NS
        if start_ns < self._judged_ns:
            return
        of_node = self._pieces.setdefault(start_ns, {}).setdefault(node_id, {})
        for name, figure in figures.items():
            total = of_node.setdefault(name, [0.0, 0.0])
            total[0] += figure
            total[1] += 1.0

    def _judge_until(self, until_ns: int, roster: Roster) -> Iterator[Finding]:
        for start_ns in sorted(start for start in self._pieces if start + _PIECE_NS <= until_ns):
            figures = self._pieces.pop(start_ns)
            self._judged_ns = start_ns + _PIECE_NS
            yield from self._judge(figures, start_ns, roster)
        oldest_ns = self._judged_ns - _FORGET_NS
        for node_id in [name for name, node in self._nodes.items() if 0 < node.heard_ns < oldest_ns]:
            del self._nodes[node_id]

    def _judge(self, figures: dict[str, dict[str, list[float]]], start_ns: int, roster: Roster) -> Iterator[Finding]:
        limits = self._limits.of(roster.policy)
        end_ns = start_ns + _PIECE_NS
        groups: dict[tuple[str, int, str], list[str]] = {}
        for node_id in sorted(self._nodes):
            seats = self._untimed.on(node_id, roster)
            if seats is not None:
                groups.setdefault(seats.group, []).append(node_id)
        for (job_id, epoch, _), members in sorted(groups.items()):
            told = [node_id for node_id in members if node_id in figures]
            out: dict[str, dict[str, _Out]] = {}
            for node_id, what in self._silent(members, told, end_ns, limits).items():
                out.setdefault(node_id, {})[SILENCE.name] = what
            for metric in METRICS:
                for node_id, what in self._compare(metric, told, figures, start_ns, limits).items():
                    out.setdefault(node_id, {})[metric.name] = what
            for node_id, of_node in out.items():
                shared = self._nodes[node_id].shared
                shared.update(name for name in of_node if self._is_shared(node_id, name, out, roster, limits))
            for node_id in members:
                shared = self._nodes[node_id].shared
                alone = {name: what for name, what in out.get(node_id, {}).items() if name not in shared}
                yield from self._say(node_id, alone, end_ns, (job_id, epoch), limits)

    def _silent(
        self, members: list[str], told: list[str], end_ns: int, limits: DevicePeersThresholds
    ) -> dict[str, _Out]:
        """Nodes that say nothing while enough others do; since when is noted of each."""
        found: dict[str, _Out] = {}
        present = set(told)
        for node_id in members:
            node = self._nodes[node_id]
            silent_ns = end_ns - node.heard_ns
            if node_id in present or node.is_away or node.heard_ns == 0 or silent_ns < _PIECE_NS:
                node.back(SILENCE.name)
            elif len(told) >= limits.peers:
                node.since_ns.setdefault(SILENCE.name, node.heard_ns)
                found[node_id] = _Out(silent_ns / 1e9, 0.0, limits.silent_ns / 1e9, len(told))
        return found

    def _compare(
        self,
        metric: Metric,
        members: list[str],
        figures: dict[str, dict[str, list[float]]],
        start_ns: int,
        limits: DevicePeersThresholds,
    ) -> dict[str, _Out]:
        """Nodes that are out in a metric; since when is noted of each that tells it."""
        told = [(name, total) for name in members if (total := figures[name].get(metric.name)) is not None]
        found: dict[str, _Out] = {}
        if len(told) > limits.peers:
            values = np.array([total / count for _, (total, count) in told])
            median = float(np.median(values))
            spread = 1.4826 * float(np.median(np.abs(values - median)))
            floor = float(getattr(limits, metric.threshold)) * (median if metric.is_relative else 1.0)
            off = max(floor, limits.scales * spread)
            sign = 1.0 if metric.worst == "high" else -1.0
            (rows,) = np.nonzero(sign * (values - median) > off)
            if off > 0:
                limit = median + sign * off
                found = {told[row][0]: _Out(float(values[row]), median, limit, len(told)) for row in rows.tolist()}
        for name, _ in told:
            if name in found:
                self._nodes[name].since_ns.setdefault(metric.name, start_ns)
            else:
                self._nodes[name].back(metric.name)
        return found

    def _is_shared(
        self,
        node_id: str,
        metric: str,
        out: dict[str, dict[str, _Out]],
        roster: Roster,
        limits: DevicePeersThresholds,
    ) -> bool:
        """Whether so many nodes went out together with this one, or one so near, that the cause is not the node's."""
        since_ns = self._nodes[node_id].since_ns[metric]
        others = [
            name
            for name, what in out.items()
            if metric in what
            and name != node_id
            and abs(self._nodes[name].since_ns[metric] - since_ns) <= limits.together_ns
        ]
        if len(others) >= limits.most_together:
            return True
        own = _places(node_id, roster, metric)
        return any(own & _places(name, roster, metric) for name in others)

    def _say(
        self, node_id: str, out: dict[str, _Out], end_ns: int, job: tuple[str, int], limits: DevicePeersThresholds
    ) -> Iterator[Finding]:
        node = self._nodes[node_id]
        held = next(
            (
                metric
                for metric in (SILENCE, *METRICS)
                if metric.name in out
                and end_ns - node.since_ns[metric.name] >= self._needed_ns(node, metric.name, limits)
            ),
            None,
        )
        edge = node.edge.update(end_ns, held is not None, node.since_ns[held.name] if held is not None else None)
        if edge is None:
            return
        onset_ns = node.edge.tell(edge)
        values: dict[str, Any] = {}
        explanation = "no metric is out any more"
        if held is not None:
            what, code = out[held.name], node.code if self._has_code(node, held.name, limits) else None
            seconds = (end_ns - onset_ns) // 10**9
            explanation = (
                f"{what.figure:.4g} {held.words}, the median of {what.nodes} nodes is {what.median:.4g}, for {seconds} s"
                + (f" after Xid {code[1]}" if code is not None else "")
            )
            values = {
                "metric": held.name,
                "cause_class": held.cause_class,
                "figure": what.figure,
                "peer_median": what.median,
                "limit": what.limit,
                "nodes": what.nodes,
                "out_for_s": (end_ns - onset_ns) / 1e9,
                "code": code[1] if code is not None else None,
            }
        yield self._rule.finding(
            "device_peers",
            Subject(level="node", node_id=node_id),
            state=edge,
            severity="warning",
            event_time_ns=end_ns,
            onset_ns=onset_ns,
            explanation=explanation,
            values=values,
            job_id=job[0],
            epoch=job[1],
        )

    def _needed_ns(self, node: _Node, metric: str, limits: DevicePeersThresholds) -> int:
        if metric == SILENCE.name:
            return limits.silent_ns
        return limits.with_code_ns if self._has_code(node, metric, limits) else limits.persist_ns

    @staticmethod
    def _has_code(node: _Node, metric: str, limits: DevicePeersThresholds) -> bool:
        """Whether the kernel reported a code of the node's GPUs when its GPU came to stand, or just before."""
        if metric != _STALL or node.code is None or metric not in node.since_ns:
            return False
        since_ns = node.since_ns[metric]
        return since_ns - limits.code_ns <= node.code[0] <= since_ns + limits.with_code_ns

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {
            "nodes": {name: node.snapshot() for name, node in sorted(self._nodes.items())},
            "pieces": [
                [start, {node: {name: list(total) for name, total in of.items()} for node, of in sorted(nodes.items())}]
                for start, nodes in sorted(self._pieces.items())
            ],
            "judged_ns": self._judged_ns,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._nodes = {}
        for name, state in snapshot["nodes"].items():
            self._nodes[name] = _Node()
            self._nodes[name].restore(state)
        self._pieces = {
            start: {node: {name: list(total) for name, total in of.items()} for node, of in nodes.items()}
            for start, nodes in snapshot["pieces"]
        }
        self._judged_ns = snapshot["judged_ns"]


def _places(node_id: str, roster: Roster, metric: str) -> set[tuple[str, str]]:
    """The leaf and the rack that a node is registered with, and for heat its cooling zone."""
    node = roster.nodes.get(node_id)
    if node is None:
        return set()
    places = (("leaf", node.leaf), ("rack", node.rack), ("zone", node.zone if metric in _HEAT else None))
    return {(kind, name) for kind, name in places if name is not None}
