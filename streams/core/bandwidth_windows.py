"""The bandwidth of a job's communicators, live: from step timings that tell the bytes of their collectives.

One step in eight is looked at, and a window of a minute gives one record per kind of communicator: the medians over
communicators and steps. What reports of a step say of bytes is kept until the step closes. Guarantees: nothing is said
where no report has bytes; the order of reports makes no difference; state is a few numbers per window and kind. A step's
collectives of one kind count together: the transfer is the shortest of its members' sums, which is above the sum of the
shortest where different members come last, so bandwidth is a lower bound. Deliberately no verdict: `slow_network` follows
the same transfers.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from schemas.base import round_significant
from schemas.results import JobPerformance
from streams.core.collectives import transfers
from streams.profiles.bandwidth import bus_share, operation_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.steps import CollectiveTiming, StepTiming
    from streams.core.collectives import Collective
    from streams.core.step_join import ClosedStep

__all__ = ["BandwidthWindows"]

_EVERY: Final = 8
_WINDOW_NS: Final = 60_000_000_000
_MOST_OPEN_STEPS: Final = 64
_MOST_SAMPLES: Final = 64

_Sizes = dict[tuple[str, str], dict[str, int]]
"""By kind and name of communicator, bytes by operation."""


class BandwidthWindows:
    """Follows the communicators of one epoch of one job."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Sizes] = {}
        self._start_ns = 0
        self._samples: dict[str, list[list[Any]]] = {}
        """By kind, per step: bytes, algorithm and bus GB/s, wait share, communicators, members, transfer, slowest and its GB/s."""

    def on_timing(self, timing: StepTiming) -> None:
        """Take what a node's share of a step says of bytes."""
        if timing.step % _EVERY or not timing.collectives:
            return
        told = [collective for collective in timing.collectives if collective.size_bytes is not None]
        if not told:
            return
        if timing.step not in self._sizes and len(self._sizes) >= _MOST_OPEN_STEPS:
            del self._sizes[min(self._sizes)]
        sizes = self._sizes.setdefault(timing.step, {})
        for collective in told:
            operation = operation_of(collective.op)
            if operation is not None:
                for name, size in _named_sizes(collective, len(timing.rank)):
                    known = sizes.setdefault((collective.group, name), {})
                    known[operation] = max(known.get(operation, 0), size)

    def on_step(self, step: ClosedStep) -> Iterator[JobPerformance]:
        """Take a closed step, and give the records of a window that it ends."""
        if step.event_time_ns - self._start_ns >= _WINDOW_NS:
            yield from self._records(step)
            self._start_ns, self._samples = step.event_time_ns, {}
        sizes = self._sizes.pop(step.step, None)
        if sizes is None or step.phase != "train":
            return
        for group, collective in sorted(step.collectives.items()):
            samples = self._samples.setdefault(group, [])
            sample = _sample(collective, sizes) if len(samples) < _MOST_SAMPLES else None
            if sample is not None:
                samples.append(sample)

    def _records(self, step: ClosedStep) -> Iterator[JobPerformance]:
        for group, samples in sorted(self._samples.items()):
            if not samples:
                continue
            middle = sorted(samples, key=lambda sample: (sample[8], sample[7]))[len(samples) // 2]
            size, algorithm, bus, wait, communicators, members, transfer = (
                median(sample[place] for sample in samples) for place in range(7)
            )
            yield JobPerformance(
                job_id=step.job_id,
                epoch=step.epoch,
                window_start_ns=self._start_ns,
                window_end_ns=step.event_time_ns,
                group=group,
                bytes_per_collective=round(size),
                algorithm_bandwidth_gb_s=round_significant(algorithm),
                bus_bandwidth_gb_s=round_significant(bus),
                wait_share=round_significant(wait),
                steps=len(samples),
                communicators=round(communicators),
                ranks_per_communicator=round(members),
                transfer_us=round_significant(transfer),
                slowest_instance=middle[7],
                slowest_bus_bandwidth_gb_s=round_significant(middle[8]),
            )

    def snapshot(self, with_open: bool = False) -> dict[str, Any]:
        """Plain data that `restore` takes.

        Args:
            with_open: whether what reports of open steps said is part of it; false where they will come again.
        """
        return {
            "start_ns": self._start_ns,
            "samples": {group: [list(sample) for sample in samples] for group, samples in self._samples.items()},
            "sizes": [
                [step, [[group, name, dict(sizes)] for (group, name), sizes in of_step.items()]]
                for step, of_step in self._sizes.items()
            ]
            if with_open
            else [],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace the state by a snapshot's."""
        self._start_ns = snapshot["start_ns"]
        self._samples = {group: [list(sample) for sample in samples] for group, samples in snapshot["samples"].items()}
        self._sizes = {
            step: {(group, name): dict(sizes) for group, name, sizes in of_step}
            for step, of_step in snapshot.get("sizes", [])
        }


def _named_sizes(collective: CollectiveTiming, count: int) -> Iterator[tuple[str, int]]:
    """Name of the communicator, as the join of steps calls it, and bytes of each rank that has both."""
    assert collective.size_bytes is not None
    instance = collective.instance
    is_column = instance is not None and len(instance) == count
    whole = "0" if instance is None else "-".join(map(str, instance))
    for place, size in enumerate(collective.size_bytes):
        if size is not None and size > 0:
            yield (str(instance[place]) if is_column and instance is not None else whole), size


def _sample(collective: Collective, sizes: _Sizes) -> list[Any] | None:
    """What one step says of one kind; None where no communicator's bytes and time are known."""
    numbers, shortest_us, members = transfers(collective)
    found = []
    for number, transfer_us, count in zip(numbers.tolist(), shortest_us.tolist(), members.tolist(), strict=True):
        name = collective.name_of(number)
        by_operation = sizes.get((collective.group, name))
        if not by_operation or transfer_us <= 0 or count < 2:
            continue
        size = sum(by_operation.values())
        bus_bytes = sum(bus_share(operation, count) * part for operation, part in by_operation.items())
        found.append((bus_bytes / transfer_us / 1000, name, size, size / transfer_us / 1000, count, transfer_us))
    if not found:
        return None
    known = ~np.isnan(collective.duration_us) & (collective.instance >= 0)
    total_us = float(collective.duration_us[known].sum())
    waiting_us = total_us - float((shortest_us * members).sum())
    slowest = min(found)
    return [
        median(one[2] for one in found),
        median(one[3] for one in found),
        median(one[0] for one in found),
        waiting_us / total_us,
        len(found),
        median(one[4] for one in found),
        median(one[5] for one in found),
        slowest[1],
        slowest[0],
    ]
