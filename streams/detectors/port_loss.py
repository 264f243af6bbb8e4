"""Lost packets: a port that damages, discards or has to repeat more packets a second than it should.

Beside the counters of InfiniBand, which `port_errors` reads, these are Ethernet's, RoCE's and a switch's, under the
names that drivers and SAI give them; the name is the kind. Damaged packets are a warning, as there. What was thrown away
for want of room, and what had to be sent again, are observations: neither says who is at fault, and adaptive routing
makes packets come out of order. The kernel's own statistics stand in where a driver has no counter of its own.

Which end of a link is at fault cannot be seen from one, nor a loss that stays below the limits for hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.core.trailing import span_at_pace
from streams.detectors.port_frames import CounterRate, peer_of, port_rows, port_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import FabricFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "PortLoss", "PortLossThresholds"]

RULE = "port_loss"

_DAMAGED, _REPEATED, _DISCARDED = "damaged", "sent again", "discarded"

_COUNTERS = {
    "rx_crc_errors_phy": (_DAMAGED, "crc_errors_per_s"),
    "rx_crc_errors": (_DAMAGED, "crc_errors_per_s"),
    "rx_symbol_err_phy": (_DAMAGED, "symbol_errors_per_s"),
    "SAI_PORT_STAT_IF_IN_ERRORS": (_DAMAGED, "in_errors_per_s"),
    "out_of_sequence": (_REPEATED, "retransmits_per_s"),
    "packet_seq_err": (_REPEATED, "retransmits_per_s"),
    "oos_drop_count": (_REPEATED, "retransmits_per_s"),
    "seq_err_naks_rcvd": (_REPEATED, "retransmits_per_s"),
    "rx_discards_phy": (_DISCARDED, "discards_per_s"),
    "tx_discards_phy": (_DISCARDED, "discards_per_s"),
    "rx_out_of_buffer": (_DISCARDED, "discards_per_s"),
    "rx_missed_errors": (_DISCARDED, "discards_per_s"),
    "SAI_PORT_STAT_IF_IN_DISCARDS": (_DISCARDED, "discards_per_s"),
    "SAI_PORT_STAT_IF_OUT_DISCARDS": (_DISCARDED, "discards_per_s"),
}
"""What a counter counts, and its threshold. mlx5, mlx5_ib, bnxt_re (`oos_drop_count`, `seq_err_naks_rcvd`), Linux, SAI."""

_STANDS_IN = {"rx_crc_errors": "rx_crc_errors_phy", "rx_missed_errors": "rx_out_of_buffer"}
"""The kernel's statistics, and the driver's counter from which they are where there is one."""


@dataclass(frozen=True, slots=True)
class PortLossThresholds:
    """Thresholds of the rule, each a rate per second above which a sample counts.

    Attributes:
        crc_errors_per_s: packets with a wrong checksum. Judgement: as NVSentinel's level for `symbol_error`.
        symbol_errors_per_s: packets lost to coding errors. Likewise.
        in_errors_per_s: a switch's packets received with errors. Judgement: as NVSentinel's for `port_rcv_errors`.
        retransmits_per_s: packets out of order, or asked for again. Judgement.
        discards_per_s: packets thrown away. Judgement; NVSentinel has 100 a second for InfiniBand's `port_xmit_discards`.
        hits, span_ns: fires when the rate was above in this many samples of the span, which is as long as that many
            readings where a source is read more seldom.
    """

    crc_errors_per_s: float = 10.0
    symbol_errors_per_s: float = 10.0
    in_errors_per_s: float = 10.0
    retransmits_per_s: float = 10.0
    discards_per_s: float = 10.0
    hits: int = 3
    span_ns: int = 5_000_000_000


class PortLoss(FrameRule["FabricFrame"]):
    """Watches the loss counters of many nodes' and switches' ports."""

    besides = tuple(_COUNTERS)

    def __init__(self, site_id: str, defaults: PortLossThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or PortLossThresholds(), RULE)
        self._states = KeyedRows(CounterRate)
        self._found: dict[str, tuple[object, dict[str, Rows[CounterRate]]]] = {}

    def on_frame(self, frame: FabricFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        session, now_ns, policy, counters = frame.agent_session, frame.event_time_ns, roster.policy, frame.counters
        found = self._rows_of(frame)
        for name in _COUNTERS:
            column = _read(counters, name)
            if column is None:
                continue
            rows = found.get(name)
            if rows is None:
                rows = found[name] = port_rows(self._states, frame, name)
            if rows.stand_still(session, now_ns, (column, policy)):
                continue
            limits = self._limits.of(policy)
            for index, count in enumerate(column):
                if count is not None:
                    yield from self._counter(frame, index, name, count, rows, limits, evidence)
            rows.rest()

    def _rows_of(self, frame: FabricFrame) -> dict[str, Rows[CounterRate]]:
        """The rows of a publisher by counter, looked up once for all of a frame's counters."""
        publisher, names = frame.publisher_id, (frame.device, frame.port)
        found = self._found.get(publisher)
        if found is None or found[0] != names:
            found = self._found[publisher] = (names, {})
        return found[1]

    def _counter(
        self,
        frame: FabricFrame,
        index: int,
        name: str,
        count: int,
        rows: Rows[CounterRate],
        limits: PortLossThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        state, now_ns = rows[index], frame.event_time_ns
        step = state.increase.read_in(rows.reading, count)
        if step is None or step[1] <= 0:
            return
        means, threshold = _COUNTERS[name]
        rate, limit = step[0] * 1e9 / step[1], float(getattr(limits, threshold))
        if rate <= limit and limits.hits > 0 and state.is_quiet(now_ns):
            return
        state.hits.configure(limits.hits, span_at_pace(limits.hits, limits.span_ns, step[1]))
        holds = state.hits.add(now_ns, rate > limit)
        edge = state.edge.update(now_ns, holds, state.hits.first_ns)
        if edge is None:
            return
        onset_ns = state.edge.tell(edge)
        yield self._rule.finding(
            name,
            port_subject(frame, index),
            state=edge,
            severity="warning" if means == _DAMAGED else "info",
            event_time_ns=now_ns,
            onset_ns=onset_ns,
            explanation=f"{rate:.0f} packets/s {means} ({name}), limit {limit:g}"
            if edge == "open"
            else f"{name} fell to {rate:.0f}/s",
            values={
                f"{name}_per_s": rate,
                "limit_per_s": limit,
                "means": means,
                "view": frame.view,
                "peer": peer_of(frame, index),
            },
            evidence=evidence,
        )

    def resting(self, frame: FabricFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        found = self._rows_of(frame)
        # A column that others stand in for is not read, and its rows, if it ever had any, are not to be moved.
        read = [name for name in _COUNTERS if _read(frame.counters, name) is not None]
        return all_at_rest(*(rows if (rows := found.get(name)) and rows.is_at_rest else None for name in read))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)
        self._found = {}


def _read(counters: dict[str, tuple[int | None, ...]], name: str) -> tuple[int | None, ...] | None:
    """The column of a counter as far as it is judged; None where it is not carried, or all ports have one of their own."""
    column = counters.get(name)
    if column is not None and name in _STANDS_IN:
        return _without_own(column, counters.get(_STANDS_IN[name]))
    return column


def _without_own(column: tuple[int | None, ...], own: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    """A statistic of the kernel without the ports whose driver tells the same; None if none is left."""
    if own is None:
        return column
    if None not in own:
        return None
    return tuple(count if told is None else None for count, told in zip(column, own, strict=True))
