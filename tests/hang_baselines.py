"""What other rules say about the same dumps: for the table beside the judge's verdict, and for nothing else.

`any_lag` and `fewest_pending` are what one sees at a glance; `wait_sinks` follows the first pending collective of each rank;
`matching` names, as an analyser that matches entries group by group does, whoever lacks the first operation of a group that
others have pending, with or without a dump, and one side of a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.steps import CollectiveDigest
from streams.detectors.hang_digests import rank_views
from streams.detectors.hang_groups import Groups, Instance

__all__ = ["BASELINES"]


def _groups(records: Iterable[CollectiveDigest]) -> Groups:
    return Groups(rank_views(records))


def any_lag(records: list[CollectiveDigest]) -> set[int]:
    """Whoever has issued less than another member, in any group, by the numbers of the status."""
    groups = _groups(records)
    found = set()
    for key in groups.keys:
        numbers = {
            rank: progress.enqueued
            for rank in groups.members(key)
            if rank in groups.views and (progress := groups.views[rank].groups.get(key)) is not None
            if progress.enqueued is not None
        }
        found |= {rank for rank, number in numbers.items() if number < max(numbers.values())}
    return found


def fewest_pending(records: list[CollectiveDigest]) -> set[int]:
    """Whoever has the fewest records pending, unless all have as many."""
    counts = {record.rank: record.pending_total or 0 for record in records}
    fewest = min(counts.values())
    return {rank for rank, count in counts.items() if count == fewest} if max(counts.values()) > fewest else set()


def wait_sinks(records: list[CollectiveDigest]) -> set[int]:
    """Ranks that others wait for in their first pending collective, and that wait for nobody."""
    groups = _groups(records)
    waits: dict[int, set[int]] = {}
    for rank, view in groups.views.items():
        first = next((one for one in view.pending if not one.is_p2p), None)
        if first is not None:
            instance = Instance(first.group, first.seq)
            members = groups.members(first.group)
            waits[rank] = {one for one in members if groups.standing(one, instance) in {"missing", "no_dump"}}
    waited = set().union(*waits.values()) if waits else set()
    return {rank for rank in waited if not waits.get(rank)}


def matching(records: list[CollectiveDigest]) -> set[int]:
    """Members that lack the first operation of a group that others have pending, or that differ from the lowest rank."""
    groups = _groups(records)
    first: dict[object, Instance] = {}
    for instance in groups.pending:
        known = first.get(instance.group)
        if known is None or instance.seq < known.seq:
            first[instance.group] = instance
    found: set[int] = set()
    for instance in first.values():
        for rank in groups.members(instance.group):
            if groups.standing(rank, instance) in {"missing", "no_dump"}:
                found.add(rank)
        variants = groups.variants(instance)
        if len(variants) > 1:
            reference = min(variants, key=lambda variant: min(variants[variant]))
            found |= {rank for variant, ranks in variants.items() if variant != reference for rank in ranks}
    return found


BASELINES: dict[str, Callable[[list[CollectiveDigest]], set[int]]] = {
    "any lag": any_lag,
    "fewest records": fewest_pending,
    "wait-for sinks": wait_sinks,
    "matching": matching,
}
