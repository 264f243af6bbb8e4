"""Kernel events from `/dev/kmsg` or from a log file that is still being written.

Guarantees: every recognised line becomes one event, also those written before the agent started; a line read again has
the number that it had before (its kmsg sequence number; else its time; else its place), and numbers only grow. A storm
of equal lines is folded. A line's time is its own wall time, else boot time plus kernel time, else now, and is never in
the future. It decides nothing, and does not see lines that the kernel dropped or rate-limited.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from agents.clock import boot_time_ns
from agents.collectors.base import CollectorError, Readings
from agents.collectors.log_follower import LogFollower, LogLine
from agents.decode.kernel_log import NEAR_LINES, KernelLogReader
from agents.identity import AgentIdentity
from schemas.events import KernelEvent

__all__ = ["KernelLogCollector"]

_SOURCES: dict[str, Literal["xid", "sxid"]] = {"xid": "xid", "sxid": "sxid"}

_CARRIED = (
    "code",
    "severity",
    "pci_bus_id",
    "gpu_uuid",
    "switch_index",
    "reported_severity",
    "link",
    "pid",
    "process",
    "recovery_action",
    "caused_by_xid",
    "trusted",
    "inferred",
)

_TEXT_CHARACTERS = 2000

_SINGLE_LINES = 10
"""Equal lines of one reading that are events of their own; what comes beyond is one event with a count."""

_ORDINALS = 16
"""Lines that can share a microsecond before a number is borrowed from the next."""

_KMSG_SEQ_LIMIT = 1 << 48
_DAY_NS = 24 * 3600 * 10**9

_FOLD_NS = 60 * 10**9
"""Lines are folded within a minute of their own time, so that separate faults stay apart in a log that is read late."""

_EARLIER_BOOT_NS = 60 * 10**9
"""A line so much older than the boot is of an earlier one; smaller differences are a clock that was set."""


class KernelLogCollector:
    """Reads kernel events.

    Args:
        path: `/dev/kmsg`, or a file in any form that the kernel-log decoder knows.
        identity: who the events are from.
        from_start: read what is there already. Repeats over restarts of the agent carry equal numbers, so this is safe.
        boot_time_ns: wall time of the boot.
    """

    name = "kernel-log"

    def __init__(
        self,
        path: str | Path,
        identity: AgentIdentity,
        *,
        from_start: bool = True,
        boot_time_ns: Callable[[], int] = boot_time_ns,
    ) -> None:
        self.malformed = 0
        """Lines that were meant to be events and could not be read."""
        self._path = Path(path)
        self._identity = identity
        self._boot_time_ns = boot_time_ns
        self._follower = LogFollower(path, from_start=from_start)
        self._reader = KernelLogReader()
        self._line_count = 0
        self._recent: deque[LogLine] = deque(maxlen=NEAR_LINES + 1)
        self._last_seq = -1

    @property
    def lost_records(self) -> int:
        """Records of the kernel's ring that were overwritten before they were read."""
        return self._follower.lost_records

    def is_supported(self) -> str | None:
        """None if the log can be opened, else why not."""
        if not self._path.exists():
            return f"{self._path} does not exist"
        if not os.access(self._path, os.R_OK):
            return f"{self._path} is not readable: run as root or give CAP_SYSLOG"
        return None

    def collect(self, now_ns: int) -> Readings:
        """The events of lines that are new.

        Raises:
            CollectorError: the log cannot be read.
        """
        try:
            lines = self._follower.read()
        except OSError as error:
            raise CollectorError(f"{self._path} cannot be read: {error.strerror or error}") from None
        if not lines:
            return self.finish(now_ns)  # a log that pauses: nothing follows that could change what was held back
        events: list[KernelEvent] = []
        for line in lines:
            self._recent.append(line)
            self._line_count += 1
            events += self._events(self._reader.feed(self._line_count, line.text), now_ns)
        return Readings(events=tuple(_folded(events)))

    def finish(self, now_ns: int) -> Readings:
        """What was held back until later lines would decide, for one reading of a whole file."""
        return Readings(events=tuple(self._events(self._reader.finish(), now_ns)))

    def _events(self, records: Iterable[dict[str, Any]], now_ns: int) -> list[KernelEvent]:
        events = []
        for record in records:
            source = _SOURCES.get(record["kind"])
            if source is None:
                self.malformed += record["kind"] == "malformed"
                continue
            try:
                events.append(self._event(source, record, now_ns))
            except ValidationError:  # a forged line may say anything, such as a name that is too long
                self.malformed += 1
        return events

    def _event(self, source: Literal["xid", "sxid"], record: dict[str, Any], now_ns: int) -> KernelEvent:
        line = self._line_of(record)
        boot_ns = self._boot_time_ns()
        wall_us, kernel_us = record.get("wall_time_us"), record.get("kernel_time_us")
        boot_id = self._identity.boot_id
        if wall_us is not None:
            time_ns = wall_us * 1000
            if time_ns < boot_ns - _EARLIER_BOOT_NS:
                boot_id = f"before-{boot_id}"
        elif kernel_us is not None:
            time_ns = boot_ns + kernel_us * 1000
        else:
            time_ns = now_ns
        return KernelEvent(
            node_id=self._identity.node_id,
            agent_session=self._identity.agent_session,
            boot_id=boot_id,
            kmsg_seq=self._number(record, line, now_ns),
            event_time_ns=max(0, min(time_ns, now_ns)),
            source=source,
            text=str(record.get("text") or "")[:_TEXT_CHARACTERS],
            raw=line.text[:_TEXT_CHARACTERS],
            **{name: record[name] for name in _CARRIED if record.get(name) is not None},
        )

    def _line_of(self, record: dict[str, Any]) -> LogLine:
        """The line that a record was made of: the last one, unless it was held back."""
        text = record.get("text")
        if text:
            for line in reversed(self._recent):
                if line.text.rstrip().endswith(text):
                    return line
        return self._recent[-1]

    def _number(self, record: dict[str, Any], line: LogLine, now_ns: int) -> int:
        """A number above the last one: of the kernel, of the line's time, of its place, whichever is the first known.

        What is out of all bounds is not believed, or one forged line would take away the meaning of all later numbers.
        """
        kmsg_seq = record.get("kmsg_seq")
        time_us = record.get("wall_time_us", record.get("kernel_time_us"))
        if kmsg_seq is not None:
            number = kmsg_seq if kmsg_seq < _KMSG_SEQ_LIMIT else 0
        elif time_us is not None:
            number = time_us * _ORDINALS if time_us * 1000 < now_ns + _DAY_NS else 0
        else:
            number = line.position
        self._last_seq = max(number, self._last_seq + 1)
        return self._last_seq


def _folded(events: list[KernelEvent]) -> list[KernelEvent]:
    """One event for all equal ones beyond the first few: the kernel can print thousands of a kind in a second."""
    kept: list[KernelEvent] = []
    counts: dict[tuple[object, ...], int] = {}
    surplus: dict[tuple[object, ...], int] = {}
    for event in events:
        key = (
            event.event_time_ns // _FOLD_NS,
            *(event.source, event.code, event.pci_bus_id, event.switch_index, event.link, event.text, event.trusted),
        )
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _SINGLE_LINES:
            kept.append(event)
        elif key in surplus:
            position = surplus[key]
            kept[position] = kept[position].model_copy(update={"repeat_count": kept[position].repeat_count + 1})
        else:
            surplus[key] = len(kept)
            kept.append(event)
    return kept
