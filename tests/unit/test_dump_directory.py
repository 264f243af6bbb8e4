"""Flight-recorder dumps on the disk: when one is told of, what counts as whole, and that nothing of it is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder_dumps import world

from agents.collectors.base import CollectorError, Dump
from agents.collectors.dump_directory import DumpDirectoryCollector, rank_of_dump
from agents.collectors.dump_end import encoding_of, is_whole
from agents.identity import AgentIdentity
from agents.rank_places import RankPlace
from agents.settings import AgentSettings
from schemas.steps import CollectiveDigest

S = 10**9
T0 = 1_800_000_000 * S
SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "flight_recorder"

DUMP: dict[str, Any] = {
    "version": "2.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 9, "last_completed_collective": 8}},
    "entries": [
        {
            "frames": [{"name": "forward", "filename": "utils.py", "line": line}],
            "collective_seq_id": 2**40 + line,
            "profiling_name": "nccl:all_reduce",
            "duration_ms": None if line % 2 else 1.5,
            "input_sizes": [[8, 300]],
            "process_group": ("0", "default_pg"),
            "retired": False,
        }
        for line in range(40)
    ],
}
AS_PICKLE = pickle.dumps(DUMP, protocol=2)
AS_JSON = json.dumps(DUMP).encode()


class Node:
    """A directory, its collector, and the time at which it reads."""

    def __init__(self, folder: Path) -> None:
        self.now_ns = T0
        self.folder = folder
        self.collector = DumpDirectoryCollector([f"{folder}/nccl_trace_rank_*"])

    def write(self, rank: int, data: bytes) -> Path:
        path = self.folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(data)
        return path

    def after(self, seconds: float = 1.0) -> tuple[Dump, ...]:
        self.now_ns += round(seconds * S)
        return self.collector.collect(self.now_ns).dumps

    def settled(self) -> tuple[Dump, ...]:
        return (*self.after(0), *self.after(3))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_dump_is_told_of_once_when_it_stands_still(node: Node) -> None:
    path = node.write(3, AS_PICKLE)
    assert node.after(1) == ()
    (dump,) = node.after(1)
    assert dump == Dump(
        path=str(path),
        rank=3,
        size_bytes=len(AS_PICKLE),
        modified_ns=path.stat().st_mtime_ns,
        sha256=hashlib.sha256(AS_PICKLE).hexdigest(),
        encoding="pickle",
        complete=True,
    )
    assert node.after(60) == ()
    assert node.collector.counters == {"complete": 1, "without_job": 1}


def test_a_dump_that_grows_is_waited_for(node: Node) -> None:
    for end in range(100, len(AS_PICKLE), len(AS_PICKLE) // 5):
        node.write(0, AS_PICKLE[:end])
        assert node.after(1.5) == ()
    node.write(0, AS_PICKLE)
    assert [dump.complete for dump in node.settled()] == [True]
    assert node.collector.counters["truncated"] == 0


def test_a_dump_that_was_cut_is_told_as_such_and_again_when_it_is_written_anew(node: Node) -> None:
    node.write(0, AS_JSON[:-1])
    assert [node.after(0), node.after(1)] == [(), ()], "it is looked at, and waited for"
    assert [(dump.encoding, dump.complete) for dump in node.settled()] == [("json", False)]
    node.write(0, AS_JSON)
    assert [(dump.encoding, dump.complete) for dump in node.settled()] == [("json", True)]
    assert node.collector.counters == {"truncated": 1, "complete": 1, "without_job": 1}
    assert node.collector.malformed == 1


def test_of_many_dumps_each_reading_takes_as_many_as_it_may_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.collectors.dump_directory._MOST_BYTES", 2 * len(AS_PICKLE))
    for rank in range(5):
        node.write(rank, AS_PICKLE)
    node.after(0)
    assert [[dump.rank for dump in node.after(3)] for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_dump_that_cannot_be_read_is_counted_once_behind_those_that_can(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = str(node.write(1, AS_PICKLE))
    node.write(0, AS_PICKLE)
    open_file = os.open

    def refusing(path: str, flags: int) -> int:
        if path == unreadable:
            raise PermissionError(13, "Permission denied", path)
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    node.after(0)
    assert [dump.rank for dump in node.after(3)] == [0]
    with pytest.raises(CollectorError, match="Permission denied"):
        node.after(1)
    assert node.after(1) == ()
    assert node.collector.counters["unreadable"] == 1


def test_a_dump_of_a_rank_that_runs_here_gives_a_digest(tmp_path: Path) -> None:
    collector = DumpDirectoryCollector([f"{tmp_path}/nccl_trace_rank_*"], "node-1", "session")
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps(world(4, enqueued=9, completed=8), protocol=2))
    written_ns = path.stat().st_mtime_ns
    own = RankPlace("job-1", 2, 3, os.getuid(), written_ns - S)
    collector.know_ranks(lambda: [own])
    collector.collect(written_ns + S)
    readings = collector.collect(written_ns + 2 * S)
    (record,) = readings.records
    assert isinstance(record, CollectiveDigest)
    assert (record.job_id, record.epoch, record.rank, record.node_id, record.seq) == ("job-1", 2, 3, "node-1", 0)
    assert (record.event_time_ns, record.written_ns) == (written_ns + 2 * S, written_ns)
    assert record.dump_path == str(path)
    assert record.dump_sha256 == readings.dumps[0].sha256
    assert record.pending_total == 1


OWN = RankPlace("job-1", 0, 3, os.getuid(), T0)


@pytest.mark.parametrize(
    "places",
    [
        [],
        [replace(OWN, rank=4)],
        [replace(OWN, uid=os.getuid() + 1)],
        [replace(OWN, since_ns=2**62)],
        [OWN, replace(OWN, job_id="job-2")],
    ],
    ids=["nobody", "another rank", "another user", "an attempt since", "two jobs"],
)
def test_a_dump_that_is_nobodys_for_sure_gives_none(node: Node, places: list[RankPlace]) -> None:
    node.collector.know_ranks(lambda: places)
    path = node.write(3, AS_PICKLE)
    os.utime(path, ns=(T0 + S, T0 + S))
    node.after(0)
    readings = node.collector.collect(T0 + 5 * S)
    assert len(readings.dumps) == 1
    assert readings.records == ()
    assert node.collector.counters["without_job"] == 1


def test_of_two_attempts_a_dump_is_the_later_ones(node: Node) -> None:
    node.collector.know_ranks(lambda: [replace(OWN, epoch=1, since_ns=T0 - 9), replace(OWN, since_ns=T0 - 99)])
    os.utime(node.write(3, AS_PICKLE), ns=(T0, T0))
    node.after(0)
    (record,) = node.collector.collect(T0 + 5 * S).records
    assert isinstance(record, CollectiveDigest)
    assert record.epoch == 1


def test_a_dump_that_its_decoder_refuses_gives_none(node: Node) -> None:
    node.collector.know_ranks(lambda: [replace(OWN, since_ns=0)])
    node.write(3, pickle.dumps({"version": "2.5", "entries": os.system}, protocol=2))
    assert len(node.settled()) == 1
    assert node.collector.counters["refused"] == 1


def test_a_dump_that_is_gone_and_comes_back_is_a_new_one(node: Node) -> None:
    path = node.write(0, AS_PICKLE)
    assert len(node.settled()) == 1
    path.unlink()
    assert node.after(1) == ()
    node.write(0, AS_PICKLE)
    assert len(node.settled()) == 1


def test_only_regular_files_count(node: Node) -> None:
    (node.folder / "secret").write_bytes(AS_PICKLE)
    (node.folder / "nccl_trace_rank_0").symlink_to(node.folder / "secret")
    (node.folder / "nccl_trace_rank_1").mkdir()
    os.mkfifo(node.folder / "nccl_trace_rank_2.pipe")
    assert node.settled() == ()


def test_a_large_file_is_hashed_and_not_looked_into(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.collectors.dump_directory._MOST_BYTES", 1000)
    node.write(0, AS_PICKLE)
    (dump,) = node.settled()
    assert (dump.complete, dump.encoding) == (None, "unknown")
    assert dump.sha256 == hashlib.sha256(AS_PICKLE).hexdigest()


def test_a_file_that_changes_while_it_is_read_is_looked_at_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.write(0, AS_PICKLE)
    node.after(0)
    read = os.read
    grown: list[int] = []

    def read_and_grow(file: int, size: int) -> bytes:
        if not grown:
            grown.append(1)
            with path.open("ab") as stream:
                stream.write(b"x")
        return read(file, size)

    monkeypatch.setattr(os, "read", read_and_grow)
    assert node.after(3) == ()
    node.write(0, AS_PICKLE)
    assert [dump.complete for dump in node.settled()] == [True]


def test_nothing_of_a_pickle_is_built(node: Node, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {trap}",)

    node.write(0, pickle.dumps(Payload(), protocol=2))
    (dump,) = node.settled()
    assert dump.complete is True  # it ends where its file does; what it holds is for its decoder to refuse
    assert not trap.exists()


def test_settings_make_the_collector() -> None:
    identity = AgentIdentity("n", "b", "s")
    assert DumpDirectoryCollector.from_settings(AgentSettings(), identity).is_supported() is None
    none = DumpDirectoryCollector.from_settings(AgentSettings(flight_recorder_dumps=()), identity)
    assert "flight_recorder_dumps" in (none.is_supported() or "")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_12", 12),
        ("/x/comm_lib_trace_rank_0", 0),
        ("/x/job_dump_7.json", 7),
        ("/x/rank3.pkl", 3),
        ("/x/trace_rank_3.pipe", None),
        ("/x/nccl_trace_rank_", None),
        ("/rank_5/trace", None),
    ],
)
def test_the_rank_is_at_the_end_of_the_name(name: str, rank: int | None) -> None:
    assert rank_of_dump(name) == rank


# --- What is whole ------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(PLAIN, st.integers(2, 5), st.data())
def test_a_pickle_is_whole_and_no_part_of_it_is(value: Any, protocol: int, data: st.DataObject) -> None:
    whole = pickle.dumps({"value": value}, protocol=protocol)
    assert is_whole(whole)
    assert not is_whole(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert not is_whole(whole + b"\n")


@settings(deadline=None)
@given(PLAIN, st.data())
def test_a_json_document_is_whole_and_no_part_of_it_is(value: Any, data: st.DataObject) -> None:
    whole = json.dumps({"value": value}).encode()
    assert is_whole(whole)
    assert is_whole(b"\n " + whole + b" \n")
    assert not is_whole(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    for start in (b"", b"\x80\x02", b"{", b"\x80\x05\x95" + b"\xff" * 8):
        assert is_whole(start + data) in (True, False)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x80", b"\x80\x02}", b"[1]", b"hello", b"{" * 100_000, b'{"a":' * 50_000]
)
def test_what_is_no_dump_is_not_whole(data: bytes) -> None:
    assert not is_whole(data)


def test_no_cut_of_a_dump_counts_as_whole() -> None:
    assert not any(is_whole(AS_PICKLE[:end]) for end in range(len(AS_PICKLE)))
    assert not any(is_whole(AS_JSON[:end]) for end in range(0, len(AS_JSON), 7))
    assert (encoding_of(AS_PICKLE), encoding_of(AS_JSON), encoding_of(b"x")) == ("pickle", "json", "unknown")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"reference data absent: {SAMPLES}")
def test_recorded_dumps_are_whole(node: Node) -> None:
    samples = sorted(SAMPLES.glob("*.json"))
    assert samples
    for rank, sample in enumerate(samples):
        node.write(rank, sample.read_bytes())
    node.after(0)
    found = [dump for _ in samples for dump in node.after(3)]
    assert [dump.complete for dump in found] == [True] * len(samples)
