"""A job's ranks as hosts that issue operations ahead of devices that carry them out, up to where they hang.

What is modelled is the library, not its faults: a host issues work into streams and goes on; a collective ends when all
members issued it and their devices came to it, and a send when its receive did; operations of one group, and sends and
receives of one pair, follow one another; the small broadcast of a root ends before others begin. A host stops for
what it needs the result of, and where its launch queue is full. Faults take away one thing each: a host that issues no
more, a device that finishes no more, a link, or a process. Guarantees: the run is a function of programs and faults; what never
ends is found, not decided. Deliberately knows nothing of recorders and of rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Action", "Faults", "Issued", "Never", "RankRun", "Run", "run_job"]

Never: Final = math.inf

_ISSUE_US: Final = 15.0
"""Host time of one launch."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a program does.

    Attributes:
        kind: `work` (device time `us`), `collective`, `send`, `recv`, `wait` (the device waits for the operation of `tag`),
            `sync` (the host waits for the device), `host` (host time `us`).
        group: Index of the group.
        peer: Global rank, of a send or receive.
        elements: Of the input.
        is_root: Of a one-sided operation that it ends early on this rank.
        is_async: The device does not wait for it.
        batch: Sends and receives with the same number are launched together.
    """

    kind: str
    us: float = 0.0
    group: int = -1
    op: str = ""
    peer: int = -1
    elements: int = 0
    dtype: str = "BFloat16"
    is_root: bool = False
    is_async: bool = False
    tag: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """What is broken.

    Attributes:
        stuck_host_us: By rank, when its host stops for good.
        dead_device_us: By rank, when its device stops for good.
        killed_us: By rank, when its process ends.
        cut_group_us: By group, when its links stop carrying data.
    """

    stuck_host_us: Mapping[int, float] = field(default_factory=dict)
    dead_device_us: Mapping[int, float] = field(default_factory=dict)
    killed_us: Mapping[int, float] = field(default_factory=dict)
    cut_group_us: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Issued:
    """One operation that a host issued.

    Attributes:
        end_us: When it ended on this rank; `Never` if it did not.
        needs: Global ranks without which it cannot end here.
    """

    action: Action
    seq: int
    p2p_seq: int
    issued_us: float
    needs: tuple[int, ...]
    end_us: float = Never


@dataclass(slots=True)
class RankRun:
    """What one rank did.

    Attributes:
        stopped_us: When its host issued the last thing.
        is_finished: It came to the end of its program.
    """

    rank: int
    issued: list[Issued] = field(default_factory=list)
    stopped_us: float = 0.0
    is_finished: bool = False

    def stuck(self) -> list[Issued]:
        """Operations that never ended, in order of issue."""
        return [operation for operation in self.issued if operation.end_us == Never]


Run = dict[int, RankRun]


class _Event:
    """A moment on a device: the latest of what it depends on, and a duration after it."""

    __slots__ = ("_left", "_listeners", "_time_us", "duration_us", "limit_us", "time_us")

    def __init__(self, duration_us: float, limit_us: float, dependencies: int) -> None:
        self.duration_us = duration_us
        self.limit_us = limit_us
        self.time_us: float | None = None
        self._time_us = 0.0
        self._left = dependencies
        self._listeners: list[_Event] = []

    def follow(self, event: _Event) -> None:
        """One of the announced dependencies."""
        if event.time_us is None:
            event._listeners.append(self)
        else:
            self.reached(event.time_us)

    def reached(self, time_us: float) -> None:
        """A dependency was reached at this time."""
        todo = [(self, time_us)]
        while todo:
            event, at_us = todo.pop()
            event._time_us = max(event._time_us, at_us)
            event._left -= 1
            if event._left == 0:
                end_us = event._time_us + event.duration_us
                event.time_us = end_us if end_us <= event.limit_us else Never
                todo.extend((listener, event.time_us) for listener in event._listeners)


class _Meeting:
    """A collective or a pair: what the ranks that take part have brought."""

    __slots__ = ("contents", "event", "expected")

    def __init__(self, expected: int, duration_us: float, limit_us: float) -> None:
        self.expected = expected
        self.event = _Event(duration_us, limit_us, expected)
        self.contents: set[tuple[str, int, str]] = set()


class _Job:
    """The meetings of all ranks."""

    def __init__(self, groups: Sequence[tuple[int, ...]], faults: Faults) -> None:
        self.groups = groups
        self.faults = faults
        self.collectives: dict[tuple[int, int], _Meeting] = {}
        self.pairs: dict[tuple[int, int, int, int], _Meeting] = {}

    def limit_us(self, ranks: Sequence[int], group: int) -> float:
        """Until when an operation of these ranks can end."""
        limits = [self.faults.cut_group_us.get(group, Never)]
        for rank in ranks:
            limits.append(self.faults.dead_device_us.get(rank, Never))
            limits.append(self.faults.killed_us.get(rank, Never))
        return min(limits)

    def collective(self, action: Action, seq: int, rank: int, ready: _Event) -> tuple[_Event, tuple[int, ...]]:
        """Bring a rank to a collective; the event of its end there, and whom it needs."""
        members = self.groups[action.group]
        key = (action.group, seq)
        meeting = self.collectives.get(key)
        if meeting is None:
            limit_us = self.limit_us(members, action.group)
            meeting = self.collectives[key] = _Meeting(len(members), action.us, limit_us)
        meeting.contents.add((action.op, action.elements, action.dtype))
        if len(meeting.contents) > 1:
            meeting.event.limit_us = -1.0  # kernels that disagree do not end
        meeting.event.follow(ready)
        if action.is_root:
            own = _Event(action.us, self.limit_us((rank,), action.group), 1)
            own.follow(ready)
            return own, ()
        return meeting.event, tuple(member for member in members if member != rank)

    def pair(self, action: Action, place: int, rank: int, ready: _Event) -> _Event:
        """Bring a rank to a send or receive."""
        source, target = (rank, action.peer) if action.kind == "send" else (action.peer, rank)
        key = (action.group, source, target, place)
        meeting = self.pairs.get(key)
        if meeting is None:
            meeting = self.pairs[key] = _Meeting(2, action.us, self.limit_us((source, target), action.group))
        meeting.contents.add(("", action.elements, action.dtype))
        if len(meeting.contents) > 1:
            meeting.event.limit_us = -1.0
        meeting.event.follow(ready)
        return meeting.event


class _Host:
    """One rank's host and the streams of its device."""

    def __init__(
        self, rank: int, program: Iterator[Action], job: _Job, queue_length: int, base: Mapping[int, tuple[int, int]]
    ) -> None:
        self.run = RankRun(rank)
        self._program = program
        self._job = job
        self._queue_length = queue_length
        self._now_us = 0.0
        self._launched: list[_Event] = []
        self._streams: dict[object, _Event] = {}
        self._tags: dict[str, list[_Event]] = {}
        self._seq = {group: counts[0] for group, counts in base.items()}
        self._p2p_seq = {group: counts[1] for group, counts in base.items()}
        self._places: dict[tuple[int, int, str], int] = {}
        self._ends: list[tuple[Issued, _Event]] = []
        self._own_limit_us = job.limit_us((rank,), -1)
        faults = job.faults
        self._stops_us = min(faults.stuck_host_us.get(rank, Never), faults.killed_us.get(rank, Never))
        self._next: Action | None = None
        self._last_batch: tuple[int, int] = (0, 0)
        start = _Event(0.0, Never, 1)
        start.reached(0.0)
        self._compute = start

    def advance(self) -> bool:
        """Go on until something unknown is needed; whether anything was done."""
        is_moving = False
        while True:
            action = self._next if self._next is not None else next(self._program, None)
            if action is None:
                self.run.is_finished = True
                return is_moving
            self._next = action
            free_us = self._free_us(action)
            if free_us is None or free_us == Never:
                return is_moving
            self._now_us = max(self._now_us, free_us)
            if self._now_us >= self._stops_us:
                return is_moving
            self._next = None
            is_moving = True
            self._do(action)

    def finish(self) -> RankRun:
        """What the rank did, when nobody can go on any more."""
        for operation, event in self._ends:
            operation.end_us = Never if event.time_us is None else event.time_us
        self.run.stopped_us = self._now_us
        return self.run

    def _free_us(self, action: Action) -> float | None:
        """When the host can do an action; None while that is not known."""
        if action.kind == "sync":
            return self._compute.time_us
        if action.kind in {"host", "wait"}:
            return self._now_us
        self._launched = [event for event in self._launched if event.time_us is None or event.time_us > self._now_us]
        too_many = len(self._launched) - self._queue_length + 1
        if too_many <= 0:
            return self._now_us
        known = sorted(event.time_us for event in self._launched if event.time_us is not None)
        return known[too_many - 1] if len(known) >= too_many else None

    def _do(self, action: Action) -> None:
        if action.kind == "host":
            self._now_us += action.us
        elif action.kind == "wait":
            for event in self._tags.pop(action.tag, []):
                self._compute = self._join(self._compute, event)
        elif action.kind == "work":
            self._now_us += _ISSUE_US
            self._compute = self._after(self._compute, action.us)
            self._launched.append(self._compute)
        elif action.kind != "sync":
            self._now_us += _ISSUE_US
            self._issue(action)

    def _issue(self, action: Action) -> None:
        group = action.group
        is_pair = action.kind in {"send", "recv"}
        stream: object = (group, frozenset((self.run.rank, action.peer))) if is_pair else group
        if is_pair and action.batch:
            stream = (group, "batch", action.batch, action.kind, action.peer)
        ready = self._join(self._launch_moment(), self._compute, self._streams.get(stream))
        needs: tuple[int, ...]
        if is_pair:
            is_same_batch = action.batch and self._last_batch == (group, action.batch)
            if not is_same_batch:
                self._p2p_seq[group] = self._p2p_seq.get(group, 0) + 1
            self._last_batch = (group, action.batch)
            key = (group, action.peer, action.kind)
            self._places[key] = self._places.get(key, 0) + 1
            end = self._job.pair(action, self._places[key], self.run.rank, ready)
            needs = (action.peer,)
        else:
            self._seq[group] = self._seq.get(group, 0) + 1
            end, needs = self._job.collective(action, self._seq[group], self.run.rank, ready)
        self._streams[stream] = end
        self._launched.append(end)
        operation = Issued(action, self._seq.get(group, 0), self._p2p_seq.get(group, 0), self._now_us, needs)
        self.run.issued.append(operation)
        self._ends.append((operation, end))
        if action.tag:
            self._tags.setdefault(action.tag, []).append(end)
        if not action.is_async:
            self._compute = self._join(self._compute, end)

    def _launch_moment(self) -> _Event:
        event = _Event(0.0, Never, 1)
        event.reached(self._now_us)
        return event

    def _after(self, event: _Event, duration_us: float) -> _Event:
        found = _Event(duration_us, self._own_limit_us, 2)
        found.follow(event)
        found.reached(self._now_us)
        return found

    def _join(self, *events: _Event | None) -> _Event:
        known = [event for event in events if event is not None]
        found = _Event(0.0, self._own_limit_us, len(known))
        for event in known:
            found.follow(event)
        return found


def run_job(
    groups: Sequence[tuple[int, ...]],
    programs: Mapping[int, Iterator[Action]],
    faults: Faults,
    queue_lengths: Mapping[int, int],
    base: Mapping[int, Mapping[int, tuple[int, int]]] | None = None,
) -> Run:
    """Run all ranks until nobody can go on.

    Args:
        groups: Members of each group, global ranks.
        programs: By rank, what it does.
        faults: What is broken, in microseconds from the start.
        queue_lengths: By rank, launches that its device may be behind.
        base: By rank and group, collectives and point-to-point operations counted before the start.
    """
    job = _Job(groups, faults)
    hosts = [
        _Host(rank, iter(program), job, queue_lengths[rank], (base or {}).get(rank, {}))
        for rank, program in sorted(programs.items())
    ]
    is_moving = True
    while is_moving:
        is_moving = False
        for host in hosts:
            is_moving = host.advance() or is_moving
    return {host.run.rank: host.finish() for host in hosts}
