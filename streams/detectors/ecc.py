"""Uncorrectable ECC errors: at once, in the urgent lane.

Any increase of the volatile or aggregate double-bit count fires, at most once a minute per GPU. A count above 0 at first sight happened before anyone
watched: it is reported as found at start, and is not urgent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.core.counters import CounterIncrease
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.statement import Rule
from streams.detectors.gpu_frames import gpu_rows, gpu_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["UncorrectableEcc"]

RULE = "uncorrectable_ecc"
_AGAIN_NS = 60_000_000_000


class _GpuMemory(SubjectState):
    __slots__ = ("aggregate", "pending", "said_ns", "seen", "volatile")

    def __init__(self) -> None:
        self.volatile = CounterIncrease()
        self.aggregate = CounterIncrease()
        self.seen = False
        self.pending = 0
        self.said_ns: int | None = None

    def is_quiet(self, now_ns: int) -> bool:  # noqa: ARG002
        return not self.pending


class UncorrectableEcc(FrameRule["GpuFrame"]):
    """Watches the double-bit error counts of many nodes."""

    columns = ("ecc_dbe_volatile_count", "ecc_dbe_aggregate_count")

    def __init__(self, site_id: str) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._states = KeyedRows(_GpuMemory)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:  # noqa: ARG002
        """Findings of one frame; frames of a node come in the order of its event time."""
        volatiles, aggregates = frame.ecc_dbe_volatile_count, frame.ecc_dbe_aggregate_count
        if volatiles is None and aggregates is None:
            return
        now_ns = frame.event_time_ns
        rows = gpu_rows(self._states, frame)
        if rows.stand_still(frame.agent_session, now_ns, (volatiles, aggregates)):
            return
        for index in range(len(frame.gpu_uuid)):
            volatile = volatiles[index] if volatiles is not None else None
            aggregate = aggregates[index] if aggregates is not None else None
            if volatile is None and aggregate is None:
                continue
            state = rows[index]
            one = state.volatile.read_in(rows.reading, volatile)
            other = state.aggregate.read_in(rows.reading, aggregate)
            state.pending += max(one[0] if one is not None else 0, other[0] if other is not None else 0)
            first, state.seen = not state.seen, True
            # The aggregate count is for the part's life; only the volatile one says that this boot has met an error.
            at_start = first and (volatile or 0) > 0
            # The first error is said at once; what follows within a minute is said together.
            is_due = state.said_ns is None or now_ns - state.said_ns >= _AGAIN_NS
            increased = state.pending if is_due else 0
            if not increased and not at_start:
                continue
            counts = {"ecc_dbe_volatile_count": volatile, "ecc_dbe_aggregate_count": aggregate}
            if increased:
                state.pending, state.said_ns = 0, now_ns
            yield self._rule.finding(
                "uncorrectable_ecc",
                gpu_subject(frame, index),
                state="open",
                severity="critical" if increased else "warning",
                event_time_ns=now_ns,
                onset_ns=now_ns,
                urgent=bool(increased),
                explanation=f"{increased} uncorrectable ECC errors"
                if increased
                else f"{volatile} uncorrectable ECC errors found at start",
                values={**counts, "increase": increased, "found_at_start": not increased},
                evidence=evidence,
            )
        rows.rest()

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        if frame.ecc_dbe_volatile_count is None and frame.ecc_dbe_aggregate_count is None:
            return ()
        return all_at_rest(self._states.at_rest((frame.node_id,)))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._states.restore(snapshot)
