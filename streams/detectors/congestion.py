"""Congestion: a NIC port that waits or is marked far more than the other ports of its node. An observation only.

Compared is each port's rate with the median of the node's other ports of the same link layer, because no public limit
exists for these counters and their level is a property of the fabric. In one frame only one node's ports are visible, so
this cannot see that a whole node, rail or leaf is congested, nor who causes it: a port that waits is a victim as a rule.
Ports that are down are no peers. The link layer is told by the counters: only Ethernet has those of RoCE.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from schemas.findings import Subject
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import span_at_pace
from streams.detectors.port_frames import CounterRate, port_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "Congestion", "CongestionThresholds"]

RULE = "congestion"

_WAIT = "port_xmit_wait"
_ROCE = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_COUNTERS = (_WAIT, *_ROCE)


@dataclass(frozen=True, slots=True)
class CongestionThresholds:
    """Thresholds of the rule. All are judgements: no public figure was found, sources ask for a local baseline.

    Attributes:
        factor: multiple of the peers' median rate above which a sample counts (ratio).
        wait_ticks_per_s: a `port_xmit_wait` rate that never counts below. A tick is the vendor's, some nanoseconds.
        packets_per_s: likewise for notification and marked packets.
        peers: other ports that must tell their rate; with one, nobody can say which of the two is odd.
        hits, span_ns: fires when the condition held in this many samples of the span, or of as many readings of a slower source.
    """

    factor: float = 10.0
    wait_ticks_per_s: float = 1_000_000.0
    packets_per_s: float = 1_000.0
    peers: int = 2
    hits: int = 3
    span_ns: int = 5_000_000_000


class Congestion(FrameRule["FabricFrame"]):
    """Watches the waiting and marking of many nodes' ports."""

    columns = ("view", "link_state")
    besides = _COUNTERS

    def __init__(self, site_id: str, defaults: CongestionThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or CongestionThresholds(), RULE)
        self._states = KeyedRows(CounterRate)

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time. Switches' frames say nothing."""
        if frame.view != "host":
            return
        limits, now_ns = self._limits.of(roster.policy), frame.event_time_ns
        layers: list[str] = []
        for name in _COUNTERS:
            column = frame.counters.get(name)
            if column is None:
                continue
            rows = port_rows(self._states, frame, name)
            if rows.stand_still(frame.agent_session, now_ns, (column, roster.policy)):
                continue
            rates, since_ns = _rates(rows, column)
            floor = limits.wait_ticks_per_s if name == _WAIT else limits.packets_per_s
            # No median is below the least rate, so no limit is below this, whoever the peers are.
            least = max(floor, limits.factor * min(rates.values(), default=0.0)) if limits.factor >= 0 else floor
            for index, rate in rates.items():
                state = rows[index]
                if rate <= least and state.is_quiet(now_ns) and limits.hits > 0:
                    continue
                layers = layers or [_link_layer(frame, port) for port in range(len(frame.device))]
                peers = [
                    rates[peer]
                    for peer in rates
                    if peer != index and layers[peer] == layers[index] and _is_up(frame, peer)
                ]
                peer_rate = median(peers) if peers and len(peers) >= limits.peers else None
                limit = max(floor, limits.factor * peer_rate) if peer_rate is not None else None
                told = rate, since_ns[index], peer_rate, limit
                yield from self._statement(frame, index, name, state, told, limits, evidence)
            rows.rest()

    def _statement(
        self,
        frame: FabricFrame,
        index: int,
        name: str,
        state: CounterRate,
        told: tuple[float, int, float | None, float | None],
        limits: CongestionThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        """An edge; `told` is the rate, the nanoseconds since the last reading, the peers' rate and the limit."""
        now_ns = frame.event_time_ns
        rate, since_ns, peer_rate, limit = told
        state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, since_ns))
        holds = state.hits.add(now_ns, limit is not None and rate > limit)
        edge = state.edge.update(now_ns, holds, state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
        yield self._rule.finding(
            f"congestion_{name}",
            Subject(level="port", node_id=frame.node_id, device=frame.device[index], port=frame.port[index]),
            state=edge,
            severity="info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{name} grows by {rate:.0f}/s, the node's other ports' by {peer_rate or 0:.0f}/s"
            if edge == "open"
            else f"{name} fell to {rate:.0f}/s",
            values={
                f"{name}_per_s": rate,
                "peer_median_per_s": peer_rate,
                "limit_per_s": limit,
                "factor": limits.factor,
                "peer": frame.peer[index] if frame.peer is not None else None,
            },
            evidence=evidence,
        )

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.view != "host":
            return ()
        carried = [name for name in _COUNTERS if frame.counters.get(name) is not None]
        return all_at_rest(*(self._states.at_rest((frame.publisher_id, name)) for name in carried))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)


def _rates(rows: Rows[CounterRate], column: tuple[int | None, ...]) -> tuple[dict[int, float], dict[int, int]]:
    """Increase per second, and nanoseconds since the last reading, by port; absent where the counter does not say."""
    rates, since_ns = {}, {}
    for index, count in enumerate(column):
        if count is None:
            continue
        step = rows[index].increase.read_in(rows.reading, count)
        if step is not None and step[1] > 0:
            rates[index], since_ns[index] = step[0] * 1e9 / step[1], step[1]
    return rates, since_ns


def _is_up(frame: FabricFrame, index: int) -> bool:
    word = frame.link_state[index] if frame.link_state is not None else None
    return word is None or word.lower() in {"active", "up"}


def _link_layer(frame: FabricFrame, index: int) -> str:
    tells_roce = any((column := frame.counters.get(name)) is not None and column[index] is not None for name in _ROCE)
    return "ethernet" if tells_roce else "infiniband"
