"""The trainers' socket and what the node makes of it: credentials, bounds, joined steps, placements."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.clock import SystemClock
from agents.identity import AgentIdentity, Sequences
from agents.local_ranks import LocalRanks, Peer, RefusedError
from agents.peer_credentials import claims_its_own_pid
from agents.testing import RecordingPublisher
from agents.trainer_messages import MAX_LINE_BYTES, InvalidMessageError, parse_message
from agents.trainer_socket import TrainerSocket, TrainerSocketError
from schemas.base import Record
from schemas.fleet import Job, RankPlacement
from schemas.steps import RankProgress, StepTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

S = 10**9
T0 = 1_700_000_000 * S
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")
CONNECTIONS = itertools.count(1)


def said(kind: str, **fields: Any) -> Any:
    return parse_message(json.dumps({"v": 1, "type": kind, **fields}).encode())


def register(rank: int = 0, **fields: Any) -> dict[str, Any]:
    return {"job_id": "job-1", "rank": rank, "world_size": 8, "event_time_ns": T0, **fields}


def step(number: int, **fields: Any) -> Any:
    return said("step", **{"step": number, "event_time_ns": T0 + number * S, "step_us": 1000, **fields})


class Node:
    """Local ranks and the peers that speak to them, at a time of the test's choosing."""

    def __init__(self, **named: Any) -> None:
        self.now_ns = T0
        self.ranks = LocalRanks(IDENTITY, Sequences(), **named)

    def join(self, rank: int, uid: int = 1000, pid: int | None = None, **fields: Any) -> Peer:
        peer = Peer(next(CONNECTIONS), 5000 + rank if pid is None else pid, uid)
        self.ranks.on_message(peer, said("register", **register(rank, **fields)), self.now_ns)
        return peer

    def say(self, peer: Peer, message: Any) -> list[Record]:
        return self.ranks.on_message(peer, message, self.now_ns)

    def after(self, seconds: float) -> list[Record]:
        self.now_ns += round(seconds * S)
        return self.ranks.tick(self.now_ns)


def of(records: list[Record], family: Any) -> list[Any]:
    return [record for record in records if isinstance(record, family)]


# --- Messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"v":1}',
        b'{"v":2,"type":"end"}',
        b'{"v":1,"type":"shutdown"}',
        b'{"v":1,"type":"register","job_id":"","rank":0,"world_size":1,"event_time_ns":1}',
        b'{"v":1,"type":"register","job_id":"j","rank":1,"world_size":1,"event_time_ns":1}',
        b'{"v":1,"type":"step","step":-1,"event_time_ns":1,"step_us":1}',
        b'{"v":1,"type":"step","step":1,"event_time_ns":1,"step_us":1e99}',
        b'{"v":1,"type":"step","step":1,"event_time_ns":1,"step_us":NaN}',
        b'{"v":1,"type":"step","step":1,"event_time_ns":1,"step_us":1,"phase":"lunch"}',
        b'{"v":1,"type":"progress","groups":{"dp":[1,2]}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_message_is_refused_in_one_line(line: bytes) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        parse_message(line)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps({"v": 1, "type": text}).encode()))
def test_no_line_raises_anything_else(line: bytes) -> None:
    with contextlib.suppress(InvalidMessageError):  # a type alone may be a whole message, as `status` is
        parse_message(line)


def test_a_bad_part_of_a_registration_does_not_cost_the_rank() -> None:
    found = said(
        "register",
        **register(model={"parameters": -1}, layout={"tensor": 2}, device={"uuid": "cuda:3"}, job={"password": "x"}),
    )
    assert found.refused_parts == ("model", "device")
    assert (found.model, found.device, found.layout.tensor, found.job) == (None, None, 2, {})


def test_a_device_has_one_spelling() -> None:
    found = said("register", **register(device={"pci_bus_id": "00000000:3B:00.0", "source": "given"}))
    assert found.device.pci_bus_id == "0000:3b:00"


# --- Steps --------------------------------------------------------------------------------------------------------


def test_a_step_is_published_once_all_local_ranks_have_reported_it() -> None:
    node = Node()
    peers = [node.join(rank, local_world_size=2) for rank in (3, 2)]
    assert node.say(peers[0], step(5, own_us=900, tokens=10)) == []
    (timing,) = node.say(peers[1], step(5, own_us=800, data_us=7))
    assert isinstance(timing, StepTiming)
    assert (timing.job_id, timing.node_id, timing.step, timing.rank) == ("job-1", "node-1", 5, (2, 3))
    assert (timing.own_us, timing.data_us, timing.tokens) == ((800, 900), (7, None), (None, 10))
    assert timing.host_us is None
    assert timing.event_time_ns == T0


def test_a_step_that_waited_long_enough_goes_without_the_late_rank() -> None:
    node = Node()
    first, second = (node.join(rank, local_world_size=2) for rank in range(2))
    node.say(first, step(5))
    assert of(node.after(9.9), StepTiming) == []
    (timing,) = of(node.after(0.2), StepTiming)
    assert timing.rank == (0,)
    assert node.ranks.counters["steps_timed_out"] == 1
    (late,) = of([*node.say(second, step(5)), *node.after(11)], StepTiming)
    assert (late.step, late.rank) == (5, (1,))


def test_a_rank_that_died_is_not_waited_for() -> None:
    node = Node()
    first, second = (node.join(rank, local_world_size=2) for rank in range(2))
    node.say(first, step(5))
    (timing,) = node.ranks.on_disconnect(second, node.now_ns)
    assert isinstance(timing, StepTiming)
    assert timing.rank == (0,)


def test_ranks_that_never_register_are_waited_for_only_at_the_start() -> None:
    node = Node()
    peer = node.join(0, local_world_size=8)  # a loop in which one rank of a node reports
    assert node.say(peer, step(1)) == []
    assert [timing.step for timing in of(node.after(2.1), StepTiming)] == [1]
    assert len(node.say(peer, step(2))) == 1


def test_a_loop_that_goes_back_gives_the_step_a_second_time() -> None:
    node = Node()
    first, second = (node.join(rank, local_world_size=2) for rank in range(2))
    node.say(first, step(5, own_us=1))
    (earlier,) = node.say(first, step(5, own_us=2))
    (later,) = node.say(second, step(5, own_us=3))
    assert isinstance(earlier, StepTiming)
    assert isinstance(later, StepTiming)
    assert (earlier.rank, earlier.own_us) == ((0,), (1,))
    assert (later.rank, later.own_us) == ((0, 1), (2, 3))


def test_one_ranks_checkpoint_is_the_nodes() -> None:
    node = Node()
    peers = [node.join(rank, local_world_size=2) for rank in range(2)]
    node.say(peers[0], step(1, phase="checkpoint"))
    (timing,) = node.say(peers[1], step(1, phase="train"))
    assert isinstance(timing, StepTiming)
    assert timing.phase == "checkpoint"


def test_collectives_meet_by_group_and_instance() -> None:
    node = Node()
    peers = [node.join(rank, local_world_size=2) for rank in range(2)]
    spent = {"group": "dp", "op": "all_reduce"}
    node.say(peers[0], step(1, collectives=[{**spent, "instance": ["dp", 0], "duration_us": 5}]))
    (timing,) = node.say(
        peers[1],
        step(1, collectives=[{**spent, "instance": ["dp", 1], "duration_us": 6}, {"group": "tp", "duration_us": 7}]),
    )
    assert isinstance(timing, StepTiming)
    assert [(one.group, one.instance, one.duration_us) for one in timing.collectives] == [
        ("dp", ("dp", 0), (5, None)),
        ("dp", ("dp", 1), (None, 6)),
        ("tp", None, (None, 7)),
    ]


def test_open_steps_are_bounded_and_the_oldest_goes() -> None:
    node = Node()
    first, _ = (node.join(rank, local_world_size=2) for rank in range(2))
    published = [record for number in range(200) for record in node.say(first, step(number))]
    assert [timing.step for timing in of(published, StepTiming)] == list(range(136))


def test_a_time_ahead_of_the_nodes_clock_is_not_believed() -> None:
    node = Node()
    peer = node.join(0, local_world_size=1)
    (timing,) = node.say(peer, step(1, event_time_ns=T0 + 3600 * S))
    assert isinstance(timing, StepTiming)
    assert timing.event_time_ns == node.now_ns


def test_a_clock_that_is_set_back_does_not_stop_what_is_periodic() -> None:
    node = Node()
    node.join(0)
    node.after(1)
    assert len(of(node.after(-3600), RankProgress)) == 1


@given(st.data())
def test_every_report_is_published_once_whatever_the_order(data: st.DataObject) -> None:
    node = Node()
    count = data.draw(st.integers(1, 4))
    peers = [node.join(rank, local_world_size=count) for rank in range(count)]
    reports = data.draw(st.permutations([(rank, number) for rank in range(count) for number in range(4)]))
    records: list[Record] = []
    for rank, number in reports:
        records += node.say(peers[rank], step(number, own_us=100 * rank + number))
        if data.draw(st.booleans()):
            records += node.after(data.draw(st.floats(0, 6)))
    records += node.ranks.flush(node.now_ns)
    timings = of(records, StepTiming)
    published = [
        (rank, timing.step, own) for timing in timings for rank, own in zip(timing.rank, timing.own_us, strict=True)
    ]
    assert sorted(published) == sorted((rank, number, 100 * rank + number) for rank, number in reports)
    seqs = [record.seq for record in records if isinstance(record, StepTiming | RankProgress)]
    assert len(set(seqs)) == len(seqs)


# --- Jobs, placements, progress -----------------------------------------------------------------------------------


def test_a_job_is_described_by_its_lowest_rank_that_knows_its_model() -> None:
    node = Node()
    node.join(5, local_world_size=2, model={"parameters": 9}, job={"precision": "fp8", "tokens_per_step": 7})
    node.join(4, local_world_size=2, epoch=0)
    records = node.after(0.1)
    (job,) = of(records, Job)
    assert (job.world_size, job.precision, job.tokens_per_step, job.state, job.version) == (8, "fp8", 7, "running", 1)
    (placement,) = of(records, RankPlacement)
    assert (placement.rank, placement.gpu_uuid, placement.node_id) == ((4, 5), (None, None), "node-1")


def test_facts_that_do_not_hold_are_left_out_and_counted() -> None:
    node = Node()
    node.join(0, local_world_size=1, job={"workload": "mining", "job_id": "other", "world_size": 3})
    (job,) = of(node.after(0.1), Job)
    assert (job.workload, job.job_id, job.world_size) == ("training", "job-1", 8)
    assert node.ranks.counters["bad_job"] == 1


def test_a_placement_waits_for_the_ranks_of_the_node_for_two_seconds() -> None:
    node = Node()
    node.join(0)
    node.after(0.5)
    node.join(1)
    assert of(node.after(1.9), RankPlacement) == []
    (placement,) = of(node.after(0.2), RankPlacement)
    assert placement.rank == (0, 1)
    node.join(2)
    (placement_again,) = of(node.after(0.1), RankPlacement)
    assert placement_again.rank == (0, 1, 2)
    assert placement_again.version > placement.version


def test_jobs_and_placements_are_told_again_once_a_day() -> None:
    node = Node()
    node.join(0, local_world_size=1)
    first = node.after(1)
    assert [type(record) for record in node.after(3600)] == [RankProgress]
    again = node.after(24 * 3600)
    assert of(again, Job) == of(first, Job)
    assert of(again, RankPlacement) == of(first, RankPlacement)


def test_the_runtime_is_believed_before_the_driver_and_that_before_the_environment() -> None:
    drivers = {5000: {"uuid": "GPU-driver-0"}, 5001: {"uuid": "GPU-driver-1"}}
    node = Node(resolve_device=drivers.get)
    node.join(0, device={"uuid": "GPU-runtime", "source": "cuda"})
    node.join(1, device={"uuid": "GPU-guess-1", "source": "visible_devices"})
    node.join(2, device={"uuid": "GPU-guess-2", "source": "visible_devices"})
    node.join(3)
    (placement,) = of(node.after(2.1), RankPlacement)
    assert placement.gpu_uuid == ("GPU-runtime", "GPU-driver-1", "GPU-guess-2", None)
    drivers[5003] = {"uuid": "GPU-driver-3", "pci_bus_id": "0000:1a:00"}
    (later,) = of([*node.after(2), *node.after(4)], RankPlacement)
    assert later.gpu_uuid[3] == "GPU-driver-3"
    assert later.effective_from_ns == placement.effective_from_ns


def test_a_pid_of_another_namespace_is_not_looked_up() -> None:
    node = Node(resolve_device=lambda pid: {"uuid": f"GPU-{pid}"})
    node.join(0, pid=0, local_world_size=1)
    (placement,) = of(node.after(0.1), RankPlacement)
    assert placement.gpu_uuid == (None,)


def test_progress_is_published_every_five_seconds_step_or_no_step() -> None:
    node = Node()
    first = node.join(0, local_world_size=2)
    node.join(1, local_world_size=2)
    node.say(first, step(7))
    node.say(first, said("progress", last_step=7, groups={"dp": [9, 9, 8]}))
    (start,) = of(node.after(0.1), RankProgress)
    assert (start.rank, start.last_step) == ((0, 1), (7, None))
    assert start.groups == {"dp": ((9, 9, 8), (None, None, None))}
    ticks = [of(node.after(1), RankProgress) for _ in range(10)]
    assert [len(records) for records in ticks] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_progress_is_published_every_second_while_nothing_moves() -> None:
    node = Node()
    first = node.join(0, local_world_size=1)
    node.say(first, step(7))
    told = [len(of(node.after(1), RankProgress)) for _ in range(15)]
    assert told == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    node.say(first, step(8))
    assert [len(of(node.after(1), RankProgress)) for _ in range(5)] == [0, 0, 0, 0, 1]


def test_progress_tells_of_masked_phases_and_of_processes_that_are_gone() -> None:
    node = Node()
    first = node.join(0, local_world_size=2)
    second = node.join(1, local_world_size=2)
    (start,) = of(node.after(0.1), RankProgress)
    assert (start.phase, start.connected) == (None, (True, True))
    node.say(first, said("progress", phase="checkpoint"))
    node.say(second, said("progress", phase="train"))
    (masked,) = of(node.after(5), RankProgress)
    assert masked.phase == "checkpoint"
    node.ranks.on_disconnect(first, node.now_ns)
    (left,) = of(node.after(5), RankProgress)
    assert (left.phase, left.connected) == ("train", (False, True))


def test_ranks_are_known_by_user_until_their_attempt_is_forgotten() -> None:
    node = Node()
    peer = node.join(0, uid=1000)
    (place,) = node.ranks.places
    assert (place.job_id, place.epoch, place.rank, place.uid) == ("job-1", 0, 0, 1000)
    node.ranks.on_disconnect(peer, node.now_ns)
    node.after(60)
    assert node.ranks.places == (place,)
    node.after(601)
    assert node.ranks.places == ()


def test_progress_ends_when_the_last_rank_is_gone_and_the_attempt_is_forgotten() -> None:
    node = Node()
    peer = node.join(0, uid=1000)
    node.ranks.on_disconnect(peer, node.now_ns)
    assert of(node.after(6), RankProgress) == []
    node.after(601)
    node.after(1)
    node.join(0, uid=1001)  # nobody's name any more
    assert [registration.rank for registration, _ in node.ranks.registrations()] == [0]


def test_a_job_that_says_goodbye_has_ended() -> None:
    node = Node()
    peer = node.join(0, local_world_size=1, epoch=3)
    node.after(1)
    node.say(peer, said("end"))
    (job,) = of(node.after(0.1), Job)
    assert (job.state, job.version, job.epoch) == ("ended", 8, 3)


# --- Who may say what ---------------------------------------------------------------------------------------------


def test_a_job_belongs_to_the_user_who_registered_it() -> None:
    node = Node()
    node.join(0, uid=1000)
    for fields in ({"rank": 0}, {"rank": 1}, {"rank": 0, "epoch": 1}):
        with pytest.raises(RefusedError, match="owned_by_another_user"):
            node.join(uid=1001, **fields)


def test_nobody_speaks_before_registering_or_for_two_ranks() -> None:
    node = Node()
    with pytest.raises(RefusedError, match="unregistered"):
        node.say(Peer(next(CONNECTIONS), 1, 1), step(1))
    peer = node.join(0)
    with pytest.raises(RefusedError, match="second_rank"):
        node.say(peer, said("register", **register(1)))


def test_a_connection_that_was_replaced_is_not_heard() -> None:
    node = Node()
    old = node.join(0, local_world_size=1)
    new = node.join(0, local_world_size=1)
    with pytest.raises(RefusedError, match="replaced"):
        node.say(old, step(1))
    assert node.ranks.on_disconnect(old, node.now_ns) == []
    assert len(node.say(new, step(1))) == 1


def test_jobs_and_ranks_are_bounded() -> None:
    node = Node()
    for number in range(64):
        node.join(0, job_id=f"job-{number}")
    with pytest.raises(RefusedError, match="too_many_jobs"):
        node.join(0, job_id="job-64")
    for rank in range(1, 256):
        node.join(rank, job_id="job-0", world_size=1000)
    with pytest.raises(RefusedError, match="too_many_ranks"):
        node.join(256, job_id="job-0", world_size=1000)


# --- The socket ---------------------------------------------------------------------------------------------------


@contextmanager
def served(path: Path, **named: Any) -> Iterator[tuple[TrainerSocket, RecordingPublisher]]:
    publisher = RecordingPublisher()
    made = TrainerSocket(path, LocalRanks(IDENTITY, Sequences()), publisher.publish, SystemClock(), **named)
    made.start()
    try:
        yield made, publisher
    finally:
        made.stop()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(str(path))
    return connection


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "type": kind, **fields}).encode() + b"\n"


def eventually(condition: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not condition():
        time.sleep(0.01)
    return bool(condition())


def test_the_kernel_says_who_is_at_the_other_end(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as trainer:
        trainer.sendall(line("register", **register(pid=os.getpid())))
        assert eventually(lambda: list(made._ranks.registrations()))
        ((_, peer),) = made._ranks.registrations()
        assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())


def test_a_rank_that_calls_itself_by_anothers_pid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as trainer:
        trainer.sendall(line("register", **register(pid=1)) + line("step", step=1, event_time_ns=1, step_us=1))
        assert eventually(lambda: made.counters["unregistered"] == 1)
        assert made.counters["pid_of_another"] == 1
        assert list(made._ranks.registrations()) == []


@pytest.mark.parametrize(
    ("pid", "claimed", "expected"),
    [
        (812, 812, True),
        (812, 7, True),  # what it is called in its container
        (812, 8, False),
        (812, 81, False),
        (0, 7, None),  # in a namespace beside ours
        (999, 7, None),  # it has ended
    ],
)
def test_a_process_may_call_itself_by_its_pid_in_any_of_its_namespaces(
    tmp_path: Path, pid: int, claimed: int, expected: bool | None
) -> None:
    (tmp_path / "812").mkdir()
    (tmp_path / "812" / "status").write_text("Name:\tpython3\nTgid:\t812\nNSpid:\t812\t7\nThreads:\t1\n")
    assert claims_its_own_pid(pid, claimed, tmp_path) is expected


def test_a_kernel_that_lists_no_namespaces_is_no_witness(tmp_path: Path) -> None:
    (tmp_path / "812").mkdir()
    (tmp_path / "812" / "status").write_text("Name:\tpython3\n")
    assert claims_its_own_pid(812, 7, tmp_path) is None


def test_a_user_outside_the_allow_list_is_turned_away(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, allowed_uids=[os.getuid() + 1]) as (made, _), connect(path) as trainer:
        assert trainer.recv(1) == b""
        assert made.counters["refused_uid"] == 1


def test_bad_lines_are_counted_and_cost_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, publisher), connect(path) as bad, connect(path) as good:
        bad.sendall(b"nonsense\n{}\n" + line("step", step=1, event_time_ns=1, step_us=1))
        good.sendall(line("register", **register(local_world_size=1)))
        good.sendall(line("step", step=1, event_time_ns=1, step_us=1))
        assert publisher.wait_for(lambda p: any(isinstance(record, StepTiming) for record in p.records))
        assert eventually(lambda: made.counters["bad_message"] == 2 and made.counters["unregistered"] == 1)


def test_a_line_without_end_is_cut_off_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as trainer:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            trainer.sendall(b"x" * 1000 * MAX_LINE_BYTES)
        assert made.counters["overlong_line"] == 1


def test_a_trainer_that_floods_is_limited_and_others_are_heard(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, messages_per_s=10) as (made, publisher), connect(path) as flood, connect(path) as good:
        flood.sendall(b"nonsense\n" * 5000)
        good.sendall(
            line("register", **register(local_world_size=1)) + line("step", step=1, event_time_ns=1, step_us=1)
        )
        assert publisher.wait_for(lambda p: any(isinstance(record, StepTiming) for record in p.records))
        assert eventually(lambda: made.counters["too_many_messages"] > 0)


def test_connections_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, most_connections=2) as (made, _):
        kept = [connect(path) for _ in range(2)]
        assert eventually(lambda: made.counters["connections"] == 2)
        with connect(path) as third:
            assert third.recv(1) == b""
        for connection in kept:
            connection.close()


def test_one_user_cannot_take_all_connections(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, most_of_user=2) as (made, _):
        kept = [connect(path) for _ in range(2)]
        assert eventually(lambda: made.counters["connections"] == 2)
        with connect(path) as third:
            assert third.recv(1) == b""
        assert made.counters["too_many_connections_of_user"] == 1
        kept.pop().close()
        assert eventually(lambda: made.connected == 1)
        with connect(path):
            assert eventually(lambda: made.counters["connections"] == 3)
        kept.pop().close()


def test_who_never_registers_is_hung_up_on_and_a_rank_that_is_quiet_is_not(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, register_within_s=0.2) as (made, _), connect(path) as rank, connect(path) as idle:
        rank.sendall(line("register", **register()))
        assert idle.recv(1) == b""
        assert made.counters["silent"] == 1
        time.sleep(1.2)
        assert made.connected == 1


def test_bytes_a_second_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, bytes_per_s=100_000) as (made, _), connect(path) as flood:
        flood.sendall((b"x" * 50_000 + b"\n") * 40)
        assert eventually(lambda: made.counters["too_many_messages"] > 30)
        assert made.counters["bad_message"] <= 4  # two seconds may begin meanwhile


def hostile_lines() -> list[bytes]:
    deep = b'{"v":1,"type":"register","job":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001
    many = {f"NCCL_{number}": "1" for number in range(65)}
    return [
        deep[:60_000],
        deep[:31] + b"[" * 30_000 + b"]" * 30_000 + b"}",
        line("register", **register(nccl_env=many)).strip(),
        line("register", **register(nccl_env={"NCCL_DEBUG": "x" * 300})).strip(),
        line("register", **register(nccl_env={"LD_PRELOAD\n": "x"})).strip(),
        line("register", **register(rank=10**7)).strip(),
        line("register", **register(job_id="x" * 254)).strip(),
        line("step", step=2**53, event_time_ns=1, step_us=1).strip(),
        line("step", step=1, event_time_ns=1, step_us=1, collectives=[{"group": "g", "duration_us": 1}] * 65).strip(),
        line("progress", groups={str(n): [1, 1, 1] for n in range(65)}).strip(),
        b'{"v":1,"type":"end","event_time_ns":' + b"9" * 5000 + b"}",
        b'{"v":1e400,"type":"end"}',
        '{"v":1,"type":"\ud800"}'.encode("utf-8", "surrogatepass"),
        b"\x00" * 100,
    ]


def test_hostile_lines_are_refused_and_the_next_ones_are_heard(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    bad = hostile_lines()
    with served(path) as (made, publisher), connect(path) as hostile, connect(path) as good:
        hostile.sendall(line("register", **register(1, local_world_size=1)) + b"\n".join(bad) + b"\n")
        hostile.sendall(line("step", step=5, event_time_ns=1, step_us=1))
        good.sendall(line("register", **register(job_id="other", local_world_size=1)))
        good.sendall(line("step", step=1, event_time_ns=1, step_us=1))
        assert publisher.wait_for(
            lambda p: {t.job_id for t in p.records if isinstance(t, StepTiming)} == {"job-1", "other"}
        )
        assert eventually(lambda: made.counters["bad_message"] == len(bad))
        assert made.counters["internal_error"] == 0


def test_a_trainer_that_vanishes_in_mid_message_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _):
        for _ in range(20):
            with connect(path) as trainer:
                trainer.sendall(line("register", **register())[:-20])
        assert eventually(lambda: made.connected == 0 and made.counters["connections"] == 20)
        assert list(made._ranks.registrations()) == []


# --- The status ---------------------------------------------------------------------------------------------------


def ask(path: Path, before: bytes = b"") -> dict[str, Any]:
    with connect(path) as asker:
        asker.sendall(before + line("status"))
        text = b""
        while chunk := asker.recv(65536):
            text += chunk
    assert text.count(b"\n") == 1
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_status_holds_what_every_rank_said_last(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as trainer:
        trainer.sendall(line("register", **register(3, nccl_env={"NCCL_DEBUG": "INFO"}, torch_version="2.8.0")))
        trainer.sendall(line("register", **register(3, nccl_env={"NCCL_DEBUG": "WARN"}, torch_version="2.8.0")))
        trainer.sendall(line("step", step=41, event_time_ns=1, step_us=1))
        assert eventually(lambda: made.counters["messages"] == 3)
        (rank,) = ask(path)["ranks"]
    assert (rank["job_id"], rank["rank"], rank["last_step"], rank["connected"]) == ("job-1", 3, 41, True)
    assert (rank["nccl_env"], rank["torch_version"]) == ({"NCCL_DEBUG": "WARN"}, "2.8.0")
    assert (rank["pid"], rank["uid"]) == (os.getpid(), os.getuid())


def test_who_asks_is_told_of_the_ranks_of_the_same_user_alone() -> None:
    node = Node()
    node.join(0, uid=1000)
    node.join(0, uid=1001, job_id="job-2")
    assert [rank["job_id"] for rank in node.ranks.status(1001)] == ["job-2"]
    assert [rank["job_id"] for rank in node.ranks.status()] == ["job-1", "job-2"]
    with pytest.raises(RefusedError, match="not_a_trainers"):
        node.say(node.join(1, uid=1000), said("status"))


def test_what_is_said_behind_a_question_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as asker:
        asker.sendall(line("status") + line("register", **register()))
        assert json.loads(asker.makefile().readline())["ranks"] == []
        assert made.counters["messages"] == 0


def test_who_asks_and_does_not_read_is_hung_up_on(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path, register_within_s=0.2) as (made, _), connect(path) as asker:
        for number in range(60):  # an answer far above what the socket takes at once
            for rank in range(20):
                env = {f"NCCL_{n}": "x" * 100 for n in range(20)}
                made._ranks.on_message(
                    Peer(next(CONNECTIONS), 0, os.getuid()),
                    said("register", **register(rank, job_id=f"job-{number}", world_size=64, nccl_env=env)),
                    T0,
                )
        asker.sendall(line("status"))
        assert eventually(lambda: made.counters["silent"] == 1)
        assert made.connected == 0
        assert ask(path)["left_out"] == 0


def test_a_message_in_pieces_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, _), connect(path) as trainer:
        text = line("register", **register())
        for start in range(0, len(text), 7):
            trainer.sendall(text[start : start + 7])
            time.sleep(0.001)
        assert eventually(lambda: made.counters["messages"] == 1)


def test_a_socket_left_behind_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run" / "t.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with served(path):
        other = TrainerSocket(path, LocalRanks(IDENTITY, Sequences()), lambda _: True, SystemClock())
        with pytest.raises(TrainerSocketError, match="another agent serves it"):
            other.start()
        connect(path).close()
    assert not path.exists()


def test_steps_in_the_making_are_published_when_the_agent_stops(tmp_path: Path) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, publisher), connect(path) as trainer, connect(path):
        trainer.sendall(line("register", **register(local_world_size=8)))
        trainer.sendall(line("step", step=9, event_time_ns=1, step_us=1))
        assert eventually(lambda: made.counters["messages"] == 2)
    assert [timing.step for timing in publisher.of(StepTiming)] == [9]


def test_an_error_of_our_own_ends_no_other_trainers_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.sock"
    with served(path) as (made, publisher), connect(path) as trainer:
        on_message = made._ranks.on_message
        failed: list[int] = []

        def fail_once(*arguments: Any) -> list[Record]:
            if not failed:
                failed.append(1)
                raise RuntimeError("a bug")
            return on_message(*arguments)

        monkeypatch.setattr(made._ranks, "on_message", fail_once)
        trainer.sendall(line("register", **register()))
        assert eventually(lambda: made.counters["internal_error"] == 1)
        trainer.sendall(line("register", **register(local_world_size=1)))
        trainer.sendall(line("step", step=1, event_time_ns=1, step_us=1))
        assert publisher.wait_for(lambda p: any(isinstance(record, StepTiming) for record in p.records))
