"""The figures of an incident for those who do not know the trade: who, since when, at what cost, and what was done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.report.statements import job_of, last_words

if TYPE_CHECKING:
    from paceline.report.collected import Collected
    from schemas.remediation import Incident

__all__ = ["summary"]


def summary(collected: Collected) -> dict[str, Any]:
    """Figures and sentences.

    Returns:
        Among others `weightiest`, the id of the incident to begin with, and `money_lost` where every incident that cost
        something has a price; `price` is that of a GPU-hour where there is but one.
    """
    incidents = last_words(collected)
    lost = [i.gpu_hours_lost for i in incidents if i.gpu_hours_lost is not None]
    money, price = _money(collected, incidents)
    kinds = Counter(said.record.kind for said in collected.commands.values())
    weightiest = max(incidents, key=_weight, default=None)
    return {
        "span_s": (collected.last_ns - (collected.first_ns or collected.last_ns)) / 1e9,
        "jobs": len({step.job_id for step in collected.steps} | set(collected.jobs)),
        "gpus": sum(job.world_size for job in collected.jobs.values()),
        "nodes": len(collected.nodes),
        "steps": len(collected.steps),
        "incidents": len(collected.incidents),
        "going_on": sum(words[-1].record.state != "resolved" for words in collected.incidents.values()),
        "blamed": len({i.culprit.key() for i in incidents if i.culprit is not None}),
        "weightiest": weightiest.incident_id if weightiest is not None else None,
        "commands": dict(sorted(kinds.items())),
        "said_only": sum(said.record.mode == "observe" for said in collected.commands.values()),
        "results": dict(Counter(said.record.outcome for said in collected.results)),
        "gpu_hours_lost": round(sum(lost), 4) if lost else None,
        "money_lost": money,
        "price": price,
        "silent": len({silence.source for silence in collected.silences}),
        "sentences": _sentences(collected),
    }


def _weight(incident: Incident) -> tuple[float, bool, bool, int]:
    """What cost most comes first; where nothing is known of costs, what somebody can be blamed for and goes on."""
    return (
        incident.gpu_hours_lost or 0.0,
        incident.culprit is not None,
        incident.state != "resolved",
        -incident.onset_ns,
    )


def _money(collected: Collected, incidents: list[Incident]) -> tuple[float | None, float | None]:
    """What all incidents cost by the price of their jobs, else of the site; and the price where it is one."""
    of_site = next((p.gpu_hour_cost for p in reversed(collected.policies) if p.gpu_hour_cost), None)
    costs, prices = [], set()
    for incident in incidents:
        if incident.gpu_hours_lost is None:
            continue
        job = collected.jobs.get(job_of(incident) or "")
        price = (job.gpu_hour_cost if job is not None else None) or of_site
        if price is None:
            return None, None
        costs.append(incident.gpu_hours_lost * price)
        prices.add(price)
    return (round(sum(costs), 2) if costs else None), (prices.pop() if len(prices) == 1 else None)


def _sentences(collected: Collected) -> list[str]:
    told = []
    times: dict[str, list[int]] = {}
    for step in collected.steps:
        if step.phase == "train" and step.step_us:
            times.setdefault(step.job_id, []).append(step.step_us)
    for job_id in sorted(times):
        job = collected.jobs.get(job_id)
        size = f" on {job.world_size:,} GPUs" if job is not None else ""
        told.append(
            f"Job {job_id}{size} made {len(times[job_id]):,} training steps: half of them took less than "
            f"{np.median(times[job_id]) / 1e6:.2f} s, the longest {max(times[job_id]) / 1e6:.2f} s."
        )
    return told
