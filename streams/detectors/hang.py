"""Who keeps a job from going on, from the digests of its ranks' flight-recorder dumps.

Guarantees: the verdict follows from the digests alone, in whatever order they came. A rank is named for one of these:
peers wait in what it never issued and it waits in nothing itself; it issued what it does not complete though its peers
did; it is the minority in an operation of which the other side holds more than half of the group; or, where nothing of that
explains the hang, it has no dump, is the only such member of a group and two members wait for it. Whoever waits, through any number of
others, for one that is named is not named himself. Where that decides nothing, nobody is named. No timing is used, and of what
did not start nothing is concluded. `docs/hang.md` has the rules and what they were held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from streams.detectors.hang_blame import Blame, Suspect
from streams.detectors.hang_digests import Operation, RankView, rank_views
from streams.detectors.hang_groups import Groups
from streams.detectors.hang_verdict import HangVerdict
from streams.detectors.hang_waits import first_operations
from streams.detectors.hang_watchdog import is_watchdog

if TYPE_CHECKING:
    from schemas.steps import CollectiveDigest

__all__ = ["HangCase", "judge"]


class HangCase:
    """The digests of one job's hang as they come in; the verdict may be asked for at any time.

    A later digest of a rank (by time, then by the agent's count) replaces an earlier one, and one of a dump that of watchdog
    lines; one of an older epoch is left.

    Args:
        rank_count: How many ranks the job has, if that is known.
    """

    def __init__(self, rank_count: int | None = None) -> None:
        self._rank_count = rank_count
        self._digests: dict[int, CollectiveDigest] = {}

    def add(self, record: CollectiveDigest) -> bool:
        """Take a digest in; False if a newer one of its rank, or one of a newer epoch, is here already."""
        newest_epoch = max((known.epoch for known in self._digests.values()), default=record.epoch)
        if record.epoch < newest_epoch:
            return False
        if record.epoch > newest_epoch:
            self._digests.clear()
        known = self._digests.get(record.rank)
        if known is not None and _weight(record) <= _weight(known):
            return False
        self._digests[record.rank] = record
        return True

    def verdict(self) -> HangVerdict:
        """What the digests say so far; more of them can turn `undecided` into a name, or add one."""
        return judge((self._digests[rank] for rank in sorted(self._digests)), self._rank_count)

    def snapshot(self) -> list[dict[str, object]]:
        """The digests as plain data."""
        return [self._digests[rank].model_dump(mode="json") for rank in sorted(self._digests)]

    @classmethod
    def restore(cls, records: Iterable[CollectiveDigest], rank_count: int | None = None) -> HangCase:
        """The case that a snapshot was taken of, from its records."""
        case = cls(rank_count)
        for record in records:
            case.add(record)
        return case


def judge(records: Iterable[CollectiveDigest], rank_count: int | None = None) -> HangVerdict:
    """The verdict about one job.

    Args:
        records: One digest per rank, all of one job and epoch.
        rank_count: How many ranks the job has: the members of the group of all where no dump has them.
    """
    groups = Groups(rank_views(records, rank_count))
    absent = _ranks_without_dump(groups)
    in_logs = tuple(rank for rank, view in sorted(groups.views.items()) if view.is_watchdog)
    return replace(_judged(groups, absent), watchdog_ranks=in_logs)


def _judged(groups: Groups, absent: tuple[int, ...]) -> HangVerdict:
    views = groups.views
    if views and all(view.is_idle for view in views.values()):
        return HangVerdict("healthy", None, ranks_without_dump=absent)
    blame = Blame(groups)
    suspects = blame.suspects()
    if suspects:
        return _named(blame, suspects, absent)
    cause = blame.nameless_cause()
    if cause is not None:
        return HangVerdict("hang", cause.cause, operation=cause.operation, sides=cause.sides, ranks_without_dump=absent)
    return HangVerdict("undecided", "insufficient", operation=_innermost_first(views), ranks_without_dump=absent)


def _named(blame: Blame, suspects: Mapping[int, Suspect], absent: tuple[int, ...]) -> HangVerdict:
    culprits = tuple(sorted(suspects))
    waiting = blame.waiting(culprits)
    first = suspects[culprits[0]]
    told = min(
        (suspect for suspect in suspects.values() if suspect.cause == first.cause),
        key=lambda suspect: _place(suspect.operation),
    )
    return HangVerdict(
        verdict="hang",
        cause=first.cause,
        culprit_ranks=culprits,
        waiting_ranks=waiting,
        causes=tuple((rank, suspects[rank].cause) for rank in culprits),
        operation=told.operation,
        ranks_without_dump=absent,
        sides=first.sides,
    )


def _ranks_without_dump(groups: Groups) -> tuple[int, ...]:
    known: set[int] = set()
    for key in groups.keys:
        known.update(groups.members(key))
    return tuple(sorted(known - {rank for rank, view in groups.views.items() if not view.is_watchdog}))


def _innermost_first(views: Mapping[int, RankView]) -> Operation | None:
    """Of what the ranks wait in first, the one of the smallest group."""
    firsts = [operation for rank in sorted(views) for operation in first_operations(views[rank])[-1:]]
    return min(firsts, key=_place, default=None)


def _place(operation: Operation) -> tuple[int, bool, int]:
    return operation.group.size or 1 << 30, operation.is_p2p, operation.number or 0


def _weight(record: CollectiveDigest) -> tuple[bool, int, int]:
    return not is_watchdog(record), record.event_time_ns, record.seq
