"""What the golden archives say is what was approved; every difference is printed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pytest
import zstandard

from tests.golden.approve import ARCHIVES, approved_beside, replayed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_replay_says_what_was_approved(archive: Path) -> None:
    approved = zstandard.ZstdDecompressor().decompress(approved_beside(archive).read_bytes(), max_output_size=1 << 28)
    ours = [line.decode() for line in replayed(archive)]
    theirs = [line + "\n" for line in approved.decode().splitlines()]
    difference = list(difflib.unified_diff(theirs, ours, "approved", "replayed", n=0))
    assert not difference, "\n" + "".join(difference[:60])


def test_there_are_golden_archives() -> None:
    assert [archive.name for archive in ARCHIVES] == ["healthy.jsonl.zst", "mixed.jsonl.zst"]
