"""Folds a burst of events of one kind and device: the kernel can print a hundred thousand lines a second.

The rule: of equal (source, code or condition, device) within one second of the lines' own time the first ten are events
of their own, and all further ones of a reading are one event with a count, the first line and the last. Guarantees: no
line goes uncounted, and memory is bounded, by the kinds that one second may have; lines of yet more kinds are counted in
one event without a code. It takes the time from its caller and keeps lines of the first second only until the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schemas.events import KernelEvent

__all__ = ["KINDS", "SINGLE_LINES", "WINDOW_US", "EventFold", "kind_of"]

WINDOW_US = 1_000_000
SINGLE_LINES = 10
"""Lines of one kind, device and second that are events of their own."""

KINDS = 1024
"""Kinds and devices told apart within a second: eight GPUs and their links print a few dozen on their worst day."""

_OTHERS = "further lines, of more kinds and devices than are told apart within a second"
_LINE_CHARACTERS = 2000


@dataclass(slots=True)
class _Burst:
    """What comes beyond the single lines: the first event of it, how many there are, and the last line."""

    first: KernelEvent
    count: int
    last_raw: str

    def folded(self) -> KernelEvent:
        if self.count == 1:
            return self.first
        return self.first.model_copy(update={"repeat_count": self.count, "last_raw": self.last_raw[:_LINE_CHARACTERS]})


class EventFold:
    """Takes the events of a log one after the other, and gives them out folded."""

    def __init__(self) -> None:
        self._window: int | None = None
        self._counts: dict[str, int] = {}
        self._bursts: dict[str, _Burst] = {}
        self._by_equal: dict[str, _Burst] = {}
        self._taken: list[KernelEvent | _Burst] = []

    def add(
        self, kind: str, make_event: Callable[[], KernelEvent | None], time_us: int, raw: str, equal: str | None = None
    ) -> None:
        """Take an event.

        Args:
            kind: what events must share to be folded, of `kind_of`.
            make_event: makes the event if it is wanted; None if it is none after all. Lines of a burst need none.
            time_us: the line's own time; which second it is in decides what it is folded with.
            raw: its line.
            equal: what its line shares with those that may be counted unread; None where none may.
        """
        self._turn_to(time_us // WINDOW_US)
        is_one_of_many = kind not in self._counts and len(self._counts) >= KINDS
        if is_one_of_many:
            kind = _OTHERS
        else:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            if count <= SINGLE_LINES:
                event = make_event()
                if event is not None:
                    self._taken.append(event)
                return
        burst = self._bursts.get(kind)
        if burst is not None:
            burst.count += 1
            burst.last_raw = raw
        else:
            event = make_event()
            if event is None:
                return
            if is_one_of_many:
                event = event.model_copy(update=_WITHOUT_KIND)
            burst = self._bursts[kind] = _Burst(event, 1, raw)
            self._taken.append(burst)
        if equal is not None and not is_one_of_many:
            if len(self._by_equal) >= KINDS:
                self._by_equal.clear()
            self._by_equal[equal] = burst

    def repeat(self, equal: str, time_us: int, raw: str) -> bool:
        """Count a line whose equal is in a burst of its second already; whether there is one. Reads nothing of it."""
        if time_us // WINDOW_US != self._window:
            return False
        burst = self._by_equal.get(equal)
        if burst is None:
            return False
        burst.count += 1
        burst.last_raw = raw
        return True

    def take(self) -> list[KernelEvent]:
        """What was taken since the last call; a burst that goes on is a further event then."""
        events = [item.folded() if isinstance(item, _Burst) else item for item in self._taken]
        self._taken.clear()
        self._bursts.clear()
        self._by_equal.clear()
        return events

    def snapshot(self) -> dict[str, Any]:
        """Plain data that `restore` takes: how many lines of each kind the running second has had."""
        return {"window": self._window, "counts": dict(self._counts)}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on where a snapshot was made."""
        window = snapshot["window"]
        self._window = None if window is None else int(window)
        self._counts = {str(kind): int(count) for kind, count in dict(snapshot["counts"]).items()}

    def _turn_to(self, window: int) -> None:
        if window != self._window:
            self._window = window
            self._counts.clear()
            self._bursts.clear()
            self._by_equal.clear()


_WITHOUT_KIND = {
    **dict.fromkeys(("code", "pci_bus_id", "gpu_uuid", "switch_index", "link", "pid", "process", "recovery_action")),
    **dict.fromkeys(("caused_by_xid", "reported_severity", "condition", "driver", "interface", "error_name")),
    "severity": "unknown",
    "trusted": False,  # of some of them it may be so, and nothing is to act on the sum
    "inferred": False,
    "text": _OTHERS,
}


def kind_of(record: Mapping[str, Any]) -> str:
    """What decoded records must share to be folded: source, code, device, and whatever makes one worse than another."""
    return "/".join([str(record.get(name)) for name in _KIND])


_KIND = (
    *("kind", "code", "condition", "error_name", "pci_bus_id", "switch_index", "interface"),
    *("severity", "reported_severity", "recovery_action", "trusted"),
)
