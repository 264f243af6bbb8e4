"""State by subject: rows by position, and frames that change nothing."""

from __future__ import annotations

from streams.core.counters import CounterIncrease
from streams.core.keyed import KeyedRows, Rows, SubjectState

S = 1_000_000_000


class _Count(SubjectState):
    __slots__ = ("increase", "total")

    def __init__(self) -> None:
        self.increase = CounterIncrease()
        self.total = 0

    def is_quiet(self, now_ns: int) -> bool:
        return self.total < 100


def rows_of(states: KeyedRows[_Count], *names: str, publisher: str = "p") -> Rows[_Count]:
    return states.of(publisher, names, lambda: [f"{publisher}/{name}" for name in names])


def read(states: KeyedRows[_Count], seconds: float, column: tuple[int | None, ...], session: str = "s") -> bool:
    """Give one frame to a rule that adds up; whether it was passed over."""
    rows = rows_of(states, *(f"row-{index}" for index in range(len(column))))
    if rows.stand_still(session, round(seconds * S), (column,)):
        return True
    for index, value in enumerate(column):
        if value is not None:
            step = rows[index].increase.read_in(rows.reading, value)
            rows[index].total += step[0] if step is not None else 0
    rows.rest()
    return False


def test_states_are_made_on_first_use_and_stand_under_their_keys() -> None:
    states = KeyedRows(_Count)
    rows = rows_of(states, "a", "b")
    assert rows.get(1) is None
    rows[1].total = 7
    assert rows.get(1) is rows[1]
    assert states.snapshot() == {"p/b": [[None, None, 0], 7]}


def test_rows_that_change_places_keep_their_states() -> None:
    states = KeyedRows(_Count)
    rows_of(states, "a", "b")[1].total = 7
    assert rows_of(states, "b", "c")[0].total == 7
    assert rows_of(states, "a", "b", publisher="q")[1].total == 0


def test_rows_of_one_name_share_one_state() -> None:
    rows = rows_of(KeyedRows(_Count), "a", "a")
    rows[0].total = 7
    assert rows.get(1) is rows[0]
    assert rows[1] is rows[0]


def test_the_third_frame_that_says_the_same_is_passed_over() -> None:
    states = KeyedRows(_Count)
    assert [read(states, at, (5, None)) for at in range(4)] == [False, False, True, True]
    assert not read(states, 4, (6, None))
    assert not read(states, 5, (6, None))
    assert read(states, 6, (6, None))


def test_a_frame_passed_over_counts_as_read() -> None:
    states = KeyedRows(_Count)
    for at in range(90):
        read(states, at, (5, 5, None))
    read(states, 90, (5, 45, None))
    assert states.snapshot() == {"p/row-0": [["s", 5, 90 * S], 0], "p/row-1": [["s", 45, 90 * S], 40]}


def test_a_counter_that_a_frame_left_out_is_not_read_by_those_that_are_passed_over() -> None:
    states = KeyedRows(_Count)
    read(states, 0, (5, 5))
    assert [read(states, at, (5, None)) for at in (1, 2, 3, 4)] == [False, False, True, True]
    assert states.snapshot()["p/row-1"] == [["s", 5, 0], 0]


def test_a_new_session_is_a_baseline_also_where_its_frames_were_passed_over() -> None:
    states = KeyedRows(_Count)
    for at in range(3):
        read(states, at, (5,), "old")
    assert read(states, 3, (5,), "new")
    read(states, 4, (6,), "new")
    assert states.snapshot() == {"p/row-0": [["new", 6, 4 * S], 1]}


def test_baselines_and_frames_of_one_time_are_no_proof_of_rest() -> None:
    states = KeyedRows(_Count)
    assert [read(states, at, (5,)) for at in (0, 0, 100, 200, 201, 202)] == [False] * 5 + [True]
    assert [read(states, 203 + at, (6,), f"s{at}") for at in range(4)] == [False] * 4


def test_a_state_that_is_not_quiet_and_rows_of_one_name_are_never_passed_over() -> None:
    states = KeyedRows(_Count)
    read(states, 0, (0,))
    assert [read(states, 1 + at, (100,)) for at in range(9)] == [False] * 9
    twins = rows_of(KeyedRows(_Count), "a", "a")
    for at in range(9):
        assert not twins.stand_still("s", at * S, ())
        twins.rest()


def test_what_a_rule_requires_besides_holds_it_back() -> None:
    rows = rows_of(KeyedRows(_Count), "a")
    for at in range(5):
        assert not rows.stand_still("s", at * S, ())
        rows.rest(if_also=False)
    assert not rows.stand_still("s", 5 * S, ())
    rows.rest(if_also=True)
    assert rows.stand_still("s", 6 * S, ())


def test_a_restored_state_is_read_in_full_at_first() -> None:
    states, restored = KeyedRows(_Count), KeyedRows(_Count)
    for at in range(5):
        read(states, at, (5,))
    restored.restore(states.snapshot())
    assert [read(restored, at, (5,)) for at in (5, 6, 7)] == [False, False, True]
    for at in (5, 6, 7):
        read(states, at, (5,))
    assert restored.snapshot() == states.snapshot()
