"""How large plain data from a pickle may be, in memory and written out.

Guarantees: a part that is referred to many times is visited once and counted every time, so that a few bytes cannot
stand for billions of items; containers that hold themselves are found. Takes no memory beyond a number per container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["DEFAULT_LIMITS", "Limits", "PickleError", "check_extent"]


class PickleError(ValueError):
    """The pickle is refused, cut, or beyond a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a pickle may ask for.

    Attributes:
        memory_bytes: Of all objects built, by a rough account per object; 2,000 recorded operations with
            their stacks take about 60 MB of it.
        depth: Of containers in one another. A recorder's dump has 6.
        items: Of the data written out in full, a shared part counted wherever it stands.
        integer_bytes: Of one integer. Times in nanoseconds take 8.
    """

    memory_bytes: int = 512 << 20
    depth: int = 64
    items: int = 20_000_000
    integer_bytes: int = 16


DEFAULT_LIMITS: Final = Limits()


def check_extent(value: Any, limits: Limits) -> None:
    """Hold the depth and the written-out size of plain data against the limits; a loop has no end of either.

    Raises:
        PickleError: It is beyond one of them.
    """
    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    open_ids: set[int] = set()
    todo: list[tuple[Any, bool]] = [(value, False)]
    while todo:
        container, is_left = todo.pop()
        children = _containers(container)
        if children is None or (id(container) in sizes and not is_left):
            continue
        name = id(container)
        if not children:
            sizes[name], depths[name] = 1 + len(container), 1
            if sizes[name] > limits.items:
                raise PickleError(f"written out in full it has more than {limits.items} items")
            continue
        if not is_left:
            if name in open_ids:
                raise PickleError("it contains itself")
            if len(open_ids) >= limits.depth:
                raise PickleError(f"it is nested deeper than {limits.depth}")
            open_ids.add(name)
            todo.append((container, True))
            todo.extend((child, False) for child in children)
            continue
        open_ids.discard(name)
        sizes[name] = 1 + len(container) + sum(sizes[id(child)] for child in children)
        depths[name] = 1 + max((depths[id(child)] for child in children), default=0)
        if sizes[name] > limits.items:
            raise PickleError(f"written out in full it has more than {limits.items} items")
        if depths[name] > limits.depth:
            raise PickleError(f"it is nested deeper than {limits.depth}")


_CONTAINERS: Final = frozenset({dict, list, tuple})


def _containers(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind is dict:
        return [item for item in value.values() if type(item) in _CONTAINERS]
    return [item for item in value if type(item) in _CONTAINERS] if kind in _CONTAINERS else None
