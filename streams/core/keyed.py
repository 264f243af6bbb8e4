"""State by subject: one small object of operators and plain values per key, with a snapshot of all of them.

`KeyedRows` finds the states of a publisher's rows (its GPUs, or its ports) by position, so that their keys are made once
and not in every frame; and it tells frames that change nothing. What it remembers for that is derived, so it stands in
no snapshot: after a restart the first frames are read in full, and say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streams.core.counters import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

__all__ = ["Keyed", "KeyedRows", "Rows", "SubjectState"]

_LONGEST_STEP_NS = 60_000_000_000
"""Readings further apart may be baselines: a rule has not judged such a frame, so it is no proof that nothing changes."""


class SubjectState:
    """Base of per-subject state. Slots are operators (with `snapshot`/`restore`) or plain values."""

    __slots__: tuple[str, ...] = ()

    def snapshot(self) -> list[Any]:
        """Slots in order of declaration, as plain data."""
        values = (getattr(self, name) for name in self.__slots__)
        return [value.snapshot() if hasattr(value, "snapshot") else value for value in values]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace every slot by a snapshot's; one that was taken before the last slots were added leaves them as made."""
        for name, value in zip(self.__slots__[: len(snapshot)], snapshot, strict=True):
            current = getattr(self, name)
            if hasattr(current, "restore"):
                current.restore(value)
            else:
                setattr(self, name, value)

    def is_quiet(self, now_ns: int) -> bool:  # noqa: ARG002
        """Whether the frame of `now_ns`, given once more at a later time, would change nothing but times of readings."""
        return False


S = TypeVar("S", bound=SubjectState)


class Keyed(Generic[S]):
    """State objects by key, made on first use."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._states: dict[str, S] = {}

    def get(self, key: str) -> S | None:
        """The state of a key, or None where none was made yet."""
        return self._states.get(key)

    def __getitem__(self, key: str) -> S:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._make()
        return state

    def __contains__(self, key: str) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> Iterator[tuple[str, S]]:
        """Keys and states, in order of keys."""
        yield from sorted(self._states.items())

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        return {key: state.snapshot() for key, state in self.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace all states by a snapshot's."""
        self._states = {}
        for key, value in snapshot.items():
            self[key].restore(value)


class Rows(Generic[S]):
    """States of one publisher's rows, by position in its frames; they are made on first use.

    Attributes:
        names: what the publisher calls its rows; the keys follow from it.
        reading: of the frame in hand; set by `stand_still`.
    """

    __slots__ = ("_at_rest", "_distinct", "_keyed", "_keys", "_repeated", "_said", "_states", "names", "reading")

    def __init__(self, keyed: Keyed[S], names: object, keys: Sequence[str]) -> None:
        self.names = names
        self.reading = Reading("", 0)
        self._keyed = keyed
        self._keys = keys
        self._states = [keyed.get(key) for key in keys]
        self._distinct = len(set(keys)) == len(keys)
        self._said: object = None
        self._repeated = False
        self._at_rest = False

    def __getitem__(self, index: int) -> S:
        state = self._states[index]
        if state is None:
            state = self._states[index] = self._keyed[self._keys[index]]
        return state

    def get(self, index: int) -> S | None:
        """The state of a row, or None where none was made yet."""
        return self._states[index] if self._distinct else self._keyed.get(self._keys[index])

    def stand_still(self, session: str, now_ns: int, said: tuple[object, ...]) -> bool:
        """Whether a frame changes nothing but the time of the reading; that is then moved, and the rule has no work.

        It is so when the frame says what the last one said and all states were at rest after that one.

        Args:
            session: the publisher's session.
            now_ns: event time of the frame.
            said: all of the frame and the policy that the states depend on.
        """
        reading = self.reading
        repeated = said == self._said
        if repeated and self._at_rest:
            reading.session, reading.at_ns = session, now_ns
            return True
        plain = session == reading.session and 0 < now_ns - reading.at_ns <= _LONGEST_STEP_NS
        self._repeated, self._said, self._at_rest = repeated and plain, said, False
        self.reading = Reading(session, now_ns)
        return False

    @property
    def is_at_rest(self) -> bool:
        """Whether a frame that says what the last one said changes nothing but the time of the reading."""
        return self._at_rest

    def rest(self, *, if_also: bool = True) -> None:
        """Take note, after a frame was read in full, whether the same once more would change nothing.

        Only a frame that repeated the one before can tell: in it no counter grew and none was a baseline.

        Args:
            if_also: what the rule itself requires for that.
        """
        self._at_rest = self._repeated and self._distinct and if_also and self.are_quiet(self.reading.at_ns)

    def are_quiet(self, now_ns: int) -> bool:
        """Whether all states are quiet at the time of the frame in hand."""
        return all(state is None or state.is_quiet(now_ns) for state in self._states)


class KeyedRows(Generic[S]):
    """State objects by key, found by publisher and position."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._keyed = Keyed(make)
        self._rows: dict[Hashable, Rows[S]] = {}

    def of(self, publisher: Hashable, names: object, keys: Callable[[], Sequence[str]]) -> Rows[S]:
        """The rows of a publisher.

        Args:
            publisher: who publishes, and which of its rows are meant where it has several kinds.
            names: what the keys are made of; where it changed, they are made anew.
            keys: makes the keys, one per row.
        """
        rows = self._rows.get(publisher)
        if rows is None or rows.names != names:
            rows = self._rows[publisher] = Rows(self._keyed, names, keys())
        return rows

    def at_rest(self, publisher: Hashable) -> Rows[S] | None:
        """The rows of a publisher where they are at rest, else None."""
        rows = self._rows.get(publisher)
        return rows if rows is not None and rows.is_at_rest else None

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes: states by key."""
        return self._keyed.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace all states by a snapshot's."""
        self._keyed.restore(snapshot)
        self._rows = {}
