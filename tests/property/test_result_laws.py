"""Results of actuators beside findings: a restart at any split changes nothing that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deciding import FINDINGS, RESULTS, engine_of, fed, lost, mark, orders, result
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, assert_engine_restart_changes_nothing

from schemas.codec import encode
from streams.core.position import Position

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.engines.decisions import DecisionsEngine


@LAW
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mark", "lost", "result", "result"]),
            st.integers(0, 3),
            st.sampled_from(["applied", "refused", "failed"]),
        ),
        min_size=4,
        max_size=40,
    ),
    st.integers(0, 10_000),
)
def test_a_restart_at_any_split_changes_nothing(acts: list[tuple[str, int, str]], split: int) -> None:
    # Ids of commands do not depend on when a result comes: known from a run without any.
    faults = [lost(n, node) for n, (what, node, _) in enumerate(acts) if what == "lost"]
    given_out = [order.command_id for order in orders(fed(engine_of(), [mark(-1), *faults, mark(100)]))]
    arriving: list[tuple[Record, Position]] = []
    for second, (what, node, outcome) in enumerate(acts):
        if what == "mark":
            record: Record = mark(second)
        elif what == "lost":
            record = lost(second, node)
        else:
            record = result(second, given_out[node % len(given_out)] if given_out else "cmd-x", outcome)
        arriving.append((record, Position(RESULTS if what == "result" else FINDINGS, 0, 0, 0)))
    arriving += [(mark(second), Position(FINDINGS, 0, 0, 0)) for second in (len(acts) + 5, len(acts) + 30)]

    def decided(engine: DecisionsEngine, record: Record, position: Position) -> list[bytes]:
        return [encode(output) for output in engine.on_record(record, position)]

    assert_engine_restart_changes_nothing(engine_of, decided, arriving, split)
