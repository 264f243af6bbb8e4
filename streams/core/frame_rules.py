"""The rules of frames together: a frame that says what its publisher's last one said is told once, not by every rule.

Most frames move nothing that a rule reads but gauges far from any limit. What the rules read of a frame is compared with
the last one's as a whole. Where it is the same, only the time goes on; where it is not, those rules read the frame that
read what has moved. Of the others the ones that do not rest are asked whether they pass over it. What is remembered for
that is derived from the frames and the rules' states, so it stands in no snapshot: after a restart the first frames are
read in full, and say the same.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from schemas.findings import Evidence, Finding
    from streams.core.counters import Reading
    from streams.core.keyed import Rows
    from streams.core.position import Position
    from streams.core.roster import Roster

__all__ = ["FrameRule", "FrameRules", "LastFrame", "all_at_rest"]

F_contra = TypeVar("F_contra", contravariant=True)


class _Frame(Protocol):
    @property
    def agent_session(self) -> str: ...
    @property
    def event_time_ns(self) -> int: ...


F = TypeVar("F", bound=_Frame)

_dumps = orjson.dumps
"""Words of what a frame said, to be compared with what the next one says: equal words are equal values.

As one text, because the last frame's columns have left the processor's cache when they are looked at a second later,
number by number: to write the new frame's out costs half of that. What does not go into the text stays as it is.
"""


class FrameRule(Generic[F_contra]):
    """Base of the rules that read frames. One that declares nothing of itself is given every frame.

    Attributes:
        columns: fields of the frame that it reads, beside those that name the frame's rows.
        besides: what else it reads, by name: entries of `counters`, or which GPUs are at work (`LOAD` of `gpu_frames`).
    """

    columns: ClassVar[tuple[str, ...]] = ()
    besides: ClassVar[tuple[str, ...]] = ()

    def on_frame(self, frame: F_contra, roster: Roster, evidence: Evidence | None = None) -> Iterable[Finding]:
        """Findings of one frame; frames of a publisher come in the order of its event time."""
        raise NotImplementedError

    def resting(self, frame: F_contra) -> Sequence[Rows[Any]] | None:  # noqa: ARG002
        """The rows whose reading moves on when the frame that was just read comes again in the same words.

        None where it would change more than that.
        """
        return None

    def passes_over(self, publisher: str, frame: F_contra) -> bool:  # noqa: ARG002
        """Take a frame that says in the rule's columns what the last one said, if nothing is to be judged; else false.

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


class LastFrame(Generic[F]):
    """What a publisher's last frame said, the rules that rest since, with their readings, and those that do not."""

    __slots__ = ("at_ns", "publisher", "readings", "restless", "values", "words")

    def __init__(self, publisher: str) -> None:
        self.publisher = publisher
        self.words: object = None
        """Null before the first frame."""
        self.values: tuple[object, ...] = ()
        self.at_ns = 0
        """Of the last frame: the readings of rules that rest are moved there when somebody is to see them."""
        self.readings: dict[FrameRule[F], list[Reading]] = {}
        self.restless: Sequence[FrameRule[F]] = ()

    def settle(self) -> None:
        """Move the readings of rules that rest to the last frame."""
        for readings in self.readings.values():
            for reading in readings:
                reading.at_ns = self.at_ns

    def divide(self, rules: Sequence[FrameRule[F]], have_read: Sequence[FrameRule[F]], frame: F) -> None:
        """Ask those rules that have just read the frame whether they rest."""
        for rule in have_read:
            rows = rule.resting(frame)
            if rows is not None:
                self.readings[rule] = [of_rule.reading for of_rule in rows]
            else:
                self.readings.pop(rule, None)
        self.restless = [rule for rule in rules if rule not in self.readings]


class FrameRules(Generic[F]):
    """The rules of one kind of frames that are in force.

    Args:
        names: fields by which a frame names its rows.
        besides: what rules read of a frame besides its columns, from the frame and the names of what they read.
    """

    def __init__(self, names: tuple[str, ...], besides: Callable[[F, tuple[str, ...]], tuple[object, ...]]) -> None:
        self._names = ("agent_session", *names)
        self._besides_of = besides
        self._last: dict[str, LastFrame[F]] = {}
        self.put_in_force(())

    def put_in_force(self, rules: Sequence[FrameRule[F]]) -> None:
        """Take the rules that a policy has switched on, in their order, and forget all frames."""
        self.settle()
        self._last = {}
        self._rules = tuple(rules)
        columns = (*self._names, *sorted({name for rule in rules for name in rule.columns}))
        self._columns_of: Callable[[dict[str, object]], tuple[object, ...]] = itemgetter(*columns)
        self._besides = tuple(sorted({name for rule in rules for name in rule.besides}))
        self._read = (*columns, *self._besides)
        self._readers = {
            name: [rule for rule in rules if name in self._names or name in rule.columns or name in rule.besides]
            for name in self._read
        }

    def settle(self) -> None:
        """Move the readings of rules that rest to the last frames; to be done before a rule's snapshot is taken."""
        for last in self._last.values():
            last.settle()

    def last_of(self, publisher: str) -> LastFrame[F]:
        """What is remembered of a publisher's last frame; the same object until other rules are put in force."""
        last = self._last.get(publisher)
        if last is None:
            last = self._last[publisher] = LastFrame(publisher)
        return last

    def on_frame(self, last: LastFrame[F], frame: F, roster: Roster, position: Position) -> list[Finding]:
        """Findings of one frame, in the order of the rules; frames of a publisher come in the order of its event time.

        Args:
            last: of its publisher, from `last_of`.
            frame: the frame.
            roster: for the policy and for who runs where.
            position: the frame's place.
        """
        values = self._columns_of(frame.__dict__) + self._besides_of(frame, self._besides)
        words: object
        try:
            words = _dumps(values)
        except TypeError:
            words = values
        to_read: Collection[FrameRule[F]] = ()
        if last.words != words:
            to_read = self._concerned(last, values) if last.words is not None else self._rules
        for rule in last.restless:
            if rule not in to_read and not rule.passes_over(last.publisher, frame):
                to_read = (*to_read, rule)
        if to_read or last.words != words:
            last.settle()
            last.words, last.values = words, values
        last.at_ns = frame.event_time_ns
        return self._ask(to_read, last, frame, roster, position) if to_read else []

    def _concerned(self, last: LastFrame[F], values: tuple[object, ...]) -> set[FrameRule[F]]:
        """The rules that read what has moved since the last frame."""
        moved = [name for name, now, before in zip(self._read, values, last.values, strict=True) if now != before]
        return {rule for name in moved for rule in self._readers[name]}

    def _ask(
        self, to_read: Collection[FrameRule[F]], last: LastFrame[F], frame: F, roster: Roster, position: Position
    ) -> list[Finding]:
        """Give a frame to the rules that have to read it, in the order of all rules."""
        evidence = position.evidence()
        found: list[Finding] = []
        in_order = [rule for rule in self._rules if rule in to_read]
        for rule in in_order:
            found += rule.on_frame(frame, roster, evidence)
        last.divide(self._rules, in_order, frame)
        return found
