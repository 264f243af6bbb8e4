"""A trace's profile: per step and device what the time went into, and the kernels that took most of it.

Guarantees: read as a stream; memory for columns of numbers, not for events; unions and idle time exact in nanoseconds; a figure that the trace
cannot give is None. A step's window is that of the GPU's own annotation where there is one, else the host's, which
runs ahead of the GPU by the launch lead, else the whole trace; windows reach up to the next step's.

Deliberately not: verdicts, families (the caller names them) and comparing traces. numpy is loaded when a trace is summed
up, so that decoders start without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from agents.decode.kineto import DISTRIBUTED
from agents.decode.kineto_columns import COMMUNICATION, Columns, Device
from agents.decode.kineto_document import EVENTS, Unreadable, items
from agents.decode.kineto_event import ANNOTATION_PREFIX, GPU_WORK, whole
from agents.decode.kineto_intervals import Cover, union
from agents.decode.kineto_source import pieces
from agents.decode.record import Record, Tally, UnknownFormat, malformed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Longs = NDArray[np.int64]

TOP_KERNELS: Final = 20
"""Kernels that are named, by their time in all."""

_PROPERTIES: Final = "deviceProperties"
_MOST_STEPS: Final = 10_000
_KNOWN_LAUNCHES: Final = 0.9
"""Share of the gaps whose end has a launch in the trace, below which nothing is said of launches: a sum over a part of
them would look like one over all."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where a step lies: `step` is None for a trace without steps; `source` is `gpu`, `host` or `trace`."""

    step: int | None
    start_ns: int
    end_ns: int
    source: str


def profile(stream: BinaryIO, tally: Tally, family_of: Callable[[str], str]) -> Iterator[Record]:
    """Yields `malformed` for what cannot be read, a `trace_step` per step and device, then one `trace_profile`.

    Args:
        stream: The trace, plain or gzip.
        tally: Counts what had no text to read.
        family_of: Names the family of a kernel by its name.

    Raises:
        UnknownFormat: The text is empty or no trace.
        Damaged: The trace breaks off, or has something else after its end.
    """
    columns = Columns(family_of)
    members: dict[str, Any] = {}
    for item in items(pieces(stream), (DISTRIBUTED, _PROPERTIES)):
        if isinstance(item, list):
            for event in item:
                if not event:
                    tally.skipped += 1
                elif not isinstance(event, dict) or not _take(columns, event):
                    yield malformed("no time or duration that can be read", json.dumps(event, default=str))
        elif isinstance(item, Unreadable):
            yield malformed(item.reason, item.raw)
        else:
            members[item.key] = item.value
    if EVENTS not in members:
        raise UnknownFormat("it is empty")
    joined = []
    for number in sorted(columns.devices, key=_by_number):
        # What was read goes as soon as it is joined, so that a trace is not held twice.
        joined.append(_Joined(number, columns.devices.pop(number), columns))
    for device in joined:
        yield from device.steps()
    yield _trace_profile(columns, joined, members)


def _by_number(device: int | None) -> int:
    return -1 if device is None else device


def _take(columns: Columns, event: dict[str, Any]) -> bool:
    name, category = event.get("name"), event.get("cat")
    if not isinstance(name, str):
        name = ""
    work = GPU_WORK.get(category) if isinstance(category, str) else None
    if event.get("ph", "X") != "X":
        return True
    if work is None:
        columns.take_host(event, name, category if isinstance(category, str) else None)
        return True
    return name.startswith(ANNOTATION_PREFIX) or columns.take_work(event, name, work)


class _Joined:
    """One device's rows in order of their start, each with the time of its launch."""

    def __init__(self, number: int | None, held: Device, columns: Columns) -> None:
        import numpy as np

        self.number = number
        self._columns = columns
        starts = np.frombuffer(held.starts_ns, np.int64)
        order = np.argsort(starts, kind="stable")
        self.starts: Longs = starts[order]
        self.durations: Longs = np.frombuffer(held.ends_ns, np.int64)[order] - self.starts
        self.names: Longs = np.array(held.names, np.int64)[order]
        self.labels: Longs = np.array(held.labels, np.int64)[order]
        external_ids = np.frombuffer(held.external_ids, np.int64)
        self.external_ids: Longs = (
            external_ids[order] if len(columns.products.external_ids) else external_ids[:0].copy()
        )
        correlations = np.frombuffer(held.correlations, np.int64)[order]
        self.launches = _launch_times(correlations, columns)
        self.kernels = held.kernels.cover()
        self.communication = held.communication.cover()
        self.to_device = held.to_device.cover()
        self.to_host = held.to_host.cover()
        transfers = union((self.to_device, self.to_host, held.other.cover()))
        self.computation = _with(self.kernels, transfers)
        # What hides a copy: another copy does not.
        self.executing = _with(self.kernels, self.communication)
        self.busy = _with(self.executing, transfers)
        self._windows = _windows(held.steps, columns.host_steps, self.busy)

    def steps(self) -> Iterator[Record]:
        """A `trace_step` per window."""
        import numpy as np

        if not len(self.busy):
            return
        with_to_device = _with(self.executing, self.to_device)
        with_to_host = _with(self.executing, self.to_host)
        with_input = _with(self.busy, self._columns.input_waits.cover())
        ends = np.append(np.int64(self._windows[0].start_ns), np.frombuffer(self.busy.ends, np.int64))
        gaps = _Gaps(ends[:-1], np.frombuffer(self.busy.starts, np.int64), self.starts, self.launches)
        for window in self._windows:
            at = (window.start_ns, window.end_ns)
            computation, executing, busy = (
                cover.within(*at) for cover in (self.computation, self.executing, self.busy)
            )
            communication = self.communication.within(*at)
            # Either computation or communication is what is busy.
            exposed = busy - computation
            length = window.end_ns - window.start_ns
            idle_unlaunched, longest_gap = gaps.within(window)
            yield {
                "kind": "trace_step",
                "step": window.step,
                "device": self.number,
                "window": window.source,
                "window_us": length / 1000,
                "kernel_us": self.kernels.within(*at) / 1000,
                "compute_us": computation / 1000,
                "comm_us": communication / 1000,
                "exposed_comm_us": exposed / 1000,
                "hidden_comm_us": (communication - exposed) / 1000,
                "to_device_us": self.to_device.within(*at) / 1000,
                "exposed_to_device_us": (with_to_device.within(*at) - executing) / 1000,
                "to_host_us": self.to_host.within(*at) / 1000,
                "exposed_to_host_us": (with_to_host.within(*at) - executing) / 1000,
                "idle_us": (length - busy) / 1000,
                "idle_input_us": (with_input.within(*at) - busy) / 1000,
                "idle_unlaunched_us": None if idle_unlaunched is None else idle_unlaunched / 1000,
                "longest_gap_us": longest_gap / 1000,
                **self._rows(window),
            }

    def _rows(self, window: Window) -> Record:
        """What the rows that start in a window add up to."""
        import numpy as np

        rows = slice(*np.searchsorted(self.starts, (window.start_ns, window.end_ns)))
        latencies = self.starts[rows] - self.launches[rows]
        latencies = latencies[(self.launches[rows] >= 0) & (latencies >= 0)]
        middle, high = np.percentile(latencies, (50, 95)) if len(latencies) else (None, None)
        texts = self._columns.labels.texts
        counts = np.bincount(self.labels[rows], minlength=len(texts))
        totals = np.bincount(self.labels[rows], self.durations[rows], minlength=len(texts))
        summed = {
            texts[label]: {"count": int(counts[label]), "total_us": float(totals[label]) / 1000}
            for label in np.flatnonzero(counts)
        }
        return {
            "kernel_count": int(counts.sum()),
            "launch_latency_median_us": None if middle is None else float(middle) / 1000,
            "launch_latency_p95_us": None if high is None else float(high) / 1000,
            "families": {text: sums for text, sums in summed.items() if not text.startswith(COMMUNICATION)},
            "collectives": {
                text.removeprefix(COMMUNICATION): sums
                for text, sums in summed.items()
                if text.startswith(COMMUNICATION)
            },
        }


class _Gaps:
    """A device's idle times, each with what had been launched while it lasted."""

    def __init__(self, starts: Longs, ends: Longs, work_starts: Longs, launches: Longs) -> None:
        import numpy as np

        self._starts, self._ends = starts, ends
        ending = launches[np.searchsorted(work_starts, ends)]
        self._launches = np.where(ending >= 0, ending, starts)
        self._is_known = bool(len(ending)) and float((ending >= 0).mean()) >= _KNOWN_LAUNCHES

    def within(self, window: Window) -> tuple[int | None, int]:
        """Idle nanoseconds before the next work was launched, and the longest gap.

        The first is None where too few launches are in the trace. A gap counts in the window in which it ends, from that window's start on.
        """
        import numpy as np

        rows = slice(*np.searchsorted(self._ends, (window.start_ns, window.end_ns), side="right"))
        starts, ends = np.maximum(self._starts[rows], window.start_ns), self._ends[rows]
        lengths = ends - starts
        if not len(lengths):
            return (0 if self._is_known else None), 0
        unlaunched = np.clip(self._launches[rows] - starts, 0, np.maximum(lengths, 0))
        return (int(unlaunched.sum()) if self._is_known else None), max(0, int(lengths.max()))


def _with(cover: Cover, further: Cover) -> Cover:
    return union((cover, further)) if len(further) else cover


def _launch_times(correlations: Longs, columns: Columns) -> Longs:
    """The launch of each row in nanoseconds; -1 where the trace has none."""
    import numpy as np

    known = np.frombuffer(columns.launch_correlations, np.int64)
    if not len(known):
        return np.full(len(correlations), -1, np.int64)
    order = np.argsort(known, kind="stable")
    known, times = known[order], np.frombuffer(columns.launch_times_ns, np.int64)[order]
    places = np.minimum(np.searchsorted(known, correlations), len(known) - 1)
    return np.where(known[places] == correlations, times[places], np.int64(-1))


def _windows(on_gpu: dict[int, tuple[int, int]], on_host: dict[int, tuple[int, int]], busy: Cover) -> list[Window]:
    """The steps of a device, in time; each reaches up to the next one's start, the last up to its own end."""
    steps, source = (on_gpu, "gpu") if on_gpu else (on_host, "host")
    if not steps:
        return [Window(None, busy.starts[0], busy.ends[-1], "trace")] if len(busy) else []
    in_time = sorted((start, end, number) for number, (start, end) in steps.items())[:_MOST_STEPS]
    following = [start for start, _, _ in in_time[1:]]
    ends = [*following, max(in_time[-1][1], in_time[-1][0])]
    return [Window(number, start, end, source) for (start, _, number), end in zip(in_time, ends, strict=True)]


def _trace_profile(columns: Columns, devices: list[_Joined], members: dict[str, Any]) -> Record:
    distributed = members.get(DISTRIBUTED)
    distributed = distributed if isinstance(distributed, dict) else {}
    return {
        "kind": "trace_profile",
        "rank": whole(distributed.get("rank")),
        "world_size": whole(distributed.get("world_size")) or None,
        "gpu_names": _gpu_names(members.get(_PROPERTIES), devices),
        "device_count": len(devices),
        "top_kernels": _top_kernels(columns, devices),
        "matrix_products": _matrix_products(columns, devices),
    }


def _gpu_names(properties: object, devices: list[_Joined]) -> list[str]:
    """Names of the devices that worked, without repeats; of all devices where the trace does not number them."""
    named = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    used = {device.number for device in devices}
    chosen = [entry for entry in named if whole(entry.get("id")) in used] or named
    return sorted({entry["name"] for entry in chosen if isinstance(entry.get("name"), str)})


def _top_kernels(columns: Columns, devices: list[_Joined]) -> list[Record]:
    import numpy as np

    size = len(columns.names.texts)
    counts, totals, longest = np.zeros(size, np.int64), np.zeros(size), np.zeros(size, np.int64)
    labels = np.zeros(size, np.int64)
    for device in devices:
        counts += np.bincount(device.names, minlength=size)
        totals += np.bincount(device.names, device.durations, minlength=size)
        np.maximum.at(longest, device.names, device.durations)
        labels[device.names] = device.labels
    return [
        {
            "name": columns.names.texts[name],
            "family": columns.labels.texts[labels[name]],
            "count": int(counts[name]),
            "total_us": float(totals[name]) / 1000,
            "max_us": int(longest[name]) / 1000,
        }
        for name in np.argsort(-totals, kind="stable")[:TOP_KERNELS]
        if counts[name]
    ]


def _matrix_products(columns: Columns, devices: list[_Joined]) -> list[Record]:
    """Per data type the work of the products whose kernels are in the trace, and these kernels' time."""
    import numpy as np

    products = columns.products
    if not len(products.external_ids):
        return []
    known, first = np.unique(np.frombuffer(products.external_ids, np.int64), return_index=True)
    kernel_ns = np.zeros(len(known))
    for device in devices:
        places = np.minimum(np.searchsorted(known, device.external_ids), len(known) - 1)
        is_product = known[places] == device.external_ids
        np.add.at(kernel_ns, places[is_product], device.durations[is_product])
    ran = kernel_ns > 0
    dtypes = np.array(products.dtypes, np.int64)[first]
    return [
        {
            "dtype": name,
            "count": int(chosen.sum()),
            "flops": float(np.frombuffer(products.flops)[first][chosen].sum()),
            "bytes": float(np.frombuffer(products.bytes)[first][chosen].sum()),
            "kernel_us": float(kernel_ns[chosen].sum()) / 1000,
        }
        for number, name in enumerate(products.dtype_names)
        if (chosen := ran & (dtypes == number)).any()
    ]
