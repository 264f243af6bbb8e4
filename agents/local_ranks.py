"""What this node knows of the jobs that run on it: their ranks, on which devices, and where each stands.

Guarantees: a rank belongs to the user who registered its job first; a device is what the runtime says, else what the
driver says of the process, else what the environment suggests, and null when nobody knows; jobs and placements are
published when they change and once a day; progress is published as long as a rank is connected, more often while nothing
moves: it is by progress that a hang is noticed. State is bounded. It reads no clock and touches no socket: times come with
the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agents.identity import AgentIdentity, Sequences
from agents.rank_places import RankPlace
from agents.step_join import Reports, StepJoin, is_due, step_columns
from agents.trainer_messages import Device, End, Progress, Register, StepReport, TrainerMessage
from schemas.base import Record
from schemas.fleet import Job, Layout, RankPlacement
from schemas.steps import Phase, RankProgress, StepTiming

__all__ = ["DeviceResolver", "LocalRanks", "Peer", "RefusedError"]

DeviceResolver = Callable[[int], Mapping[str, str] | None]
"""The GPU of a process by its pid, as `uuid` and `pci_bus_id`; None while the driver names none or several."""

_MOST_RANKS = 256
_MOST_ATTEMPTS = 64
_DAY_NS = 24 * 3600 * 10**9
_FORGET_NS = 600 * 10**9
"""An attempt without any connected rank is forgotten after ten minutes; a reconnect takes at most half a minute."""

_SETTLE_NS = 2 * 10**9
"""Registrations of one node come within a second or two; until then its first ranks are not taken for all of them."""

_RESOLVE_EVERY_NS = 5 * 10**9

_STILL_NS = 10 * 10**9
_STILL_EVERY_NS = 10**9
"""Where no rank has moved for ten seconds, progress is told every second: there are no steps to tell of meanwhile."""


class RefusedError(ValueError):
    """A valid message that may not be said by who said it, or not now; the text is a counter's label."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, as the kernel says.

    Attributes:
        connection: a number that no other connection of this run has.
        pid: process id as this node's agent sees it; 0 if it is in a namespace that the agent cannot see.
        uid: its user.
    """

    connection: int
    pid: int
    uid: int


@dataclass(slots=True)
class _Rank:
    registration: Register
    peer: Peer
    connected: bool = True
    last_step: int | None = None
    phase: Phase | None = None
    groups: dict[str, tuple[int | None, int | None, int | None]] = field(default_factory=dict)
    resolved: Device | None = None

    @property
    def is_certain(self) -> bool:
        said = self.registration.device
        # An instance of a GPU is no device of the frames: who computes on it is looked up by pid, which gives the GPU.
        is_instance = said is not None and said.uuid is not None and said.uuid.startswith("MIG-")
        return said is not None and said.source != "visible_devices" and not is_instance

    @property
    def device(self) -> Device | None:
        said = self.registration.device
        return said if self.is_certain else self.resolved or said


@dataclass(slots=True)
class _Attempt:
    """One epoch of one job on this node."""

    job_id: str
    epoch: int
    since_ns: int
    changed_ns: int
    ranks: dict[int, _Rank] = field(default_factory=dict)
    join: StepJoin = field(default_factory=StepJoin)
    ended: bool = False
    quiet_since_ns: int | None = None
    progress_ns: int | None = None
    moved_ns: int = 0
    resolved_ns: int | None = None
    stated_ns: int | None = None
    job: Job | None = None
    placement: RankPlacement | None = None

    def connected(self) -> set[int]:
        return {number for number, rank in self.ranks.items() if rank.connected}

    def is_settled(self, now_ns: int) -> bool:
        expected = [rank.registration.local_world_size for rank in self.ranks.values()]
        whole = None not in expected and len(self.ranks) >= max(size or 0 for size in expected)
        return whole or is_due(self.changed_ns, now_ns, _SETTLE_NS)


class LocalRanks:
    """Folds what trainers say into records.

    Args:
        identity: who publishes.
        sequences: numbers of this session.
        resolve_device: finds the GPU of a process; None leaves it unknown. Must not block.
        step_timeout_ns: how long a step waits for its last rank.
        progress_ns: how often the ranks' progress is published.
    """

    def __init__(
        self,
        identity: AgentIdentity,
        sequences: Sequences,
        resolve_device: DeviceResolver | None = None,
        *,
        step_timeout_ns: int = 10 * 10**9,
        progress_ns: int = 5 * 10**9,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._identity = identity
        self._sequences = sequences
        self._resolve_device = resolve_device
        self._step_timeout_ns = step_timeout_ns
        self._progress_ns = progress_ns
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self._place: dict[int, tuple[tuple[str, int], int]] = {}  # by connection: attempt and rank
        self._places: Mapping[tuple[str, int], tuple[RankPlace, ...]] = {}  # replaced whole, for other threads

    @property
    def has_jobs(self) -> bool:
        """Whether any job has, or lately had, ranks here."""
        return bool(self._attempts)

    def on_message(self, peer: Peer, said: TrainerMessage, now_ns: int) -> list[Record]:
        """Fold one message in; the records that it completed.

        Raises:
            RefusedError: the connection has not registered, was replaced, or says what is another user's to say.
        """
        if isinstance(said, Register):
            self._register(peer, said, now_ns)
            return []
        key, number = self._place.get(peer.connection, (None, 0))
        attempt = self._attempts.get(key) if key is not None else None
        if attempt is None:
            raise RefusedError("unregistered")
        rank = attempt.ranks[number]
        if rank.peer.connection != peer.connection:
            raise RefusedError("replaced_connection")
        if isinstance(said, StepReport):
            rank.last_step = said.step
            attempt.moved_ns = now_ns
            left = attempt.join.add(number, said, now_ns)
            if attempt.is_settled(now_ns):
                left += attempt.join.take_whole(attempt.connected())
            return self._timings(attempt, left, now_ns)
        if isinstance(said, Progress):
            if any(rank.groups.get(group) != marks for group, marks in said.groups.items()):
                rank.groups.update(said.groups)
                attempt.moved_ns = now_ns
            if said.last_step is not None:
                rank.last_step = said.last_step
            if said.phase is not None:
                rank.phase = said.phase
            return []
        if not isinstance(said, End):
            raise RefusedError("not_a_trainers")
        attempt.ended = attempt.ended or number == min(attempt.ranks)
        return []

    def on_disconnect(self, peer: Peer, now_ns: int) -> list[Record]:
        """A connection is gone; the steps that waited for its rank alone."""
        key, number = self._place.pop(peer.connection, (None, 0))
        attempt = self._attempts.get(key) if key is not None else None
        if attempt is None or attempt.ranks[number].peer.connection != peer.connection:
            return []
        attempt.ranks[number].connected = False
        if not attempt.connected():
            attempt.quiet_since_ns = now_ns
        return self._timings(attempt, attempt.join.take_whole(attempt.connected()), now_ns)

    def tick(self, now_ns: int) -> list[Record]:
        """What time alone brings: steps that waited long enough, jobs, placements, progress."""
        records: list[Record] = []
        for key, attempt in list(self._attempts.items()):
            late = attempt.join.take_late(now_ns, self._step_timeout_ns)
            self.counters["steps_timed_out"] += len(late)
            if attempt.is_settled(now_ns):
                late += attempt.join.take_whole(attempt.connected())
            records += self._timings(attempt, late, now_ns)
            self._resolve(attempt, now_ns)
            if attempt.placement is not None or attempt.is_settled(now_ns):
                records += self._statements(attempt, now_ns)
            is_still = is_due(attempt.moved_ns, now_ns, _STILL_NS)
            every_ns = min(self._progress_ns, _STILL_EVERY_NS) if is_still else self._progress_ns
            if attempt.connected() and is_due(attempt.progress_ns, now_ns, every_ns):
                attempt.progress_ns = now_ns
                records.append(self._progress(attempt, now_ns))
            if attempt.quiet_since_ns is not None and is_due(attempt.quiet_since_ns, now_ns, _FORGET_NS):
                del self._attempts[key]
                self._places = {other: places for other, places in self._places.items() if other != key}
        return records

    def flush(self, now_ns: int) -> list[Record]:
        """All steps in the making, as they are, for an agent that stops."""
        return [
            timing
            for attempt in self._attempts.values()
            for timing in self._timings(attempt, attempt.join.take_whole(frozenset()), now_ns)
        ]

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """The ranks of this node, those of the last ten minutes too; may be asked for from any thread."""
        return tuple(place for places in self._places.values() for place in places)

    def registrations(self) -> Iterator[tuple[Register, Peer]]:
        """Every rank that is connected, and by whom: for those who look for a trainer's dumps."""
        for attempt in self._attempts.values():
            for rank in attempt.ranks.values():
                if rank.connected:
                    yield rank.registration, rank.peer

    def status(self, uid: int | None = None) -> list[dict[str, Any]]:
        """What every rank said of itself last, plain data; those that are gone too, until their attempt is forgotten.

        Args:
            uid: only the ranks of this user; None for all.
        """
        return [
            {
                "job_id": attempt.job_id,
                "epoch": attempt.epoch,
                "rank": number,
                "world_size": rank.registration.world_size,
                "pid": rank.peer.pid,
                "uid": rank.peer.uid,
                "connected": rank.connected,
                "ended": attempt.ended,
                "last_step": rank.last_step,
                "device": rank.device.model_dump(exclude_none=True) if rank.device is not None else None,
                "torch_version": rank.registration.torch_version,
                "nccl_env": rank.registration.nccl_env,
            }
            for attempt in self._attempts.values()
            for number, rank in sorted(attempt.ranks.items())
            if uid is None or rank.peer.uid == uid
        ]

    def _register(self, peer: Peer, said: Register, now_ns: int) -> None:
        key = (said.job_id, said.epoch)
        if self._place.get(peer.connection, (key, said.rank)) != (key, said.rank):
            raise RefusedError("second_rank_on_connection")
        owners = {
            rank.peer.uid
            for attempt in self._attempts.values()
            if attempt.job_id == said.job_id
            for rank in attempt.ranks.values()
        }
        if owners and peer.uid not in owners:
            raise RefusedError("owned_by_another_user")
        attempt = self._attempts.get(key)
        if attempt is None:
            if len(self._attempts) >= _MOST_ATTEMPTS:
                raise RefusedError("too_many_jobs")
            attempt = _Attempt(said.job_id, said.epoch, min(said.event_time_ns, now_ns), now_ns)
        known = attempt.ranks.get(said.rank)
        if known is None and len(attempt.ranks) >= _MOST_RANKS:
            raise RefusedError("too_many_ranks")
        for part in said.refused_parts:
            self.counters[f"bad_{part}"] += 1
        self._attempts[key] = attempt
        self._place[peer.connection] = (key, said.rank)
        attempt.quiet_since_ns = attempt.resolved_ns = None
        if known is None:
            attempt.changed_ns = now_ns
            attempt.ranks[said.rank] = _Rank(said, peer)
        else:
            if known.peer.pid != peer.pid:
                known.resolved = None
            known.registration, known.peer, known.connected = said, peer, True
        place = RankPlace(said.job_id, said.epoch, said.rank, peer.uid, attempt.since_ns)
        others = (known for known in self._places.get(key, ()) if known.rank != said.rank)
        self._places = {**self._places, key: (*others, place)}

    def _timings(self, attempt: _Attempt, steps: Iterable[Reports], now_ns: int) -> list[Record]:
        return [
            StepTiming(
                **self._head(attempt),
                event_time_ns=min(max(report.event_time_ns for report in reports.values()), now_ns),
                **step_columns(reports),
            )
            for reports in steps
        ]

    def _progress(self, attempt: _Attempt, now_ns: int) -> RankProgress:
        ranks = dict(sorted(attempt.ranks.items()))
        groups = sorted({group for rank in ranks.values() for group in rank.groups})
        unknown = (None, None, None)
        return RankProgress(
            **self._head(attempt),
            event_time_ns=now_ns,
            rank=tuple(ranks),
            last_step=tuple(rank.last_step for rank in ranks.values()),
            groups={group: tuple(rank.groups.get(group, unknown) for rank in ranks.values()) for group in groups},
            phase=_phase_of(ranks.values()),
            connected=tuple(rank.connected for rank in ranks.values()),
        )

    def _resolve(self, attempt: _Attempt, now_ns: int) -> None:
        if self._resolve_device is None or not is_due(attempt.resolved_ns, now_ns, _RESOLVE_EVERY_NS):
            return
        attempt.resolved_ns = now_ns
        for rank in attempt.ranks.values():
            if rank.is_certain or rank.resolved is not None or not rank.connected or rank.peer.pid == 0:
                continue
            found = self._resolve_device(rank.peer.pid)
            if found is not None:
                rank.resolved = Device.model_validate({**found, "source": "cuda"})

    def _statements(self, attempt: _Attempt, now_ns: int) -> list[Record]:
        """The job and the placement, if they have changed or were last told a day ago."""
        job, placement = self._job(attempt), self._placement(attempt, now_ns)
        again = is_due(attempt.stated_ns, now_ns, _DAY_NS)
        records: list[Record] = []
        if again or job != attempt.job:
            records.append(job)
        if again or placement != attempt.placement:
            records.append(placement)
        if again:
            attempt.stated_ns = now_ns
        attempt.job, attempt.placement = job, placement
        return records

    def _job(self, attempt: _Attempt) -> Job:
        """The job as its lowest rank here describes it, or the lowest that describes its model.

        Every node of a job says the same, so its version follows from the attempt alone: odd while it runs.
        """
        told = [rank.registration for _, rank in sorted(attempt.ranks.items())]
        first = next((registration for registration in told if registration.model is not None), told[0])
        named: dict[str, Any] = {
            "job_id": attempt.job_id,
            "version": 2 * attempt.epoch + 1 + attempt.ended,
            "effective_from_ns": attempt.since_ns,
            "epoch": attempt.epoch,
            "state": "ended" if attempt.ended else "running",
            "world_size": first.world_size,
            "model": first.model,
            "layout": first.layout or Layout(),
        }
        try:
            return Job.model_validate({**first.job, **named})
        except ValidationError:
            self.counters["bad_job"] += 1
            return Job.model_validate(named)

    def _placement(self, attempt: _Attempt, now_ns: int) -> RankPlacement:
        ranks = dict(sorted(attempt.ranks.items()))
        devices = [rank.device for rank in ranks.values()]
        stages = [rank.registration.stage for rank in ranks.values()]
        roles = [rank.registration.role for rank in ranks.values()]
        last = attempt.placement
        placement = RankPlacement(
            job_id=attempt.job_id,
            version=last.version if last else 1,
            # A device that becomes known later was the rank's from the start.
            effective_from_ns=attempt.since_ns,
            epoch=attempt.epoch,
            node_id=self._identity.node_id,
            rank=tuple(ranks),
            gpu_uuid=tuple(device.uuid if device else None for device in devices),
            pci_bus_id=tuple(device.pci_bus_id if device else None for device in devices),
            stage=None if None in stages else tuple(stage for stage in stages if stage is not None),
            role=None if None in roles else tuple(role for role in roles if role is not None),
        )
        if placement == last:
            return placement
        # Seconds since the epoch: above every version of an earlier run of the agent, which is not remembered.
        version = max(now_ns // 10**9, placement.version + 1)
        return placement.model_copy(update={"version": version})

    def _head(self, attempt: _Attempt) -> dict[str, Any]:
        return {
            "job_id": attempt.job_id,
            "epoch": attempt.epoch,
            "node_id": self._identity.node_id,
            "agent_session": self._identity.agent_session,
            "seq": self._sequences.take("step-timings"),
        }


def _phase_of(ranks: Iterable[_Rank]) -> Phase | None:
    """What the ranks are in: of several phases a masked one counts; None where nobody has said."""
    told = {rank.phase for rank in ranks if rank.connected and rank.phase is not None}
    return min(told - {"train"} or told, default=None)
