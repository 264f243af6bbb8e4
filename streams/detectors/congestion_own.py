"""Congestion against a port's own past: it waits or is marked far more than it was in the last minutes. An observation.

`congestion` compares a port with its neighbours, so a node, leaf or rail that is congested as a whole looks even to it.
Here each port of hosts and switches is its own reference: the rates of pieces of 5 s are held against a slow median of
those before. The median moves by 5 % a piece, learns from `pieces_to_learn` of them, and stands still while a finding
rests on it, at most for an hour: a level that stays longer is the new norm. Only pieces with traffic count, so a job
that begins is no congestion; a reference older than 5 min is forgotten.

A level that rises slowly, or that was high when the learning began, is not seen; nor who causes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from streams.core.counters import CounterIncrease, Reading
from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.detectors.port_frames import peer_of, port_rows, port_subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.edges import Edge
    from streams.core.roster import Roster

__all__ = ["RULE", "CongestionOwn", "CongestionOwnThresholds"]

RULE = "congestion_own"

_WAIT = "port_xmit_wait"
_COUNTERS = (
    _WAIT,
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "SAI_PORT_STAT_ECN_MARKED_PACKETS",
)
_PIECE_NS = 5_000_000_000
_STEP = 1.05
_LEAST_PER_S = 1.0
_FORGET_NS = 300_000_000_000
_STANDS_STILL_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class CongestionOwnThresholds:
    """Thresholds of the rule. All are judgements: no public figure was found, sources ask for a local baseline.

    Attributes:
        factor_own: multiple of the port's slow median above which a piece counts (ratio).
        wait_ticks_per_s: a `port_xmit_wait` rate that never counts below. A tick is the vendor's, some nanoseconds.
        packets_per_s: likewise for notification and marked packets.
        pieces: pieces of 5 s, or readings where a source is read more seldom, in a row that must be above.
        pieces_to_learn: pieces with traffic before the port has a reference.
        busy_bytes_per_s: sent and received together, from which on a piece has traffic; a port that does not tell has.
    """

    factor_own: float = 8.0
    wait_ticks_per_s: float = 1_000_000.0
    packets_per_s: float = 1_000.0
    pieces: int = 3
    pieces_to_learn: int = 12
    busy_bytes_per_s: float = 10_000_000.0


class _Traffic(SubjectState):
    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = CounterIncrease()


class _Level(SubjectState):
    """One counter of one port: its slow median, and for how many pieces it has been far above."""

    __slots__ = ("above", "edge", "first_ns", "increase", "learnt", "median_per_s", "used_ns")

    def __init__(self) -> None:
        self.increase = CounterIncrease()
        self.learnt: list[float] = []
        self.median_per_s: float | None = None
        self.used_ns = 0
        self.above = 0
        self.first_ns = 0
        self.edge = EdgeState()

    def take(
        self, now_ns: int, step: tuple[int, int], busy: bool, floor: float, limits: CongestionOwnThresholds
    ) -> Edge | None:
        """Take one piece: its growth and length, whether it had traffic, and the rate that never counts below."""
        rate, onset_ns = step[0] * 1e9 / step[1], self.edge.onset_ns
        if now_ns - self.used_ns > _FORGET_NS if onset_ns is None else now_ns - onset_ns >= _STANDS_STILL_NS:
            self.learnt, self.median_per_s = [], None
        if busy:
            self.used_ns = now_ns
        own = self.median_per_s
        if rate <= floor or own is None or rate <= limits.factor_own * own:
            self.above = 0
            if onset_ns is not None:
                return self.edge.update(now_ns, False)
            if busy and own is None:
                self._learn(rate, limits.pieces_to_learn)
            elif busy and own is not None and (rate or own > _LEAST_PER_S):
                self.median_per_s = max(own * _STEP if rate > own else own / _STEP, _LEAST_PER_S)
            return None
        if not self.above:
            self.first_ns = now_ns - step[1]
        self.above = min(self.above + 1, max(limits.pieces, 1))
        return self.edge.update(now_ns, onset_ns is not None or self.above >= limits.pieces, self.first_ns)

    def _learn(self, rate: float, pieces_to_learn: int) -> None:
        """Take the rate of one of the pieces from which the reference is made."""
        self.learnt = [*self.learnt, rate]
        if len(self.learnt) >= pieces_to_learn:
            self.median_per_s, self.learnt = max(median(self.learnt), _LEAST_PER_S), []


class CongestionOwn(FrameRule["FabricFrame"]):
    """Watches how much more many nodes' and switches' ports wait or are marked than they were before."""

    def __init__(self, site_id: str, defaults: CongestionOwnThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or CongestionOwnThresholds(), RULE)
        self._pieces: dict[str, int] = {}
        """By publisher, which piece of time its last frame was read in."""
        self._traffic = KeyedRows(_Traffic)
        self._levels = KeyedRows(_Level)

    def passes_over(self, publisher: str, frame: FabricFrame) -> bool:
        """See `FrameRule`: of the frames of a piece one is read."""
        return self._pieces.get(publisher) == frame.event_time_ns // _PIECE_NS

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        publisher, number = frame.publisher_id, frame.event_time_ns // _PIECE_NS
        if self._pieces.get(publisher) == number:
            return
        self._pieces[publisher] = number
        limits, reading = self._limits.of(roster.policy), Reading(frame.agent_session, frame.event_time_ns)
        busy: list[bool] | None = None
        for name in _COUNTERS:
            column = frame.counters.get(name)
            if column is None:
                continue
            if busy is None:
                busy = self._busy(frame, reading, limits.busy_bytes_per_s)
            rows = port_rows(self._levels, frame, name)
            floor = limits.wait_ticks_per_s if name == _WAIT else limits.packets_per_s
            for index, count in enumerate(column):
                if count is None:
                    continue
                state = rows[index]
                step = state.increase.read_in(reading, count)
                if step is not None and step[1] > 0:
                    edge = state.take(reading.at_ns, step, busy[index], floor, limits)
                    if edge is not None:
                        yield self._statement(frame, index, name, state, edge, step, floor, limits, evidence)

    def _statement(
        self,
        frame: FabricFrame,
        index: int,
        name: str,
        state: _Level,
        edge: Edge,
        step: tuple[int, int],
        floor: float,
        limits: CongestionOwnThresholds,
        evidence: Evidence | None,
    ) -> Finding:
        rate, own = step[0] * 1e9 / step[1], state.median_per_s
        onset_ns = state.edge.tell(edge)
        return self._rule.finding(
            f"congestion_own_{name}",
            port_subject(frame, index),
            state=edge,
            severity="info",
            event_time_ns=frame.event_time_ns,
            onset_ns=onset_ns,
            explanation=f"{name} grows by {rate:.0f}/s, before by {own or 0:.0f}/s"
            if edge == "open"
            else f"{name} fell to {rate:.0f}/s",
            values={
                f"{name}_per_s": rate,
                "own_median_per_s": own,
                "limit_per_s": max(floor, limits.factor_own * own) if own is not None else None,
                "factor": limits.factor_own,
                "view": frame.view,
                "peer": peer_of(frame, index),
            },
            evidence=evidence,
        )

    def _busy(self, frame: FabricFrame, reading: Reading, least_per_s: float) -> list[bool]:
        """Whether each port has carried traffic since the last piece; one that does not tell is taken to have."""
        received, sent = frame.rx_data_bytes, frame.tx_data_bytes
        rows = port_rows(self._traffic, frame)
        busy = []
        for index in range(len(frame.device)):
            rx = received[index] if received is not None else None
            tx = sent[index] if sent is not None else None
            step = rows[index].bytes.read_in(reading, rx + tx) if rx is not None and tx is not None else None
            busy.append(step is None or step[1] <= 0 or step[0] * 1e9 >= least_per_s * step[1])
        return busy

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return {
            "pieces": {publisher: [number] for publisher, number in sorted(self._pieces.items())},
            "traffic": self._traffic.snapshot(),
            "levels": self._levels.snapshot(),
        }

    def restore(self, snapshot: dict[str, dict[str, Any]]) -> None:
        """Replace the state by a snapshot's."""
        self._pieces = {publisher: number for publisher, (number,) in snapshot["pieces"].items()}
        self._traffic.restore(snapshot["traffic"])
        self._levels.restore(snapshot["levels"])
