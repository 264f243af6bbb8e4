"""What follows from acts that were carried out: pre-flight, return, the next rung, and what nobody's silence may cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deciding import APPROVALS, RESULTS, approval, engine_of, fed, lost, mark, of, orders, result
from factories import finding, job

from schemas.findings import Subject
from schemas.fleet import RulePolicy
from schemas.remediation import Command, Decision, Incident
from streams.core.position import Position

if TYPE_CHECKING:
    from schemas.base import Record
    from streams.engines.decisions import DecisionsEngine

PATIENT = {"ski_rental": RulePolicy(enabled=False)}


class Story:
    """One engine, told things second by second."""

    def __init__(self, **fields: Any) -> None:
        self.engine: DecisionsEngine = engine_of(**fields)
        self._read = 0
        self._results = 0
        self.until(0)

    def tell(self, *records: Any) -> list[Record]:
        outputs = fed(self.engine, list(records), self._read)
        self._read += len(records)
        return outputs

    def until(self, second: float) -> list[Record]:
        return self.tell(mark(second))

    def comes(self, second: float, command: Command, outcome: str = "applied", code: str | None = None) -> list[Record]:
        """A result, and time until it has settled."""
        self.engine.on_record(result(second, command.command_id, outcome, code), Position(RESULTS, 0, self._results, 0))
        self._results += 1
        return self.until(second + 10)


def the(outputs: list[Record], kind: str) -> Command:
    [command] = [command for command in of(outputs, Command) if command.kind == kind]
    return command


def last(outputs: list[Record]) -> Incident:
    incident = of(outputs, Incident)[-1]
    assert isinstance(incident, Incident)
    return incident


def cordoned(**fields: Any) -> tuple[Story, Command]:
    """A node that was cordoned at second 10 for a lost GPU, and the pre-flight that was asked for after it."""
    story = Story(**fields)
    story.tell(lost(1, 7))
    assert last(story.comes(10, the(story.until(6), "cordon_node"))).state == "verifying"
    assert of(story.until(609), Command) == []
    outputs = story.until(625)
    check = the(outputs, "run_preflight")
    assert (check.mode, check.when, check.target.node_id) == ("auto", "after_checkpoint", "node-7")
    return story, check


def test_a_node_that_passed_pre_flight_is_given_back_and_its_incident_ends() -> None:
    story, check = cordoned()
    outputs = story.comes(700, check, code="fit")
    back = the(outputs, "uncordon_node")
    assert (back.mode, back.target.node_id) == ("auto", "node-7")
    assert last(outputs).state == "verifying"
    over = last(story.comes(720, back))
    assert (over.state, over.summary.endswith("the node is back in service")) == ("resolved", True)
    assert of(story.until(9000), Command) == []


@pytest.mark.parametrize(
    ("outcome", "code"), [("applied", None), ("applied", "already_so"), ("failed", "fit"), ("refused", "fit")]
)
def test_a_pre_flight_that_says_nothing_about_the_node_gives_nothing_back(outcome: str, code: str | None) -> None:
    story, check = cordoned()
    assert of(story.comes(700, check, outcome, code), Command) == []
    assert of(story.until(90_000), Command) == []


def test_silence_gives_nothing_back_and_takes_nothing_more() -> None:
    story, _ = cordoned()
    assert of(story.until(90_000), Command) == []
    assert of(story.until(900_000), Command) == []


def test_a_pre_flight_that_nobody_asked_for_after_the_act_gives_nothing_back() -> None:
    story = Story()
    story.tell(lost(1, 7))
    cordon = the(story.until(6), "cordon_node")
    story.comes(10, cordon)
    assert of(story.comes(20, cordon, code="fit"), Command) == []
    story, check = cordoned()
    assert of(story.comes(700, check.model_copy(update={"command_id": "cmd-of-nobody"}), code="fit"), Command) == []


def test_a_node_whose_fault_came_again_before_it_passed_is_for_people() -> None:
    story, check = cordoned()
    story.tell(lost(640, 7))
    outputs = story.comes(700, check, code="fit")
    # The second cordon that the code asks for is held: the node had one minutes ago.
    assert orders(outputs) == []
    assert (last(outputs).state, "came again" in last(outputs).summary) == ("open", True)


def test_what_showed_before_the_pre_flight_was_asked_for_is_what_that_judges() -> None:
    story = Story()
    story.tell(lost(1, 7))
    story.comes(10, the(story.until(6), "cordon_node"))
    story.tell(lost(20, 7), lost(600, 7))
    check = the(story.until(625), "run_preflight")
    assert the(story.comes(700, check, code="fit"), "uncordon_node").mode == "auto"


def test_a_node_with_another_incident_is_not_given_back() -> None:
    story, check = cordoned()
    other = Subject(level="gpu", node_id="node-7", pci_bus_id="0000:20:00")
    story.tell(
        finding("xid", 640, other, urgent=True, values={"code": 79, "trusted": True}, finding_id="xid-of-another")
    )
    story.until(650)
    outputs = story.comes(700, check, code="fit")
    assert [command for command in of(outputs, Command) if command.kind == "uncordon_node"] == []
    assert "has an incident of its own" in last(outputs).summary


def test_a_node_that_was_out_before_is_not_given_back() -> None:
    story = Story()
    story.tell(lost(1, 7))
    story.comes(10, the(story.until(6), "cordon_node"), code="already_so")
    check = the(story.until(625), "run_preflight")
    outputs = story.comes(700, check, code="fit")
    assert of(outputs, Command) == []
    assert last(outputs).state == "resolved"


def test_a_node_that_failed_pre_flight_climbs_the_ladder_to_its_end() -> None:
    story, check = cordoned()
    outputs = story.comes(700, check, "failed", "unfit")
    reboot = the(outputs, "reboot_node")
    assert (reboot.mode, last(outputs).state) == ("auto", "acting")
    assert "stays with the part" in of(outputs, Incident)[0].summary
    story.comes(720, reboot)
    again = the(story.until(1400), "run_preflight")
    assert again.attempt == check.attempt + 1
    outputs = story.comes(1500, again, "failed", "unfit")
    replace = the(outputs, "replace_hardware")
    assert (replace.mode, replace.target.level) == ("auto", "gpu")
    story.comes(1600, replace)
    assert of(story.until(90_000), Command) == []


def test_a_reboot_that_helped_gives_the_node_back() -> None:
    story, check = cordoned()
    story.comes(720, the(story.comes(700, check, "failed", "unfit"), "reboot_node"))
    again = the(story.until(1400), "run_preflight")
    assert the(story.comes(1500, again, code="fit"), "uncordon_node").mode == "auto"


def test_the_same_code_after_a_reboot_stays_with_the_part() -> None:
    story, check = cordoned()
    story.comes(720, the(story.comes(700, check, "failed", "unfit"), "reboot_node"))
    story.tell(lost(900, 7))
    outputs = story.until(950)
    assert the(outputs, "replace_hardware").mode == "auto"
    assert any("came again after reboot_node" in incident.summary for incident in of(outputs, Incident))


def test_a_code_from_before_the_act_is_no_sign_that_it_did_not_help() -> None:
    story, check = cordoned()
    story.comes(720, the(story.comes(700, check, "failed", "unfit"), "reboot_node"))
    story.tell(lost(710, 7))
    assert [command.kind for command in of(story.until(1400), Command)] == ["run_preflight"]


def test_attempts_are_capped_on_the_ladder() -> None:
    story = Story(guards={"attempts": RulePolicy(thresholds={"count": 1})})
    story.tell(lost(1, 7))
    story.comes(10, the(story.until(6), "cordon_node"))
    check = the(story.until(625), "run_preflight")
    outputs = story.comes(700, check, "failed", "unfit")
    assert the(outputs, "reboot_node").mode == "observe"
    [held] = [entry for entry in of(outputs, Decision) if entry.action == "held"]
    assert [hold["guard"] for hold in held.detail["holds"]] == ["attempts"]


def test_an_act_that_nobody_carried_out_leaves_its_incident_open() -> None:
    story = Story()
    story.tell(lost(1, 7))
    story.until(6)
    assert of(story.until(915), Incident) == []
    told = last(story.until(916))
    assert (told.state, "nobody carried out" in told.summary) == ("open", True)


def test_a_pre_flight_may_wait_for_consent_and_counts_all_the_same() -> None:
    story = Story(mode_by_kind={"run_preflight": "approve", "uncordon_node": "approve"})
    story.tell(lost(1, 7))
    story.comes(10, the(story.until(6), "cordon_node"))
    check = the(story.until(625), "run_preflight")
    assert check.mode == "approve"
    story.engine.on_approval(approval(630, check.command_id), None, Position(APPROVALS, 0, 0, 0))
    check = the(story.until(650), "run_preflight")
    back = the(story.comes(700, check, code="fit"), "uncordon_node")
    assert back.mode == "approve"


# --- Slow ranks -------------------------------------------------------------------------------------------------------

FIGURES = {"excess_us": 90_000, "step_time_us": 300_000}


def a_job(engine: DecisionsEngine) -> None:
    engine._roster.take(job(8, job_id="job-1"))


def slow(second: float, node: str, rank: int = 1, state: str = "open", onset_s: float | None = None) -> Any:
    seat = Subject(level="rank", job_id="job-1", rank=rank, node_id=node, gpu_uuid=f"GPU-{node}")
    return finding(
        "straggler",
        second,
        seat,
        slowdown=1.4,
        job_id="job-1",
        values=FIGURES,
        state=state,
        finding_id=f"slow-{node}-{onset_s if onset_s is not None else second}",
    )


def hot(second: float, node: str) -> Any:
    device = Subject(level="gpu", node_id=node, gpu_uuid=f"GPU-{node}")
    return finding("thermal_violation", second, device, onset_s=second - 3, finding_id=f"hot-{node}-{second}")


def drained(node: str = "node-3") -> tuple[Story, Command, list[Record]]:
    story = Story(guards=PATIENT)
    outputs = story.tell(slow(5, node), hot(6, node)) + story.until(40)
    drain = the(outputs, "drain_node")
    assert drain.mode == "auto"
    return story, drain, outputs


def test_a_job_loses_nothing_more_once_its_rank_keeps_pace_again() -> None:
    story, drain, _ = drained()
    a_job(story.engine)
    story.comes(50, drain)
    story.tell(slow(100, "node-3", state="cleared", onset_s=5))
    told = last(story.until(120))
    check = the(story.until(700), "run_preflight")
    over = last(story.comes(740, the(story.comes(720, check, code="fit"), "uncordon_node")))
    assert over.gpu_hours_lost == told.gpu_hours_lost == pytest.approx(8 * 95 / 3600 * 0.3, rel=1e-4)


def test_a_rank_that_keeps_pace_again_does_not_end_the_incident_while_its_node_is_out() -> None:
    story, drain, _ = drained()
    story.comes(50, drain)
    outputs = story.tell(slow(100, "node-3", state="cleared", onset_s=5)) + story.until(120)
    assert (last(outputs).state, "keeps pace again" in last(outputs).summary) == ("verifying", True)
    check = the(story.until(700), "run_preflight")
    back = the(story.comes(720, check, code="fit"), "uncordon_node")
    assert last(story.comes(740, back)).state == "resolved"


@pytest.mark.parametrize("outcome", ["refused", "expired"])
def test_a_rank_that_keeps_pace_again_without_an_act_ends_the_incident(outcome: str) -> None:
    story, drain, _ = drained()
    story.tell(slow(100, "node-3", state="cleared", onset_s=5))
    assert last(story.until(120)).state == "acting"
    outputs = story.comes(130, drain, outcome)
    assert last(outputs).state == "resolved"
    assert of(story.until(90_000), Command) == []


def test_a_drain_that_comes_after_the_recovery_is_followed_up() -> None:
    story, drain, _ = drained()
    story.tell(slow(100, "node-3", state="cleared", onset_s=5))
    story.until(120)
    story.comes(3600, drain)
    check = the(story.until(4300), "run_preflight")
    assert the(story.comes(4400, check, code="fit"), "uncordon_node").mode == "auto"


def test_a_drain_that_still_waits_for_consent_lapses_when_the_rank_keeps_pace_again() -> None:
    story = Story(mode="approve", guards=PATIENT)
    waiting = the(story.tell(slow(5, "node-3"), hot(6, "node-3")) + story.until(40), "drain_node")
    assert waiting.mode == "approve"
    story.tell(slow(100, "node-3", state="cleared", onset_s=5))
    assert last(story.until(120)).state == "resolved"
    story.engine.on_approval(approval(130, waiting.command_id), None, Position(APPROVALS, 0, 0, 0))
    outputs = story.until(150)
    assert of(outputs, Command) == []
    [entry] = [entry for entry in of(outputs, Decision) if entry.action == "approval_refused"]
    assert entry.detail["code"] == "no_longer_asked_for"


def test_in_observe_an_incident_of_a_slow_rank_ends_as_before() -> None:
    story = Story(mode="observe")
    story.tell(slow(5, "node-3"), hot(6, "node-3"))
    story.until(40)
    story.tell(slow(100, "node-3", state="cleared", onset_s=5))
    assert last(story.until(120)).state == "resolved"


def test_a_rank_that_is_slow_on_the_next_node_too_costs_no_second_node() -> None:
    story, drain, _ = drained()
    story.comes(50, drain)
    outputs = story.tell(slow(1000, "node-4"), hot(1001, "node-4")) + story.until(1050)
    second = the(outputs, "drain_node")
    assert (second.mode, second.target.node_id) == ("observe", "node-4")
    assert "goes with the seat, not with the part" in last(outputs).summary
    held = [entry for entry in of(outputs, Decision) if entry.action == "held"]
    assert [[hold["guard"] for hold in entry.detail["holds"]] for entry in held] == [["seat"]]


def test_another_rank_on_the_next_node_and_a_rank_whose_drain_was_refused_are_no_such_case() -> None:
    story, drain, _ = drained()
    story.comes(50, drain)
    outputs = story.tell(slow(1000, "node-4", rank=2), hot(1001, "node-4")) + story.until(1050)
    assert the(outputs, "drain_node").mode == "auto"
    story, drain, _ = drained()
    story.comes(50, drain, "refused", "local_limit")
    outputs = story.tell(slow(1000, "node-4"), hot(1001, "node-4")) + story.until(1050)
    assert the(outputs, "drain_node").mode == "auto"


def test_a_part_that_was_given_back_and_shows_it_again_is_said_to_keep_it() -> None:
    story, check = cordoned()
    story.comes(720, the(story.comes(700, check, code="fit"), "uncordon_node"))
    story.tell(lost(5000, 7))
    outputs = story.until(5010)
    assert "the same part had a cordon_node before" in last(outputs).summary
    assert orders(outputs)[0].kind == "cordon_node"
