"""A profiler trace is read as a stream, in any layout, and its sums are those of a count by hand."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decode import driver, kineto, kineto_document
from agents.decode.kineto_document import Member, Unreadable, items
from agents.decode.kineto_event import group_ranks, nanoseconds, step_number, stream, whole
from agents.decode.kineto_intervals import BLOCK, Cover, Intervals, union
from agents.decode.kineto_source import PIECE_BYTES, pieces
from agents.decode.record import Damaged, Record, Tally, UnknownFormat
from tests.bench.kineto_trace import Shape, events, write

ROOT = Path(__file__).parents[2]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def work(name: str, start: float, duration: float, device: int = 0, **rest: Any) -> dict[str, Any]:
    args = {"device": device, "stream": 7} | rest.pop("args", {})
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": args,
    } | rest


def trace(*listed: Any, **members: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **members, "traceEvents": list(listed)}).encode()


def decode(data: bytes, tally: Tally | None = None) -> list[Record]:
    return list(kineto.decode(io.BytesIO(data), tally or Tally()))


def summary(data: bytes) -> Record:
    found = decode(data)[-1]
    assert found["kind"] == "trace_summary"
    return found


def sums(data: bytes) -> tuple[float, float, float]:
    found = summary(data)
    return found["comm_us"], found["compute_us"], found["exposed_comm_us"]


def test_a_communication_kernel_has_what_its_arguments_state() -> None:
    event = work(
        ALL_REDUCE,
        1.5,
        410.25,
        args={
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "Out msg nelems": "2,048",
            "Group size": 2,
            "dtype": "BFloat16",
            "Process Group Ranks": "[4, 6]",
        },
    )
    assert decode(trace(event))[0] == {
        "kind": "comm_kernel",
        "name": ALL_REDUCE,
        "duration_us": 410.25,
        "stream": 7,
        "device": 0,
        "collective": "allreduce",
        "dtype": "BFloat16",
        "group_ranks": [4, 6],
        "group_size": 2,
        "in_elements": 1024,
        "out_elements": 2048,
    }


def test_what_a_kernel_does_not_state_is_left_out_and_what_it_does_not_know_is_null() -> None:
    plain, cut = decode(
        trace(work(ALL_REDUCE, 1, 2), work(ALL_REDUCE, 3, 4, args={"Process Group Ranks": "[0, 1, ...]"}))
    )[:2]
    assert plain == {"kind": "comm_kernel", "name": ALL_REDUCE, "duration_us": 2, "stream": 7, "device": 0}
    assert cut["group_ranks"] is None
    unknown = decode(trace(work(ALL_REDUCE, 1, 2, args={"In msg nelems": -1, "dtype": "", "Collective name": None})))[0]
    assert (unknown["in_elements"], unknown["dtype"], unknown["collective"]) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "ranks"),
    [("[0, 1]", [0, 1]), ("0,1", [0, 1]), ([3, 2], [3, 2]), ("[0, 1, ..., 127]", None), ("[]", None), ([], None), ("", None), (7, None), (["x"], None)],
)  # fmt: skip
def test_ranks_of_a_group_are_a_list_or_the_text_of_one(value: object, ranks: list[int] | None) -> None:
    assert group_ranks(value) == ranks


def test_device_and_stream_come_from_process_and_thread_where_no_argument_has_them() -> None:
    bare = {"ph": "X", "cat": "kernel", "name": ALL_REDUCE, "pid": 3, "tid": "stream 20", "ts": 1, "dur": 2}
    found = decode(trace(bare))[0]
    assert (found["device"], found["stream"]) == (3, 20)
    assert stream({"tid": 9}, {}) == 9
    assert stream({"tid": "main"}, {}) is None


@pytest.mark.parametrize("category", ["kernel", "gpu_user_annotation", "user_annotation", "cpu_op"])
def test_annotations_named_after_nccl_are_neither_communication_nor_computation(category: str) -> None:
    assert sums(trace(work("nccl:all_reduce", 0, 100, cat=category), work("gemm", 200, 5))) == (0, 5, 0)


def test_only_kernels_are_communication_and_only_by_the_beginning_of_their_name() -> None:
    data = trace(
        work("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", 0, 10),
        work("ncclDevKernel_Generic_4(ncclDevKernelArgs)", 10, 10),
        work("my_ncclDevKernel_lookalike", 20, 10),
        work(ALL_REDUCE, 40, 10, cat="gpu_user_annotation"),
        work(ALL_REDUCE, 60, 10, cat="cpu_op"),
    )
    assert sums(data) == (20, 10, 20)
    assert summary(data)["comm_kernel_count"] == 2


def test_copies_and_sets_are_computation_and_host_work_is_not() -> None:
    data = trace(
        work("Memcpy HtoD (Pageable -> Device)", 0, 3, cat="gpu_memcpy"),
        work("Memset (Device)", 10, 4, cat="gpu_memset"),
        work("cudaLaunchKernel", 20, 50, cat="cuda_runtime"),
        work("aten::mm", 80, 50, cat="cpu_op"),
    )
    assert sums(data) == (0, 7, 0)


def test_overlapping_intervals_count_once_and_what_computation_covers_is_not_exposed() -> None:
    data = trace(
        work(ALL_REDUCE, 0, 100), work(ALL_REDUCE, 50, 100), work("a", 90, 20), work("b", 100, 30), work("c", 500, 10)
    )
    assert sums(data) == (150, 50, 110)


def test_devices_are_added_up_and_do_not_cover_each_other() -> None:
    assert sums(trace(work(ALL_REDUCE, 0, 100, device=0), work("a", 0, 100, device=1))) == (100, 100, 100)


def test_a_step_counts_once_whether_annotated_on_the_host_or_the_gpu() -> None:
    data = trace(
        work("ProfilerStep#4", 0, 10, cat="user_annotation"),
        work("ProfilerStep#4", 2, 10, cat="gpu_user_annotation"),
        work("ProfilerStep#11", 20, 10, cat="user_annotation"),
        work("ProfilerStep#x", 20, 10, cat="user_annotation"),
    )
    assert summary(data)["step_count"] == 2
    assert step_number("ProfilerStep#4 ") is None


@pytest.mark.parametrize(
    ("info", "rank", "world_size"),
    [
        ({"rank": 5, "world_size": 128}, 5, 128),
        ({"rank": "5", "world_size": "128"}, 5, 128),
        ({"rank": 0, "world_size": 1}, 0, 1),
        ({"rank": -1, "world_size": -1}, None, None),
        ({"backend": "nccl"}, None, None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_rank_and_world_size_are_null_where_the_trace_does_not_say(
    info: Any, rank: int | None, world_size: int | None
) -> None:
    found = summary(trace(distributedInfo=info))
    assert (found["rank"], found["world_size"]) == (rank, world_size)


def test_members_may_stand_in_any_order() -> None:
    data = json.dumps(
        {
            "traceName": '}{"',
            "traceEvents": [work("a", 0, 5)],
            "nested": [{"traceEvents": [1]}],
            "distributedInfo": {"rank": 3},
        }
    ).encode()
    assert summary(data)["rank"] == 3
    assert sums(data) == (0, 5, 0)


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("batch_bytes", [64, 700, 1 << 18])
def test_layout_and_size_of_the_window_change_nothing(
    indent: int | None, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list(events(Shape(kernels=120, steps=2)))
    expected = decode(trace(*listed))
    monkeypatch.setattr(kineto_document, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr("agents.decode.kineto_source.PIECE_BYTES", 97)
    text = json.dumps({"traceEvents": listed, "schemaVersion": 1}, indent=indent).encode()
    assert decode(text) == expected
    assert decode(gzip.compress(text)) == expected
    assert decode(b"\xef\xbb\xbf  \r\n" + text + b" \n\0\0") == expected


def test_a_bare_list_of_events_is_a_trace_and_other_lists_are_not() -> None:
    assert sums(json.dumps([work("a", 0, 5)]).encode()) == (0, 5, 0)
    for other in (b"[]", b"[1, 2]", b'[{"entityId": 0, "fields": {}}]'):
        with pytest.raises(UnknownFormat):
            decode(other)


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b'"text"',
        b"17",
        b'{"version": "2.5", "entries": [{"a": 1}]}',
        b"{}",
        b'{"traceEvents": null}',
        b"{]",
        b"\x80\x02}q",
    ],
)
def test_what_is_no_trace_is_of_no_known_format(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"  \n", gzip.compress(b"")], ids=["nothing", "blanks", "packed nothing"])
def test_an_empty_file_gives_no_record(data: bytes) -> None:
    assert decode(data) == []


def test_a_trace_without_events_has_a_summary() -> None:
    assert decode(b'{"traceEvents": []}') == [
        {
            "kind": "trace_summary",
            "rank": None,
            "world_size": None,
            "step_count": 0,
            "comm_kernel_count": 0,
            "comm_us": 0.0,
            "compute_us": 0.0,
            "exposed_comm_us": 0.0,
        }
    ]


def test_a_trace_cut_anywhere_is_damaged_and_has_no_summary() -> None:
    whole_text = trace(work("a", 0, 5), work(ALL_REDUCE, 10, 5), work("b", 20, 5), distributedInfo={"rank": 1})
    for end in range(1, len(whole_text)):
        found: list[Record] = []
        with pytest.raises((Damaged, UnknownFormat)):
            found.extend(kineto.decode(io.BytesIO(whole_text[:end]), Tally()))
        assert {record["kind"] for record in found} <= {"comm_kernel"}, end


def test_a_gzip_stream_cut_or_broken_is_damaged() -> None:
    packed = gzip.compress(trace(*events(Shape(kernels=300))))
    for broken in (packed[:-9], packed[: len(packed) // 2], packed[:2], packed[:200] + b"\xff" * 40 + packed[240:]):
        with pytest.raises(Damaged):
            decode(broken)


def test_gzip_members_follow_each_other_and_may_be_padded() -> None:
    text = trace(work("a", 0, 5))
    assert sums(gzip.compress(text[:20]) + gzip.compress(text[20:]) + b"\0" * 100) == (0, 5, 0)
    bomb = gzip.compress(b" " * (PIECE_BYTES * 40))
    assert max(map(len, pieces(io.BytesIO(bomb)))) <= PIECE_BYTES


def test_a_cut_trace_ends_with_status_2_and_a_malformed_record(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(trace(work(ALL_REDUCE, 0, 5), work("b", 20, 5))[:-30])
    out, err = io.BytesIO(), io.StringIO()
    assert driver.run("kineto", str(path), out, err) == 2
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record["kind"] for record in records] == ["comm_kernel", "malformed"]
    assert "ends inside an event" in records[-1]["reason"]
    assert err.getvalue().splitlines()[-1] == "records=1 malformed=1 skipped=0"


def test_text_after_the_end_is_damage() -> None:
    with pytest.raises(Damaged):
        decode(trace(work("a", 0, 5)) + b"{}")


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        (b'"blocks per SM": nan', None),
        (b'"blocks per SM": -nan(ind), "x": -inf', None),
        (b'"blocks per SM": Infinity', None),
        (b'"path": "C:\\users\\new"', None),
        (b'"path": "\xff\xfe"', None),
        (b'"path": "\\ud800"', None),
        (b'"path": "a\tb"', None),
        (b'"big": 99999999999999999999999999', None),
    ],
)
def test_what_profilers_print_that_is_no_json_is_mended(printed: bytes, meant: None) -> None:
    event = b'{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":5,"dur":2,"args":{' + printed + b"}}"
    others = [json.dumps(work("b", 10 * index, 1)).encode() for index in range(1, 40)]
    data = b'{"traceEvents":[' + b",".join([*others[:20], event, *others[20:]]) + b"]}"
    assert [record["kind"] for record in decode(data)] == ["trace_summary"]
    assert sums(data) == (0, 41, 0)


def test_a_name_that_is_not_utf8_costs_a_character_and_not_the_event() -> None:
    data = trace(work("ncclDevKernel_AllReduce_??", 0, 5)).replace(b"??", b"\xc3(")
    assert decode(data)[0]["name"] == "ncclDevKernel_AllReduce_\ufffd("


def test_an_event_that_cannot_be_mended_costs_itself_alone() -> None:
    good = [json.dumps(work("a", 10 * index, 1)).encode() for index in range(6)]
    for bad in (b'{"ph":"X" "cat":"kernel"}', b'{"ph":"X","name":"odd " quote","cat":"kernel","ts":3,"dur":4}', b"{,}"):
        data = b'{"traceEvents":[' + b",".join([*good[:3], bad, *good[3:]]) + b"]}"
        found = decode(data)
        assert [record["kind"] for record in found] == ["malformed", "trace_summary"], bad
        assert found[0]["raw"].startswith(bad.decode()[:8])
        assert found[1]["compute_us"] == 6


def test_elements_that_are_no_events_are_malformed_and_empty_ones_are_skipped() -> None:
    tally = Tally()
    found = decode(
        b'{"traceEvents":[null, 7, "a,b]", [1, {"x": 2}], {}, ' + json.dumps(work("a", 0, 1)).encode() + b",]}", tally
    )
    assert [record["kind"] for record in found] == ["malformed"] * 4 + ["trace_summary"]
    assert tally.skipped == 1


@pytest.mark.parametrize(
    "times", [{"ts": None}, {"dur": None}, {"dur": -1}, {"ts": "soon"}, {"ts": 1e300}, {"dur": True}, {"ts": [1]}]
)
def test_a_kernel_whose_times_cannot_be_read_is_malformed(times: dict[str, Any]) -> None:
    found = decode(trace(work(ALL_REDUCE, 1, 2) | times, work("a", 1, 2)))
    assert [record["kind"] for record in found] == ["malformed", "trace_summary"]
    assert found[1]["compute_us"] == 2
    assert found[1]["comm_kernel_count"] == 0


def test_an_event_without_end_within_the_limit_is_passed_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_document, "EVENT_BYTES", 5000)
    monkeypatch.setattr(kineto_document, "BATCH_BYTES", 1000)
    monkeypatch.setattr("agents.decode.kineto_source.PIECE_BYTES", 500)
    huge = work("huge", 0, 1, args={"stack": '}, {"\\' * 40_000})
    found = decode(trace(work("a", 0, 1), huge, work("b", 10, 1)))
    assert [record["kind"] for record in found] == ["malformed", "trace_summary"]
    assert len(found[0]["raw"]) <= 500
    assert found[1]["compute_us"] == 2


def test_lists_of_objects_inside_events_are_no_events() -> None:
    nested = [
        work(f"k{index}", 10 * index, 1, args={"frames": [{"ph": "X", "cat": "kernel"}] * 4}) for index in range(9)
    ]
    assert sums(trace(*nested)) == (0, 9, 0)


def test_times_since_the_epoch_keep_their_nanoseconds() -> None:
    text = trace(work("a", 0, 1.001), work("b", 1, 1.001))
    text = text.replace(b'"ts": 0', b'"ts": 1700000000000000.001').replace(b'"ts": 1,', b'"ts": 1700000000000001.003,')
    assert sums(text) == (0, 2.002, 0)
    text = text.replace(b"1700000000000001.003", b"1700000000000001.001")
    assert sums(text) == (0, 2.001, 0)


@pytest.mark.parametrize(
    ("value", "exact"),
    [(5, 5000), (4458676606875.567, 4458676606875567), ("1700000000000000.123", 1700000000000000123), ("1.5e3", 1500000),
     ("7.12345", 7123), ("x", None), (float("nan"), None), (True, None), (None, None), (10**30, None), (-2.5, -2500)],
)  # fmt: skip
def test_microseconds_become_exact_nanoseconds(value: object, exact: int | None) -> None:
    assert nanoseconds(value) == exact


def test_counts_are_whole_and_not_below_zero() -> None:
    assert [whole(value) for value in (3, 3.0, "3", 3.5, -1, True, "N/A", None, 1 << 70)] == [3, 3, 3] + [None] * 6


def test_categories_of_old_profilers_are_read() -> None:
    data = trace(
        work("a", 0, 5, cat="Kernel"), work("Memcpy DtoH", 10, 5, cat="Memcpy"), work("Memset", 20, 5, cat="Memset")
    )
    assert sums(data) == (0, 15, 0)


def test_only_complete_events_are_work() -> None:
    assert sums(
        trace(work("a", 0, 5, ph="B"), work("a", 0, 5, ph="i"), {"cat": "kernel", "name": "n", "ts": 9, "dur": 1})
    ) == (0, 1, 0)


def printed_ns(value: float) -> int:
    return int(Decimal(repr(value)) * 1000)


def brute_force(listed: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Counts nanoseconds between all points in time at which anything begins or ends."""
    totals = [0, 0, 0]
    chosen = [event for event in listed if event["cat"] == "kernel"]
    for device in {event["pid"] for event in chosen}:
        spans = [
            (
                printed_ns(event["ts"]),
                printed_ns(event["ts"]) + printed_ns(event["dur"]),
                event["name"].startswith("nccl"),
            )
            for event in chosen
            if event["pid"] == device
        ]
        points = sorted({point for start, end, _ in spans for point in (start, end)})
        for first, last in pairwise(points):
            is_comm = any(start <= first and last <= end for start, end, comm in spans if comm)
            is_compute = any(start <= first and last <= end for start, end, comm in spans if not comm)
            for index, counts in enumerate((is_comm, is_compute, is_comm and not is_compute)):
                totals[index] += (last - first) * counts
    return tuple(total / 1000 for total in totals)  # type: ignore[return-value]


def test_the_sums_of_a_generated_trace_equal_a_count_by_hand() -> None:
    listed = list(events(Shape(kernels=300, steps=3))) + list(events(Shape(kernels=150, steps=3, rank=1, seed=4)))
    random.Random(7).shuffle(listed)
    assert sums(trace(*listed)) == brute_force(listed)


spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=60)


@given(spans, spans)
@settings(max_examples=60)
def test_unions_count_each_moment_once(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    covers = []
    for listed in (first, second):
        held = Intervals()
        for start, length in listed:
            held.add(start, start + length)
        covers.append(held.cover())
    moments = [
        {moment for start, length in listed for moment in range(start, start + length)} for listed in (first, second)
    ]
    assert [cover.length() for cover in covers] == [len(found) for found in moments]
    both = union(covers)
    assert both.length() == len(moments[0] | moments[1])
    assert both.within(30, 90) == len((moments[0] | moments[1]) & set(range(30, 90)))
    assert all(end < start for end, start in zip(both.ends, list(both.starts)[1:], strict=False))


def test_more_intervals_than_a_block_holds_are_merged_across_blocks() -> None:
    held = Intervals()
    order = list(range(2 * BLOCK + 11))
    random.Random(1).shuffle(order)
    for index in order:
        held.add(10 * index, 10 * index + 4)
    cover = held.cover()
    assert (len(cover), cover.length(), cover.within(0, 40)) == (len(order), 4 * len(order), 16)
    assert Cover().length() == Cover().within(0, 9) == 0


def test_wanted_members_are_given_out_and_others_passed_over() -> None:
    text = json.dumps({"a": {"x": "]}"}, "b": [1], "c": 1.5, "traceEvents": [], "d": '\\"'}).encode()
    found = list(items(iter([text[:9], text[9:]]), ("c", "d", "a")))
    assert found == [Member("a", {"x": "]}"}), Member("c", 1.5), Member("traceEvents", None), Member("d", '\\"')]
    assert not any(isinstance(item, Unreadable) for item in found)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_no_bytes_end_in_another_error(noise: bytes) -> None:
    for data in (
        noise,
        b'{"traceEvents":[' + noise,
        b'{"traceEvents":[{"ph":"X",' + noise + b"}]}",
        b"\x1f\x8b" + noise,
    ):
        try:
            decode(data)
        except (Damaged, UnknownFormat):
            continue


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write(path, Shape(kernels=3000), megabytes=40)
    script = (
        "import resource, sys\nfrom agents.decode import driver\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert driver.run('kineto', sys.argv[1], open('/dev/null', 'wb'), sys.stderr) == 0\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 'numpy' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    grown, has_numpy = process.stdout.split()
    assert float(grown) < 40, "40 MB of text take less than their own size"
    assert has_numpy == "False"
