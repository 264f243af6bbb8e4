"""What the golden archives say is what was approved; every difference is printed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import orjson
import pytest
import zstandard

from paceline.review.difference import compare, counted
from paceline.review.said import Said
from schemas.codec import decode_value
from tests.golden.approve import ARCHIVES, approved_beside, replayed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_replay_says_what_was_approved(archive: Path) -> None:
    approved = zstandard.ZstdDecompressor().decompress(approved_beside(archive).read_bytes(), max_output_size=1 << 28)
    ours = [line.decode() for line in replayed(archive)]
    theirs = [line + "\n" for line in approved.decode().splitlines()]
    difference = list(difflib.unified_diff(theirs, ours, "approved", "replayed", n=0))
    assert not difference, f"\n{by_id(theirs, ours)}\n" + "".join(difference[:60])


def by_id(approved: list[str], replayed: list[str]) -> str:
    """What is the same, changed, missing and new, and why: the short form of a difference of thousands of bytes."""
    sides = []
    for name, lines in (("the approved output", approved), ("the replay", replayed)):
        sides.append(said := Said(name))
        for fields in map(orjson.loads, lines):
            said.take(decode_value(fields["topic"], fields["value"]))
    told = compare(*sides)
    counts = [f"{family}s: {dict(count)}" for family, count in counted(told).items()]
    return "\n".join(
        counts + [f"{d.what} {d.family} {d.identity}: {d.about}: {d.why}" for d in told if d.what != "same"][:40]
    )


def test_a_difference_is_told_by_id() -> None:
    lines = [line.decode() for line in replayed(ARCHIVES[1])]
    fewer = [line for line in lines if '"record":"command"' not in line]
    told = by_id(lines, fewer)
    assert "commands: {'missing': " in told
    assert "missing command cmd-" in told


def test_there_are_golden_archives() -> None:
    assert [archive.name for archive in ARCHIVES] == ["healthy.jsonl.zst", "mixed.jsonl.zst"]
