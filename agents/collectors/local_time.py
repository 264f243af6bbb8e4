"""Times that a log gives without a zone or without a year, read as this machine's own.

Most logs of a node are written by that node in its own zone: syslog's `May 19 07:08:57`, `dmesg -T`, the Fabric
Manager's. Guarantees: a time without a year is the latest such time that is not more than a day ahead. It does not know
whether the writer had another zone, as a host has whose agent runs in a container; callers check against the clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

__all__ = ["local_time_ns"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY_NS = 24 * 3600 * 10**9

_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_NAMED = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?(?P<month>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) (?:(?P<year>\d{{4}}) )?{_CLOCK}"
    r"(?: (?P<late_year>\d{4}))?",
    re.ASCII,
)
_NUMBERED = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[T ]{_CLOCK}(?: [A-Z]{{2,5}})?", re.ASCII
)

LocalClock = Callable[[tuple[int, int, int, int, int, int, int, int, int]], float]


def local_time_ns(text: str, now_ns: int, to_epoch_s: LocalClock = time.mktime) -> int | None:
    """The time in nanoseconds since the epoch, or None if `text` is no such time.

    Args:
        text: as the log writes it, without brackets.
        now_ns: wall time now, for the year of a time that has none.
        to_epoch_s: the machine's zone.
    """
    found = _NAMED.fullmatch(text) or _NUMBERED.fullmatch(text)
    if found is None:
        return None
    fields = found.groupdict()
    month = _month(fields["month"])
    day, hour, minute, second = (int(fields[name]) for name in ("day", "hour", "minute", "second"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    fraction_ns = int((fields["fraction"] or "").ljust(9, "0"))
    stated = fields["year"] or fields.get("late_year")
    if stated is not None:
        return _epoch_ns(int(stated), month, day, hour, minute, second, fraction_ns, to_epoch_s)
    this_year = time.gmtime(now_ns // 10**9 + 24 * 3600).tm_year
    for year in (this_year, this_year - 1):
        at_ns = _epoch_ns(year, month, day, hour, minute, second, fraction_ns, to_epoch_s)
        if at_ns is not None and at_ns <= now_ns + _DAY_NS:
            return at_ns
    return None


def _month(text: str) -> int:
    if text.isdigit():
        return int(text)
    name = text.lower()
    return _MONTHS.index(name) + 1 if name in _MONTHS else 0


def _epoch_ns(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction_ns: int, to_epoch_s: LocalClock
) -> int | None:
    try:
        epoch_s = int(to_epoch_s((year, month, day, hour, minute, second, 0, 0, -1)))
    except (OverflowError, ValueError):
        return None
    return epoch_s * 10**9 + fraction_ns if epoch_s >= 0 else None
