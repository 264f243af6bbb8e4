"""The job controllers' hands: against the reference controller, one that is away, one that lies, and an end at any moment."""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE
from job_rig import NOW_NS, TERM_NS, Rig
from power_cut import Cut, PowerCutError
from signed_commands import RING, command, signed
from typer.testing import CliRunner

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.hands import ActFailedError, TargetAwayError
from agents.actuators.job_controller import JOB_KINDS, JobControllerHands, Patience
from agents.actuators.job_spool import JobSpool
from agents.actuators.memory import ActuatorMemory
from paceline.cli import app
from schemas.findings import Evidence
from schemas.remediation import ActionResult, Command, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE = Patience(take_s=2.0, answer_s=4.0, poll_s=0.5)


class Site:
    """An actuator and the controller of one job, which moves on while the actuator waits."""

    def __init__(self, home: Path, **named: Any) -> None:
        self.rig = Rig(home, **named)
        self.rig.start()
        self.rig.checkpoint(40)
        self.spool = JobSpool(home / "spool")
        self.home, self.offset, self.waits = home, 0, 0
        self.on_wait: Callable[[], object] = self.rig.controller.tick
        self.start()

    def start(self, wrap: Callable[[Any], Any] = lambda thing: thing) -> None:
        self.memory = ActuatorMemory(self.home / "memory", "job", NOW_NS - 10**12)
        hands = JobControllerHands(wrap(self.spool), JOB_KINDS, self.wait, PATIENCE)
        self.actuator = Actuator(
            ActuatorSettings("job", SITE),
            hands,
            self.memory,
            lambda _: None,
            lambda: RING,
            lambda: self.rig.now_ns,
            self.wait,
        )

    def wait(self, _: float) -> bool:
        self.waits += 1
        self.on_wait()
        return False

    def take(self, order: Command, offset: int | None = None) -> str:
        self.offset += 1
        wire = signed(order)
        place = Evidence(topic="paceline.actions.v1", partition=0, offset=offset if offset is not None else self.offset)
        return self.actuator.on_message(wire.value, wire.headers, place)

    def results(self) -> list[ActionResult]:
        return [result for _, result in self.memory.outbox()]


def order(kind: str = "swap_spare", number: int = 0, node_id: str = "node-2", **fields: Any) -> Command:
    level = "job" if kind == "restart_job" else "node"
    target = Target(level=level, node_id=node_id if level == "node" else None, job_id=fields.pop("job_id", "llama"))
    times = {"decided_at_ns": NOW_NS + 1, "expires_at_ns": NOW_NS + TERM_NS}
    return command(node_id=node_id, number=number, kind=kind, target=target, **{**times, **fields})


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    site = Site(tmp_path)
    yield site
    site.memory.close()


def test_the_result_says_which_rank_moved_where_and_from_which_step_the_job_goes_on(site: Site) -> None:
    assert site.take(order()) == "applied"
    assert site.results()[0].reason == (
        "rank 2,3 moved from node-2 to node-3; goes on from the checkpoint of step 40 in epoch 1"
    )
    assert site.memory.owner_of("node-2") == "cmd-node-2-0"


def test_a_second_delivery_puts_no_order_in_the_spool(site: Site) -> None:
    site.take(order(), offset=7)
    assert site.take(order(), offset=7) == "redelivered"
    assert site.take(order()) == "reused_id"
    assert list((site.home / "spool" / "llama" / "orders").iterdir()) == []
    assert site.rig.sheet()["epoch"] == 1


def test_the_job_of_a_node_is_found_by_what_controllers_say(site: Site) -> None:
    assert site.take(order(job_id=None)) == "applied"
    assert site.rig.sheet()["out"] == ["node-2"]
    other = site.home / "spool" / "other"
    other.mkdir()
    (other / "job.json").write_text(json.dumps({**site.rig.sheet(), "job_id": "other"}))
    assert site.take(order(number=1, node_id="node-1", job_id=None)) == "several_jobs"
    assert site.take(order(number=2, node_id="node-1")) == "applied", "named, it is found all the same"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"job_id": "unknown"}, "no_controller"),
        ({"job_id": "../llama"}, "no_controller"),
        ({"job_id": None, "node_id": "node-77"}, "no_controller"),
        ({"node_id": "node-77"}, "already_so"),
        ({"kind": "restart_job", "decided_at_ns": NOW_NS - 5}, "already_so"),
        ({"kind": "uncordon_node"}, "not_ours"),
        ({"command_id": "../../../etc/passwd"}, "malformed"),
    ],
)
def test_what_is_not_to_be_done_never_reaches_the_job(site: Site, fields: dict[str, Any], word: str) -> None:
    assert site.take(order(**fields)) == word
    assert len(site.rig.workers.starts) == 1


def test_without_a_spare_the_swap_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, spares=())
    assert site.take(order()) == "no_spare"
    assert [(result.outcome, result.reason) for result in site.results()] == [("refused", "the job has no spare")]
    assert len(site.rig.workers.starts) == 1
    site.memory.close()


def test_a_spare_that_went_in_between_is_the_controllers_refusal(site: Site) -> None:
    looked = site.spool.sheet("llama")
    assert looked is not None
    for number, node_id in enumerate(("node-1", "node-2")):
        site.rig.order(f"cmd-x{number}", node_id=node_id, expected_epoch=number)
        site.rig.ticks()
    state = {**_state(site, order(node_id="node-3")), "spares": 1}
    hands = JobControllerHands(site.spool, JOB_KINDS, site.wait, PATIENCE)
    with pytest.raises(ActFailedError, match="the job has no spare") as refused:
        hands.act(order(node_id="node-3"), state)
    assert getattr(refused.value, "code", None) == "no_spare"


def _state(site: Site, asked: Command) -> dict[str, Any]:
    return JobControllerHands(site.spool, JOB_KINDS, site.wait, PATIENCE).look(asked)


def test_what_was_moved_off_from_here_is_given_back(site: Site) -> None:
    assert site.take(order("drain_node")) == "applied"
    assert site.take(order("uncordon_node", 1)) == "applied"
    assert site.rig.sheet()["spares"] == ["node-4", "node-2"]
    assert site.memory.owner_of("node-2") is None
    assert site.take(order("uncordon_node", 2)) == "not_ours"


def test_an_order_that_nobody_takes_is_taken_back_and_told(site: Site) -> None:
    site.on_wait = lambda: None
    assert site.take(order()) == "target_away"
    assert [path.name for path in (site.home / "spool" / "llama" / "orders").iterdir()] == []
    site.rig.ticks(5)
    assert len(site.rig.workers.starts) == 1, "nobody restarts a job for an order that was told to have failed"


def test_a_checkpoint_that_takes_long_is_told_as_under_way(site: Site) -> None:
    assert site.take(order("drain_node", when="after_checkpoint")) == "applied"
    assert site.results()[0].reason == "under way: checkpointing"
    site.rig.checkpoint(60)
    site.rig.ticks()
    assert site.rig.sheet()["out"] == ["node-2"]


def test_a_controller_that_cannot_be_understood_is_away_and_writes_nothing_anywhere(site: Site) -> None:
    sheet = site.home / "spool" / "llama" / "job.json"
    secret = site.home / "secret"
    secret.write_text("{}")
    sheet.unlink()
    sheet.symlink_to(secret)
    with pytest.raises(TargetAwayError):
        site.spool.sheet("llama")
    sheet.unlink()
    os.mkfifo(sheet)
    with pytest.raises(TargetAwayError, match="no plain file"):
        site.spool.sheet("llama")
    sheet.unlink()
    for text in ("{", "[]", '{"contract": 2}', '{"contract": 1, "job_id": "other"}'):
        sheet.write_text(text)
        with pytest.raises(TargetAwayError):
            site.spool.sheet("llama")
    assert site.spool.jobs_of("node-1") == []
    with pytest.raises(ActFailedError, match="cannot be the name of an order"):
        site.spool.offer("llama", "../cmd-1", {})
    # A link in the place of the order that is being written.
    partial = site.home / "spool" / "llama" / "orders" / ".cmd-1.partial"
    partial.symlink_to(secret)
    site.spool.offer("llama", "cmd-1", {})
    assert secret.read_text() == "{}"


def test_answers_of_another_order_or_of_another_form_are_none(site: Site) -> None:
    path = site.home / "spool" / "llama" / "answers" / "cmd-1.json"
    whole = {"contract": 1, "command_id": "cmd-1", "state": "done"}
    for fields in ({"command_id": "cmd-2"}, {"state": "finished"}, {"contract": 3}, {"epoch": "1"}):
        path.write_text(json.dumps({**whole, **fields}))
        assert site.spool.answer("llama", "cmd-1") is None
    path.write_text(json.dumps({**whole, "text": "a\nb\x1b[31m"}))
    answer = site.spool.answer("llama", "cmd-1")
    assert answer is not None
    assert answer.has_ended


def test_an_end_of_the_actuator_at_any_moment_swaps_once_and_loses_no_result(tmp_path: Path) -> None:
    # Before and after each thing in the spool: what the memory holds in between is cut elsewhere.
    words = set()
    for calls in range(1, 120):
        site = Site(tmp_path / f"{calls}")
        cut = Cut()
        site.memory.close()
        # Between two of these nobody else can see a difference.
        site.start(partial(cut.wrap, names={"offer", "take_back", "is_taken"}))
        cut.left = calls
        with contextlib.suppress(PowerCutError):
            site.take(order(), offset=7)
        was_cut = cut.is_off
        site.memory.close()
        site.start()
        site.actuator.resume()
        # What was not committed is delivered again.
        site.take(order(), offset=7)
        [result] = site.results()
        words.add((result.outcome, result.code))
        assert (site.rig.sheet()["out"], site.rig.sheet()["spares"]) == (["node-2"], ["node-4"]), calls
        assert result.outcome == "applied"
        assert site.memory.owner_of("node-2") == "cmd-node-2-0"
        assert site.memory.unfinished() == []
        assert len(site.rig.workers.starts) == 2
        site.memory.close()
        if not was_cut:
            break
    else:
        pytest.fail("the run has more calls than were cut")
    assert words == {("applied", None), ("applied", "found_done")}


def test_what_expired_while_the_actuator_was_away_is_not_done_later(site: Site) -> None:
    asked = order()
    site.memory.accept(asked, signed(asked).value, "paceline.actions.v1/0/9", NOW_NS)
    site.memory.begin(asked.command_id, _state(site, asked), NOW_NS)
    site.spool.offer("llama", asked.command_id, {"kind": "swap_spare"})
    site.rig.now_ns = NOW_NS + TERM_NS + 1
    site.actuator.resume()
    assert [result.outcome for result in site.results()] == ["expired"]
    site.rig.ticks(5)
    assert len(site.rig.workers.starts) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--kinds", "swap_spare,reset_gpu"], "no kind 'reset_gpu'"), (["--controller", "/nowhere"], "no /nowhere")],
)
def test_the_command_refuses_settings_that_do_not_hold(tmp_path: Path, options: list[str], reason: str) -> None:
    given = ["--keyring", "ring.json", "--state-dir", str(tmp_path), "--controller", str(tmp_path), *options]
    run = CliRunner().invoke(app, ["act", "job", *given])
    assert run.exit_code == 2
    assert reason in run.output
