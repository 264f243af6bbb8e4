"""The `kernel-log` decoder: Xid, SXid, GPUs lost without a code, the Fabric Manager's log, network drivers, PCIe errors.

One record per recognised line, in source order, whatever carried it; what other programs quote yields nothing. A
GPU that the driver reports lost without a code becomes an Xid 79 marked `inferred`, at the place and time of the
first line that says so, unless the log has the true 79 of that address close by. Repeats stay, and nothing is
joined into faults. Memory is bounded: a few dozen records wait at most, and what is known of addresses is capped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, TypeVar

from agents.decode import aer_line, kernel_journal, nic_line, sxid_line, xid_line
from agents.decode.kernel_transport import Stamp, carried, is_kmsg
from agents.decode.record import Record, Tally, UnknownFormat, malformed
from agents.decode.text import lines

NEAR_US: Final = 10_000_000
"""How far from the true 79 a message without a code still speaks of the same loss. The driver prints both within
a second; ten leave room for clocks of one second's resolution and a loaded console."""

NEAR_LINES: Final = 64
"""The same in lines, where times cannot be compared; also how many lines a record waits at most."""

_MESSAGE_LINES: Final = 16
"""Lines over which the three lines of one message may be spread when processors print at once."""

_ADDRESSES: Final = 4096
"""Addresses remembered. A node has a few dozen; more come from a log that is not to be believed."""

_WORDING = (*("NVRM", "nvswitch", "NVSwitch", "Xid", "Linux version", "fallen off the bus", "installed in this"),)
"""Every line about a GPU or a switch has one of these."""

_DEVICE_WORDING = (
    *(
        "ink",
        "LINK",
        "AER",
        "PCIe Bus Error",
        "mlx",
        "bnxt_en",
        "ice 0",
        "imed out",
        "imeout",
        ":    [",
        "DPC",
        "pciehp",
    ),
)
"""Every line of a network driver or of the PCIe services that is read has one of these; so have many others."""

_INDENT = " \t\0\x1e\ufeff"  # NULs come from a crash, record separators from `journalctl -o json-seq`
_EMBEDDED_END = re.compile(r"\n|#012")  # rsyslog writes a newline within one message as #012
_BOOT = "Linux version "  # the kernel's time begins anew
_DRIVER_LOAD = "NVRM: loading NVIDIA"
_CONTINUATIONS = ("NVRM:", "(PCI ID", "installed in this", "fallen off the bus")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def decode(stream: BinaryIO, tally: Tally) -> Iterator[Record]:
    """Yields the records of one kernel log.

    Raises:
        UnknownFormat: The file has text, but no line of it looks like a kernel log.
    """
    reader = KernelLogReader(tally)
    for number, text in lines(stream):
        yield from reader.feed(number, text)
    yield from reader.finish()
    if reader.has_text and not reader.is_kernel_log:
        raise UnknownFormat("no line has the prefix or the wording of a kernel log")


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the log."""

    count: int
    stamp: Stamp

    def near(self, other: _Mark) -> bool:
        """Whether two places are close in time, or in lines where their times do not compare."""
        one, two = self.stamp, other.stamp
        for a_us, b_us in ((one.kernel_time_us, two.kernel_time_us), (one.wall_time_us, two.wall_time_us)):
            if a_us is not None and b_us is not None:
                return abs(a_us - b_us) <= NEAR_US
        return abs(self.count - other.count) <= NEAR_LINES


@dataclass(frozen=True, slots=True)
class Placed:
    """A record and where it stands.

    Attributes:
        record: What was read.
        line_number: Of its first line, as it was fed.
        raw: Its lines as they were fed, joined by newlines where the message has several.
    """

    record: Record
    line_number: int
    raw: str


@dataclass(slots=True)
class _Slot:
    """A record's place in the output. It waits while the record may still turn out to be none.

    Attributes:
        record: What is written, None for nothing.
        line_number: The first line's.
        raw: The lines that it was made of.
        waits: Whether that can still change.
        address: The lost GPU's, for a slot that waits.
        mark: Where it stands.
    """

    record: Record | None
    line_number: int = 0
    raw: str = ""
    waits: bool = False
    address: str | None = None
    mark: _Mark = field(default_factory=lambda: _Mark(0, Stamp()))

    def settle(self, record: Record | None) -> None:
        self.record, self.waits = record, False


@dataclass(slots=True)
class _LostMessage:
    """The message about a GPU lost at probe, of which not all lines have come."""

    slot: _Slot
    middle_seen: bool


class KernelLogReader:
    """Reads a kernel log line by line, for files and for a log that is still being written.

    Records come out in source order. A lost GPU without a code holds back its record and those behind it, for at
    most `NEAR_LINES` lines or `NEAR_US` of the log's own time; who reads a live log calls `finish` when it pauses.

    Attributes:
        has_text: Whether any line had text.
        is_kernel_log: Whether any line had the prefix or the wording of a kernel log.
    """

    def __init__(self, tally: Tally | None = None) -> None:
        self.has_text = False
        self.is_kernel_log = False
        self._tally = Tally() if tally is None else tally
        self._count = 0
        self._after_kmsg = False
        self._line_number = 0
        self._raw = ""
        self._slots: deque[_Slot] = deque()
        self._messages: list[_LostMessage] = []
        self._uuids: dict[str, str] = {}
        self._lost: dict[str | None, _Mark] = {}  # by any 79
        self._lost_by_code: dict[str | None, _Mark] = {}  # by a true one

    @property
    def is_waiting(self) -> bool:
        """Whether something is held back that later lines decide about."""
        return bool(self._slots)

    def feed(self, line_number: int, text: str) -> Iterator[Record]:
        """Takes one line without its end and returns the records that are now certain.

        Args:
            line_number: Counted from 1, for malformed records.
            text: The line, without terminal escape sequences.
        """
        return (placed.record for placed in self.feed_placed(line_number, text))

    def feed_placed(self, line_number: int, text: str) -> list[Placed]:
        """The same, with the place and the lines of each record."""
        self._count += 1
        if self._after_kmsg and text.startswith(" "):
            return []  # properties of the record before
        self._line_number, self._raw = line_number, text
        body = text.lstrip(_INDENT)
        self.has_text = self.has_text or bool(body)
        self._after_kmsg = is_kmsg(body)
        if body.startswith("{"):
            self._read_entry(body, line_number)
        elif self._slots or not self.is_kernel_log or _has_any(body, _WORDING) or _has_any(body, _DEVICE_WORDING):
            line = carried(body)
            self.is_kernel_log = self.is_kernel_log or line.known or _has_any(body, _WORDING)
            self._read(line.payload.lstrip(_INDENT), line.stamp, text, line_number)
        return self._certain()

    def finish(self) -> Iterator[Record]:
        """Returns what still waits, taking it that no line follows soon. More lines may be fed afterwards."""
        return (placed.record for placed in self.finish_placed())

    def finish_placed(self) -> list[Placed]:
        """The same, with the place and the lines of each record."""
        for message in self._messages:
            message.slot.settle(None)
        self._messages.clear()
        for slot in self._slots:
            slot.waits = False
        return self._certain()

    def snapshot(self) -> dict[str, Any]:
        """What earlier lines said of addresses, as plain data that `restore` takes; nothing that waits."""
        lost = [[address, mark.stamp.kernel_time_us, mark.stamp.wall_time_us] for address, mark in self._lost.items()]
        by_code = [address for address in self._lost_by_code if address in self._lost]
        return {"uuids": dict(self._uuids), "lost": lost, "lost_by_code": by_code}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replaces what is known of addresses by a snapshot's."""
        self._uuids = {str(address): str(uuid) for address, uuid in dict(snapshot["uuids"]).items()}
        # Places of lines that are not counted any more are far from all that follow.
        self._lost = {
            address: _Mark(-NEAR_LINES - 1, Stamp(kernel_time_us=kernel_us, wall_time_us=wall_us))
            for address, kernel_us, wall_us in snapshot["lost"]
        }
        self._lost_by_code = {address: self._lost[address] for address in snapshot["lost_by_code"]}

    def _read_entry(self, text: str, line_number: int) -> None:
        """Reads a line of `journalctl -o json`."""
        entry = kernel_journal.entry(text)
        if entry is None:
            if message := kernel_journal.cut_event(text):
                self.is_kernel_log = True
                self._put(malformed("journal entry is not whole", message, line_number))
            return
        self.is_kernel_log = True
        if not entry.kernel:
            return
        if not entry.messages:
            self._tally.skipped += 1
        for message in entry.messages:
            if self._read(message.lstrip(_INDENT), entry.stamp, message, line_number):
                break

    def _read(self, payload: str, stamp: Stamp, raw: str, line_number: int) -> bool:
        """Reads one payload; returns whether it was telemetry or belongs to some."""
        mark = _Mark(self._count, stamp)
        self._settle_old(mark)
        if xid_line.is_xid(payload):
            self._put_parsed(xid_line.parse(payload), mark, raw, line_number)
        elif sxid_line.is_sxid(payload):
            self._put_parsed(sxid_line.parse(payload), mark, raw, line_number)
        elif named := xid_line.identity(payload):
            if stamp.trusted:
                _remember(self._uuids, *named)
        elif found := xid_line.fallen(payload):
            self._read_fallen(*found, mark)
        elif xid_line.is_lost_opening(payload):
            self._open_message(payload, mark)
        elif payload.startswith(_BOOT):
            self._lost.clear()
            self._lost_by_code.clear()
        elif payload.startswith(_DRIVER_LOAD):
            self._lost.clear()
        elif self._continue_message(payload, mark):
            pass
        elif device := nic_line.parse(payload) or aer_line.parse(payload):
            self._put(self._completed(device, stamp))
        else:
            return False
        return True

    def _put_parsed(self, parsed: Record | str, mark: _Mark, raw: str, line_number: int) -> None:
        if isinstance(parsed, str):
            self._put(malformed(parsed, raw, line_number))
            return
        if parsed["kind"] == "xid" and parsed["code"] == xid_line.LOST_GPU and mark.stamp.trusted:
            self._note_true_loss(parsed["pci_bus_id"], mark)
        self._put(self._completed(parsed, mark.stamp))

    def _note_true_loss(self, address: str | None, mark: _Mark) -> None:
        for slot in self._slots:
            if slot.waits and slot.address == address and slot.mark.near(mark):
                slot.settle(None)
        _remember(self._lost, address, mark)
        _remember(self._lost_by_code, address, mark)

    def _read_fallen(self, address: str | None, text: str, mark: _Mark) -> None:
        """`GPU <address>: GPU has fallen off the bus.`, which comes with a 79 or stands for one."""
        record = self._inferred(address, text, mark.stamp)
        if not mark.stamp.trusted:
            self._put(record)
        elif address not in self._lost:
            _remember(self._lost, address, mark)
            self._slots.append(_Slot(record, self._line_number, self._raw, True, address, mark))

    def _open_message(self, payload: str, mark: _Mark) -> None:
        """The first line of the three about a GPU lost at probe; some transports bring all three in one."""
        first, *others = _EMBEDDED_END.split(payload)
        slot = _Slot(None, self._line_number, self._raw, True, xid_line.lost_address(first), mark)
        self._slots.append(slot)
        self._messages.append(_LostMessage(slot, middle_seen=False))
        self._continue_message(first, mark)
        for other in others:
            self._continue_message(other.lstrip(_INDENT), mark)

    def _continue_message(self, payload: str, mark: _Mark) -> bool:
        middle, end = "installed in this" in payload, "fallen off the bus" in payload
        if not self._messages or not (middle or end) or not payload.startswith(_CONTINUATIONS):
            return False
        for message in self._messages:
            slot = message.slot
            # Lines of two messages may alternate: each goes to the first that lacks it.
            if slot.mark.stamp.trusted != mark.stamp.trusted or (middle and message.middle_seen):
                continue
            message.middle_seen = message.middle_seen or middle
            if self._line_number != slot.line_number:
                slot.raw += f"\n{self._raw}"
            if end:
                self._messages.remove(message)
                self._close_message(slot, payload)
            return True
        return False

    def _close_message(self, slot: _Slot, payload: str) -> None:
        if not slot.waits:
            return  # the true 79 came between its lines
        text = payload[payload.index("fallen off the bus") :].strip()
        record = self._inferred(slot.address, text, slot.mark.stamp)
        if not slot.mark.stamp.trusted:
            slot.settle(record)
            return
        true_loss = self._lost_by_code.get(slot.address)
        if true_loss is not None and true_loss.near(slot.mark):
            slot.settle(None)
            return
        slot.record = record
        _remember(self._lost, slot.address, slot.mark)

    def _inferred(self, address: str | None, text: str, stamp: Stamp) -> Record:
        record = xid_line.blank(xid_line.LOST_GPU, address)
        record.update(text=text, inferred=True)
        return self._completed(record, stamp)

    def _completed(self, record: Record, stamp: Stamp) -> Record:
        """Adds what the transport and earlier lines state."""
        stated = {
            "kernel_time_us": stamp.kernel_time_us,
            "wall_time_us": stamp.wall_time_us,
            "time_text": stamp.time_text,
            "kmsg_seq": stamp.kmsg_seq,
        }
        record.update((name, value) for name, value in stated.items() if value is not None)
        if not stamp.trusted:
            record["trusted"] = False
        uuid = self._uuids.get(record["pci_bus_id"]) if record["kind"] == "xid" else None
        if uuid is not None:
            record["gpu_uuid"] = uuid
        return record

    def _put(self, record: Record) -> None:
        self._slots.append(_Slot(record, self._line_number, self._raw))

    def _settle_old(self, now: _Mark) -> None:
        """Lets go what has waited long enough."""
        for message in [m for m in self._messages if self._count - m.slot.mark.count > _MESSAGE_LINES]:
            message.slot.settle(None)
            self._messages.remove(message)
        for slot in self._slots:
            if slot.waits and slot.record is not None:
                old = self._count - slot.mark.count > NEAR_LINES
                slot.waits = not old and slot.mark.near(now)

    def _certain(self) -> list[Placed]:
        placed = []
        while self._slots and not self._slots[0].waits:
            slot = self._slots.popleft()
            if slot.record is not None:
                placed.append(Placed(slot.record, slot.line_number, slot.raw))
        return placed


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    """Whether the text holds one of the words; quicker than one pattern of them all."""
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in text:
            return True
    return False


def _remember(memory: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Stores a value as the newest and forgets the oldest beyond the limit."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _ADDRESSES:
        del memory[next(iter(memory))]
