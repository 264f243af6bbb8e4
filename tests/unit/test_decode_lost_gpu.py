"""GPUs that the driver reports lost without a code, and the reader that takes a log line by line."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode.kernel_log import NEAR_LINES, KernelLogReader, decode
from agents.decode.record import Record, Tally

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
FALLEN = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."
PROBE = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def read(*rows: str) -> list[Record]:
    return list(decode(io.BytesIO("\n".join(rows).encode()), Tally()))


def one(row: str) -> Record:
    [record] = read(row)
    return record


def inferred(records: list[Record]) -> list[bool]:
    return [record.get("inferred", False) for record in records]


def test_three_lines_are_one_lost_gpu_at_the_place_of_the_first() -> None:
    [lost, other] = read(
        f"[ 1.000001] {PROBE[0]}",
        "[ 1.000002] NVRM: Xid (PCI:0000:3c:00): 31, Ch 00000001",
        " " * 13 + PROBE[1],
        " " * 13 + PROBE[2],
    )
    assert (lost["code"], lost["inferred"], lost["pci_bus_id"]) == (79, True, "0000:3b:00")
    assert (lost["kernel_time_us"], lost["severity"], lost["pid"], lost["process"]) == (1_000_001, "fatal", None, None)
    assert other["code"] == 31


@pytest.mark.parametrize(
    "row",
    [
        "3,1,2,-;" + "\\x0a".join(PROBE),
        "Jan 25 10:34:54 host kernel: " + "#012".join(PROBE),
        json.dumps({"_TRANSPORT": "kernel", "MESSAGE": "\n".join(PROBE)}),
        "[ 1.000001] " + " ".join([PROBE[0], *(part.removeprefix("NVRM: ") for part in PROBE[1:])]),
    ],
)
def test_the_three_lines_may_come_as_one(row: str) -> None:
    record = one(row)
    assert (record["code"], record["pci_bus_id"], record["inferred"]) == (79, "0000:3b:00", True)


def test_messages_of_two_gpus_may_alternate() -> None:
    second = PROBE[0].replace("3b", "3c")
    records = read(PROBE[0], second, PROBE[1], PROBE[1], PROBE[2], PROBE[2])
    assert [record["pci_bus_id"] for record in records] == ["0000:3b:00", "0000:3c:00"]


def test_a_message_that_says_something_else_is_no_lost_gpu() -> None:
    assert read(PROBE[0], PROBE[1].replace("has", "is not supported"), LOST.replace("79", "31"))[0]["code"] == 31
    assert read(PROBE[0]) == []
    assert read(PROBE[2], *["[ 1.000000] x"] * 3) == []


@pytest.mark.parametrize("rows", [(LOST, *PROBE), (*PROBE, LOST), (PROBE[0], LOST, PROBE[1], PROBE[2])])
def test_the_true_79_close_by_is_not_doubled(rows: tuple[str, ...]) -> None:
    assert inferred(read(*rows)) == [False]


def test_the_true_79_of_another_gpu_or_time_is_another_loss() -> None:
    assert inferred(read(LOST.replace("3b", "3c"), *PROBE)) == [False, True]
    early, late = "[ 1.000000] ", "[ 3600.000000] "
    assert inferred(read(early + LOST, *(late + row for row in PROBE))) == [False, True]
    assert inferred(read(*(early + row for row in PROBE), late + LOST)) == [True, False]


def test_the_accompanying_line_yields_nothing_after_a_79() -> None:
    assert inferred(read("[ 1.000000] " + LOST, "[ 9000.000000] " + FALLEN)) == [False]
    assert inferred(read(FALLEN, LOST)) == [False]
    assert inferred(read(*PROBE, FALLEN)) == [True]


def test_the_accompanying_line_alone_is_a_lost_gpu() -> None:
    [record] = read("[ 2.000000] " + FALLEN)
    assert (record["code"], record["inferred"], record["kernel_time_us"]) == (79, True, 2_000_000)
    assert inferred(read(LOST.replace("3b", "3c"), FALLEN)) == [False, True]


@pytest.mark.parametrize("row", ["[ 0.000000] Linux version 6.8.0", "[ 9.000000] NVRM: loading NVIDIA UNIX"])
def test_after_a_new_start_the_line_counts_again(row: str) -> None:
    assert inferred(read(LOST, row, FALLEN)) == [False, True]


def test_a_loss_before_the_boot_is_not_close_whatever_the_clock_says() -> None:
    rows = ("[ 5.000000] " + LOST, "[ 0.000000] Linux version 6.8.0", *("[ 6.000000] " + row for row in PROBE))
    assert inferred(read(*rows)) == [False, True]


def test_nobody_but_the_kernel_can_take_a_lost_gpu_away() -> None:
    assert inferred(read("12,1,5,-;" + LOST, "3,2,6,-;" + FALLEN)) == [False, True]
    assert [record.get("trusted") for record in read("12,1,5,-;" + FALLEN)] == [False]


def test_two_losses_reported_at_probe_are_two() -> None:
    assert inferred(read(*PROBE, *PROBE)) == [True, True]


def test_a_plain_event_comes_out_at_once() -> None:
    reader = KernelLogReader()
    assert [record["code"] for record in reader.feed(1, LOST)] == [79]
    assert list(reader.finish()) == []


def test_a_loss_without_code_waits_until_its_79_can_no_longer_come() -> None:
    reader = KernelLogReader()
    assert list(reader.feed(1, "[ 1.000000] " + FALLEN)) == []
    assert list(reader.feed(2, "[ 1.500000] " + LOST.replace("79", "31"))) == []
    assert [record["code"] for record in reader.feed(3, "[ 60.000000] usb 1-1: new device")] == [79, 31]


def test_no_record_waits_longer_than_the_limit() -> None:
    reader = KernelLogReader()
    out = list(reader.feed(1, FALLEN))
    for number in range(2, NEAR_LINES + 3):
        out += reader.feed(number, "[ 1.000000] usb 1-1: new device")
    assert inferred(out) == [True]


def test_a_pause_lets_go_what_waits_and_forgets_nothing() -> None:
    reader = KernelLogReader()
    list(reader.feed(1, FALLEN))
    assert inferred(list(reader.finish())) == [True]
    assert list(reader.feed(2, FALLEN)) == []
    assert list(reader.finish()) == []


@given(st.lists(st.sampled_from([LOST, FALLEN, *PROBE, LOST.replace("79", "31"), "[ 1.000000] x"]), max_size=30))
def test_line_by_line_gives_what_the_file_gives(rows: list[str]) -> None:
    reader = KernelLogReader()
    out: list[Record] = []
    for number, row in enumerate(rows, 1):
        out += reader.feed(number, row)
    out += reader.finish()
    assert out == read(*rows)
    true = [record for record in out if "inferred" not in record]
    assert len(true) == sum(row.startswith("NVRM: Xid") for row in rows)
