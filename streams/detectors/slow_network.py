"""A slow network: communicators whose transfers take longer than they used to while own time is flat.

A transfer is the shortest time among the members of a communicator, so waiting for a late member is left out. Each
communicator is held against its own slow reference, so one slow ring of eight is seen; the kind's noise sets how much is
clear. Send and receive are not judged: in a pipeline nobody's time there is transfer alone. Says once which communicators
of which kind became slow together, and never adds to that. Names no rank, link or switch: where their ways meet is for
others to find out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.core.collectives import transfers
from streams.core.known import are_positive
from streams.core.limits import LimitsInForce
from streams.core.slow_reference import SlowReference
from streams.core.statement import Rule
from streams.detectors.transfer_charts import SlowNetworkThresholds, TransferCharts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schemas.findings import Evidence, Finding
    from schemas.fleet import Policy
    from streams.core.collectives import Collective
    from streams.core.step_join import ClosedStep

__all__ = ["SlowNetwork", "SlowNetworkThresholds"]

RULE = "slow_network"

_POINT_TO_POINT = frozenset({"pp", "p2p"})
_TOLD_INSTANCES = 64
_TOLD_RANKS = 4096
_TIMES = 32
_NONE = (np.array([], dtype=np.int64), np.array([], dtype=np.int64))

_Judged = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""Communicators that a step could judge, and those of them that were slow in it."""


@dataclass(slots=True)
class _Slow:
    """Communicators that are slow, told or about to be."""

    onset_ns: int
    group: str | None = None
    """The kind, once it is told."""
    steps: int = 0
    """Recorded steps since the first became slow, or once told, since the last was."""


class SlowNetwork:
    """Follows the transfers of one epoch of one job."""

    def __init__(self, site_id: str, defaults: SlowNetworkThresholds | None = None) -> None:
        self._rule = Rule(RULE, 1, site_id)
        self._limits = LimitsInForce(defaults or SlowNetworkThresholds(), RULE)
        self._own = SlowReference()
        self._charts: dict[str, TransferCharts] = {}
        self._slow: _Slow | None = None
        self._times: deque[int] = deque(maxlen=_TIMES)

    def on_step(self, step: ClosedStep, policy: Policy | None, evidence: Evidence | None = None) -> Iterator[Finding]:
        """Findings of one closed step of phase `train`; steps come in step order."""
        limits = self._limits.of(policy)
        self._times.append(step.event_time_ns)
        may_be_slow = self._is_own_flat(step, limits)
        judged: dict[str, _Judged] = {}
        for group, collective in sorted(step.collectives.items()):
            if not _is_point_to_point(collective):
                judged[group] = self._fold(step, collective, may_be_slow, limits)
        if self._slow is not None and self._slow.group is not None:
            yield from self._follow(step, self._slow, self._slow.group, judged, limits, evidence)
        else:
            yield from self._gather(step, judged, limits, evidence)

    def _is_own_flat(self, step: ClosedStep, limits: SlowNetworkThresholds) -> bool:
        own_us = step.own_median_us
        ratio = self._own.take(own_us, frozen=False) if own_us is not None else None
        return ratio is None or ratio < limits.own_flat

    def _fold(
        self, step: ClosedStep, collective: Collective, may_be_slow: bool, limits: SlowNetworkThresholds
    ) -> _Judged:
        charts = self._charts.get(collective.group)
        if charts is None:
            charts = self._charts[collective.group] = TransferCharts()
        numbers, shortest, members = transfers(collective)
        rows = charts.rows_of(collective.names)
        rows = numbers if rows is None else rows[numbers]
        if not are_positive(shortest):
            timed = shortest > 0
            rows, shortest, members = rows[timed], shortest[timed], members[timed]
        least_us = max(float(limits.least_us), limits.least_share * (step.step_time_us or 0))
        return charts.fold(rows, shortest, members, least_us, may_be_slow, limits)

    def _gather(
        self,
        step: ClosedStep,
        judged: dict[str, _Judged],
        limits: SlowNetworkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        """Wait for those that become slow together with the first, for as long as one still can, then say which did."""
        is_slow = False
        for group, (rows, slow) in judged.items():
            if slow.size:
                charts = self._charts[group]
                charts.named[rows[charts.run[rows] >= limits.steps]] = True
                is_slow |= bool(charts.named[slow].any())
        if self._slow is None:
            if not is_slow:
                return
            first = self._times[max(-limits.steps, -len(self._times))]
            self._slow = _Slow(first)
        else:
            self._slow.steps += 1
        left = limits.gather_steps - self._slow.steps
        if left > 0 and any(charts.may_be_named(limits.steps - left) for charts in self._charts.values()):
            return
        if not is_slow:
            self._forget()
            return
        # Where several kinds are slow, the one that costs most: others may share its links.
        group = max(sorted(self._charts), key=lambda name: _excess_us(self._charts[name]))
        self._slow.group, self._slow.steps = group, 0
        for name, charts in self._charts.items():
            if name != group:
                charts.named[:] = False
        yield self._finding(step, "open", self._slow.onset_ns, group, evidence)

    def _follow(
        self,
        step: ClosedStep,
        standing: _Slow,
        group: str,
        judged: dict[str, _Judged],
        limits: SlowNetworkThresholds,
        evidence: Evidence | None,
    ) -> Iterator[Finding]:
        named = self._charts[group].named
        rows, slow = judged.get(group, _NONE)
        if named[slow].any():
            standing.steps = 0
        elif named[rows].any():
            standing.steps += 1
        if standing.steps >= limits.quiet_steps or not named.any():
            yield self._finding(step, "cleared", standing.onset_ns, group, evidence)
            self._forget()

    def _forget(self) -> None:
        self._slow = None
        for charts in self._charts.values():
            charts.named[:] = False

    def _finding(self, step: ClosedStep, state: str, onset_ns: int, group: str, evidence: Evidence | None) -> Finding:
        charts = self._charts[group]
        rows = np.flatnonzero(charts.named)
        transfer_us = np.exp(charts.last[rows].astype(np.float64))
        reference_us = charts.reference[rows].astype(np.float64)
        values: dict[str, Any] = {"group": group, "instances": len(charts.name), "slow": rows.size}
        ratio = None
        if rows.size:
            ratio = float(np.median(transfer_us / reference_us))
            values |= {
                "ratio": ratio,
                "transfer_us": round(float(np.median(transfer_us))),
                "reference_us": round(float(np.median(reference_us))),
            }
        values["step_time_us"] = step.step_time_us
        explanation = "network slowdown is over"
        if state == "open":
            names = sorted((charts.name[row] for row in rows.tolist()), key=lambda name: (len(name), name))
            told, ranks, left_out = _ranks_of(step, step.collectives[group], names)
            values |= {"slow_instances": told, "slow_ranks": ranks, "slow_ranks_left_out": left_out}
            explanation = (
                f"transfers in {rows.size} of {len(charts.name)} {group} groups take {ratio or 0:.3g} times their reference, "
                "own time is flat"
            )
        return self._rule.of_step(
            "network_slowdown",
            step,
            state=state,
            severity="warning",
            onset_ns=onset_ns,
            explanation=explanation,
            values=values,
            evidence=evidence,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        slow = self._slow
        return {
            "own": self._own.snapshot(),
            "charts": {group: charts.snapshot() for group, charts in sorted(self._charts.items())},
            "slow": None if slow is None else [slow.onset_ns, slow.group, slow.steps],
            "times": list(self._times),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._own.restore(snapshot["own"])
        self._charts = {group: TransferCharts.restored(value) for group, value in snapshot["charts"].items()}
        self._slow = None if snapshot["slow"] is None else _Slow(*snapshot["slow"])
        self._times = deque(snapshot["times"], maxlen=_TIMES)


def _is_point_to_point(collective: Collective) -> bool:
    op = (collective.op or "").lower()
    return collective.group.lower() in _POINT_TO_POINT or "send" in op or "recv" in op


def _excess_us(charts: TransferCharts) -> float:
    """What the slowest of the marked communicators of a kind costs beyond its reference."""
    rows = np.flatnonzero(charts.named)
    return float(np.max(np.exp(charts.last[rows]) - charts.reference[rows])) if rows.size else -1.0


def _ranks_of(step: ClosedStep, collective: Collective, names: list[str]) -> tuple[list[str], list[str], int]:
    """Communicators as texts, their ranks as texts, as many as may be told, and how many ranks are left out."""
    numbers = {name: number for number, name in enumerate(collective.names)}
    told: list[str] = []
    texts: list[str] = []
    room, left_out = _TOLD_RANKS, 0
    for place, name in enumerate(names):
        ranks = step.rank[collective.instance == numbers.get(name, -2)].tolist()
        if place < _TOLD_INSTANCES:
            told.append(f"{collective.group}/{name}")
            texts.append(",".join(map(str, ranks[:room])))
            left_out += max(0, len(ranks) - room)
            room -= min(room, len(ranks))
        else:
            left_out += len(ranks)
    return told, texts, left_out
