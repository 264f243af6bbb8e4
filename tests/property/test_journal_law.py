"""Whatever a decisions worker lives through, its journal replays to the bytes that it wrote.

Drawn are the findings, when reference records are published and read, in which order their partitions are read, when
snapshots are taken, and when the worker is killed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import orjson
from decisions_worker import DecisionsWorker
from factories import SITE, at, finding, job, pci_of, placement, policy, uuid_of
from hypothesis import event, given
from hypothesis import strategies as st
from laws import LAW

from schemas.findings import ProgressMark, Subject
from schemas.fleet import Node, RulePolicy
from schemas.remediation import ActionResult, Approval
from streams.journal_replay import replay_journal

if TYPE_CHECKING:
    from schemas.base import Record


KEYS = (None, "ed25519-a", "ed25519-b")


def a_finding(rng: random.Random, second: float) -> Record:
    """Something of a kind that decisions act on, of a small fleet, so that they meet."""
    node, position = f"node-{rng.randint(0, 1)}", rng.randint(0, 1)
    address, gpu_uuid = pci_of(position), uuid_of(node, position)
    match rng.choice(["xid", "ecc", "thermal", "clock", "straggler", "straggler", "pause", "link", "job", "ranks"]):
        case "xid":
            device = Subject(level="gpu", node_id=node, pci_bus_id=address)
            code = rng.choice([79, 48, 63, 31])
            values = {"code": code, "trusted": True}
            return finding("xid", second, device, finding_id=f"x-{second}", urgent=code in {79, 48}, values=values)
        case "ecc":
            device = Subject(level="gpu", node_id=node, gpu_uuid=gpu_uuid, pci_bus_id=address)
            return finding("uncorrectable_ecc", second, device, finding_id=f"e-{second}", urgent=True)
        case "thermal" | "clock" as kind:
            named = rng.choice(
                [{"gpu_uuid": gpu_uuid}, {"pci_bus_id": address}, {"gpu_uuid": "GPU-swapped", "pci_bus_id": address}]
            )
            device = Subject(level="gpu", node_id=node, **named)
            name = "thermal_violation" if kind == "thermal" else "sm_clock"
            state = rng.choice(["open", "open", "cleared"])
            return finding(name, second, device, onset_s=second - 2, state=state)
        case "straggler":
            rank = Subject(
                level="rank",
                job_id="job-1",
                rank=2 * int(node[-1]) + position,
                node_id=node,
                gpu_uuid=rng.choice([None, gpu_uuid]),
            )
            figures = {"excess_us": 90_000, "step_time_us": 300_000, "host_excess_us": rng.choice([0, 80_000])}
            state = rng.choice(["open", "open", "cleared"])
            return finding("straggler", second, rank, state=state, slowdown=1.5, job_id="job-1", values=figures)
        case "pause":
            port = Subject(level="port", node_id=node, device="mlx5_0", port="1")
            kind = rng.choice(["pfc_pause", "pfc_pause_transmit"])
            rates = {"rx_pause_frames_per_s": 0.0, "tx_pause_frames_per_s": 5000.0, "limit_frames_per_s": 100.0}
            state = rng.choice(["open", "open", "cleared"])
            return finding(kind, second, port, state=state, values=rates)
        case "link":
            port = Subject(level="port", node_id=node, device="mlx5_0", port=str(position))
            return finding(
                rng.choice(["link_down", "port_speed", "low_mfu"]), second, port, state=rng.choice(["open", "cleared"])
            )
        case "job":
            figures = {"transfer_us": 9000, "reference_us": 3000, "step_time_us": 300_000}
            whole = Subject(level="job", job_id="job-1")
            state = rng.choice(["open", "cleared"])
            return finding("network_slowdown", second, whole, state=state, job_id="job-1", values=figures)
        case _:
            several = Subject(level="rank_group", job_id="job-1", ranks=(0, 1, 2, 3))
            state = rng.choice(["open", "cleared"])
            values = {"ranks": [0, 1, 2, 3]}
            return finding("changed_ranks", second, several, state=state, job_id="job-1", values=values)


def a_reference_record(rng: random.Random, version: int) -> Record:
    node = f"node-{rng.randint(0, 1)}"
    match rng.choice(["policy", "placement", "job", "node", "repeat"]):
        case "policy":
            settle_ns = rng.choice([0, 3, 10]) * 1_000_000_000
            acting = {
                "mode": rng.choice(["observe", "approve", "auto", "auto"]),
                "kill_switch": rng.random() < 0.1,
                "guards": {"common_mode": RulePolicy(enabled=rng.random() < 0.7, thresholds={"count": 2})},
            }
            return policy(settle_ns=settle_ns, gpu_hour_cost=float(version), **acting).model_copy(
                update={"policy_version": f"p{version}", "effective_from_ns": at(version)}
            )
        case "placement":
            name, devices = rng.choice(["job-1", "job-2"]), rng.choice([[0, 1], [1, 0], []])
            return placement(
                [2 * int(node[-1]), 2 * int(node[-1]) + 1], node_id=node, job_id=name, devices=devices, version=version
            )
        case "job":
            return job(rng.choice([4, 8]), job_id=rng.choice(["job-1", "job-2"]), version=version)
        case "node":
            return Node(
                node_id=node,
                version=version,
                effective_from_ns=at(0),
                gpu_uuid=(uuid_of(node, 0), rng.choice(["GPU-spare", uuid_of(node, 1)])),
                pci_bus_id=(pci_of(0), pci_of(1)),
                rack=rng.choice([None, "rack-1"]),
                zone=rng.choice([None, "zone-1", "zone-2"]),
            )
        case _:
            return job(4, version=1)


def a_result(rng: random.Random, second: float, worker: DecisionsWorker) -> Record:
    """A result of something that was commanded, or of nothing that is known, as actuators' clocks say."""
    commands = [orjson.loads(value)["command_id"] for value in worker.recorded("command")][-6:]
    return ActionResult(
        command_id=rng.choice([*commands, "cmd-unknown"]),
        site_id=SITE,
        actuator_id=rng.choice(["slurm", "webhook"]),
        event_time_ns=at(round(second + rng.choice([0, 0, -30, 30]), 3)),
        outcome=rng.choice(["applied", "applied", "refused", "failed", "expired"]),
        code=rng.choice([None, "already_so", "kill_switch", "fit", "fit", "unfit"]),
    )


def an_approval(rng: random.Random, second: float, worker: DecisionsWorker) -> Record:
    """Consent to something that was commanded, or to nothing that is known, some of it late."""
    commands = [orjson.loads(value)["command_id"] for value in worker.recorded("command")][-4:]
    return Approval(
        command_id=rng.choice([*commands, "cmd-unknown"]),
        site_id=SITE,
        approver=rng.choice(["ada", "grace"]),
        event_time_ns=at(second),
        expires_at_ns=at(second + rng.choice([5, 600])),
    )


def lived(seed: int, records: int, kills: int) -> DecisionsWorker:
    rng = random.Random(seed)
    worker = DecisionsWorker(SITE, rng)
    worker.key_id = rng.choice(KEYS)
    worker.kill()
    killed_at = {rng.randrange(records) for _ in range(kills)}
    for number in range(records):
        second = number * 0.7
        act = rng.random()
        if act < 0.25:
            worker.publish(a_reference_record(rng, number + 1))
        if rng.random() < 0.3:
            worker.read_some()
        if act > 0.9:
            worker.snapshot()
        if number in killed_at:
            # Started again with another key, or without one.
            worker.key_id = rng.choice([worker.key_id, *KEYS])
            worker.kill()
        if rng.random() < 0.3:
            worker.find(a_result(rng, second, worker))
        if rng.random() < 0.3:
            worker.find(an_approval(rng, second, worker))
        if rng.random() < 0.5:
            worker.find(a_finding(rng, round(second - rng.random() * 5, 3)))
        else:
            role = rng.choice(["telemetry", "jobs"]) if number < 0.7 * records else "telemetry"
            ahead = 120.0 if number > 0.8 * records else 0.0
            worker.find(ProgressMark(site_id=SITE, role=role, partition=0, mark_ns=at(second + ahead)))
    return worker


@LAW
@given(st.integers(0, 2**32), st.integers(5, 120), st.integers(0, 4))
def test_a_journal_replays_to_the_bytes_that_were_written(seed: int, records: int, kills: int) -> None:
    worker = lived(seed, records, kills)
    if not worker.recorded("decision"):
        return
    comparison = replay_journal(worker.lines)
    assert comparison.differences == []
    assert comparison.beyond == 0
    written = {
        (line.topic, str(line.value))
        for line in worker.lines
        if line.value["record"] in {"decision", "incident", "command"}
    }
    assert comparison.same == len(written)
    event(f"restarts with other bytes: {comparison.restarts}")
    actions = [orjson.loads(entry)["action"] for entry in worker.recorded("decision")]
    event(f"results: {min(3, actions.count('result_taken'))}")
    event(f"approved: {min(3, actions.count('approval_taken'))}")
    event(f"held: {min(3, actions.count('held'))}")
    event(f"orders: {min(3, sum(orjson.loads(order)['mode'] != 'observe' for order in worker.recorded('command')))}")
    event(f"commands: {min(3, len(worker.recorded('command')))}")
