"""Who does the same work as whom, and who only looks slow because somebody else held it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streams.core.collectives import instances
from streams.core.known import known_of
from streams.core.medians import median
from streams.core.peers import group_by_key
from streams.core.rank_marks import marked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streams.core.peers import PeerGroups
    from streams.core.roster import JobRoster
    from streams.core.step_join import ClosedStep

__all__ = ["held_up", "work_peers"]


def work_peers(step: ClosedStep, roster: JobRoster) -> PeerGroups:
    """Positions in the step of ranks that do the same work: of one stage, part and role."""
    return roster.derived("work-peers", step.rank, _peers_of)


def _peers_of(ranks: NDArray[np.int64], roster: JobRoster) -> PeerGroups:
    seats = roster.seats
    keys = []
    for rank in ranks.tolist():
        seat = seats.get(rank)
        keys.append((seat.stage, seat.sku, seat.role) if seat is not None else (roster.stage_of(rank), None, None))
    return group_by_key(keys)


def held_up(step: ClosedStep, suspects: set[int], roster: JobRoster) -> set[int]:
    """Suspects who wait longer than their stage's median: those are held up themselves, so their time is not own."""
    wait = step.columns["wait_us"]
    own = step.own_us
    excused: set[int] = set()
    if not suspects:
        return excused
    is_suspect = marked(step.rank, suspects)
    for group in work_peers(step, roster):
        theirs = group[is_suspect[group]]
        if not theirs.size:
            continue
        waits, owns = known_of(wait[group]), known_of(own[group])
        if waits.size < 2:
            continue
        # NaN compares as false, also where nobody's own time is known.
        margin_us = 0.05 * median(owns) if owns.size else np.nan
        waiting = theirs[wait[theirs] > 1.5 * median(waits) + margin_us].tolist()
        # A suspect waits least as a rule, and whom its peers wait for need not be asked then.
        awaited = _awaited(step, group) if waiting else set()
        excused |= {int(step.rank[position]) for position in waiting if position not in awaited}
    return excused


def _awaited(step: ClosedStep, group: NDArray[np.int64]) -> set[int]:
    """Positions of those whom their peers wait for where they meet, if their own time was measured in its parts.

    Such a rank may wait long for another stage as well: that does not make its measured parts another's.
    """
    columns = step.columns
    parts = columns["compute_us"] + np.nan_to_num(columns["host_us"]) + np.nan_to_num(columns["data_us"])
    awaited = set()
    is_peer = np.zeros(len(step.rank), dtype=np.bool_)
    is_peer[group] = True
    for collective in step.collectives.values():
        for members in instances(collective):
            meeting = members[is_peer[members]]
            if meeting.size < 3:
                continue
            duration = collective.duration_us[meeting]
            last = int(meeting[int(np.argmin(duration))])
            # A reported own time above its parts may hold waiting that no part names. NaN compares as false.
            if duration.min() < 0.9 * np.median(duration) and step.own_us[last] <= 1.01 * parts[last]:
                awaited.add(last)
    return awaited
