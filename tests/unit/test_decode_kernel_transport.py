"""What carries a kernel line: every transport's times, trust and skips, and what none of them makes an event."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from agents.decode.kernel_log import decode
from agents.decode.record import Record, Tally, UnknownFormat

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def read(*rows: str) -> list[Record]:
    return list(decode(io.BytesIO("\n".join(rows).encode()), Tally()))


def one(row: str) -> Record:
    [record] = read(row)
    return record


def journal(message: Any, **fields: Any) -> str:
    return json.dumps({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": message} | fields)


BOOT_US = 38_175_561
WALL_US = 1_737_801_294_859_532  # 2025-01-25T10:34:54.859532Z


@pytest.mark.parametrize(
    ("prefix", "kernel_us", "wall_us", "time_text"),
    [
        ("", None, None, None),
        ("kernel: ", None, None, None),
        ("kernel: [   38.175561] ", BOOT_US, None, None),
        ("[   38.175561] ", BOOT_US, None, None),
        ("[   38.175561] [   T1946] ", BOOT_US, None, None),
        ("[   38.175561] [    C12] ", BOOT_US, None, None),
        ("[   38.175561 <    0.000012>] ", BOOT_US, None, None),
        ("<3>[   38.175561] ", BOOT_US, None, None),
        ("<3>", None, None, None),
        ("3,1227,38175561,-;", BOOT_US, None, None),
        ("3,1227,38175561,c,1,-;", BOOT_US, None, None),
        ("3,1227,38175561,-,caller=T1234;", BOOT_US, None, None),
        ("[Sat Jan 25 10:34:54 2025] ", None, None, "Sat Jan 25 10:34:54 2025"),
        ("[Mon May  4 14:09:23 2026] ", None, None, "Mon May  4 14:09:23 2026"),
        ("[Mon May  4 14:09:23 2026] [   T1946] ", None, None, "Mon May  4 14:09:23 2026"),
        ("kern  :err   : 2025-01-25T10:34:54,859532+00:00 ", None, WALL_US, None),
        ("kern  :warn  : [   38.175561] ", BOOT_US, None, None),
        ("kern  :crit  : [Mon May  4 14:09:23 2026] ", None, None, "Mon May  4 14:09:23 2026"),
        ("2025-01-25T10:34:54,859532+00:00 ", None, WALL_US, None),
        ("2025-01-25T12:34:54.859532+02:00 host kernel: ", None, WALL_US, None),
        ("2025-01-25T05:04:54.859532-0530 host kernel: ", None, WALL_US, None),
        ("2025-01-25T10:34:54.859532999Z host kernel: [   38.175561] ", BOOT_US, WALL_US, None),
        ("2025-01-25T10:34:54.859532 host kernel: ", None, None, "2025-01-25T10:34:54.859532"),
        ("<4>1 2025-01-25T10:34:54.859532Z host kernel - - - ", None, WALL_US, None),
        ("<4>Jan 25 10:34:54 host kernel: ", None, None, "Jan 25 10:34:54"),
        ("Jan 25 10:34:54 host kernel: ", None, None, "Jan 25 10:34:54"),
        ("May  4 10:34:54 host.example.org kernel: [   38.175561] ", BOOT_US, None, "May  4 10:34:54"),
        ("May  4 10:34:54 2001:db8::1 kernel: ", None, None, "May  4 10:34:54"),
        ("Jan 25 10:34:54 host kern.err kernel: ", None, None, "Jan 25 10:34:54"),
        ("Jan 25 10:34:54.859532 host kernel: ", None, None, "Jan 25 10:34:54.859532"),
        ("Sat 2025-01-25 10:34:54 CET host kernel: ", None, None, "Sat 2025-01-25 10:34:54 CET"),
        ("Sat 2025-01-25 10:34:54 UTC host kernel: ", None, WALL_US - 859_532, None),
        ("[   38.175561] host kernel: ", BOOT_US, None, None),
        ("1737801294.859532 host kernel: ", None, WALL_US, None),
        ("kern:     err: [2025-01-25T10:34:54.859532686Z]: ", None, WALL_US, None),
        ("192.0.2.11: kern: warning: [2025-01-25T10:34:54.859532686Z]: ", None, WALL_US, None),
        ("2025-02-31T10:34:54Z host kernel: ", None, None, "2025-02-31T10:34:54"),
        ("\0\0\0Jan 25 10:34:54 host kernel: ", None, None, "Jan 25 10:34:54"),
        ("\x1b[32m[   38.175561] \x1b[0m\x1b[33m", BOOT_US, None, None),
    ],
)
def test_every_transport_gives_its_times_and_nothing_more(
    prefix: str, kernel_us: int | None, wall_us: int | None, time_text: str | None
) -> None:
    record = one(prefix + LOST)
    assert (record["code"], record["pci_bus_id"]) == (79, "0000:3b:00")
    assert record.get("kernel_time_us") == kernel_us
    assert record.get("wall_time_us") == wall_us
    assert record.get("time_text") == time_text
    assert "trusted" not in record


@pytest.mark.parametrize(
    "prefix",
    [
        "12,6010676,3561654626948,-;",
        "<12>[   38.175561] ",
        "user  :notice: [   38.175561] ",
        "user: warning: [2025-01-25T10:34:54.859532686Z]: ",
    ],
)
def test_another_facility_keeps_its_place_but_is_not_trusted(prefix: str) -> None:
    assert one(prefix + LOST)["trusted"] is False


def test_properties_of_a_kmsg_record_are_no_lines_of_their_own() -> None:
    rows = ("6,1,2,-;usb 1-1: new device", " SUBSYSTEM=usb", " " + LOST, "3,2,3,-;" + LOST)
    assert [record["kmsg_seq"] for record in read(*rows)] == [2]


def test_an_indented_line_elsewhere_is_read() -> None:
    assert one("    " + LOST)["code"] == 79


def test_escapes_of_kmsg_are_undone() -> None:
    assert one("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=caf\\xc3\\xa9, Ch 00000018")["process"] == "café"


def test_a_journal_entry_gives_arrival_and_kernel_time() -> None:
    fields = {"__REALTIME_TIMESTAMP": str(WALL_US), "_SOURCE_MONOTONIC_TIMESTAMP": str(BOOT_US)}
    record = one(journal(LOST, **fields))
    assert (record["wall_time_us"], record["kernel_time_us"]) == (WALL_US, BOOT_US)


@pytest.mark.parametrize(
    "message", [[*list(LOST.encode()), 255], [LOST, "other"], ["other", LOST], [None, list(LOST.encode())]]
)
def test_a_journal_message_may_be_bytes_or_repeated(message: Any) -> None:
    assert one(journal(message))["code"] == 79


@pytest.mark.parametrize("message", [None, [], [None], ""])
def test_a_journal_entry_without_text_is_skipped_and_counted(message: Any) -> None:
    tally = Tally()
    assert list(decode(io.BytesIO(journal(message).encode()), tally)) == []
    assert tally.skipped == 1


@pytest.mark.parametrize("transport", ["syslog", "stdout", "journal", "audit", None, ["kernel", "journal"]])
def test_only_the_kernel_counts_in_a_journal(transport: Any) -> None:
    assert read(journal(LOST, _TRANSPORT=transport)) == []


def test_a_journal_entry_of_another_facility_is_not_trusted() -> None:
    assert one(journal(LOST, SYSLOG_FACILITY="1"))["trusted"] is False


def test_a_cut_journal_entry_is_malformed_only_if_it_had_an_event_of_the_kernel() -> None:
    whole = journal(LOST)
    assert one(whole[:-10])["kind"] == "malformed"
    assert read(journal("usb 1-1: new device")[:-5], whole)[0]["kind"] == "xid"
    assert read('{"_TRANSPORT":"syslog","MESSAGE":"' + LOST, whole)[0]["kind"] == "xid"


def test_transports_may_be_mixed() -> None:
    rows = (LOST, journal(LOST), "[ 1.000000] " + LOST, "3,1,2,-;" + LOST, "Jan 25 10:34:54 host kernel: " + LOST)
    assert [record["code"] for record in read(*rows)] == [79] * 5


@pytest.mark.parametrize(
    "row",
    [
        "node-1 | ERROR: nhc: Health check failed: [ 3606.832215] " + LOST,
        "Jan 25 10:34:54 host nhc[123]: kernel: " + LOST,
        "Jan 25 10:34:54 host nhc: " + LOST,
        "<13>1 2025-01-25T10:34:54Z host nhc - - - " + LOST,
        "[   38.175561] nhc: kernel: " + LOST,
        "[   38.175561] audit: comm=x msg='" + LOST + "'",
        "ERROR kernel: " + LOST,
        "3,1,2,-;kernel says " + LOST,
        "nvidia: Xid (PCI:0000:3b:00.0): 79, text",
        "[   38.175561] Xid (PCI:0000:3b:00.0): 79, text",
        "NVRM: GPU at PCI:0000:9b:00: GPU-00000000-0000-0000-0000-000000000001",
        "NVRM: GPU Board Serial Number: ",
        "NVRM: GPU4 RPC history (CPU -> GSP):",
        "NVRM:     -1    103  GSP_RM_ALLOC          0x0000000000002080 0x0000000000000004 699us    ",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "nvidia-nvswitch3: using MSI",
        "[Feb 27 2025 15:10:02] [INFO] [tid 12727] Connected to 1 node.",
        "-- Boot 0123456789abcdef --",
        "",
    ],
)
def test_what_is_no_event_yields_nothing(row: str) -> None:
    assert read(row, "[   38.175561] usb 1-1: new device") == []


def test_an_empty_file_yields_nothing() -> None:
    assert read("") == []


@pytest.mark.parametrize(
    "row", ["#Entity   SMCLK", '{"entityId": 0}', "iteration 5/100 | lm loss: 1", "\x00\x01\x02\ufffd"]
)
def test_a_file_of_another_kind_is_refused(row: str) -> None:
    with pytest.raises(UnknownFormat):
        read(row, row)


@pytest.mark.parametrize("digits", ["99999999999999999999", "18446744073709551616", "9" * 30])
def test_a_time_beyond_64_bits_is_unknown_and_the_event_stays(digits: str) -> None:
    for row in (
        f"4,1,{digits},-;{LOST}",
        f"[{digits}.000000] {LOST}",
        journal(LOST, _SOURCE_MONOTONIC_TIMESTAMP=digits, __REALTIME_TIMESTAMP=int(digits)),
    ):
        record = one(row)
        assert (record["kind"], record["code"]) == ("xid", 79)
        assert record.get("kernel_time_us") is None
        assert record.get("wall_time_us") is None


def test_a_time_of_64_bits_and_its_neighbours_come_out_exactly() -> None:
    assert one(f"4,{2**64},{2**64 - 1},-;{LOST}")["kernel_time_us"] == 2**64 - 1
    assert one(journal(LOST, _SOURCE_MONOTONIC_TIMESTAMP=str(2**64 - 1)))["kernel_time_us"] == 2**64 - 1
