"""A real job under the reference controller: a named culprit, a swap, steps that go on from the checkpoint, and kills in between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE
from real_job import JOB, WORLD, RealJob, wait_for
from signed_commands import RING, signed

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.job_controller import JOB_KINDS, JobControllerHands, Patience
from agents.actuators.memory import ActuatorMemory
from deploy.job_controller.stub_trainer import expected_total
from schemas.findings import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = Patience(take_s=90.0, answer_s=90.0, poll_s=0.02)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RealJob]:
    with RealJob(tmp_path) as running:
        yield running


def actuator_of(job: RealJob) -> tuple[Actuator, ActuatorMemory]:
    memory = ActuatorMemory(job.home / "act" / "job.sqlite", "job", time.time_ns() - 10**12)
    hands = JobControllerHands(job.spool, JOB_KINDS, time.sleep, PATIENCE)
    return (
        Actuator(ActuatorSettings("job", SITE), hands, memory, lambda _: None, lambda: RING, time.time_ns, time.sleep),
        memory,
    )


def check_steps(log: list[dict[str, Any]]) -> dict[int, int]:
    """Every step is there once, in order, and the model is that of a run without an end; the first step of each epoch."""
    assert [line["step"] for line in log] == list(range(1, len(log) + 1))
    assert log[-1]["total"] == expected_total(len(log), WORLD)
    return {line["epoch"]: line["step"] for line in reversed(log)}


def test_a_named_culprit_is_swapped_once_and_the_steps_go_on_from_the_checkpoint(job: RealJob) -> None:
    job.reached(20)
    actuator, memory = actuator_of(job)
    wire, place = signed(job.order("swap_spare")), Evidence(topic="paceline.actions.v1", partition=0, offset=0)
    assert actuator.on_message(wire.value, wire.headers, place) == "applied"
    [(_, result)] = memory.outbox()
    sheet = job.spool.sheet(JOB)
    assert sheet is not None
    assert (sheet.epoch, sheet.seats, sheet.out) == (1, {"node-1": [0, 1], "node-3": [3], "node-4": [2]}, ["node-2"])
    step = sheet.checkpoint_step
    assert step is not None
    assert step >= 20
    assert result.reason.startswith("rank 2 moved from node-2 to node-4; goes on from the checkpoint of step")

    # Delivered again, published again, and put in the spool again: nothing of it does anything.
    assert actuator.on_message(wire.value, wire.headers, place) == "redelivered"
    again = Evidence(topic="paceline.actions.v1", partition=0, offset=1)
    assert actuator.on_message(wire.value, wire.headers, again) == "reused_id"
    job.spool.offer(JOB, "cmd-node-2-0", {"kind": "swap_spare", "job_id": JOB, "node_id": "node-1"})
    wait_for("the order to be dropped", lambda: not list((job.home / "spool" / JOB / "orders").glob("*.json")))

    wire = signed(job.order("collect_evidence", 1))
    assert actuator.on_message(wire.value, wire.headers, Evidence(topic="t", partition=0, offset=2)) == "applied"
    assert sorted(path.name for path in (job.run_dir / "dumps").glob("stub_*")) == [
        f"stub_rank_{r}" for r in range(WORLD)
    ]
    memory.close()

    job.reached(step + 20)
    assert check_steps(job.finish()) == {0: 1, 1: step + 1}
    after = job.spool.sheet(JOB)
    assert after is not None
    assert (after.epoch, after.state, after.spares) == (1, "ended", ["node-5"])
    assert sorted(path.name for path in (job.home / "registered").iterdir()) == [
        "epoch-000000-began.toml",
        "epoch-000001-began.toml",
        "epoch-000001-ended.toml",
    ]


def test_a_controller_killed_between_order_and_restart_carries_it_out_once(job: RealJob) -> None:
    job.reached(20)
    order = job.order("drain_node", node_id="node-3", when="after_checkpoint")
    job.offer(order)
    wait_for(
        "the order to be taken",
        lambda: job.spool.is_taken(JOB, order.command_id) or job.spool.answer(JOB, order.command_id),
    )
    job.kill()
    job.start()
    answer = job.last_answer(order)
    assert [(move.ranks, move.left, move.to) for move in answer.moved] == [([3], "node-3", "node-4")]
    job.reached((answer.checkpoint_step or 0) + 20)
    check_steps(job.finish())
    sheet = job.spool.sheet(JOB)
    assert sheet is not None
    assert (sheet.seats, sheet.spares, sheet.state) == (
        {"node-1": [0, 1], "node-2": [2], "node-4": [3]},
        ["node-5"],
        "ended",
    )
