"""`paceline doctor --job`: which recorder and time-out settings are off, and that the agent is asked for them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from agents.clock import SystemClock
from agents.identity import AgentIdentity, Sequences
from agents.local_ranks import LocalRanks
from agents.testing import RecordingPublisher
from agents.trainer_socket import TrainerSocket
from paceline.doctor_job import (
    DoctorJobError,
    ask_agent,
    doctor_job_command,
    environment_checks,
    job_checks,
    read_environment,
)
from paceline.recorder_settings import judged
from paceline_trainer import StepReporter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/dumps/trace_rank_",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/dumps/pipe_",
    "TORCH_NCCL_ENABLE_TIMING": "1",
}


def off(env: dict[str, str], version: str | None = "2.6.0") -> dict[str, str]:
    return {found.name: found.note for found in judged(env, version) if not found.ok}


def needed_and_off(env: dict[str, str], version: str | None = "2.6.0") -> set[str]:
    return {found.name for found in judged(env, version) if found.needed and not found.ok}


# --- Judgement ----------------------------------------------------------------------------------------------------


def test_an_environment_that_is_set_up_has_nothing_off() -> None:
    assert off(GOOD) == {}


def test_what_is_off_says_what_it_costs() -> None:
    found = off({})
    assert "nobody can say which rank" in found["TORCH_FR_BUFFER_SIZE"]
    assert "no dump is written" in found["TORCH_NCCL_DUMP_ON_TIMEOUT"]
    assert "lost with it" in found["TORCH_FR_DUMP_TEMP_FILE"]
    assert "never launched" in found["TORCH_NCCL_ENABLE_TIMING"]
    assert needed_and_off({}) == {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}


@pytest.mark.parametrize(
    ("version", "is_off"),
    [("2.4.1", True), ("2.8.0+cu128", True), ("2.9.0", False), ("2.10.0a0+git1", False), (None, True), ("dev", True)],
)
def test_what_is_not_set_is_what_the_release_does(version: str | None, is_off: bool) -> None:
    assert ("TORCH_FR_BUFFER_SIZE" in needed_and_off({}, version)) is is_off
    assert ("TORCH_NCCL_DUMP_ON_TIMEOUT" in needed_and_off({}, version)) is is_off


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, "TORCH_FR_BUFFER_SIZE"),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, "TORCH_FR_BUFFER_SIZE"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "false"}, "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "maybe"}, "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ({"NCCL_ASYNC_ERROR_HANDLING": "0"}, "NCCL_ASYNC_ERROR_HANDLING"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "on"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ],
)
def test_what_keeps_a_hang_from_its_diagnosis_is_needed(env: dict[str, str], name: str) -> None:
    assert name in needed_and_off({**GOOD, **env}, "2.9.0")


@pytest.mark.parametrize(
    ("env", "name", "says"),
    [
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, "TORCH_NCCL_BLOCKING_WAIT", "steps are slower"),
        ({"TORCH_NCCL_ENABLE_MONITORING": "0"}, "TORCH_NCCL_ENABLE_MONITORING", "neither dumps nor ends"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400"}, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "86400 s"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "soon"}, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "no number"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "lives on"),
        ({"NCCL_DEBUG": "info"}, "NCCL_DEBUG", "WARN"),
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE", "host memory"),
    ],
)
def test_what_only_costs_is_said_and_not_needed(env: dict[str, str], name: str, says: str) -> None:
    assert says in off({**GOOD, **env})[name]
    assert needed_and_off({**GOOD, **env}) == set()


def test_detail_turns_dumps_on_in_older_releases() -> None:
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in needed_and_off({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


# --- Environments -------------------------------------------------------------------------------------------------


def test_a_file_of_variables_is_read_as_a_shell_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# comment\nexport TORCH_FR_BUFFER_SIZE='2000'\nNCCL_DEBUG=WARN # quiet\n\nunset X\nA=b=c\n")
    assert read_environment(file) == {"TORCH_FR_BUFFER_SIZE": "2000", "NCCL_DEBUG": "WARN", "A": "b=c"}


def test_the_environment_of_a_process_is_such_a_file() -> None:
    from pathlib import Path

    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"NCCL_DEBUG": "TRACE"},
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the kernel shows the environment only once the program has begun
        found = read_environment(Path(f"/proc/{child.pid}/environ"))
        child.communicate(b"\n")
    assert found["NCCL_DEBUG"] == "TRACE"


@pytest.mark.parametrize("content", [b"", b"nothing here\n", b"\x00\xff"])
def test_a_file_without_variables_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(DoctorJobError, match="NAME=VALUE"):
        read_environment(file)
    with pytest.raises(DoctorJobError, match="No such file"):
        read_environment(tmp_path / "none")


def test_checks_of_an_environment_name_their_place() -> None:
    assert {check.name.split()[0] for check in environment_checks(GOOD, "env.sh")} == {"env.sh"}


# --- Jobs ---------------------------------------------------------------------------------------------------------


def rank(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": "job-1",
        "epoch": 0,
        "rank": number,
        "connected": True,
        "ended": False,
        "nccl_env": GOOD,
        "torch_version": "2.6.0",
        **fields,
    }


def test_ranks_that_are_alike_are_told_of_once() -> None:
    checks = job_checks([rank(number) for number in range(8)], "job-1")
    assert all(check.ok for check in checks)
    assert len([check for check in checks if "TRACE_BUFFER_SIZE" in check.name]) == 1
    assert checks[0].note == "8 ranks have reported here, 8 are connected"


def test_a_rank_that_differs_is_named() -> None:
    odd = {**GOOD, "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    checks = job_checks([rank(0), rank(1), rank(2, nccl_env=odd), rank(3)], "job-1")
    (off_on,) = [check for check in checks if check.needed and not check.ok]
    assert off_on.note.endswith("(rank 2)")
    (unlike,) = [check for check in checks if check.name.endswith("is alike")]
    assert unlike.note == "'2000' on ranks 0, 1, 3; '0' on rank 2"


def test_a_variable_that_names_its_rank_is_no_difference() -> None:
    ranks = [rank(n, nccl_env={**GOOD, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"/dumps/{n}_"}) for n in range(4)]
    assert not [check for check in job_checks(ranks, "job-1") if check.name.endswith("is alike")]


def test_only_the_last_attempt_of_a_job_counts_and_only_the_job_that_was_asked_for() -> None:
    ranks = [rank(0, nccl_env={}), rank(0, epoch=1), rank(0, job_id="job-2", nccl_env={})]
    assert not [check for check in job_checks(ranks, "job-1") if check.needed and not check.ok]
    assert {check.name.split()[1] for check in job_checks(ranks, None)} == {"job-1", "job-2"}


@pytest.mark.parametrize(("job_id", "says"), [("job-9", "'job-9'"), (None, "any job")])
def test_a_job_without_ranks_here_is_said_to_have_none(job_id: str | None, says: str) -> None:
    with pytest.raises(DoctorJobError, match=says):
        job_checks([], job_id)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trainer.sock"
    identity = AgentIdentity("node-1", "boot-1", "session-1")
    publisher = RecordingPublisher()
    served = TrainerSocket(path, LocalRanks(identity, Sequences()), publisher.publish, SystemClock())
    served.start()
    try:
        yield path
    finally:
        served.stop()


def test_the_agent_tells_what_the_hook_told_it(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_SOCKET", raising=False)
    environ = {"RANK": "0", "WORLD_SIZE": "2", **GOOD, "TORCH_FR_BUFFER_SIZE": "0", "SECRET": "x"}
    hook = StepReporter("job-1", socket_path=str(agent), environ=environ)
    for _ in range(100):
        if ask_agent(str(agent))["ranks"]:
            break
    assert doctor_job_command("job-1", str(agent), None, False, as_json=True) == 1
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (found,) = [check for check in checks if check["needed"] and not check["ok"]]
    assert found["name"] == "job job-1 TORCH_FR_BUFFER_SIZE"
    assert "SECRET" not in json.dumps(ask_agent(str(agent)))
    hook.close()


def test_the_socket_of_the_agent_s_file_is_asked(
    agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_SOCKET", raising=False)
    config = tmp_path / "agent.toml"
    config.write_text(f"[agent]\nsocket = {json.dumps(str(agent))}\n")
    doctor_job_command("job-1", None, None, False, as_json=False, config=config)
    assert "no rank of 'job-1' has reported here" in capsys.readouterr().err
    config.write_text('[agent]\nsocket = ""\n')
    assert doctor_job_command("job-1", None, None, False, as_json=False, config=config) == 2
    assert "`socket` is empty" in capsys.readouterr().err
    config.write_text("[agent\n")
    assert doctor_job_command("job-1", None, None, False, as_json=False, config=config) == 2


def test_without_an_agent_the_status_is_2_and_the_text_says_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_job_command("job-1", str(tmp_path / "none"), None, False, as_json=False) == 2
    assert "--socket" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"", b"hello\n", b"[]\n", b'{"ranks":3}\n'])
def test_what_is_no_agent_is_said_to_be_none(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DoctorJobError, match="no agent"):
            ask_agent(str(path))
        thread.join(5)


def test_the_command_line_looks_at_a_file_and_at_its_own_environment(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("".join(f"{name}={value}\n" for name, value in GOOD.items()))
    command = [sys.executable, "-m", "paceline", "doctor", "--json"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "NCCL_"))}
    done = subprocess.run([*command, "--env-file", str(file)], capture_output=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    own = subprocess.run([*command, "--environment"], capture_output=True, check=False, env=environ)
    assert own.returncode == 1
    assert {json.loads(line)["name"].split()[0] for line in own.stdout.splitlines()} == {"environment"}
