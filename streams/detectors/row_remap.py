"""Row remapping: a GPU whose memory waits for a repair, cannot be repaired, or has used up most of its spares.

The driver's own flags, said at the first frame that carries them; what stood before anyone watched is said as found at
start. None is urgent: a pending remap waits for a checkpoint and a reset, a failed one for a person with a spare part;
the uncorrectable error behind it has its own rule. An unknown flag changes nothing: absence is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.edges import EdgeState
from streams.core.frame_rules import FrameRule, all_at_rest
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.limits import LimitsInForce
from streams.core.statement import Rule
from streams.detectors.gpu_frames import gpu_rows, gpu_subject, skus, value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.keyed import Rows
    from streams.core.roster import Roster

__all__ = ["RULE", "RowRemap", "RowRemapThresholds"]

RULE = "row_remap"

_KINDS = (
    # kind, severity, column, what is said when it opens and when it is cleared
    ("row_remap_pending", "warning", "row_remap_pending", "a row waits to be remapped", "no row waits to be remapped"),
    ("row_remap_failure", "critical", "row_remap_failure", "a row could not be remapped", "the failure flag is gone"),
    (
        "row_remap_exhausting",
        "warning",
        "uncorrectable_remapped_rows",
        "rows remapped after uncorrectable errors",
        "the count of remapped rows is below the limit",
    ),
)


@dataclass(frozen=True, slots=True)
class RowRemapThresholds:
    """Thresholds of the rule.

    Attributes:
        uncorrectable_rows: remapped rows after uncorrectable errors, from which on spares run out. DCGM fails from 512,
            NHC above 512. The two flags have no threshold: NHC, GCM, NVSentinel and gpud all act on any.
    """

    uncorrectable_rows: int = 512


class _Flag(SubjectState):
    __slots__ = ("at_start", "edge", "seen")

    def __init__(self) -> None:
        self.edge = EdgeState()
        self.seen = False
        self.at_start = False

    def is_quiet(self, now_ns: int) -> bool:
        return self.edge.is_quiet(now_ns)


class RowRemap(FrameRule["GpuFrame"]):
    """Watches the row remapper of many nodes' GPUs."""

    columns = tuple(column for _, _, column, _, _ in _KINDS)

    def __init__(self, site_id: str, defaults: RowRemapThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or RowRemapThresholds(), RULE)
        self._flags = KeyedRows(_Flag)

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one frame; frames of a node come in the order of its event time."""
        for kind, severity, column, opened, cleared in _KINDS:
            readings = getattr(frame, column)
            if readings is None:
                continue
            rows = gpu_rows(self._flags, frame, kind)
            said = readings, frame.sku, roster.policy
            if rows.stand_still(frame.agent_session, frame.event_time_ns, said):
                continue
            each = self._limits.of_each(roster.policy, skus(frame))
            for index, (reading, limits) in enumerate(zip(readings, each, strict=True)):
                if reading is None:
                    continue
                least = limits.uncorrectable_rows if kind == "row_remap_exhausting" else 1
                flag = rows[index]
                first, flag.seen = not flag.seen, True
                edge = flag.edge.update(frame.event_time_ns, reading >= least)
                if edge is None:
                    continue
                onset_ns = flag.edge.tell(edge)
                flag.at_start = first if edge == "open" else flag.at_start
                count = f"{reading} " if kind == "row_remap_exhausting" else ""
                yield self._rule.finding(
                    kind,
                    gpu_subject(frame, index),
                    state=edge,
                    severity=severity,
                    event_time_ns=frame.event_time_ns,
                    onset_ns=onset_ns,
                    explanation=f"{count}{opened}{', found at start' if flag.at_start else ''}"
                    if edge == "open"
                    else cleared,
                    values={
                        "row_remap_pending": value(frame.row_remap_pending, index),
                        "row_remap_failure": value(frame.row_remap_failure, index),
                        "uncorrectable_remapped_rows": value(frame.uncorrectable_remapped_rows, index),
                        "limit_uncorrectable_rows": limits.uncorrectable_rows,
                        "found_at_start": flag.at_start,
                    },
                    evidence=evidence,
                )
            rows.rest()

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        """See `FrameRule`."""
        carried = [kind for kind, _, column, _, _ in _KINDS if getattr(frame, column) is not None]
        return all_at_rest(*(self._flags.at_rest((frame.node_id, kind)) for kind in carried))

    def snapshot(self) -> dict[str, object]:
        """Plain data that `restore` takes."""
        return self._flags.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        """Replace the state by a snapshot's."""
        self._flags.restore(snapshot)
