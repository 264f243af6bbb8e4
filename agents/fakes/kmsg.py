"""A kernel's ring of log records that stands for `/dev/kmsg`.

Guarantees: what a reader sees of the device: one record a read, numbered without gaps, in the device's own form with its
properties behind it; nothing to read is `BlockingIOError`; a reader that was overtaken is told once with
`BrokenPipeError` and goes on with the oldest record; every opening begins at the oldest record. It has no console, no
rate limit, and no priority filter.

    ring = FakeKmsg(capacity=100)
    collector = KernelLogCollector("/dev/kmsg", identity, open_log=ring.open, state_dir=str(tmp_path))
    ring.write("NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.")
    ring.write("NVRM: Xid (PCI:0000:1b:00): 79, forged", priority=12)  # as a process writes it
    events = collector.collect(now_ns).events
"""

from __future__ import annotations

from collections import deque

__all__ = ["FakeKmsg"]

_ERROR_OF_THE_KERNEL = 3
_LINE_US = 1000


class FakeKmsg:
    """A ring of records.

    Args:
        capacity: records that it holds; the oldest is overwritten by the next.
        first_seq: number of the first record.
    """

    def __init__(self, capacity: int = 1000, first_seq: int = 0) -> None:
        self._records: deque[tuple[int, bytes]] = deque(maxlen=capacity)
        self._next_seq = first_seq
        self._time_us = 5_000_000

    def write(
        self,
        text: str,
        *,
        priority: int = _ERROR_OF_THE_KERNEL,
        time_us: int | None = None,
        flags: str = "-",
        properties: dict[str, str] | None = None,
    ) -> int:
        """Append a record.

        Args:
            text: one line; what does not print is escaped, as the device does.
            priority: facility times 8 and level; from 8 on the writer was not the kernel.
            time_us: microseconds since boot; None is a millisecond after the last record.
            flags: the fourth field, and further ones where it holds commas.
            properties: lines ` KEY=value` behind the record.

        Returns:
            The record's number.
        """
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._time_us = self._time_us + _LINE_US if time_us is None else time_us
        lines = [f"{priority},{seq},{self._time_us},{flags};{_escaped(text)}"]
        lines += [f" {key}={_escaped(value)}" for key, value in (properties or {}).items()]
        self._records.append((seq, "".join(f"{line}\n" for line in lines).encode()))
        return seq

    def open(self) -> _Reader:
        """A reader of its own, at the oldest record."""
        return _Reader(self)

    def at(self, seq: int) -> tuple[int, bytes] | None:
        """The record of a number, or the oldest if that is gone; None if it is not written yet."""
        if seq >= self._next_seq or not self._records:
            return None
        oldest = self._records[0][0]
        return self._records[max(0, seq - oldest)]


class _Reader:
    """One open device."""

    def __init__(self, ring: FakeKmsg) -> None:
        self._ring = ring
        oldest = ring.at(0)
        self._seq = oldest[0] if oldest is not None else 0
        self._is_open = True

    def read(self, size: int) -> bytes:
        """The next record.

        Raises:
            BlockingIOError: there is none yet.
            BrokenPipeError: it was overwritten; the next read gives the oldest.
            OSError: the record is longer than `size`, or the reader is closed.
        """
        if not self._is_open:
            raise OSError(9, "Bad file descriptor")
        found = self._ring.at(self._seq)
        if found is None:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        seq, record = found
        if seq > self._seq:
            self._seq = seq
            raise BrokenPipeError(32, "Broken pipe")
        if len(record) > size:
            raise OSError(22, "Invalid argument")
        self._seq += 1
        return record

    def close(self) -> None:
        """Let go of it."""
        self._is_open = False


def _escaped(text: str) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text.encode("utf-8", "replace"))
