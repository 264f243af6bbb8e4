"""The topic table: which record families a topic carries, by what it is keyed, and how long it is kept.

One declaration that everything reads: the codec, the publishers, `paceline topics`, the docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.base import Record
from schemas.errors import SchemaError, UnknownTopicError
from schemas.events import KernelEvent, NodeStatus
from schemas.findings import Finding, ProgressMark
from schemas.fleet import Job, Node, Policy, PolicyHeartbeat, RankPlacement
from schemas.frames import FabricFrame, GpuFrame
from schemas.remediation import ActionResult, Approval, Command, Decision, Incident
from schemas.results import JobPerformance, StepResult
from schemas.steps import CollectiveDigest, RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEAD_LETTER",
    "LATE",
    "REFERENCE_FAMILIES",
    "SNAPSHOT_CHANGELOGS",
    "TOPICS",
    "Topic",
    "app_id",
    "topic_named",
    "topic_of",
]

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the table.

    Attributes:
        family: the middle of the name, as `gpu-frames`.
        records: the record families it carries; empty for topics of original bytes (dead letters, late records).
        key: the message key of a record.
        retention_ms: how long the broker keeps a record.
        role: which partition count it shares: topics of one role are read together and must be co-partitioned.
        cloud_event: whether records carry CloudEvents headers.
    """

    family: str
    records: tuple[type[Record], ...]
    key: Callable[..., str]
    retention_ms: int
    role: str
    cloud_event: bool = False
    version: int = 1

    @property
    def name(self) -> str:
        """The full name: `paceline.<family>.v<version>`."""
        return f"paceline.{self.family}.v{self.version}"


def _node(record: Record) -> str:
    return str(record.node_id)  # type: ignore[attr-defined]


def _job(record: Record) -> str:
    return str(record.job_id)  # type: ignore[attr-defined]


def _site(record: Record) -> str:
    return str(record.site_id)  # type: ignore[attr-defined]


def _publisher(record: FabricFrame) -> str:
    return record.publisher_id


def _target(record: Command) -> str:
    return record.target.key()


def _original(record: Record) -> str:  # noqa: ARG001
    raise SchemaError("a record of original bytes keeps its original key")


TOPICS: tuple[Topic, ...] = (
    Topic("gpu-frames", (GpuFrame,), _node, 7 * _DAY_MS, "telemetry"),
    Topic("fabric-frames", (FabricFrame,), _publisher, 7 * _DAY_MS, "telemetry"),
    Topic("kernel-events", (KernelEvent,), _node, 90 * _DAY_MS, "telemetry"),
    Topic("node-status", (NodeStatus,), _node, 90 * _DAY_MS, "telemetry"),
    Topic("step-timings", (StepTiming, RankProgress), _job, 14 * _DAY_MS, "jobs"),
    Topic("collective-digests", (CollectiveDigest,), _job, 14 * _DAY_MS, "jobs"),
    Topic("jobs", (Job, RankPlacement), _job, 365 * _DAY_MS, "jobs"),
    Topic("nodes", (Node,), _node, 365 * _DAY_MS, "reference"),
    Topic("policy", (Policy,), _site, 365 * _DAY_MS, "decisions"),
    Topic("policy-heartbeats", (PolicyHeartbeat,), _site, _DAY_MS, "output"),
    Topic("step-results", (StepResult,), _job, 90 * _DAY_MS, "output"),
    Topic("job-performance", (JobPerformance,), _job, 90 * _DAY_MS, "output"),
    Topic("findings", (Finding, ProgressMark), _site, 90 * _DAY_MS, "decisions", cloud_event=True),
    Topic("approvals", (Approval,), _site, 365 * _DAY_MS, "decisions"),
    Topic("decisions", (Decision,), _site, 365 * _DAY_MS, "output"),
    Topic("incidents", (Incident,), _site, 365 * _DAY_MS, "output", cloud_event=True),
    Topic("actions", (Command,), _target, 365 * _DAY_MS, "output", cloud_event=True),
    Topic("action-results", (ActionResult,), _site, 365 * _DAY_MS, "decisions", cloud_event=True),
    Topic("dead-letter", (), _original, 30 * _DAY_MS, "output"),
    Topic("late", (), _original, 30 * _DAY_MS, "output"),
)

_BY_NAME = {topic.name: topic for topic in TOPICS}
_BY_FAMILY = {topic.family: topic for topic in TOPICS}
_BY_RECORD = {record: topic for topic in TOPICS for record in topic.records}


def app_id(role: str) -> str:
    """The Faust app id and consumer group of a role."""
    return f"paceline-{role}"


SNAPSHOT_CHANGELOGS = tuple(f"{app_id(role)}-snapshots-changelog" for role in ("telemetry", "jobs", "decisions"))
"""Compacted topics of the workers' state, partitioned like what each role reads."""

REFERENCE_FAMILIES = frozenset({"jobs", "nodes", "policy"})
"""Families by which all others are judged: small, and read from their first record on."""

DEAD_LETTER = _BY_FAMILY["dead-letter"]
LATE = _BY_FAMILY["late"]


def topic_named(name: str) -> Topic:
    """The topic of a full name (`paceline.findings.v1`) or a family (`findings`).

    Raises:
        UnknownTopicError: the table has no such topic.
    """
    topic = _BY_NAME.get(name) or _BY_FAMILY.get(name)
    if topic is None:
        raise UnknownTopicError(f"no topic {name!r}; the table has {', '.join(sorted(_BY_FAMILY))}")
    return topic


def topic_of(record: Record | type[Record]) -> Topic:
    """The topic that carries a record's family.

    Raises:
        UnknownTopicError: the family travels inside others only.
    """
    family = record if isinstance(record, type) else type(record)
    try:
        return _BY_RECORD[family]
    except KeyError:
        raise UnknownTopicError(f"{family.__name__} is carried by no topic of its own") from None
