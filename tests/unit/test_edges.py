"""Edges: a statement opens when it becomes true and is cleared when it has been false for long enough."""

from __future__ import annotations

from streams.core.edges import EdgeState

S = 1_000_000_000


def test_a_statement_opens_once_and_is_cleared_after_a_quiet_minute() -> None:
    state = EdgeState()
    seen = [(second, state.update(second * S, holds=second in {1, 2, 30})) for second in range(91)]
    assert [entry for entry in seen if entry[1] is not None] == [(1, "open"), (90, "cleared")]
    assert state.close() == 1 * S
    assert not state.is_open


def test_the_onset_may_be_earlier_than_the_edge() -> None:
    state = EdgeState()
    assert state.update(10 * S, holds=True, onset_ns=7 * S) == "open"
    assert state.onset_ns == 7 * S


def test_the_quiet_span_can_be_shorter() -> None:
    state = EdgeState()
    state.update(0, holds=True)
    assert state.update(9 * S, holds=False, quiet_ns=10 * S) is None
    assert state.update(10 * S, holds=False, quiet_ns=10 * S) == "cleared"


def test_a_closed_statement_opens_again() -> None:
    state = EdgeState()
    state.update(0, holds=True)
    assert state.update(60 * S, holds=False) == "cleared"
    state.close()
    assert state.update(61 * S, holds=False) is None
    assert state.update(62 * S, holds=True) == "open"


def test_a_state_is_quiet_when_nothing_stands_and_nothing_held() -> None:
    state = EdgeState()
    assert state.is_quiet(5 * S)
    state.update(5 * S, holds=True)
    assert not state.is_quiet(5 * S)
    state.update(65 * S, holds=False)
    state.close()
    assert state.is_quiet(65 * S)
    state = EdgeState()
    state.update(0, holds=True)
    state.close()
    state.update(1 * S, holds=True)  # too soon to open again, but it is due
    assert not state.is_open
    assert not state.is_quiet(1 * S)
