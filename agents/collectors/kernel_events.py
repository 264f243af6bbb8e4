"""Lines of a kernel log to events: who says it, when, under which number, and folded where they come in bursts.

Guarantees: a line read again has the number that it had before (its kmsg sequence number; else its time; else its
place), and numbers only grow. A line's time is its own wall time, else boot time plus kernel time, else its text read in
this machine's zone, else now; it is never in the future. Equal lines of a burst are counted without being read. It reads
no file, keeps no time, and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from agents.collectors.event_fold import EventFold, kind_of
from agents.collectors.local_time import local_time_ns
from agents.decode.kernel_log import KernelLogReader
from schemas.events import KernelEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from agents.collectors.log_follower import LogLine
    from agents.decode.kernel_log import Placed
    from agents.identity import AgentIdentity

__all__ = ["EVERY_KIND", "KernelEventReader"]

EVERY_KIND: Final = frozenset({"xid", "sxid", "nic", "aer"})
"""Kinds of decoded records that become events; the event's `source` has the same name."""

_CARRIED = (
    *("code", "severity", "pci_bus_id", "gpu_uuid", "switch_index", "reported_severity", "link", "pid", "process"),
    *("recovery_action", "caused_by_xid", "trusted", "inferred", "condition", "driver", "interface", "error_name"),
)

_TEXT_CHARACTERS = 2000

_XID = "NVRM: Xid ("
_RECOVERY: Final = 154
"""The Xid whose text, the recovery action, makes one line worse than another."""

_ORDINALS = 16
"""Lines that can share a microsecond before a number is borrowed from the next."""

_KMSG_SEQ_LIMIT = 1 << 48
_DAY_NS = 24 * 3600 * 10**9

_EARLIER_BOOT_NS = 60 * 10**9
"""A line so much older than the boot is of an earlier one; smaller differences are a clock that was set."""

_OTHER_ZONE_NS = 300 * 10**9
"""A line that was written a moment ago and says another time than this was written in another zone."""


class KernelEventReader:
    """Makes events of lines.

    Args:
        identity: who the events are from.
        boot_time_ns: wall time of the boot.
        kinds: of the decoder's records, those that are wanted.
        numbers_apart: a word that keeps these numbers apart from the kernel's, in front of the boot id; empty for none.
    """

    def __init__(
        self,
        identity: AgentIdentity,
        boot_time_ns: Callable[[], int],
        *,
        kinds: Collection[str] = EVERY_KIND,
        numbers_apart: str = "",
    ) -> None:
        self.malformed = 0
        """Lines that were meant to be events and could not be read."""
        self._identity = identity
        self._boot_time_ns = boot_time_ns
        self._kinds = frozenset(kinds)
        self._boot_id = f"{numbers_apart}-{identity.boot_id}" if numbers_apart else identity.boot_id
        self._reader = KernelLogReader()
        self._fold = EventFold()
        self._last_number = -1

    @property
    def is_waiting(self) -> bool:
        """Whether something is held back that later lines decide about."""
        return self._reader.is_waiting

    @property
    def last_number(self) -> int:
        """The last event's `kmsg_seq`; -1 before the first."""
        return self._last_number

    def read(self, lines: Iterable[LogLine], now_ns: int, *, is_live: bool = False) -> tuple[KernelEvent, ...]:
        """The events of lines, in their order.

        Args:
            lines: new lines; positions grow.
            now_ns: wall time of the reading.
            is_live: the lines were written since the last reading, a moment ago.
        """
        reader, fold = self._reader, self._fold
        for line in lines:
            text = line.text
            if text[:1].isdigit() and not reader.is_waiting and _counted(fold, text):
                continue
            for placed in reader.feed_placed(line.position, text):
                self._take(placed, now_ns, is_live)
        return tuple(fold.take())

    def finish(self, now_ns: int) -> tuple[KernelEvent, ...]:
        """What was held back until later lines would decide: the log pauses, and none come."""
        for placed in self._reader.finish_placed():
            self._take(placed, now_ns, True)
        return tuple(self._fold.take())

    def fold_snapshot(self) -> dict[str, Any]:
        """How many lines the running second has had, as plain data."""
        return self._fold.snapshot()

    def reader_snapshot(self) -> dict[str, Any]:
        """What earlier lines said of addresses, as plain data; nothing that waits."""
        return self._reader.snapshot()

    def restore(self, last_number: int, fold: Mapping[str, Any], reader: Mapping[str, Any]) -> bool:
        """Read on where snapshots were made; False, and nothing changed, if they are none: a disk may hold anything."""
        fresh_fold, fresh_reader = EventFold(), KernelLogReader()
        try:
            fresh_fold.restore(fold)
            fresh_reader.restore(reader)
        except (LookupError, TypeError, ValueError, AttributeError):
            return False
        self._fold, self._reader, self._last_number = fresh_fold, fresh_reader, last_number
        return True

    def _take(self, placed: Placed, now_ns: int, is_live: bool) -> None:
        record = placed.record
        if record["kind"] not in self._kinds:
            self.malformed += record["kind"] == "malformed"
            return
        time_us = record.get("wall_time_us", record.get("kernel_time_us"))
        local_ns = None
        if time_us is None and (time_text := record.get("time_text")) is not None:
            local_ns = local_time_ns(time_text, now_ns)
            time_us = None if local_ns is None else local_ns // 1000
        self._fold.add(
            kind_of(record),
            lambda: self._event(placed, local_ns, time_us, now_ns, is_live),
            now_ns // 1000 if time_us is None else time_us,
            placed.raw,
            _equal_of(placed.raw) if record.get("kmsg_seq") is not None and record.get("code") != _RECOVERY else None,
        )

    def _event(
        self, placed: Placed, local_ns: int | None, time_us: int | None, now_ns: int, is_live: bool
    ) -> KernelEvent | None:
        record = placed.record
        boot_ns = self._boot_time_ns()
        wall_us, kernel_us = record.get("wall_time_us"), record.get("kernel_time_us")
        boot_id = self._boot_id
        stated_ns = None if wall_us is None else wall_us * 1000
        if stated_ns is None and kernel_us is None and local_ns is not None:
            stated_ns = now_ns if is_live and abs(now_ns - local_ns) > _OTHER_ZONE_NS else local_ns
        if stated_ns is not None:
            time_ns = stated_ns
            if time_ns < boot_ns - _EARLIER_BOOT_NS:
                boot_id = f"before-{boot_id}"
        else:
            time_ns = now_ns if kernel_us is None else boot_ns + kernel_us * 1000
        try:
            return KernelEvent(
                node_id=self._identity.node_id,
                agent_session=self._identity.agent_session,
                boot_id=boot_id,
                kmsg_seq=self._number(record.get("kmsg_seq"), time_us, placed.line_number, now_ns),
                event_time_ns=max(0, min(time_ns, now_ns)),
                source=record["kind"],
                text=str(record.get("text") or "")[:_TEXT_CHARACTERS],
                raw=placed.raw[:_TEXT_CHARACTERS],
                **{name: record[name] for name in _CARRIED if record.get(name) is not None},
            )
        except ValidationError:  # a forged line may say anything, such as a name that is too long
            self.malformed += 1
            return None

    def _number(self, kmsg_seq: int | None, time_us: int | None, position: int, now_ns: int) -> int:
        """A number above the last one: of the kernel, of the line's time, of its place, whichever is the first known.

        What is out of all bounds is not believed, or one forged line would take away the meaning of all later numbers.
        """
        if kmsg_seq is not None:
            number = kmsg_seq if kmsg_seq < _KMSG_SEQ_LIMIT else 0
        elif time_us is not None:
            number = time_us * _ORDINALS if time_us * 1000 < now_ns + _DAY_NS else 0
        else:
            number = position
        self._last_number = max(number, self._last_number + 1)
        return self._last_number


def _equal_of(raw: str) -> str:
    """What `/dev/kmsg` records share that may be counted unread: priority, and text as far as it tells the kind."""
    head, _, text = raw.partition(";")
    return _equal(head.partition(",")[0], text)


def _equal(priority: str, text: str) -> str:
    # Of an Xid, address and code tell the kind; the process and the registers behind them may differ.
    return f"{priority};{text.partition(',')[0] if text.startswith(_XID) else text}"


def _counted(fold: EventFold, raw: str) -> bool:
    """Whether the line is a `/dev/kmsg` record whose equal is in a burst already, and was counted with it."""
    head, separator, text = raw.partition(";")
    if not separator:
        return False
    fields = head.split(",", 3)
    # An integer of more digits is forged, and costs more to read than the line is worth.
    if len(fields) < 3 or len(fields[2]) > 18 or not fields[2].isdecimal():
        return False
    return fold.repeat(_equal(fields[0], text), int(fields[2]), raw)
