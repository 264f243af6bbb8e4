"""Plain rules that people try first, as detectors of their own: what the engine must beat on the same cases.

- `B0` highest wait: the rank that waits most. It names a victim.
- `B1` max compute: the rank that computes longest, if 5 % longer than the median of all.
- `B2-sigma`, `B2-robust`: own time above mean + 3 sigma, or a robust z (median, MAD) above 3, over all ranks of the job.
- `B3` last arriver: in each collective communicator the rank that is shortest in it.
- `B4` relative score: fastest own time of all over the rank's below 0.75, the threshold of NVIDIA's resiliency extension.
- `B5` threshold: step time 10 % above the median of the last 10 steps. It names nobody.
- `B5-bocd`, `B6`, `B7`, `B8`: rules over windows, see `windowed_baselines`.

All of them get the same joined steps. Those of one step have the same persistence (4 of the last 5 steps), the others
their own; what was said is over after 20 steps without a hit. They are written from their descriptions; none is its
authors' code. Device counters, hangs and remediation are beyond them. `B10` is an oracle: it knows every truth one step
after its onset, and says what the time to detect cannot be below.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from paceline.evaluation.alerts import Alert
from paceline.evaluation.windowed_baselines import ChangePoint, LongTermZ, Mahalanobis, SummedDistance
from schemas.findings import Subject
from schemas.fleet import Job, RankPlacement
from schemas.steps import StepTiming
from streams.core.roster import Roster
from streams.core.step_join import StepJoin, instances

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from agents.simulation.benchmark import Truth
    from schemas.base import Record
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = [
    "BASELINES",
    "ORACLE",
    "Baselines",
    "highest_wait",
    "last_arriver",
    "max_compute",
    "oracle_alerts",
    "relative_score",
    "robust_z",
    "three_sigma",
]

_MARGIN = 0.03
"""Share of the step time by which a wait or an arrival must stand out; below it everything is noise."""

_HITS, _OF_STEPS, _QUIET_STEPS = 4, 5, 20


def _none(step: ClosedStep) -> NDArray[np.bool_]:
    return np.zeros(len(step.rank), dtype=np.bool_)


def _largest(values: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    """The position of the largest value, if it reaches `least`."""
    hits = np.zeros(len(values), dtype=np.bool_)
    if not np.isnan(values).all():
        at = int(np.nanargmax(values))
        hits[at] = values[at] >= least
    return hits


def highest_wait(step: ClosedStep) -> NDArray[np.bool_]:
    """B0."""
    wait = step.columns["wait_us"]
    if step.step_time_us is None or np.isnan(wait).all():
        return _none(step)
    return _largest(wait, float(np.nanmedian(wait)) + _MARGIN * step.step_time_us)


def max_compute(step: ClosedStep) -> NDArray[np.bool_]:
    """B1."""
    compute = step.columns["compute_us"]
    if np.isnan(compute).all():
        compute = step.own_us
    return _largest(compute, 1.05 * float(np.nanmedian(compute))) if not np.isnan(compute).all() else _none(step)


def three_sigma(step: ClosedStep) -> NDArray[np.bool_]:
    """B2 with mean and standard deviation."""
    own = step.own_us
    if np.isnan(own).all():
        return _none(step)
    hits: NDArray[np.bool_] = own > np.nanmean(own) + 3 * np.nanstd(own)
    return hits


def robust_z(step: ClosedStep) -> NDArray[np.bool_]:
    """B2 with median and median absolute deviation."""
    own = step.own_us
    if np.isnan(own).all():
        return _none(step)
    middle = float(np.nanmedian(own))
    spread = 1.4826 * float(np.nanmedian(np.abs(own - middle)))
    hits: NDArray[np.bool_] = own > middle + 3 * max(spread, 1e-9 * middle)
    return hits


def last_arriver(step: ClosedStep) -> NDArray[np.bool_]:
    """B3."""
    hits = _none(step)
    margin_us = _MARGIN * (step.step_time_us or 0)
    for group, collective in step.collectives.items():
        # Sends and receives of a pipeline are no meeting that one can be last at.
        for members in instances(collective) if group != "pp" else ():
            duration = collective.duration_us[members]
            if len(members) > 1 and np.median(duration) - duration.min() >= margin_us > 0:
                hits[members[int(np.argmin(duration))]] = True
    return hits


def relative_score(step: ClosedStep) -> NDArray[np.bool_]:
    """B4."""
    own = step.own_us
    if np.isnan(own).all():
        return _none(step)
    hits: NDArray[np.bool_] = np.nanmin(own) / own < 0.75
    return hits


class _OfNodes(Protocol):
    def on_step(self, step: ClosedStep) -> set[str]: ...


BASELINES: dict[str, Callable[[ClosedStep], NDArray[np.bool_]] | None] = {
    "B0": highest_wait,
    "B1": max_compute,
    "B2-sigma": three_sigma,
    "B2-robust": robust_z,
    "B3": last_arriver,
    "B4": relative_score,
    "B5": None,  # of the job's step time, not of ranks
    "B5-bocd": None,
    "B6": None,
    "B7": None,
    "B8": None,
}

_OF_NODES: dict[str, Callable[[], _OfNodes]] = {"B6": SummedDistance, "B7": Mahalanobis, "B8": LongTermZ}
"""Rules that name nodes and have a persistence of their own."""


ORACLE = "B10"


def oracle_alerts(truths: Sequence[Truth], step_ns: int) -> tuple[Alert, ...]:
    """B10: each truth by its own name, one step after its onset.

    Args:
        truths: of the case.
        step_ns: a healthy step's time.
    """
    alerts = []
    for truth in truths:
        if not truth.identifiable:
            continue
        place, at_ns = truth.culprits[0], truth.onset_ns + step_ns
        known = {name: getattr(place, name) for name in _PLACE_FIELDS}
        # The rail's switch and the rack are known to findings under other names.
        known["switch_id"] = place.switch_id or (place.id if place.level in {"switch", "rail"} else None)
        known["zone"] = place.zone or place.rack or (place.id if place.level in {"rack", "zone"} else None)
        subject = Subject(level=_LEVELS.get(place.level, place.level), **known)
        alerts.append(
            Alert(
                f"{ORACLE}-{truth.truth_id}",
                at_ns,
                at_ns,
                at_ns,
                truth.onset_step + 1,
                truth.cause_class,
                (truth.cause_class,),
                subject,
                is_naming=place.level not in {"job", "stage"},
            )
        )
    return tuple(alerts)


_PLACE_FIELDS = ("job_id", "rank", "ranks", "stage", "node_id", "gpu_uuid", "pci_bus_id", "device", "port")
_LEVELS = {"rail": "switch", "rack": "zone", "tp_group": "rank_group"}

_Who = TypeVar("_Who", int, str)


class _Persistence(Generic[_Who]):
    """Which ranks (-1: the job) or nodes one rule has hit in the last steps, and which of them stand."""

    def __init__(self, hits: int = _HITS) -> None:
        self._hits = hits
        self._recent: dict[_Who, int] = {}
        self.standing: dict[_Who, int] = {}

    def fold(self, hitting: set[_Who]) -> tuple[list[_Who], list[_Who]]:
        """Take one step's hits; who stands from now on, and who no longer does."""
        opened, over = [], []
        for rank in sorted(hitting | self._recent.keys()):
            seen = (self._recent.get(rank, 0) << 1 | (rank in hitting)) & (2**_QUIET_STEPS - 1)
            self._recent[rank] = seen
            if rank not in self.standing and (seen & (2**_OF_STEPS - 1)).bit_count() >= self._hits:
                opened.append(rank)
            elif not seen:
                del self._recent[rank]
                if rank in self.standing:
                    over.append(rank)
        return opened, over


@dataclass(slots=True)
class _JobState:
    join: StepJoin = field(default_factory=StepJoin)
    times_us: deque[int] = field(default_factory=lambda: deque(maxlen=10))
    rules: dict[str, _Persistence[int]] = field(
        default_factory=lambda: {name: _Persistence() for name in BASELINES if name not in {*_OF_NODES, "B5-bocd"}}
    )
    change: ChangePoint = field(default_factory=ChangePoint)
    changes: _Persistence[int] = field(default_factory=lambda: _Persistence(1))
    of_nodes: dict[str, tuple[_OfNodes, _Persistence[str]]] = field(
        default_factory=lambda: {name: (make(), _Persistence(1)) for name, make in _OF_NODES.items()}
    )


class Baselines:
    """All plain rules over one join of steps."""

    def __init__(self) -> None:
        self._roster = Roster()
        self._jobs: dict[tuple[str, int], _JobState] = {}
        self._alerts: dict[str, list[Alert]] = {name: [] for name in BASELINES}
        self._latest_ns = 0
        self._now_ns = 0

    def alerts(self, name: str) -> tuple[Alert, ...]:
        """What one rule said, in order."""
        return tuple(self._alerts[name])

    def take(self, arrived: Sequence[tuple[int, Record]]) -> None:
        """Take records by arrival; only jobs, placements and step timings are read."""
        for arrival_ns, record in arrived:
            self._now_ns = arrival_ns
            if isinstance(record, Job | RankPlacement):
                self._roster.take(record)
            elif isinstance(record, StepTiming):
                key = (record.job_id, record.epoch)
                state = self._jobs.setdefault(key, _JobState())
                state.join.add(record)
                self._latest_ns = max(self._latest_ns, record.event_time_ns)
                self._close(key, state, final=False)

    def finish(self) -> None:
        """Close every open step."""
        for key, state in sorted(self._jobs.items(), key=lambda item: item[0]):
            self._close(key, state, final=True)

    def _close(self, key: tuple[str, int], state: _JobState, final: bool) -> None:
        roster = self._roster.job(*key)
        for step in state.join.close(self._latest_ns, roster.expected, roster.members, final):
            if step.phase == "train" and len(step.rank):
                self._judge(step, state, roster)

    def _judge(self, step: ClosedStep, state: _JobState, roster: JobRoster) -> None:
        for name, kept in state.rules.items():
            rule = BASELINES[name]
            if rule is not None:
                hitting = {int(rank) for rank in step.rank[rule(step)]}
            else:
                hitting = {-1} if self._is_slow(step, state) else set()
            self._say(name, kept, hitting, step, roster)
        has_changed = bool(step.step_time_us) and state.change.take(step.step_time_us or 0)
        self._say("B5-bocd", state.changes, {-1} if has_changed else set(), step, roster)
        for name, (of_nodes, kept_nodes) in state.of_nodes.items():
            self._say(name, kept_nodes, of_nodes.on_step(step), step, roster)

    def _say(
        self, name: str, kept: _Persistence[_Who], hitting: set[_Who], step: ClosedStep, roster: JobRoster
    ) -> None:
        alerts = self._alerts[name]
        opened, over = kept.fold(hitting)
        for who in opened:
            kept.standing[who] = len(alerts)
            alerts.append(self._alert(name, step, who, roster))
        for who in over:
            number = kept.standing.pop(who)
            alerts[number] = replace(alerts[number], closed_ns=step.event_time_ns)

    def _alert(self, name: str, step: ClosedStep, who: int | str, roster: JobRoster) -> Alert:
        is_job = who == -1
        if isinstance(who, str):
            subject = Subject(level="node", job_id=step.job_id, node_id=who)
        elif is_job:
            subject = Subject(level="job", job_id=step.job_id)
        else:
            seat = roster.seats.get(who)
            subject = Subject(
                level="rank",
                job_id=step.job_id,
                rank=who,
                node_id=seat.node_id if seat is not None else None,
                gpu_uuid=seat.gpu_uuid if seat is not None else None,
                pci_bus_id=seat.pci_bus_id if seat is not None else None,
            )
        return Alert(
            f"{name}-{step.job_id}-{step.epoch}-{who}-{step.step}",
            max(self._now_ns, step.event_time_ns),
            step.event_time_ns,
            step.event_time_ns,
            step.step,
            "slow_step" if is_job else "compute",
            ("power", "thermal", "software", "storage") if is_job else ("compute",),
            subject,
            is_naming=not is_job,
        )

    @staticmethod
    def _is_slow(step: ClosedStep, state: _JobState) -> bool:
        if step.step_time_us is None:
            return False
        usual = float(np.median(state.times_us)) if len(state.times_us) == state.times_us.maxlen else None
        state.times_us.append(step.step_time_us)
        return usual is not None and step.step_time_us > 1.1 * usual
