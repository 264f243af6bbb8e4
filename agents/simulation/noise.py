"""Counter-based random numbers: a draw is a hash of (seed, purpose, entity, step) and of nothing else.

Nothing is consumed and there is no state, so adding a node, a rank or a step does not change another one's draws, and
a draw can be repeated anywhere. Deliberately not cryptographic, and no replacement for numpy's generators where
long streams of one entity are wanted. Floats go through the platform's `log` and `cos`; what is emitted is rounded.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FloatArray", "KeyArray", "Noise", "StepArray", "entity_key", "entity_keys", "part_keys"]

FloatArray = NDArray[np.float64]
KeyArray = NDArray[np.uint64]
StepArray = NDArray[np.int64]

_MASK = (1 << 64) - 1
# SplitMix64 (Steele, Lea, Flood 2014): the golden-ratio increment and the two multipliers of its finalizer.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_TO_UNIT = 2.0**-53


def entity_key(name: str) -> int:
    """The 64-bit key of an entity's name: the same in every process and for every fleet that has the entity."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def entity_keys(names: Sequence[str]) -> KeyArray:
    """Keys of several entities, in their order."""
    return np.array([entity_key(name) for name in names], dtype=np.uint64)


def part_keys(keys: KeyArray, count: int) -> KeyArray:
    """Keys of `count` parts of each entity (its blocks, microbatches, documents), shape (*keys, count).

    A part's key depends on its entity and its number, never on `count`.
    """
    parts = np.array([_mix(index) for index in range(1, count + 1)], dtype=np.uint64)
    return _mix_all(keys[..., None] ^ parts)


def _mix(word: int) -> int:
    word = (word + _GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def _mix_all(words: KeyArray) -> KeyArray:
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


class Noise:
    """All random numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._purposes: dict[str, int] = {}

    def _purpose(self, purpose: str) -> int:
        key = self._purposes.get(purpose)
        if key is None:
            key = self._purposes[purpose] = entity_key(f"{self._seed}\x1f{purpose}")
        return key

    def uniform(self, purpose: str, entities: KeyArray, step: int = 0) -> FloatArray:
        """One number in (0, 1) per entity, in the shape of `entities`."""
        stream = np.uint64(_mix(self._purpose(purpose) ^ _mix(step & _MASK)))
        words = _mix_all(entities ^ stream)
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * _TO_UNIT

    def normal(self, purpose: str, entities: KeyArray, step: int = 0) -> FloatArray:
        """One standard normal number per entity (Box-Muller over two uniform draws)."""
        radius = self.uniform(purpose, entities, step)
        angle = self.uniform(purpose + "/angle", entities, step)
        result: FloatArray = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
        return result

    def uniform_steps(self, purpose: str, entities: KeyArray, steps: StepArray) -> FloatArray:
        """`uniform` of several steps at once: one number in (0, 1), shape (steps, *entities)."""
        streams = _mix_all(np.uint64(self._purpose(purpose)) ^ _mix_all(steps.astype(np.uint64)))
        words = _mix_all(entities[None] ^ streams.reshape(-1, *(1,) * entities.ndim))
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * _TO_UNIT

    def normal_steps(self, purpose: str, entities: KeyArray, steps: StepArray) -> FloatArray:
        """`normal` of several steps at once, shape (steps, *entities)."""
        radius = self.uniform_steps(purpose, entities, steps)
        angle = self.uniform_steps(purpose + "/angle", entities, steps)
        result: FloatArray = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
        return result

    def draw(self, purpose: str, entity: str | int = 0, step: int = 0) -> float:
        """One number in (0, 1) for one entity, by name or key."""
        key = entity_key(entity) if isinstance(entity, str) else entity & _MASK
        word = _mix(key ^ _mix(self._purpose(purpose) ^ _mix(step & _MASK)))
        return ((word >> 11) + 0.5) * _TO_UNIT

    def between(self, purpose: str, low: float, high: float, entity: str | int = 0, step: int = 0) -> float:
        """One number between `low` and `high`, uniform."""
        return low + (high - low) * self.draw(purpose, entity, step)

    def pick(self, purpose: str, count: int, entity: str | int = 0, step: int = 0) -> int:
        """One index in `range(count)`."""
        return min(int(self.draw(purpose, entity, step) * count), count - 1)

    def identifier(self, purpose: str, entity: str) -> str:
        """A UUID-shaped text that depends on the seed, the purpose and the entity alone."""
        name = f"{self._seed}\x1f{purpose}\x1f{entity}"
        digits = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
