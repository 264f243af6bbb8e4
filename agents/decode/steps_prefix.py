"""What stands in front of a trainer's message: launcher labels, ranks, log levels, times.

Guarantees: only forms that name a rank of the job give one; a task label that srun puts in front (`7: `), a local
rank (`[default0]:`) and the rank within a named process group do not. `[Rank 3]` without a group is taken for the
job's, which holds for all but the subgroups of PyTorch before 2.2. Times are found, not interpreted, unless they
carry date and zone. Deliberately knows nothing of the messages themselves.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

PREFIX_LIMIT: Final = 400
"""Characters in front of a message that are searched for a rank or a time."""

_RANK = re.compile(
    r"\[rank[ =-]?(\d{1,9})(?:/\d{1,9})?\]|(?<![\w.])rank=(\d{1,9})(?!\d)|\brank-(\d{1,9})/\d", re.IGNORECASE
)

_TIME = (
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC\b|[+-]\d\d:?\d\d))?"
    r"|\d{8} \d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"
    r"|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
)
_TIME_TEXT = re.compile(rf"(?<![\w.,-])(?<!\d:){_TIME}(?![\w:])")
_ZONED = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r" ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)"
)

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_LABEL = re.compile(
    r"\s*(?:"
    r"\d{1,7}:(?=\s|[A-Z]+:)"  # srun --label
    r"|\[\d{1,7}(?:,\d{1,7})?\](?:<std(?:out|err)>)?:"  # mpirun, deepspeed, pdsh
    r"|\[(?:rank|default)[ =-]?\d{1,9}(?:/\d{1,9})?\]:?"  # torchrun
    r"|\[pod/[^\]\s]{1,250}\]"  # kubectl logs --prefix
    r"|\([\w.]{1,80} pid=\d+[^)]{0,80}\)"  # Ray
    r"|(?:stdout|stderr):"
    r"|[A-Za-z][\w.-]{0,120}[-_.]?\d[\w.-]{0,60}(?::| +\|)(?=\s)"  # pdsh and compose: host or service with a number
    rf"|\[?{_TIME}\]?(?:\s*[:,-])?(?=\s|\[|$)"
    rf"|\[{_LEVEL}\s*(?:\|[^\]]{{0,120}})?\]:?"
    rf"|(?:\w+ - )?{_LEVEL}(?: - |:[\w.]{{0,120}}:)"
    r"|\[(?:titan|NeMo [A-Z])[^\]]{0,120}\]:?"
    r"|\[[\w.-]{1,80}\.(?:py|cpp|cc):\d{1,6}(?::\w{1,80})?\]\s?:?"
    r"|- (?=\S)"
    r")",
    re.IGNORECASE,
)
_LABELS_AT_MOST = 10


def message(text: str) -> str:
    """`text` without the labels in front of it; blanks that the message itself begins with are kept."""
    position = 0
    for _ in range(_LABELS_AT_MOST):
        match = _LABEL.match(text, position)
        if match is None:
            break
        position = match.end()
    return text[position:]


def rank_in(prefix: str) -> int | None:
    """The rank that `prefix` names, the last one if several; None for task labels and local ranks."""
    found = None
    for match in _RANK.finditer(prefix[-PREFIX_LIMIT:] if len(prefix) > PREFIX_LIMIT else prefix):
        found = int(match[1] or match[2] or match[3])
    return found


def time_text(prefix: str) -> str | None:
    """The first time of day in `prefix` as printed, with its date if it has one."""
    match = _TIME_TEXT.search(prefix[:PREFIX_LIMIT])
    return match[0] if match else None


def wall_time_us(text: str) -> int | None:
    """Microseconds since the epoch of a time with date and zone, finer fractions cut; else None."""
    match = _ZONED.fullmatch(text)
    if match is None:
        return None
    zone = match["zone"]
    try:
        moment = datetime.strptime(f"{match['date']} {match['clock']}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    if zone not in {"Z", "UTC"}:
        ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        try:
            moment = moment - ahead if zone[0] == "+" else moment + ahead
        except OverflowError:
            return None
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + int((match["fraction"] or "").ljust(6, "0")[:6])
