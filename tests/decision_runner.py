"""Decision scenarios as data: findings and kernel lines in, incidents and signed commands out, and what of it was not as told.

The format is in tests/decision_scenarios/README.md. Kernel lines and statuses go through the telemetry engine, findings are
given as detectors publish them, and all of it through the decisions engine with the name of a signing key, so that commands go
out as the policy has them. Nothing is drawn at random and no clock is read.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from factories import SITE, START_NS, at, job, pci_of, placement, uuid_of
from scenario_runner import known_keys, unmet

from schemas import catalog
from schemas.events import KernelEvent, NodeStatus
from schemas.findings import Finding, ProgressMark, Subject
from schemas.fleet import Node, Policy
from schemas.remediation import ActionResult, Command, Decision, Incident
from schemas.topics import topic_of
from streams.core.position import Position
from streams.core.roster import Roster
from streams.core.snapshot_codec import pack, unpack
from streams.decisions.remedies import Remedy
from streams.engines.decisions import DecisionsEngine
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemas.base import Record

__all__ = [
    "AFTER_S",
    "Story",
    "catalogue_classes",
    "commands_of",
    "load",
    "outputs_of",
    "policy_of",
    "steps_of",
    "unmet_of",
]

KEY_ID = "ed25519-1"
_SHARED = {"summary", "site", "job", "policy", "fires", "look_alike"}
_PARTS = ("kernel", "status", "finding", "slow", "result", "order", "restart", "again")
_KINDS = {"incident": "incident", "command": "command", "held": "held"}
AFTER_S = 40


@dataclass(frozen=True, slots=True)
class Story:
    """What happens in one of a file's two stories, and what must come of it."""

    name: str
    site: dict[str, Any]
    jobs: tuple[dict[str, Any], ...]
    policy: Policy
    told: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing that reaches the engines, at a second."""

    second: float
    thing: Any


def load(path: Path) -> tuple[Story, Story]:
    """The two stories of a file: what fires, and its look-alike.

    Raises:
        ValueError: the file has a key that the format does not know, or a story expects nothing.
    """
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    known_keys(path.name, told, _SHARED)
    stories = []
    for part in ("fires", "look_alike"):
        known_keys(f"{path.name} {part}", told[part], {"summary", "until_s", "policy", "job", "expect", *_PARTS})
        expect = told[part].get("expect", {})
        known_keys(f"{path.name} {part}.expect", expect, {*_KINDS, *(f"no_{kind}" for kind in _KINDS)})
        if not expect:
            raise ValueError(f"{path.name}: {part} expects nothing")
        policy = policy_of({**told.get("policy", {}), **told[part].get("policy", {})})
        jobs = tuple(told[part].get("job", told.get("job", ())))
        stories.append(Story(f"{path.stem} {part}", told.get("site", {}), jobs, policy, told[part]))
    return stories[0], stories[1]


def policy_of(fields: dict[str, Any]) -> Policy:
    """A site's policy under which commands go out unless the file says otherwise."""
    return Policy.model_validate(
        {"policy_version": "scenario", "site_id": SITE, "effective_from_ns": START_NS, "mode": "auto", **fields}
    )


def unmet_of(story: Story, outputs: list[Record]) -> list[str]:
    """Expectations of a story that do not hold, one line each."""
    commands = {command.command_id: command for command in commands_of(outputs)}
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in outputs:
        if isinstance(record, Incident | Command):
            by_kind[record.record].append(record.model_dump())
        elif isinstance(record, Decision) and record.action == "held":
            held = commands.get(record.subject_id)
            about = {"kind": held.kind, "target": held.target.model_dump()} if held is not None else {}
            by_kind["held"] += [{**about, **hold} for hold in record.detail["holds"]]
    return unmet(story.name, story.told["expect"], by_kind, _KINDS)


def commands_of(outputs: list[Record]) -> list[Command]:
    """The commands among what came out."""
    return [record for record in outputs if isinstance(record, Command)]


def outputs_of(story: Story, **policy: Any) -> list[Record]:
    """What the engines make of a story, with fields of its policy replaced where asked."""
    return _Run(replace(story, policy=story.policy.model_copy(update=policy))).outputs()


class _Run:
    """The engines of one site while a story is told to them."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._roster = _roster(story)
        self._telemetry = TelemetryEngine(SITE, 0, self._roster)
        self._decisions = DecisionsEngine(SITE, self._roster, KEY_ID)
        self._log: list[tuple[Record, Position]] = []
        self._offsets: dict[str, int] = defaultdict(int)
        self._said: list[Record] = []

    def outputs(self) -> list[Record]:
        steps = sorted(steps_of(self._story), key=lambda step: step.second)
        until_s = self._story.told.get("until_s") or (steps[-1].second + AFTER_S if steps else AFTER_S)
        second = 0
        for step in steps:
            while second < step.second:
                self._mark(second)
                second += 1
            self._take(step)
        while second <= until_s:
            self._mark(second)
            second += 1
        return self._said

    def _mark(self, second: float) -> None:
        self._decide(ProgressMark(site_id=SITE, role="telemetry", partition=0, mark_ns=at(second)), second)

    def _take(self, step: _Step) -> None:
        thing = step.thing
        if isinstance(thing, KernelEvent | NodeStatus):
            for found in self._telemetry.on_record(thing, self._place(thing, step.second)):
                # Marks of one partition of lines would say that time stands still between them.
                if isinstance(found, Finding):
                    self._decide(found, step.second)
        elif isinstance(thing, Finding):
            self._decide(thing, step.second)
        elif thing["do"] == "restart":
            self._restart()
        elif thing["do"] == "again":
            for record, _ in list(self._log):
                if isinstance(record, Finding) and at(thing["from_s"]) <= record.event_time_ns <= at(thing["to_s"]):
                    self._decide(record, step.second)
        elif thing["do"] == "place":
            for record in thing["records"]:
                self._roster.take(record)
        elif thing["do"] == "order":
            self._order(thing, step.second)
        else:
            self._result(thing, step.second)

    def _decide(self, record: Record, second: float) -> None:
        place = self._place(record, second)
        self._log.append((record, place))
        self._said += self._decisions.on_record(record, place)

    def _result(self, told: dict[str, Any], second: float) -> None:
        """What came of the last order of a kind on a node."""
        orders = [
            command
            for command in commands_of(self._said)
            if command.mode != "observe"
            and command.kind == told["kind"]
            and command.target.key() in {f"node-{told.get('node', 0)}", told.get("job_id")}
        ]
        result = ActionResult(
            command_id=orders[-1].command_id,
            site_id=SITE,
            actuator_id="slurm",
            event_time_ns=at(second),
            outcome=told["outcome"],
            code=told.get("code"),
        )
        self._decide(result, second)

    def _order(self, told: dict[str, Any], second: float) -> None:
        """A kind of command for the open incident of a node, whoever asks for it."""
        (incident,) = [
            one
            for one in self._decisions._book.open_ones()
            if one.culprit is not None and one.culprit.node_id == f"node-{told.get('node', 0)}"
        ]
        self._said += self._decisions._orders.order(incident, Remedy(incident.cause_class, told["kind"]), at(second))

    def _restart(self) -> None:
        """End the decisions role and start it again from its snapshot; what it held is read again."""
        packed = pack(self._decisions.snapshot())
        folded = {topic: offset - 1 for topic, offset in self._offsets.items()}
        resume = self._decisions.resume_offsets()
        self._decisions = DecisionsEngine(SITE, self._roster, KEY_ID)
        self._decisions.restore(unpack(packed.chunks, packed.digest), folded)
        for record, place in self._log:
            if place.offset >= resume.get(place.topic, 2**63):
                self._said += self._decisions.on_record(record, place)

    def _place(self, record: Record, second: float) -> Position:
        topic = topic_of(record).name
        self._offsets[topic] += 1
        return Position(topic, 0, self._offsets[topic] - 1, at(second) // 1_000_000)


def _roster(story: Story) -> Roster:
    """Nodes with their places, and the jobs that run from the start."""
    site = {"nodes": 32, "gpus": 8, "per_rack": 4, "per_leaf": 8, "per_zone": 32, **story.site}
    known_keys(f"{story.name} site", site, {"nodes", "gpus", "per_rack", "per_leaf", "per_zone"})
    roster = Roster()
    roster.policy = story.policy
    for number in range(site["nodes"]):
        node_id = f"node-{number}"
        roster.take(
            Node(
                node_id=node_id,
                effective_from_ns=START_NS,
                gpu_uuid=tuple(uuid_of(node_id, gpu) for gpu in range(site["gpus"])),
                pci_bus_id=tuple(pci_of(gpu) for gpu in range(site["gpus"])),
                rack=f"r{number // site['per_rack']}",
                leaf=f"l{number // site['per_leaf']}",
                zone=f"z{number // site['per_zone']}",
            )
        )
    for told in story.jobs:
        if not told.get("from_s"):
            for record in _job_records(told, site["gpus"]):
                roster.take(record)
    return roster


def _job_records(told: dict[str, Any], gpus: int) -> list[Record]:
    known_keys("job", told, {"job_id", "nodes", "from_s", "epoch", "step_timings"})
    epoch, nodes = told.get("epoch", 0), told["nodes"]
    if not nodes:
        return [job(gpus, job_id=told["job_id"], epoch=epoch, state="ended", version=2)]
    fields = {"step_timings": told.get("step_timings", True)}
    records: list[Record] = [job(len(nodes) * gpus, job_id=told["job_id"], epoch=epoch, **fields)]
    for index, node in enumerate(nodes):
        ranks = range(index * gpus, (index + 1) * gpus)
        records.append(
            placement(ranks, node_id=f"node-{node}", job_id=told["job_id"], epoch=epoch).model_copy(
                update={"effective_from_ns": at(told.get("from_s", 0))}
            )
        )
    return records


def steps_of(story: Story) -> Iterator[_Step]:
    """What reaches the engines, section by section."""
    told, gpus = story.told, {"gpus": 8, **story.site}["gpus"]
    for place in story.jobs:
        if place.get("from_s"):
            yield _Step(place["from_s"], {"do": "place", "records": _job_records(place, gpus)})
    for number, entry in enumerate(told.get("kernel", ())):
        for record in _kernel(number, entry):
            yield _Step(entry.get("arrives_s", entry["at_s"]), record)
    for number, entry in enumerate(told.get("status", ())):
        yield _Step(entry["at_s"], _status(number, entry))
    for entry in told.get("finding", ()):
        yield from _findings(entry)
    for entry in told.get("slow", ()):
        yield from _slow(entry, story, gpus)
    for entry in told.get("result", ()):
        known_keys("result", entry, {"at_s", "kind", "node", "job_id", "outcome", "code"})
        yield _Step(entry["at_s"], {"do": "result", **entry})
    for name in ("order", "restart", "again"):
        for entry in told.get(name, ()):
            known_keys(name, entry, {"at_s", "from_s", "to_s"} if name != "order" else {"at_s", "kind", "node"})
            yield _Step(entry["at_s"], {"do": name, **entry})


def _kernel(number: int, entry: dict[str, Any]) -> Iterator[KernelEvent]:
    """A line on a node, or the same on each of `nodes`, `apart_s` after each other."""
    fields = {name: value for name, value in entry.items() if name not in {"at_s", "arrives_s", "node", "nodes", "gpu"}}
    apart_s = fields.pop("apart_s", 0)
    known_keys("kernel", fields, set(KernelEvent.model_fields))
    gpu = entry.get("gpu", 0)
    for index, node in enumerate(entry.get("nodes", [entry.get("node", 0)])):
        yield KernelEvent(
            node_id=f"node-{node}",
            agent_session="s1",
            boot_id=fields.get("boot_id", "boot-1"),
            kmsg_seq=1_000 * number + index,
            event_time_ns=at(entry["at_s"] + apart_s * index),
            source=fields.get("source", "xid"),
            pci_bus_id=pci_of(gpu),
            **{name: value for name, value in fields.items() if name not in {"boot_id", "source"}},
        )


def _status(number: int, entry: dict[str, Any]) -> NodeStatus:
    known_keys("status", entry, {"at_s", "node", "state", "boot_id"})
    return NodeStatus(
        node_id=f"node-{entry.get('node', 0)}",
        agent_session=f"s{number}",
        seq=0,
        event_time_ns=at(entry["at_s"]),
        state=entry["state"],
        boot_id=entry.get("boot_id"),
    )


def _findings(entry: dict[str, Any]) -> Iterator[_Step]:
    """A finding as a detector publishes it, and its clearing; of a GPU, a node, or what `subject` says."""
    named = {"at_s", "arrives_s", "clear_s", "node", "gpu", "subject", "onset_s", "code"}
    fields = {name: value for name, value in entry.items() if name not in named}
    known_keys("finding", fields, set(Finding.model_fields))
    at_s = entry["at_s"]
    subject = Subject.model_validate(entry["subject"]) if "subject" in entry else _device(entry)
    found = Finding(
        finding_id="/".join(part for part in (entry["kind"], *subject.key().split("/"), str(at_s)) if part),
        site_id=SITE,
        rule=fields.get("rule", entry["kind"]),
        severity="warning",
        state="open",
        subject=subject,
        event_time_ns=at(at_s),
        onset_ns=at(entry.get("onset_s", at_s)),
        explanation=fields.get("explanation", entry["kind"]),
        **{name: value for name, value in fields.items() if name not in {"rule", "explanation"}},
    )
    yield _Step(entry.get("arrives_s", at_s), found)
    if "clear_s" in entry:
        over = found.model_copy(update={"state": "cleared", "event_time_ns": at(entry["clear_s"])})
        yield _Step(entry["clear_s"], over)


def _device(entry: dict[str, Any]) -> Subject:
    node_id = f"node-{entry.get('node', 0)}"
    if "gpu" not in entry:
        return Subject(level="node", node_id=node_id)
    gpu = entry["gpu"]
    return Subject(level="gpu", node_id=node_id, gpu_uuid=uuid_of(node_id, gpu), pci_bus_id=pci_of(gpu))


def _slow(entry: dict[str, Any], story: Story, gpus: int) -> Iterator[_Step]:
    """A straggler: a rank of a job that loses a share of each step to it."""
    known_keys("slow", entry, {"at_s", "clear_s", "onset_s", "job_id", "rank", "slowdown", "share", "host"})
    job_id, rank = entry.get("job_id", "job-1"), entry["rank"]
    nodes = next(told["nodes"] for told in story.jobs if told["job_id"] == job_id and told["nodes"])
    node_id, gpu = f"node-{nodes[rank // gpus]}", rank % gpus
    share, step_us = entry.get("share", 0.3), 1_000_000
    values: dict[str, Any] = {"excess_us": round(share * step_us), "step_time_us": step_us}
    if entry.get("host"):
        values["host_excess_us"] = values["excess_us"]
    subject = Subject(level="rank", job_id=job_id, rank=rank, node_id=node_id, gpu_uuid=uuid_of(node_id, gpu))
    told = {
        "kind": "straggler",
        "subject": subject.model_dump(exclude={"record"}),
        "slowdown": entry.get("slowdown", 1.4),
        "job_id": job_id,
        "values": values,
        **{name: entry[name] for name in ("at_s", "clear_s", "onset_s") if name in entry},
    }
    yield from _findings(told)


def catalogue_classes() -> set[tuple[str, str, str]]:
    """(source, severity, suggested action) of every code there is."""
    return {
        (source, entry.severity, entry.suggested_action)
        for source, entries in (("xid", catalog.xids()), ("sxid", catalog.sxids()))
        for entry in entries.values()
    }
