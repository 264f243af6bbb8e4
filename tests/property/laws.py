"""The laws that every operator and engine keeps, as assertions over any stream of inputs.

Restart: a snapshot taken at any split, stored and restored into a fresh operator, continues with the same outputs and
ends in the same state; and it does not change when the operator it was taken from goes on. An engine's snapshot leaves
out what it holds: those records are read again, from the offsets that the engine names, and say nothing a second time.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, settings

from streams.core.position import Position
from streams.core.snapshot_codec import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schemas.base import Record

__all__ = [
    "LAW",
    "assert_engine_restart_changes_nothing",
    "assert_restart_changes_nothing",
    "assert_restarts_change_nothing",
    "stored",
]

T = TypeVar("T")

LAW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
"""Examples enough to find a forgotten field, few enough for two cores; records are slow to build, so no deadline."""


def stored(value: Any) -> Any:
    """A snapshot as a store gives it back: lists for tuples, text for keys; records pass through as they are."""
    if isinstance(value, dict):
        return {str(key): stored(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [stored(entry) for entry in value]
    assert not isinstance(value, set | frozenset), f"{value!r} has no order: not plain data"
    return value


def assert_restart_changes_nothing(
    make: Callable[[], Any], feed: Callable[[Any, T], Any], items: Sequence[T], split: int
) -> None:
    """Hold the law of restart for one stream and one split.

    Args:
        make: makes a fresh operator.
        feed: gives one item to an operator and returns what comes out.
        items: the stream.
        split: how many items the first operator takes before the snapshot; where the stream is shorter, the rest of it.
    """
    assert_restarts_change_nothing(make, feed, items, [split % (len(items) + 1)])


def assert_restarts_change_nothing(
    make: Callable[[], Any], feed: Callable[[Any, T], Any], items: Sequence[T], splits: Iterable[int]
) -> None:
    """Hold the law of restart for one stream and several splits, each by itself.

    Args:
        make: makes a fresh operator.
        feed: gives one item to an operator and returns what comes out.
        items: the stream.
        splits: how many items are taken before each snapshot, at most all of them.
    """
    whole, before = make(), make()
    expected = [feed(whole, item) for item in items]
    at_end = repr(stored(whole.snapshot()))
    seen: list[Any] = []
    snapshots = []
    for split in sorted(splits):
        seen += [feed(before, item) for item in items[len(seen) : split]]
        snapshot = before.snapshot()
        snapshots.append((split, snapshot, repr(copy.deepcopy(snapshot))))
    seen += [feed(before, item) for item in items[len(seen) :]]
    assert repr(seen) == repr(expected), "taking a snapshot changed what the operator says"
    for split, snapshot, as_taken in snapshots:
        assert repr(snapshot) == as_taken, f"the snapshot at {split} changed when the operator went on"
        after = make()
        after.restore(stored(snapshot))
        assert repr([feed(after, item) for item in items[split:]]) == repr(expected[split:]), split
        assert repr(stored(after.snapshot())) == at_end, split


def assert_engine_restart_changes_nothing(
    make: Callable[[], Any],
    feed: Callable[[Any, Record, Position], Any],
    arriving: Sequence[tuple[Record, Position]],
    split: int,
) -> None:
    """Hold the law of restart for one engine, one partition's records in order of arrival, and one split.

    Args:
        make: makes a fresh engine.
        feed: gives one record to an engine and returns what comes out.
        arriving: records with their topics; offsets are given anew, in order of arrival.
        split: how many records are taken before the snapshot; where there are fewer, the rest of it.
    """
    split %= len(arriving) + 1
    log: list[tuple[Record, Position]] = []
    ends: dict[str, int] = {}
    for record, place in arriving:
        offset = ends[place.topic] = ends.get(place.topic, -1) + 1
        log.append((record, Position(place.topic, 0, offset, place.append_ms)))
    whole, before, after = make(), make(), make()
    expected = [feed(whole, *item) for item in log]
    for item in log[:split]:
        feed(before, *item)
    folded = {place.topic: place.offset for _, place in log[:split]}
    packed = pack(before.snapshot())
    resume: dict[str, int] = before.resume_offsets()
    after.restore(unpack(packed.chunks, packed.digest), folded)
    for record, place in log[:split]:
        if place.offset >= resume.get(place.topic, place.offset + 1):
            assert feed(after, record, place) == []
    assert repr([feed(after, *item) for item in log[split:]]) == repr(expected[split:])
    assert repr(stored(after.snapshot())) == repr(stored(whole.snapshot()))
