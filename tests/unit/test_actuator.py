"""The actuator's core: at most one act for a command, in the order of its target, also when it dies at any moment."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at
from power_cut import Cut, PowerCutError
from signed_commands import RING, SIGNER, command, signed

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.dry_run import DryRunHands
from agents.actuators.hands import ActFailedError, Judgement, TargetAwayError
from agents.actuators.limits import LocalLimits
from agents.actuators.memory import ActuatorMemory, ActuatorMemoryError
from agents.actuators.permission import Permission
from schemas.findings import Evidence
from schemas.fleet import Policy, PolicyHeartbeat
from schemas.remediation import ActionResult, Command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas.codec import Message


class Fleet:
    """Nodes that are out or not, and a log of what was done to them, which outlives any actuator."""

    def __init__(self) -> None:
        self.out: dict[str, str] = {}
        self.log: list[str] = []


class FleetHands:
    """Takes nodes out, puts them back, and presses buttons whose effect nobody can see afterwards."""

    kinds = frozenset({"cordon_node", "uncordon_node", "reset_gpu"})

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.away = self.away_for_acts = 0
        self.breaks: Exception | None = None

    def look(self, order: Command) -> dict[str, Any]:
        if self.away:
            self.away -= 1
            raise TargetAwayError("nobody answers")
        return {"out_by": self.fleet.out.get(order.target.key())}

    def judge(self, order: Command, state: dict[str, Any], owner: str | None) -> Judgement:
        name = order.target.key()
        if order.kind == "cordon_node":
            return Judgement("already_so") if state["out_by"] else Judgement("do", takes=name)
        if order.kind == "uncordon_node":
            ours = owner is not None and owner == state["out_by"]
            return Judgement("do", gives_back=name) if ours else Judgement("refuse", "not_ours", "not ours")
        return Judgement("do")

    def act(self, order: Command, state: dict[str, Any]) -> str:
        if self.away_for_acts:
            self.away_for_acts -= 1
            raise TargetAwayError("nobody answers")
        if order.kind == "cordon_node":
            self.fleet.out[order.target.key()] = order.command_id
        elif order.kind == "uncordon_node":
            del self.fleet.out[order.target.key()]
        self.fleet.log.append(f"{order.kind} {order.target.key()}")
        if self.breaks is not None:
            raise self.breaks
        return "done"

    def has_taken_effect(self, order: Command, before: dict[str, Any], after: dict[str, Any]) -> bool | None:
        if order.kind == "reset_gpu":
            return None
        return bool(after != before)


class Rig:
    """An actuator that can be ended and started again, with the fleet it acts on."""

    def __init__(self, path: Path, limits: LocalLimits | None = None) -> None:
        self.path, self.fleet, self.now_ns = path, Fleet(), at(1)
        self.hands = FleetHands(self.fleet)
        self.limits = limits or LocalLimits(costly_per_hour=100)
        self.permission = Permission(SITE)
        self.permission.take(Policy(policy_version="1", site_id=SITE, effective_from_ns=0))
        self.waited: list[float] = []
        self.sent: list[ActionResult] = []
        self._offsets = 0
        self.ring = RING
        self.start(born_ns=at(-100))

    def start(self, born_ns: int | None = None, wrap: Callable[[Any], Any] = lambda thing: thing) -> None:
        self.memory = ActuatorMemory(self.path, "slurm-1", born_ns if born_ns is not None else self.now_ns)
        self.actuator = Actuator(
            ActuatorSettings("slurm-1", SITE, self.limits),
            wrap(self.hands),
            wrap(self.memory),
            self.permission.refusal,
            lambda: self.ring,
            lambda: self.now_ns,
            self.waited.append,
        )

    def restart(self, wrap: Callable[[Any], Any] = lambda thing: thing) -> None:
        self.memory.close()
        self.start(wrap=wrap)

    def place(self) -> Evidence:
        self._offsets += 1
        return Evidence(topic="paceline.actions.v1", partition=0, offset=self._offsets)

    def take(self, wire: Message, place: Evidence | None = None) -> str:
        self.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=self.now_ns))
        return self.actuator.on_message(wire.value, wire.headers, place or self.place())

    def results(self) -> list[ActionResult]:
        for number, result in self.memory.outbox():
            self.sent.append(result)
            self.memory.sent(number)
        return self.sent


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = Rig(tmp_path / "memory.sqlite")
    yield rig
    rig.memory.close()


def test_a_command_is_carried_out_once_and_reported(rig: Rig) -> None:
    assert rig.take(signed(command())) == "applied"
    assert rig.fleet.log == ["cordon_node node-1"]
    [result] = rig.results()
    assert (result.command_id, result.outcome, result.actuator_id, result.reason) == (
        "cmd-node-1-0",
        "applied",
        "slurm-1",
        "done",
    )


def test_a_second_delivery_changes_nothing(rig: Rig) -> None:
    place = rig.place()
    rig.take(signed(command()), place)
    assert rig.take(signed(command()), place) == "redelivered"
    rig.restart()
    assert rig.take(signed(command()), place) == "redelivered"
    assert rig.fleet.log == ["cordon_node node-1"]
    assert len(rig.results()) == 1


def test_a_command_that_is_published_again_is_refused_and_so_is_another_under_its_id(rig: Rig) -> None:
    rig.take(signed(command()))
    assert rig.take(signed(command())) == "reused_id"
    assert rig.take(signed(command(sequence=7, kind="uncordon_node"))) == "reused_id"
    assert rig.fleet.log == ["cordon_node node-1"]
    assert ["the same bytes" in r.reason for r in rig.results()[1:]] == [True, False]


def test_what_was_done_and_comes_again_after_its_expiry_is_told_as_a_repeat(rig: Rig) -> None:
    """A worker that was killed publishes again what it had published, also long after."""
    place = rig.place()
    rig.take(signed(command()), place)
    rig.now_ns = at(700)
    assert rig.take(signed(command()), place) == "redelivered"
    assert rig.take(signed(command())) == "reused_id"
    assert [(result.outcome, result.code) for result in rig.results()] == [("applied", None), ("refused", "reused_id")]
    assert rig.take(signed(command(node_id="node-2"))) == "expired", "and what is new and late as expired"


def test_an_act_that_would_arrive_after_its_expiry_is_not_begun(rig: Rig) -> None:
    assert rig.take(signed(command(expires_at_ns=rig.now_ns + 1_900_000_000))) == "expired"
    assert rig.take(signed(command(number=1, expires_at_ns=rig.now_ns + 2_000_000_000))) == "applied"


def test_a_sequence_that_is_not_above_the_last_of_its_target_is_refused(rig: Rig) -> None:
    assert rig.take(signed(command(number=3))) == "applied"
    for number in (2, 3):
        assert rig.take(signed(command(number=number, command_id=f"other-{number}"))) == "old_sequence"
    assert rig.take(signed(command(number=0, node_id="node-2"))) == "applied"
    rig.restart()
    assert rig.take(signed(command(number=1))) == "old_sequence"


def test_what_was_decided_before_the_memory_began_is_not_done(rig: Rig) -> None:
    rig.memory.close()
    rig.path.unlink()
    rig.now_ns = at(50)
    rig.start()
    assert rig.take(signed(command(20))) == "before_memory"
    assert rig.take(signed(command(-6000))) == "passed_over", "history that expired is nobody's business"
    assert rig.take(signed(command(51))) == "applied"
    assert rig.fleet.log == ["cordon_node node-1"]


def test_only_orders_are_carried_out_and_only_of_kinds_that_are_known(rig: Rig) -> None:
    for mode in ("observe", "approve"):
        assert rig.take(signed(command(mode=mode))) == "passed_over"
    assert rig.take(signed(command(kind="network_action"))) == "passed_over"
    assert rig.results() == []
    assert rig.take(signed(command())) == "applied", "what was passed over uses no id and no sequence"


def test_a_message_that_is_not_signed_says_nothing_about_the_command_it_names(rig: Rig) -> None:
    wire = signed(command())
    tampered = wire.value.replace(b"node-1", b"node-2")
    place = rig.place()
    assert rig.actuator.on_message(tampered, wire.headers, place) == "bad_signature"
    [result] = rig.results()
    assert result.command_id.startswith("unverified-")
    assert result.message == place
    assert rig.take(wire) == "applied", "the genuine command is still to come"


def test_what_says_that_it_is_of_another_site_is_left_to_that_one(rig: Rig) -> None:
    other = signed(command(site_id="site-2"))
    assert rig.take(other) == "passed_over"
    unsigned = replace(other, headers=tuple(h for h in other.headers if h[0] != "signature"))
    assert rig.take(unsigned) == "passed_over"
    mine = signed(command())
    source = tuple(header for header in mine.headers if header[0] == "ce_source")
    lying = replace(other, headers=(*(h for h in other.headers if h[0] != "ce_source"), *source))
    assert rig.take(lying) == "wrong_site"
    assert rig.take(replace(lying, headers=tuple(h for h in lying.headers if h[0] != "ce_source"))) == "wrong_site"
    assert rig.fleet.log == []


def test_nothing_begins_after_its_expiry_however_long_looking_took(rig: Rig) -> None:
    late = rig.hands.look

    def slow(order: Command) -> dict[str, Any]:
        rig.now_ns = at(601)
        return late(order)

    rig.hands.look = slow  # type: ignore[method-assign]
    assert rig.take(signed(command())) == "expired"
    assert rig.fleet.log == []
    assert [result.outcome for result in rig.results()] == ["expired"]


def test_the_kill_switch_stops_and_what_it_stopped_stays_stopped(rig: Rig) -> None:
    rig.permission.take(Policy(policy_version="2", site_id=SITE, effective_from_ns=at(0), kill_switch=True))
    assert rig.take(signed(command())) == "kill_switch"
    rig.permission.take(Policy(policy_version="3", site_id=SITE, effective_from_ns=at(1)))
    assert rig.take(signed(command())) == "reused_id"
    assert rig.take(signed(command(number=1))) == "applied"
    assert len(rig.fleet.log) == 1


def test_local_limits_count_what_was_begun_also_before_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "m", LocalLimits(costly_per_hour=2))
    words = []
    for number in range(4):
        words.append(rig.take(signed(command(node_id=f"node-{number}"))))
        rig.restart()
    assert words == ["applied", "applied", "local_limit", "local_limit"]
    rig.now_ns = at(3700)
    assert rig.take(signed(command(3690, node_id="node-9"))) == "applied"
    rig.memory.close()


def test_only_what_was_taken_out_from_here_is_given_back(rig: Rig) -> None:
    rig.fleet.out["node-2"] = "an administrator"
    assert rig.take(signed(command(number=0))) == "applied"
    assert rig.take(signed(command(node_id="node-2"))) == "already_so"
    rig.restart()
    assert rig.take(signed(command(number=1, kind="uncordon_node"))) == "applied"
    assert rig.take(signed(command(number=2, node_id="node-2", kind="uncordon_node"))) == "not_ours"
    assert rig.fleet.out == {"node-2": "an administrator"}
    assert rig.take(signed(command(number=2, kind="uncordon_node"))) == "not_ours", "it was given back already"


def test_a_controller_that_is_away_is_tried_again_and_then_told(rig: Rig) -> None:
    rig.hands.away = 2
    assert rig.take(signed(command())) == "applied"
    rig.hands.away = 99
    assert rig.take(signed(command(number=1, kind="uncordon_node"))) == "target_away"
    assert rig.waited == [1.0, 2.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(("expires_s", "word", "log"), [(7, "applied", ["cordon_node node-1"]), (3, "expired", [])])
def test_an_act_is_tried_again_only_before_its_expiry(rig: Rig, expires_s: int, word: str, log: list[str]) -> None:
    def wait(pause_s: float) -> None:
        rig.now_ns += round(pause_s * 1e9)

    rig.actuator._wait_s = wait
    rig.hands.away_for_acts = 2
    assert rig.take(signed(command(expires_at_ns=at(expires_s)))) == word
    assert rig.fleet.log == log
    assert [result.outcome for result in rig.results()] == [word]


def test_an_act_is_not_tried_again_once_the_kill_switch_is_thrown(rig: Rig) -> None:
    thrown = Policy(policy_version="2", site_id=SITE, effective_from_ns=at(0), kill_switch=True)
    rig.actuator._wait_s = lambda _: rig.permission.take(thrown)
    rig.hands.away_for_acts = 1
    assert rig.take(signed(command())) == "kill_switch"
    assert rig.fleet.log == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_was_taken_before_a_crash_is_not_done_once_its_key_is_revoked(rig: Rig, is_begun: bool) -> None:
    rig.memory.accept(command(), signed(command()).value, "paceline.actions.v1/0/9", at(1))
    if is_begun:
        rig.memory.begin("cmd-node-1-0", {"out_by": None}, at(1))
    rig.ring = RING.without_trust(SIGNER.key_id)
    rig.restart()
    rig.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=rig.now_ns))
    rig.actuator.resume()
    assert [(result.outcome, result.code) for result in rig.results()] == [("refused", "key_revoked")]
    assert rig.fleet.log == []


def test_an_act_is_not_tried_again_once_its_key_is_revoked(rig: Rig) -> None:
    rig.actuator._wait_s = lambda _: setattr(rig, "ring", RING.without_trust(SIGNER.key_id))
    rig.hands.away_for_acts = 1
    assert rig.take(signed(command())) == "key_revoked"
    assert rig.fleet.log == []


def test_an_act_that_is_gone_on_with_after_a_crash_does_not_count_against_itself(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "m", LocalLimits(costly_per_hour=1))
    rig.memory.accept(command(), signed(command()).value, "paceline.actions.v1/0/9", at(1))
    rig.memory.begin("cmd-node-1-0", {"out_by": None}, at(1))
    rig.restart()
    rig.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=rig.now_ns))
    rig.actuator.resume()
    assert [result.outcome for result in rig.results()] == ["applied"]
    assert rig.take(signed(command(node_id="node-2"))) == "local_limit", "it counts against the next"
    rig.memory.close()


def test_an_act_that_broke_off_is_held_against_what_the_target_shows(rig: Rig) -> None:
    rig.hands.breaks = ActFailedError("timed out")
    assert rig.take(signed(command())) == "applied"
    assert rig.take(signed(command(kind="reset_gpu", number=1))) == "act_failed"
    assert [(r.outcome, "took effect" in r.reason) for r in rig.results()] == [("applied", True), ("failed", False)]
    rig.hands.breaks = None
    assert rig.take(signed(command(number=2, kind="uncordon_node"))) == "applied", "and so it is owned"


def run_with_cut(rig: Rig, order: Command, calls: int) -> bool:
    """Carry an order out with an end at some moment, then go on; whether the end came at all."""
    cut = Cut(calls)
    rig.restart(cut.wrap)
    place = rig.place()
    with contextlib.suppress(PowerCutError):
        rig.take(signed(order), place)
    rig.restart()
    rig.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=rig.now_ns))
    rig.actuator.resume()
    # What was not committed is delivered again.
    rig.take(signed(order), place)
    return cut.is_off


@pytest.mark.parametrize("kind", ["cordon_node", "reset_gpu"])
def test_an_end_at_any_moment_repeats_nothing_and_loses_no_result(tmp_path: Path, kind: str) -> None:
    outcomes = []
    for calls in range(1, 40):
        rig = Rig(tmp_path / f"memory-{calls}")
        was_cut = run_with_cut(rig, command(kind=kind), calls)
        [result] = rig.results()
        outcomes.append((result.outcome, result.code))
        assert len(rig.fleet.log) <= 1
        assert rig.memory.unfinished() == []
        if kind == "cordon_node":
            # Whether a node is out can be seen, so the order is never lost either.
            assert (rig.fleet.log, result.outcome) == (["cordon_node node-1"], "applied")
            assert rig.memory.owner_of("node-1") == "cmd-node-1-0"
        elif result.outcome == "failed":
            assert result.code == "interrupted"
        rig.memory.close()
        if not was_cut:
            break
    else:
        pytest.fail("the run has more calls than were cut")
    assert len(outcomes) > 10
    assert ("applied", "found_done") in outcomes or ("failed", "interrupted") in outcomes


def test_what_was_under_way_when_it_expired_is_told_as_expired(rig: Rig) -> None:
    order = signed(command())
    rig.memory.accept(command(), order.value, "paceline.actions.v1/0/9", at(1))
    rig.now_ns = at(700)
    rig.restart()
    rig.actuator.resume()
    assert [(result.outcome, result.code) for result in rig.results()] == [("expired", "expired")]
    assert rig.fleet.log == []


# --- The memory -------------------------------------------------------------------------------------------------------


def test_one_process_has_the_memory(rig: Rig) -> None:
    with pytest.raises(ActuatorMemoryError, match="another process has it"):
        ActuatorMemory(rig.path, "slurm-1", 0)


def test_a_damaged_memory_and_one_of_another_actuator_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ActuatorMemory(path, "slurm-1", 5).close()
    with pytest.raises(ActuatorMemoryError, match="of actuator 'slurm-1', not 'slurm-2'"):
        ActuatorMemory(path, "slurm-2", 6)
    again = ActuatorMemory(path, "slurm-1", 6)
    assert again.born_ns == 5
    again.close()
    path.write_bytes(b"no database" * 500)
    with pytest.raises(ActuatorMemoryError, match="not a database"):
        ActuatorMemory(path, "slurm-1", 7)
    with pytest.raises(ActuatorMemoryError, match=r"m/below: (Not a directory|File exists)"):
        ActuatorMemory(path / "below", "slurm-1", 7)


def test_results_stay_until_they_are_sent(rig: Rig) -> None:
    rig.take(signed(command()))
    rig.restart()
    [(number, result)] = rig.memory.outbox()
    assert result.command_id == "cmd-node-1-0"
    rig.memory.sent(number)
    rig.restart()
    assert rig.memory.outbox() == []


# --- The dry run ------------------------------------------------------------------------------------------------------


def test_the_dry_run_says_what_would_be_done(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "m")
    said: list[str] = []
    memory = ActuatorMemory(tmp_path / "d", "dry-run", at(-100))
    settings = ActuatorSettings("dry-run", SITE, modes=frozenset({"observe", "approve", "auto"}))
    dry = Actuator(
        settings,
        DryRunHands(said.append),
        memory,
        rig.permission.refusal,
        lambda: RING,
        lambda: at(1),
        rig.waited.append,
    )
    rig.permission.take(PolicyHeartbeat(policy_version="1", site_id=SITE, event_time_ns=at(1)))
    wire = signed(command(mode="observe", kind="network_action"))
    assert dry.on_message(wire.value, wire.headers, rig.place()) == "applied"
    assert len(said) == 1
    assert '"would":"network_action"' in said[0]
    memory.close()
    rig.memory.close()
