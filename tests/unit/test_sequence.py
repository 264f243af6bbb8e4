"""Order of delivery: repeats dropped, reorderings undone, losses passed over, late records told from repeats."""

from __future__ import annotations

from streams.core.sequence import OrderedSources, SeenNumbers

S = 1_000_000_000


def offered(*records: tuple[int, float], sources: OrderedSources[int] | None = None) -> list[list[int]]:
    """What is released at each (number, seconds) of one source; items are their numbers."""
    ordered = sources if sources is not None else OrderedSources[int]()
    return [ordered.offer("a", seq, round(seconds * S), seq) for seq, seconds in records]


def test_a_record_in_order_is_passed_on_at_once() -> None:
    assert offered((0, 0), (1, 1), (2, 2)) == [[0], [1], [2]]


def test_a_small_reordering_is_undone() -> None:
    assert offered((0, 0), (2, 2), (3, 3), (1, 1)) == [[0], [], [], [1, 2, 3]]


def test_a_lost_number_is_passed_over_when_the_source_has_moved_on() -> None:
    sources = OrderedSources[int](patience_ns=5 * S)
    assert offered((0, 0), (2, 2), (3, 3), (4, 6.9), (5, 7), sources=sources) == [[0], [], [], [], [2, 3, 4, 5]]


def test_patience_covers_the_lateness_of_the_fabric_of_topics() -> None:
    """A record may come 10 s after a later one of its own source and is still in its place."""
    assert offered((0, 0), (2, 2), (3, 3), (11, 11.9), (1, 1))[-1] == [1, 2, 3]


def test_what_comes_for_a_passed_over_number_is_late_and_for_a_taken_one_a_repeat() -> None:
    sources = OrderedSources[int](patience_ns=5 * S)
    offered((0, 0), (2, 2), (3, 7), sources=sources)
    assert offered((1, 1), (2, 2), (0, 0), sources=sources) == [[], [], []]
    assert (sources.late, sources.repeats) == ([1], 2)
    assert offered((1, 1), sources=sources) == [[]]
    assert (sources.late, sources.repeats) == ([1], 3)


def test_a_repeat_of_a_waiting_record_is_a_repeat() -> None:
    sources = OrderedSources[int]()
    assert offered((0, 0), (2, 2), (2, 2), (1, 1), sources=sources) == [[0], [], [], [1, 2]]
    assert sources.repeats == 1


def test_a_reader_that_starts_in_the_middle_takes_up_where_the_source_is() -> None:
    sources = OrderedSources[int](patience_ns=5 * S, remembered=3)
    assert offered((90, 0), (91, 1), (92, 5), (93, 6), sources=sources) == [[], [], [90, 91, 92], [93]]
    assert offered((89, 0), (80, 0), sources=sources) == [[], []]
    assert (sources.late, sources.repeats) == ([89], 1)


def test_sources_do_not_wait_for_each_other() -> None:
    sources = OrderedSources[str]()
    assert sources.offer("a", 1, S, "a1") == []
    assert sources.offer("b", 0, S, "b0") == ["b0"]


def test_at_the_end_of_the_input_all_that_waits_comes_out_in_order() -> None:
    sources = OrderedSources[str]()
    for source, seq in (("b", 3), ("a", 2), ("a", 1)):
        sources.offer(source, seq, S, f"{source}{seq}")
    assert sources.flush() == ["a1", "a2", "b3"]
    assert sources.flush() == []
    assert sources.offer("a", 2, S, "a2") == []
    assert sources.repeats == 1


def test_a_silent_source_is_forgotten_unless_something_of_it_waits() -> None:
    sources = OrderedSources[str]()
    sources.offer("gone", 0, 0, "x")
    sources.offer("held", 1, 0, "y")
    sources.forget(older_than_ns=S)
    assert set(sources.snapshot()) == {"held"}


def test_numbers_with_gaps_are_new_once() -> None:
    seen = SeenNumbers()
    assert [seen.is_new("boot-1", number) for number in (7, 90, 8, 7, 90)] == [True, True, True, False, False]
    assert seen.is_new("boot-2", 7)
    assert seen.repeats == 2


def test_the_memory_of_numbers_is_bounded_and_what_is_older_counts_as_seen() -> None:
    seen = SeenNumbers(capacity=10)
    assert all(seen.is_new("a", number) for number in range(100))
    ((floor, numbers),) = seen.snapshot().values()
    assert len(numbers) <= 20
    assert floor >= 80
    assert not seen.is_new("a", 3)
    assert not seen.is_new("a", 99)
    assert seen.is_new("a", 100)
