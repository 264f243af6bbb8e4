"""Rules of frames together: each reads a frame when something moved that it reads, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from factories import at, gpu_frame

from streams.core.frame_rules import FrameRule, FrameRules
from streams.core.keyed import KeyedRows, SubjectState
from streams.core.position import Position
from streams.core.roster import Roster

if TYPE_CHECKING:
    from schemas.findings import Evidence, Finding
    from schemas.frames import GpuFrame
    from streams.core.keyed import Rows

PLACE = Position("gpu-frames", 0, 0, 0)


class _Nothing(SubjectState):
    def is_quiet(self, now_ns: int) -> bool:
        return True


class Watcher(FrameRule["GpuFrame"]):
    """Notes the seconds of the frames that it read; rests, or passes over what it is told to."""

    def __init__(self, *columns: str, besides: tuple[str, ...] = (), rests: bool = True) -> None:
        self.columns = columns  # type: ignore[misc]
        self.besides = besides  # type: ignore[misc]
        self.rests = rests
        self.read: list[int] = []
        self.asked: list[int] = []
        self.before_ns: list[int] = []
        self.rows: Rows[_Nothing] = KeyedRows(_Nothing).of("node", None, lambda: ["gpu"])

    def on_frame(self, frame: GpuFrame, roster: Roster, evidence: Evidence | None = None) -> Iterator[Finding]:
        self.read.append((frame.event_time_ns - at(0)) // 10**9)
        self.before_ns.append(self.rows.reading.at_ns)
        self.rows.stand_still(frame.agent_session, frame.event_time_ns, ())
        yield from ()

    def resting(self, frame: GpuFrame) -> Sequence[Rows[Any]] | None:
        return [self.rows] if self.rests else None

    def passes_over(self, publisher: str, frame: GpuFrame) -> bool:
        self.asked.append((frame.event_time_ns - at(0)) // 10**9)
        return True

    def snapshot(self) -> dict[str, Any]:
        return {}


def tell(*rules: Watcher, load: Callable[[GpuFrame], object] = lambda _: True, **columns: Sequence[Any]) -> Any:
    """Give rules one frame a second, of the values that each column has in turn."""
    together = FrameRules(("gpu_uuid", "sku"), lambda frame, besides: tuple(load(frame) for _ in besides))
    together.put_in_force(rules)
    for second in range(max(map(len, columns.values()))):
        frame = gpu_frame(second, gpus=1, **{name: values[second] for name, values in columns.items()})
        together.on_frame(together.last_of("node-1"), frame, Roster(), PLACE)
    return together


def test_a_frame_is_read_by_the_rules_that_read_what_has_moved() -> None:
    heat, power = Watcher("thermal_violation_ns"), Watcher("power_violation_ns")
    tell(heat, power, thermal_violation_ns=[(0,), (0,), (5,), (5,)], power_violation_ns=[(0,), (7,), (7,), (7,)])
    assert (heat.read, power.read) == ([0, 2], [0, 1])


def test_a_frame_that_names_others_is_read_by_all() -> None:
    heat, power = Watcher("thermal_violation_ns"), Watcher("power_violation_ns")
    tell(heat, power, sku=[("H100",), ("H100",), ("A100",)])
    assert (heat.read, power.read) == ([0, 2], [0, 2])


def test_the_load_is_read_by_the_rules_that_ask_for_it() -> None:
    heat, link = Watcher("thermal_violation_ns"), Watcher(besides=("load",))
    tell(heat, link, load=lambda frame: frame.gpu_util_pct == (99,), gpu_util_pct=[(99,), (99,), (3,), (3,)])
    assert (heat.read, link.read) == ([0], [0, 2])


def test_a_rule_that_does_not_rest_is_asked_before_it_reads_what_moved_for_others() -> None:
    heat, clock = Watcher("thermal_violation_ns"), Watcher(rests=False)
    tell(heat, clock, thermal_violation_ns=[(0,), (4,), (4,)])
    assert (heat.read, clock.read, clock.asked) == ([0, 1], [0], [1, 2])


def test_readings_go_on_with_the_frames_that_were_not_read() -> None:
    heat = Watcher("thermal_violation_ns")
    together = tell(heat, thermal_violation_ns=[(0,), (0,), (0,), (5,), (5,)])
    assert heat.read == [0, 3]
    assert heat.before_ns == [0, at(2)]
    together.settle()
    assert heat.rows.reading.at_ns == at(4)
