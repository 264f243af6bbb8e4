"""What the hook writes of PyTorch's recorder, with a stand-in for PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline_trainer import write_flight_recording
from streams.detectors.hang_verdict import HangVerdict
from tests.recorder_dumps import entry, verdict_of


def gloo_entry(seq: int, group: tuple[str, str], is_retired: bool, **more: Any) -> dict[str, Any]:
    """An entry as Gloo leaves it: what ended is retired, and its state tells nothing."""
    return entry(seq, group=group, profiling_name="gloo:all_reduce", retired=is_retired, **more)


def recording(entries: list[dict[str, Any]], ids: tuple[str, ...], members: str = "[]") -> dict[str, Any]:
    status = {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 8}
    return {
        "version": "2.9",
        "pg_config": {"": {"name": "", "desc": "", "ranks": members}},
        "pg_status": dict.fromkeys(ids, status),
        "entries": entries,
    }


class Torch:
    """The parts of PyTorch that the hook asks."""

    def __init__(self, dumps: dict[str, Any], rank: int = 1) -> None:
        world = {"0": [0, 1, 2, 3], "1": [1, 0]}
        groups = [
            SimpleNamespace(group_name=name, group_desc={"0": "default_pg"}.get(name, "undefined")) for name in world
        ]
        self.distributed = SimpleNamespace(
            get_rank=lambda: rank,
            get_process_group_ranks=lambda group: world[group.group_name],
            distributed_c10d=SimpleNamespace(_world=SimpleNamespace(pg_group_ranks=[*groups, object()])),
        )
        self.bindings = SimpleNamespace(
            **{name: lambda value=value: json.dumps(value).encode() for name, value in dumps.items()}
        )

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch.distributed", self.distributed)
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", self.bindings)


def test_members_of_all_groups_are_written_beside_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [gloo_entry(9, ("1", "undefined"), is_retired=False)]
    Torch({"_dump_fr_trace_json": recording(entries, ("0", "1"))}).put(monkeypatch)
    path = write_flight_recording(str(tmp_path))
    assert path == str(tmp_path / "flight_rank_1")
    assert [one.name for one in tmp_path.iterdir()] == ["flight_rank_1"]
    written = json.loads(Path(path).read_text())
    assert written["pg_config"]["1"] == {"name": "1", "desc": "undefined", "ranks": "[0, 1]"}
    assert written["pg_config"]["0"]["ranks"] == "[0, 1, 2, 3]"
    assert len(written["entries"]) == 1


def test_the_recorder_that_has_entries_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(9)]
    Torch({"_dump_fr_trace_json": {"version": "2.9"}, "_dump_nccl_trace_json": recording(entries, ("0",))}).put(
        monkeypatch
    )
    path = write_flight_recording(str(tmp_path))
    assert path is not None
    assert json.loads(Path(path).read_text())["entries"][0]["profiling_name"] == "nccl:all_reduce"


def test_nothing_is_written_and_nothing_raised_where_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert write_flight_recording(str(tmp_path)) is None
    Torch({"_dump_fr_trace_json": {"version": "2.9"}}).put(monkeypatch)
    assert write_flight_recording(str(tmp_path)) is None
    Torch({}).put(monkeypatch)
    assert write_flight_recording(str(tmp_path)) is None
    Torch({"_dump_fr_trace_json": recording([entry(9)], ("0",))}).put(monkeypatch)
    assert write_flight_recording(str(tmp_path / "none")) is None
    assert list(tmp_path.iterdir()) == []


def judged(pending_by_rank: dict[int, bool], **what: Any) -> HangVerdict:
    """A job of one group over Gloo, as the recorder has it; ranks that came have one operation pending."""
    dumps = {}
    for rank, came in pending_by_rank.items():
        entries = [gloo_entry(seq, ("0", "default_pg"), is_retired=True) for seq in (7, 8)]
        if came:
            entries.append(gloo_entry(9, ("0", "default_pg"), is_retired=False, **what))
        dumps[rank] = recording(entries, ("0",), "[0, 1, 2, 3]")
        dumps[rank]["pg_status"] = {"0": {"last_enqueued_collective": 8 + came, "last_completed_collective": 8}}
    return verdict_of(dumps)


def test_what_gloo_retired_is_done_and_members_under_no_name_are_those_of_the_only_group() -> None:
    verdict = judged({0: True, 1: True, 2: False, 3: True})
    assert (verdict.cause, verdict.culprit_ranks, verdict.waiting_ranks) == ("not_entered", (2,), (0, 1, 3))
    assert verdict.operation is not None
    assert verdict.operation.group.desc == "default_pg"
    silent = judged({0: True, 1: True, 2: True})
    assert (silent.cause, silent.culprit_ranks) == ("not_entered", (3,))
    assert judged(dict.fromkeys(range(4), False)).verdict == "healthy"


def test_a_process_of_two_groups_has_no_members_of_either() -> None:
    entries = [gloo_entry(9, ("0", "default_pg"), is_retired=False)]
    verdict = verdict_of({rank: recording(entries, ("0", "1"), "[0, 1]") for rank in range(2)})
    assert (verdict.verdict, verdict.cause) == ("undecided", "insufficient")
