"""`ethtool -S`: the counters of a host's NIC, with the pause counters of several drivers told apart.

Guarantees: a counter that a driver does not print stays unknown, for it prints pause counters only where PFC is on;
frames are frames (`xoff`), never the frames that end a pause (`xon`); durations are taken only from drivers that
document microseconds. The text names no interface: who runs the command does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.decode.fabric_snapshot import Port, Snapshot
from agents.decode.quantity import Unreadable, integer, is_unknown
from agents.decode.record import Record, malformed

TITLE = re.compile(r"\s*NIC statistics\b.*:\s*$", re.IGNORECASE)
NOTHING = re.compile(
    r"\s*(?:no stats available|Cannot get stats(?: strings)? information\b.*|no stats to show)\s*\.?\s*$", re.IGNORECASE
)
_COUNTER = re.compile(r"\s*(?P<name>[^:\s](?:.*[^:\s])?)\s*:\s*(?P<value>\S.*?|)\s*$")
# A heading or first line of what ethtool prints on other occasions: the counters end there.
OTHER_OUTPUT = re.compile(r"(?:driver:\s*\S+|\S.* (?:for|of|on) [A-Za-z][\w.@-]*:)\s*", re.ASCII)
# ethtool indents its counters; where that was lost, two words still are one, and a prompt or a sentence is none.
_MEANT = re.compile(r"\s+\S.*|[A-Za-z_][\w.\[\]-]*\s*:\s*[^/\s]\S*\s*", re.ASCII)
_CERTAIN = re.compile(r"(?:port\.)?(?:rx|tx)[0-9]*_\w|\w+_phy$|pfc_pri[0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How one driver names a PFC counter.

    Attributes:
        pattern: With the groups `direction` and `priority`.
        field: Of the record, behind the direction; None for a pause counter that has no field.
    """

    pattern: re.Pattern[str]
    field: str | None


def _dialect(pattern: str, field: str | None) -> _Dialect:
    text = pattern.replace("RXTX", "(?P<direction>rx|tx)").replace("NNN", "(?P<priority>[0-9]{1,2})")
    return _Dialect(re.compile(text, re.ASCII), field)


_DIALECTS = (
    # mlx5
    _dialect(r"RXTX_prioNNN_pause", "pause_frames"),
    _dialect(r"RXTX_prioNNN_pause_duration", "pause_us"),
    _dialect(r"RXTX_prioNNN_pause_transition", "pause_transitions"),
    # mlx4
    _dialect(r"RXTX_pause_prio_NNN", "pause_frames"),
    _dialect(r"RXTX_pause_duration_prio_NNN", "pause_us"),
    _dialect(r"RXTX_pause_transition_prio_NNN", "pause_transitions"),
    # ice, i40e
    _dialect(r"(?:port\.)?RXTX_priority_NNN_xoff(?:\.nic)?", "pause_frames"),
    _dialect(r"(?:port\.)?RXTX_priority_NNN_xon(?:_2_xoff)?(?:\.nic)?", None),
    # bnxt
    _dialect(r"RXTX_pfc_ena_frames_priNNN", "pause_frames"),
    _dialect(r"pfc_priNNN_RXTX_duration_us", "pause_us"),
    _dialect(r"pfc_priNNN_RXTX_transitions", "pause_transitions"),
    # hns3; the unit of its xoff_time is not documented
    _dialect(r"(?:mac_)?RXTX_pfc_priNNN_pkt(?:_num)?", "pause_frames"),
    _dialect(r"(?:mac_)?RXTX_pfc_priNNN_xoff_time", None),
)

_STATED = {
    "rx_global_pause": "rx_global_pause_frames",
    "rx_global_pause_duration": "rx_global_pause_us",
    "tx_global_pause": "tx_global_pause_frames",
    "tx_global_pause_duration": "tx_global_pause_us",
    "link_down_events_phy": "link_down_events",
}


def parse(text: str, device: str | None) -> list[Record]:
    """The records of one `ethtool -S` output, for a collector that knows which interface it asked.

    Args:
        text: Standard output of the command.
        device: The interface.

    Returns:
        `pfc` records by priority, then the `port` record, then `malformed` for lines that could not be read.
    """
    snapshot = Snapshot()
    port = snapshot.port("host", device, None)
    unread: list[Record] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not TITLE.match(line):
            record = put_line(port, line, number)
            if record is not None:
                unread.append(record)
    return [*snapshot.records(), *unread]


def is_counter(line: str) -> bool:
    """Whether a line is surely a NIC's counter, even without the title above it: for outputs that were filtered."""
    found = _COUNTER.fullmatch(line)
    if found is None or _CERTAIN.match(found["name"]) is None:
        return False
    try:
        integer(found["value"])
    except Unreadable:
        return False
    return True


def put_line(port: Port, line: str, number: int) -> Record | None:
    """Adds the counter of one line to a port; `malformed` for one that has no whole number, None otherwise."""
    found = _COUNTER.fullmatch(line)
    if found is None:
        return None
    name, text = found["name"], found["value"]
    try:
        value = integer(text)
    except Unreadable:
        if _CERTAIN.match(name) is None and _MEANT.fullmatch(line) is None:
            return None  # other words of a shell session
        return malformed(f"no number behind {name}", line, number)
    if value is None and not is_unknown(text):
        return malformed(f"the number behind {name} has more than 64 bits", line, number)
    place = place_of(name)
    if place is None:
        return None
    if place.priority is not None:
        port.put_pfc(place.priority, place.field, value)
    elif place.is_stated:
        port.put_state(place.field, value)
    else:
        port.put_counter(place.field, value)
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a counter belongs.

    Attributes:
        field: of the record; a counter without a field of its own keeps the driver's name.
        priority: of the `pfc` record; None for the `port` record.
        is_stated: whether it is a field of the `port` record rather than one of its `counters`.
    """

    field: str
    priority: int | None = None
    is_stated: bool = False


def place_of(name: str) -> Place | None:
    """Where the counter of that name belongs; None for a pause counter that has no field."""
    for dialect in _DIALECTS:
        pfc = dialect.pattern.fullmatch(name)
        if pfc is not None:
            if dialect.field is None:
                return None
            return Place(f"{pfc['direction']}_{dialect.field}", priority=int(pfc["priority"]))
    return Place(_STATED[name], is_stated=True) if name in _STATED else Place(name)
