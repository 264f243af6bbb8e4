"""Which records belong to a job or a node, so that a recording holds what an incident needs and not the whole fleet.

Of a job: its steps, the telemetry of the nodes that its placements name, what was said about either, and every switch. Of a
node: its telemetry, and the whole of the jobs with ranks on it, because a rank is judged by its peers. Jobs, nodes and policy
are kept whole; progress marks and the journal are not kept, since they are about everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from schemas.topics import REFERENCE_FAMILIES, topic_named

if TYPE_CHECKING:
    from streams.recording.taken import Taken

__all__ = ["Selection"]

_BY_NODE = {"gpu-frames", "fabric-frames", "kernel-events", "node-status"}
_BY_JOB = {"step-timings", "collective-digests", "step-results", "job-performance"}
_BY_COMMAND = {"approvals", "action-results"}
_NEVER = {"decisions"}


class Selection:
    """Chooses records in order of arrival; placements are learned as they pass.

    Args:
        job_ids: jobs that are wanted.
        node_ids: nodes that are wanted. Without any of either all is.
    """

    def __init__(self, job_ids: tuple[str, ...] = (), node_ids: tuple[str, ...] = ()) -> None:
        self._is_all = not job_ids and not node_ids
        self._asked_jobs, self._asked_nodes = frozenset(job_ids), frozenset(node_ids)
        self.jobs, self.nodes = set(job_ids), set(node_ids)
        self._commands: set[str] = set()
        self._placed: set[str] = set()

    def wants(self, taken: Taken) -> bool:
        """Whether a message is recorded; what is no JSON is, when its key is of a job or node that is wanted."""
        if self._is_all:
            return True
        family = topic_named(taken.topic).family
        try:
            value = orjson.loads(taken.value) if taken.value is not None else None
        except orjson.JSONDecodeError:
            value = None
        if family in _NEVER:
            return False
        if family in REFERENCE_FAMILIES:
            self.learn(value)
            return True
        if not isinstance(value, dict):
            key = (taken.key or b"").decode(errors="replace")
            return key in self.jobs or key in self.nodes
        return self._wants(family, value)

    def _wants(self, family: str, value: dict[str, Any]) -> bool:
        if family in _BY_NODE:
            return value.get("node_id") in self.nodes or value.get("switch_id") is not None
        if family in _BY_JOB:
            return value.get("job_id") in self.jobs
        if family in _BY_COMMAND:
            return value.get("command_id") in self._commands
        if family == "findings":
            return value.get("record") == "finding" and self._is_about(value, value.get("subject"))
        if family == "incidents":
            return self._is_about(value, value.get("culprit"))
        if family == "actions":
            is_wanted = self._is_about(value, value.get("target"))
            if is_wanted:
                self._commands.add(str(value.get("command_id")))
            return is_wanted
        # Dead letters and late records: original bytes, of a job or a node.
        return value.get("job_id") in self.jobs or value.get("node_id") in self.nodes

    def _is_about(self, value: dict[str, Any], place: Any) -> bool:
        """Whether a statement is about what is wanted; what names neither a job nor a node is about everybody."""
        place = place if isinstance(place, dict) else {}
        jobs = {name for name in (value.get("job_id"), place.get("job_id")) if name is not None}
        nodes = {place["node_id"]} if place.get("node_id") is not None else set()
        if not jobs and not nodes:
            return True
        return bool(jobs & self.jobs or nodes & self.nodes)

    def unseen(self) -> list[str]:
        """Jobs that were asked for and that no placement named."""
        return sorted(self._asked_jobs - self._placed)

    def learn(self, value: Any) -> None:
        """Take who runs where from a placement; other values say nothing about it."""
        if not isinstance(value, dict) or value.get("record") != "rank_placement":
            return
        job_id, node_id = value.get("job_id"), value.get("node_id")
        if job_id in self._asked_jobs and isinstance(node_id, str):
            self._placed.add(job_id)
            self.nodes.add(node_id)
        if node_id in self._asked_nodes and isinstance(job_id, str):
            self.jobs.add(job_id)
