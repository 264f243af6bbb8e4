"""Prometheus text of dcgm-exporter, of any release and label dialect: one sample a metric line.

Guarantees: integers are read as integers, so a blank printed in full is recognised; identity comes from labels
whatever their case and prefix; lines of other exporters yield nothing. HELP texts are not believed: for violations
some of them name a wrong unit. Joining the lines of one GPU is offered to collectors and not done in decoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from agents.decode.dcgm_fields import FIELDS, by_dcgm_name
from agents.decode.dcgm_sample import canonical, identify, new_sample, put, stated, whole
from agents.decode.quantity import Number, Unreadable, number
from agents.decode.record import Record, malformed

_METRIC = re.compile(r"\s*(?P<name>DCGM_[A-Za-z0-9_:]*)\s*(?P<open>\{)?", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r'\s*(?P<name>[A-Za-z_][\w.\-]*)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*,?')
_CLOSE = re.compile(r"\s*,?\s*\}")
_VALUE = re.compile(r"\s*(?P<value>\S+)(?:\s+(?P<time>-?[0-9.eE+]+))?\s*(?:#.*)?$")
_ESCAPE = re.compile(r"\\(.)")
_INDEX = re.compile(r"[A-Za-z]*([0-9]{1,9})$", re.ASCII)

_NUMBER = re.compile(r"[+-]?(?:[0-9.]|nan|inf)", re.IGNORECASE)

_OWN_METRICS = "DCGM_EXPORTER"
_XID_WINDOW = "DCGM_EXP_XID_ERRORS_COUNT"
_CLOCK_WINDOWS = frozenset({"DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_THROTTLE_REASONS_COUNT"})

_LATEST_SECONDS: Final = 10**11
"""A time above it is in milliseconds, as in the text format; OpenMetrics writes seconds."""


def samples(text: str) -> Iterator[Record]:
    """One `gpu_sample` for each metric line of a scrape; lines that cannot be read are left out."""
    for line in text.splitlines():
        record = parse_line(line)
        if record is not None and record["kind"] == "gpu_sample":
            yield record


def by_gpu(text: str) -> list[Record]:
    """The lines of one scrape joined to one record for each entity, in order of appearance.

    The windows of an entity, of which there may be several, come as lists: `xid_windows` of `{xid, count, window_ms}`
    and `clock_event_windows` of `{clock_event, count, window_ms}`.
    """
    joined: dict[tuple[Any, ...], Record] = {}
    for sample in samples(text):
        parts = sorted((name, value) for name, value in sample.items() if name.endswith("_index"))
        # Not every metric has every identity, but the exporter gives the index or the UUID to all of one entity.
        unit = sample["gpu_uuid"] or sample["gpu_index"]
        key = (sample.get("hostname"), sample["entity"], unit, sample.get("gpu_instance_id"), tuple(parts))
        _join(joined.setdefault(key, {}), sample)
    return list(joined.values())


def is_comment(line: str) -> bool:
    """Whether the line is a HELP or TYPE of a DCGM metric, by which an exposition without values is known."""
    words = line.split(None, 3)
    return len(words) > 2 and words[0] == "#" and words[1] in {"HELP", "TYPE"} and _METRIC.match(words[2]) is not None


def parse_line(line: str, number_of_line: int | None = None) -> Record | None:
    """The sample of one metric line.

    Args:
        line: The line as scraped.
        number_of_line: For the record of a line that cannot be read.

    Returns:
        A `gpu_sample`; `malformed` for a DCGM metric whose labels or value cannot be read; None for any other line.
    """
    found = _METRIC.match(line)
    if found is None:
        return None
    name = found["name"]
    if name.upper().startswith(_OWN_METRICS):
        return None
    labels, position = _labels(line, found.end()) if found["open"] else ({}, found.end())
    value = _VALUE.fullmatch(line, position) if position >= 0 else None
    if value is None or (not found["open"] and _NUMBER.match(value["value"]) is None):
        if not found["open"]:
            return None  # a message that begins with a name of DCGM
        return malformed("metric line without readable labels and value", line, number_of_line)
    try:
        reading = number(value["value"])
    except Unreadable as error:
        return malformed(str(error), line, number_of_line)
    sample = _identified(labels)
    if value["time"]:
        time_us = _time_us(value["time"])
        if time_us is not None:
            sample["wall_time_us"] = time_us
    _put(sample, name, reading, value["value"], labels)
    return sample


def _put(sample: Record, name: str, reading: Number | None, text: str, labels: dict[str, str]) -> None:
    upper = name.upper()
    if upper == _XID_WINDOW:
        sample["xid"] = whole(labels.get("xid"))
        put(sample, FIELDS["xid_window_count"], name, reading)
    elif upper in _CLOCK_WINDOWS:
        sample["clock_event"] = stated(labels.get("clockevent", labels.get("clockthrottlereason")))
        put(sample, FIELDS["clock_event_window_count"], name, reading)
    else:
        put(sample, by_dcgm_name(name), name, text)
    if "windowsizeinms" in labels:
        sample["window_ms"] = whole(labels["windowsizeinms"])
    if "errmsg" in labels:
        sample["last_xid_text"] = stated(labels["errmsg"])


def _identified(labels: dict[str, str]) -> Record:
    if stated(labels.get("gpuiid")) is not None:
        sample = new_sample("gpu_instance", None)
        del sample["dcgm_entity_id"]  # the label is NVML's GPU instance id, not DCGM's entity
        sample["gpu_index"] = _index(labels.get("gpu"))
        sample["gpu_instance_profile"] = stated(labels.get("gpuiprofile"))
    elif "gpu" not in labels and "nvswitch" in labels:
        sample = new_sample("switch", _index(labels["nvswitch"]))
    elif "gpu" not in labels and "cpu" in labels:
        sample = new_sample("cpu", _index(labels["cpu"]))
        if "cpucore" in labels:
            sample["core_index"] = _index(labels["cpucore"])
    else:
        sample = new_sample("gpu", _index(labels.get("gpu")))
    if "nvlink" in labels:
        sample["link_index"] = _index(labels["nvlink"])
    identify(sample, labels)
    if "modelname" in labels:
        sample["model"] = stated(labels["modelname"])
    return sample


def _index(text: str | None) -> int | None:
    """`3`, `nvidia3` or `nvswitch3`; None where there is no number at the end."""
    found = _INDEX.fullmatch(text.strip()) if text else None
    return int(found[1]) if found else None


def _labels(line: str, position: int) -> tuple[dict[str, str], int]:
    """Labels by canonical name and the position behind the brace, -1 where they cannot be read."""
    labels: dict[str, str] = {}
    while (found := _LABEL.match(line, position)) is not None:
        value = found["value"]
        labels[canonical(found["name"])] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        position = found.end()
    close = _CLOSE.match(line, position)
    return labels, close.end() if close else -1


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _time_us(text: str) -> int | None:
    try:
        value = number(text)
    except Unreadable:
        return None
    if value is None:
        return None
    return int(value * 1000) if abs(value) > _LATEST_SECONDS else int(value * 1_000_000)


def _join(whole_sample: Record, sample: Record) -> None:
    window_ms = sample.pop("window_ms", None)
    if "xid_window_count" in sample:
        window = {"xid": sample.pop("xid"), "count": sample.pop("xid_window_count"), "window_ms": window_ms}
        whole_sample.setdefault("xid_windows", []).append(window)
    if "clock_event_window_count" in sample:
        window = {
            "clock_event": sample.pop("clock_event"),
            "count": sample.pop("clock_event_window_count"),
            "window_ms": window_ms,
        }
        whole_sample.setdefault("clock_event_windows", []).append(window)
    for name, value in sample.items():
        if name == "other":
            whole_sample.setdefault("other", {}).update(value)
        elif name == "implausible":
            whole_sample.setdefault("implausible", []).extend(value)
        elif whole_sample.get(name) is None:
            whole_sample[name] = value
