"""The rules of frames together: a frame that says what its publisher's last one said is told once, not by every rule.

Most frames move nothing that a rule reads but gauges far from any limit. What the rules read of a frame is compared with
the last one's as a whole; where it is the same, rules that are at rest are not asked, and only the time of their readings
moves on. What is remembered for that is derived from the frames and the rules' states, so it stands in no snapshot: after
a restart the first frames are read in full, and say the same.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from schemas.findings import Evidence, Finding
    from streams.core.counters import Reading
    from streams.core.keyed import Rows
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["FrameRule", "FrameRules", "all_at_rest"]

F_contra = TypeVar("F_contra", contravariant=True)


class _Frame(Protocol):
    @property
    def agent_session(self) -> str: ...
    @property
    def event_time_ns(self) -> int: ...


F = TypeVar("F", bound=_Frame)


class FrameRule(Generic[F_contra]):
    """Base of the rules that read frames. One that declares nothing of itself is given every frame.

    Attributes:
        columns: fields of the frame that it reads, beside those that name the frame's rows.
        counters: entries of `counters` that it reads.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    counters: ClassVar[tuple[str, ...]] = ()

    def on_frame(self, frame: F_contra, roster: Roster, evidence: Evidence | None = None) -> Iterable[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        raise NotImplementedError

    def resting(self, frame: F_contra) -> Sequence[Rows[Any]] | None:  # noqa: ARG002
        """The rows whose reading moves on when the frame that was just read comes again in the same words.

        None where it would change more than that.
        """
        return None

    def passes_over(self, frame: F_contra) -> bool:  # noqa: ARG002
        """Take a frame that says in all columns what the last one said, if nothing is to be judged; false: it is to be read.

        Asked of a rule that does not rest: it may depend on time or on gauges besides its columns.
        """
        return False

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes."""
        raise NotImplementedError

    def restore(self, snapshot: Any) -> None:
        """Replace the state by a snapshot's."""
        raise NotImplementedError


def all_at_rest(*found: Rows[Any] | None) -> Sequence[Rows[Any]] | None:
    """Rows as `FrameRule.resting` returns them, of what was found at rest: none where one was not."""
    resting = [rows for rows in found if rows is not None]
    return resting if len(resting) == len(found) else None


class _Last(Generic[F]):
    """What a publisher's last frame said, the readings of rules that rest, and the rules that do not."""

    __slots__ = ("readings", "restless", "said")

    def __init__(self, said: tuple[object, ...]) -> None:
        self.said = said
        self.readings: list[Reading] = []
        self.restless: list[FrameRule[F]] = []

    def divide(self, rules: Sequence[FrameRule[F]], frame: F) -> None:
        """Ask rules that have just read the frame whether they rest."""
        for rule in rules:
            rows = rule.resting(frame)
            if rows is None:
                self.restless.append(rule)
            else:
                self.readings += [of_rule.reading for of_rule in rows]


class FrameRules(Generic[F]):
    """The rules of one kind of frames that are in force.

    Args:
        names: fields by which a frame names its rows.
        besides: what else rules read of a frame, from the frame and the counters that they read.
    """

    def __init__(self, names: tuple[str, ...], besides: Callable[[F, tuple[str, ...]], Sequence[object]]) -> None:
        self._names = names
        self._besides = besides
        self._rules: list[FrameRule[F]] = []
        self._columns: Callable[[dict[str, object]], tuple[object, ...]] = itemgetter("agent_session", *names)
        self._counters: tuple[str, ...] = ()
        self._last: dict[str, _Last[F]] = {}

    def put_in_force(self, rules: Sequence[FrameRule[F]]) -> None:
        """Take the rules that a policy has switched on, in their order, and forget all frames."""
        self._rules = list(rules)
        columns = sorted({name for rule in rules for name in rule.columns})
        self._columns = itemgetter("agent_session", *self._names, *columns)
        self._counters = tuple(sorted({name for rule in rules for name in rule.counters}))
        self._last = {}

    def on_frame(self, publisher: str, frame: F, roster: Roster, position: Position) -> list[Finding]:
        """Findings of one frame, in the order of the rules; frames of a publisher come in the order of its event time."""
        said = (self._columns(frame.__dict__), self._besides(frame, self._counters))
        last = self._last.get(publisher)
        if last is None or last.said != said:
            return self._read(publisher, frame, said, roster, position)
        now_ns = frame.event_time_ns
        for reading in last.readings:
            reading.at_ns = now_ns
        found: list[Finding] = []
        to_read = [rule for rule in last.restless if not rule.passes_over(frame)]
        if to_read:
            evidence = position.evidence()
            for rule in to_read:
                found += rule.on_frame(frame, roster, evidence)
            last.restless = [rule for rule in last.restless if rule not in to_read]
            last.divide(to_read, frame)
            if len(last.restless) > 1:
                last.restless.sort(key=self._rules.index)
        return found

    def _read(
        self, publisher: str, frame: F, said: tuple[object, ...], roster: Roster, position: Position
    ) -> list[Finding]:
        """Give a frame that says something new to all rules."""
        evidence = position.evidence()
        found: list[Finding] = []
        for rule in self._rules:
            found += rule.on_frame(frame, roster, evidence)
        last = self._last[publisher] = _Last(said)
        last.divide(self._rules, frame)
        return found
