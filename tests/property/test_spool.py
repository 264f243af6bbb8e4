"""Laws of the spool: damage costs what it touches and invents nothing; any course of events keeps the order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.spool_frames import Damage, Entry, frame, packed, scan
from agents.spool_lane import SpoolFullError, SpoolLane
from agents.spool_policy import LanePolicy
from schemas.codec import Message

if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = b"\xf5PL\xff"
# Values that hold markers and frames of other seeds are the hard ones.
values = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([MARKER, b"\x00\x00\x00\x02", b"x", frame(b"ab", 7)]), max_size=4).map(b"".join),
)
messages = st.builds(
    Message,
    st.text(max_size=5).filter(str.isprintable),
    values,
    values,
    st.lists(st.tuples(st.sampled_from(["schema", "", "é"]), values), max_size=2).map(tuple),
)
written = st.lists(messages, min_size=1, max_size=8).map(
    lambda found: [Entry(1 + index, 10 * index - 5, message) for index, message in enumerate(found)]
)
seeds = st.integers(0, 2**32 - 1)


def framed(entries: list[Entry], seed: int) -> list[bytes]:
    return [frame(packed(entry), seed) for entry in entries]


def entries_of(data: bytes, seed: int) -> list[Entry]:
    return [item for item in scan(data, seed) if isinstance(item, Entry)]


def is_subsequence(found: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in found)


@given(written, seeds)
def test_what_was_written_is_read(entries: list[Entry], seed: int) -> None:
    assert list(scan(b"".join(framed(entries, seed)), seed)) == entries


@given(written, seeds, st.data())
def test_a_file_that_was_cut_off_gives_exactly_what_is_whole(
    entries: list[Entry], seed: int, data: st.DataObject
) -> None:
    frames = framed(entries, seed)
    whole = b"".join(frames)
    size = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, frames[: index + 1])) for index in range(len(frames))]
    kept = sum(end <= size for end in ends)
    found = list(scan(whole[:size], seed))
    assert [item for item in found if isinstance(item, Entry)] == entries[:kept]
    is_torn = size not in {0, *ends}
    assert [item for item in found if isinstance(item, Damage)] == (
        [Damage(ends[kept - 1] if kept else 0, size)] if is_torn else []
    )


@given(written, seeds, st.data())
def test_a_flipped_bit_costs_at_most_the_entry_that_it_is_in(
    entries: list[Entry], seed: int, data: st.DataObject
) -> None:
    frames = framed(entries, seed)
    whole = bytearray(b"".join(frames))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    touched = next(i for i in range(len(frames)) if sum(map(len, frames[: i + 1])) > bit // 8)
    found = list(scan(bytes(whole), seed))
    assert [item for item in found if isinstance(item, Entry)] == entries[:touched] + entries[touched + 1 :]
    assert any(isinstance(item, Damage) for item in found)


def _cut_out(data: bytes, at: int, size: int, filler: bytes) -> bytes:
    return data[:at] + data[at + size :]


def _overwrite(data: bytes, at: int, size: int, filler: bytes) -> bytes:
    return data[:at] + filler[:size].ljust(min(size, len(data) - at), b"\0") + data[at + size :]


def _insert(data: bytes, at: int, size: int, filler: bytes) -> bytes:
    return data[:at] + filler + data[at:]


def _repeat(data: bytes, at: int, size: int, filler: bytes) -> bytes:
    return data[: at + size] + data[at:]


@settings(max_examples=300)
@given(written, seeds, st.data())
def test_no_damage_invents_an_entry(entries: list[Entry], seed: int, data: st.DataObject) -> None:
    whole = b"".join(framed(entries, seed))
    for _ in range(data.draw(st.integers(1, 3))):
        harm: Callable[[bytes, int, int, bytes], bytes] = data.draw(
            st.sampled_from([_cut_out, _overwrite, _insert, _repeat])
        )
        at, size = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 60))
        whole = harm(whole, at, size, data.draw(values))
    assert all(entry in entries for entry in entries_of(whole, seed))


@given(written, seeds, seeds)
def test_a_frame_counts_only_in_its_own_segment(entries: list[Entry], seed: int, other: int) -> None:
    found = entries_of(b"".join(framed(entries, seed)), other)
    assert found == (entries if seed == other else [])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 25), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=4), st.booleans())
def test_a_damaged_lane_gives_a_part_in_order_and_counts_the_rest(
    count: int, flips: list[tuple[int, int]], is_cut: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "lane")
        policy = LanePolicy(1 << 20, 300, False, False)
        lane = SpoolLane(path, policy)
        for number in range(count):
            lane.append(Message("t", b"k", str(number).encode(), ()), number)
        lane.close()
        segments = sorted(path.glob("*.seg"))
        for place, bit in flips:
            segment = segments[place % len(segments)]
            data = bytearray(segment.read_bytes())
            data[place % len(data)] ^= 1 << bit
            segment.write_bytes(data)
        if is_cut:
            segments[-1].write_bytes(segments[-1].read_bytes()[:-1])
        again = SpoolLane(path, policy)
        found = []
        while (entry := again.next()) is not None:
            found.append(int(entry.message.value))
        assert is_subsequence(found, list(range(count)))
        assert len(found) >= count - len(flips) - is_cut
        assert again.pending == len(found)
        # What is lost at the very end has no number any more; all else is counted.
        lost_before_end = (found[-1] + 1 if found else 0) - len(found)
        assert lost_before_end <= again.corrupt_records <= count - len(found)
        if len(found) < count:
            assert again.corrupt_segments > 0


class LaneCourse(RuleBasedStateMachine):
    """A lane against a plain list: what is taken, given out, settled, dropped and left after restarts."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name, "lane")

    @initialize(drops=st.booleans())
    def begin(self, drops: bool) -> None:
        self.policy = LanePolicy(1500, 300, drops, not drops)
        self.lane = SpoolLane(self._path, self.policy)
        self.taken: list[int] = []
        self.value_of: dict[int, int] = {}
        self.unsettled: list[int] = []
        self.position = 0
        self.next_value = 0
        self.dropped = 0

    def _forget_dropped(self) -> None:
        """The lane may have given up its oldest to make room."""
        floor = self.lane.floor
        unread_from = self.position
        gone = [value for value in self.taken if self.number_of(value) <= floor and value in self.unsettled]
        self.dropped += sum(self.taken.index(value) >= unread_from for value in gone)
        self.unsettled = [value for value in self.unsettled if value not in gone]
        while self.position < len(self.taken) and self.number_of(self.taken[self.position]) <= floor:
            self.position += 1

    def number_of(self, value: int) -> int:
        return self.value_of[value]

    @rule(size=st.integers(0, 120))
    def append(self, size: int) -> None:
        value, self.next_value = self.next_value, self.next_value + 1
        try:
            number = self.lane.append(Message("t", b"k", f"{value}:".encode() + b"." * size, ()), value)
        except SpoolFullError:
            assert not self.policy.drops_oldest
            return
        self.value_of[value] = number
        self.taken.append(value)
        self.unsettled.append(value)
        self._forget_dropped()

    @rule()
    def sync(self) -> None:
        self.lane.sync()

    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        self.lane.sync()
        for _ in range(count):
            while self.position < len(self.taken) and self.taken[self.position] not in self.unsettled:
                self.position += 1
            entry = self.lane.next()
            if self.position == len(self.taken):
                assert entry is None
                return
            assert entry is not None
            value = int(entry.message.value.split(b":")[0])
            assert (value, entry.arrival_ns) == (self.taken[self.position],) * 2
            assert entry.number == self.value_of[value]
            self.position += 1

    @precondition(lambda self: self.position > 0)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        value = self.taken[data.draw(st.integers(0, self.position - 1))]
        self.lane.settle(self.value_of[value])
        if value in self.unsettled:
            self.unsettled.remove(value)

    @rule()
    def rewind(self) -> None:
        self.lane.rewind()
        self.position = 0

    @rule(is_kill=st.booleans(), is_saved=st.booleans())
    def reopen(self, is_kill: bool, is_saved: bool) -> None:
        dropped = self.lane.dropped_records
        assert dropped == self.dropped
        if not is_kill:
            self.lane.close()
        elif is_saved:
            self.lane.save_position()
        floor = self.lane.floor
        self.lane = SpoolLane(self._path, self.policy)
        assert self.lane.floor <= floor
        # What was settled and not written down comes again: it is on the disk, in its place.
        self.taken = [value for value in self.taken if self.value_of[value] > self.lane.floor]
        self.unsettled = list(self.taken)
        self.position = self.dropped = 0

    @invariant()
    def it_counts_and_keeps_its_cap(self) -> None:
        if not hasattr(self, "lane"):
            return
        assert self.lane.pending == len(self.unsettled)
        size = sum(path.stat().st_size for path in self._path.glob("*.seg"))
        assert size == self.lane.size_bytes <= self.policy.cap_bytes
        assert (self.lane.corrupt_segments, self.lane.corrupt_records) == (0, 0)

    def teardown(self) -> None:
        self._directory.cleanup()


TestLaneCourse = LaneCourse.TestCase
TestLaneCourse.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
