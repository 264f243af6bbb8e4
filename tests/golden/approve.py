"""Replays the golden archives and takes what comes out as approved."""

from __future__ import annotations

from pathlib import Path

import zstandard

from schemas.archive import read_archive
from streams.replay import Problems, ndjson_line, replay

ARCHIVES = sorted(Path(__file__).parent.glob("*.jsonl.zst"))


def approved_beside(archive: Path) -> Path:
    """The file that holds an archive's approved output."""
    return archive.with_name(archive.name.removesuffix(".jsonl.zst") + ".approved.ndjson.zst")


def replayed(archive: Path) -> list[bytes]:
    """The lines of a replay.

    Raises:
        AssertionError: the archive has lines that cannot be used.
    """
    problems = Problems()
    lines = [ndjson_line(record) for record in replay(read_archive(archive), "golden", problems)]
    assert not problems.bad_lines, problems.bad_lines
    return lines


def main() -> None:
    """Approve the present output of every archive."""
    for archive in ARCHIVES:
        lines = replayed(archive)
        approved_beside(archive).write_bytes(zstandard.ZstdCompressor(level=19).compress(b"".join(lines)))
        print(f"{archive.name}: {len(lines)} lines approved")


if __name__ == "__main__":
    main()
