"""From what was collected to what a page shows: timelines, heat maps and lanes, as one object for JSON.

Everything is bounded: series are thinned to some two thousand points, tables to their first rows, and each cut is named.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.report.statements import (
    finding_rows,
    incident_rows,
    job_of,
    last_words,
    raw_anchor,
    short_place,
    short_uuid,
    silence_rows,
)
from paceline.report.summary import summary
from paceline.review.difference import place_name

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from paceline.report.collected import Collected, StepPoint
    from paceline.report.heat_map import HeatMap

__all__ = ["page_data"]

_POINTS = 2_000
_MOST_JOBS = 40
_MOST_SLOWEST = 6
_MOST_DEVICES = 8


def page_data(
    collected: Collected, about: dict[str, Any], raw: dict[tuple[str, int, int], tuple[int, str]]
) -> dict[str, Any]:
    """All that the page draws.

    Args:
        collected: what the archive holds.
        about: name of the source, versions, policy and whether statements were recorded or replayed.
        raw: cited records by place, with their arrival and JSON.
    """
    jobs = _job_order(collected)
    devices = _device_names(collected)
    return {
        "about": {**about, "from_ms": (collected.first_ns or 0) / 1e6, "to_ms": collected.last_ns / 1e6},
        "summary": summary(collected),
        "jobs": [_job(collected, job_id) for job_id in jobs[:_MOST_JOBS]],
        "jobs_total": len(jobs),
        "heats": _heats(collected),
        "devices": _lanes(collected, devices),
        "devices_total": len(devices),
        "incidents": incident_rows(collected, {place: at_ms for place, (at_ms, _) in raw.items()}),
        "findings": finding_rows(collected),
        "findings_total": len(collected.findings),
        "silences": silence_rows(collected),
        "raw": [
            {"id": raw_anchor(place), "place": f"{place[0]}/{place[1]} @ {place[2]}", "arrived_ms": at_ms, "json": text}
            for place, (at_ms, text) in raw.items()
        ],
    }


# --- Steps ------------------------------------------------------------------------------------------------------------


def _job_order(collected: Collected) -> list[str]:
    """Jobs with steps: those of incidents first, then the largest."""
    of_incidents = {job_of(incident) for incident in last_words(collected)}
    sizes = {job_id: job.world_size for job_id, job in collected.jobs.items()}
    return sorted({step.job_id for step in collected.steps}, key=lambda j: (j not in of_incidents, -sizes.get(j, 0), j))


def _job(collected: Collected, job_id: str) -> dict[str, Any]:
    told = sorted((s for s in collected.steps if s.job_id == job_id), key=lambda s: s.at_ns)
    # Checkpoints and warm-up take long by nature: among training steps they would look like trouble.
    steps = [s for s in told if s.phase == "train"] or told
    slowest = sorted(
        ((rank, count) for (job, rank), count in collected.slow_counts.items() if job == job_id),
        key=lambda item: -item[1],
    )
    bins = max(1, -(-len(steps) // _POINTS))
    groups = [steps[index : index + bins] for index in range(0, len(steps), bins)]
    return {
        "job_id": job_id,
        "steps": len(steps),
        "others": len(told) - len(steps),
        "bin": bins,
        "at": [round(group[-1].at_ns / 1e9, 3) for group in groups],
        "step_s": _slowest_s(groups, lambda s: s.step_us),
        "median_s": _slowest_s(groups, lambda s: s.own_median_us),
        "slowest_s": _slowest_s(groups, lambda s: s.own_max_us),
        "mfu": [
            round(sum(known) / len(known), 4) if (known := [s.mfu for s in group if s.mfu is not None]) else None
            for group in groups
        ],
        "missing": [max(s.missing for s in group) for group in groups],
        "slowest": [
            {
                "rank": rank,
                "count": count,
                "worst": round(collected.worst_ratio.get((job_id, rank), 1.0), 3),
                "where": collected.placed.get((job_id, rank), ("", None))[0],
            }
            for rank, count in slowest[:_MOST_SLOWEST]
        ],
        "slowest_total": len(slowest),
    }


def _slowest_s(groups: list[list[StepPoint]], of: Callable[[StepPoint], int | None]) -> list[float | None]:
    """By group the longest of a time, in seconds; null where no step has it."""
    longest_us = (max((us for step in group if (us := of(step)) is not None), default=None) for group in groups)
    return [round(us / 1e6, 5) if us is not None else None for us in longest_us]


# --- Maps and lanes ---------------------------------------------------------------------------------------------------


def _heats(collected: Collected) -> list[dict[str, Any]]:
    drawn = []

    def draw(
        heat: HeatMap, name: str, about: str, unit: str, rows: str, low: float, high: float, label: Callable[[Any], str]
    ) -> None:
        if not heat:
            return
        order: list[Hashable] = sorted(heat.keys, key=str) if rows != "ranks" else sorted(heat.keys)  # type: ignore[type-var]
        data = heat.drawn(order, low, high)
        data["labels"] = [label(order[index]) for index in data.pop("keys")]
        drawn.append({"name": name, "about": about, "unit": unit, "what": rows, **data})

    def of_rank(key: tuple[str, int]) -> str:
        node = collected.placed.get(key, ("", None))[0]
        return f"{f'{key[0]} ' if is_shared else ''}rank {key[1]} {node}".strip()

    def of_device(key: tuple[str, str]) -> str:
        return f"{key[0]} {short_uuid(key[1])}"

    is_shared = len({key[0] for key in collected.own_ratio.keys}) > 1  # type: ignore[index]
    high = collected.own_ratio.quantile(0.9999) or 1.3
    draw(
        collected.own_ratio,
        "Slow ranks",
        "Own time of a rank in a step, over the median of its peers",
        "\N{MULTIPLICATION SIGN}",
        "ranks",
        1.0,
        max(1.2, min(3.0, high)),
        of_rank,
    )
    clocks = collected.clock_mhz.quantile(0.0), collected.clock_mhz.quantile(0.5)
    if clocks[0] is not None and clocks[1] is not None:
        # The sign of a clock is turned, so that its quantile from below is its highest.
        top = max(clocks[0], clocks[1])
        draw(collected.clock_mhz, "SM clock", "Lowest SM clock of a GPU", "MHz", "GPUs", top * 0.6, top, of_device)
    draw(collected.temperature_c, "Temperature", "Highest temperature of a GPU", "°C", "GPUs", 30, 90, of_device)
    for pauses, name, about in (
        (collected.pause_per_s, "Pauses received", "Pause frames that a port received: it was told to stop sending"),
        (collected.pause_sent_per_s, "Pauses sent", "Pause frames that a port sent: it told others to stop"),
    ):
        top = pauses.quantile(1.0) or 0.0
        if top > 0:
            draw(pauses, name, about, "/s", "ports", 0, max(100.0, top), of_device)
    draw(
        collected.delay_s,
        "Delay",
        "Longest time from an event to its record's arrival at the brokers",
        "s",
        "streams",
        0,
        max(5.0, min(120.0, collected.delay_s.quantile(1.0) or 0)),
        str,
    )
    return drawn


_LANES = (
    ("SM clock", "MHz", (("clock_mhz", "SM clock"),)),
    ("Temperature", "°C", (("temperature_c", "temperature"),)),
    ("Power", "W", (("power_w", "power"),)),
    ("Pause frames", "/s", (("pause_per_s", "received"), ("pause_sent_per_s", "sent"))),
)
"""Charts of a device or port: title, unit, and the lines in it by the map that has them."""


def _device_names(collected: Collected) -> dict[tuple[str, str], tuple[str, str]]:
    """Devices with telemetry that incidents name, then those that warnings name: a short name and the whole one."""
    named: dict[tuple[str, str], tuple[str, str]] = {}
    subjects = [i.culprit for i in last_words(collected) if i.culprit is not None]
    subjects += [said.record.subject for said in collected.findings.values() if said.record.severity != "info"]
    for subject in subjects:
        node_id, device = subject.node_id, subject.gpu_uuid
        if subject.rank is not None and subject.job_id is not None and device is None:
            node_id, device = collected.placed.get((subject.job_id, subject.rank), (node_id, None))
        if device is None and subject.device is not None:
            device = f"{subject.device} {subject.port or ''}".strip()
        if node_id is None or device is None:
            continue
        if any(getattr(collected, heat).knows((node_id, device)) for *_, lines in _LANES for heat, _ in lines):
            named.setdefault((node_id, device), (short_place(subject), place_name(subject)))
    return named


def _lanes(collected: Collected, named: dict[tuple[str, str], tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"short": short, "name": name, "charts": [chart for lane in _LANES for chart in _charts(collected, key, *lane)]}
        for key, (short, name) in islice(named.items(), _MOST_DEVICES)
    ]


def _charts(
    collected: Collected, key: tuple[str, str], title: str, unit: str, wanted: tuple[tuple[str, str], ...]
) -> list[dict[str, Any]]:
    """One chart of the lines that share their times; a map that began later has a chart of its own."""
    charts: list[dict[str, Any]] = []
    for heat, label in wanted:
        times, values = getattr(collected, heat).row(key)
        if not any(value is not None for value in values):
            continue
        if not charts or charts[-1]["at"] != times:
            named = f"{title} {label}" if charts else title
            charts.append({"title": named, "unit": unit, "at": times, "lines": []})
        charts[-1]["lines"].append({"label": label, "values": values})
    return charts
