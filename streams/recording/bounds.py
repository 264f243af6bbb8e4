"""Where a range of topics begins or ends: a time, an offset per partition, or the end that stands now.

Texts are of people: `2026-11-30T03:00:00Z`, `1767225600`, `-15m`, `gpu-frames/0:1200,step-timings/1:88`, `earliest`, `now`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from schemas.errors import SchemaError
from schemas.topics import topic_named

__all__ = ["Bound", "BoundError", "parse_bound", "parse_span_s"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class BoundError(ValueError):
    """A text that names no place in time or in a topic; the text says what is understood."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of a range.

    Attributes:
        time_ms: append time, or null.
        offsets: by topic and partition; partitions that are not named are not bounded.
    """

    time_ms: int | None = None
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)


def parse_span_s(text: str) -> float:
    """Seconds of a span, as `90s`, `15m`, `2h`, `1d` or a plain number of seconds.

    Raises:
        BoundError: it is no span.
    """
    if found := _SPAN.fullmatch(text):
        return float(found[1]) * _UNITS[found[2]]
    try:
        seconds = float(text)
    except ValueError:
        raise BoundError(f"{text!r} is no span; write 90s, 15m or 2h") from None
    if not 0 <= seconds < 1e9:
        raise BoundError(f"{text!r} is no span; write 90s, 15m or 2h")
    return seconds


def parse_bound(text: str | None, now_ms: int) -> Bound:
    """What a text says; a bound without time and offsets for null, `earliest` and `now`.

    Args:
        text: what was given.
        now_ms: what `-15m` counts back from.

    Raises:
        BoundError: it is none of the forms.
    """
    if text is None or text in {"earliest", "now"}:
        return Bound()
    if text.startswith("-"):
        return Bound(time_ms=now_ms - int(parse_span_s(text[1:]) * 1000))
    if re.search(r"/\d+:", text):
        return Bound(offsets=dict(_offset(part) for part in text.split(",")))
    if re.fullmatch(r"\d{9,10}(\.\d+)?", text):
        return Bound(time_ms=int(float(text) * 1000))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BoundError(
            f"{text!r} is no bound; write a time (2026-11-30T03:00:00Z, 1767225600, -15m) or offsets (gpu-frames/0:1200,...)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Bound(time_ms=round(moment.timestamp() * 1000))


def _offset(text: str) -> tuple[tuple[str, int], int]:
    found = re.fullmatch(r"([\w.-]+)/(\d+):(\d+)", text.strip())
    if found is None:
        raise BoundError(f"{text!r} is no offset; write TOPIC/PARTITION:OFFSET, as gpu-frames/0:1200")
    try:
        name = topic_named(found[1]).name
    except SchemaError as error:
        raise BoundError(str(error)) from None
    return (name, int(found[2])), int(found[3])
