"""Which rank of which job a file of a trainer's belongs to: known by the rank in its name and the user who owns it.

Guarantees: nobody's file is taken for another user's job, and where two jobs come into question none is. Nothing is
opened and no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RankPlace", "place_of_file"]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank that runs, or lately ran, on this node.

    Attributes:
        uid: the user of its process.
        since_ns: when its attempt was first heard of.
    """

    job_id: str
    epoch: int
    rank: int
    uid: int
    since_ns: int


def place_of_file(places: Iterable[RankPlace], rank: int, uid: int, modified_ns: int) -> RankPlace | None:
    """The rank that wrote a file, of the latest attempt of its job; None if none is known or several jobs have one.

    Args:
        places: ranks of this node.
        rank: from the file's name.
        uid: who owns the file.
        modified_ns: when it was last written; one that is older than the attempt is another's.
    """
    found = [place for place in places if (place.rank, place.uid) == (rank, uid) and place.since_ns <= modified_ns]
    if len({place.job_id for place in found}) != 1:
        return None
    return max(found, key=lambda place: place.epoch)
