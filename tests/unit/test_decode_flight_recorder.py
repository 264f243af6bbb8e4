"""Dumps of all versions and encodings, collections of them, and watchdog lines come out as one kind of record."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decode import flight_recorder
from agents.decode.driver import encode, run
from agents.decode.flight_recorder_dump import rank_in_name
from agents.decode.record import Damaged, Record, Tally
from agents.decode.watchdog_line import watchdog_record
from tests.recorder_dumps import entry, table, world

LARGEST = 2**64 - 1


class Named(io.BytesIO):
    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


def decode(data: Any, name: str = "/tmp/nccl_trace_rank_3") -> list[Record]:
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return json.loads(
        b"[" + b",".join(encode(record) for record in flight_recorder.decode(Named(data, name), Tally())) + b"]"
    )


def collective(records: list[Record]) -> Record:
    (found,) = [record for record in records if record["kind"] == "collective"]
    return found


def test_a_dump_reads_the_same_from_a_pickle_and_from_json() -> None:
    dump = world(2, 6, 5)
    expected = decode(dump)
    assert [record["kind"] for record in expected] == ["dump"] + ["collective"] * 4
    assert expected[0] == {
        "kind": "dump",
        "rank": 3,
        "version": "2.5",
        "entry_count": 4,
        "groups": [{"pg_id": "0", "last_enqueued_seq": 6, "last_started_seq": None, "last_completed_seq": 5}],
    }
    for protocol in (2, 3, 4, 5):
        assert decode(pickle.dumps(dump, protocol)) == expected


@pytest.mark.parametrize("data", [b"", b" \r\n"])
def test_a_file_that_was_opened_and_not_written_has_no_dump(data: bytes) -> None:
    (found,) = flight_recorder.dumps_in(data, "trace_rank_3")
    assert found == flight_recorder.Unreadable("trace_rank_3", "it is empty")


def test_an_entry_is_given_with_all_that_it_states() -> None:
    dump = table([("9", "TP", [6, 2])], {}, [entry(4, group=("9", "TP"), state="completed", duration_ms=1.5)])
    assert collective(decode(dump)) == {
        "kind": "collective",
        "rank": 3,
        "group_desc": "TP",
        "group_ranks": [2, 6],
        "seq": 4,
        "p2p_seq": 0,
        "is_p2p": False,
        "op": "all_reduce",
        "state": "completed",
        "created_ns": 1_700_000_000_000_000_004,
        "started_ns": None,
        "completed_ns": 1_700_000_000_000_000_999,
        "duration_ms": 1.5,
        "timeout_ms": 600_000,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "dtypes": ["Float"],
    }


def test_numbers_that_came_as_text_are_numbers_and_unknown_ones_are_null() -> None:
    dump = world(2, 1, 0)
    dump["pg_status"]["0"] = {
        "last_enqueued_collective": "7",
        "last_started_collective": "-1",
        "last_completed_collective": str(LARGEST),
    }
    dump["entries"] = [
        entry(1)
        | {
            "collective_seq_id": "12",
            "p2p_seq_id": "3",
            "time_created_ns": "1764000000000000001",
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": "0",
            "timeout_ms": "600000",
            "input_sizes": [["3", 4]],
            "duration_ms": "2.25",
            "is_p2p": "false",
        }
    ]
    head, record = decode(dump)
    assert head["groups"][0] == {
        "pg_id": "0",
        "last_enqueued_seq": 7,
        "last_started_seq": None,
        "last_completed_seq": None,
    }
    assert (record["seq"], record["p2p_seq"], record["created_ns"]) == (12, 3, 1_764_000_000_000_000_001)
    assert (record["started_ns"], record["completed_ns"], record["timeout_ms"]) == (None, None, 600_000)
    assert (record["input_sizes"], record["duration_ms"], record["is_p2p"]) == ([[3, 4]], 2.25, False)


def test_a_measured_zero_stays_zero() -> None:
    head, record = decode(world(2, 0, 0) | {"entries": [entry(0, duration_ms=0)]})
    assert head["groups"][0]["last_completed_seq"] == 0
    assert (record["seq"], record["duration_ms"]) == (0, 0)


def test_the_first_versions_have_entries_alone() -> None:
    old = {
        "version": "1.1",
        "entries": [{"pg_id": 0, "seq_id": 5, "profiling_name": "nccl:barrier", "state": "started"}],
    }
    head, record = decode(old)
    assert (head["version"], head["groups"], head["entry_count"]) == ("1.1", [], 1)
    assert (record["seq"], record["op"], record["group_ranks"], record["input_sizes"]) == (5, "barrier", None, None)


@pytest.mark.parametrize("missing", ["entries", "pg_config", "pg_status", "version"])
def test_what_a_dump_lacks_is_not_made_up(missing: str) -> None:
    dump = world(2, 1, 0)
    del dump[missing]
    head, *records = decode(dump)
    assert head["entry_count"] == len(records) == (0 if missing == "entries" else 1)
    if missing == "pg_config":
        assert (records[0]["group_desc"], records[0]["group_ranks"]) == ("default_pg", None)
    if missing == "version":
        assert head["version"] is None


def test_the_library_s_version_has_two_names() -> None:
    assert decode(world(1, 0, 0) | {"nccl_version": "2.27.3"})[0]["comm_lib_version"] == "2.27.3"
    assert decode(world(1, 0, 0) | {"comm_lib_version": "2.28.9", "version": "2.10"})[0]["version"] == "2.10"


@pytest.mark.parametrize(
    ("name", "op", "source", "target"),
    [("send 0->2", "send", 4, 12), ("recv 0<-2", "recv", 12, 4), ("send 0->9", "send", None, None)],
)
def test_peers_are_global_ranks(name: str, op: str, source: int | None, target: int | None) -> None:
    dump = table([("6", "PP", [4, 8, 12])], {}, [entry(1, name, ("6", "PP"), p2p=7)])
    record = collective(decode(dump))
    assert (record["op"], record["src_rank"], record["dst_rank"]) == (op, source, target)
    assert (record["is_p2p"], record["p2p_seq"]) == (True, 7)


def test_peers_of_an_unknown_group_are_unknown() -> None:
    record = collective(decode(table([], {}, [entry(1, "send 0->1", ("6", "PP"), p2p=7)])))
    assert (record["src_rank"], record["dst_rank"], record["group_desc"]) == (None, None, "PP")


def test_a_group_is_found_by_name_though_ids_differ() -> None:
    groups = [("9", "DP", [1, 3]), ("5", "TP", [0, 1])]
    record = collective(decode(table(groups, {}, [entry(1, group=("9", "DP"), pg_id=5)])))
    assert (record["group_desc"], record["group_ranks"]) == ("DP", [1, 3])


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl", "gloo"])
def test_operations_lose_their_backend(backend: str) -> None:
    dump = world(2, 1, 0)
    dump["entries"][0]["profiling_name"] = f"{backend}:_all_gather_base"
    assert collective(decode(dump))["op"] == "_all_gather_base"


def test_a_collection_gives_its_dumps_in_order_each_with_its_rank() -> None:
    records = decode(
        {"nccl_trace_rank_7": world(8, 1, 1), "comm_lib_trace_rank_2": world(8, 1, 0), "x_dump_11": world(8, 0, 0)}
    )
    assert [record["rank"] for record in records if record["kind"] == "dump"] == [7, 2, 11]


def test_one_bad_dump_of_a_collection_costs_only_itself() -> None:
    records = decode({"trace_rank_0": world(2, 1, 1), "trace_rank_1": {"entries": 5}})
    assert [record["kind"] for record in records] == ["dump", "collective", "malformed"]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_0", 0),
        ("comm_lib_trace_rank_12", 12),
        ("_dump_3", 3),
        ("trace_rank_4.json", 4),
        ("rank_4_old", None),
        ("dump", None),
        ("fault_injection.log", None),
    ],
)
def test_the_rank_stands_at_the_end_of_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(world(2, 3, 1)).encode()[:-40],
        pickle.dumps(world(2, 3, 1), 2)[:-1],
        b'{"version": "2.5", "entries": {"a": 1}}',
        b'{"version": "2.5", "entries": [1]}',
        b'{"version": "2.5", "pg_config": []}',
        b'{"a": 1}',
        b"{}",
        b"[1, 2]",
        b"hello\n",
        b"\x00\x01\x02",
        b"\x80\x02" + b"]" * 100_000 + b".",
        b'{"entries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        pickle.dumps([1, 2], 2),
        pickle.dumps({"entries": [], "version": Path("x")}, 2),
    ],
)
def test_what_is_no_whole_dump_is_damaged_and_gives_nothing(data: bytes) -> None:
    records = flight_recorder.decode(Named(data, "trace_rank_0"), Tally())
    with pytest.raises(Damaged):
        next(records)


def test_a_damaged_file_ends_in_one_malformed_record_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(world(2, 3, 1), 2)[:-1])
    out, err = io.BytesIO(), io.StringIO()
    assert run("flight-recorder", str(path), out, err) == 2
    (record,) = [json.loads(line) for line in out.getvalue().splitlines()]
    assert record["kind"] == "malformed"
    assert err.getvalue().splitlines()[-1] == "records=0 malformed=1 skipped=0"


@pytest.mark.parametrize("data", [b"", b" \n", b"\n\n"])
def test_an_empty_file_gives_nothing(data: bytes) -> None:
    assert decode(data) == []


def test_json_that_would_take_much_memory_is_refused() -> None:
    data = b'{"entries": [' + b"[]," * 9_000_000 + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="items"):
            list(flight_recorder.decode(Named(data, "x"), Tally()))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
odd_entries = st.fixed_dictionaries({}, optional=dict.fromkeys([*entry(1), "seq_id", "id", "duration_ms"], json_values))


@given(
    st.fixed_dictionaries(
        {"entries": st.lists(odd_entries, max_size=3)},
        optional={
            "version": json_values,
            "pg_config": st.dictionaries(
                st.text(max_size=3), st.dictionaries(st.sampled_from(["desc", "ranks", "name"]), json_values)
            ),
            "pg_status": st.dictionaries(
                st.text(max_size=3), st.dictionaries(st.sampled_from(["last_enqueued_collective"]), json_values)
            ),
        },
    )
)
@settings(max_examples=200, deadline=None)
def test_any_value_in_any_place_gives_strict_json_or_a_reason(dump: dict[str, Any]) -> None:
    try:
        records = decode(json.dumps(dump).encode("utf-8", "surrogatepass"))
    except Damaged:
        return
    assert records[0]["kind"] == "dump"
    assert all(isinstance(record["seq"], int | None) for record in records[1:])


CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
SIZES = "NumelIn=466119168, NumelOut=466119168, "
RAN = "Timeout(ms)=600000) ran for 600067 milliseconds before timing out."
FAILED = "Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579."
STARTED = (
    "failure detected by watchdog at work sequence id: 9 PG status: last enqueued work: 9, last started work: -1,"
    " last completed work: 8"
)
NEW = " failure detected by watchdog at work sequence id: 77 PG status: last enqueued work: 80, last completed work: 76"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            f"[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] {CAUGHT}{SIZES}{RAN}",
            {"rank": 4, "seq": 1580, "timeout_ms": 600_000, "ran_ms": 600_067, "op_type": "ALLREDUCE"},
        ),
        (f"[E ProcessGroupNCCL.cpp:475] [Rank 4] {CAUGHT}{RAN}", {"rank": None, "seq": 1580, "ran_ms": 600_067}),
        (
            f"(Worker[rank=9] pid=3) [rank9]:[E129 16:38:47.7 x.cpp:683] [Rank 1] {CAUGHT}{RAN}",
            {"rank": 9, "seq": 1580},
        ),
        (
            f"[rank3]:[E321 x.cpp:1664] [PG 1 Rank 3] {FAILED}",
            {"rank": 3, "seq": 1580, "last_enqueued_seq": 1582, "last_completed_seq": 1579},
        ),
        (f"[PG 1 Rank 3] {FAILED}", {"rank": None, "seq": 1580}),
        (f"[PG 0 (default_pg) Rank 3] {FAILED}", {"rank": 3, "seq": 1580}),
        (
            f"[PG ID 0 PG GUID 0(default_pg) Rank 118] {NEW}",
            {"rank": 118, "seq": 77, "last_enqueued_seq": 80, "last_completed_seq": 76},
        ),
        (f"[PG ID 2 PG GUID 5(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] {NEW}", {"rank": None, "seq": 77}),
        (f"12: [rank12]:[E x] [PG ID 2 PG GUID 5(TP) Rank 1] {NEW}", {"rank": 12, "seq": 77}),
        (
            f"[rank1]:[E1 x] [PG ID 3 PG GUID 3 Rank 1] {STARTED}",
            {"rank": 1, "seq": 9, "last_enqueued_seq": 9, "last_started_seq": None, "last_completed_seq": 8},
        ),
        (
            "[rank2]:[E x] [PG 0 Rank 2] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: -1.",
            {"rank": 2, "seq": 1, "last_enqueued_seq": 1, "last_completed_seq": None},
        ),
        (
            "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(OpType=BARRIER, Timeout(ms)=1800000)",
            {"rank": 0, "seq": None},
        ),
    ],
)
def test_a_watchdog_line_tells_of_one_operation(line: str, expected: dict[str, Any]) -> None:
    record = watchdog_record(line)
    assert record is not None
    assert record["kind"] == "watchdog"
    assert {key: record.get(key, "absent") for key in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "[rank4]:[E x] [Rank 4] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
        "[rank4]:[E x] [Rank 4] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
        "[rank4]:[E x] [PG ID 0 PG GUID 0(default_pg) Rank 4] First PG on this rank to signal dumping.",
        "[rank0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        "clocksource: Long readout interval, skipping watchdog check",
        "iteration 10/ 50 | elapsed time per iteration (ms): 1204.5",
    ],
)
def test_other_lines_yield_nothing(line: str) -> None:
    assert watchdog_record(line) is None


def test_a_trainer_log_gives_its_watchdog_lines_in_order() -> None:
    log = f"iteration 1\r\n[rank1]:[E x] [Rank 1] {CAUGHT}{SIZES}{RAN}\nframe #0\n\x1b[31m[rank0]:[E x] [PG 1 Rank 0] {FAILED}\x1b[0m\n"
    assert [(record["rank"], record["seq"]) for record in decode(log.encode())] == [(1, 1580), (0, 1580)]


def test_a_log_of_json_lines_is_a_log() -> None:
    line = json.dumps({"log": f"[rank1]:[E x] [Rank 1] {CAUGHT}{SIZES}{RAN}", "stream": "stderr"})
    assert [record["rank"] for record in decode(f"{line}\n{line}\n".encode())] == [1, 1]


def test_decoding_starts_light(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(world(2, 3, 1), 2))
    code = (
        "import sys; from paceline.cli import _decode; _decode('flight-recorder', sys.argv[1]);"
        "heavy = {'pydantic', 'numpy', 'faust', 'pyarrow', 'zstandard'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
