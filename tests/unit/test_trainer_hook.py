"""The hook in a training loop: what it measures, what it says, and that it never stands in the loop's way."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
import types
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from agents.clock import SystemClock
from agents.collectors.nvml import NvmlCollector
from agents.identity import AgentIdentity, Sequences
from agents.local_ranks import LocalRanks
from agents.testing import FakeGpu, FakeNvml, RecordingPublisher
from agents.trainer_messages import Register, StepReport, parse_message
from agents.trainer_socket import TrainerSocket
from paceline_trainer import StepReporter
from paceline_trainer.device import current_device
from paceline_trainer.environment import collective_environment
from paceline_trainer.link import AgentLink
from paceline_trainer.stopwatch import Stopwatch
from schemas.fleet import Job, RankPlacement
from schemas.steps import StepTiming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UUID_A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
UUID_B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trainer.sock"


@contextmanager
def agent(path: Path, publisher: RecordingPublisher, resolve: Any = None) -> Iterator[TrainerSocket]:
    identity = AgentIdentity("node-1", "boot-1", "session-1")
    served = TrainerSocket(path, LocalRanks(identity, Sequences(), resolve), publisher.publish, SystemClock())
    served.start()
    try:
        yield served
    finally:
        served.stop()


def reporter(path: Path, rank: int = 0, world_size: int = 1, **named: Any) -> StepReporter:
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        **named.pop("environ", {}),
    }
    return StepReporter("job-1", socket_path=str(path), environ=environ, **named)


def link_of(hook: StepReporter) -> AgentLink:
    assert hook._link is not None
    return hook._link


def retry_now(hook: StepReporter) -> None:
    """The pause between two attempts to connect is over."""
    link_of(hook)._retry_at = 0.0


class Listener:
    """Takes what the hook says, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)
        self._socket.settimeout(5)

    def accept(self) -> socket.socket:
        connection, _ = self._socket.accept()
        connection.settimeout(5)
        return connection

    def close(self) -> None:
        self._socket.close()


def lines_of(connection: socket.socket, count: int) -> list[dict[str, Any]]:
    text = b""
    while text.count(b"\n") < count:
        chunk = connection.recv(65536)
        assert chunk, f"closed after {text!r}"
        text += chunk
    return [json.loads(line) for line in text.splitlines()]


# --- Without an agent ---------------------------------------------------------------------------------------------


def test_without_an_agent_there_is_one_warning_and_the_loop_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "paceline_trainer")
    hook = reporter(path)
    done = 0
    for step in range(500):
        with hook.step(step, tokens=10), hook.phase("forward"):
            done += 1
    hook.close()
    assert done == 500
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_what_does_not_fit_the_queue_is_dropped_oldest_first_and_counted(path: Path) -> None:
    hook = reporter(path, queue_limit=3)
    for step in range(10):
        with hook.step(step):
            pass
    assert hook.counters["dropped"] == 7
    listener = Listener(path)
    retry_now(hook)
    with hook.step(10):
        pass
    said = lines_of(listener.accept(), 4)
    assert [message["type"] for message in said] == ["register", "step", "step", "step"]
    assert [message["step"] for message in said[1:]] == [8, 9, 10]
    listener.close()


def test_a_step_costs_little_without_an_agent(path: Path) -> None:
    hook = reporter(path)
    start = time.perf_counter()
    for step in range(2000):
        with hook.step(step), hook.phase("forward"):
            pass
    assert (time.perf_counter() - start) / 2000 < 0.001


def test_wrong_use_is_swallowed_and_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = reporter(path)
    hook.end_step()
    hook.record("no such part", 1.0)
    hook.record("forward", -1.0)
    hook.collective("dp", float("nan"))
    hook.begin_step("seven")  # type: ignore[arg-type]
    hook.end_step()
    with hook.step(1, phase="lunch"):
        pass
    with hook.step(2), hook.phase("no such part"):
        pass
    assert hook.counters["errors"] >= 5
    assert len(caplog.records) == 1


@pytest.mark.parametrize("environ", [{}, {"PACELINE_JOB_ID": "j", "RANK": "first"}])
def test_a_reporter_that_cannot_start_is_silent_after_one_warning(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    hook = StepReporter(environ=environ)
    with hook.step(1), hook.phase("data"):
        pass
    hook.progress("dp", enqueued=1)
    hook.close()
    assert len(caplog.records) == 1
    assert hook.counters["sent"] == 0


def test_an_exception_of_the_training_code_passes_and_its_step_is_not_reported(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    with pytest.raises(ZeroDivisionError), hook.step(1), hook.phase("forward"):
        1 / 0  # noqa: B018
    with hook.step(2):
        pass
    hook.close()
    said = lines_of(listener.accept(), 3)
    assert [(message["type"], message.get("step")) for message in said] == [
        ("register", None),
        ("step", 2),
        ("end", None),
    ]
    listener.close()


def test_a_process_with_a_reporter_and_no_agent_exits_at_once(path: Path) -> None:
    code = (
        "from paceline_trainer import StepReporter\n"
        f"r = StepReporter('j', socket_path={str(path)!r})\n"
        "with r.step(0): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
    assert done.stderr.count(b"paceline") >= 1
    assert b"Traceback" not in done.stderr


def test_a_forked_child_is_silent_and_leaves_the_connection_to_its_parent(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    with hook.step(1):
        pass
    child = os.fork()
    if child == 0:
        with hook.step(2):
            pass
        hook.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with hook.step(3):
        pass
    hook.close()
    said = lines_of(listener.accept(), 4)
    assert [message.get("step") for message in said] == [None, 1, 3, None]
    listener.close()


def test_the_hook_imports_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import paceline_trainer\n"
        "own = {m.partition('.')[0] for m in set(sys.modules) - before} - {'paceline_trainer'}\n"
        "print(sorted(own - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True, text=True)
    assert done.stdout.strip() == "[]"


# --- The link -----------------------------------------------------------------------------------------------------


def test_a_slow_agent_never_blocks_the_loop_and_loses_no_half_lines(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path, queue_limit=50)
    connection = listener.accept()
    start = time.perf_counter()
    for step in range(5000):  # far more than the socket's buffer takes
        with hook.step(step):
            pass
    assert time.perf_counter() - start < 5
    assert hook.counters["dropped"] > 0
    connection.settimeout(0.5)
    text = b""
    for _ in range(1000):
        link_of(hook).pump()
        try:
            text += connection.recv(65536)
        except TimeoutError:
            break
    steps = [json.loads(line)["step"] for line in text.splitlines()[1:]]
    assert steps == sorted(steps)
    assert steps[-1] == 4999
    listener.close()


def test_the_hook_registers_again_when_the_agent_comes_back(path: Path) -> None:
    listener = Listener(path)
    link = AgentLink(str(path), 10, lambda _: None)
    link.register(b"register\n")
    link.send(b"one\n")
    first = listener.accept()
    assert first.recv(100) == b"register\none\n"
    first.close()
    listener.close()
    path.unlink()
    link.send(b"two\n")  # finds the agent gone
    listener = Listener(path)
    link._retry_at = 0.0
    link.send(b"three\n")
    assert listener.accept().recv(100) == b"register\ntwo\nthree\n"
    assert link.connections == 2
    listener.close()


def test_pauses_between_attempts_grow_to_half_a_minute(path: Path) -> None:
    now = [0.0]
    attempts: list[float] = []
    link = AgentLink(str(path), 10, lambda _: attempts.append(now[0]), monotonic=lambda: now[0])
    while now[0] < 200:
        link.pump()
        now[0] += 0.1
    pauses = [round(b - a) for a, b in pairwise(attempts)]
    assert pauses[:4] == [0, 1, 2, 4]
    assert max(pauses) == 30


# --- What is measured ---------------------------------------------------------------------------------------------


class Ticks:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ns += duration_ms * 1_000_000


def test_parts_inside_parts_are_taken_out_of_the_outer_one() -> None:
    clock = Ticks()
    watch = Stopwatch(clock)
    watch.begin()
    watch.enter("backward")
    clock.pass_ms(30)
    watch.enter("wait")
    clock.pass_ms(50)
    watch.leave()
    watch.leave()
    clock.pass_ms(5)
    assert watch.end() == {
        "step_us": 85_000,
        "own_us": 35_000,
        "compute_us": 30_000,
        "backward_us": 30_000,
        "wait_us": 50_000,
    }


def test_data_loaded_between_two_steps_belongs_to_the_second() -> None:
    clock = Ticks()
    watch = Stopwatch(clock)
    watch.begin()
    watch.end()
    watch.enter("data")
    clock.pass_ms(7)
    watch.leave()
    clock.pass_ms(100)  # between: not measured, not invented
    watch.begin()
    clock.pass_ms(3)
    assert watch.end() == {"step_us": 10_000, "data_us": 7_000}


def test_a_collective_is_waiting_unless_it_was_overlapped() -> None:
    clock = Ticks()
    watch = Stopwatch(clock)
    watch.begin()
    watch.enter("backward")
    clock.pass_ms(40)
    watch.add_collective("dp", 0.010, ("dp", 3), "all_reduce", overlapped=False)
    watch.add_collective("dp", 0.005, ("dp", 3), "all_reduce", overlapped=False)
    watch.add_collective("tp", 0.020, None, None, overlapped=True)
    watch.leave()
    ended = watch.end()
    assert ended is not None
    assert (ended["wait_us"], ended["backward_us"], ended["own_us"]) == (15_000, 25_000, 25_000)
    assert ended["collectives"] == [
        {"group": "dp", "instance": ("dp", 3), "op": "all_reduce", "duration_us": 15_000},
        {"group": "tp", "instance": None, "op": None, "duration_us": 20_000},
    ]


def test_own_time_is_absent_where_no_waiting_was_measured() -> None:
    clock = Ticks()
    watch = Stopwatch(clock)
    watch.begin()
    watch.add("forward", 0.001)
    assert watch.end() == {"step_us": 0, "compute_us": 1000, "forward_us": 1000}


def test_the_first_steps_of_an_attempt_are_warmup_unless_they_say_otherwise(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path, warmup_steps=2)
    for step, phase in enumerate((None, "checkpoint", None, "evaluation")):
        with hook.step(step, phase=phase):
            pass
    said = lines_of(listener.accept(), 8)
    told = [(message["type"], message["phase"]) for message in said[1:]]
    assert [phase for kind, phase in told if kind == "step"] == ["warmup", "checkpoint", "train", "evaluation"]
    # A change of phase is told when its step begins: who waits for one must know that it takes its own time.
    assert [phase for kind, phase in told if kind == "progress"] == ["checkpoint", "train", "evaluation"]
    assert told.index(("progress", "checkpoint")) == told.index(("step", "checkpoint")) - 1
    listener.close()


def test_batches_time_the_wait_for_data(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)

    def loader() -> Iterator[int]:
        for item in range(2):
            time.sleep(0.01)
            yield item

    for batch in hook.batches(loader()):
        with hook.step(batch):
            pass
    said = lines_of(listener.accept(), 3)
    assert all(message["data_us"] >= 9_000 and message["step_us"] >= message["data_us"] for message in said[1:])
    listener.close()


def test_every_message_holds_for_the_agents_models(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(
        path,
        world_size=4,
        model={"parameters": 70e9, "layers": 80},
        layout={"tensor": 2, "data": 2},
        tokens_per_step=4096,
        facts={"precision": "fp8"},
        stage=1,
        environ={"TORCHELASTIC_RESTART_COUNT": "3", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "HOME": "/secret"},
    )
    with hook.step(7, tokens=1024, sum_squared_lengths=1 << 40):
        hook.collective("dp", 0.5, instance=("dp", 0), op="all_reduce")
    hook.progress("dp", enqueued=5, started=5, completed=4)
    hook.close()
    connection = listener.accept()
    said = [parse_message(json.dumps(message).encode()) for message in lines_of(connection, 4)]
    assert isinstance(said[0], Register)
    assert (said[0].epoch, said[0].stage, said[0].refused_parts) == (3, 1, ())
    assert said[0].job == {"precision": "fp8", "workload": "training", "tokens_per_step": 4096}
    assert said[0].nccl_env == {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    assert isinstance(said[1], StepReport)
    assert said[1].collectives[0].instance == ("dp", 0)
    assert [message.type for message in said[2:]] == ["progress", "end"]
    listener.close()


def test_steps_count_on_from_the_last_one_where_no_number_is_given(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    for number in (None, None, 7, None):
        with hook.step(number), hook.data(), hook.forward(), hook.backward(), hook.optimizer(), hook.wait():
            pass
    said = lines_of(listener.accept(), 5)
    assert [message["step"] for message in said[1:]] == [0, 1, 7, 8]
    assert {"data_us", "forward_us", "backward_us", "optimizer_us", "wait_us"} <= said[1].keys()
    listener.close()


def test_a_step_that_was_given_up_is_not_reported(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    hook.begin_step()
    hook.enter_phase("forward")
    hook.forget_step()
    hook.leave_phase()
    hook.end_step()
    with hook.step():
        pass
    (_, step) = lines_of(listener.accept(), 2)
    assert (step["step"], "forward_us" in step) == (0, False)
    listener.close()


def test_of_too_many_communicators_the_longest_are_told(path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    with hook.step():
        for number in range(100):
            hook.collective(f"group-{number}", number / 1000, overlapped=True)
    said = lines_of(listener.accept(), 2)[1]
    assert isinstance(parse_message(json.dumps(said).encode()), StepReport)
    assert [collective["group"] for collective in said["collectives"]] == [f"group-{n}" for n in range(36, 100)]
    listener.close()


def test_only_what_sets_up_collectives_is_read_of_the_environment() -> None:
    environ = {f"NCCL_{number:03d}": "x" * 300 for number in range(100)}
    environ |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_FR_BUFFER_SIZE": "9", "AWS_SECRET": "x", "MY_NCCL_DEBUG": "x"}
    found = collective_environment(environ)
    assert list(found)[:3] == ["TORCH_NCCL_BLOCKING_WAIT", "TORCH_FR_BUFFER_SIZE", "NCCL_000"]
    assert len(found) == 64
    assert max(map(len, found.values())) == 256
    assert not {"AWS_SECRET", "MY_NCCL_DEBUG"} & found.keys()


def test_the_torch_version_is_told_where_the_program_has_torch(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    listener = Listener(path)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.8.0+cu128"))
    hook = reporter(path)
    (said,) = lines_of(listener.accept(), 1)
    assert said["torch_version"] == "2.8.0+cu128"
    assert isinstance(parse_message(json.dumps(said).encode()), Register)
    hook.close()
    listener.close()


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, os.getpid()), ({"PACELINE_REPORT_PID": "0"}, None)], ids=["told", "left out"]
)
def test_the_pid_is_left_out_where_it_means_nothing_outside(
    path: Path, environ: dict[str, str], expected: int | None
) -> None:
    listener = Listener(path)
    reporter(path, environ=environ)
    (said,) = lines_of(listener.accept(), 1)
    assert said.get("pid") == expected
    listener.close()


# --- Devices ------------------------------------------------------------------------------------------------------


def fake_torch(monkeypatch: pytest.MonkeyPatch, uuid: str, *, initialised: bool = True, ordinal: int = 0) -> None:
    properties = types.SimpleNamespace(uuid=uuid, pci_domain_id=0x2, pci_bus_id=0x3B, pci_device_id=0)
    cuda = types.SimpleNamespace(
        is_initialized=lambda: initialised,
        current_device=lambda: ordinal,
        get_device_properties=lambda _: properties,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))


def test_the_runtime_names_the_device_once_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = UUID_A.removeprefix("GPU-")
    fake_torch(monkeypatch, bare, initialised=False)
    assert current_device({}, 0) is None
    fake_torch(monkeypatch, bare)
    assert current_device({}, 0) == {"uuid": UUID_A, "pci_bus_id": "0002:3b:00", "source": "cuda"}


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        ("0,1", 0, None),
        ("1", 0, None),
        ("", 0, None),
        ("GPU-aaaaaaaa", 0, None),  # CUDA takes a shortened UUID; it is no name
        (UUID_A, None, {"uuid": UUID_A, "source": "cuda"}),
        (f"{UUID_B},{UUID_A}", 0, {"uuid": UUID_B, "source": "visible_devices"}),
        (f"{UUID_B},{UUID_A}", 1, {"uuid": UUID_A, "source": "visible_devices"}),
        (f"{UUID_B},{UUID_A}", 2, None),
        (f"{UUID_B},-1,{UUID_A}", 1, None),  # what follows an unusable entry is not visible
    ],
)
def test_only_full_uuids_in_the_environment_name_a_device(
    visible: str, local_rank: int | None, expected: dict[str, str] | None
) -> None:
    assert current_device({"CUDA_VISIBLE_DEVICES": visible}, local_rank) == expected


def test_a_mig_instance_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    mig = UUID_A.replace("GPU-", "MIG-")
    fake_torch(monkeypatch, UUID_A.removeprefix("GPU-"))
    found = current_device({"CUDA_VISIBLE_DEVICES": mig}, 0)
    assert found is not None
    assert found["uuid"] == mig


def test_a_device_that_becomes_known_later_is_registered_again(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    listener = Listener(path)
    hook = reporter(path)
    fake_torch(monkeypatch, UUID_A.removeprefix("GPU-"))
    for step in range(3):
        with hook.step(step):
            pass
    said = lines_of(listener.accept(), 5)
    assert [message["type"] for message in said] == ["register", "register", "step", "step", "step"]
    assert "device" not in said[0]
    assert said[1]["device"]["uuid"] == UUID_A
    listener.close()


RANK = """
import sys, time
from paceline_trainer import StepReporter
hook = StepReporter("job-1", socket_path=sys.argv[1])
for step in range(3):
    with hook.step(step):
        pass
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def rank_process(path: Path, rank: int, visible: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "CUDA_VISIBLE_DEVICES": visible,
        },
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate("\n", timeout=20)


def test_two_ranks_with_reversed_visible_devices_are_placed_by_the_driver(path: Path) -> None:
    gpus = [
        FakeGpu(uuid=UUID_A, address="00000000:1A:00.0", pids=[]),
        FakeGpu(uuid=UUID_B, address="00000000:1B:00.0", pids=[]),
    ]
    nvml = NvmlCollector(FakeNvml(gpus))
    publisher = RecordingPublisher()
    with (
        agent(path, publisher, nvml.device_of_pid),
        rank_process(path, 0, "1,0") as first,
        rank_process(path, 1, "1,0") as second,
    ):
        # CUDA ordinal 0 is the second GPU for both processes; only the driver knows.
        gpus[1].pids.append(first.pid)
        gpus[0].pids.append(second.pid)
        placed = publisher.wait_for(
            lambda p: any(None not in placement.gpu_uuid for placement in _of(p, RankPlacement)), 12
        )
        assert placed
    last = publisher.of(RankPlacement)[-1]
    assert (last.rank, last.gpu_uuid, last.pci_bus_id) == (
        (0, 1),
        (UUID_B, UUID_A),
        ("0000:1b:00", "0000:1a:00"),
    )
    assert last.node_id == "node-1"


def test_two_ranks_with_reversed_uuids_are_placed_by_the_runtime(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    publisher = RecordingPublisher()
    with agent(path, publisher):
        hooks = []
        for rank, uuid in enumerate((UUID_B, UUID_A)):
            fake_torch(monkeypatch, uuid.removeprefix("GPU-"), ordinal=rank)
            hooks.append(
                reporter(path, rank, 2, environ={"CUDA_VISIBLE_DEVICES": f"{UUID_B},{UUID_A}"}, model={"parameters": 7})
            )
        assert publisher.wait_for(lambda p: bool(_of(p, RankPlacement)))
    assert publisher.of(RankPlacement)[0].gpu_uuid == (UUID_B, UUID_A)
    (job,) = publisher.of(Job)
    assert job.model is not None
    assert (job.world_size, job.model.parameters, job.version) == (2, 7, 1)


def _of(publisher: RecordingPublisher, family: Any) -> list[Any]:
    # Called by `wait_for` under the publisher's own lock.
    return [record for record in publisher.records if isinstance(record, family)]


# --- With an agent ------------------------------------------------------------------------------------------------


AGENT = """
import sys
from agents.agent import run_agent
from agents.settings import AgentSettings
run_agent(AgentSettings(bootstrap_servers="127.0.0.1:9", sources=(), socket=sys.argv[1], drain_s=0))
"""


@contextmanager
def agent_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", AGENT, str(path)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not _answers(path):
            assert time.monotonic() < deadline, "the agent does not open its socket"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def test_an_agent_that_is_killed_in_mid_run_does_not_stop_the_loop(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = 0
    with agent_process(path) as process:
        hook = reporter(path)
        for step in range(200):
            if step == 100:
                process.kill()
                process.wait()
            with hook.step(step), hook.phase("forward"):
                done += 1
    assert done == 200
    assert len(caplog.records) == 1
    assert path.exists()  # what a killed agent leaves behind
    with agent_process(path):
        retry_now(hook)
        with hook.step(200):
            done += 1
        link_of(hook).drain(5)  # a step sends a bounded number of what has piled up
        assert hook.counters["connections"] == 2
    assert hook.counters["sent"] == done == 201


def test_what_was_reported_while_there_was_no_agent_is_told_to_the_next_one(path: Path) -> None:
    publisher = RecordingPublisher()
    with agent(path, publisher):
        hook = reporter(path)
        for step in range(20):
            with hook.step(step):
                pass
        assert publisher.wait_for(lambda p: len(_of(p, StepTiming)) == 20)
    for step in range(20, 40):
        with hook.step(step):
            pass
    with agent(path, publisher):
        retry_now(hook)
        with hook.step(40):
            pass
        assert publisher.wait_for(lambda p: any(timing.step == 40 for timing in _of(p, StepTiming)))
    assert sorted(timing.step for timing in publisher.of(StepTiming)) == list(range(41))


def test_the_steps_of_two_ranks_become_one_record_a_step(path: Path) -> None:
    publisher = RecordingPublisher()
    with agent(path, publisher):
        hooks = [reporter(path, rank, 2, warmup_steps=0) for rank in range(2)]
        for step in range(3):
            for rank, hook in enumerate(hooks):
                with hook.step(step, tokens=100 + rank):
                    hook.record("forward", 0.25)
        assert publisher.wait_for(lambda p: len(_of(p, StepTiming)) == 3)
    timings = publisher.of(StepTiming)
    assert [timing.step for timing in timings] == [0, 1, 2]
    assert all(timing.rank == (0, 1) and timing.tokens == (100, 101) for timing in timings)
    assert all(timing.forward_us == (250_000, 250_000) and timing.phase == "train" for timing in timings)
    assert len({timing.seq for timing in timings}) == 3
