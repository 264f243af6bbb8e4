"""Who answers: nobody, whoever always restarts, whoever counts codes, and the decisions engine with its policy.

The engine gets what detectors state: kernel codes through their rule, other findings as their rules write them, and marks
by which it knows that everybody has spoken. Its acts are commands in mode `auto`, taken as done at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from paceline.evaluation.acts.faults import shape_of
from paceline.evaluation.acts.simulation import RESETS, TAKES_OUT, Act
from schemas import catalog
from schemas.events import KernelEvent
from schemas.findings import Evidence, Finding, ProgressMark, Subject
from schemas.fleet import Job, Layout, Node, Policy, RankPlacement, RulePolicy
from schemas.remediation import ActionResult, Command
from schemas.topics import topic_of
from streams.core.guard_limits import known_guards
from streams.core.position import Position
from streams.core.roster import Roster
from streams.core.statement import Rule
from streams.detectors.xid import XidCodes
from streams.engines.decisions import DecisionsEngine

if TYPE_CHECKING:
    from paceline.evaluation.acts.simulation import Seen
    from schemas.base import Record

__all__ = ["AlwaysRestarting", "CountingCodes", "DoingNothing", "Engine", "EngineWithoutGuards"]

_SITE = "acts"
_START_NS = 1_760_000_000_000_000_000
_STEP_US = 10_000_000
_RULES = {"thermal_violation": "thermal_violation", "straggler": "straggler", "node_silent": "node_silence"}


class DoingNothing:
    """Jobs restart by themselves and people look at last; nobody else does anything."""

    name = "doing nothing"
    every_h = math.inf

    def waits_h(self, seen: Seen) -> tuple[float, ...]:  # noqa: ARG002
        """It is not asked again."""
        return ()

    def see(self, seen: Seen) -> list[Act]:  # noqa: ARG002
        """Nothing."""
        return []

    def wait(self, at_h: float) -> list[Act]:  # noqa: ARG002
        """Nothing."""
        return []

    def replaced(self, seat: int, node_id: str, at_h: float) -> None:
        """Nothing."""


class AlwaysRestarting(DoingNothing):
    """Restarts the job at each fatal code, silent node, slow rank and hang, on the nodes that it has."""

    name = "always restarting"

    def see(self, seen: Seen) -> list[Act]:
        """Restart."""
        is_fatal = seen.name in {"node_silent", "straggler", "hang"} or _is_fatal(seen.name)
        return [Act("restart_job", job=seen.job)] if seen.state == "open" and is_fatal else []


class CountingCodes(DoingNothing):
    """Takes a node out at its third kernel code within a day, whichever they are.

    Args:
        count: codes.
        within_h: their span.
    """

    name = "three codes a day"

    def __init__(self, count: int = 3, within_h: float = 24.0) -> None:
        self._count, self._within_h = count, within_h
        self._codes_h: dict[str, list[float]] = defaultdict(list)

    def see(self, seen: Seen) -> list[Act]:
        """Count."""
        if not seen.name.startswith("xid_"):
            return []
        codes_h = self._codes_h[seen.node_id]
        codes_h[:] = [at_h for at_h in codes_h if at_h > seen.at_h - self._within_h] + [seen.at_h]
        return [Act("cordon_node", node_id=seen.node_id)] if len(codes_h) >= self._count else []


class Engine:
    """The decisions engine of one site, in mode `auto` with the guards' shipped limits.

    Args:
        has_guards: whether the policy leaves them on.
    """

    name = "paceline"
    every_h = 1 / 6

    def __init__(self, has_guards: bool = True) -> None:
        self._shape = shape_of()
        self._roster = Roster()
        self._engine = DecisionsEngine(_SITE, self._roster, key_id="key")
        self._codes = XidCodes(_SITE)
        self._offset = self._reference_offset = self._lines = self._results = 0
        self._done: list[Command] = []
        self._epochs = [0] * len(self._shape.job_gpus)
        self._nodes = [f"n{seat:04d}" for seat in range(self._shape.seats)]
        guards = {} if has_guards else {name: RulePolicy(enabled=False) for name in known_guards()}
        self._take(
            Policy(policy_version="auto", site_id=_SITE, effective_from_ns=_START_NS, mode="auto", guards=guards)
        )
        for seat in range(self._shape.seats):
            self._place_node(seat, 0.0)
        for job in range(len(self._shape.job_gpus)):
            self._place_job(job, 0.0)

    def waits_h(self, seen: Seen) -> tuple[float, ...]:
        """When faults have been gathered, findings have settled, and a slow rank's cause is decided."""
        is_codes_of_programs = seen.name.startswith("xid_") and not _is_fatal(seen.name)
        return () if is_codes_of_programs else (6 / 3600, 17 / 3600, 30 / 3600)

    def see(self, seen: Seen) -> list[Act]:
        """Give the finding to the engine."""
        acts: list[Act] = []
        for finding in self._findings(seen):
            acts += self._given(finding, seen.at_h)
        return acts

    def wait(self, at_h: float) -> list[Act]:
        """Everybody has spoken up to now."""
        acts: list[Act] = []
        roles: tuple[Literal["telemetry", "jobs"], ...] = ("telemetry", "jobs")
        for role in roles:
            mark = ProgressMark(site_id=_SITE, role=role, partition=0, mark_ns=_ns(at_h))
            acts += self._given(mark, at_h)
        for command in self._done:
            self._tell(command, at_h)
        self._done = []
        return acts

    def replaced(self, seat: int, node_id: str, at_h: float) -> None:
        """The job goes on in a new epoch, with another node in the seat."""
        self._nodes[seat] = node_id
        self._place_node(seat, at_h)
        job = self._shape.job_of[seat]
        self._epochs[job] += 1
        self._place_job(job, at_h)

    def _given(self, record: Record, at_h: float) -> list[Act]:
        self._offset += 1
        position = Position(topic_of(Finding).name, 0, self._offset, _ns(at_h) // 1_000_000)
        outputs = self._engine.on_record(record, position)
        ordered = [output for output in outputs if isinstance(output, Command) and output.mode == "auto"]
        self._done += [command for command in ordered if command.kind in TAKES_OUT | RESETS | {"restart_job"}]
        return [_act(command) for command in ordered]

    def _tell(self, command: Command, at_h: float) -> None:
        """Give the engine the result of an order: it was carried out."""
        self._results += 1
        result = ActionResult(
            command_id=command.command_id,
            site_id=_SITE,
            actuator_id="fleet",
            event_time_ns=_ns(at_h),
            outcome="applied",
        )
        place = Position(topic_of(ActionResult).name, 0, self._results, _ns(at_h) // 1_000_000)
        self._engine.on_record(result, place)

    def _findings(self, seen: Seen) -> list[Finding]:
        at_ns, address = _ns(seen.at_h), _address(seen.gpu)
        if seen.name.startswith("xid_"):
            self._lines += 1
            event = KernelEvent(
                node_id=seen.node_id,
                agent_session="s",
                boot_id="b",
                kmsg_seq=self._lines,
                event_time_ns=at_ns,
                source="xid",
                code=int(seen.name[4:]),
                pci_bus_id=address,
            )
            return list(self._codes.on_event(event, self._roster))
        if seen.name not in _RULES:
            # A hang's verdict costs nobody a node; it is evaluated by itself.
            return []
        job_id, gpu_uuid = _job_id(seen.job), _uuid(seen.node_id, seen.gpu)
        place = {"node_id": seen.node_id, "gpu_uuid": gpu_uuid, "pci_bus_id": address}
        if seen.name == "node_silent":
            subject = Subject(level="node", node_id=seen.node_id)
        elif seen.name == "straggler":
            seat = self._roster.rank_of(seen.node_id, gpu_uuid, address)
            subject = Subject(level="rank", job_id=job_id, rank=seat[2] if seat is not None else 0, **place)
        else:
            subject = Subject(level="gpu", **place)
        excess = seen.excess or 0.1
        is_slow = seen.name == "straggler"
        return [
            Rule(_RULES[seen.name], 1, _SITE).finding(
                seen.name,
                subject,
                state=seen.state,
                severity="warning",
                event_time_ns=at_ns,
                onset_ns=_ns(seen.onset_h),
                explanation=seen.name,
                values={"excess_us": round(excess * _STEP_US), "step_time_us": round((1 + excess) * _STEP_US)}
                if is_slow
                else {},
                job_id=job_id if is_slow else None,
                slowdown=1 + excess if is_slow else None,
            )
        ]

    def _take(self, record: Record) -> None:
        self._reference_offset += 1
        self._roster.take(record, Evidence(topic=topic_of(record).name, partition=0, offset=self._reference_offset))

    def _place_node(self, seat: int, at_h: float) -> None:
        told, gpus = self._nodes[seat], range(self._shape.gpus_per_node)
        self._take(
            Node(
                node_id=told,
                effective_from_ns=_ns(at_h),
                gpu_uuid=tuple(_uuid(told, gpu) for gpu in gpus),
                pci_bus_id=tuple(_address(gpu) for gpu in gpus),
                rack=f"r{seat // 8}",
                leaf=f"l{seat // 16}",
            )
        )

    def _place_job(self, job: int, at_h: float) -> None:
        size, per_node = self._shape.job_gpus[job], self._shape.gpus_per_node
        head = {"job_id": _job_id(job), "epoch": self._epochs[job], "effective_from_ns": _ns(at_h)}
        self._take(Job(world_size=size, layout=Layout(data=size), **head))
        seats = [seat for seat, of in enumerate(self._shape.job_of) if of == job]
        for index, seat in enumerate(seats):
            told = self._nodes[seat]
            self._take(
                RankPlacement(
                    node_id=told,
                    rank=tuple(range(index * per_node, (index + 1) * per_node)),
                    gpu_uuid=tuple(_uuid(told, gpu) for gpu in range(per_node)),
                    pci_bus_id=tuple(_address(gpu) for gpu in range(per_node)),
                    **head,
                )
            )


class EngineWithoutGuards(Engine):
    """The same with every guard switched off: what they are worth."""

    name = "paceline, no guards"

    def __init__(self) -> None:
        super().__init__(has_guards=False)


def _is_fatal(name: str) -> bool:
    entry = catalog.xid(int(name[4:])) if name.startswith("xid_") else None
    return entry is not None and entry.severity == "fatal"


def _act(command: Command) -> Act:
    target = command.target
    if target.level == "job":
        return Act(command.kind, job=int((target.job_id or "job-0")[4:]))
    return Act(command.kind, node_id=target.node_id, after_checkpoint=command.when == "after_checkpoint")


def _ns(at_h: float) -> int:
    return _START_NS + round(at_h * 3.6e12)


def _job_id(job: int) -> str:
    return f"job-{job}"


def _uuid(node_id: str, gpu: int) -> str:
    return f"GPU-{node_id}-{gpu}"


def _address(gpu: int) -> str:
    return f"0000:{16 + gpu:02x}:00"
