"""What is about to be published: records but for their sequence numbers, and the clocks that stamp them.

A record is its publisher's template with other columns; templates are validated once, columns come whole from arrays.
Sequence numbers are given in the order of publication, per publisher and topic, as an agent gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from schemas.base import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agents.simulation.benchmark.case import NoisePlan
    from agents.simulation.benchmark.inventory import Inventory
    from agents.simulation.noise import Noise

__all__ = ["Clocks", "Draft", "Sequences", "derive", "rows"]

RecordType = TypeVar("RecordType", bound=Record)


class Draft(NamedTuple):
    """One record to be published.

    Attributes:
        at_ns: true time of publication since the run's start.
        publisher: key of the sequence, empty for records without one.
        topic: family of the topic that the sequence is of.
        template: a validated record of the same publisher.
        fields: what differs from it.
    """

    at_ns: int
    publisher: str
    topic: str
    template: Record
    fields: dict[str, Any]


class Sequences:
    """Gives sequence numbers."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}

    def record(self, draft: Draft) -> Record:
        """The record of a draft."""
        fields = draft.fields
        if draft.publisher:
            key = (draft.publisher, draft.topic)
            fields["seq"] = sequence = self._next.get(key, 0)
            self._next[key] = sequence + 1
        return derive(draft.template, fields)


@dataclass(frozen=True)
class Clocks:
    """Nodes' clocks: off by a constant, drifting, and one of them jumping. Times in nanoseconds.

    Switch clocks and the registry's are true.
    """

    start_ns: int
    offsets_ns: NDArray[np.int64]
    drifts: NDArray[np.float64]
    jumping: int
    jump_at_ns: int
    jump_ns: int

    @classmethod
    def of(cls, plan: NoisePlan, inventory: Inventory, noise: Noise, start_ns: int, half_way_ns: int) -> Clocks:
        """Draw the clocks of all machines."""
        keys = inventory.machine_keys
        offsets = np.rint(noise.normal("clock-offset", keys) * plan.clock_offset_ms * 1e6).astype(np.int64)
        drifts = noise.normal("clock-drift", keys) * plan.clock_drift_ppm * 1e-6
        jumping = noise.pick("clock-jump", len(keys)) if plan.clock_step_s else -1
        return cls(start_ns, offsets, drifts, jumping, half_way_ns, round(plan.clock_step_s * 1e9))

    def stamp(self, machine: int, at_ns: int) -> int:
        """What a machine's clock shows at a true time since the start."""
        shown = self.start_ns + at_ns + int(self.offsets_ns[machine]) + round(float(self.drifts[machine]) * at_ns)
        if machine == self.jumping and at_ns >= self.jump_at_ns:
            shown += self.jump_ns
        return max(0, shown)


def derive(template: RecordType, fields: dict[str, Any]) -> RecordType:
    """A copy of a validated record with other fields, which are not validated.

    Does what `template.model_copy(update=fields)` does, at a tenth of its time: a run makes hundreds of thousands.
    """
    kind = type(template)
    record = kind.__new__(kind)
    object.__setattr__(record, "__dict__", {**template.__dict__, **fields})
    object.__setattr__(record, "__pydantic_fields_set__", template.model_fields_set | fields.keys())
    object.__setattr__(record, "__pydantic_extra__", None)
    object.__setattr__(record, "__pydantic_private__", None)
    return record


def rows(values: NDArray[Any]) -> list[Any]:
    """An array of shape (..., devices) as nested lists whose innermost sequences are tuples, as records hold them."""
    plain: list[Any] = values.tolist()
    return _tupled(plain, values.ndim)


def _tupled(plain: list[Any], depth: int) -> list[Any]:
    if depth == 2:
        return [tuple(row) for row in plain]
    return [_tupled(part, depth - 1) for part in plain]
