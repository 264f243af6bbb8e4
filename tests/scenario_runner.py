"""Scenarios as data: builds the records that a TOML file describes, runs them, and says what did not come out.

The format is in tests/scenarios/README.md. A scenario goes through the same pipeline as a replayed archive. Nothing is
drawn at random and no clock is read: unevenness is a pattern in the file. A key that the format does not know is an
error, so that a misspelt expectation cannot pass by saying nothing.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from factories import H100, JOB, SITE, START_NS, at, pci_of, placement, uuid_of

from schemas.events import KernelEvent, NodeStatus
from schemas.fleet import Job, Policy, RankPlacement, RulePolicy
from schemas.frames import FabricFrame, GpuFrame
from schemas.steps import CollectiveTiming, StepTiming
from schemas.topics import topic_of
from streams.core.position import Position
from streams.engines.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from schemas.base import Record

__all__ = ["Scenario", "failures", "known_keys", "load", "outputs_of", "unmet"]

_SECTIONS = {
    "summary",
    "fleet",
    "job",
    "policy",
    "steps",
    "gpus",
    "kernel",
    "fabric",
    "heartbeats",
    "status",
    "clock",
    "expect",
}
_TIMES = ("compute_us", "forward_us", "backward_us", "host_us", "data_us", "own_us", "wait_us", "tokens")
_KINDS = {"finding": "finding", "step": "step_result", "incident": "incident", "command": "command"}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes of equal GPUs; rank r of the job runs on node r // gpus, in order of position or against it."""

    nodes: int = 1
    gpus: int = 8
    sku: str = H100
    device_order: str = "same"

    def node_id(self, index: int) -> str:
        return f"node-{index}"

    def place_of(self, rank: int) -> tuple[str, int]:
        """(node id, position of the GPU) of a rank."""
        node, local = divmod(rank, self.gpus)
        return self.node_id(node), self.gpus - 1 - local if self.device_order == "reversed" else local


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file: its records in order of arrival, and what must come out."""

    name: str
    summary: str
    records: tuple[tuple[Record, Position], ...]
    policy: Policy | None
    expect: dict[str, Any]


def load(path: Path) -> Scenario:
    """Read a scenario.

    Raises:
        ValueError: the file has a key that the format does not know, or expects nothing.
    """
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    known_keys(path.name, told, _SECTIONS)
    fleet_table = dict(told.get("fleet", {}))
    named_by = fleet_table.pop("named_by", "both")
    fleet = Fleet(**fleet_table)
    arriving: list[tuple[int, Record]] = []
    if "steps" in told or "job" in told:
        job = _job(told.get("job", {}), fleet)
        arriving += [(START_NS, job)] + [(START_NS, record) for record in _placements(job, fleet, named_by)]
        if "steps" in told:
            arriving += [(record.event_time_ns, record) for record in _steps(told["steps"], job, fleet)]
    if "gpus" in told:
        arriving += [(record.event_time_ns, record) for record in _gpu_frames(told["gpus"], fleet)]
    arriving += [(record.event_time_ns, record) for record in _kernel_events(told.get("kernel", []))]
    if "fabric" in told:
        arriving += [(record.event_time_ns, record) for record in _fabric_frames(told["fabric"], fleet)]
    if "heartbeats" in told or "status" in told:
        statuses = _statuses(told.get("heartbeats", {"seconds": 0}), told.get("status", []), fleet)
        arriving += [(record.event_time_ns, record) for record in statuses]
    arriving = [_by_clock(arrival_ns, record, told.get("clock", [])) for arrival_ns, record in arriving]
    # Stable: what shares a time arrives in the order of the sections.
    arriving.sort(key=lambda entry: entry[0])
    expect = told.get("expect", {})
    if not expect:
        raise ValueError(f"{path.name}: expects nothing")
    known_keys(f"{path.name} expect", expect, {*_KINDS, *(f"no_{kind}" for kind in _KINDS)})
    return Scenario(path.stem, told["summary"], _placed(arriving), _policy(told.get("policy")), expect)


def outputs_of(scenario: Scenario, rule_off: str | None = None) -> list[Record]:
    """What the pipeline makes of a scenario, with one rule switched off where asked."""
    policy = scenario.policy
    if rule_off is not None:
        base = policy or _policy({})
        assert base is not None
        policy = base.model_copy(update={"rules": {**base.rules, rule_off: RulePolicy(enabled=False)}})
    pipeline = Pipeline(SITE, policy)
    outputs: list[Record] = []
    for record, position in scenario.records:
        outputs += pipeline.on_record(record, position)
    return outputs + pipeline.flush()


def failures(scenario: Scenario, outputs: list[Record]) -> list[str]:
    """Expectations that do not hold, one line each."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in outputs:
        fields = record.model_dump()
        by_kind[fields["record"]].append(fields)
    return unmet(scenario.name, scenario.expect, by_kind, _KINDS)


def unmet(
    where: str, expect: dict[str, Any], by_kind: Mapping[str, list[dict[str, Any]]], kinds: Mapping[str, str]
) -> list[str]:
    """Expectations that do not hold over records as plain data, one line each.

    Args:
        where: the file, for errors.
        expect: `KIND` and `no_KIND` tables of the file.
        by_kind: fields of what came out, by name.
        kinds: name by the kinds that a file may expect.
    """
    failed = []
    for kind, name in kinds.items():
        for expected in expect.get(kind, []):
            known_keys(f"{where} expect.{kind}", expected, {"match", "times"})
            matching = [fields for fields in by_kind.get(name, []) if _matches(expected["match"], fields)]
            times = expected.get("times")
            if not matching or (times is not None and len(matching) != times):
                failed.append(f"{len(matching)} times, not {times or 'at least once'}: {kind} {expected['match']}")
        for unwanted in expect.get(f"no_{kind}", []):
            failed += [
                f"must not be: {kind} {unwanted}, but: {_brief(fields)}"
                for fields in by_kind.get(name, [])
                if _matches(unwanted, fields)
            ]
    return failed


def _brief(fields: dict[str, Any]) -> str:
    return str({name: fields[name] for name in ("kind", "state", "subject", "target", "culprit") if fields.get(name)})


def _matches(expected: Any, actual: Any) -> bool:
    if isinstance(expected, dict):
        if expected.keys() <= {"at_least", "at_most"} and expected:
            low, high = expected.get("at_least", float("-inf")), expected.get("at_most", float("inf"))
            return isinstance(actual, int | float) and low <= actual <= high
        if expected.keys() == {"not"}:
            return not _matches(expected["not"], actual)
        if expected.keys() == {"has"}:
            return isinstance(actual, str | list | tuple) and expected["has"] in actual
        return isinstance(actual, dict) and all(_matches(value, actual.get(name)) for name, value in expected.items())
    if expected == "null":
        return actual is None
    return bool(expected == (list(actual) if isinstance(actual, tuple) else actual))


def known_keys(where: str, table: dict[str, Any], names: set[str]) -> None:
    unknown = sorted(set(table) - names)
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(names))}")


def _placed(arriving: list[tuple[int, Record]]) -> tuple[tuple[Record, Position], ...]:
    offsets: dict[str, int] = defaultdict(int)
    placed = []
    for arrival_ns, record in arriving:
        topic = topic_of(record).name
        placed.append((record, Position(topic, 0, offsets[topic], arrival_ns // 1_000_000)))
        offsets[topic] += 1
    return tuple(placed)


def _policy(table: dict[str, Any] | None) -> Policy | None:
    if table is None:
        return None
    return Policy.model_validate(
        {"policy_version": "scenario", "site_id": SITE, "effective_from_ns": START_NS, **table}
    )


def _job(table: dict[str, Any], fleet: Fleet) -> Job:
    known_keys("job", table, set(Job.model_fields))
    world_size = table.get("world_size", fleet.nodes * fleet.gpus)
    defaults = {"job_id": JOB, "effective_from_ns": START_NS, "world_size": world_size, "layout": {"data": world_size}}
    return Job.model_validate({**defaults, **table})


def _placements(job: Job, fleet: Fleet, named_by: str) -> Iterator[Record]:
    if named_by not in {"both", "address", "nothing"}:
        raise ValueError(f"fleet.named_by is {named_by!r}; known are both, address, nothing")
    for first in range(0, job.world_size, fleet.gpus):
        ranks = range(first, min(first + fleet.gpus, job.world_size))
        devices = [fleet.place_of(rank)[1] for rank in ranks] if named_by != "nothing" else []
        record = placement(ranks, node_id=fleet.place_of(first)[0], job_id=job.job_id, devices=devices, sku=fleet.sku)
        yield record.model_copy(update={"gpu_uuid": (None,) * len(ranks)}) if named_by == "address" else record


# --- Steps --------------------------------------------------------------------------------------------------------


def _steps(table: dict[str, Any], job: Job, fleet: Fleet) -> Iterator[StepTiming]:
    known_keys(
        "steps",
        table,
        {
            "count",
            "first",
            "start_s",
            "every_s",
            "step_us",
            "transfer_us",
            "jitter_us",
            "phase",
            "change",
            "collective",
            *_TIMES,
        },
    )
    start_s, every_s, first = table.get("start_s", 20.0), table.get("every_s", 1.0), table.get("first", 0)
    for step in range(first, first + table["count"]):
        ranks = [_rank_times(table, step, rank) for rank in range(job.world_size)]
        missing = {rank for change in _changes(table, step) for rank in change.get("missing", [])}
        own = [_own_us(times) for times in ranks]
        longest = max(value for rank, value in enumerate(own) if rank not in missing)
        step_us = table.get("step_us", longest + table.get("transfer_us", 20_000))
        phase = next((c["phase"] for c in _changes(table, step) if "phase" in c), table.get("phase", "train"))
        for times, own_us in zip(ranks, own, strict=True):
            # Everybody waits for the slowest unless the file says otherwise.
            times.setdefault("wait_us", step_us - own_us)
        for first_rank in range(0, job.world_size, fleet.gpus):
            local = [
                rank for rank in range(first_rank, min(first_rank + fleet.gpus, job.world_size)) if rank not in missing
            ]
            if not local:
                continue
            columns = {name: tuple(ranks[rank].get(name) for rank in local) for name in _TIMES}
            collectives = [_collective(told, step, local, own) for told in table.get("collective", [])]
            yield StepTiming(
                job_id=job.job_id,
                node_id=fleet.place_of(first_rank)[0],
                agent_session="s1",
                seq=step - first,
                event_time_ns=at(start_s + (step - first + 1) * every_s),
                step=step,
                phase=phase,
                rank=tuple(local),
                step_us=(step_us,) * len(local),
                collectives=tuple(collectives),
                **{name: column for name, column in columns.items() if any(value is not None for value in column)},
            )


def _changes(table: dict[str, Any], step: int) -> Iterator[dict[str, Any]]:
    for change in table.get("change", []):
        known = {"ranks", "from", "to", "missing", "phase", *_TIMES, *(f"{n}_factor" for n in _TIMES)}
        known_keys("steps.change", change, known)
        if change.get("from", 0) <= step < change.get("to", 2**31):
            yield change


def _collective(table: dict[str, Any], step: int, local: list[int], own: list[int]) -> CollectiveTiming:
    """Time of a node's ranks in the communicators of one kind: the transfer, and waiting for the last of the members."""
    known_keys("steps.collective", table, {"group", "op", "size", "stride", "transfer_us", "jitter_us", "change"})
    size, stride = table["size"], table.get("stride", 1)
    members: dict[int, list[int]] = defaultdict(list)
    for rank, own_us in enumerate(own):
        members[_instance(rank, size, stride)].append(own_us)
    durations = []
    for rank in local:
        instance = _instance(rank, size, stride)
        transfer_us = table["transfer_us"]
        jitter = table.get("jitter_us", [0])
        transfer_us += jitter[(7 * instance + 3 * step) % len(jitter)]
        for change in table.get("change", []):
            known_keys("steps.collective.change", change, {"instances", "from", "to", "transfer_us_factor"})
            if instance in change.get("instances", [instance]) and change.get("from", 0) <= step < change.get(
                "to", 2**31
            ):
                transfer_us = round(transfer_us * change["transfer_us_factor"])
        durations.append(transfer_us + max(members[instance]) - own[rank])
    return CollectiveTiming(
        group=table["group"],
        op=table.get("op", "all_reduce"),
        instance=tuple(_instance(rank, size, stride) for rank in local),
        duration_us=tuple(durations),
    )


def _instance(rank: int, size: int, stride: int) -> int:
    """Number of a rank's communicator, of `size` ranks that lie `stride` apart."""
    return rank // (size * stride) * stride + rank % stride


def _rank_times(table: dict[str, Any], step: int, rank: int) -> dict[str, int]:
    times: dict[str, int] = {}
    for name in _TIMES:
        value = table.get(name)
        if value is not None:
            times[name] = value[rank % len(value)] if isinstance(value, list) else value
    jitter = table.get("jitter_us", [0])
    # 7 and 3 are coprime to the usual lengths, so that neither ranks nor steps march in line.
    varying = "own_us" if "own_us" in times else "compute_us"
    times[varying] += jitter[(7 * rank + 3 * step) % len(jitter)]
    for change in _changes(table, step):
        ranks = change.get("ranks", "all")
        if ranks != "all" and rank not in ranks:
            continue
        for name in _TIMES:
            if name in change:
                times[name] = change[name]
            if f"{name}_factor" in change:
                times[name] = round(times[name] * change[f"{name}_factor"])
    return times


def _own_us(times: dict[str, int]) -> int:
    return times.get("own_us") or sum(times.get(name, 0) for name in ("compute_us", "host_us", "data_us"))


# --- GPUs, kernel and fabric --------------------------------------------------------------------------------------


def _gpu_frames(table: dict[str, Any], fleet: Fleet) -> Iterator[GpuFrame]:
    columns = {name: value for name, value in table.items() if name not in {"seconds", "first_s", "session", "change"}}
    known_keys("gpus", columns, set(GpuFrame.model_fields))
    first_s = table.get("first_s", 0)
    changes = table.get("change", [])
    changed = {name for change in changes for name in change} - {"node", "gpus", "from_s", "to_s"}
    known_keys("gpus.change", dict.fromkeys(changed), set(GpuFrame.model_fields))
    for node in range(fleet.nodes):
        for second in range(first_s, first_s + table["seconds"]):
            yield GpuFrame(
                node_id=fleet.node_id(node),
                agent_session=table.get("session", "s1"),
                seq=second - first_s,
                event_time_ns=at(second),
                gpu_uuid=tuple(uuid_of(fleet.node_id(node), gpu) for gpu in range(fleet.gpus)),
                pci_bus_id=tuple(pci_of(gpu) for gpu in range(fleet.gpus)),
                sku=(fleet.sku,) * fleet.gpus,
                **{
                    name: tuple(_gpu_value(table, name, node, gpu, second) for gpu in range(fleet.gpus))
                    for name in {*columns, *changed}
                },
            )


def _gpu_value(table: dict[str, Any], name: str, node: int, gpu: int, second: int) -> Any:
    value = table.get(name)
    if isinstance(value, list):
        value = value[gpu % len(value)]
    for change in table.get("change", []):
        if name not in change or change.get("node", node) != node or gpu not in change.get("gpus", [gpu]):
            continue
        from_s, to_s = change.get("from_s", 0), change.get("to_s", 2**31)
        if isinstance(change[name], dict):
            # A cumulative counter: it grows while the change lasts and stays where it got to.
            known_keys(f"gpus.change {name}", change[name], {"per_s"})
            value = (value or 0) + change[name]["per_s"] * max(0, min(second, to_s) - from_s)
        elif from_s <= second < to_s:
            value = change[name]
    return value if value != "null" else None


def _kernel_events(entries: list[dict[str, Any]]) -> Iterator[KernelEvent]:
    for number, entry in enumerate(entries):
        fields = dict(entry)
        gpu = fields.pop("gpu", None)
        at_s = fields.pop("at_s")
        known_keys("kernel", fields, {*KernelEvent.model_fields, "node"})
        yield KernelEvent(
            node_id=f"node-{fields.pop('node', 0)}",
            agent_session="s1",
            boot_id="boot-1",
            kmsg_seq=fields.pop("kmsg_seq", number),
            event_time_ns=at(at_s),
            source=fields.pop("source", "xid"),
            pci_bus_id=pci_of(gpu) if gpu is not None else None,
            **fields,
        )


def _port_columns(table: dict[str, Any], node: int, second: int) -> dict[str, tuple[Any, ...]]:
    """The columns that a file gives a node's ports, as the changes have them at a time."""
    ports, columns = range(table.get("ports", 1)), {}
    for name, given in table.get("columns", {}).items():
        values = [given[port % len(given)] for port in ports] if isinstance(given, list) else [given] * len(ports)
        for change in table.get("change", []):
            if change.get("node") == node and name in change.get("columns", {}) and _lasts(change, second):
                for port in ports:
                    if change.get("port", port) == port:
                        values[port] = change["columns"][name]
        columns[name] = tuple(None if value == "null" else value for value in values)
    return columns


def _fabric_frames(table: dict[str, Any], fleet: Fleet) -> Iterator[FabricFrame]:
    """Ports of each node, and the ports of a switch to them, with counters that grow as the changes say."""
    known_keys("fabric", table, {"seconds", "switch", "ports", "counters", "columns", "switch_counters", "change"})
    changes = table.get("change", [])
    for change in changes:
        known = {"node", "switch_port", "port", "from_s", "to_s", "rx_per_s", "tx_per_s", "link_state", "per_s", "add"}
        known_keys("fabric.change", change, known | {"columns"})
    ports = range(table.get("ports", 1))
    on_hosts = [change for change in changes if "switch_port" not in change]
    names = sorted({*table.get("counters", {}), *(name for change in on_hosts for name in change.get("per_s", {}))})
    tells_downs = any("link_down_events" in change.get("add", {}) for change in changes)

    def lasted_s(change: dict[str, Any], second: int) -> int:
        return max(0, min(second, int(change.get("to_s", 2**31))) - int(change.get("from_s", 0)))

    def pause(side: str, node: int, direction: str, second: int) -> int:
        return sum(
            int(change.get(f"{direction}_per_s", 0)) * lasted_s(change, second)
            for change in changes
            if change.get(side) == node and change.get("port", 0) == 0
        )

    def of_port(node: int, port: int) -> Iterator[dict[str, Any]]:
        return (c for c in changes if "switch_port" not in c and c.get("node") == node and c.get("port", port) == port)

    def counter(name: str, node: int, port: int, second: int) -> int | None:
        value = table.get("counters", {}).get(name, 0)
        value = value[port % len(value)] if isinstance(value, list) else value
        if value == "null":
            return None
        growth = (int(c.get("per_s", {}).get(name, 0)) * lasted_s(c, second) for c in of_port(node, port))
        return int(value) + sum(growth)

    def of_switch(name: str, port: int, second: int) -> int:
        growing = (c for c in changes if c.get("switch_port") == port)
        growth = (int(c.get("per_s", {}).get(name, 0)) * lasted_s(c, second) for c in growing)
        return int(table["switch_counters"][name]) + sum(growth)

    def link_state(node: int, port: int, second: int) -> str:
        states = [c["link_state"] for c in of_port(node, port) if "link_state" in c and _lasts(c, second)]
        return states[-1] if states else "active"

    def downs(node: int, port: int, second: int) -> int:
        return sum(
            int(c.get("add", {}).get("link_down_events", 0)) for c in of_port(node, port) if second >= c["from_s"]
        )

    for second in range(table["seconds"]):
        for node in range(fleet.nodes):
            yield FabricFrame(
                view="host",
                node_id=fleet.node_id(node),
                agent_session="s1",
                seq=second,
                event_time_ns=at(second),
                device=tuple(f"mlx5_{port}" for port in ports),
                port=("1",) * len(ports),
                link_state=tuple(link_state(node, port, second) for port in ports),
                link_down_events=tuple(downs(node, port, second) for port in ports) if tells_downs else None,
                counters={name: tuple(counter(name, node, port, second) for port in ports) for name in names},
                pfc_port=(0,),
                pfc_priority=(3,),
                rx_pause_frames=(pause("node", node, "rx", second),),
                tx_pause_frames=(pause("node", node, "tx", second),),
                **_port_columns(table, node, second),
            )
        if "switch" in table:
            nodes = range(fleet.nodes)
            yield FabricFrame(
                view="switch",
                switch_id=table["switch"],
                agent_session="s1",
                seq=second,
                event_time_ns=at(second),
                device=(table["switch"],) * fleet.nodes,
                port=tuple(f"Ethernet{node}" for node in nodes),
                peer=tuple(fleet.node_id(node) for node in nodes),
                counters={
                    name: tuple(of_switch(name, node, second) for node in nodes)
                    for name in table.get("switch_counters", {})
                },
                pfc_port=tuple(nodes),
                pfc_priority=(3,) * fleet.nodes,
                rx_pause_frames=tuple(pause("switch_port", node, "rx", second) for node in nodes),
                tx_pause_frames=tuple(pause("switch_port", node, "tx", second) for node in nodes),
            )


def _lasts(change: dict[str, Any], second: float) -> bool:
    return bool(change.get("from_s", 0) <= second < change.get("to_s", 2**31))


# --- Statuses and clocks --------------------------------------------------------------------------------------------


def _statuses(table: dict[str, Any], entries: list[dict[str, Any]], fleet: Fleet) -> Iterator[NodeStatus]:
    """Heartbeats every 5 s, each node at its own phase, but where nodes are silent; and what else they said."""
    known_keys("heartbeats", table, {"seconds", "silent"})
    said: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for node in range(fleet.nodes):
        for tick in range(table["seconds"] // 5):
            second = 5 * tick + 0.3 * (node % 16)
            silences = [silence for silence in table.get("silent", []) if node in silence["nodes"]]
            if not any(_lasts(silence, second) for silence in silences):
                said[node].append((second, "heartbeat"))
    for silence in table.get("silent", []):
        known_keys("heartbeats.silent", silence, {"nodes", "from_s", "to_s"})
    for entry in entries:
        known_keys("status", entry, {"at_s", "node", "state"})
        said[entry.get("node", 0)].append((entry["at_s"], entry["state"]))
    for node, statuses in said.items():
        for seq, (second, state) in enumerate(sorted(statuses)):
            yield NodeStatus(
                node_id=fleet.node_id(node), agent_session="s1", seq=seq, event_time_ns=at(second), state=state
            )


def _by_clock(arrival_ns: int, record: Record, entries: list[dict[str, Any]]) -> tuple[int, Record]:
    """A record as its node's clock stamps it; it arrives when it was sent."""
    for entry in entries:
        known_keys("clock", entry, {"node", "from_s", "to_s", "behind_s"})
        if getattr(record, "node_id", None) != f"node-{entry['node']}" or isinstance(record, RankPlacement):
            continue
        if entry.get("from_s", 0) <= (arrival_ns - START_NS) / 1e9 < entry.get("to_s", 2**31):
            at_ns: int = record.event_time_ns  # type: ignore[attr-defined]
            record = record.model_copy(update={"event_time_ns": at_ns - round(entry.get("behind_s", 0) * 1e9)})
            break
    return arrival_ns, record
