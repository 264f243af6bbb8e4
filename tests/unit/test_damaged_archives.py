"""Torn, bit-flipped and mixed-version recordings through the command line: refused, or read around with every loss named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from factories import at, step_timing
from typer.testing import CliRunner

from paceline.cli import app
from paceline.replay_source import ReplaySpan
from schemas.archive import read_archive
from schemas.archive_blocks import BlockWriter, marks_of
from schemas.codec import message
from streams.recording.recorder import Recorder, summed_up
from streams.recording.selection import Selection
from streams.recording.taken import Taken

if TYPE_CHECKING:
    from pathlib import Path

STEPS, PER_BLOCK = 40, 10


def taken(number: int, **fields: Any) -> Taken:
    wire = message(step_timing(number, 20 + number, [200_000] * 8))
    headers = tuple((name, bytes(value)) for name, value in wire.headers)
    plain = {"topic": wire.topic, "key": wire.key, "value": wire.value, "headers": headers}
    return Taken(partition=0, offset=number, timestamp_ms=at(20 + number) // 10**6, **{**plain, **fields})


def record(path: Path, *others: Taken) -> Path:
    with path.open("wb") as stream:
        writer = BlockWriter(stream, {"site_id": "recorded", "asked": {}})
        recorder = Recorder(writer, Selection())
        for number in range(STEPS):
            recorder.take(taken(number))
            if (number + 1) % PER_BLOCK == 0:
                writer.close_block()
        for other in others:
            recorder.take(other)
        writer.close_block()
        writer.end(summed_up(writer.blocks))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return record(tmp_path / "run.jsonl.zst")


def replay(path: Path, *arguments: str) -> tuple[int, list[int], str]:
    told = CliRunner().invoke(app, ["replay", str(path), "--json", *arguments])
    steps = [
        fields["value"]["step"]
        for fields in map(orjson.loads, told.stdout.splitlines())
        if fields["topic"] == "paceline.step-results.v1"
    ]
    return told.exit_code, steps, told.stderr


def flip(path: Path, at_byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[at_byte] ^= 0x40
    path.write_bytes(content)


def test_a_whole_recording_replays_and_knows_its_site(archive: Path) -> None:
    status, steps, said = replay(archive)
    assert (status, steps, said) == (0, list(range(STEPS)), "")
    whole = CliRunner().invoke(app, ["archive", str(archive)])
    assert (whole.exit_code, "site recorded" in whole.stdout) == (0, True)


def test_a_flipped_bit_is_refused_and_read_around_on_request(archive: Path) -> None:
    flip(archive, marks_of(archive).blocks[2]["at"] - 20)
    status, steps, said = replay(archive)
    assert (status, steps) == (2, [])
    assert "block 1 (lines 11 to 20: paceline.step-timings.v1/0 10..19) is left out" in said
    assert "--readable replays the rest" in said
    status, steps, said = replay(archive, "--readable")
    assert (status, steps) == (2, [*range(10), *range(20, 40)])
    assert "line 11: block 1 (lines 11 to 20" in said
    told = CliRunner().invoke(app, ["archive", str(archive)])
    assert (told.exit_code, "damaged: block 1" in told.stdout) == (1, True)


def test_a_torn_recording_is_refused_and_its_whole_blocks_are_read_on_request(archive: Path) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content[: marks_of(archive).blocks[3]["at"] + 250])
    status, steps, said = replay(archive)
    assert (status, steps) == (2, [])
    status, steps, said = replay(archive, "--readable")
    assert (status, steps) == (2, list(range(30)))
    assert "has no end" in said


def test_records_of_other_versions_are_named_by_line_and_the_others_are_judged(tmp_path: Path) -> None:
    later = taken(90, topic="paceline.step-timings.v2")
    other = taken(91, headers=(("schema", b"paceline.step-timing.v2"),))
    path = record(tmp_path / "mixed.jsonl.zst", later, other, taken(92, value=b"\xff\x00"), taken(93, key=b"\xff"))
    status, steps, said = replay(path)
    assert (status, steps) == (2, list(range(STEPS)))
    assert "line 41: no topic" in said or "line 41: paceline.step-timings.v2: no topic" in said
    assert "its schema header is 'paceline.step-timing.v2'" in said
    assert "line 43: " in said
    assert "under the key" in said
    assert "bad_lines=4" in said


def test_an_archive_of_a_later_version_is_refused_even_on_request(tmp_path: Path) -> None:
    with (tmp_path / "later.jsonl.zst").open("wb") as stream:
        BlockWriter(stream, {"archive_version": 9}).end({})
    status, steps, said = replay(tmp_path / "later.jsonl.zst", "--readable")
    assert (status, steps) == (2, [])
    assert "of version 9; this paceline reads version 1" in said


def test_blocks_before_the_warm_up_and_after_the_end_are_not_read(archive: Path) -> None:
    first = at(20 + 22) // 10**9
    span = ReplaySpan.parse(str(first), str(first + 7), "5s")
    assert [span.holds_of(note) for note in marks_of(archive).blocks] == [False, True, True, False]
    lines = list(read_archive(archive, wants=span.holds_of))
    assert [line.number for line in lines] == list(range(11, 31))
    status, steps, _ = replay(archive, "--from", str(first), "--warm-up", "5s", "--to", str(first + 7))
    assert (status, steps) == (0, list(range(22, 29)))
