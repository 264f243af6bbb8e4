"""The tape of a PyTorch loop: it reads like the stopwatch, waits for nobody, and is bounded."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_trainer.collective_timers import CollectiveTimers, _members
from paceline_trainer.stopwatch import PARTS, Stopwatch
from paceline_trainer.tape import Mark, Span, Tape
from paceline_trainer.torch_steps import TorchStepReporter

if TYPE_CHECKING:
    from pathlib import Path


class Gpu:
    """A GPU's queue: what is recorded passes when the GPU has come so far."""

    def __init__(self) -> None:
        self.host_ms = 0.0
        self.issued_ms = 0.0  # when all work issued so far will be done
        self.passed_ms = 0.0
        self.is_broken = False

    def mark(self) -> Mark:
        self.issued_ms = max(self.issued_ms, self.host_ms)
        return Mark(int(self.host_ms * 1e6), Event(self, self.issued_ms))

    def host_works(self, ms: float) -> None:
        self.host_ms += ms

    def issue(self, ms: float) -> None:
        self.issued_ms = max(self.issued_ms, self.host_ms) + ms


class Event:
    def __init__(self, gpu: Gpu, at_ms: float) -> None:
        self.gpu = gpu
        self.at_ms = at_ms

    def query(self) -> bool:
        if self.gpu.is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.at_ms <= self.gpu.passed_ms

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query(), "asked before it has passed: CUDA gives an error here"
        return end.at_ms - self.at_ms


def test_parts_are_what_the_gpu_spent_on_them_and_not_the_host() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    for part, host_ms, gpu_ms in (("forward", 1, 30), ("backward", 2, 60), ("optimizer", 1, 5)):
        tape.enter(part)
        gpu.host_works(host_ms)
        gpu.issue(gpu_ms)
        tape.leave()
    recording = tape.end()
    assert recording is not None
    gpu.passed_ms = 90
    assert not recording.is_ready()
    gpu.passed_ms = 100
    assert recording.is_ready()
    measured = recording.measured()
    assert [measured[f"{part}_us"] for part in ("forward", "backward", "optimizer")] == [31_000, 60_000, 5_000]
    assert (measured["step_us"], measured["compute_us"]) == (96_000, 96_000)


def test_a_wait_for_data_that_computation_hides_costs_nothing_and_one_that_it_does_not_is_told() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    measured = []
    for data_ms in (10, 10, 130):
        tape.enter("data")
        gpu.host_works(data_ms)
        tape.leave()
        tape.begin()
        gpu.issue(50)
        recording = tape.end()
        assert recording is not None
        gpu.passed_ms = 1e9
        measured.append(recording.measured())
    assert [fields["data_us"] for fields in measured] == [10_000, 0, 40_000]
    assert [fields["step_us"] for fields in measured] == [60_000, 50_000, 90_000]


def test_an_operation_on_the_steps_own_stream_is_waiting_and_leaves_the_part_around_it() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    tape.enter("backward")
    gpu.issue(40)
    span = tape.span("dp", (0, 1, 8), "all_reduce", overlapped=False)
    assert span is not None
    gpu.issue(25)
    span.end = gpu.mark()
    tape.leave()
    recording = tape.end()
    assert recording is not None
    gpu.passed_ms = 1e9
    measured = recording.measured()
    assert (measured["backward_us"], measured["wait_us"], measured["own_us"]) == (40_000, 25_000, 40_000)
    assert measured["collectives"] == [
        {"group": "dp", "instance": (0, 1, 8), "op": "all_reduce", "duration_us": 25_000}
    ]


def test_of_operations_that_queue_in_one_communicator_each_has_its_own_time_alone() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    spans = [tape.span("dp", None, "all_reduce", overlapped=True) for _ in range(3)]
    other = tape.span("tp", None, "all_reduce", overlapped=True)
    for span, end_ms in (*zip(spans, (10, 25, 45), strict=True), (other, 45)):
        assert span is not None
        span.end = Mark(0, Event(gpu, end_ms))
    recording = tape.end()
    assert recording is not None
    gpu.passed_ms = 1e9
    measured = recording.measured()
    assert [(c["group"], c["duration_us"]) for c in measured["collectives"]] == [("dp", 45_000), ("tp", 45_000)]
    assert "wait_us" not in measured


def test_a_moment_without_an_event_puts_the_whole_step_on_the_hosts_clock() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    tape.enter("forward")
    gpu.host_works(3)
    gpu.issue(500)
    mark, tape.mark = tape.mark, lambda: Mark(int(gpu.host_ms * 1e6))  # inside a graph that is being captured
    tape.leave()
    tape.mark = mark
    recording = tape.end()
    assert recording is not None
    gpu.passed_ms = 1e9
    measured = recording.measured()
    assert (measured["forward_us"], measured["step_us"]) == (3_000, 3_000)


def test_an_operation_that_never_ends_is_waited_for_with_patience_and_then_left_out() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    assert isinstance(tape.span("dp", None, None, overlapped=True), Span)
    recording = tape.end()
    assert recording is not None
    gpu.passed_ms = 1e9
    assert not recording.is_ready()
    assert recording.is_ready(patient=False)
    assert "collectives" not in recording.measured()


def test_a_step_of_too_many_entries_is_given_up_and_the_next_one_is_not() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    tape.begin()
    for _ in range(5000):
        tape.enter("forward")
        tape.leave()
    assert tape.end() is None
    assert tape.given_up == 1
    tape.begin()
    assert tape.end() is not None


def test_a_loader_outside_of_any_step_does_not_fill_the_tape() -> None:
    gpu = Gpu()
    tape = Tape(gpu.mark)
    for _ in range(20_000):
        tape.enter("data")
        tape.leave()
    assert len(tape._entries) <= 8192
    tape.begin()
    recording = tape.end()
    assert recording is not None


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 10**10)),
        st.tuples(st.just("enter"), st.sampled_from([*PARTS, "lunch"])),
        st.tuples(st.just("leave"), st.none()),
        st.tuples(st.just("add"), st.sampled_from([*PARTS, "own"])),
        st.tuples(st.just("collective"), st.sampled_from(["dp", "tp"])),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=40,
)


@given(CALLS)
def test_the_tape_says_what_the_stopwatch_says(calls: list[tuple[str, Any]]) -> None:
    now = [0]
    watch = Stopwatch(lambda: now[0])
    tape = Tape(lambda: Mark(now[0]))
    for call, argument in [*calls, ("end", None)]:
        if call == "pass":
            now[0] += argument
        elif call == "collective":
            for target in (watch, tape):
                target.add_collective(argument, 0.25, None, None, False)
        elif call == "add":
            for target in (watch, tape):
                target.add(argument, 0.5)
        elif call == "end":
            expected, recording = watch.end(), tape.end()
            assert (recording is None) == (expected is None)
            assert recording is None or recording.measured() == expected
        else:
            arguments = () if argument is None else (argument,)
            try:
                getattr(watch, call)(*arguments)
            except ValueError:
                assert call == "leave"
            getattr(tape, call)(*arguments)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([3], (3, 1, 1)),
        ([0, 1, 2, 3], (0, 1, 4)),
        ([24, 8, 16, 0], (0, 8, 4)),
    ],
)
def test_a_group_is_named_by_its_members_whatever_their_order(ranks: list[int], expected: tuple[int, ...]) -> None:
    assert _members(ranks) == expected


def test_groups_without_a_stride_are_told_apart_by_a_digest() -> None:
    first, second = _members([0, 1, 5]), _members([0, 2, 5])
    assert first != second
    assert first == _members([5, 1, 0])


# --- The reporter over a GPU --------------------------------------------------------------------------------------


class Cuda:
    """Stands for `torch.cuda`, over a GPU that is behind its host."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.stream = 7
        self.is_capturing = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def current_stream(self) -> Any:
        return types.SimpleNamespace(cuda_stream=self.stream)

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _ordinal: int) -> Any:
        return types.SimpleNamespace(uuid="")

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - the library's name
        assert enable_timing
        gpu = self.gpu

        class Recorded(Event):
            def __init__(self) -> None:
                super().__init__(gpu, 0.0)

            def record(self) -> None:
                gpu.issued_ms = self.at_ms = max(gpu.issued_ms, gpu.host_ms)

        return Recorded()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda(Gpu())
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=made, __version__="2.8.0"))
    return made


def silent(tmp_path: Path, **named: Any) -> tuple[TorchStepReporter, list[dict[str, Any]]]:
    reporter = TorchStepReporter("job-1", socket_path=str(tmp_path / "none"), environ={}, **named)
    steps: list[dict[str, Any]] = []
    reporter._send = lambda kind, fields: steps.append(fields) if kind == "step" else None  # type: ignore[method-assign]
    return reporter, steps


def test_a_step_is_told_once_the_gpu_has_passed_it_and_nobody_waits(tmp_path: Path, cuda: Cuda) -> None:
    reporter, steps = silent(tmp_path)
    for number in range(3):
        with reporter.step(), reporter.forward():
            cuda.gpu.issue(10)
        cuda.gpu.passed_ms = 10.0 * number  # a step behind
    assert [step["step"] for step in steps] == [0]
    cuda.gpu.passed_ms = 30.0
    reporter.close()
    assert [(step["step"], step["forward_us"]) for step in steps] == [(0, 10_000), (1, 10_000), (2, 10_000)]


def test_a_gpu_that_never_gets_there_costs_steps_and_no_memory(tmp_path: Path, cuda: Cuda) -> None:
    reporter, steps = silent(tmp_path)
    for _ in range(200):
        with reporter.step():
            cuda.gpu.issue(1000)
    assert len(reporter._pending) == 64
    reporter.close()
    assert steps == []
    assert reporter.counters["lost"] == 200


def test_a_gpu_in_error_raises_nothing_into_the_loop(tmp_path: Path, cuda: Cuda) -> None:
    reporter, steps = silent(tmp_path)
    cuda.gpu.is_broken = True
    before = reporter.counters["errors"]
    for _ in range(5):
        with reporter.step(), reporter.backward():
            pass
    reporter.close()
    assert steps == []
    assert reporter.counters["lost"] == 5
    assert reporter.counters["errors"] - before == 5


def test_while_a_graph_is_captured_no_event_is_recorded(tmp_path: Path, cuda: Cuda) -> None:
    reporter, steps = silent(tmp_path)
    cuda.is_capturing = True
    with reporter.step():
        cuda.gpu.issue(1000)
    cuda.is_capturing = False
    assert steps[0]["step_us"] < 1_000_000  # the host's


def test_a_wrong_part_is_counted_and_the_step_is_told(tmp_path: Path) -> None:
    reporter, steps = silent(tmp_path)
    before = reporter.counters["errors"]
    with reporter.step(), reporter.phase("lunch"):
        pass
    assert [step["step"] for step in steps] == [0]
    assert reporter.counters["errors"] - before == 1


# --- Collectives --------------------------------------------------------------------------------------------------


class Future:
    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def complete(self) -> None:
        for callback in self.callbacks:
            callback(self)


class Work:
    def __init__(self) -> None:
        self.future = Future()

    def get_future(self) -> Future:
        return self.future


class Group:
    """Stands for a process group."""

    def __init__(self, group_name: str, group_desc: str, ranks: list[int]) -> None:
        self.group_name = group_name
        self.group_desc = group_desc
        self.ranks = ranks


class Distributed(types.ModuleType):
    """Stands for `torch.distributed`."""

    def __init__(self) -> None:
        super().__init__("torch.distributed")
        self.world = Group("0", "default_pg", [0, 1])
        self.group = types.SimpleNamespace(WORLD=self.world)
        self.fail = False
        self.work = Work()

        def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
            """Reduces."""
            if self.fail:
                raise RuntimeError("NCCL error")
            return self.work if async_op else None

        def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
            return self.all_reduce(0, None, group, async_op)  # one operation, not two

        self.all_reduce = all_reduce
        self.barrier = barrier
        self.get_process_group_ranks = lambda group: group.ranks


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> Distributed:
    made = Distributed()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=made))
    monkeypatch.setitem(sys.modules, "torch.distributed", made)
    return made


def timers() -> tuple[CollectiveTimers, Tape, list[int], list[tuple[str, dict[str, Any]]]]:
    now = [0]
    tape = Tape(lambda: Mark(now[0]))
    told: list[tuple[str, dict[str, Any]]] = []
    made = CollectiveTimers(tape, lambda group, **named: told.append((group, named)), pytest.fail)
    made.install()
    return made, tape, now, told


def test_functions_are_timed_by_group_and_put_back(distributed: Distributed) -> None:
    original = distributed.all_reduce
    made, tape, now, told = timers()
    tensor_parallel = Group("3", "undefined", [0, 4])
    made.name({tensor_parallel: "tp"})
    distributed.all_reduce(1)  # before any step: counted, not timed
    tape.begin()
    distributed.barrier()
    distributed.all_reduce(1, None, tensor_parallel)
    distributed.all_reduce(1, group=tensor_parallel, async_op=True)
    now[0] = 5_000_000
    distributed.work.future.complete()
    recording = tape.end()
    assert recording is not None
    assert recording.is_ready()
    collectives = recording.measured()["collectives"]
    assert [(c["group"], c["instance"], c["op"]) for c in collectives] == [
        ("default_pg", (0, 1, 2), "barrier"),
        ("tp", (0, 4, 2), "all_reduce"),
    ]
    assert collectives[1]["duration_us"] == 5_000
    assert told[-1] == ("tp", {"enqueued": 2, "completed": 1})
    assert distributed.all_reduce.__doc__ == "Reduces."
    made.remove()
    assert distributed.all_reduce is original


def test_what_somebody_else_has_replaced_since_stays(distributed: Distributed) -> None:
    made, *_ = timers()
    theirs = distributed.all_reduce = lambda *_: None
    made.remove()
    assert distributed.all_reduce is theirs


def test_an_error_of_the_operation_passes_and_one_of_ours_does_not(distributed: Distributed) -> None:
    errors: list[str] = []
    tape = Tape(lambda: Mark(0))

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    made = CollectiveTimers(tape, fail, errors.append)
    made.install()
    assert distributed.all_reduce(1) is None
    assert "ZeroDivisionError" in errors[0]
    distributed.fail = True
    with pytest.raises(RuntimeError, match="NCCL error"):
        distributed.all_reduce(1)
    made.remove()


def test_a_call_of_a_rank_outside_of_the_group_is_not_counted(distributed: Distributed) -> None:
    made, _, _, told = timers()
    distributed.all_reduce(1, group=object())
    assert told == []
    made.remove()


def test_of_one_group_a_bounded_number_of_operations_is_timed_in_a_step(distributed: Distributed) -> None:
    made, tape, _, told = timers()
    for _ in range(2):
        tape.begin()
        for _ in range(1000):
            distributed.all_reduce(1)
        assert sum(isinstance(entry, Span) for entry in tape._entries) == 256
        assert tape.end() is not None
    assert told[-1][1]["enqueued"] == 2000
    made.remove()


def test_what_a_comm_hook_calls_is_not_counted_again(distributed: Distributed) -> None:
    """As the averaging hook of DistributedDataParallel does, which is the one in use where none is given."""
    made, tape, now, told = timers()
    future = Future()

    def inner(state: Any, bucket: Any) -> Future:
        distributed.all_reduce(bucket.buffer(), async_op=True)
        return future

    buffer = types.SimpleNamespace(numel=lambda: 10, element_size=lambda: 4)
    tape.begin()
    made.comm_hook(inner, None)(None, types.SimpleNamespace(buffer=lambda: buffer))
    now[0] = 3_000_000
    future.complete()
    recording = tape.end()
    assert recording is not None
    (collective,) = recording.measured()["collectives"]
    assert (collective["duration_us"], collective["size_bytes"]) == (3_000, 40)
    assert told[-1][1]["enqueued"] == 1
    made.remove()


def test_a_comm_hook_times_buckets_and_gives_the_inner_hooks_future(distributed: Distributed) -> None:
    made, tape, now, _ = timers()
    future = Future()
    hook = made.comm_hook(lambda state, bucket: future, None)
    assert hook.__annotations__ == {}
    tape.begin()
    assert hook(None, "bucket") is future
    now[0] = 3_000_000
    future.complete()
    recording = tape.end()
    assert recording is not None
    assert recording.measured()["collectives"][0]["duration_us"] == 3_000
    made.remove()
