"""A lane of the spool: order, caps, syncs, and what damage and restarts cost."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from agents.spool import Spool, SpoolUnavailableError
from agents.spool_frames import MAX_BODY_BYTES
from agents.spool_lane import SpoolFullError, SpoolLane
from agents.spool_policy import LanePolicy, SpoolSettings
from agents.spool_position import read_position, write_position
from schemas.codec import Message

if TYPE_CHECKING:
    from pathlib import Path

FIRM = LanePolicy(cap_bytes=1 << 20, segment_bytes=1000, drops_oldest=False, syncs_first=True)
LOOSE = LanePolicy(cap_bytes=4000, segment_bytes=1000, drops_oldest=True, syncs_first=False)


def message(number: int, size: int = 100) -> Message:
    return Message("topic", b"key", f"{number}:".encode().ljust(size, b"."), (("schema", b"x"), ("other", b"")))


def filled(path: Path, count: int, policy: LanePolicy = FIRM) -> SpoolLane:
    lane = SpoolLane(path, policy)
    for number in range(count):
        lane.append(message(number), 1000 + number)
    lane.sync()
    return lane


def read(lane: SpoolLane) -> list[int]:
    found = []
    while (entry := lane.next()) is not None:
        found.append(int(entry.message.value.split(b":")[0]))
    return found


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    lane = SpoolLane(tmp_path, FIRM)
    wire = Message("täpic", b"\x00\xff", b"\xf5PL\xff" * 3, (("a", b"1"), ("a", b"\xf5PL\xff"), ("", b"")))
    number = lane.append(wire, 1_700_000_000_123_456_789)
    lane.sync()
    entry = lane.next()
    assert entry is not None
    assert (entry.number, entry.arrival_ns, entry.message) == (number, 1_700_000_000_123_456_789, wire)
    assert lane.next() is None


def test_what_is_not_settled_comes_again_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    lane = filled(tmp_path, 30)
    assert read(lane) == list(range(30))
    for number in (1, 2, 3, 10, 30):
        lane.settle(number)
    assert lane.pending == 25
    lane.close()
    again = SpoolLane(tmp_path, FIRM)
    # What is settled behind the first that is not is only known to the process that settled it.
    assert read(again) == list(range(3, 30))
    assert again.append(message(30), 0) == 31


def test_rewinding_gives_out_in_order_what_is_not_settled(tmp_path: Path) -> None:
    lane = filled(tmp_path, 20)
    read(lane)
    for number in (1, 5, 12):
        lane.settle(number)
    lane.append(message(20), 0)
    lane.rewind()
    lane.sync()
    assert read(lane) == [n for n in range(21) if n + 1 not in {1, 5, 12}]


def test_a_settled_segment_leaves_the_disk(tmp_path: Path) -> None:
    lane = filled(tmp_path, 30)
    assert len(segments(tmp_path)) > 3
    for number in range(1, 31):
        lane.settle(number)
    assert len(segments(tmp_path)) == 1
    lane.close()
    assert SpoolLane(tmp_path, FIRM).pending == 0
    assert segments(tmp_path) == []


def test_numbers_go_on_where_all_was_settled(tmp_path: Path) -> None:
    lane = filled(tmp_path, 5)
    for number in range(1, 6):
        lane.settle(number)
    lane.close()
    again = SpoolLane(tmp_path, FIRM)
    assert again.append(message(5), 0) == 6
    again.sync()
    assert read(again) == [5]


def test_a_firm_lane_gives_out_nothing_that_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SpoolLane(tmp_path, FIRM)
    lane.append(message(0), 0)
    assert lane.next() is None
    order: list[str] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (sync(file), order.append("synced"))[0])
    lane.sync()
    assert order == ["synced"]
    assert read(lane) == [0]


def test_threads_that_wait_for_the_disk_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SpoolLane(tmp_path, LanePolicy(1 << 20, 1 << 20, False, True))
    syncs: list[int] = []

    def slow(file: int) -> None:
        time.sleep(0.02)
        syncs.append(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    start = threading.Barrier(20)

    def work() -> None:
        start.wait()
        for number in range(5):
            lane.append(message(number), 0)
            lane.sync()

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(lane)) == 100
    assert len(syncs) <= 20


def test_a_sync_covers_segments_that_were_ended_since_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SpoolLane(tmp_path, FIRM)
    for number in range(20):
        lane.append(message(number), 0)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_ino))
    lane.sync()
    assert set(synced) == {path.stat().st_ino for path in segments(tmp_path)}
    lane.sync()
    assert len(synced) == len(segments(tmp_path))


def test_a_full_loose_lane_gives_up_its_oldest_and_counts_them(tmp_path: Path) -> None:
    lane = SpoolLane(tmp_path, LOOSE)
    for number in range(100):
        lane.append(message(number), 0)
        assert lane.size_bytes <= LOOSE.cap_bytes
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= LOOSE.cap_bytes
    left = read(lane)
    assert left == list(range(100 - len(left), 100))
    assert lane.dropped_records == 100 - len(left) > 50
    assert lane.pending == len(left)


def test_what_is_on_its_way_is_not_counted_as_given_up_with_its_segment(tmp_path: Path) -> None:
    lane = SpoolLane(tmp_path, LOOSE)
    for number in range(6):
        lane.append(message(number), 0)
    assert [lane.next() is not None for _ in range(3)] == [True] * 3
    for number in range(6, 40):
        lane.append(message(number), 0)
    assert not lane.holds(1)
    assert lane.dropped_records + 3 + len(read(lane)) == 40


def test_a_full_firm_lane_takes_no_more_and_loses_nothing(tmp_path: Path) -> None:
    lane = SpoolLane(tmp_path, LanePolicy(4000, 1000, False, True))
    taken = 0
    while lane.size_bytes + 200 < 4000:
        lane.append(message(taken), 0)
        taken += 1
    for _ in range(2):
        with pytest.raises(SpoolFullError, match="cap of 4000"):
            lane.append(message(taken, 400), 0)
    lane.sync()
    assert read(lane) == list(range(taken))
    assert lane.dropped_records == 0
    for number in range(1, taken + 1):
        lane.settle(number)
    lane.append(message(100), 0)
    lane.sync()
    assert read(lane) == [100]


def test_an_entry_larger_than_the_lane_costs_no_other(tmp_path: Path) -> None:
    lane = filled(tmp_path, 3, LOOSE)
    with pytest.raises(SpoolFullError, match="larger than the lane"):
        lane.append(message(3, 5000), 0)
    assert read(lane) == [0, 1, 2]


def test_an_entry_larger_than_any_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above the limit"):
        SpoolLane(tmp_path, FIRM).append(message(0, MAX_BODY_BYTES), 0)


def test_a_torn_end_costs_its_entry_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 5).close()
    last = segments(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        lane = SpoolLane(tmp_path, FIRM)
    assert lane.corrupt_segments == 1
    assert str(last) in caplog.text
    assert read(lane) == [0, 1, 2, 3]
    lane.append(message(5), 0)
    lane.sync()
    assert read(lane) == [5]
    assert lane.corrupt_segments == 1


def test_a_torn_end_of_what_was_delivered_is_told_too(tmp_path: Path) -> None:
    lane = filled(tmp_path, 5)
    for number in range(1, 6):
        lane.settle(number)
    lane.close()
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(b"\xf5PL")
    assert SpoolLane(tmp_path, FIRM).corrupt_segments == 1
    assert segments(tmp_path) == []


def test_damage_in_the_middle_costs_the_entries_that_it_touches(tmp_path: Path) -> None:
    filled(tmp_path, 30).close()
    damaged = segments(tmp_path)[1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0x10
    damaged.write_bytes(data)
    lane = SpoolLane(tmp_path, FIRM)
    found = read(lane)
    assert len(found) == 29
    assert found == sorted(found)
    assert (lane.corrupt_segments, lane.corrupt_records) == (1, 1)
    assert lane.pending == 29
    lane.rewind()
    assert read(lane) == found
    assert (lane.corrupt_segments, lane.corrupt_records) == (1, 1)


def test_a_segment_that_is_gone_costs_its_entries(tmp_path: Path) -> None:
    lane = filled(tmp_path, 30)
    gone = segments(tmp_path)[1]
    gone.unlink()
    found = read(lane)
    assert lane.corrupt_records == 30 - len(found) > 0
    assert lane.corrupt_segments == 1
    lane.close()
    assert read(SpoolLane(tmp_path, FIRM)) == found


def test_a_segment_of_zeros_is_removed_and_told(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    (tmp_path / f"{4:020d}.seg").write_bytes(bytes(4096))
    lane = SpoolLane(tmp_path, FIRM)
    assert lane.corrupt_segments == 1
    assert lane.append(message(3), 0) == 4
    lane.sync()
    assert read(lane) == [0, 1, 2, 3]


def test_an_entry_of_another_lane_or_segment_is_damage(tmp_path: Path) -> None:
    filled(tmp_path / "one", 3).close()
    filled(tmp_path / "other", 3).close()
    name = segments(tmp_path / "one")[0].name
    (tmp_path / "one" / name).replace(tmp_path / "other" / name)
    lane = SpoolLane(tmp_path / "other", FIRM)
    assert read(lane) == []
    assert lane.corrupt_segments == 1


@pytest.mark.parametrize("text", ["", "7", "7 0", "-1 2", "x y", "7 \xff", "9" * 30 + " 00000000"])
def test_a_position_that_does_not_check_sends_again(tmp_path: Path, text: str) -> None:
    lane = filled(tmp_path, 5)
    lane.settle(1)
    lane.close()
    assert read_position(tmp_path / "settled") == 1
    (tmp_path / "settled").write_text(text, "latin-1")
    assert read_position(tmp_path / "settled") is None
    assert read(SpoolLane(tmp_path, FIRM)) == [0, 1, 2, 3, 4]


def test_a_position_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settled"
    write_position(path, 5)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_position(path, 6)
    assert read_position(path) == 5


def test_a_write_that_failed_half_way_leaves_nothing_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = filled(tmp_path, 2)
    write, calls = os.write, iter((10, None))

    def short(file: int, data: memoryview) -> int:
        size = next(calls)
        if size is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:size])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            lane.append(message(2), 0)
    assert lane.append(message(3), 0) == 3
    lane.sync()
    assert read(lane) == [0, 1, 3]
    lane.close()
    again = SpoolLane(tmp_path, FIRM)
    assert read(again) == [0, 1, 3]
    assert again.corrupt_segments == 0


def test_a_first_write_that_failed_leaves_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SpoolLane(tmp_path, FIRM)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            lane.append(message(0), 0)
    assert segments(tmp_path) == []
    lane.append(message(0), 0)
    lane.sync()
    assert read(lane) == [0]


def test_reading_that_fails_for_a_while_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = filled(tmp_path, 5)
    with monkeypatch.context() as patched:

        def full(*_: Any, **__: Any) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        patched.setattr("pathlib.Path.open", full)
        assert lane.next() is None
    assert read(lane) == [0, 1, 2, 3, 4]
    assert lane.corrupt_segments == 0


def test_the_age_of_the_oldest_is_that_of_what_is_not_settled(tmp_path: Path) -> None:
    lane = filled(tmp_path, 5)
    assert lane.oldest_arrival_ns() == 1000
    read(lane)
    lane.settle(1)
    lane.settle(3)
    assert lane.oldest_arrival_ns() == 1001
    for number in range(1, 6):
        lane.settle(number)
    assert lane.oldest_arrival_ns() is None


def test_a_spool_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    settings = SpoolSettings(tmp_path / "spool")
    first = Spool(settings)
    with pytest.raises(SpoolUnavailableError, match="in use by another process"):
        Spool(settings)
    first.close()
    Spool(settings).close()


def test_a_spool_that_cannot_be_used_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(SpoolUnavailableError, match=r"missing/spool: No such file or directory; give a directory"):
        Spool(SpoolSettings(tmp_path / "missing" / "spool"))
    (tmp_path / "file").touch()
    with pytest.raises(SpoolUnavailableError, match=r"file"):
        Spool(SpoolSettings(tmp_path / "file"))
