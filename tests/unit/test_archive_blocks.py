"""A recorded archive: sums that find every damage, notes that say what it cost, and the rest that is still read."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.archive import ArchiveLine, BadLine, NotAnArchiveError, read_archive
from schemas.archive_blocks import BlockWriter, marks_of

if TYPE_CHECKING:
    from pathlib import Path

HEAD = {"site_id": "site"}
BLOCKS, PER_BLOCK = 4, 25


def line_of(offset: int) -> bytes:
    return b'{"topic":"gpu-frames","partition":0,"offset":%d,"timestamp_ms":%d,"value":{"n":%d}}\n' % (
        offset,
        1000 + offset,
        offset * 7919 % 1013,
    )


def recorded(stream: io.BytesIO, blocks: int = BLOCKS, ends: bool = True) -> BlockWriter:
    writer = BlockWriter(stream, HEAD)
    for offset in range(blocks * PER_BLOCK):
        writer.add(line_of(offset), "gpu-frames", 0, offset, 1000 + offset)
        if (offset + 1) % PER_BLOCK == 0:
            writer.close_block()
    if ends:
        writer.end({"paceline": "1"})
    return writer


def data(ends: bool = True) -> bytes:
    stream = io.BytesIO()
    recorded(stream, ends=ends)
    return stream.getvalue()


def offsets(path: Path, is_tolerant: bool = False) -> list[int]:
    return [line.offset for line in read_archive(path, is_tolerant=is_tolerant) if isinstance(line, ArchiveLine)]


def bad(path: Path) -> list[BadLine]:
    return [line for line in read_archive(path, is_tolerant=True) if isinstance(line, BadLine)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run.jsonl.zst"
    found.write_bytes(data())
    return found


def test_what_is_recorded_is_read_again_with_its_line_numbers(path: Path) -> None:
    lines = list(read_archive(path))
    assert offsets(path) == list(range(BLOCKS * PER_BLOCK))
    assert [line.number for line in lines] == list(range(1, BLOCKS * PER_BLOCK + 1))


def test_the_manifest_stands_at_the_end_with_an_index(path: Path) -> None:
    marks = marks_of(path)
    assert marks.damages == []
    assert marks.head is not None
    assert marks.head["site_id"] == "site"
    assert marks.end is not None
    assert (marks.end["paceline"], marks.end["lines"]) == ("1", BLOCKS * PER_BLOCK)
    assert [block["places"] for block in marks.end["blocks"]] == [
        {"gpu-frames/0": [n * PER_BLOCK, (n + 1) * PER_BLOCK - 1, PER_BLOCK]} for n in range(BLOCKS)
    ]
    assert marks.end["blocks"][1]["first_ms"] == 1000 + PER_BLOCK


def test_the_index_says_where_a_block_begins(path: Path) -> None:
    content = path.read_bytes()
    (at,) = struct.unpack("<Q", content[-8:])
    assert content[at + 8 : at + 12] == b"PCLN"
    end = marks_of(path).end
    assert end is not None
    for block in end["blocks"]:
        assert content[block["at"] + 8 : block["at"] + 12] == b"PCLN"


def test_other_tools_read_it_as_compressed_lines(path: Path) -> None:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes()), read_across_frames=True)
    assert reader.read() == b"".join(map(line_of, range(BLOCKS * PER_BLOCK)))
    if shutil.which("zstd"):
        told = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True, timeout=30)
        assert told.stdout == b"".join(map(line_of, range(BLOCKS * PER_BLOCK)))


def test_a_flipped_bit_costs_its_block_and_says_which(path: Path) -> None:
    marks = marks_of(path)
    content = bytearray(path.read_bytes())
    content[marks.blocks[2]["at"] - 40] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(NotAnArchiveError, match=r"block 1 \(lines 26 to 50: gpu-frames/0 25\.\.49\) is left out"):
        list(read_archive(path))
    assert offsets(path, is_tolerant=True) == [*range(25), *range(50, 100)]
    (found,) = bad(path)
    assert found.number == 26


def test_a_damaged_note_costs_its_block_and_the_numbers_go_on(path: Path) -> None:
    marks = marks_of(path)
    content = bytearray(path.read_bytes())
    content[marks.blocks[1]["at"] + 30] ^= 0x01
    path.write_bytes(content)
    lines = list(read_archive(path, is_tolerant=True))
    assert [line.offset for line in lines if isinstance(line, ArchiveLine)] == [*range(25), *range(50, 100)]
    assert [line.number for line in lines if isinstance(line, ArchiveLine)][25] == 51
    reasons = [line.reason for line in lines if isinstance(line, BadLine)]
    assert "no readable note" in reasons[0]
    assert "block 1 cannot be found: 25 lines from line 26 on are left out" in reasons[1]


def test_a_recording_without_an_end_says_so(path: Path) -> None:
    path.write_bytes(data(ends=False))
    with pytest.raises(NotAnArchiveError, match="has no end"):
        list(read_archive(path))
    assert offsets(path, is_tolerant=True) == list(range(100))


def test_a_block_taken_out_is_missed(path: Path) -> None:
    marks = marks_of(path)
    content = path.read_bytes()
    path.write_bytes(content[: marks.blocks[1]["at"]] + content[marks.blocks[2]["at"] :])
    (found,) = bad(path)
    assert "block 1 cannot be found: 25 lines from line 26" in found.reason


def test_reading_from_a_line_on_leaves_what_is_before_it_packed(path: Path) -> None:
    whole = list(read_archive(path))
    asked: list[int] = []

    def wants(note: dict[str, Any]) -> bool:
        asked.append(note["block"])
        return True

    for first in (1, PER_BLOCK, PER_BLOCK + 1, 60, BLOCKS * PER_BLOCK + 1):
        assert list(read_archive(path, from_line=first)) == whole[first - 1 :]
    assert list(read_archive(path, wants=wants, from_line=60)) == whole[59:]
    assert asked == [2, 3]
    (path.parent / "plain.jsonl").write_bytes(b"".join(line_of(offset) for offset in range(9)))
    assert [line.number for line in read_archive(path.parent / "plain.jsonl", from_line=7)] == [7, 8, 9]


def test_damage_before_the_line_that_is_read_from_is_not_told(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[marks_of(path).blocks[1]["at"] - 40] ^= 1
    path.write_bytes(raw)
    assert [line.number for line in read_archive(path, is_tolerant=True)] == [1, *range(26, 101)]
    assert [line.number for line in read_archive(path, is_tolerant=True, from_line=2)] == list(range(26, 101))


def test_of_recordings_one_behind_the_other_each_is_held_to_its_own_end_and_version(path: Path) -> None:
    def told(*parts: bytes) -> tuple[int, list[str]]:
        path.write_bytes(b"".join(parts))
        return len(offsets(path, is_tolerant=True)), [line.reason for line in bad(path)]

    other = io.BytesIO()
    BlockWriter(other, {"archive_version": 9}).end({})
    lines, whole, torn = BLOCKS * PER_BLOCK, data(), data(ends=False)
    assert told(whole, whole) == (2 * lines, [])
    assert told(torn, whole) == (
        2 * lines,
        [f"byte {len(torn)}: another recording begins, and the one before it has no end"],
    )
    read, (reason,) = told(whole, other.getvalue(), whole)
    assert read == lines
    assert reason.startswith(f"byte {len(whole)}: an archive of version 9 is appended; this paceline reads version 1")
    with pytest.raises(NotAnArchiveError, match="of version 9 is appended"):
        offsets(path)


def test_an_archive_of_a_later_version_is_refused(path: Path) -> None:
    stream = io.BytesIO()
    BlockWriter(stream, {"archive_version": 2})
    path.write_bytes(stream.getvalue())
    with pytest.raises(NotAnArchiveError, match="of version 2; this paceline reads version 1"):
        list(read_archive(path, is_tolerant=True))


def test_a_writer_goes_on_after_the_last_whole_block(path: Path) -> None:
    whole = path.read_bytes()
    begun = data(ends=False)
    for cut in (len(begun), len(begun) - 7):
        path.write_bytes(begun[:cut])
        marks = marks_of(path)
        with path.open("r+b") as stream:
            stream.truncate(marks.whole_to)
            stream.seek(marks.whole_to)
            writer = BlockWriter(stream, HEAD, marks.blocks)
            for offset in range(writer.lines, BLOCKS * PER_BLOCK):
                writer.add(line_of(offset), "gpu-frames", 0, offset, 1000 + offset)
            writer.end({"paceline": "1"})
        assert path.read_bytes() == whole


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_damage_goes_unnoticed_and_what_is_read_is_true(
    tmp_path_factory: pytest.TempPathFactory, draws: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "run.jsonl.zst"
    content = bytearray(WHOLE)
    if draws.draw(st.booleans(), "cut"):
        content = content[: draws.draw(st.integers(12, len(content) - 21), "at")]
    else:
        content[draws.draw(st.integers(0, len(content) - 21), "at")] ^= 1 << draws.draw(st.integers(0, 7), "bit")
    path.write_bytes(content)
    try:
        lines = list(read_archive(path, is_tolerant=True))
    except NotAnArchiveError:
        return
    assert any(isinstance(line, BadLine) for line in lines)
    good = [line for line in lines if isinstance(line, ArchiveLine)]
    assert all(line.value == {"n": line.offset * 7919 % 1013} and line.number == line.offset + 1 for line in good)
    with pytest.raises(NotAnArchiveError):
        list(read_archive(path))


WHOLE = data()
