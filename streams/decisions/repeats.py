"""Codes of the application that come again on one device under different jobs: then the device is looked at, and no more.

Once, such a code is the program's own fault. A job whose code is seen on several devices carries its fault along and points at
none of them. Plain data, bounded in time and number; no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas import catalog
from streams.decisions.signs import is_observed_only

if TYPE_CHECKING:
    from schemas.findings import Finding

__all__ = ["AppCodeRepeats"]

_SPAN_NS = 24 * 3_600_000_000_000
"""The catalogue's own span for "again on the same GPU"."""

_JOBS = 2
_MOST = 4_096
_CLEANUP = 45
"""Written for every channel that another fault takes down: it says nothing of its own."""


class AppCodeRepeats:
    """Remembers which job met which code where, for a day."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int, str, str]] = []
        """(event time, code, component, job), in order of arrival."""

    def take(self, finding: Finding, component: str, job_id: str | None) -> bool:
        """Take a code, and say whether it points at the device by now.

        Args:
            finding: a kernel code.
            component: the device that it is about.
            job_id: the job that ran there; a code that no job can have caused is none of the application's.
        """
        code = finding.values.get("code")
        if finding.kind != "xid" or not isinstance(code, int) or job_id is None or is_observed_only(finding):
            return False
        entry = catalog.xid(code)
        if entry is None or entry.severity != "app" or code == _CLEANUP or not component.startswith("gpu:"):
            return False
        oldest_ns = finding.event_time_ns - _SPAN_NS
        self._seen = [one for one in self._seen if one[0] > oldest_ns][-_MOST + 1 :]
        self._seen.append((finding.event_time_ns, code, component, job_id))
        places: dict[str, set[str]] = {}
        for _, seen_code, place, job in self._seen:
            if seen_code == code:
                places.setdefault(job, set()).add(place)
        return sum(of == {component} for of in places.values()) >= _JOBS

    def snapshot(self) -> list[list[Any]]:
        """Plain data that `restore` takes."""
        return [list(one) for one in self._seen]

    def restore(self, snapshot: list[list[Any]]) -> None:
        """Replace the state by a snapshot's."""
        self._seen = [(at_ns, code, component, job_id) for at_ns, code, component, job_id in snapshot]
