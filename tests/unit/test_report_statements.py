"""What the page of an incident says of it: who, since when, at what cost, what was done, and on what that rests."""

from __future__ import annotations

from typing import Any

import pytest
from factories import SITE, at, finding, gpu_frame, job, nic_frame, step_timing

from paceline.report.collected import Collected
from paceline.report.page_data import page_data
from paceline.report.statements import short_place
from schemas.findings import Evidence, Subject
from schemas.remediation import ActionResult, Cause, Command, Decision, Incident, Target
from schemas.results import StepResult
from streams.core.position import Position

UUID = "GPU-5ef327e9-9962-406d-5e3f-c0780b907eba"
SLOW_RANK = Subject(level="gpu", job_id="job-1", rank=5, node_id="node-1", gpu_uuid=UUID)


def shown(*inputs: Any, said: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The page's data, of inputs and of statements that arrived a second after each other."""
    found = Collected()
    for offset, record in enumerate(inputs):
        found.take_input(record, Position("paceline.gpu-frames.v1", 0, offset, 0))
    for second, record in enumerate(said):
        found.take_said(record, at(second) // 1_000_000)
    found.finish()
    return page_data(found, {}, {})


def incident(name: str = "inc-1", **fields: Any) -> Incident:
    given = {
        "state": "open", "cause_class": "thermal", "event_time_ns": at(30), "onset_ns": at(20), "culprit": SLOW_RANK,
        "job_id": "job-1", **fields,
    }  # fmt: skip
    return Incident(incident_id=name, site_id=SITE, **given)


def command(**fields: Any) -> Command:
    given = {"kind": "drain_node", "mode": "observe", "cause": Cause(incident_id="inc-1"), **fields}
    return Command(
        command_id="cmd-1", site_id=SITE, target=Target(level="node", node_id="node-1"), audience="a",
        decided_at_ns=at(31), expires_at_ns=at(90), sequence=0, **given,
    )  # fmt: skip


def step(number: int, **fields: Any) -> StepResult:
    given = {"own_median_us": 200_000, "own_max_us": 260_000, "own_max_rank": 5, **fields}
    return StepResult(
        job_id="job-1", epoch=0, step=number, event_time_ns=at(number), phase="train", ranks_expected=8, ranks_reported=8,
        step_time_us=300_000, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (SLOW_RANK, "rank 5, node-1, GPU-5ef327e9"),
        (Subject(level="port", node_id="node-1", device="mlx5_1", port="1"), "node-1, mlx5_1 port 1"),
        (Subject(level="job", job_id="job-1"), "job-1"),
        (Subject(level="rank_group", job_id="job-1", ranks=(3, 4)), "ranks 3, 4"),
        (Subject(level="rank_group", job_id="job-1", ranks=tuple(range(9))), "9 ranks"),
        (Subject(level="gpu", node_id="n", gpu_uuid="GPU-of-a-test"), "n, GPU-of-a-test"),
        (Subject(level="facility"), "facility"),
    ],
)
def test_a_place_is_named_as_people_say_it(subject: Subject, told: str) -> None:
    assert short_place(subject) == told


def test_the_costliest_incident_is_the_one_to_begin_with_and_has_its_jobs_price() -> None:
    told = (
        incident("inc-1", gpu_hours_lost=0.5),
        incident("inc-2", gpu_hours_lost=2.0, state="resolved"),
        incident("inc-3", culprit=None),
    )
    summary = shown(job(8, gpu_hour_cost=2.5), gpu_frame(1), said=told)["summary"]
    assert (summary["weightiest"], summary["gpu_hours_lost"]) == ("inc-2", 2.5)
    assert (summary["money_lost"], summary["price"]) == (6.25, 2.5)
    assert (summary["incidents"], summary["going_on"], summary["blamed"]) == (3, 2, 1)


def test_without_a_price_no_money_is_stated() -> None:
    summary = shown(job(8), gpu_frame(1), said=(incident(gpu_hours_lost=2.0),))["summary"]
    assert (summary["money_lost"], summary["price"]) == (None, None)


def test_what_a_rank_did_to_the_steps_of_its_incident_is_told_in_numbers() -> None:
    others = step(25, own_max_rank=1, own_max_us=210_000)
    told = [*(step(n) for n in range(20, 25)), others, step(50)]
    data = shown(job(8), gpu_frame(1), said=(*told, incident(state="resolved", event_time_ns=at(40))))
    assert data["incidents"][0]["pace"] == {"steps": 6, "slowest_in": 5, "own_s": 0.26, "median_s": 0.2}


def test_the_newest_advice_holds_and_each_record_is_cited_once() -> None:
    twice = (Evidence(topic="paceline.gpu-frames.v1", partition=0, offset=7),) * 2
    words = (
        incident(advice="Have dumps written.", findings=("f-1",)),
        incident(advice="Look at its process.", findings=("f-1",)),
    )
    cause = finding("straggler", 25, SLOW_RANK, finding_id="f-1", evidence=twice)
    (row,) = shown(gpu_frame(1), said=(cause, *words))["incidents"]
    assert row["advice"] == "Look at its process."
    assert row["findings"][0]["evidence"] == ["raw-gpu-frames-0-7"]


def test_a_command_tells_what_held_it_and_what_came_of_it() -> None:
    held = Decision(
        site_id=SITE, sequence=0, event_time_ns=at(31), action="held", subject_id="cmd-1",
        detail={"wanted": "auto", "holds": [{"guard": "evidence", "reason": "one party alone"}]},
    )  # fmt: skip
    refused = ActionResult(
        command_id="cmd-1",
        site_id=SITE,
        actuator_id="slurm",
        event_time_ns=at(35),
        outcome="refused",
        reason="not ours",
    )
    data = shown(gpu_frame(1), said=(incident(), command(), held, refused))
    (told,) = data["incidents"][0]["commands"]
    assert told["held"] == ["evidence: one party alone"]
    assert [(r["outcome"], r["reason"]) for r in told["results"]] == [("refused", "not ours")]
    assert (data["summary"]["said_only"], data["summary"]["results"]) == (1, {"refused": 1})


def test_a_source_that_knows_no_value_makes_no_map() -> None:
    data = shown(gpu_frame(1, gpu_temp_c=None, sm_clock_mhz=None, power_w=None))
    assert data["heats"] == []


def test_checkpoints_are_counted_and_not_drawn_among_training_steps() -> None:
    saved = step(9, own_max_rank=None).model_copy(update={"phase": "checkpoint"})
    (told,) = shown(gpu_frame(1), said=(*(step(n) for n in range(3)), saved))["jobs"]
    assert (told["steps"], told["others"], len(told["at"])) == (3, 1, 3)


def test_jobs_of_incidents_come_first() -> None:
    small, large = job(2, job_id="a"), job(512, job_id="b")
    told = [step(n).model_copy(update={"job_id": name}) for n in range(2) for name in ("b", "a")]
    assert [j["job_id"] for j in shown(small, large, said=tuple(told))["jobs"]] == ["b", "a"]
    data = shown(small, large, said=(*told, incident(job_id="a", culprit=None)))
    assert [j["job_id"] for j in data["jobs"]] == ["a", "b"]


def test_pauses_that_a_port_sends_are_a_map_of_their_own() -> None:
    frames = [nic_frame(second, rx=0, tx=1_000 * second) for second in range(4)]
    assert [heat["name"] for heat in shown(*frames)["heats"]] == ["Pauses sent"]


def test_a_value_beyond_the_scale_is_said_to_be_more() -> None:
    calm = [step_timing(n, n, [200_000] * 8) for n in range(3)]
    assert [heat["beyond"] for heat in shown(job(8), *calm)["heats"]] == [False]
    slow = step_timing(3, 3, [200_000] * 7 + [800_000])
    assert [heat["beyond"] for heat in shown(job(8), *calm, slow)["heats"]] == [True]
