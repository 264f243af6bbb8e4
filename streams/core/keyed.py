"""State by subject: one small object of operators and plain values per key, with a snapshot of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Keyed", "SubjectState"]


class SubjectState:
    """Base of per-subject state. Slots are operators (with `snapshot`/`restore`) or plain values."""

    __slots__: tuple[str, ...] = ()

    def snapshot(self) -> list[Any]:
        """Slots in order of declaration, as plain data."""
        values = (getattr(self, name) for name in self.__slots__)
        return [value.snapshot() if hasattr(value, "snapshot") else value for value in values]

    def restore(self, snapshot: list[Any]) -> None:
        """Replace every slot by a snapshot's."""
        for name, value in zip(self.__slots__, snapshot, strict=True):
            current = getattr(self, name)
            if hasattr(current, "restore"):
                current.restore(value)
            else:
                setattr(self, name, value)


S = TypeVar("S", bound=SubjectState)


class Keyed(Generic[S]):
    """State objects by key, made on first use."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._states: dict[str, S] = {}

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
