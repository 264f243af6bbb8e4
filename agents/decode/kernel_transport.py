r"""What carried a kernel line: takes the prefix off and reads the times and the facility out of it.

Knows `/dev/kmsg`, dmesg (plain, `-T`, `-x`, `--time-format iso`, with caller column), raw printk, journald's short
forms, syslog with RFC 3164 and 5424 times, Talos, `kernel:` alone, the Fabric Manager's log, and no prefix at all.
Guarantees that the payload begins right after the prefix, so that a caller who anchors a pattern at its start
cannot be fooled by another program's line that quotes one. Does not read the payload, and does not know journald's
JSON, whose message needs no prefix taken off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from agents.decode.quantity import bounded

_US_PER_S = 1_000_000
_LAST_SEQ = (1 << 64) - 1

# First three fields of a /dev/kmsg record and its flags; kernels append further fields before the semicolon.
_KMSG = re.compile(r"(?P<prio>\d{1,10}),(?P<seq>\d{1,64}),(?P<usec>\d{1,64})(?:,[^;]*)?;", re.ASCII)
_KMSG_ESCAPE = re.compile(r"(?:\\x[0-9a-f]{2})+", re.ASCII)

_FACILITY = r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d+|local\d)"
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_ISO = (
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,12}))?"
    r" ?(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
_MONTH_DAY = r"[A-Z][a-z]{2} {1,2}\d{1,2}"
_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,9})?"

_PRIORITY = re.compile(r"<(?P<prio>\d{1,3})>", re.ASCII)
_RFC5424 = re.compile(
    rf"1 (?:-|{_ISO}) \S+ (?P<tag>\S+) \S+ \S+ (?:-|(?:\[(?:[^\]\\]|\\.)*\])+) ?(?:\ufeff)?", re.ASCII
)
_COLUMNS = re.compile(rf"{_FACILITY} *:{_LEVEL} *: ?", re.ASCII)
_TALOS = re.compile(rf"(?:\S+: +)?{_FACILITY}: +{_LEVEL}: +\[{_ISO}\]: ?", re.ASCII)

# The shapes that a time may take, each up to and with the one blank after it.
_KERNEL_TIME = re.compile(r"\[ *(?P<s>\d{1,64})\.(?P<fraction>\d{1,9})(?: *<[^>]*>)?\] ?", re.ASCII)
_CALLER = re.compile(r"\[ *[TC]\d+\] ?", re.ASCII)
_BARE_ISO = re.compile(rf"(?:[A-Z][a-z]{{2}} )?{_ISO}(?: |$)", re.ASCII)
_TEXT_TIME = re.compile(
    rf"(?P<text>{_MONTH_DAY} (?:\d{{4}} )?{_CLOCK}"
    rf"|[A-Z][a-z]{{2}} \d{{4}}-\d\d-\d\d {_CLOCK} (?!UTC )[A-Z]{{2,5}})(?: |$)",
    re.ASCII,
)
_BRACKET_TIME = re.compile(
    r"\[(?P<text>[^\W\d]+\.? [^\W\d]+\.? +\d{1,2} \d\d:\d\d:\d\d \d{4}"  # dmesg -T, names as the locale has them
    rf"|{_MONTH_DAY} \d\d:\d\d| *\+\d+\.\d+)\] ?"  # dmesg -e
)
_FABRIC_MANAGER_TIME = re.compile(
    rf"\[(?P<text>{_MONTH_DAY} \d{{4}} {_CLOCK})\] *(?:\[[A-Z]+\] *)?(?:\[tid \d+\] *)?", re.ASCII
)
_UNIX_TIME = re.compile(r"(?P<s>\d{9,11})\.(?P<fraction>\d{1,9}) ", re.ASCII)

# A host is one word that is no `program:`; the tag must be the kernel's own or the Fabric Manager's.
_HOST = re.compile(r"\S*[^\s:] (?=\S)", re.ASCII)
_TAG = re.compile(rf"(?:{_FACILITY}\.{_LEVEL} )?(?:(?P<kernel>kernel):|nv-?fabric-?manager(?:\[\d+\])?:) ?", re.ASCII)
_FABRIC_MANAGER_TAGS = ("nv-fabricmanager", "nvidia-fabricmanager")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a transport says about when a line was written and by whom.

    Attributes:
        kernel_time_us: Microseconds since boot; None too where they need more than 64 bits.
        wall_time_us: Microseconds since the epoch, UTC; only when the source gives date and zone.
        time_text: A time without year or zone, as the source writes it.
        trusted: False when another facility than the kernel's wrote the line: anybody may have.
        kmsg_seq: The sequence number of a `/dev/kmsg` record; the last of 64 bits where it is forged beyond them.
    """

    kernel_time_us: int | None = None
    wall_time_us: int | None = None
    time_text: str | None = None
    trusted: bool = True
    kmsg_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """A line without its prefix.

    Attributes:
        payload: What follows the prefix.
        stamp: What the prefix says.
        known: Whether there was a prefix of a known transport. A bare date and clock without zone is none: half
            of all programs begin their lines so.
    """

    payload: str
    stamp: Stamp
    known: bool = True


def is_kmsg(text: str) -> bool:
    """Whether the line is a `/dev/kmsg` record; lines behind it that begin with a blank are its properties."""
    return text[:1].isdigit() and _KMSG.match(text) is not None


def carried(text: str) -> Carried:
    """Takes the transport's prefix off one line without its end. Never fails: no prefix is a transport too."""
    if found := _KMSG.match(text):
        stamp = Stamp(
            kernel_time_us=bounded(int(found["usec"])),
            trusted=int(found["prio"]) >> 3 == 0,
            kmsg_seq=min(int(found["seq"]), _LAST_SEQ),
        )
        return Carried(_unescaped(text[found.end() :]), stamp)
    if found := _TALOS.match(text):
        wall, time_text = _iso_time(found)
        return Carried(text[found.end() :], Stamp(None, wall, time_text, found["facility"] == "kern"))

    trusted = True
    at = 0
    if found := _PRIORITY.match(text):
        trusted, at = int(found["prio"]) >> 3 == 0, found.end()
        if found := _RFC5424.match(text, at):
            wall, time_text = _iso_time(found)
            # Another program's message is kept behind its tag, so that nothing in it reads as the kernel's.
            own = found["tag"] in ("kernel", *_FABRIC_MANAGER_TAGS)
            at = found.end() if own else found.start("tag")
            kernel, at = _kernel_time(text, at)
            return Carried(text[at:], Stamp(kernel, wall, time_text, trusted))
    elif found := _COLUMNS.match(text):
        trusted, at = found["facility"] == "kern", found.end()
    return _timed(text, at, trusted)


def _timed(text: str, at: int, trusted: bool) -> Carried:
    """The rest of a prefix: a time of any kind, then host and tag, then perhaps the kernel's own time."""
    columns = at > 0
    kernel, at = _kernel_time(text, at)
    wall = time_text = None
    timed = certain = True
    if kernel is not None:
        pass
    elif found := _TEXT_TIME.match(text, at) or _BRACKET_TIME.match(text, at):
        time_text, at = found["text"].strip(), _after(_CALLER, text, found.end())
    elif found := _BARE_ISO.match(text, at):
        wall, time_text = _iso_time(found)
        certain = wall is not None
        at = _after(_CALLER, text, found.end())
    elif found := _FABRIC_MANAGER_TIME.match(text, at):
        time_text, at = found["text"], found.end()
    elif found := _UNIX_TIME.match(text, at):
        wall, at = int(found["s"]) * _US_PER_S + _micros(found["fraction"]), found.end()
        certain = False
    else:
        timed = certain = False
    tag = _TAG.match(text, at)
    # Only behind a time is a word before the tag a host; elsewhere it belongs to somebody's sentence.
    if tag is None and timed and (host := _HOST.match(text, at)):
        tag = _TAG.match(text, host.end())
    if tag is not None:
        at = tag.end()
        trusted = trusted and tag["facility"] in (None, "kern")
        if tag["kernel"] is not None:
            inner, at = _kernel_time(text, at)
            kernel = inner if kernel is None else kernel
    known = tag is not None or kernel is not None or certain or columns
    return Carried(text[at:], Stamp(kernel, wall, time_text, trusted), known)


def _kernel_time(text: str, at: int) -> tuple[int | None, int]:
    found = _KERNEL_TIME.match(text, at)
    if found is None:
        return None, at
    time_us = bounded(int(found["s"]) * _US_PER_S + _micros(found["fraction"]))
    return time_us, _after(_CALLER, text, found.end())


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _micros(fraction: str | None) -> int:
    return int((fraction or "")[:6].ljust(6, "0"))


def _iso_time(found: re.Match[str]) -> tuple[int | None, str | None]:
    """(wall time in microseconds, None) or, where the zone is missing or no such time exists, (None, text)."""
    date, clock, zone = found["date"], found["clock"], found["zone"]
    if date is None:
        return None, None
    try:
        hour, minute, second = map(int, clock.split(":"))
        # A leap second has no place in the epoch: it reads as the second after.
        leap = int(second == 60)
        moment = datetime.fromisoformat(date).replace(hour=hour, minute=minute, second=second - leap, tzinfo=UTC)
    except ValueError:
        zone = None
    if zone is None:
        fraction = found["fraction"]
        return None, f"{date}T{clock}" + (f".{fraction}" if fraction else "")
    seconds = int(moment.timestamp()) + leap - _offset_s(zone)
    return seconds * _US_PER_S + _micros(found["fraction"]), None


def _offset_s(zone: str) -> int:
    if not zone.startswith(("+", "-")):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone.startswith("-") else seconds


def _unescaped(text: str) -> str:
    r"""`/dev/kmsg` writes bytes that do not print, and the backslash, as `\xNN`."""
    return _KMSG_ESCAPE.sub(_raw_bytes, text) if "\\x" in text else text


def _raw_bytes(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("\\x", "")).decode("utf-8", "replace")
