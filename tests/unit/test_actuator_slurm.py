"""Slurm's hands against records as `scontrol` prints them: what is done, left alone and recognised."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signed_commands import command

from agents.actuators.hands import ActFailedError, Judgement, TargetAwayError
from agents.actuators.memory import ActuatorMemory, ActuatorMemoryError
from agents.actuators.scontrol import Scontrol, is_job_id, is_node_name, plain_text
from agents.actuators.slurm import SlurmHands
from schemas.remediation import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]

NODE = (
    "NodeName=node-1 Arch=x86_64 CPUAlloc=0 CPUTot=8 AvailableFeatures=(null) NodeAddr=10.0.0.1 Port=6818 "
    "OS=Linux 6.1.0-18-amd64 #1 SMP  RealMemory=100 State={state} ThreadsPerCore=1 Partitions=p  "
    "BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:01:00 ExtSensorsTemp=n/s{reason}\n"
)
JOB = (
    "JobId=7 JobName=train UserId=u(1) JobState={state} Reason=None Requeue={requeue} Restarts={restarts} NodeList=n1\n"
)


def node_text(state: str = "IDLE", reason: str | None = None) -> str:
    stamped = f" Reason={reason} [root@2026-01-02T03:04:05]" if reason is not None else ""
    return NODE.format(state=state, reason=stamped)


class FakeScontrol:
    """Answers `show` with a text, and keeps what else it is told."""

    def __init__(self, text: str = "", status: int = 0, error: str = "") -> None:
        self.text, self.status, self.error = text, status, error
        self.told: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.told.append(list(arguments))
        return subprocess.CompletedProcess(list(arguments), self.status, self.text, self.error)


def hands(fake: FakeScontrol, **named: Any) -> SlurmHands:
    return SlurmHands(Scontrol(run=fake), **named)


def state(flags: str = "IDLE", reason: str = "", started: str = "t0") -> dict[str, Any]:
    return {"flags": sorted(flags.split("+")), "reason": reason, "boot_time": "t0", "slurmd_start_time": started}


def judged(kind: str, seen: dict[str, Any], owner: str | None = None) -> Judgement:
    return hands(FakeScontrol()).judge(command(kind=kind), seen, owner)


@pytest.mark.parametrize(
    ("printed", "flags"),
    [
        ("IDLE", {"IDLE"}),
        ("ALLOCATED+DRAIN", {"ALLOCATED", "DRAIN"}),
        ("DOWN*+DRAIN+NOT_RESPONDING", {"DOWN", "DRAIN", "NOT_RESPONDING"}),
        ("mixed#", {"MIXED"}),
    ],
)
def test_flags_are_read_with_slurms_marks_taken_off(printed: str, flags: set[str]) -> None:
    assert hands(FakeScontrol(node_text(printed))).look(command())["flags"] == sorted(flags)


@pytest.mark.parametrize("reason", ["paceline cmd-1: Xid 79; a=b State=IDLE", "x [y", "", "Not responding"])
def test_a_reason_is_read_whole_and_without_its_stamp(reason: str) -> None:
    seen = hands(FakeScontrol(node_text("IDLE+DRAIN", reason))).look(command())
    assert (seen["reason"], seen["flags"]) == (reason, ["DRAIN", "IDLE"])


def test_draining_writes_who_and_why_as_one_argument() -> None:
    fake = FakeScontrol()
    hands(fake).act(command(reason="Xid 79\nState=RESUME; [x] \x00ü"), state())
    assert fake.told == [
        ["scontrol", "update", "NodeName=node-1", "State=DRAIN", "Reason=paceline cmd-node-1-0: Xid 79 State=RESUME; x"]
    ]


def test_a_node_that_is_out_already_is_left_as_it_is_and_not_owned() -> None:
    for kind in ("cordon_node", "drain_node"):
        judgement = judged(kind, state("IDLE+DRAIN", "fan"))
        assert (judgement.verdict, judgement.takes) == ("already_so", None)
        assert judged(kind, state("DOWN", "PSU broken")).verdict == "already_so"


def test_a_node_that_only_stopped_answering_is_drained_all_the_same() -> None:
    for reason in ("", "Not responding"):
        assert judged("cordon_node", state("DOWN+NOT_RESPONDING", reason)) == Judgement("do", takes="node-1")


def test_only_a_node_that_is_still_held_from_here_is_resumed() -> None:
    ours = state("IDLE+DRAIN", "paceline cmd-1: Xid 79")
    assert judged("uncordon_node", ours, "cmd-1") == Judgement("do", gives_back="node-1")
    assert judged("uncordon_node", ours, None).code == "not_ours"
    assert judged("uncordon_node", ours, "cmd-2").code == "not_ours"
    assert judged("uncordon_node", state("IDLE+DRAIN", "paceline cmd-1: Xid 79"), "cmd-11").code == "not_ours"
    assert judged("uncordon_node", state("IDLE+DRAIN", "fan"), "cmd-1").code == "not_ours"
    in_service = judged("uncordon_node", state("IDLE"), "cmd-1")
    assert (in_service.verdict, in_service.gives_back) == ("already_so", "node-1")


def test_a_reboot_leaves_a_drained_node_drained_and_the_reason_names_its_holder() -> None:
    fake = FakeScontrol()
    held = state("IDLE+DRAIN", "paceline cmd-1: Xid 79")
    assert judged("reboot_node", held, "cmd-1") == Judgement("do")
    hands(fake).act(command(kind="reboot_node"), held)
    hands(fake).act(command(kind="reboot_node"), state())
    assert fake.told == [
        ["scontrol", "reboot", "reason=paceline cmd-1: reboot by cmd-node-1-0", "node-1"],
        ["scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=paceline cmd-node-1-0: Xid 79", "node-1"],
    ]
    assert judged("reboot_node", state("IDLE+DRAIN", "fan"), None).code == "not_ours"
    assert judged("reboot_node", state("IDLE+REBOOT_REQUESTED"), None).verdict == "already_so"


@pytest.mark.parametrize(
    ("job_state", "requeue", "verdict"),
    [("RUNNING", 1, "do"), ("RUNNING", 0, "refuse"), ("PENDING", 1, "already_so"), ("COMPLETED", 1, "refuse")],
)
def test_a_job_is_requeued_only_while_it_runs_and_may_be(job_state: str, requeue: int, verdict: str) -> None:
    order = command(kind="restart_job", target=Target(level="job", job_id="7"))
    fake = FakeScontrol(JOB.format(state=job_state, requeue=requeue, restarts=2))
    assert hands(fake).judge(order, hands(fake).look(order), None).verdict == verdict
    hands(fake).act(order, {})
    assert fake.told[-1] == ["scontrol", "requeue", "7"]


@pytest.mark.parametrize(
    ("kind", "before", "after", "expected"),
    [
        ("cordon_node", state(), state("IDLE+DRAIN", "paceline cmd-node-1-0: Xid 79"), True),
        ("cordon_node", state(), state(), False),
        ("cordon_node", state(), state("IDLE+DRAIN", "fan"), None),
        ("cordon_node", state(), state("IDLE+DRAIN", "paceline cmd-node-1-00: x"), None),
        ("uncordon_node", state("IDLE+DRAIN", "x"), state(), True),
        ("uncordon_node", state("IDLE+DRAIN", "x"), state("IDLE+DRAIN", "x"), False),
        ("reboot_node", state(), state("IDLE+DRAIN+REBOOT_REQUESTED", "paceline cmd-node-1-0: x"), True),
        ("reboot_node", state("DRAIN", "paceline c"), state("DRAIN", "paceline c: reboot by cmd-node-1-0"), True),
        ("reboot_node", state(), state(started="t1"), True),
        ("reboot_node", state(), state(), False),
        ("reboot_node", state(), state("IDLE+REBOOT_REQUESTED", "other"), None),
        ("restart_job", {"state": "RUNNING", "restarts": 0}, {"state": "PENDING", "restarts": 1}, True),
        ("restart_job", {"state": "RUNNING", "restarts": 0}, {"state": "RUNNING", "restarts": 0}, False),
        ("restart_job", {"state": "RUNNING", "restarts": 0}, {"state": "FAILED", "restarts": 0}, None),
    ],
)
def test_two_states_tell_whether_an_act_took_effect(
    kind: str, before: dict[str, Any], after: dict[str, Any], expected: bool | None
) -> None:
    assert hands(FakeScontrol()).has_taken_effect(command(kind=kind), before, after) is expected


@pytest.mark.parametrize("name", ["node-[1-9]", "a,b", "ALL", "all", "", "-o", "n 1", "n\n", "ü", "n=1", "State=IDLE"])
def test_a_name_that_can_mean_several_nodes_never_reaches_slurm(name: str) -> None:
    assert not is_node_name(name)
    fake = FakeScontrol(node_text())
    order = command().model_copy(update={"target": Target(level="node", node_id=name)})
    for call in (hands(fake).look, lambda order: hands(fake).act(order, state())):
        with pytest.raises(ActFailedError, match="not the name of one node"):
            call(order)
    assert fake.told == []


@pytest.mark.parametrize("name", ["", "0", "7,8", "7_[1-3]", "name=train", "7 8", "-1", "७"])
def test_what_can_mean_several_jobs_never_reaches_slurm(name: str) -> None:
    assert not is_job_id(name)
    fake = FakeScontrol(JOB)
    order = command(kind="restart_job").model_copy(update={"target": Target(level="job", job_id=name)})
    with pytest.raises(ActFailedError, match="not the number of one job"):
        hands(fake).look(order)
    assert fake.told == []


def test_short_names_end_at_the_first_dot() -> None:
    fake = FakeScontrol(node_text())
    order = command(node_id="node-1.example.org")
    assert hands(fake, has_short_names=True).look(order)["flags"] == ["IDLE"]
    assert fake.told[0][3] == "node-1"
    with pytest.raises(ActFailedError, match="no state of node"):
        hands(fake).look(order)


def test_a_controller_that_is_away_is_told_from_one_that_refuses() -> None:
    away = FakeScontrol(status=1, error="slurm_load_node error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(TargetAwayError, match="Unable to contact"):
        hands(away).look(command())
    refusing = FakeScontrol("Node node-1 not found", status=1)
    with pytest.raises(ActFailedError, match="Node node-1 not found"):
        hands(refusing).look(command())
    with pytest.raises(ActFailedError, match="names 2, not one"):
        hands(FakeScontrol(node_text() * 2)).look(command())
    with pytest.raises(TargetAwayError, match="No such file"):
        SlurmHands(Scontrol("/nowhere/scontrol")).look(command())


def test_what_did_not_end_in_time_is_not_known_to_have_failed() -> None:
    def hang(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(list(arguments), 20)

    with pytest.raises(ActFailedError, match="did not end within"):
        SlurmHands(Scontrol(run=hang)).act(command(), state())


@given(st.text(max_size=300))
def test_any_answer_is_read_or_refused(text: str) -> None:
    try:
        seen = hands(FakeScontrol(text)).look(command())
    except ActFailedError:
        return
    assert set(seen) == {"flags", "reason", "boot_time", "slurmd_start_time"}


@given(st.text(max_size=400))
def test_text_for_people_is_one_short_plain_line(text: str) -> None:
    plain = plain_text(text)
    assert len(plain) <= 160
    assert plain.isascii()
    assert plain.isprintable()
    assert not set(plain) & set("[]\n")


NAMES = st.none() | st.text(max_size=20) | st.sampled_from(["node-1", "7", "ALL", "n[1-2]"])


@given(
    st.sampled_from(sorted(SlurmHands.kinds)),
    NAMES,
    NAMES,
    st.text(max_size=40),
    st.sampled_from(
        [node_text(), node_text("IDLE+DRAIN", "fan"), JOB.format(state="RUNNING", requeue=1, restarts=0), ""]
    ),
)
def test_any_command_is_carried_out_or_refused_and_each_argument_is_one_plain_line(
    kind: str, node_id: str | None, job_id: str | None, reason: str, answer: str
) -> None:
    fake = FakeScontrol(answer)
    order = command(kind=kind, reason=reason).model_copy(
        update={"target": Target.model_construct(level="node", node_id=node_id, job_id=job_id)}
    )
    try:
        seen = hands(fake).look(order)
        if hands(fake).judge(order, seen, "cmd-1").verdict == "do":
            hands(fake).act(order, seen)
    except ActFailedError:
        pass
    for told in fake.told:
        assert all(part.isascii() and part.isprintable() for part in told)
        assert told[-1] != "ALL"


ORPHANING = """
import sys
from pathlib import Path
from agents.actuators.memory import ActuatorMemory
from agents.actuators.memory import ActuatorMemory, ActuatorMemoryError
from agents.actuators.scontrol import Scontrol
memory = ActuatorMemory(Path(sys.argv[1]), "slurm", 1)
scontrol = Scontrol(sys.argv[2])
scontrol.hand_down(memory.lock)
scontrol.command("update", "NodeName=node-1")
"""


def test_a_request_that_outlives_its_actuator_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    """Else the next one would look before it took effect, and ask a second time."""
    program, gate, begun = tmp_path / "scontrol", tmp_path / "gate", tmp_path / "begun"
    os.mkfifo(gate)
    program.write_text(f"#!/bin/sh\ntouch {begun}\nread _ < {gate}\n")
    program.chmod(0o755)
    memory = tmp_path / "slurm.sqlite"
    actuator = subprocess.Popen([sys.executable, "-c", ORPHANING, str(memory), str(program)], cwd=ROOT)
    try:
        until(begun.exists)
        actuator.kill()
        actuator.wait(60)
        with pytest.raises(ActuatorMemoryError, match="another process has it"):
            ActuatorMemory(memory, "slurm", 1)
    finally:
        if begun.exists():
            gate.write_text("go on\n")
        actuator.kill()

    def is_free() -> bool:
        try:
            ActuatorMemory(memory, "slurm", 1).close()
        except ActuatorMemoryError:
            return False
        return True

    until(is_free)


def until(holds: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
