"""A source without anything that rules read: that nothing was found in it is no answer, and is not told as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.one_line import one_line
from schemas.topics import REFERENCE_FAMILIES, TOPICS

if TYPE_CHECKING:
    from paceline.replay_source import ArchiveSource, KafkaSource, ReplaySpan

__all__ = ["NothingJudgedError", "nothing_judged"]

_JUDGED = {
    topic.family for topic in TOPICS if topic.role in {"telemetry", "jobs"} and topic.family not in REFERENCE_FAMILIES
}


class NothingJudgedError(Exception):
    """No record came that rules read; the text says of which source, and what it holds instead."""


def nothing_judged(
    name: object, source: ArchiveSource | KafkaSource, span: ReplaySpan, outcome: str = "nothing was judged"
) -> NothingJudgedError:
    """What to raise where all of a source went through the engines and left them without anything to judge.

    Args:
        name: what the person who asked calls the source.
        source: what was read, to its end.
        span: the part of it.
        outcome: what follows for that person.
    """
    held = source.held()
    told = ", ".join(f"{family} ({count})" for family, count in sorted(held.items()))
    there = "" if span.is_whole else " in that range"
    if _JUDGED & held.keys():
        why = f"no frame, event or step in it can be used{there}; it holds {told}"
    else:
        why = f"it holds no frames, events or steps{there}" + (f", only {told}" if told else "")
    return NothingJudgedError(one_line(f"{name}: {outcome}: {why}"))
