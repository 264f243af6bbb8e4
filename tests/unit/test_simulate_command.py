"""Rounds of a published fleet: each is new to the workers, and the command line says where to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.simulation import deliver, load_scenario, simulate
from paceline.simulate_command import in_round, simulate_command
from schemas.archive_blocks import BlockWriter
from schemas.events import KernelEvent
from schemas.findings import Finding
from schemas.fleet import Job, RankPlacement
from schemas.frames import GpuFrame
from schemas.steps import RankProgress, StepTiming
from streams.core.position import Position
from streams.core.roster import Roster
from streams.engines.telemetry import TelemetryEngine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from schemas.base import Record

START_NS = 1_760_000_000_000_000_000
ROUND_NS = 90_000_000_000


def round_of(start_ns: int) -> list[Record]:
    scenario = load_scenario("xid79", nodes=4, duration_s=20.0, seed=3)
    return [record for _, record in in_round(deliver(simulate(scenario, start_ns), seed=3), start_ns)]


def test_a_second_round_is_no_repeat_of_the_first() -> None:
    rounds = [round_of(START_NS), round_of(START_NS + ROUND_NS)]
    for family in (GpuFrame, KernelEvent, StepTiming):
        sessions = [{r.agent_session for r in records if isinstance(r, family)} for records in rounds]
        assert sessions[0]
        assert not sessions[0] & sessions[1], family
    lines = [{(r.node_id, r.boot_id, r.kmsg_seq) for r in records if isinstance(r, KernelEvent)} for records in rounds]
    assert not lines[0] & lines[1]
    boots = [{r.boot_id for r in records if isinstance(r, KernelEvent)} for records in rounds]
    assert boots[0] == boots[1]
    for records in rounds:
        epochs = {r.epoch for r in records if isinstance(r, Job | RankPlacement | StepTiming | RankProgress)}
        assert len(epochs) == 1


def test_the_workers_find_the_fault_of_every_round() -> None:
    engine = TelemetryEngine("site-1", 0, Roster())
    lost: list[set[str]] = []
    repeats = []
    for number in range(2):
        outputs: list[Record] = []
        for offset, record in enumerate(round_of(START_NS + number * ROUND_NS)):
            outputs += engine.on_record(record, Position("t", 0, 100_000 * number + offset, 0))
        lost.append({found.finding_id for found in outputs if isinstance(found, Finding) and found.urgent})
        repeats.append(engine.repeats)
    assert lost[0]
    assert len(lost[1]) == len(lost[0])
    assert not lost[0] & lost[1]
    # The simulated way to the broker repeats a few records of every round; the second round adds no others.
    assert repeats[1] == 2 * repeats[0]


def test_either_a_file_or_brokers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_command(None, None, 5.0, 4, 0, "healthy", None) == 2
    assert simulate_command(tmp_path / "a.jsonl", "localhost:1", 5.0, 4, 0, "healthy", None) == 2
    assert not (tmp_path / "a.jsonl").exists()
    assert capsys.readouterr().err.count("either --output FILE or --bootstrap HOST:PORT") == 2


def test_nothing_else_that_was_named_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, own, recorded = tmp_path / "a.jsonl", tmp_path / "own.toml", tmp_path / "recorded.jsonl.zst"
    own.write_text("nodes = 4\n")
    with recorded.open("xb") as stream:
        BlockWriter(stream, {})
    before = recorded.read_bytes()
    assert simulate_command(same, None, 5.0, 4, 0, "healthy", same) == 2
    assert simulate_command(own, None, 5.0, 4, 0, str(own), None) == 2
    assert simulate_command(same, None, 5.0, 4, 0, "healthy", tmp_path / "no" / "truth.jsonl") == 2
    assert simulate_command(recorded, None, 5.0, 4, 0, "healthy", None) == 2
    assert (same.exists(), own.read_text(), recorded.read_bytes()) == (False, "nodes = 4\n", before)
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(str(tmp_path))[0] for line in told] == [
        "paceline: --output and --truth-file are both ", "paceline: ", "paceline: ", "paceline: ",
    ]  # fmt: skip


def test_a_fleet_replaces_an_archive_and_its_truth_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, truth, notes = tmp_path / "a.jsonl", tmp_path / "a.truth.jsonl", tmp_path / "notes.txt"
    notes.write_text("look at node-7")
    for _ in range(2):
        assert simulate_command(archive, None, 5.0, 4, 0, "xid79", truth) == 0
    assert capsys.readouterr().err.count(f" records in {archive}") == 2
    for asked in ((notes, truth), (archive, notes), (truth, None), (None, archive)):
        assert simulate_command(asked[0], None, 5.0, 4, 0, "xid79", asked[1]) == 2
        assert "is there already, and is no " in capsys.readouterr().err
    assert notes.read_text() == "look at node-7"


def test_a_scenario_that_is_none_is_told_before_anything_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_command(None, "localhost:1", 5.0, 4, 0, "no-such", None) == 2
    assert "no scenario 'no-such'" in capsys.readouterr().err
