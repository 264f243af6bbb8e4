"""The archive: lines as recorded, compression by content, and every bad line named."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from factories import SITE, at, gpu_frame, job, step_timing, xid_event
from typer.testing import CliRunner

from paceline.cli import app
from schemas import archive
from schemas.archive import ArchiveLine, ArchiveWriter, BadLine, NotAnArchiveError, read_archive
from schemas.codec import decode_value
from streams.replay import Problems, Summary, ndjson_line, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = [gpu_frame(1, sm_clock_mhz=1755), gpu_frame(1, node_id="node-2"), gpu_frame(2), xid_event(3, 79), job(8)]


def written(path: Path, partitions: int = 1) -> Path:
    with ArchiveWriter.open(path, partitions) as archive:
        for number, record in enumerate(RECORDS):
            archive.write(record, at(number))
        assert archive.lines == len(RECORDS)
    return path


def good(path: Path) -> list[ArchiveLine]:
    lines = list(read_archive(path))
    assert all(isinstance(line, ArchiveLine) for line in lines)
    return [line for line in lines if isinstance(line, ArchiveLine)]


def test_gzip_is_named_once_with_what_unpacks_it(tmp_path: Path) -> None:
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(written(tmp_path / "run.jsonl").read_bytes()))
    with pytest.raises(
        NotAnArchiveError, match=r"is packed with gzip: unpack it first, zcat .*run.jsonl.gz > FILE.jsonl"
    ):
        list(read_archive(packed))
    ran = CliRunner().invoke(app, ["replay", str(packed)])
    assert (ran.exit_code, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", written(tmp_path / "run.jsonl").read_bytes()
    os.mkfifo(pipe)
    writing = os.open(pipe, os.O_RDWR)
    refused = f"paceline: {pipe}: it is a pipe: write it to a file first\n"
    try:
        for command in (["replay"], ["report", "-o", str(tmp_path / "page.html")], ["explain", "find-1"]):
            os.write(writing, content)
            ran = CliRunner().invoke(app, [*command, str(pipe)])
            assert (ran.exit_code, ran.stderr) == (2, refused)
    finally:
        os.close(writing)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.zst"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    lines = good(written(tmp_path / name))
    assert [decode_value(line.topic, line.value) for line in lines] == RECORDS
    assert [line.timestamp_ms for line in lines] == [at(number) // 10**6 for number in range(len(RECORDS))]
    assert lines[0].key == "node-1"
    assert lines[0].headers == {"schema": "paceline.gpu-frame.v1"}


def test_offsets_count_up_per_topic_and_partition(tmp_path: Path) -> None:
    lines = good(written(tmp_path / "run.jsonl"))
    assert [(line.topic.split(".")[1], line.offset) for line in lines] == [
        ("gpu-frames", 0),
        ("gpu-frames", 1),
        ("gpu-frames", 2),
        ("kernel-events", 0),
        ("jobs", 0),
    ]


def test_a_key_stays_in_its_partition(tmp_path: Path) -> None:
    lines = good(written(tmp_path / "run.jsonl", partitions=16))
    assert lines[0].partition == lines[2].partition == lines[3].partition
    assert all(0 <= line.partition < 16 for line in lines)
    assert len({line.partition for line in lines}) > 1


def test_a_line_has_the_documented_fields(tmp_path: Path) -> None:
    first = json.loads(written(tmp_path / "run.jsonl").read_text().splitlines()[0])
    assert list(first) == ["topic", "partition", "offset", "timestamp_ms", "key", "headers", "value"]


def test_compression_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    packed = written(tmp_path / "run.jsonl.zst")
    renamed = packed.rename(tmp_path / "run.jsonl")
    assert len(good(renamed)) == len(RECORDS)


def test_compressed_pieces_one_after_another_are_one_archive(tmp_path: Path) -> None:
    packed = written(tmp_path / "run.jsonl.zst").read_bytes()
    (tmp_path / "two.zst").write_bytes(packed + packed)
    assert len(good(tmp_path / "two.zst")) == 2 * len(RECORDS)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def interrupted() -> None:
        with ArchiveWriter.open(tmp_path / "run.jsonl") as archive:
            archive.write(RECORDS[0], at(0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "sink").symlink_to("/dev/null")
    written(tmp_path / "sink")
    assert [path.readlink() for path in tmp_path.iterdir()] == [Path("/dev/null")]
    with pytest.raises(IsADirectoryError):
        written(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "no JSON"),
        (b"[1]", "topic and a value"),
        (b'{"value":{}}', "topic and a value"),
        (b'{"topic":"x"}', "topic and a value"),
        (b'{"topic":3,"value":{}}', "topic and a value"),
        (b'{"topic":"x","value":{},"offset":"1"}', "whole numbers"),
        (b'{"topic":"x","value":{},"partition":true}', "whole numbers"),
        (b'{"topic":"x","value":{},"timestamp_ms":1.5}', "whole numbers"),
        (b'{"topic":"x","value":{},"timestamp_ms":-5}', "whole numbers"),
        (b"\xff\xfe{}", "no JSON"),
    ],
)
def test_a_bad_line_is_given_out_with_its_number(tmp_path: Path, line: bytes, reason: str) -> None:
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(b"\n" + line + b"\n" + path.read_bytes())
    first, *rest = read_archive(path)
    assert isinstance(first, BadLine)
    assert first.number == 2
    assert reason in first.reason
    assert len(rest) == len(RECORDS)


def test_places_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"topic":"gpu-frames","value":{},"key":7,"headers":[]}\n')
    (line,) = read_archive(path)
    assert line == ArchiveLine("gpu-frames", 0, 0, 0, None, {}, {}, 1)


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotAnArchiveError, match="No such file"):
        list(read_archive(tmp_path / "absent.jsonl"))
    with pytest.raises(NotAnArchiveError, match="directory"):
        list(read_archive(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_compressed_file_is_a_clear_error(tmp_path: Path, damage: str) -> None:
    buffer = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(buffer, closefd=False) as stream:
        archive = ArchiveWriter(stream)
        for second in range(2_000):
            archive.write(gpu_frame(second, gpus=1, power_w=[second % 97 + 0.5]), at(second))
    packed = bytearray(buffer.getvalue())
    if damage == "cut":
        packed = packed[: len(packed) // 2]
    else:
        packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "run.zst").write_bytes(packed)
    lines: list[object] = []
    with pytest.raises(NotAnArchiveError, match="damaged"):
        lines.extend(read_archive(tmp_path / "run.zst"))


def test_lines_before_what_cannot_be_read_come_before_the_error(tmp_path: Path) -> None:
    whole = written(tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)

    def torn() -> Iterator[bytes]:
        yield from whole
        raise OSError("torn")

    lines = archive._lines(torn(), first=8)
    assert [next(lines).number for _ in whole] == [8, 9, 10, 11, 12]
    with pytest.raises(OSError, match="torn"):
        next(lines)


def test_replay_counts_and_names_what_it_could_not_use(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    frame = json.loads(path.read_text().splitlines()[0])
    extra = [
        b"{",
        json.dumps({**frame, "topic": "paceline.nothing.v1"}).encode(),
        json.dumps({**frame, "value": {"record": "gpu_frame"}}).encode(),
        json.dumps({**frame, "offset": 9, "timestamp_ms": 1000}).encode(),
    ]
    path.write_bytes(path.read_bytes() + b"\n".join(extra) + b"\n")
    problems = Problems()
    outputs = list(replay(read_archive(path), SITE, problems))
    assert problems.counts["bad_lines"] == 4
    assert [reason.split(":")[0] for reason in problems.bad_lines] == ["line 6", "line 7", "line 8", "line 9"]
    assert problems.counts["refused_future"] == 1
    assert any(b'"kind":"xid"' in ndjson_line(record) for record in outputs)


def test_an_output_is_a_line_with_its_topic(tmp_path: Path) -> None:
    problems, summary = Problems(), Summary()
    for record in replay(read_archive(written(tmp_path / "run.jsonl")), SITE, problems):
        line = json.loads(ndjson_line(record))
        assert list(line) == ["topic", "value"]
        assert decode_value(line["topic"], line["value"]) == record
        summary.take(record)
    assert [command.kind for command in summary.commands] == ["cordon_node"]
    assert summary.findings[("xid", "critical")] == 1
    assert (summary.steps, summary.first_ns) == (0, None)


def test_a_summary_counts_steps_and_keeps_the_last_word_on_an_incident(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with ArchiveWriter.open(path) as archive:
        for number in range(40):
            own = [200_000] * 7 + [260_000 if number < 7 else 200_000]
            archive.write(step_timing(number, 20 + number, own), at(20 + number))
    summary = Summary()
    for record in replay(read_archive(path), SITE, Problems()):
        summary.take(record)
    assert summary.steps == 40
    assert summary.first_ns == at(20)
    assert summary.last_ns == at(59)
    assert [incident.state for incident in summary.incidents.values()] == ["resolved"]
    assert summary.findings[("straggler", "warning")] == 1
